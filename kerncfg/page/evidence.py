"""The section about what the kernels compute: plots to look at, and the table with every figure."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING

from kerncfg.evidence.wording import listed
from kerncfg.page.charts import Scale, Strip, chart, dot, line, share
from kerncfg.page.colours import Colours, swatch
from kerncfg.page.figures import called, folded, label, noted, number, place, share_of, verdict
from kerncfg.page.markup import NONE, TIMES, Child, Markup, element, table

if TYPE_CHECKING:
    from kerncfg.evidence.rows import Alone, Check, Row, Verification, Whole

__all__ = ["verification"]

_LEGEND_OF_ERRORS = "Error against float64, relative to the values: the original's own (ring) and the kernel's (dot)."
_LEGEND_OF_SHARES = "Share of values: same bits as the original's (strong), within tolerance (pale), outside (red)."
_LEGEND_OF_MOVES = (
    "How far the model's output moves with all kernels, and with each alone: the largest difference from the model"
    " without any, relative to the values."
)

Checks = Sequence[tuple["Row", "Check", str]]


def verification(
    found: Verification, swapped: Mapping[tuple[str, str], int], known: Colours, functions: frozenset[str]
) -> Markup:
    """Return the section about what the kernels compute; `swapped` is at how many sites a name runs a kernel.

    `functions` are the names that are no layers: they are compared through the forward that calls them.
    """
    checks = [check for row in found.rows for check in _checks(row)]
    body: Child = element("p", "Nothing is swapped, so there was nothing to verify.")
    if found.rows or found.model:
        body = (
            _failures(found),
            _removed(found),
            _hazards(found),
            _unverified(found, swapped),
            _errors(checks, known, functions),
            _shares(found, checks, known, functions),
            _moves(found.model, known, functions) if found.model else None,
            _figures(found, functions),
        )
    return element(
        "section",
        element("h2", "Does it compute the same?", id="verification-title"),
        body,
        noted(found.notes),
        id="verification",
        aria_labelledby="verification-title",
    )


def _checks(row: Row) -> Iterator[tuple[Row, Check, str]]:
    yield row, row, "forward"
    if row.backward:
        yield row, row.backward, "backward"


def _failures(found: Verification) -> Markup | None:
    lines = [_fault(row.name, row.kernel, row.path, row.reason) for row in found.rows if not row.passed]
    if found.model and not found.model.passed:
        lines.append(_fault("the model", "all kernels", found.model.mode, found.model.reason))
    return element("ul", lines, class_="faults", aria_label="What failed") if lines else None


def _removed(found: Verification) -> Markup | None:
    """Return the kernels that had to give way, and why."""
    lines = [
        element("li", element("b", name), " (", element("code", kernel), "): ", reason)
        for name, kernel, reason in found.removed
    ]
    if not lines:
        return None
    said = (
        "Taken off the model for it; what runs instead was verified in turn, and the model's figures are without them:"
    )
    return element("div", element("p", said), element("ul", lines, aria_label="What was taken off"), class_="removed")


def _hazards(found: Verification) -> Markup | None:
    """Return what kernels did besides computing; it fails none of them."""
    paths: dict[tuple[str, str, str], list[str]] = {}
    for row in found.rows:
        for said in _beside(row):
            paths.setdefault((row.name, row.kernel, said), []).append(row.path)
    lines = [_fault(name, kernel, listed(where), f"hazard: {said}") for (name, kernel, said), where in paths.items()]
    return element("ul", lines, class_="hazards", aria_label="Hazards") if lines else None


def _beside(row: Row) -> list[str]:
    said = "two runs on the same inputs gave different bits, as the original's did"
    return [*row.hazards, *([said] if row.chancy else [])]


def _unverified(found: Verification, swapped: Mapping[tuple[str, str], int]) -> Markup | None:
    """Return the kernels that run and that no row is about."""
    verified = {(row.name, row.kernel) for row in found.rows}
    words = [
        f"{name} ({kernel}) at {count} site{'' if count == 1 else 's'}"
        for (name, kernel), count in swapped.items()
        if (name, kernel) not in verified
    ]
    return element("p", f"Not verified one by one: {', '.join(words)}.", class_="warn") if words else None


def _fault(name: str, kernel: str, path: str, reason: str | None) -> Markup:
    where = element("code", kernel), " at ", element("code", path)
    return element("li", element("b", name), " (", where, "): ", reason or "failed")


def _scale(values: Sequence[float]) -> Scale:
    """Return the logarithmic scale of some sizes, whose left end stands for nought."""
    positive = [value for value in values if value and math.isfinite(value)]
    low = math.floor(math.log10(min(positive, default=1e-8))) - 1
    high = max(math.ceil(math.log10(max(positive, default=1e-7))), low + 3)
    step = math.ceil((high - low) / 3)
    marks = [
        (10.0**low, "0"),
        *((10.0**power, f"1e{power}") for power in range(high, low, -step) if power - low >= step),
    ]
    return Scale(low=10.0**low, high=10.0**high, ticks=tuple(marks))


def _errors(checks: Checks, known: Colours, functions: frozenset[str]) -> Markup | None:
    """Plot both errors of every check on one scale."""
    measured = [(row, check, way) for row, check, way in checks if check.error is not None]
    if not measured:
        return None
    scale = _scale([value for _, check, _ in measured for value in (check.error or 0.0, check.original_error or 0.0)])
    strips = [_error(check, label(row, way, known, functions), scale) for row, check, way in measured]
    shown = chart(strips, scale, label="Errors against float64")
    return element("figure", element("figcaption", _LEGEND_OF_ERRORS), shown)


def _error(check: Check, about: list[Child], scale: Scale) -> Strip:
    own, error = check.original_error, check.error
    assert error is not None
    at = scale.at(error) if math.isfinite(error) else 1.0
    before = scale.at(own) if own is not None and math.isfinite(own) else at
    kind = "good" if check.passed else "bad"
    drawing = (line(before, at, "link"), dot(before, "ring", 6), dot(at, f"{kind} mark", 4))
    return Strip(label=about, drawing=drawing, figure=_against(error, own))


def _against(error: float, own: float | None) -> str:
    """Return an error as the multiple of the original's own."""
    if own:
        times = error / own
        shown = f"{times:.3g}" if times < 100 or not math.isfinite(times) else f"{float(f'{times:.3g}'):,.0f}"
        return f"{shown}{TIMES} the original's"
    return "both exact" if own == 0 and error == 0 else f"{error:.1e}, the original's is {number(own)}"


