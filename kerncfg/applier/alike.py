"""Groups that are alike: where the tensors of the first one's layout come from holds for the layouts of the others.

A model of a hundred layers has a hundred groups of one make. Every group gets a layout that its constructor made of its
own members, since nobody can tell what a constructor looks at: a clock, a counter, an attribute of a parameter. What is
not found out again is where the layout's tensors come from. That follows from the names of tensors on both sides, from
which of them are the same objects, from the modules that the layout holds, and from what it declares; all of these are
compared. What depends on more than that, as conversions do, is found out for each group.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch import nn

from kerncfg.applier.connecting import around
from kerncfg.applier.stacking import Kept, Slot, Stack

if TYPE_CHECKING:
    from kerncfg.applier.groups import Group, Parts
    from kerncfg.applier.layouts import Scheme

__all__ = ["Make", "learn"]

_HELD = type(nn.Module()._parameters)  # what a module has its tensors in, unless something wraps it


@dataclass(frozen=True, slots=True)
class _Part:
    """What of one module of the members decides where a layout's tensors come from."""

    name: str
    cls: type
    children: tuple[str, ...]
    parameters: tuple[str, ...]  # the names of all, and of those that are `None`
    absent: tuple[str, ...]
    passed: bool  # whether the kernel passes by what is around it

    @classmethod
    def of(cls, name: str, part: nn.Module, *, passed: bool) -> _Part:
        absent = tuple([own for own, one in part._parameters.items() if one is None])
        return cls(name, type(part), tuple(part._modules), tuple(part._parameters), absent, passed)

    def tensors(self, name: str, part: nn.Module) -> Sequence[torch.Tensor] | None:
        """Return the parameters of another module if it is the same, and nothing passed by is around it."""
        entries = part.__dict__
        held = entries["_parameters"]
        if (
            name != self.name
            or type(part) is not self.cls
            or tuple(entries["_modules"]) != self.children
            or entries["_buffers"]
            or type(held) is not _HELD
            or tuple(held) != self.parameters
            or (self.passed and around(part) is not None)
        ):
            return None
        for own in self.absent:
            if held[own] is not None:
                return None
        found = [one for one in held.values() if one is not None]
        return found if len(found) + len(self.absent) == len(self.parameters) else None


def _there(held: Mapping[str, Any]) -> tuple[str, ...]:
    return tuple([name for name, one in held.items() if one is not None])


_Place = tuple[int, str]  # a part of the members, by its place among all of them, and a tensor's name there


@dataclass(frozen=True, slots=True, kw_only=True)
class Make:
    """Where the tensors of a group's layout come from, by places in the group."""

    parts: tuple[_Part, ...]
    count: int  # of the members' parameters
    cls: type[nn.Module]
    parameters: tuple[str, ...]  # of the layout
    buffers: tuple[str, ...]
    children: tuple[tuple[str, int | None], ...]
    declared: Any
    same: Mapping[str, _Place]  # the parameters of the layout that are the members' own
    kept: Mapping[str, _Place]  # these, and others that a declaration or their name makes so
    stacked: Mapping[str, tuple[_Place, ...]]

    def sources(self, layout: nn.Module, group: Group, tied: frozenset[int]) -> dict[str, Kept | Stack] | None:
        """Return what a layout reads if its tensors come from the same places, and those suit it; else `None`."""
        flat = [named for parts in group.parts for named in parts]
        if len(flat) != len(self.parts) or len(group.inside) != len(flat):
            return None
        theirs: set[int] = set()
        for known, (name, part) in zip(self.parts, flat, strict=True):
            if (found := known.tensors(name, part)) is None:
                return None
            theirs.update(map(id, found))
        if len(theirs) != self.count or not self._is_made_of(layout, flat, theirs):
            return None
        own = layout._parameters
        made: dict[str, Kept | Stack] = {}
        for name, (place, source) in self.kept.items():
            kept = made[name] = Kept(Slot(flat[place][1], source))
            if name not in self.same and _shape(own, name) != kept.value().shape:
                return None
        for name, places in self.stacked.items():
            stack = made[name] = Stack([Slot(flat[place][1], source) for place, source in places])
            pieces = stack.current()
            if not stack.fits() or not tied.isdisjoint(map(id, pieces)):
                return None
            if _shape(own, name) != (sum([piece.shape[0] for piece in pieces]), *pieces[0].shape[1:]):
                return None
        return made

    def _is_made_of(self, layout: nn.Module, flat: Parts, theirs: set[int]) -> bool:
        """Whether a layout has the same tensors, modules and declaration, and the same ones are the members'."""
        entries = layout.__dict__
        children, own, buffers = entries["_modules"], entries["_parameters"], entries["_buffers"]
        if (
            type(layout) is not self.cls
            or _there(own) != self.parameters
            or _there(buffers) != self.buffers
            or len(children) != len(self.children)
            or _declared(layout) != self.declared
        ):
            return False
        for (known, place), (name, child) in zip(self.children, children.items(), strict=True):
            if name != known or child is not (None if place is None else flat[place][1]):
                return False
        for name in self.parameters:
            if (at := self.same.get(name)) is not None:
                if own[name] is not flat[at[0]][1]._parameters[at[1]]:
                    return False
            elif id(own[name]) in theirs:
                return False
        return theirs.isdisjoint(map(id, buffers.values()))


