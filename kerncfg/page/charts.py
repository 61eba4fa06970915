"""Plots that reflow: each row is text with a strip beside it, and all strips share one scale."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from kerncfg.page.markup import TIMES, Child, Markup, element

__all__ = ["Scale", "Strip", "chart", "ratio_scale", "spread_of"]

_STEPS = (1.25, 1.5, 2.0, 4.0, 8.0, 16.0, 32.0, 64.0, 128.0)  # how far a scale of ratios may reach

_MARKS = (1.25, 1.5, 2.0, 4.0, 8.0)


@dataclass(frozen=True, slots=True, kw_only=True)
class Scale:
    """A logarithmic scale from `low` to `high`, with the values and words of its ticks."""

    low: float
    high: float
    ticks: tuple[tuple[float, str], ...]
    between: tuple[float, ...] = ()  # ticks whose words a phone leaves out

    def at(self, value: float) -> float:
        """Return where a value lies, from 0 to 1; what lies outside is at the edge."""
        if value <= self.low:
            return 0.0
        return min(1.0, math.log(value / self.low) / math.log(self.high / self.low))


@dataclass(frozen=True, slots=True, kw_only=True)
class Strip:
    """One row of a chart: what it is about, its drawing, and the figure that it shows, in words."""

    label: Child
    drawing: Child
    figure: Child
    strong: bool = False


def ratio_scale(values: Iterable[float]) -> Scale:
    """Return the scale on which ratios are as far to the left below 1 as they are to the right above it."""
    far = max((max(value, 1 / value) for value in values if value > 0), default=1.0)
    reach = next((step for step in _STEPS if step >= far), _STEPS[-1])
    # One mark between 1 and each end, about half way: more would run into each other on a phone.
    half = min(_MARKS, key=lambda mark: round(abs(math.log(mark) - math.log(reach) / 2), 6))
    between = (half, 1 / half) if reach > _STEPS[0] else ()
    ticks = tuple((mark, _ratio(mark)) for mark in sorted({1.0, reach, 1 / reach, *between}))
    return Scale(low=1 / reach, high=reach, ticks=ticks, between=between)


def _ratio(mark: float) -> str:
    """Return a ratio in words: 1/8 says what 0.125 does, in less room."""
    whole = round(1 / mark)
    return f"1/{whole}{TIMES}" if whole > 1 and math.isclose(whole * mark, 1) else f"{mark:.3g}{TIMES}"


def spread_of(speedup: float, spread: float) -> tuple[float, float]:
    """Return from where to where a speedup may lie: as the verdict on it asks, by the spread as a factor."""
    return speedup / (1 + spread), speedup * (1 + spread)


def chart(strips: Sequence[Strip], scale: Scale | None, *, label: str, middle: float | None = None) -> Markup:
    """Return a chart: a list whose every line can be read without its drawing."""
    lines = [
        element(
            "li",
            element("div", strip.label, class_="label"),
            element("svg", _grid(scale, middle), strip.drawing, class_="strip", aria_hidden="true"),
            element("div", strip.figure, class_="figure"),
            class_="strong" if strip.strong else None,
        )
        for strip in strips
    ]
    axis = _axis(scale) if scale else None
    return element("div", element("ul", lines, axis, class_="chart", aria_label=label))


def percent(part: float) -> str:
    """Return a part of one as SVG wants it, a little inside the edges so that no mark is cut."""
    return f"{2 + 96 * part:.2f}%"


def line(start: float, end: float, kind: str) -> Markup:
    """Return a line from one part of the strip to another."""
    return element("line", x1=percent(start), x2=percent(end), y1="50%", y2="50%", class_=kind)


def dot(at: float, kind: str, radius: float = 5) -> Markup:
    """Return a dot at a part of the strip."""
    return element("circle", cx=percent(at), cy="50%", r=radius, class_=kind)


def share(start: float, end: float, kind: str) -> Markup:
    """Return a part of a bar that runs from 0 to 1."""
    width = f"{100 * (end - start):.3f}%"
    return element("rect", x=f"{100 * start:.3f}%", y="4", width=width, height="16", class_=kind)


def _grid(scale: Scale | None, middle: float | None) -> list[Markup]:
    lines = []
    for value, _ in scale.ticks if scale else ():
        at = percent(scale.at(value) if scale else 0)
        kind = "middle" if middle is not None and value == middle else "tick"
        lines.append(element("line", x1=at, x2=at, y1="0", y2="100%", class_=kind))
    return lines


def _axis(scale: Scale) -> Markup:
    words = [
        element(
            "text",
            word,
            x=percent(scale.at(value)),
            y="14",
            text_anchor=_side(scale.at(value)),
            class_="between" if value in scale.between else None,
        )
        for value, word in scale.ticks
    ]
    strip = element("svg", words, class_="strip axis")
    return element("li", element("div", class_="label"), strip, element("div", class_="figure"), aria_hidden="true")


def _side(at: float) -> str:
    return "start" if at < 0.05 else "end" if at > 0.95 else "middle"
