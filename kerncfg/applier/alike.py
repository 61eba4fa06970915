"""Layouts of groups that are alike: what the first one's constructor made serves for the others, on their own tensors.

A model of a hundred layers has a hundred groups of one make. To construct a layout and to find out where its tensors
come from takes most of what a fusion costs, and gives the same each time, as far as the constructor looks at nothing
but what is compared here: classes, names, numbers and texts of the members, and the form of their tensors. So the first
construction is watched. Where it looked at the values of a tensor, or made something that cannot be told to be the same
for another group, each group gets a construction of its own.
"""

from __future__ import annotations

import inspect
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from types import NoneType
from typing import TYPE_CHECKING, Any

import torch
from torch import nn
from torch.overrides import TorchFunctionMode

from kerncfg.applier.connecting import around
from kerncfg.applier.contract import tensors
from kerncfg.applier.stacking import Kept, Slot, Source, Stack, linked

if TYPE_CHECKING:
    from kerncfg.applier.groups import Group
    from kerncfg.applier.layouts import Scheme

__all__ = ["Make", "learn", "watched"]

_PLAIN = (bool, int, float, complex, str, bytes, NoneType, torch.dtype, torch.device)
_EVERY = nn.Module().__dict__  # what every module has
_KEPT = {"_parameters", "_buffers", "_modules"}
# What a construction may ask of a member's tensor: its form, which is compared; `register_parameter` wants `grad_fn`.
_ASKED = ("shape", "dtype", "device", "requires_grad", "ndim", "is_meta", "grad_fn")
_FORM: set[Any] = {
    *(inspect.getattr_static(torch.Tensor, name).__get__ for name in _ASKED),
    *(getattr(torch.Tensor, name) for name in ("size", "dim", "numel", "is_floating_point", "element_size")),
    *(torch.Tensor.__len__, torch.numel, torch.is_floating_point),
}


class _Watch(TorchFunctionMode):
    """Notes whether anything but the form of some tensors is looked at, by themselves or by others in their memory."""

    def __init__(self, memory: set[int | None]) -> None:
        super().__init__()
        self.looked = False
        self._memory = memory

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        given = [*args, *(kwargs or {}).values()]
        given += [one for value in given if isinstance(value, list | tuple) for one in value]
        if func not in _FORM and not self._memory.isdisjoint(map(_memory, given)):
            self.looked = True
        return func(*args, **(kwargs or {}))


def _memory(value: Any) -> int | None:
    return value.untyped_storage()._cdata if isinstance(value, torch.Tensor) else None


@contextmanager
def watched(members: Sequence[nn.Module]) -> Iterator[_Watch]:
    """Watch for as long as a `with` lasts whether more than the form of the members' tensors is looked at."""
    with _Watch({_memory(tensor) for member in members for tensor in tensors(member)}) as watch:
        yield watch


@dataclass(frozen=True, slots=True)
class _Part:
    """What one module of the members is, as far as a constructor can see it."""

    name: str
    cls: type
    keys: frozenset[str]
    children: tuple[str, ...]
    values: tuple[tuple[str, Any], ...]
    tensors: tuple[tuple[str, tuple[tuple[str, Any], ...]], ...]  # of parameters and of buffers, name and form
    passed: bool  # whether the kernel passes by what is around it

    @classmethod
    def of(cls, name: str, part: nn.Module, *, passed: bool) -> _Part:
        entries = part.__dict__
        return cls(
            name=name,
            cls=type(part),
            keys=frozenset(entries),
            children=tuple(entries["_modules"]),
            values=tuple([(key, value) for key, value in entries.items() if key not in _EVERY or key == "training"]),
            tensors=tuple(
                [(key, tuple([(name, _form(one)) for name, one in entries[key].items()])) for key in _TENSORS]
            ),
            passed=passed,
        )

    def fits(self, name: str, part: nn.Module, tied: frozenset[int]) -> bool:
        """Whether another module is the same to a constructor, and nothing is around it that would be passed by."""
        entries = part.__dict__
        if name != self.name or type(part) is not self.cls or entries.keys() != self.keys:
            return False
        if tuple(entries["_modules"]) != self.children or (self.passed and around(part) is not None):
            return False
        for key, known in self.values:
            value = entries[key]
            if value is not known and not (type(value) is type(known) and value == known and _is_plain(known)):
                return False
        for key, forms in self.tensors:
            own = entries[key]
            if len(own) != len(forms):
                return False
            for (named, form), (other, tensor) in zip(forms, own.items(), strict=True):
                if named != other or id(tensor) in tied:
                    return False
                if form is None or tensor is None:
                    if form is not tensor:
                        return False
                elif (type(tensor), tensor.shape, tensor.dtype, tensor.device, tensor.requires_grad) != form:
                    return False
        return True


_TENSORS = ("_parameters", "_buffers")


def _form(tensor: torch.Tensor | None) -> Any:
    if tensor is None:
        return None
    return type(tensor), tensor.shape, tensor.dtype, tensor.device, tensor.requires_grad


