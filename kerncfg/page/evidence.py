"""The sections about verification and speed: plots to look at, and the tables with every figure."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING

from kerncfg.evidence.rows import TimedRow
from kerncfg.page.charts import Scale, Strip, chart, dot, line, ratio_scale, share, spread_of
from kerncfg.page.colours import Colours, swatch
from kerncfg.page.markup import NONE, TIMES, Child, Markup, element, table

if TYPE_CHECKING:
    from kerncfg.evidence.rows import Check, Measurement, Row, TimedModel, Timing, Verification

__all__ = ["seconds", "speed", "speedup", "verification"]

_VERDICTS = {"faster": "faster", "slower": "slower", "none": "same"}
_LEGEND_OF_ERRORS = "Error against float64, relative to the values: the original's own (ring) and the kernel's (dot)."
_LEGEND_OF_SHARES = "Share of values: same bits as the original's (strong), within tolerance (pale), outside (red)."
_LEGEND_OF_SPEED = (
    "How many times as fast as the original: the median, and how far readings spread. Right of 1 is faster."
)


def verification(found: Verification, swapped: Mapping[str, int], known: Colours) -> Markup:
    """Return the section about what the kernels compute; `swapped` is at how many sites each of them runs."""
    checks = [check for row in found.rows for check in _checks(row)]
    body: Child = element("p", "Nothing is swapped, so there was nothing to verify.")
    if found.rows or found.model:
        body = (
            _failures(found),
            _unverified(found, swapped),
            _errors(checks, known),
            _shares(found, checks, known),
            _figures(found),
        )
    return element(
        "section",
        element("h2", "Does it compute the same?", id="verification-title"),
        body,
        _notes(found.notes),
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
    for row in found.rows:
        lines += [_fault(row.name, row.kernel, row.path, f"hazard: {hazard}") for hazard in row.hazards]
    return element("ul", lines, class_="faults", aria_label="What failed") if lines else None


def _unverified(found: Verification, swapped: Mapping[str, int]) -> Markup | None:
    """Return the kernels that run and that no row is about."""
    left = {kernel: count for kernel, count in swapped.items() if kernel not in {row.kernel for row in found.rows}}
    if not left:
        return None
    words = ", ".join(f"{kernel} at {count} site{'' if count == 1 else 's'}" for kernel, count in left.items())
    return element("p", f"Not verified one by one: {words}.", class_="warn")


def _fault(name: str, kernel: str, path: str, reason: str | None) -> Markup:
    where = element("code", kernel), " at ", element("code", path)
    return element("li", element("b", name), " (", where, "): ", reason or "failed")


def _errors(checks: list[tuple[Row, Check, str]], known: Colours) -> Markup | None:
    """Plot both errors of every check on one scale."""
    known_errors = [(row, check, way) for row, check, way in checks if check.error is not None]
    positive = [
        value
        for _, check, _ in known_errors
        for value in (check.error, check.original_error)
        if value and math.isfinite(value)
    ]
    if not known_errors:
        return None
    low = math.floor(math.log10(min(positive, default=1e-8))) - 1
    high = max(math.ceil(math.log10(max(positive, default=1e-7))), low + 3)
    step = math.ceil((high - low) / 3)
    marks = [
        (10.0**low, "0"),
        *((10.0**power, f"1e{power}") for power in range(high, low, -step) if power - low >= step),
    ]
    scale = Scale(low=10.0**low, high=10.0**high, ticks=tuple(marks))
    strips = [_error(row, check, way, scale, known) for row, check, way in known_errors]
    shown = chart(strips, scale, label="Errors against float64")
    return element("figure", element("figcaption", _LEGEND_OF_ERRORS), shown)


def _error(row: Row, check: Check, way: str, scale: Scale, known: Colours) -> Strip:
    own, error = check.original_error, check.error
    assert error is not None
    at = scale.at(error) if math.isfinite(error) else 1.0
    before = scale.at(own) if own is not None and math.isfinite(own) else at
    kind = "good" if check.passed else "bad"
    drawing = (line(before, at, "link"), dot(before, "ring", 6), dot(at, f"{kind} mark", 4))
    return Strip(label=_label(row, way, known), drawing=drawing, figure=_against(error, own))


def _against(error: float, own: float | None) -> str:
    """Return an error as the multiple of the original's own."""
    if own:
        times = error / own
        shown = f"{times:.3g}" if times < 100 or not math.isfinite(times) else f"{float(f'{times:.3g}'):,.0f}"
        return f"{shown}{TIMES} the original's"
    return "both exact" if own == 0 and error == 0 else f"{error:.1e}, the original's is {_number(own)}"


