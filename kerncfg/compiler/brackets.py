"""What is typed after the `=` of an override, cut where its commas, brackets and quotes say."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

__all__ = [
    "BLANKS",
    "IN_QUOTES",
    "bare",
    "escaped",
    "for_shell",
    "halved",
    "inner",
    "instead",
    "pieces",
    "quoted",
    "spaced",
    "texts",
    "unclosed",
    "unlike_a_file",
    "with_quotes",
]

BLANKS = " \t\r\n"  # what YAML takes off a text, and no more
_QUOTED = r"""'(?:\\.|[^'\\])*'|"(?:\\.|[^"\\])*\""""
IN_QUOTES = re.compile(_QUOTED)
_ESCAPED = re.compile(r"\\[0abtnvfreN_LP\\ /]|\\x[0-9A-Fa-f]{2}|\\u[0-9A-Fa-f]{4}|\\U[0-9A-Fa-f]{8}")  # in YAML's \" \"
_OPEN, _CLOSE = "[{(", "]})"
_RANGE_GOES_ON = re.compile(r"\s*(>=|<=|==|!=|~=|<|>)")


def pieces(value: str) -> list[str]:
    """Split a value at its top-level commas; a comma before a comparison belongs to a range."""
    found: list[str] = []
    start = depth = 0
    quote = ""
    for index, char in enumerate(value):
        if quote:
            quote = "" if char == quote and _unescaped(value, index) else quote
        elif char in "'\"" and (depth or not value[start:index].strip()):
            quote = char
        elif char in _OPEN:
            depth += 1
        elif char in _CLOSE:
            depth -= 1
        elif char == "," and depth <= 0 and value[index - 1] != "\\" and not _RANGE_GOES_ON.match(value, index + 1):
            found.append(value[start:index])
            start = index + 1
    return [*found, value[start:]]


def inner(text: str) -> list[str]:
    """Return what a list or map holds, in pieces; as in YAML, nothing behind a last comma."""
    found = pieces(text[1:-1])
    return found[:-1] if not found[-1].strip(BLANKS) and "".join(found[-2:-1]).strip(BLANKS) else found


def _unescaped(text: str, index: int) -> bool:
    """Say whether an even number of backslashes stands before a place, of which none belongs to it."""
    before = index
    while before and text[before - 1] == "\\":
        before -= 1
    return (index - before) % 2 == 0


def unclosed(text: str) -> str:
    """Return the brackets that would close what a list or map leaves open; none if they are not the fault."""
    left: list[str] = []
    quote = ""
    for index, char in enumerate(text):
        if quote:
            quote = "" if char == quote and _unescaped(text, index) else quote
        elif char in "'\"":
            quote = char
        elif char in _OPEN and text[0] in "[{":
            left.append(_CLOSE[_OPEN.index(char)])
        elif char in _CLOSE and (not left or left.pop() != char):
            return ""
    return "" if quote else "".join(reversed(left))


def spaced(text: str) -> str:
    """Return a map with a blank after every colon behind a key where YAML wants one; the same text if none lacks."""
    if text[:1] == "[" and text[-1:] == "]":
        items = [item.strip(BLANKS) for item in pieces(text[1:-1])]
        made = list(map(spaced, items))
        return text if made == items else f"[{', '.join(made)}]"
    if text[:1] != "{" or text[-1:] != "}":
        return text
    entries, tight = [], False
    for item in pieces(text[1:-1]):
        name, colon, value = item.partition(":")
        inside = spaced(value.strip(BLANKS))
        tight |= inside != value.strip(BLANKS) or bool(value and value[0] not in f"{BLANKS}{_OPEN}{_CLOSE},")
        entries.append(f"{name.strip(BLANKS)}: {inside}" if colon else item.strip(BLANKS))
    return f"{{{', '.join(entries)}}}" if tight else text


def quoted(text: str) -> str:
    """Return a text in quotes, as Hydra reads them; in those that a file reads alike, where there are such."""
    if re.search(r"\\('|$)", text) and not escaped(double := _in(text, '"')):
        return double
    return _in(text, "'")


def _in(text: str, quote: str) -> str:
    doubled = re.sub(r"(\\+)$", r"\1\1", text)
    return quote + re.sub(rf"(\\*){quote}", rf"\1\1\\{quote}", doubled) + quote


def for_shell(text: str) -> str:
    """Return a text as it is typed: in quotes that Hydra reads, inside quotes that a shell takes off."""
    return '"' + re.sub(r'(\\(?=[\\$"`]|$)|[$"`])', r"\\\1", quoted(text)) + '"'


def escaped(text: str) -> str:
    """Return the first characters in double quotes that are one character in YAML and stay as they are in Hydra."""
    double = (re.sub(r'\\+"', '"', found[0]) for found in IN_QUOTES.finditer(text) if found[0][0] == '"')
    inside = (_ESCAPED.search(piece) for piece in double)  # before a double quote both read alike
    return next((found[0] for found in inside if found), "")


def halved(text: str) -> str:
    """Return the first two backslashes in single quotes that are two characters in YAML and one in Hydra."""
    single = (found[0] for found in IN_QUOTES.finditer(text) if found[0][0] == "'")
    return next(("\\\\" for piece in single if re.search(r"\\\\+'", piece)), "")


def unlike_a_file(key: str, text: str) -> tuple[str, str] | None:
    """Return in what a file reads the texts in quotes otherwise, and how to write such a text at a key."""
    if two := halved(text):
        message = f"{two} is one character on the command line, in a file it would be two"
        return message, f"write the text in double quotes, as in {key}={for_shell('C:' + two[1:])}"
    if one := escaped(text):
        message = f"{one} stands as it is on the command line, in a file it would be one character"
        return message, f"write the text in single quotes, as in {key}={for_shell(f'a{one}b')}"
    return None


def with_quotes(whole: str, text: str) -> str:
    """Return a list or map in which a text stands in quotes wherever it is a value without them."""
    return bare(text).sub(lambda found: quoted(text) if found[0] == text else found[0], whole)


def bare(text: str) -> re.Pattern[str]:
    """Return what finds a text where it is a value of a list or map, and all that stands in quotes."""
    return re.compile(rf"(?:{_QUOTED})|(?<![^\[{{,\s]){re.escape(text)}(?![^\]}},\s])")


def instead(value: str, text: str, other: str) -> str:
    """Return a value, or the values of a sweep, with another piece wherever one says `text`."""
    return ",".join(other if piece.strip(BLANKS) == text else piece for piece in pieces(value))


def texts(value: Any) -> Iterator[str]:
    """Yield every text in plain data but for the keys."""
    if isinstance(value, str):
        yield value
    elif isinstance(value, dict | list):
        for child in value.values() if isinstance(value, dict) else value:
            yield from texts(child)
