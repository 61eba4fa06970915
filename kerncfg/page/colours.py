"""Which colour stands for which kernel, on a page and in a drawing."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING

from kerncfg.page.markup import Markup, element

if TYPE_CHECKING:
    from kerncfg.outcome import Outcome

__all__ = ["ORIGINAL", "Colours", "colours", "swatch"]

ORIGINAL = "original"

_COUNT = 8  # how many the style has; more kernels than that share them

Colours = Mapping[str, str]


def colours(outcomes: Iterable[Outcome]) -> Colours:
    """Return the class of each kernel's colour, in the order in which the sites of the models come."""
    found: dict[str, None] = {}
    for outcome in outcomes:
        rows = outcome.report.rows if outcome.report else ()
        found |= dict.fromkeys(row.kernel for row in rows if row.kernel)
        found |= dict.fromkeys(kernel for row in rows for kernel in row.modes.values())
        verified = outcome.verification.rows if outcome.verification else ()
        found |= dict.fromkeys(row.kernel for row in verified)  # one that gave way is at no site any more
    found.pop(ORIGINAL, None)
    return {kernel: f"k{place % _COUNT}" for place, kernel in enumerate(found)}


def swatch(kernel: str | None, known: Colours, *, status: str = "swapped") -> Markup:
    """Return the mark of what a site runs: filled for a kernel, hollow for the original, dashed where it is off."""
    shape = {"swapped": known.get(kernel or "", "k0"), "off": "dashed"}.get(status, "hollow")
    return element("i", class_=f"swatch {shape}", aria_hidden="true")