def _is_plain(value: Any) -> bool:
    return type(value) in _PLAIN or (type(value) in (tuple, torch.Size) and all(map(_is_plain, value)))


def _is_written(value: Any) -> bool:
    """Whether a value is plain, or a list or map of such, so that it can be written once more."""
    if type(value) is list:
        return all(map(_is_written, value))
    if type(value) is dict:
        return all(_is_plain(key) and _is_written(one) for key, one in value.items())
    return _is_plain(value)


def _again(value: Any) -> Any:
    if type(value) is list:
        return [_again(one) for one in value]
    if isinstance(value, dict):
        return type(value)([(key, _again(one)) for key, one in value.items()])
    return value


_Place = tuple[int, str]  # a part of the members, by its place among all of them, and a tensor's name there


@dataclass(frozen=True, slots=True, kw_only=True)
class Make:
    """What a group's layout was made of, by places in the group."""

    parts: tuple[_Part, ...]
    cls: type[nn.Module]
    entries: Mapping[str, Any]
    empty: tuple[tuple[str, type], ...]  # the entries that are empty lists, maps and sets
    written: tuple[str, ...]  # those that are lists or maps with something in them
    children: tuple[tuple[str, int | None], ...]
    kept: tuple[tuple[str, _Place], ...]
    stacked: tuple[tuple[str, tuple[_Place, ...]], ...]

    def fits(self, group: Group, tied: frozenset[int]) -> list[nn.Module] | None:
        """Return all parts of a group that is alike; `None` of one that is not."""
        flat = [named for parts in group.parts for named in parts]
        if len(flat) != len(self.parts):
            return None
        for known, (name, part) in zip(self.parts, flat, strict=True):
            if not known.fits(name, part, tied):
                return None
        return [part for _, part in flat]

    def stacks(self, parts: Sequence[nn.Module]) -> dict[str, Stack]:
        """Return the stacks of the parts of a group, by the names of the layout's tensors."""
        return {own: Stack([Slot(parts[place], name) for place, name in places]) for own, places in self.stacked}

    def layout(self, parts: Sequence[nn.Module], stacks: Mapping[str, Stack]) -> nn.Module:
        """Return a layout that reads the tensors of the parts of a group."""
        made = object.__new__(self.cls)
        entries = made.__dict__
        entries.update(self.entries)
        for key, kind in self.empty:
            entries[key] = kind()
        for key in self.written:
            entries[key] = _again(entries[key])
        entries["_modules"] = {name: None if place is None else parts[place] for name, place in self.children}
        sources: dict[str, Source] = {own: Kept(Slot(parts[place], name)) for own, (place, name) in self.kept}
        sources.update(stacks)
        linked(made, sources, parts[0])
        return made


def learn(group: Group, layout: nn.Module, found: Scheme) -> Make | None:
    """Return what a layout, which reads its tensors already, was made of; `None` if another cannot be made like it.

    That is so of one with modules or buffers of its own, with new parameters, or with what is neither text nor number.
    """
    flat = [named for parts in group.parts for named in parts]
    places = {id(part): place for place, (_, part) in enumerate(flat)}
    entries = layout.__dict__
    children = [(name, child) for name, child in layout._modules.items()]
    written = {key: value for key, value in entries.items() if key not in _KEPT and not _is_ours(key)}
    if (
        found.converted
        or len(places) != len(flat)
        or sum(len(part._modules) for _, part in flat) != len(flat) - len(group.modules)  # one twice, or `None`
        or any(child is not None and id(child) not in places for _, child in children)
        or any(one is not None for held in (layout._parameters, layout._buffers) for one in held.values())
        or not all(_is_bare(value) for value in written.values())
    ):
        return None

    def place(stock: str) -> _Place:
        owner, name = found.slots[stock]
        return places[id(owner)], name

    full = [key for key, value in written.items() if isinstance(value, list | dict) and value]
    full += [key for key in _TENSORS if entries[key]]
    empty = [(key, type(value)) for key, value in entries.items() if isinstance(value, list | dict | set) and not value]
    return Make(
        parts=tuple([_Part.of(name, part, passed=not name or id(part) not in found.held) for name, part in flat]),
        cls=type(layout),
        entries={key: entries[key] for key in (*written, *_TENSORS)},
        empty=tuple(one for one in empty if one[0] != "_modules" and not _is_ours(one[0])),
        written=tuple(full),
        children=tuple([(name, None if child is None else places[id(child)]) for name, child in children]),
        kept=tuple([(own, place(stock)) for own, stock in found.kept.items()]),
        stacked=tuple([(own, tuple(map(place, stocks))) for own, stocks in found.stacked.items()]),
    )


def _is_bare(value: Any) -> bool:
    return _is_written(value) or (isinstance(value, dict | set) and not value)


def _is_ours(key: str) -> bool:
    return key.startswith("_kerncfg")
