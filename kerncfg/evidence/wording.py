"""Measures and reasons as people and JSON read them: cells, lines and columns, plain data."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from kerncfg.evidence.judge import number

__all__ = ["SCHEMA", "UNSTEADY", "listed", "path_of", "plain", "share", "short", "table", "told", "values", "word"]

_NO_NUMBERS = ("nan", "inf", "-inf")  # what JSON has no number for

SCHEMA = 1  # of the documents of `verify` and `bench`

# Hazards of a kernel that is less repeatable than what it replaces: of its forward, and of its backward.
UNSTEADY = (
    "gives other bits when it is run again, which the original does not",
    "its backward gives other bits when it is run again, which the original's does not",
)


def table(heads: Sequence[str], lines: Sequence[Sequence[str]]) -> list[str]:
    """Return lines of columns, or none without any but the heads."""
    if not lines:
        return []
    widths = [max(len(line[place]) for line in (heads, *lines)) for place in range(len(heads))]
    return [
        "  ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)).rstrip()
        for line in (heads, *lines)
    ]


def told(words: Iterable[tuple[str, str, str]]) -> list[str]:
    """Say each thing once for each kernel, however many rows it is true of."""
    rows: dict[tuple[str, str], list[str]] = {}
    for path, kernel, word in words:
        rows.setdefault((kernel, word), []).append(path)
    return [f"{listed(list(dict.fromkeys(paths)))}: {word}" for (_, word), paths in rows.items()]


def listed(paths: Sequence[str]) -> str:
    """Return the first few of some paths."""
    return ", ".join(paths) if len(paths) <= 3 else f"{', '.join(paths[:2])} and {len(paths) - 2} more"


def word(passed: bool) -> str:
    """Return a verdict."""
    return "yes" if passed else "NO"


def short(value: float | None) -> str:
    """Return a measure in two digits."""
    return "-" if value is None else f"{value:.1e}"


def share(value: float | None) -> str:
    """Return a share in percent."""
    return "-" if value is None else f"{value:.2%}"


def path_of(row: Any) -> str:
    """Return the first site of a row, and how many there are besides."""
    return str(row.path) if row.sites == 1 else f"{row.path} and {row.sites - 1} more"


def plain(value: Any) -> Any:
    """Return a part of a document as plain data."""
    if hasattr(value, "to_dict"):
        return value.to_dict()
    if isinstance(value, tuple):
        return list(value)
    return number(value) if isinstance(value, float) else value


def values(data: Mapping[str, Any], parts: Mapping[str, Callable[[Any], Any]]) -> dict[str, Any]:
    """Return plain data as the values that `plain` was given; `parts` reads what is a document of its own."""
    found: dict[str, Any] = {}
    for key, value in data.items():
        if key in parts and value is not None:
            found[key] = parts[key](value)
        elif isinstance(value, list):
            found[key] = tuple(value)
        else:
            found[key] = float(value) if isinstance(value, str) and value in _NO_NUMBERS else value
    return found
