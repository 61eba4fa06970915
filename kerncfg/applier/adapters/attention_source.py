"""What a class does with the choice of attention in its configuration, read from the source of its methods."""

from __future__ import annotations

import ast
import inspect
import threading
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from textwrap import dedent
from types import CodeType, FunctionType
from typing import Any
from weakref import WeakKeyDictionary

__all__ = ["SETTING", "Reading", "reading"]

SETTING = "_attn_implementation"

_lock = threading.Lock()
_known: WeakKeyDictionary[type, Reading | None] = WeakKeyDictionary()


@dataclass(frozen=True, slots=True, kw_only=True)
class Reading:
    """What a class does with the choice of attention.

    `chains` are the attributes that lead from `self` to the configurations it looks at when called; `copied` those in
    which it keeps a choice that it looked at when built, and uses later; `fixed` that it chose otherwise then.
    `passes` are the keywords it calls attention with, each with the attributes that lead from `self` to what is passed.
    `names` are the implementations that it asks for by name where it calls attention, `asks` whether it does anywhere.
    """

    chains: tuple[tuple[str, ...], ...] = ()
    copied: tuple[str, ...] = ()
    fixed: bool = False
    calls: bool = False
    passes: Mapping[str, tuple[str, ...] | None] = field(default_factory=dict)
    names: tuple[str, ...] = ()
    asks: bool = False
    eager: Callable[..., Any] | None = None


def reading(cls: type, functions: Mapping[str, Any]) -> Reading | None:
    """Return what a class does with the choice of attention; `None` if nothing."""
    with _lock:
        if cls not in _known:
            _known[cls] = _read(cls, functions)
        return _known[cls]


def _read(cls: type, functions: Mapping[str, Any]) -> Reading | None:
    methods = {name: function for name, function in _methods(cls) if SETTING in _names(function.__code__)}
    if not methods:
        return None
    later = {found for name, function in _methods(cls) if name != "__init__" for found in _names(function.__code__)}
    made = _Init() if "__init__" not in methods else _Init.of(methods.pop("__init__"))
    calls = [_Call.of(function, functions) for function in methods.values()]
    calling = next((call for call in calls if call.calls), _Call())
    copied = tuple(name for name in made.copied if name in later)
    found = Reading(
        chains=tuple(dict.fromkeys(chain for call in calls for chain in call.chains)),
        copied=copied,
        fixed=made.fixed,
        calls=calling.calls or bool(copied),
        passes=calling.passes,
        names=tuple(name for call in calls if call.calls for name in call.names if name != "eager"),
        asks=any(name != "eager" for call in calls for name in call.names),
        eager=calling.eager,
    )
    return found if found != Reading() else None


def _methods(cls: type) -> Iterator[tuple[str, FunctionType]]:
    """Yield the methods that instances have, unwrapped; those of PyTorch's and transformers' own bases do not count."""
    seen = set()
    for base in cls.__mro__:
        if base.__module__ in ("transformers.modeling_utils", "builtins") or base.__module__.startswith("torch."):
            continue
        for name, value in vars(base).items():
            function = inspect.unwrap(value) if isinstance(value, FunctionType) else None
            if isinstance(function, FunctionType) and name not in seen:
                seen.add(name)
                yield name, function


def _names(code: CodeType) -> set[str]:
    """Return the names in a function and the functions inside it."""
    found = set(code.co_names)
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            found |= _names(constant)
    return found


def _tree(function: FunctionType) -> tuple[ast.AST | None, str]:
    """Return a method's source as a tree, and what it calls its object; no tree for what was typed in."""
    own = next(iter(function.__code__.co_varnames[: function.__code__.co_argcount]), "")
    try:
        return ast.parse(dedent(inspect.getsource(function))), own
    except (OSError, TypeError, SyntaxError, ValueError):
        return None, own


def _is_setting(node: ast.AST) -> bool:
    return isinstance(node, ast.Attribute) and node.attr == SETTING


def _chain(node: ast.AST, own: str) -> tuple[str, ...] | None:
    """Return the attributes of an expression that begins with the method's own object."""
    names: list[str] = []
    while isinstance(node, ast.Attribute):
        names.insert(0, node.attr)
        node = node.value
    return tuple(names) if isinstance(node, ast.Name) and node.id == own else None


