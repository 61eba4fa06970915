"""A composed document as YAML again, each value with where it was said."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from kerncfg.terminal import in_json, one_line

if TYPE_CHECKING:
    from kerncfg.compiler.tree import KeyPath, Origins

__all__ = ["document_lines"]

_PLAIN = re.compile(r"[A-Za-z_][\w./-]*")
_WORDS = {"true", "false", "null", "yes", "no", "on", "off", "y", "n"}  # what YAML 1.1 would not read as text


def document_lines(document: Any, origins: Origins | None, path: KeyPath = ()) -> Iterator[str]:
    """Yield a document as YAML, each value with a comment that says where it was said, if `origins` are given.

    A value that came by interpolation stands as it was written: it may be a secret of the environment.
    """
    pad = "  " * len(path)
    for key, value in document.items():
        here = (*path, key)
        if isinstance(value, dict) and value:
            yield f"{pad}{_scalar(key)}:"
            yield from document_lines(value, origins, here)
        else:
            origin = origins.at(here) if origins else None
            written = origin.text if origin and origin.text and "${" in origin.text else value
            comment = one_line(f"  # {origin}") if origin else ""
            yield f"{pad}{_scalar(key)}: {_scalar(written)}{comment}"


def _scalar(value: Any) -> str:
    """Return a value as YAML reads it back; JSON is YAML."""
    if isinstance(value, float):
        return re.sub(r"^(-?\d+)e", r"\1.0e", repr(value))  # YAML 1.1 takes 2e-06 for text
    plain = isinstance(value, str) and _PLAIN.fullmatch(value) and value.lower() not in _WORDS
    return str(value) if plain else in_json(json.dumps(value, ensure_ascii=False, default=str))
