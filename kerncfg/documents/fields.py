"""Reads the keys of a JSON file that others wrote, with the strictness of the Hub's own reader.

Each reader takes a value and where it stands, and returns it or raises; a missing key is for its reader to refuse.
"""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Callable, Collection
from typing import Any, TypeVar

from kerncfg.documents.plain import loads
from kerncfg.errors import SourceError

__all__ = [
    "TOO_LARGE",
    "Part",
    "Read",
    "anything",
    "each",
    "flag",
    "loaded",
    "optional",
    "shown",
    "text",
    "unsigned",
    "wrong",
]

_T = TypeVar("_T")
Read = Callable[[Any, str], _T]

TOO_LARGE = 1 << 64  # the Hub's numbers have 64 bits
_MISSING = object()
_HALF = re.compile("[\ud800-\udfff]")  # half a character, which JSON can spell


class _Map(dict[str, Any]):
    """An object of the file, with its keys and values as they are written: a key may be there twice."""

    __slots__ = ("pairs",)

    def __init__(self, pairs: list[tuple[str, Any]]) -> None:
        super().__init__(pairs)
        "".join(name for name, _ in pairs).encode()  # half a character fails here
        self.pairs = pairs


class Part:
    """One map of the file, whose known keys may be there once."""

    def __init__(self, value: Any, path: str, known: Collection[str]) -> None:
        if not isinstance(value, _Map):
            raise wrong(path, shown(value), "a map")
        self.data, self.pairs, self._path = value, value.pairs, path
        written = Counter(name for name, _ in self.pairs)
        for key in sorted(key for key in known if written[key] > 1):
            raise wrong(self.at(key), "there twice", "it once")

    def at(self, key: str) -> str:
        """Return where a key of this map stands."""
        return f"{self._path}.{key}" if self._path else key

    def read(self, key: str, read: Read[_T]) -> _T:
        """Read one key; a missing one is for the reader to refuse."""
        return read(self.data.get(key, _MISSING), self.at(key))


def wrong(path: str, found: str, expected: str) -> SourceError:
    """Return the error for what stands at a path; the empty path is the whole file."""
    place = f"metadata.json: {path}" if path else "metadata.json"
    hint = "this build cannot be used: take another version of the kernel, and tell its publisher"
    return SourceError(f"{place} is {found}, expected {expected}", hint=hint)


def shown(value: Any) -> str:
    """Return what a message says was found: the value if it is short and has no parts."""
    if value is _MISSING:
        return "missing"
    if isinstance(value, dict | list):
        return "a map" if isinstance(value, dict) else "a list"
    line = json.dumps(value)
    return line if len(line) <= 60 else f"{line[:57]}..."


def loaded(content: bytes) -> Any:
    """Parse the bytes of the file.

    Raises:
        SourceError: They are no JSON, are not UTF-8, or are nested too deeply.
    """
    try:
        return loads(content, object_pairs_hook=_Map, parse_int=_number, parse_constant=_constant)
    except ValueError as error:
        raise SourceError(f"metadata.json is no JSON, as was expected: {error}") from error


def _number(text: str) -> int | float:
    """Read a whole number: what 64 bits do not hold, and -0, have a fraction in the Hub's eyes."""
    return int(text) if len(text) <= 20 and text != "-0" else float(text)


def _constant(text: str) -> None:
    raise ValueError(f"{text} is no number")


def anything(value: Any, path: str) -> Any:
    """Take whatever is there, or that nothing is, for the next reader."""
    return value


def text(value: Any, path: str, pattern: str = r"(?s:.*)", expected: str = "a text") -> str:
    """Take a text that matches the pattern as a whole."""
    if not isinstance(value, str) or _HALF.search(value) or not re.fullmatch(pattern, value):
        raise wrong(path, shown(value), expected)
    return value


def unsigned(value: Any, path: str) -> int:
    """Take a whole number of 64 bits."""
    if type(value) is not int or not 0 <= value < TOO_LARGE:
        raise wrong(path, shown(value), "a whole number from 0")
    return value


def flag(value: Any, path: str) -> bool:
    """Take true or false."""
    if not isinstance(value, bool):
        raise wrong(path, shown(value), "true or false")
    return value


def each(value: Any, path: str, read: Read[_T]) -> tuple[_T, ...]:
    """Take a list, each of its items read by `read`."""
    if not isinstance(value, list):
        raise wrong(path, shown(value), "a list")
    return tuple(read(item, f"{path}[{index}]") for index, item in enumerate(value))


def optional(read: Read[_T]) -> Read[_T | None]:
    """Return a reader that also takes null and nothing at all."""
    return lambda value, path: None if value is None or value is _MISSING else read(value, path)
