"""What is typed in an override and no reader can take, told before Hydra reads it.

Hydra's parser goes as deep as the brackets do, makes Python's numbers of digits without end, and keeps the last of two
keys; a file refuses all of that.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

from kerncfg.compiler.brackets import BLANKS, IN_QUOTES, for_shell, inner, pieces
from kerncfg.compiler.reading import scalar
from kerncfg.documents.plain import DEEP

__all__ = ["LONGEST", "unfit"]

_DEPTH = 64  # Hydra's parser takes 150 brackets inside each other on an empty stack, and fewer on a full one
LONGEST = 240  # bytes of a key: Hydra looks for a folder of that name, which can have 255
_LONG = 2000  # characters of an int, in any base, that may be more than a file takes
_INT = re.compile(r"(?<![\w.])[+-]?(?:0x[0-9a-fA-F_]+|0b[01_]+|[0-9][0-9_]*(?::[0-5]?[0-9])*)(?![\w.])")
_AT_START = re.compile(rf"(^|[\[{{(,:])\s*(?:{IN_QUOTES.pattern})")
_QUOTES = "'\""
_CALL = re.compile(r"\w+\((?P<inside>.*)\)", re.DOTALL)


def unfit(argument: str) -> tuple[str, str] | None:
    """Return what is wrong with an override and how to mend it, or `None`."""
    before, _, value = argument.partition("=")
    key, plain = before.lstrip("~+").strip(), _AT_START.sub(r"\1", value)
    if (length := len(key.encode("utf-8", "replace"))) > LONGEST:
        return (
            f"the key has {length} bytes, expected {LONGEST} at most",
            "write the value as a map behind a shorter key",
        )
    if max(_depths(plain), default=0) > _DEPTH:
        return DEEP, f"write at most {_DEPTH} brackets inside each other"
    for found in _INT.findall(plain) if len(plain) > _LONG else ():
        if len(found) > _LONG and not _counts(found):
            return f"{found!r} is no int", f"for the text write {key}={for_shell(found)}"
    if twice := _twice(value):
        message = f"the key {twice[0]!r} stands twice: with {twice[1]!r} and with {twice[2]!r}"
        return message, "keep one of them, or put both into one map"
    return None


def _counts(text: str) -> bool:
    try:
        scalar(text)
    except ValueError:
        return False
    return True


def _depths(text: str) -> Iterator[int]:
    depth = 0
    for char in text:
        depth += (char in "[{(") - (char in "]})")
        yield depth


def _twice(value: str) -> tuple[str, str, str] | None:
    """Return the first key that stands twice in one map, with what stands behind it both times."""
    for piece in pieces(value):
        text = piece.strip(BLANKS)
        call = _CALL.fullmatch(text)
        if text[:1] == "{" and text[-1:] == "}":
            found = _in_map(text)
        else:
            found = _twice(call["inside"] if call else text[1:-1]) if call or text[:1] + text[-1:] == "[]" else None
        if found:
            return found
    return None


def _in_map(text: str) -> tuple[str, str, str] | None:
    said: dict[str, str] = {}
    for entry in inner(text):
        key = IN_QUOTES.match(entry.strip(BLANKS))
        name = key[0] if key else entry.partition(":")[0].strip(BLANKS)
        rest = entry.strip(BLANKS)[len(name) :].lstrip(f"{BLANKS}:").rstrip(BLANKS)
        name = name.strip(_QUOTES)
        if name in said:
            return name, said[name].strip(_QUOTES), rest.strip(_QUOTES)
        if name or rest:
            said[name] = rest
        if found := _twice(rest):
            return found
    return None