def _shares(found: Verification, checks: list[tuple[Row, Check, str]], known: Colours) -> Markup | None:
    strips = [
        Strip(
            label=_label(row, way, known),
            drawing=_shared(check.identical or 0.0, check.within),
            figure=f"{_share(check.within)} within, {_share(check.identical)} identical",
        )
        for row, check, way in checks
        if check.within is not None
    ]
    whole = found.model
    if whole and whole.within is not None:
        figure = f"{_share(whole.within)} within, {_share(whole.identical)} identical"
        drawing = _shared(whole.identical or 0.0, whole.within)
        strips.append(Strip(label=f"the model, {whole.mode}", drawing=drawing, figure=figure, strong=True))
    if not strips:
        return None
    shown = chart(strips, None, label="Shares of values within tolerance")
    return element("figure", element("figcaption", _LEGEND_OF_SHARES), shown)


def _shared(identical: float, within: float) -> list[Markup]:
    kinds = (share(0, 1, "outside"), share(0, within, "within"), share(0, min(identical, within), "identical"))
    return [*kinds]


def _label(row: Row | TimedRow, way: str, known: Colours) -> list[Child]:
    sites = f" {TIMES}{row.sites}" if row.sites > 1 else ""
    return [
        swatch(row.kernel, known),
        element("b", row.name),
        element("span", f" {way}", class_="way"),
        element("span", f"{row.shape} {row.dtype}{sites}", class_="dim"),
    ]


def _figures(found: Verification) -> Markup:
    heads = (
        "name", "at", "kernel", "shape", "modes", "way", "passed", "max abs", "max rel", "error", "original's error",
        "within", "identical", "repeatable",
    )  # fmt: skip
    rows = [
        (
            row.name, _place(row), row.kernel, f"{row.shape} {row.dtype}", " ".join(row.modes), way,
            verdict(check.passed),
            *(_number(value) for value in (check.max_abs, check.max_rel, check.error, check.original_error)),
            _share(check.within), _share(check.identical), {True: "yes", False: "no"}.get(bool(check.repeatable)),
        )
        for row in found.rows
        for _, check, way in _checks(row)
    ]  # fmt: skip
    if found.model:
        whole = found.model
        figures = (
            _number(whole.max_abs),
            _number(whole.max_rel),
            NONE,
            NONE,
            _share(whole.within),
            _share(whole.identical),
        )
        rows.append(("the model", "", "", "", whole.mode, "forward", verdict(whole.passed), *figures, NONE))
    return _folded(f"All figures ({len(rows)} rows)", table(heads, rows, caption="Verification"))


def verdict(passed: bool) -> Markup:
    """Return the word for what passed or failed, in its colour."""
    return element("span", "passed" if passed else "failed", class_="good" if passed else "bad")


def _folded(summary: str, body: Markup) -> Markup:
    return element("details", element("summary", summary), body, class_="figures")


def speed(found: Measurement, failed: frozenset[str], known: Colours) -> Markup:
    """Return the section about speed; that of `failed` kernels means nothing."""
    timed = [*_timings(found.model), *((row, row.name) for row in found.rows)]
    ratios = [end for timing, _ in timed if timing.speedup and timing.spread is not None
              for end in spread_of(timing.speedup, min(timing.spread, 3.0))]  # fmt: skip
    body: Child = element("p", "Nothing is swapped, so there was nothing to measure.")
    if timed:
        scale = ratio_scale(ratios)
        strips = [_timed(timing, name, scale, failed, known) for timing, name in timed]
        shown = chart(strips, scale, label="Speed against the original", middle=1.0)
        body = (element("figure", element("figcaption", _LEGEND_OF_SPEED), shown), _times(found))
    return element(
        "section",
        element("h2", "Is it faster?", id="speed-title"),
        body,
        _notes(found.notes),
        id="speed",
        aria_labelledby="speed-title",
    )


