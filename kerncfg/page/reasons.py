"""Why each name runs what it runs: what happened at its sites, and every candidate with its reason and origin."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING

from kerncfg.documents import table
from kerncfg.page.colours import Colours, swatch
from kerncfg.page.markup import TIMES, Child, Markup, element
from kerncfg.page.tree import anchor

if TYPE_CHECKING:
    from kerncfg.applier.report import Report, ReportRow
    from kerncfg.documents.plan import Choice, ModePlan, Plan, Rejection, Step
    from kerncfg.documents.target import Mode

__all__ = ["reasons"]

_FEW = 4  # paths of sites that a line names


def reasons(plan: Plan | None, report: Report | None, known: Colours) -> Markup | None:
    """Return the section about the names: those with sites first, then the user's rows that swap nothing."""
    steps = {step.name: step for step in plan.steps} if plan else {}
    sites: dict[str, list[ReportRow]] = {}
    for row in report.rows if report else ():
        sites.setdefault(row.name, []).append(row)
    own = [step.name for step in steps.values() if step.own and step.name not in sites]
    if not sites and not steps:
        return None
    parts = [_name(name, rows, steps.get(name), known) for name, rows in sites.items()]
    parts += [_name(name, (), steps[name], known, idle=_idle(report, steps[name])) for name in own]
    absent = [step for name, step in steps.items() if name not in sites and not step.own]
    return element(
        "section",
        element("h2", "Why", id="why-title"),
        element(
            "p", "What each name runs, and why nothing else. A mode without a kernel keeps the model's own forward."
        ),
        parts,
        _absent(absent, known) if absent else None,
        id="why",
        aria_labelledby="why-title",
    )


def _idle(report: Report | None, step: Step) -> str | None:
    return report.idle.get(step.key) if report else None


def _name(
    name: str, rows: Sequence[ReportRow], step: Step | None, known: Colours, *, idle: str | None = None
) -> Markup:
    groups: dict[tuple[str, str, str], list[ReportRow]] = {}
    for row in rows:
        groups.setdefault((row.status, row.kernel or "original", row.reason), []).append(row)
    heads = [
        element("span", swatch(kernel, known, status=status), f"{kernel} {TIMES}{len(found)}", class_="chip")
        for (status, kernel, _), found in groups.items()
    ]
    summary = element("summary", element("b", name), heads or element("span", "no site", class_="chip"))
    return element(
        "details",
        summary,
        element("p", idle, class_="warn") if idle else None,
        _sites(groups, known) if groups else None,
        _candidates(step, known) if step else None,
        id=anchor(name),
        class_="name",
    )


def _sites(groups: dict[tuple[str, str, str], list[ReportRow]], known: Colours) -> Markup:
    lines = []
    for (status, kernel, reason), rows in groups.items():
        paths = [row.path or "(model)" for row in rows]
        more = f" and {len(paths) - _FEW} more" if len(paths) > _FEW else ""
        where = element("p", element("code", ", ".join(paths[:_FEW])), more, class_="where")
        said = swatch(kernel, known, status=status), element("b", status), f" at {_counted(len(rows))}: {reason}"
        lines.append(element("li", element("p", said), where))
    return element("ul", lines, class_="plain")


def _counted(count: int) -> str:
    return f"{count} site{'' if count == 1 else 's'}"


def _candidates(step: Step, known: Colours) -> Markup:
    """Return what each mode was offered, modes that are alike together."""
    groups: list[tuple[ModePlan, list[Mode]]] = []
    for mode, found in step.modes.items():
        alike = next((modes for other, modes in groups if other == found), None)
        if alike is None:
            groups.append((found, [mode]))
        else:
            alike.append(mode)
    parts = [
        element("div", element("h4", table.modes(modes)), _offers(found, known), class_="mode")
        for found, modes in groups
    ]
    said = "your rows" if step.own else "inherited"
    taken = table.parts(step)
    return element(
        "div",
        element("h3", "Candidates"),
        element("p", f"{said}: {step.reason}", f"; takes {taken}" if taken else None, class_="dim"),
        element("div", parts, class_="modes"),
    )


def _offers(found: ModePlan, known: Colours) -> Markup:
    lines = [_choice(choice, known) for choice in found.choices]
    lines += _others("not taken", found.rejected)
    lines += _others("not asked", found.unreached)
    return element("ol", lines, class_="offers")


def _choice(choice: Choice, known: Colours) -> Markup:
    kernel = choice.kernel
    reference = str(kernel.reference)
    exact = [kernel.variant, kernel.commit and f"commit {kernel.commit[:12]}"]
    exact += [kernel.digest and f"digest {kernel.digest[:12]}"]
    left = table.conditions(choice.conditions)
    met = ", ".join(f"{key} {wanted}" for key, wanted in choice.needs.items())
    status = "kept" if choice.original else "swapped"
    return element(
        "li",
        element("p", swatch(reference, known, status=status), element("code", reference), _origin(choice.origin)),
        element("p", choice.reason),
        element("p", ", ".join(filter(None, exact)), class_="dim") if any(exact) else None,
        element("p", f"met by the target: {met}", class_="dim") if met else None,
        element("p", f"left to each module: {left}", class_="dim") if left else None,
        class_="taken",
    )


def _others(lead: str, entries: Iterable[Rejection]) -> Iterator[Markup]:
    for entry in entries:
        head: Child = (element("span", lead, class_="lead"), element("code", entry.reference), _origin(entry.origin))
        yield element("li", element("p", head), element("p", entry.reason), class_="passed-over")


def _origin(origin: str | None) -> Markup | None:
    return element("span", origin, class_="origin") if origin else None


def _absent(steps: Sequence[Step], known: Colours) -> Markup:
    """Return the inherited names that no site has, folded away."""
    summary = element("summary", f"{len(steps)} inherited names without a site in this model")
    inside = [
        element("details", element("summary", element("b", step.name)), _candidates(step, known), class_="name")
        for step in steps
    ]
    return element("details", summary, inside, class_="absent")