@dataclass(frozen=True, slots=True, kw_only=True)
class _Init:
    """What an `__init__` does with the choice: keeps it in attributes, or chooses something by it."""

    copied: tuple[str, ...] = ()
    fixed: bool = False

    @classmethod
    def of(cls, function: FunctionType) -> _Init:
        tree, own = _tree(function)
        if tree is None:
            return cls(fixed=True)
        harmless: set[int] = set()
        copied: list[str] = []
        for node in ast.walk(tree):
            if isinstance(node, ast.FormattedValue):
                harmless.update(map(id, ast.walk(node)))
            if isinstance(node, ast.Assign) and _is_setting(node.value):
                chains = [_chain(target, own) for target in node.targets]
                if all(chain is not None and len(chain) == 1 for chain in chains):
                    copied += [name for chain in chains for name in chain or ()]
                    harmless.add(id(node.value))
                elif all(map(_is_setting, node.targets)):
                    harmless.add(id(node.value))
        loads = (node for node in ast.walk(tree) if _is_setting(node) and isinstance(node.ctx, ast.Load))  # type: ignore[attr-defined]
        return cls(copied=tuple(copied), fixed=any(id(node) not in harmless for node in loads))


@dataclass(frozen=True, slots=True, kw_only=True)
class _Call:
    """What another method does with the choice: where it looks, what it asks, and how it calls attention."""

    chains: tuple[tuple[str, ...], ...] = ()
    calls: bool = False
    passes: Mapping[str, tuple[str, ...] | None] = field(default_factory=dict)
    names: tuple[str, ...] = ()
    eager: Callable[..., Any] | None = None

    @classmethod
    def of(cls, function: FunctionType, functions: Mapping[str, Any]) -> _Call:
        around, names = function.__globals__, _names(function.__code__)
        calls = any(getattr(around.get(name), "_global_mapping", None) is functions for name in names)
        tree, own = _tree(function)
        if tree is None:
            return cls(chains=(("config",),) if "config" in names else (), calls=calls)
        chains: list[tuple[str, ...]] = []
        asked: list[Any] = []
        passes: dict[str, tuple[str, ...] | None] = {}
        eager = around.get("eager_attention_forward")
        for node in ast.walk(tree):
            if _is_setting(node) and (chain := _chain(node.value, own)) is not None:  # type: ignore[attr-defined]
                chains.append(chain)
            elif isinstance(node, ast.Compare) and any(map(_is_setting, (node.left, *node.comparators))):
                constants = (part for side in (node.left, *node.comparators) for part in ast.walk(side))
                asked += [part.value for part in constants if isinstance(part, ast.Constant) and part.value]
            elif isinstance(node, ast.Call):
                if isinstance(node.func, ast.Attribute) and node.func.attr == "get_interface" and len(node.args) > 1:
                    default = node.args[1]
                    eager = around.get(default.id, eager) if isinstance(default, ast.Name) else eager
                elif calls and _is_attention(node, own):
                    passes.update(_passed(node, own))
        return cls(
            chains=tuple(chains),
            calls=calls,
            passes=passes,
            names=tuple(map(str, asked)),
            eager=eager if calls else None,
        )


def _is_attention(call: ast.Call, own: str) -> bool:
    """Whether a call hands the method's own object and three tensors to a function in a variable."""
    given = len(call.args) + sum(keyword.arg in ("query", "key", "value") for keyword in call.keywords)
    return isinstance(call.func, ast.Name) and given > 3 and bool(call.args) and _chain(call.args[0], own) == ()


def _passed(call: ast.Call, own: str) -> Iterator[tuple[str, tuple[str, ...] | None]]:
    for keyword in call.keywords:
        if keyword.arg is not None:
            yield keyword.arg, _chain(_attribute(keyword.value), own)


def _attribute(node: ast.expr) -> ast.expr:
    """Return `getattr(a, "b", …)` as `a.b`, one of two that is no number as it is, and so anything else."""
    if isinstance(node, ast.IfExp):  # 0.0 if not self.training else self.attention_dropout
        named = [side for side in (node.body, node.orelse) if not isinstance(side, ast.Constant)]
        return _attribute(named[0]) if len(named) == 1 else node
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "getattr" and node.args[1:]:
        of, name = node.args[:2]
        if isinstance(name, ast.Constant) and isinstance(name.value, str):
            return ast.Attribute(value=of, attr=name.value)
    return node
