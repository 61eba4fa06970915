"""What a layout's constructor is called with: the member modules, or what its one member was made of.

A layout of one module may, in transformers' convention, take the arguments of that module's class in place of the
module. A module does not remember them, so they are found where its class puts them: one is made of marked values on
the meta device, and the places where the marks turn up are read in the member.
"""

from __future__ import annotations

import inspect
from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import Any

import torch
from torch import nn

__all__ = ["Unknown", "arguments", "names_of"]

_WHOLE = (7919, 104729, 7877, 6959, 5501, 4919)  # primes that no layer has as a size
_FRACTION = 0.00012345


class Unknown(Exception):
    """What an argument was cannot be told from the module; the value is the argument's name."""


def names_of(layout: type[nn.Module], members: Sequence[nn.Module]) -> list[str] | None:
    """Return the names by which a layout's constructor calls its members; `None` if it cannot take them."""
    return _names(layout, tuple(map(type, members)))  # type: ignore[arg-type]  # a class is hashable


@lru_cache(maxsize=256)
def _names(layout: type[nn.Module], members: tuple[type, ...]) -> list[str] | None:
    if _remakes(layout, members):  # type: ignore[arg-type]
        return ["module"]
    try:
        signature = inspect.signature(layout)
        signature.bind(*members)
    except (TypeError, ValueError):
        return None
    names = [
        name
        for name, parameter in signature.parameters.items()
        if parameter.kind in (parameter.POSITIONAL_ONLY, parameter.POSITIONAL_OR_KEYWORD)
    ]
    return names[: len(members)] + [f"member{place}" for place in range(len(names), len(members))]


def arguments(layout: type[nn.Module], members: Sequence[nn.Module]) -> Mapping[str, Any] | Sequence[Any]:
    """Return what to call a layout's constructor with.

    Raises:
        Unknown: It wants what its member was made of, and that cannot be told.
    """
    if not _remakes(layout, tuple(map(type, members))):  # type: ignore[arg-type]
        return members
    (member,) = members
    marked = _marks(type(member))
    probe = _probe(type(member), marked)
    found = {}
    for name, parameter in inspect.signature(layout).parameters.items():
        if hasattr(member, name):
            found[name] = getattr(member, name)
        elif probe is not None and (place := _place(probe, marked.get(name))) is not None:
            found[name] = _at(member, place)
        elif parameter.default is parameter.empty or name in marked:
            raise Unknown(name)
    return found


@lru_cache(maxsize=256)
def _remakes(layout: type[nn.Module], members: tuple[type, ...]) -> bool:
    """Whether a layout of one module takes the arguments of that module's class."""
    if len(members) != 1:
        return False
    try:
        mine = inspect.signature(layout).parameters
        theirs = inspect.signature(members[0]).parameters
    except (TypeError, ValueError):
        return False
    return bool(mine) and set(mine) <= set(theirs)


def _marks(cls: type[nn.Module]) -> dict[str, Any]:
    """Return a value for each argument of a class that no other has; what takes neither number stays out."""
    whole = iter(_WHOLE)
    marks: dict[str, Any] = {}
    for name, parameter in inspect.signature(cls).parameters.items():
        kind = type(parameter.default)
        if kind is float or "float" in str(parameter.annotation):
            marks[name] = _FRACTION * (len(marks) + 1)
        elif kind is int or parameter.default is parameter.empty:
            marks[name] = next(whole, None)
    return marks


def _probe(cls: type[nn.Module], marked: Mapping[str, Any]) -> nn.Module | None:
    try:
        with torch.device("meta"):
            return cls(**marked)
    except Exception:  # a class that cannot be made of marks only says nothing of where its arguments go
        return None


def _place(probe: nn.Module, mark: Any) -> tuple[str, int | None] | None:
    """Return where a mark turned up: an attribute, or a dimension of a parameter."""
    if mark is None:
        return None
    for name, value in vars(probe).items():
        if type(value) is type(mark) and value == mark:
            return name, None
    for name, parameter in probe.named_parameters(recurse=False):
        if mark in parameter.shape:
            return name, list(parameter.shape).index(mark)
    return None


def _at(member: nn.Module, place: tuple[str, int | None]) -> Any:
    name, dimension = place
    found = getattr(member, name)
    return found if dimension is None else found.shape[dimension]