def _timings(model: TimedModel | None) -> Iterator[tuple[Timing, str]]:
    if model:
        yield model, f"the model, {model.mode}"
        if model.training:
            yield model.training, "the model, training"


def _timed(timing: Timing, name: str, scale: Scale, failed: frozenset[str], known: Colours) -> Strip:
    row = timing if isinstance(timing, TimedRow) else None
    label: Child = _label(row, row.mode, known) if row else element("b", name)
    if timing.speedup is None or timing.spread is None:
        return Strip(label=label, drawing=None, figure=timing.reason or "not measured", strong=row is None)
    low, high = spread_of(timing.speedup, timing.spread)
    kind = _VERDICTS.get(timing.verdict or "none", "same")
    drawing = (line(scale.at(low), scale.at(high), f"{kind} range"), dot(scale.at(timing.speedup), f"{kind} mark"))
    figure: list[Child] = [speedup(timing)]
    if row and row.kernel in failed:
        figure.append(element("span", " failed verification: its speed means nothing", class_="bad"))
    return Strip(label=label, drawing=drawing, figure=figure, strong=row is None)


def speedup(timing: Timing) -> Markup:
    """Return how many times as fast, with the verdict on it."""
    if timing.speedup is None:
        return element("span", NONE)
    word = _VERDICTS.get(timing.verdict or "none", "same")
    ratio = element("b", f"{timing.speedup:.2f}{TIMES}")
    return element("span", ratio, " ", element("span", word, class_=word), class_="speedup")


def _times(found: Measurement) -> Markup:
    memory = any(timing.kernel_bytes is not None for timing in found.rows)
    heads = ["name", "at", "kernel", "shape", "mode", "original", "kernel's", "speedup", "spread", "verdict", "pairs"]
    heads += ["original's memory", "kernel's memory"] if memory else []
    rows: list[tuple[Child, ...]] = []
    for row in found.rows:
        rows.append((row.name, _place(row), row.kernel, f"{row.shape} {row.dtype}", row.mode, *_cells(row, memory)))
    for timing, name in _timings(found.model):
        rows.append((name, "", "", "", "", *_cells(timing, memory)))
    return _folded(f"All figures ({len(rows)} rows)", table(heads, rows, caption="Measurement"))


def _cells(timing: Timing, memory: bool) -> list[Child]:
    spread = NONE if timing.spread is None else f"{timing.spread:.2f}"
    ratio = NONE if timing.speedup is None else f"{timing.speedup:.2f}{TIMES}"
    word = _VERDICTS.get(timing.verdict or "", timing.reason or NONE)
    cells: list[Child] = [seconds(timing.original_s), seconds(timing.kernel_s), ratio, spread, word, str(timing.runs)]
    return cells + ([_bytes(timing.original_bytes), _bytes(timing.kernel_bytes)] if memory else [])


def _place(row: Row | TimedRow) -> str:
    return row.path if row.sites == 1 else f"{row.path} and {row.sites - 1} more"


def seconds(value: float | None) -> str:
    """Return a time with the unit in which it has a few digits."""
    if value is None:
        return NONE
    for unit, size in (("s", 1.0), ("ms", 1e-3), ("µs", 1e-6)):
        if value >= size:
            return f"{value / size:.3g} {unit}" if value / size < 1000 else f"{value / size:,.0f} {unit}"
    return f"{value * 1e9:.3g} ns"


def _bytes(value: int | None) -> str:
    return NONE if value is None else f"{value / 2**20:,.1f} MiB"


def _number(value: float | None) -> str:
    return NONE if value is None else f"{value:.1e}" if value else "0"


def _share(value: float | None) -> str:
    if value is None:
        return NONE
    return "100 %" if value == 1 else f"{min(100 * value, 99.99):.2f} %" if value > 0 else "0 %"


def _notes(notes: tuple[str, ...]) -> Markup | None:
    return element("ul", [element("li", note) for note in notes], class_="notes") if notes else None
