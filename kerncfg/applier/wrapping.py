"""Finds a module's own forward inside whatever else was wrapped around it on the instance.

A wrapper keeps what it wraps in a closure, a `functools.partial`, a default, an attribute of an object, or an entry of
the module such as `_old_forward`. Each of these can be written, so a kernel can take the place and the wrapper goes on
running around it. What a wrapper holds elsewhere, in a global or by calling the class, cannot be reached.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass, field
from functools import partial
from types import CellType, CodeType, FunctionType, MethodType
from typing import Any, TypeGuard

from torch import nn

__all__ = ["Inside", "inside"]

_DEPTH = 8  # wrappers around wrappers; accelerate around a decorator around a hook is 3


@dataclass(slots=True)
class Inside:
    """The places where a wrapper holds the forward of its module, and the object found in the first of them."""

    found: MethodType
    places: list[Callable[[MethodType], None]]

    def put(self, forward: MethodType) -> None:
        """Write another forward to every place."""
        for place in self.places:
            place(forward)


def inside(module: nn.Module, functions: Collection[Any]) -> Inside | None:
    """Find what stands for the module's own forward: a method of it, of one of `functions`; `None` if out of reach."""
    entries = module.__dict__
    outer = entries.get("forward")
    if _stands_for(outer, module, functions):
        return Inside(found=outer, places=[_Entry(entries, "forward")])
    search = _Search(module=module, functions=functions)
    search.look(outer, 0)
    for key in search.read.intersection(entries):
        search.hold(entries[key], _Entry(entries, key))
    return None if search.found is None else Inside(found=search.found, places=search.places)


def _stands_for(value: Any, module: nn.Module, functions: Collection[Any]) -> TypeGuard[MethodType]:
    return type(value) is MethodType and value.__self__ is module and value.__func__ in functions


@dataclass(slots=True)
class _Search:
    module: nn.Module
    functions: Collection[Any]
    found: MethodType | None = None
    places: list[Callable[[MethodType], None]] = field(default_factory=list)
    read: set[str] = field(default_factory=set)  # every attribute name that the wrappers' code uses
    seen: set[int] = field(default_factory=set)

    def hold(self, value: Any, place: Callable[[MethodType], None]) -> bool:
        if not _stands_for(value, self.module, self.functions):
            return False
        self.found = self.found or value
        self.places.append(place)
        return True

    def look(self, outer: Any, depth: int) -> None:
        if depth > _DEPTH or id(outer) in self.seen:
            return
        self.seen.add(id(outer))
        if isinstance(outer, MethodType):
            self.look(outer.__func__, depth)
            if not isinstance(outer.__self__, nn.Module | type):
                self.look(outer.__self__, depth)
            return
        for value, place in self._contents(outer):
            if not self.hold(value, place) and not isinstance(value, nn.Module | type):
                self.look(value, depth + 1)

    def _contents(self, outer: Any) -> Iterator[tuple[Any, Callable[[MethodType], None]]]:
        if isinstance(outer, partial):
            for key, value in enumerate((outer.func, *outer.args)):
                yield value, _Argument(outer, key)
            yield from ((value, _Entry(outer.keywords, key)) for key, value in outer.keywords.items())
            yield from self._attributes(vars(outer))
        elif isinstance(outer, FunctionType):
            self.read.update(_names(outer.__code__))
            yield from ((cell.cell_contents, _Cell(cell)) for cell in outer.__closure__ or () if _filled(cell))
            yield from ((value, _Default(outer, key)) for key, value in enumerate(outer.__defaults__ or ()))
            keywords: dict[str, Any] = outer.__kwdefaults__ or {}
            yield from ((value, _Entry(keywords, key)) for key, value in keywords.items())
            yield from self._attributes(vars(outer))
        elif hasattr(outer, "__dict__") and not isinstance(outer, type):
            call = getattr(type(outer), "__call__", None)  # noqa: B004 (what it is called with, not whether it can be)
            if isinstance(call, FunctionType):
                self.read.update(_names(call.__code__))
            yield from self._attributes(vars(outer))

    def _attributes(self, attributes: dict[str, Any]) -> Iterator[tuple[Any, Callable[[MethodType], None]]]:
        """Yield the attributes that the wrappers' code reads; `__wrapped__` is looked through even if it does not."""
        for key, value in list(attributes.items()):
            if key in self.read or (key == "__wrapped__" and not _stands_for(value, self.module, self.functions)):
                yield value, _Entry(attributes, key)


def _names(code: CodeType) -> set[str]:
    inner = (constant for constant in code.co_consts if isinstance(constant, CodeType))
    return set(code.co_names).union(*map(_names, inner))


def _filled(cell: CellType) -> bool:
    try:
        cell.cell_contents  # noqa: B018 (only reading tells an empty cell)
    except ValueError:
        return False
    return True


@dataclass(slots=True)
class _Entry:
    entries: dict[str, Any]
    key: str

    def __call__(self, forward: MethodType) -> None:
        self.entries[self.key] = forward


@dataclass(slots=True)
class _Cell:
    cell: CellType

    def __call__(self, forward: MethodType) -> None:
        self.cell.cell_contents = forward


@dataclass(slots=True)
class _Default:
    function: FunctionType
    key: int

    def __call__(self, forward: MethodType) -> None:
        defaults = list(self.function.__defaults__ or ())
        defaults[self.key] = forward
        self.function.__defaults__ = tuple(defaults)


@dataclass(slots=True)
class _Argument:
    """The function of a partial (key 0) or one of its arguments; its state can be set as unpickling does."""

    partial: partial[Any]
    key: int

    def __call__(self, forward: MethodType) -> None:
        parts = [self.partial.func, *self.partial.args]
        parts[self.key] = forward
        state = parts[0], tuple(parts[1:]), self.partial.keywords, vars(self.partial)
        self.partial.__setstate__(state)  # type: ignore[attr-defined]
