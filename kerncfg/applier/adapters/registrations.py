"""What transformers' decorators say of classes and functions, read from the source of the module they stand in.

Without a fitting `kernels` package these decorators leave no trace, so the source is read. Decorators are told by
what their name means in that module, never by how it is spelled there.
"""

from __future__ import annotations

import ast
import inspect
import sys
import threading
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from types import FunctionType, ModuleType
from typing import Any
from weakref import WeakKeyDictionary

from kerncfg.applier.adapters.statements import Decorated, decorated, has_statement, source_text

__all__ = ["HOME", "declarations", "marked", "registration"]

HOME = "transformers.integrations.hub_kernels"

# The decorators that register what they decorate, and those that say which functions a class calls; each with the
# keyword of its one argument that counts.
_REGISTERS = {
    "use_kernel_forward_from_hub": "layer_name",
    "use_kernel_func_from_hub": "layer_name",
    "use_kernel_func_from_hub_with_fallback": "func_name",
}
_DECLARES = {"use_kernelized_func": "module_names"}
_DECORATORS = {**_REGISTERS, **_DECLARES}

_MARKER = "kernel_layer_name"  # what the `kernels` library's decorators set


@dataclass(frozen=True, slots=True)
class _Statement:
    """One class or function statement: its lines, the name it is registered under, and what it says it calls."""

    lines: range
    name: str | None
    calls: tuple[ast.expr, ...]


@dataclass(frozen=True, slots=True, eq=False)
class _Source:
    """What the source of a module says; another text of it means that it has changed."""

    text: str
    statements: dict[str, list[_Statement]]


_lock = threading.RLock()
_names: WeakKeyDictionary[Any, str | None] = WeakKeyDictionary()
_calls: WeakKeyDictionary[type, Mapping[str, str]] = WeakKeyDictionary()
_sources: dict[str, _Source] = {}


def registration(thing: Any) -> str | None:
    """Return the name in the decorators of a class or function; what has no source has none."""
    try:
        with _lock:
            if thing not in _names:
                found = _statement(thing)
                _names[thing] = None if found is None else found.name
            return _names[thing]
    except TypeError:  # neither a class nor a function: it cannot be looked up, or be in a source
        return None


def declarations(cls: type) -> Mapping[str, str]:
    """Return the functions that a class is decorated to call: the names its module has for them, and the registered."""
    with _lock:
        if cls not in _calls:
            found = _statement(cls)
            module = sys.modules.get(cls.__module__)
            pairs = () if found is None or module is None else _declared(found.calls, module)
            _calls[cls] = dict(pairs)
        return _calls[cls]


def marked(thing: Any) -> str | None:
    """Return the name that the `kernels` library has set on a function, or on the class it made of one."""
    for found in (getattr(thing, "__dict__", {}), vars(type(thing))):
        if isinstance(name := found.get(_MARKER), str):
            return name
    return None


def _declared(nodes: Sequence[ast.expr], module: ModuleType) -> Iterator[tuple[str, str]]:
    for node in nodes:
        if isinstance(node, ast.List | ast.Tuple):
            yield from _declared(node.elts, module)
            continue
        value = _meaning(node, module)
        for one in value if isinstance(value, list | tuple) else [value]:
            # By the statement of that name in this source first: what stands under the name now may be another's.
            here = _here(node.id, module) if isinstance(node, ast.Name) else []
            name = _pick(here, one).name if here else marked(one) or registration(one)
            if name is not None:
                spelled = [node.id] if here and isinstance(node, ast.Name) else []
                yield from ((known, name) for known in spelled or _known_as(one, module))


def _here(name: str, module: ModuleType) -> list[_Statement]:
    """Return the statements of a name in a module's source; one without decorators is not read, but found."""
    if (source := _read(module)) is None:
        return []
    bare = [_Statement(range(0), None, ())]
    return source.statements.get(name) or (bare if has_statement(source.text, name) else [])


def _known_as(value: Any, module: ModuleType) -> list[str]:
    return [name for name, found in list(vars(module).items()) if found is value and value is not None]


