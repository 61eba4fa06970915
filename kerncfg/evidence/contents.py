"""What is in the values that a model passes around: tensors, plain values and containers, each by its place.

Containers are tuples, lists, mappings, dataclasses and objects with attributes, caches among them. What cannot be
looked into (generators, functions, locks) is opaque: nothing is known of it but its type.
"""

from __future__ import annotations

import copy
import dataclasses
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from enum import Enum
from pathlib import PurePath
from types import BuiltinFunctionType, FunctionType, MethodType, ModuleType
from typing import Any

import torch
from torch import nn

__all__ = [
    "UNSEEN",
    "Opaque",
    "Shell",
    "a_kind",
    "cloned",
    "contents",
    "copied",
    "dense",
    "equal",
    "foreign",
    "one_line",
    "same",
    "settled",
    "shape_of",
    "tensors_of",
]

# Objects that hold a program rather than data: never looked into, and never copied.
UNSEEN = (nn.Module, ModuleType, type, FunctionType, BuiltinFunctionType, MethodType)

_VALUES = (int, float, complex, str, bytes, type(None), type(...), slice, range, set, frozenset, Enum, PurePath)
_PLAIN = (*_VALUES, torch.dtype, torch.device, torch.layout, torch.memory_format)
_LONGEST = 300  # characters of an exception's text; compilers raise whole programs


@dataclasses.dataclass(frozen=True, slots=True)
class Shell:
    """A container without what is in it: its type, and the places of its parts."""

    kind: type
    keys: tuple[str, ...]

    def __str__(self) -> str:
        name = a_kind(self.kind)
        if not self.keys or self.keys[0].startswith("["):
            return f"{name} of {len(self.keys)}"
        return f"{name} of {', '.join(key.removeprefix('.') for key in self.keys)}"


@dataclasses.dataclass(frozen=True, slots=True)
class Opaque:
    """Something of which only the type is known."""

    kind: type

    def __str__(self) -> str:
        return a_kind(self.kind)


def a_kind(kind: type) -> str:
    """Return a type's name with its article."""
    return f"{'an' if kind.__name__[0] in 'aeiouAEIOU' else 'a'} {kind.__name__}"


def contents(value: Any, place: str = "", *, objects: bool = True) -> dict[str, Any]:
    """Return everything in a value by its place: tensors and plain values themselves, `Shell`s and `Opaque`s.

    The keys of mappings stand in their own order, and make no difference by it. Without `objects`, what is neither a
    builtin container nor a dataclass is opaque.
    """
    found: dict[str, Any] = {}
    for where, item, parts in _walk(value, place, objects, frozenset()):
        if parts is not None:
            keys = tuple(key for key, _ in parts)
            found[where] = Shell(type(item), tuple(sorted(keys)) if isinstance(item, Mapping) else keys)
        else:
            found[where] = _leaf(item)
    return found


def settled(parts: Mapping[str, Any]) -> dict[str, Any]:
    """Return `contents` whose tensors are detached clones: what happens later does not reach them."""
    return {place: part.detach().clone() if isinstance(part, torch.Tensor) else part for place, part in parts.items()}


def tensors_of(value: Any) -> list[torch.Tensor]:
    """Return the tensors in a value, in order."""
    return [item for _, item, _ in _walk(value, "", True, frozenset()) if isinstance(item, torch.Tensor)]


def cloned(value: Any) -> Any:
    """Return a copy whose tensors are detached clones; a wanted gradient stays wanted."""
    return copied(value)[0]


def copied(
    value: Any, change: Callable[[torch.Tensor], torch.Tensor] | None = None
) -> tuple[Any, tuple[tuple[str, str], ...]]:
    """Return a deep copy with each tensor changed, and place and type of what had to be shared with the original.

    What is one object stays one object. Modules are shared by design, and are not listed.
    """
    walked = list(_walk(value, "", True, frozenset()))  # held as long as their ids are used
    memo: dict[int, Any] = {}
    for _, item, _ in walked:
        if id(item) in memo:
            continue
        if isinstance(item, torch.Tensor):
            memo[id(item)] = (change or _clone)(item)
        elif isinstance(item, UNSEEN):
            memo[id(item)] = item
    try:
        return copy.deepcopy(value, dict(memo)), ()
    except BaseException as error:
        foreign(error)
        return _in_pieces(value, walked, memo)


def _in_pieces(
    value: Any, walked: list[tuple[str, Any, Any]], memo: dict[int, Any]
) -> tuple[Any, tuple[tuple[str, str], ...]]:
    """Copy from the inside out, sharing what refuses to be copied once its parts can be."""
    shared = []
    for place, item, _ in reversed(walked):
        if id(item) not in memo:
            try:
                copy.deepcopy(item, dict(memo))
            except BaseException as error:
                foreign(error)
                memo[id(item)] = item
                shared.append((place, a_kind(type(item))))
    return copy.deepcopy(value, memo), tuple(reversed(shared))


