"""Which kernels a module offers, read from its source without running it.

A kernel is an attribute of the module's `layers`, or of the module. What only running can tell (a star import,
`__getattr__`, names made by code) is answered with `None`, and loading finds out.
"""

from __future__ import annotations

import ast
import re
import sys
import threading
from collections.abc import Iterable, Iterator
from difflib import get_close_matches
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pathlib import Path

__all__ = ["missing"]

_PARSING = threading.Lock()  # Python 3.11 counts the depth of all threads' trees together, and may raise SystemError
_MADE_BY_CODE = re.compile(r"\b(globals|setattr|vars|locals|exec)\(")


def missing(name: str, file: Path) -> str | None:
    """Say why a module's file cannot offer a kernel of this name; `None` if it does, or if only running can tell."""
    tree = _parsed(file)
    own = None if tree is None else _bound(tree.body)
    if own is None or name in own:
        return None
    layers = file.with_name("layers.py")
    submodule = _parsed(layers) if file.name == "__init__.py" and layers.is_file() else None
    inside = _bound(submodule.body) if submodule is not None else {}
    where = own.get("layers")
    if where is None:
        if inside and name in inside:
            return f"layers.py has {name}, but {file.name} does not import it: add `from . import layers`"
        return _sentence(name, own)
    if isinstance(where, ast.ClassDef):
        inside = _bound(where.body)
    elif not isinstance(where, ast.ImportFrom | ast.Import):
        return None
    if inside is None or not inside or name in inside:
        return None
    return _sentence(name, {**own, **inside})


def _sentence(name: str, offered: dict[str, ast.stmt]) -> str | None:
    """Return the reason with the kernels there are; a module that offers none may do so when it runs."""
    kernels = sorted(word for word, node in offered.items() if _is_kernel(word, node))
    close = get_close_matches(name, kernels, 1, cutoff=0.6)
    meant = f"did you mean {close[0]}? " if close else ""
    return f"no {name!r} there; {meant}it has {', '.join(kernels)}" if kernels else None


def _is_kernel(word: str, node: ast.stmt) -> bool:
    """Take what is defined for a kernel, and what is imported from its own files if it is spelled as a class."""
    imported = isinstance(node, ast.ImportFrom) and word[:1].isupper() and _of_its_own(node)
    defined = isinstance(node, ast.ClassDef | ast.FunctionDef) and word != "layers"
    return not word.startswith("_") and (imported or defined)


def _of_its_own(node: ast.ImportFrom) -> bool:
    top = (node.module or "").partition(".")[0]
    return bool(node.level) or top not in {*sys.stdlib_module_names, "torch", "triton", "numpy"}


def _parsed(file: Path) -> ast.Module | None:
    """Return a file's syntax tree; a file that cannot be read or parsed is left to the import, which says why."""
    try:
        text = file.read_text(encoding="utf-8")
        if _MADE_BY_CODE.search(text):
            return None
        with _PARSING:
            return ast.parse(text)
    except (OSError, ValueError, SyntaxError, RecursionError):
        return None


def _bound(body: Iterable[ast.stmt]) -> dict[str, ast.stmt] | None:
    """Return the names that statements bind, each with the statement; `None` if they cannot be listed."""
    names: dict[str, ast.stmt] = {}
    for node in _statements(body):
        if isinstance(node, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            names[node.name] = node
        elif isinstance(node, ast.Import | ast.ImportFrom):
            names |= {(alias.asname or alias.name.partition(".")[0]): node for alias in node.names}
        else:
            targets = (child for child in ast.walk(node) if isinstance(child, ast.Name))
            names |= {child.id: node for child in targets if isinstance(child.ctx, ast.Store)}
    return None if "*" in names or "__getattr__" in names else names


def _statements(body: Iterable[ast.stmt]) -> Iterator[ast.stmt]:
    """Yield statements, and those inside `if`, `try`, `with` and loops, which bind names of the same scope."""
    for node in body:
        yield node
        for inner in ("body", "orelse", "finalbody", "handlers"):
            if isinstance(node, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
                break
            for child in getattr(node, inner, ()):
                yield from _statements(child.body if isinstance(child, ast.ExceptHandler) else [child])