def _statement(thing: Any) -> _Statement | None:
    """Return the statement that made a class or function, if its module can have decorated it."""
    module = sys.modules.get(getattr(thing, "__module__", None) or "")
    if module is None or (source := _read(module)) is None:
        return None
    found = source.statements.get(getattr(thing, "__qualname__", ""), [])
    return _pick(found, thing) if found else None


def _pick(found: list[_Statement], thing: Any) -> _Statement:
    """Return the statement of several that made a thing, as in the branches of an `if`; else the last."""
    if len(found) > 1:
        functions = vars(thing).values() if isinstance(thing, type) else [inspect.unwrap(thing)] if thing else []
        lines = {value.__code__.co_firstlineno for value in functions if isinstance(value, FunctionType)}
        found = [statement for statement in found if lines.intersection(statement.lines)] or found
    return found[-1]


def _ways(module: ModuleType) -> list[str]:
    """Return the names by which a module can reach the decorators: theirs, and those of modules that have them."""
    return [
        name
        for name, value in list(vars(module).items())
        if _is_decorator(value) or (isinstance(value, ModuleType) and _is_near(value))
    ]


def _is_near(module: ModuleType) -> bool:
    found = vars(module)
    return module.__name__.partition(".")[0] == "transformers" or any(
        _is_decorator(found.get(name)) for name in _DECORATORS
    )


def _is_decorator(value: Any, which: Mapping[str, str] = _DECORATORS) -> bool:
    return isinstance(value, FunctionType) and value.__module__ == HOME and value.__qualname__ in which


def _read(module: ModuleType) -> _Source | None:
    """Return what a module's source says, if it can reach the decorators; it is read again when it changed."""
    known = _sources.get(module.__name__)
    ways = _ways(module) if known is None else []
    if known is None and not ways:
        return None
    text = source_text(module)
    if text is None:  # typed in, executed from text, or its file is gone
        return None
    if known is None or known.text != text:
        found = decorated(text, ways or _ways(module), lambda name: _is_decorator(_spelled(name, module)))
        statements = {name: _meant(each, module) for name, each in (found or {}).items()}
        known = _sources[module.__name__] = _Source(text, statements)
    return known


def _meant(found: Sequence[Decorated], module: ModuleType) -> list[_Statement]:
    """Return what the decorators of statements mean in a module."""
    meant: list[_Statement] = []
    for one in found:
        names: list[str] = []
        calls: list[ast.expr] = []
        for decorator in one.decorators:
            argument = _argument(decorator, module, _REGISTERS)
            value = argument.value if isinstance(argument, ast.Constant) else _meaning(argument, module)
            names += [value] if isinstance(value, str) else []
            calls += filter(None, [_argument(decorator, module, _DECLARES)])
        # Decorators run from the last to the first, and each writes over the one before.
        meant.append(_Statement(one.lines, names[0] if names else None, tuple(calls)))
    return meant


def _argument(decorator: ast.expr, module: ModuleType, which: Mapping[str, str]) -> ast.expr | None:
    """Return the argument of a decorator that counts, or `None` if it is another decorator."""
    if not isinstance(decorator, ast.Call):
        return None
    meaning = _meaning(decorator.func, module)
    if not _is_decorator(meaning, which):
        return None
    keyword = which[meaning.__qualname__]
    named = [given.value for given in decorator.keywords if given.arg == keyword]
    return next(iter([*decorator.args, *named]), None)


def _spelled(name: str, module: ModuleType) -> Any:
    return _meaning(ast.parse(name, mode="eval").body, module)


def _meaning(node: ast.expr | None, module: ModuleType) -> Any:
    """Return what a dotted name stands for in a module, without running anything that is not imported yet."""
    if isinstance(node, ast.Name):
        return vars(module).get(node.id)
    if isinstance(node, ast.Attribute):
        owner = _meaning(node.value, module)
        return getattr(owner, node.attr, None) if isinstance(owner, ModuleType) else None
    return None
