"""What rows are called on a page, and how their figures read."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from kerncfg.page.colours import Colours, swatch
from kerncfg.page.markup import NONE, TIMES, Child, Markup, element

if TYPE_CHECKING:
    from kerncfg.evidence.rows import Row, TimedRow

__all__ = ["called", "folded", "label", "noted", "number", "place", "seconds", "share_of", "size", "verdict"]


def label(row: Row | TimedRow, way: str, known: Colours, functions: frozenset[str]) -> list[Child]:
    """Return what a line of a plot is about; a function has its brackets."""
    sites = f" {TIMES}{row.sites}" if row.sites > 1 else ""
    return [
        swatch(row.kernel, known),
        element("b", called(row.name, functions)),
        element("span", f" {way}", class_="way"),
        element("span", f"{row.shape} {row.dtype}{sites}", class_="dim"),
    ]


def called(name: str, functions: frozenset[str]) -> str:
    """Return a row's name, as the tree has it."""
    return f"{name}()" if name in functions else name


def place(row: Row | TimedRow) -> str:
    """Return the first site of a row, and how many there are besides."""
    return row.path if row.sites == 1 else f"{row.path} and {row.sites - 1} more"


def verdict(passed: bool) -> Markup:
    """Return the word for what passed or failed, in its colour."""
    return element("span", "passed" if passed else "failed", class_="good" if passed else "bad")


def folded(summary: str, body: Markup) -> Markup:
    """Return what is seen when it is unfolded."""
    return element("details", element("summary", summary), body, class_="figures")


def noted(notes: Sequence[str]) -> Markup | None:
    """Return notes as a list, or nothing where there are none."""
    return element("ul", [element("li", note) for note in notes], class_="notes") if notes else None


def number(value: float | None) -> str:
    """Return a measure in two digits."""
    return NONE if value is None else f"{value:.1e}" if value else "0"


def share_of(value: float | None) -> str:
    """Return a share in percent; what is nearly all is not rounded to it."""
    if value is None:
        return NONE
    return "100 %" if value == 1 else f"{min(100 * value, 99.99):.2f} %" if value > 0 else "0 %"


def seconds(value: float | None) -> str:
    """Return a time with the unit in which it has a few digits."""
    if value is None:
        return NONE
    for unit, one in (("s", 1.0), ("ms", 1e-3), ("µs", 1e-6)):
        if value >= one:
            return f"{value / one:.3g} {unit}" if value / one < 1000 else f"{value / one:,.0f} {unit}"
    return f"{value * 1e9:.3g} ns"


def size(value: int | None) -> str:
    """Return an amount of memory."""
    return NONE if value is None else f"{value / 2**20:,.1f} MiB"
