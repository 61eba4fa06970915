"""What is typed after the `=` of an override, cut where its commas, brackets and quotes say."""

from __future__ import annotations

import re

__all__ = ["BLANKS", "pieces", "quoted", "spaced", "unclosed"]

BLANKS = " \t\r\n"  # what YAML takes off a text, and no more
_OPEN, _CLOSE = "[{(", "]})"
_RANGE_GOES_ON = re.compile(r"\s*(>=|<=|==|!=|~=|<|>)")


def pieces(value: str) -> list[str]:
    """Split a value at its top-level commas; a comma before a comparison belongs to a range."""
    found: list[str] = []
    start = depth = 0
    quote = ""
    for index, char in enumerate(value):
        if quote:
            quote = "" if char == quote and value[index - 1] != "\\" else quote
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


def unclosed(text: str) -> str:
    """Return the brackets that would close what a list or map leaves open; none if they are not the fault."""
    left: list[str] = []
    quote = ""
    for index, char in enumerate(text):
        if quote:
            quote = "" if char == quote and text[index - 1] != "\\" else quote
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
    """Return a text in single quotes, as Hydra reads them."""
    return "'" + text.replace("\\'", "\\\\'").replace("'", "\\'") + "'"
