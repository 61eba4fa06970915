"""The module tree of a model: every site by its path, coloured by what it runs, to search and to filter."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from kerncfg.applier.report import STATUSES
from kerncfg.page.colours import ORIGINAL, Colours, swatch
from kerncfg.page.markup import Child, Markup, element

if TYPE_CHECKING:
    from kerncfg.applier.report import Report, ReportRow

__all__ = ["anchor", "tree"]

_OPEN = 36  # lines of the tree that are shown before anything is opened

Node = dict[str, "_Module"]


@dataclass(slots=True)
class _Module:
    """A module on the way to sites: its own sites, those of its parts, and how many of each colour are below it."""

    name: str
    rows: list[tuple[ReportRow, int]] = field(default_factory=list)
    parts: Node = field(default_factory=dict)
    below: Counter[tuple[str, str]] = field(default_factory=Counter)
    open: bool = False

    @property
    def leaf(self) -> bool:
        """Whether one line says all of it."""
        return not self.parts and len(self.rows) == 1


def anchor(name: str) -> str:
    """Return the id of the section about a name."""
    return "name-" + "".join(letter if letter.isalnum() else "-" for letter in name)


def tree(report: Report, known: Colours) -> Markup:
    """Return the section of the module tree with its filter."""
    groups: dict[tuple[str, str, str, str], int] = {}
    root = _Module("")
    for row in report.rows:
        key = (row.name, row.status, row.kernel or ORIGINAL, row.kind)
        _place(root, row, groups.setdefault(key, len(groups)))
    _join(root)
    _opened(root)
    lines = [_line(part, "", known) for part in root.parts.values()]
    lines = [*(_site(row, "(model)", group, known) for row, group in root.rows), *lines]
    data = [
        element("li", data_name=name, data_status=status, data_kernel=kernel, data_kind=kind)
        for name, status, kernel, kind in groups
    ]
    return element(
        "section",
        element("h2", "Modules", id="modules-title"),
        _filter(report),
        _legend(report, known),
        element("ul", lines, class_="tree", id="tree"),
        element("p", "No site fits the filter.", class_="none", hidden=True),
        element("ul", data, hidden=True, id="groups"),
        id="modules",
        aria_labelledby="modules-title",
    )


def _place(root: _Module, row: ReportRow, group: int) -> None:
    """Put a site at its path, and count it in all modules on the way."""
    module, colour = root, (row.status, row.kernel or ORIGINAL)
    for name in row.path.split(".") if row.path else ():
        module = module.parts.setdefault(name, _Module(name))
        module.below[colour] += 1
    module.rows.append((row, group))


def _join(module: _Module) -> None:
    """Make one line of modules that hold nothing but one other."""
    for key, part in list(module.parts.items()):
        while not part.rows and len(part.parts) == 1:
            (only,) = part.parts.values()
            only.name = f"{part.name}.{only.name}"
            part = module.parts[key] = only
        _join(part)


def _opened(root: _Module) -> None:
    """Open modules from above as long as there is room; of numbered ones, which are mostly alike, the first."""
    shown, level = len(root.parts), list(root.parts.values())
    while level:
        following: list[_Module] = []
        numbered = False
        for module in level:
            number = module.name.rpartition(".")[2].isdecimal()
            if module.leaf or (number and numbered):
                continue
            numbered = number
            shown += len(module.parts) + len(module.rows)
            if shown > _OPEN and module.below.total() > 1:
                return
            module.open = True
            following += module.parts.values()
        level = following


def _line(module: _Module, parent: str, known: Colours) -> Markup:
    path = f"{parent}.{module.name}" if parent else module.name
    if module.leaf:
        ((row, group),) = module.rows
        return _site(row, module.name, group, known)
    own = [_site(row, _own(row), group, known) for row, group in module.rows]
    parts = [_line(part, path, known) for part in module.parts.values()]
    swapped = sum(count for (status, _), count in module.below.items() if status == "swapped")
    name = element("b", module.name)
    count = element("span", f"{swapped}/{module.below.total()}", class_="count", title="swapped, of all sites")
    summary = element("summary", name, _bar(module.below, known), count)
    return element("li", element("details", summary, element("ul", own, parts), open=module.open))


def _own(row: ReportRow) -> str:
    """Return what a site is called on the line below its module."""
    return f"{row.name}()" if row.kind == "function" else "itself" if row.kind == "layer" else row.kind


def _site(row: ReportRow, name: str, group: int, known: Colours) -> Markup:
    kernel = row.kernel or ORIGINAL
    inside: Child = (
        swatch(kernel, known, status=row.status),
        element("b", name),
        element("span", row.name) if not name.startswith(f"{row.name}(") else None,
        element("span", kernel if row.status == "swapped" else row.status, class_="runs"),
    )
    return element("li", element("a", inside, href=f"#{anchor(row.name)}"), data_p=row.path, data_g=group)


def _bar(below: Mapping[tuple[str, str], int], known: Colours) -> Markup:
    """Return a bar of what the sites below run, each in its colour."""
    total, at, stops = sum(below.values()), 0.0, []
    for colour, count in sorted(below.items(), key=lambda item: (STATUSES.index(item[0][0]), -item[1])):
        end = at + 100 * count / total
        stops.append(f"var(--{_paint(colour, known)}) {at:.4g}% {end:.4g}%")
        at = end
    return element("i", class_="bar", style=f"--b:linear-gradient(90deg,{','.join(stops)})", aria_hidden="true")


def _paint(colour: tuple[str, str], known: Colours) -> str:
    status, kernel = colour
    return known.get(kernel, "k0") if status == "swapped" else "rest"


def _legend(report: Report, known: Colours) -> Markup:
    counts = Counter((row.status, row.kernel or ORIGINAL) for row in report.rows)
    items = []
    for (status, kernel), count in sorted(counts.items(), key=lambda item: STATUSES.index(item[0][0])):
        words = kernel if status == "swapped" else f"{kernel}, {status}"
        items.append(element("li", swatch(kernel, known, status=status), f"{words} ", element("span", str(count))))
    return element("ul", items, class_="legend", aria_label="Colours")


def _filter(report: Report) -> Markup:
    names, kernels = _values(report.rows)
    search = element("input", type="search", id="find", placeholder="layers.0, RMSNorm, builtin …", autocomplete="off")
    return element(
        "form",
        element("label", element("span", "Find"), search),
        _select("Name", "name", names),
        _select("Status", "status", [status for status in STATUSES if report.counts[status]]),
        _select("Kernel", "kernel", kernels),
        element("button", "Open all", type="button", id="open"),
        element("button", "Close all", type="button", id="close"),
        element("output", f"{len(report.rows)} sites", id="shown", aria_live="polite"),
        class_="filter",
        role="search",
        aria_label="Filter the modules",
    )


def _values(rows: Sequence[ReportRow]) -> tuple[list[str], list[str]]:
    names = sorted({row.name for row in rows})
    return names, sorted({row.kernel or ORIGINAL for row in rows})


def _select(label: str, key: str, values: Sequence[str]) -> Markup:
    options = [element("option", "any", value=""), *(element("option", value, value=value) for value in values)]
    return element("label", element("span", label), element("select", options, id=f"by-{key}", data_by=key))