def _shares(found: Verification, checks: Checks, known: Colours, functions: frozenset[str]) -> Markup | None:
    strips = [
        Strip(
            label=label(row, way, known, functions),
            drawing=_shared(check.identical or 0.0, check.within),
            figure=_in_parts(check),
        )
        for row, check, way in checks
        if check.within is not None
    ]
    whole = found.model
    if whole and whole.within is not None:
        drawing = _shared(whole.identical or 0.0, whole.within)
        strips.append(Strip(label=f"the model, {whole.mode}", drawing=drawing, figure=_in_parts(whole), strong=True))
    if not strips:
        return None
    shown = chart(strips, None, label="Shares of values within tolerance")
    return element("figure", element("figcaption", _LEGEND_OF_SHARES), shown)


def _in_parts(check: Check | Whole) -> Child:
    """Return both shares, between which alone a line may end."""
    parts = f"{share_of(check.within)} within,", f"{share_of(check.identical)} identical"
    return [element("span", parts[0], class_="part"), " ", element("span", parts[1], class_="part")]


def _shared(identical: float, within: float) -> list[Markup]:
    kinds = (share(0, 1, "outside"), share(0, within, "within"), share(0, min(identical, within), "identical"))
    return [*kinds]


def _moves(whole: Whole, known: Colours, functions: frozenset[str]) -> Markup | None:
    """Plot how far each kernel moves the model's output by itself, the one that moves it most first."""
    if not whole.alone or whole.max_rel is None:
        return None
    sizes = [whole.max_rel, *(one.max_rel for one in whole.alone)]
    scale = _scale([size for size in sizes if size is not None])
    strips = [_move(whole, f"all kernels, {whole.mode}", scale, strong=True)]
    strips += [_move(one, _about(one, known, functions), scale) for one in whole.alone]
    shown = chart(strips, scale, label="How far the model's output moves")
    return element("figure", element("figcaption", _LEGEND_OF_MOVES), shown)


def _about(one: Alone, known: Colours, functions: frozenset[str]) -> list[Child]:
    name = element("b", called(one.name, functions))
    return [
        swatch(one.kernel, known),
        name,
        element("span", " alone", class_="way"),
        element("span", one.kernel, class_="dim"),
    ]


def _move(one: Whole | Alone, about: Child, scale: Scale, *, strong: bool = False) -> Strip:
    if one.max_rel is None:
        return Strip(label=about, drawing=None, figure=one.reason or "not measured", strong=strong)
    at = scale.at(one.max_rel) if math.isfinite(one.max_rel) else 1.0
    kind = "good" if one.passed else "bad"
    moved = f"{one.max_rel:.1e}" if one.max_rel else "no bit"
    figure: Child = moved if one.passed else [moved, " ", verdict(one.passed)]
    return Strip(label=about, drawing=(line(0, at, "link"), dot(at, f"{kind} mark")), figure=figure, strong=strong)


def _figures(found: Verification, functions: frozenset[str]) -> Markup:
    heads = (
        "name", "at", "kernel", "shape", "modes", "way", "passed", "max abs", "max rel", "error", "original's error",
        "within", "identical", "repeatable",
    )  # fmt: skip
    rows: list[tuple[Child, ...]] = [
        (
            called(row.name, functions), place(row), row.kernel, f"{row.shape} {row.dtype}", " ".join(row.modes), way,
            verdict(check.passed),
            *(number(value) for value in (check.max_abs, check.max_rel, check.error, check.original_error)),
            share_of(check.within), share_of(check.identical), _repeated(check),
        )
        for row in found.rows
        for _, check, way in _checks(row)
    ]  # fmt: skip
    if found.model:
        whole = found.model
        rows.append(("the model", "", "all", "", whole.mode, "forward", *_whole_cells(whole)))
        for one in whole.alone:
            name = f"the model, {called(one.name, functions)} alone"
            rows.append((name, "", one.kernel, "", whole.mode, "forward", *_whole_cells(one)))
    return folded(f"All figures ({len(rows)} rows)", table(heads, rows, caption="Verification"))


def _repeated(check: Check) -> str:
    return NONE if check.repeatable is None else "yes" if check.repeatable else "no"


def _whole_cells(one: Whole | Alone) -> tuple[Child, ...]:
    shares = share_of(one.within), share_of(one.identical)
    return verdict(one.passed), number(one.max_abs), number(one.max_rel), NONE, NONE, *shares, NONE
