"""The class and function statements of a source that may carry certain decorators, read without parsing the rest.

To parse a modelling file takes 20 ms and more, to look for an `@` in it a hundredth of that. What stands in the first
column, under a name that no other statement of the file has, is parsed alone; for any other the whole file is.
"""

from __future__ import annotations

import ast
import importlib.util
import inspect
import linecache
import os
import re
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType

__all__ = ["Decorated", "decorated", "has_statement", "source_text"]

# Decorators in the first column, with whatever goes on in further lines, and the statement that they stand over.
_STACK = re.compile(
    r"\n(?P<stack>(?:@.*\n(?:(?:[ \t)\]}#].*)?\n)*)+)(?P<kind>class|def|async[ \t]+def)[ \t]+(?P<name>\w+)"
)


_DECORATOR = re.compile(r"@[ \t]*(?P<name>(?P<first>\w+)(?:\.\w+)*)")

_texts: dict[str, tuple[tuple[int, int], str]] = {}  # by file: its size and time of modification, and what it holds


@dataclass(frozen=True, slots=True, kw_only=True)
class Decorated:
    """One class or function statement: its decorators, and its lines; none where no other has its name."""

    decorators: Sequence[ast.expr]
    lines: range = range(0)


def source_text(module: ModuleType) -> str | None:
    """Return a module's source: the same text as long as the file is the same; `None` without one.

    `linecache` takes twice as long for a file: it makes a text of each line.
    """
    try:
        file = inspect.getsourcefile(module)
    except TypeError:  # built in
        return None
    if file is None:
        return None
    try:
        found = os.stat(file)  # noqa: PTH116 - a model's classes ask for it dozens of times
        stamp = found.st_size, found.st_mtime_ns
        if file not in _texts or _texts[file][0] != stamp:
            _texts[file] = stamp, f"{importlib.util.decode_source(Path(file).read_bytes())}\n"
    except OSError:  # in an archive, which its loader can read
        linecache.checkcache(file)
        return "".join(linecache.getlines(file, vars(module))) or None
    except (SyntaxError, ValueError):  # in no encoding that it could be run from
        return None
    return _texts[file][1]


def decorated(text: str, names: Collection[str], counts: Callable[[str], bool]) -> dict[str, list[Decorated]] | None:
    """Return statements by qualified name, among them all that have a decorator that counts.

    `names` are what such a decorator can begin with; `counts` is asked for what is spelled with dots. `None` is
    returned for what is no Python.
    """
    if not names:
        return {}
    text = f"\n{text}"
    spelled = {found.start(): found["name"] for found in _DECORATOR.finditer(text) if found["first"] in names}
    counting = {name for name in set(spelled.values()) if counts(name)}
    places = [place for place, name in spelled.items() if name in counting and _is_first(text, place)]
    if not places:
        return {}
    try:
        return _alone(text, places) or _all(text)
    except (SyntaxError, ValueError):
        return None


def has_statement(text: str, name: str) -> bool:
    """Whether a source has a class or function statement of this name in its first column."""
    return re.search(rf"^(?:class|def|async[ \t]+def)[ \t]+{re.escape(name)}\b", text, re.MULTILINE) is not None


def _is_first(text: str, place: int) -> bool:
    """Whether nothing but blanks stands before a place in its line: else it begins no decorator."""
    return not text[text.rindex("\n", 0, place) : place].strip()


def _alone(text: str, places: list[int]) -> dict[str, list[Decorated]] | None:
    """Return the statements over which something stands at these places; `None` where the whole has to be read."""
    found: dict[str, list[Decorated]] = {}
    left = set(places)
    for match in _STACK.finditer(text):
        mine = {place for place in left if match.start() < place < match.end()}
        if not mine:
            continue
        name = match["name"]
        if not _is_only(text, name) or _is_quoted(text, match.start()):
            return None
        (node,) = ast.parse(f"{match['stack']}class _: pass").body
        assert isinstance(node, ast.ClassDef)
        found[name] = [Decorated(decorators=node.decorator_list)]
        left -= mine
    return None if left else found


def _is_only(text: str, name: str) -> bool:
    return sum(text.count(f"{word} {name}{end}") for word in ("class", "def") for end in "(:[") == 1


def _is_quoted(text: str, place: int) -> bool:
    """Whether a place may be inside a long string."""
    return any(text.count(quotes, 0, place) % 2 for quotes in ('"""', "'''"))


def _all(text: str) -> dict[str, list[Decorated]]:
    found: dict[str, list[Decorated]] = {}
    for qualname, node in _walk(ast.parse(text), ""):
        # One less each for the line put before the text.
        first = min([node.lineno, *(decorator.lineno for decorator in node.decorator_list)]) - 1
        lines = range(first, node.end_lineno or node.lineno)
        found.setdefault(qualname, []).append(Decorated(decorators=node.decorator_list, lines=lines))
    return found


def _walk(node: ast.AST, prefix: str) -> Iterator[tuple[str, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef]]:
    """Yield every class and function statement with the qualified name that it gives."""
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.ClassDef):
            yield prefix + child.name, child
            yield from _walk(child, f"{prefix}{child.name}.")
        elif isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef):
            yield prefix + child.name, child
            yield from _walk(child, f"{prefix}{child.name}.<locals>.")
        elif isinstance(child, ast.stmt | ast.ExceptHandler | ast.match_case):
            yield from _walk(child, prefix)
