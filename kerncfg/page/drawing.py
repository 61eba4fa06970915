"""A measurement as a picture for papers and issues: SVG drawn here, PNG by matplotlib where it is installed."""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

from kerncfg.page.charts import Scale, ratio_scale, spread_of
from kerncfg.page.markup import TIMES, Markup, element

if TYPE_CHECKING:
    from collections.abc import Iterator

    from kerncfg.evidence.rows import Measurement, Timing

__all__ = ["draw", "svg"]

_COLOURS = {"faster": "#1a7f37", "slower": "#c4281c", "none": "#69727d"}
_LEFT, _WIDTH, _RIGHT = 330, 400, 110  # pixels for names, plot and figures
_ROW, _TOP, _BOTTOM = 30, 44, 34
_FONT = "system-ui, sans-serif"
_TITLE = "Speed against the original (median and spread; right of 1 is faster)"


def draw(found: Measurement, folder: Path) -> list[Path]:
    """Write `measurement.svg`, and `measurement.png` if matplotlib is installed; nothing where nothing was measured."""
    if not list(_rows(found)):
        return []
    picture = folder / "measurement.svg"
    picture.write_text(svg(found) + "\n", encoding="utf-8")
    if find_spec("matplotlib") is None:
        return [picture]
    _png(found, folder / "measurement.png")
    return [picture, folder / "measurement.png"]


def _rows(found: Measurement) -> Iterator[tuple[str, str, Timing]]:
    """Yield what is drawn: a name, what it is about, and its timing."""
    if found.model and found.model.speedup is not None:
        yield "model", found.model.mode, found.model
    if found.model and found.model.training and found.model.training.speedup is not None:
        yield "model", "training", found.model.training
    if found.generation:
        for name, one in (("prefill", found.generation.prefill), ("decode", found.generation.decode)):
            if one.speedup is not None:
                yield "model", f"{name}, {one.kernel_tokens_s:,.0f} tokens/s", one
    for row in found.rows:
        if row.speedup is not None:
            yield row.name, f"{row.mode}, {row.shape} {row.dtype}", row


def _scaled(found: Measurement) -> Scale:
    timings = [timing for *_, timing in _rows(found)]
    return ratio_scale(end for timing in timings for end in _ends(timing))


def _ends(timing: Timing) -> tuple[float, float]:
    return spread_of(timing.speedup or 1.0, min(timing.spread or 0.0, 3.0))


def svg(found: Measurement) -> Markup:
    """Return the picture as SVG, which needs no font and no style from elsewhere."""
    rows, scale = list(_rows(found)), _scaled(found)
    height = _TOP + _ROW * len(rows) + _BOTTOM
    width = _LEFT + _WIDTH + _RIGHT
    marks = [part for place, row in enumerate(rows) for part in _row(place, *row, scale)]
    return element(
        "svg",
        element("title", _TITLE),
        element("rect", width=width, height=height, fill="#fff"),
        element("text", _TITLE, x=16, y=26, font_size=14, font_weight=600, fill="#1b1f24"),
        _grid(scale, height),
        marks,
        xmlns="http://www.w3.org/2000/svg",
        viewBox=f"0 0 {width} {height}",
        width=width,
        height=height,
        font_family=_FONT,
        font_size=13,
        role="img",
    )


def _x(scale: Scale, value: float) -> float:
    return round(_LEFT + _WIDTH * scale.at(value), 2)


def _grid(scale: Scale, height: int) -> list[Markup]:
    parts = []
    for value, word in scale.ticks:
        x = _x(scale, value)
        dash = "4 3" if value == 1 else None
        colour = "#69727d" if value == 1 else "#dfe2e6"
        parts.append(
            element("line", x1=x, x2=x, y1=_TOP - 4, y2=height - _BOTTOM, stroke=colour, stroke_dasharray=dash)
        )
        parts.append(element("text", word, x=x, y=height - 12, text_anchor="middle", fill="#59616b"))
    return parts


def _row(place: int, name: str, about: str, timing: Timing, scale: Scale) -> list[Markup]:
    y = _TOP + _ROW * place + _ROW // 2
    colour = _COLOURS[timing.verdict or "none"]
    low, high = _ends(timing)
    bar = {"y1": y, "y2": y, "stroke": colour, "stroke_width": 7, "stroke_linecap": "round", "opacity": 0.35}
    word = {"none": "same"}.get(timing.verdict or "none", timing.verdict)
    label = [element("tspan", name, font_weight=600), element("tspan", f" {about}", fill="#59616b")]
    return [
        element("text", label, x=16, y=y + 4, fill="#1b1f24"),
        element("line", x1=_x(scale, low), x2=_x(scale, high), **bar),
        element("circle", cx=_x(scale, timing.speedup or 1.0), cy=y, r=5, fill=colour),
        element("text", f"{timing.speedup:.2f}{TIMES} {word}", x=_LEFT + _WIDTH + 16, y=y + 4, fill=colour),
    ]


def _png(found: Measurement, file: Path) -> None:
    """Draw the same with matplotlib, without a screen and without its global state."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    rows, scale = list(_rows(found)), _scaled(found)
    figure = Figure(figsize=(9, 1.1 + 0.36 * len(rows)), dpi=150, layout="constrained")
    FigureCanvasAgg(figure)
    axes: Any = figure.subplots()
    for place, (_, _, timing) in enumerate(rows):
        low, high = _ends(timing)
        colour = _COLOURS[timing.verdict or "none"]
        axes.plot([low, high], [place, place], color=colour, alpha=0.35, linewidth=5, solid_capstyle="round")
        axes.plot([timing.speedup], [place], "o", color=colour)
        axes.text(1.02, place, f"{timing.speedup:.2f}{TIMES}", transform=axes.get_yaxis_transform(), va="center")
    axes.axvline(1, color="#69727d", linestyle="--", linewidth=1, zorder=0)
    axes.set_xscale("log")
    axes.set_xlim(scale.low, scale.high)
    axes.set_xticks([value for value, _ in scale.ticks], [word for _, word in scale.ticks])
    axes.set_xticks([], minor=True)
    axes.set_yticks(range(len(rows)), [f"{name} {about}" for name, about, _ in rows])
    axes.invert_yaxis()
    axes.spines[["top", "right", "left"]].set_visible(False)
    axes.set_title(_TITLE, loc="left", fontsize=10)
    figure.savefig(file)
