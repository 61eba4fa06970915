"""Text of any origin as a terminal may print it."""

from __future__ import annotations

import re
from collections.abc import Iterable

__all__ = ["OBEYED", "in_json", "one_line", "printed", "shown"]

# What a terminal obeys instead of showing it: control characters but tab and line end, and those that turn the writing.
OBEYED = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u200e\u200f\u202a-\u202e\u2066-\u2069]")
_ENDS = re.compile(r"[\t\n\u2028\u2029]")


def shown(text: str) -> str:
    """Return a text in which no character is left that a terminal obeys."""
    return OBEYED.sub(lambda found: repr(found[0])[1:-1], text)


def one_line(text: str) -> str:
    """Return a text as `shown`, with tabs and line ends spelled out too: what it says cannot pass for another line."""
    return _ENDS.sub(lambda found: repr(found[0])[1:-1], shown(text))


def printed(lines: Iterable[str]) -> str:
    """Return lines as the text that is printed, each of them one line whatever it holds."""
    return "\n".join(map(one_line, lines))


def in_json(text: str) -> str:
    """Return JSON text in which every character that a terminal obeys is spelled as JSON does."""
    return OBEYED.sub(lambda found: f"\\u{ord(found[0]):04x}", text)
