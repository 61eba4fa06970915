"""Plain data from JSON text and back to bytes, for files of any origin."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from typing import Any

__all__ = ["DEEP", "MAX_BRACKETS", "brackets", "half", "loads"]

DEEP = "is nested too deeply"
MAX_BRACKETS = 64  # Hydra's parser takes 150 inside each other on an empty stack, OmegaConf's 100

_HALF = re.compile("[\ud800-\udfff]")
_BRACKET = re.compile(r"[\[{()}\]]")
_ESCAPED = re.compile(r"\\u[dD][89a-fA-F]")


def loads(text: str | bytes, **how: Any) -> Any:
    """Return what a JSON text says.

    Raises:
        ValueError: It is no JSON, is nested too deeply, or a text in it holds half of a character.
    """
    text = text.decode() if isinstance(text, bytes) else text
    try:
        data = json.loads(text, **how)
    except RecursionError as error:
        raise ValueError("nested too deeply") from error
    if _ESCAPED.search(text) and (found := half(data)):
        raise ValueError(f"half of a character: {found}")
    return data


def brackets(text: str) -> int:
    """Return how many brackets of a text stand open at most."""
    depth = most = 0
    for sign in _BRACKET.findall(text):
        depth += 1 if sign in "[{(" else -1
        most = max(most, depth)
    return most


def half(data: Any) -> str | None:
    """Return the place and the text that holds half of a character, which no file can hold, or `None`.

    JSON can write the halves of a pair one by one, and Python reads a byte of a name that is no UTF-8 as one.
    """
    for place, text in _texts(data):
        if _HALF.search(text):
            where = f"{'.'.join(place)}: " if place else ""
            return f"{where}{text[:60]!r}".encode("utf-8", "backslashreplace").decode()
    return None


def _texts(data: Any) -> Iterator[tuple[tuple[str, ...], str]]:
    """Yield every text, keys among them, with its place; without recursion, for data of any depth."""
    waiting: list[tuple[tuple[str, ...], Any]] = [((), data)]
    while waiting:
        place, value = waiting.pop()
        if isinstance(value, str):
            yield place, value
        elif isinstance(value, Mapping):
            yield from ((place, key) for key in value if isinstance(key, str))
            waiting += reversed([((*place, str(key)), child) for key, child in value.items()])
        elif isinstance(value, list | tuple):
            waiting += reversed([((*place, str(number)), child) for number, child in enumerate(value)])
