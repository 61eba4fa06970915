"""The section about speed: a plot to look at, and the table with every figure."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from kerncfg.evidence.rows import Spoken, TimedRow
from kerncfg.page.charts import Scale, Strip, chart, dot, line, ratio_scale, spread_of
from kerncfg.page.figures import called, folded, label, noted, place, seconds, size
from kerncfg.page.markup import NONE, TIMES, Child, Markup, element, table

if TYPE_CHECKING:
    from kerncfg.evidence.rows import Generation, Measurement, TimedModel, Timing
    from kerncfg.page.colours import Colours

__all__ = ["rates", "speed", "speedup"]

_VERDICTS = {"faster": "faster", "slower": "slower", "none": "same"}
_LEGEND = "How many times as fast as the original: the median, and how far readings spread. Right of 1 is faster."


def speed(found: Measurement, failed: frozenset[tuple[str, str]], known: Colours, functions: frozenset[str]) -> Markup:
    """Return the section about speed; that of `failed` kernels, by name and reference, means nothing."""
    timed = [*_timings(found), *((row, row.name) for row in found.rows)]
    ratios = [
        end
        for timing, _ in timed
        if timing.speedup and timing.spread is not None
        for end in spread_of(timing.speedup, min(timing.spread, 3.0))
    ]
    body: Child = element("p", "Nothing is swapped, so there was nothing to measure.")
    if timed:
        scale = ratio_scale(ratios)
        strips = [_timed(timing, name, scale, failed, known, functions) for timing, name in timed]
        shown = chart(strips, scale, label="Speed against the original", middle=1.0)
        body = (
            element("figure", element("figcaption", _LEGEND), shown),
            _read_and_written(found.generation) if found.generation else None,
            _times(found, functions),
        )
    return element(
        "section",
        element("h2", "Is it faster?", id="speed-title"),
        body,
        noted(found.notes),
        id="speed",
        aria_labelledby="speed-title",
    )


def rates(generation: Generation) -> tuple[tuple[str, Spoken], ...]:
    """Return what a language model does, each with its timing."""
    return (("prefill", generation.prefill), ("decode", generation.decode))


def _timings(found: Measurement) -> Iterator[tuple[Timing, str]]:
    model: TimedModel | None = found.model
    if model:
        yield model, f"the model, {model.mode}"
        if model.training:
            yield model.training, "the model, training"
    for name, spoken in rates(found.generation) if found.generation else ():
        yield spoken, f"the model, {name}"


def _timed(
    timing: Timing,
    name: str,
    scale: Scale,
    failed: frozenset[tuple[str, str]],
    known: Colours,
    functions: frozenset[str],
) -> Strip:
    row = timing if isinstance(timing, TimedRow) else None
    about: Child = label(row, row.mode, known, functions) if row else element("b", name)
    if timing.speedup is None or timing.spread is None:
        return Strip(label=about, drawing=None, figure=timing.reason or "not measured", strong=row is None)
    low, high = spread_of(timing.speedup, timing.spread)
    kind = _VERDICTS.get(timing.verdict or "none", "same")
    drawing = (line(scale.at(low), scale.at(high), f"{kind} range"), dot(scale.at(timing.speedup), f"{kind} mark"))
    figure: list[Child] = [speedup(timing)]
    if isinstance(timing, Spoken) and timing.kernel_tokens_s is not None:
        figure += [", ", element("span", f"{timing.kernel_tokens_s:,.0f} tokens/s", class_="dim part")]
    if row and (row.name, row.kernel) in failed:
        figure.append(element("span", " failed verification: its speed means nothing", class_="bad"))
    return Strip(label=about, drawing=drawing, figure=figure, strong=row is None)


def speedup(timing: Timing) -> Markup:
    """Return how many times as fast, with the verdict on it."""
    if timing.speedup is None:
        return element("span", NONE)
    word = _VERDICTS.get(timing.verdict or "none", "same")
    ratio = element("b", f"{timing.speedup:.2f}{TIMES}")
    return element("span", ratio, " ", element("span", word, class_=word), class_="speedup")


def _read_and_written(generation: Generation) -> Markup:
    """Return what was read and written, in words."""
    prompts = f"{generation.batch} {TIMES} {generation.prompt} tokens"
    said = f"Prefill reads {prompts} in one forward; decode adds {generation.tokens} tokens to each, one by one."
    words = [f"{name} {_rate(one.original_tokens_s)} → {_rate(one.kernel_tokens_s)}" for name, one in rates(generation)]
    return element("p", f"{said} Tokens a second, without and with kernels: {', '.join(words)}.", class_="dim")


def _rate(value: float | None) -> str:
    return NONE if value is None else f"{value:,.0f}"


def _times(found: Measurement, functions: frozenset[str]) -> Markup:
    memory = any(timing.kernel_bytes is not None for timing in found.rows)
    heads = ["name", "at", "kernel", "shape", "mode", "original", "kernel's", "speedup", "spread", "verdict", "pairs"]
    heads += ["original's memory", "kernel's memory"] if memory else []
    rows: list[tuple[Child, ...]] = []
    for row in found.rows:
        name, shape = called(row.name, functions), f"{row.shape} {row.dtype}"
        rows.append((name, place(row), row.kernel, shape, row.mode, *_cells(row, memory)))
    for timing, name in _timings(found):
        rows.append((name, "", "", "", "", *_cells(timing, memory)))
    return folded(f"All figures ({len(rows)} rows)", table(heads, rows, caption="Measurement"))


def _cells(timing: Timing, memory: bool) -> list[Child]:
    spread = NONE if timing.spread is None else f"{timing.spread:.2f}"
    ratio = NONE if timing.speedup is None else f"{timing.speedup:.2f}{TIMES}"
    word = _VERDICTS.get(timing.verdict or "", timing.reason or NONE)
    cells: list[Child] = [seconds(timing.original_s), seconds(timing.kernel_s), ratio, spread, word, str(timing.runs)]
    return cells + ([size(timing.original_bytes), size(timing.kernel_bytes)] if memory else [])