def equal(one: Any, other: Any) -> bool:
    """Whether two entries of `contents` are the same, bit for bit."""
    if isinstance(one, torch.Tensor) and isinstance(other, torch.Tensor):
        alike = one.dtype == other.dtype and one.device == other.device
        return alike and shape_of(one) == shape_of(other) and same(one, other)
    if type(one) is not type(other):
        return False
    return bool(one == other or (one != one and other != other))


def same(one: torch.Tensor, other: torch.Tensor) -> bool:
    """Whether two tensors of one shape hold the same values, NaN being equal to NaN; true where they hold none."""
    first, second = dense(one.detach()), dense(other.detach())
    if first is None or second is None:
        return first is second
    if first.shape != second.shape:
        return False
    if first.dtype != torch.complex32 and torch.equal(first, second):  # quicker, and nearly always the answer
        return True
    return bool(((first == second) | (first.isnan() & second.isnan())).all())


def dense(tensor: torch.Tensor) -> torch.Tensor | None:
    """Return a tensor's values in the ordinary layout, or `None` if it has none, on the meta device."""
    if tensor.is_meta:
        return None
    if tensor.is_nested:
        padded: torch.Tensor = torch.nested.to_padded_tensor(tensor, 0.0)
        return padded
    if tensor.is_quantized:
        return tensor.dequantize()
    return tensor if tensor.layout == torch.strided else tensor.to_dense()


def shape_of(tensor: torch.Tensor) -> str:
    """Return a shape as text: `2x8x64`."""
    if tensor.is_nested:
        return "nested"
    return "x".join(map(str, tensor.shape)) or "scalar"


def foreign(error: BaseException) -> None:
    """Raise a person's Ctrl-C again; whatever else foreign code raises, a run survives."""
    if isinstance(error, KeyboardInterrupt):
        raise error


def one_line(error: BaseException) -> str:
    """Return an exception's type and the first line of its text, shortened if it is very long."""
    try:
        said = str(error)
    except Exception as another:  # the text is foreign code, too
        said = f"its text cannot be had: {type(another).__name__}"
    lines = [line.strip() for line in said.splitlines() if line.strip()]
    text = f"{type(error).__name__}: {lines[0]}" if lines else type(error).__name__
    return text if len(text) <= _LONGEST else f"{text[: _LONGEST - 1]}…"


def _walk(
    value: Any, place: str, objects: bool, above: frozenset[int]
) -> Iterator[tuple[str, Any, list[tuple[str, Any]] | None]]:
    """Yield place, value and parts of everything, a container before its parts; a cycle is not entered twice."""
    parts = None if id(value) in above else _parts(value, objects)
    yield place, value, parts
    for key, part in parts or ():
        yield from _walk(part, place + key, objects, above | {id(value)})


def _parts(value: Any, objects: bool) -> list[tuple[str, Any]] | None:
    if isinstance(value, (torch.Tensor, *_PLAIN, *UNSEEN)) or _is_array(value):
        return None
    if isinstance(value, Mapping):
        return [(_key(key, number), part) for number, (key, part) in enumerate(value.items())]
    if isinstance(value, (tuple, list, deque)):
        names = getattr(value, "_fields", None)
        keys = [f".{name}" for name in names] if names else [f"[{number}]" for number in range(len(value))]
        return list(zip(keys, value, strict=True))
    if dataclasses.is_dataclass(value):
        fields = [field.name for field in dataclasses.fields(value)]
        return _attributes(value, [*fields, *getattr(value, "__dict__", ())])
    if not objects:
        return None
    slots = [name for kind in type(value).__mro__ for name in _slots(kind)]
    return _attributes(value, [*slots, *getattr(value, "__dict__", ())]) or None


def _attributes(value: Any, names: list[str]) -> list[tuple[str, Any]]:
    return [(f".{name}", getattr(value, name)) for name in dict.fromkeys(names) if hasattr(value, name)]


def _slots(kind: type) -> tuple[str, ...]:
    found = kind.__dict__.get("__slots__", ())
    names = (found,) if isinstance(found, str) else tuple(found)
    return tuple(name for name in names if not name.startswith("__"))


def _key(key: Any, number: int) -> str:
    if isinstance(key, str) and key.isidentifier():
        return f".{key}"
    return f"[{key!r}]" if isinstance(key, (str, int, float, tuple, Enum)) else f"[{number}]"


def _leaf(value: Any) -> Any:
    if isinstance(value, (torch.Tensor, *_PLAIN)):
        return value
    if _is_array(value):
        try:
            return torch.tensor(value)
        except (TypeError, RuntimeError):  # arrays of text or objects
            return Opaque(type(value))
    return Opaque(type(value))


def _is_array(value: Any) -> bool:
    return hasattr(type(value), "__array_interface__")


def _clone(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.detach().clone().requires_grad_(tensor.requires_grad)