def _shape(held: Mapping[str, Any], name: str) -> torch.Size:
    shape: torch.Size = held[name].shape
    return shape


def learn(group: Group, layout: nn.Module, found: Scheme) -> Make | None:
    """Return where the tensors of a layout, which is not linked yet, come from; `None` if that cannot be compared.

    That is so of one with conversions or with modules of its own, and of members that have buffers or share a part.
    """
    flat = [named for parts in group.parts for named in parts]
    theirs = {id(slot.get()) for slot in found.slots.values()}
    places = {id(part): place for place, (_, part) in enumerate(flat)}
    inner = places.keys() - {id(member) for member in group.modules}
    children = list(layout._modules.items())
    declared = _declared(layout)
    unlike = (
        found.converted
        or declared is None
        or len(places) != len(flat)
        or sum(len(part._modules) for _, part in flat) != len(flat) - len(group.modules)  # one twice, or `None`
        or any(part._buffers or type(part._parameters) is not _HELD for _, part in flat)
        or any(child is not None and id(child) not in inner for _, child in children)
        or type(layout._parameters) is not _HELD
        or any(layout._parameters.get(own) is None for own in (*found.kept, *found.stacked))
        or len(theirs) != len(found.slots)
    )
    if unlike:
        return None

    def place(stock: str) -> _Place:
        owner, name = found.slots[stock]
        return places[id(owner)], name

    kept = {own: place(stock) for own, stock in found.kept.items()}
    made = Make(
        parts=tuple([_Part.of(name, part, passed=not name or id(part) not in found.held) for name, part in flat]),
        count=len(found.slots),
        cls=type(layout),
        parameters=_there(layout._parameters),
        buffers=_there(layout._buffers),
        children=tuple([(name, None if child is None else places[id(child)]) for name, child in children]),
        declared=declared,
        same={own: at for own, at in kept.items() if id(layout._parameters[own]) in theirs},
        kept=kept,
        stacked={own: tuple(map(place, stocks)) for own, stocks in found.stacked.items()},
    )
    return made if made._is_made_of(layout, flat, theirs) else None


def _declared(layout: nn.Module) -> tuple[Any, ...] | None:
    """Return what a layout says of its tensors as text; `None` if it says it in another way than a map of names."""
    declared = getattr(layout, "conversion", None)
    if type(declared) is not dict or not declared:
        return () if declared is None and getattr(layout, "conversion_mapping", None) is None else None
    said: list[Any] = []
    for name, sources in declared.items():
        listed = type(sources) in (list, tuple)
        if type(name) is not str or not all([type(one) is str for one in (sources if listed else [sources])]):
            return None
        said.append((name, tuple(sources) if listed else sources))
    return tuple(said)
