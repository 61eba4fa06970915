"""Draws the one picture of the concepts, from YAML to a model with kernels: `python docs/images/flow.py`.

The picture has a ground of its own, in two sets of colours: it can be read on any page, light or dark.
"""

from __future__ import annotations

from collections.abc import Iterator
from html import escape
from pathlib import Path

PICTURE = Path(__file__).with_name("flow.svg")
ALT = (
    "YAML and overrides are composed, validated and normalised to a Config; pin makes a Lock of it; detect reads the "
    "machine into a Target; resolve makes a Plan of both; apply changes the model and gives Bindings, and revert puts "
    "the model back"
)

WIDTH, HEIGHT, BOX = 920, 406, 56
LEFT, MIDDLE, RIGHT = (30, 180), (400, 140), (750, 140)  # columns: where a box begins, and how wide it is
FIRST, SECOND, THIRD = 40, 160, 280  # rows: where a box begins

# Light, then dark: the ground, boxes of documents, boxes of what is outside, ink, and where the world is touched.
COLOURS = {
    "ground": ("#f7f8fa", "#16181d"),
    "document": ("#dfe9fb", "#223557"),
    "outside": ("#ffffff", "#23262d"),
    "ink": ("#1c2430", "#e6e9ef"),
    "quiet": ("#566072", "#a4adbb"),
    "world": ("#a8400c", "#ffa770"),
}


def picture() -> str:
    """Return the picture as SVG."""
    light = ";".join(f"--{name}:{pair[0]}" for name, pair in COLOURS.items())
    dark = ";".join(f"--{name}:{pair[1]}" for name, pair in COLOURS.items())
    style = (
        f"svg{{{light}}}@media(prefers-color-scheme:dark){{svg{{{dark}}}}}"
        "text{font:15px system-ui,sans-serif;fill:var(--ink);text-anchor:middle}"
        ".name{font-weight:600}.small{font-size:12.5px;fill:var(--quiet)}"
        ".verb{font-family:ui-monospace,monospace;font-size:13.5px}.world{fill:var(--world)}"
        "rect{stroke:var(--quiet);stroke-width:1.2}.ground{fill:var(--ground);stroke:none}"
        ".document{fill:var(--document)}.outside{fill:var(--outside);stroke-dasharray:5 4}"
        "path{stroke:var(--quiet);stroke-width:1.6;fill:none}.head{fill:var(--quiet);stroke:none}"
        "path.touches{stroke:var(--world)}.head.touches{fill:var(--world)}"
    )
    lines = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" role="img" aria-labelledby="t">',
        f'<title id="t">{escape(ALT)}</title>',
        f"<style>{style}</style>",
        f'<rect class="ground" width="{WIDTH}" height="{HEIGHT}" rx="12"/>',
        *_boxes(),
        *_arrows(),
        "</svg>",
    ]
    return "\n".join(lines) + "\n"


def _boxes() -> Iterator[str]:
    yield from _box(LEFT, FIRST, "YAML + overrides", "what you say", "outside")
    yield from _box(MIDDLE, FIRST, "Config", "what was asked")
    yield from _box(RIGHT, FIRST, "Lock", "which code it is")
    yield from _box(LEFT, SECOND, "a machine", "this one, or described", "outside")
    yield from _box(MIDDLE, SECOND, "Target", "what it is for")
    yield from _box(RIGHT, SECOND, "Plan", "what will be done")
    yield from _box(LEFT, THIRD, "a model", "any nn.Module", "outside")
    yield from _box(RIGHT, THIRD, "Bindings", "what was done")


def _box(column: tuple[int, int], top: int, name: str, means: str, kind: str = "document") -> Iterator[str]:
    left, width = column
    middle = left + width / 2
    yield f'<rect class="{kind}" x="{left}" y="{top}" width="{width}" height="{BOX}" rx="8"/>'
    yield _text(middle, top + 25, name, "name")
    yield _text(middle, top + 43, means, "small")


def _arrows() -> Iterator[str]:
    ends = [column[0] + column[1] for column in (LEFT, MIDDLE, RIGHT)]
    first, second, third = (top + BOX / 2 for top in (FIRST, SECOND, THIRD))
    down = RIGHT[0] + RIGHT[1] / 2
    yield from _right(ends[0], MIDDLE[0], first, "compose", "validate, normalise")
    yield from _right(ends[1], RIGHT[0], first, "pin", "asks the Hub", touches=True)
    yield from _right(ends[0], MIDDLE[0], second, "detect", "reads facts", touches=True)
    yield from _right(ends[1], RIGHT[0], second, "resolve", "same in, same out")
    yield from _down(down, FIRST + BOX, SECOND)
    yield from _down(down, SECOND + BOX, THIRD, touches=True)
    yield from _right(ends[0], RIGHT[0], third - 12, "apply", "", touches=True)
    yield from _left(RIGHT[0], ends[0], third + 14)
    between = (ends[0] + RIGHT[0]) / 2
    yield _text(between, third + 2, "checks every site, then edits all of them or none", "small")
    yield _text(between, third + 31, "revert()", "verb world")
    yield _text(between, third + 48, "the model as it was", "small")
    yield _text(WIDTH / 2, HEIGHT - 14, "orange: the only places where the world is touched", "small world")


def _right(start: float, end: float, at: float, verb: str, says: str, *, touches: bool = False) -> Iterator[str]:
    kind = " touches" if touches else ""
    middle = (start + end) / 2
    yield f'<path class="line{kind}" d="M{start} {at}H{end - 8}"/>'
    yield f'<path class="head{kind}" d="M{end} {at}l-10 -5v10z"/>'
    yield _text(middle, at - 9, verb, "verb world" if touches else "verb")
    yield _text(middle, at + 19, says, "small") if says else ""


def _left(start: float, end: float, at: float) -> Iterator[str]:
    yield f'<path class="line touches" d="M{start} {at}H{end + 8}"/>'
    yield f'<path class="head touches" d="M{end} {at}l10 -5v10z"/>'


def _down(at: float, start: float, end: float, *, touches: bool = False) -> Iterator[str]:
    kind = " touches" if touches else ""
    yield f'<path class="line{kind}" d="M{at} {start}V{end - 8}"/>'
    yield f'<path class="head{kind}" d="M{at} {end}l-5 -10h10z"/>'


def _text(x: float, y: float, words: str, kind: str) -> str:
    return f'<text class="{kind}" x="{x:g}" y="{y:g}">{escape(words)}</text>'


if __name__ == "__main__":
    PICTURE.write_text(picture(), encoding="utf-8")
