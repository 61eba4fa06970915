"""Tensors of a layout that are those of the members: read where they live, or stacked by rows in one memory.

The members stay in the model with their own parameters, so that names, optimizers, checkpoints and adapters find what
they know. The layout owns none of them: what it declared as a parameter is read, at each use, from the member that has
it. Stacked ones are a tensor whose rows the members' parameters are views of.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import nullcontext
from functools import cache
from typing import Any, NamedTuple, Protocol

import torch
from torch import nn

__all__ = ["Kept", "Slot", "Source", "Stack", "following", "link", "linked", "twin"]

_SOURCES = "_kerncfg_sources"
_FIRST = "_kerncfg_first"


class Slot(NamedTuple):
    """A place for a parameter or a buffer: the module that has it, and its name there."""

    owner: nn.Module
    name: str

    def get(self) -> torch.Tensor:
        """Return what is there now, whoever put it there."""
        found = self.owner._parameters.get(self.name)
        if found is None:
            found = getattr(self.owner, self.name)  # a buffer, or a wrapper's own way to hold parameters
        return found


class Source(Protocol):
    """Where a layout's tensor comes from."""

    def value(self) -> torch.Tensor:
        """Return the tensor as the kernel reads it."""


class Kept:
    """A tensor of a member under another name."""

    __slots__ = ("slot",)

    def __init__(self, slot: Slot) -> None:
        self.slot = slot

    def value(self) -> torch.Tensor:
        """Return the member's very tensor."""
        return self.slot.get()


class _Alias(torch.autograd.Function):
    """Several parameters as the one tensor whose rows they are: no copy forward, the gradient split backward."""

    @staticmethod
    def forward(ctx: Any, merged: torch.Tensor, *parts: torch.Tensor) -> torch.Tensor:
        ctx.rows = [part.shape[0] for part in parts]
        return merged.view_as(merged)

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        return (None, *torch.split(grad, ctx.rows))


class Stack:
    """Parameters that share one memory, row upon row: (n₁, …), (n₂, …) as (n₁ + n₂, …)."""

    __slots__ = ("merged", "offsets", "parts", "slots")

    def __init__(self, slots: Sequence[Slot]) -> None:
        self.slots = tuple(slots)
        self.merged: torch.Tensor | None = None
        self.parts: tuple[torch.Tensor, ...] = ()
        self.offsets: tuple[int, ...] = ()

    def current(self) -> tuple[torch.Tensor, ...]:
        """Return the parameters as the members have them now."""
        return tuple([slot.get() for slot in self.slots])

    def fits(self) -> bool:
        """Whether the parameters can lie in one memory at all: one dtype, device and row shape, row after row."""
        parts = self.current()
        first = parts[0]
        form = first.dtype, first.device, first.shape[1:]
        for part in parts:
            if type(part) is not nn.Parameter or (part.dtype, part.device, part.shape[1:]) != form:
                return False
            if not part.is_contiguous():  # else it would not come back as it lay
                return False
        return first.dim() > 0

    def join(self) -> None:
        """Move the parameters into one new memory; they stay the same objects."""
        parts = self.current()
        before = [part.data for part in parts]
        with torch.inference_mode(False) if torch.is_inference_mode_enabled() else nullcontext():
            merged = torch.cat(before)  # of data, so there are no gradients to turn off
            pieces = merged.split_with_sizes([part.shape[0] for part in parts])
            try:
                for part, piece in zip(parts, pieces, strict=True):
                    part.data = piece
            except BaseException:
                for part, data in zip(parts, before, strict=True):
                    part.data = data
                raise
        self.offsets = tuple([int(piece.storage_offset()) * piece.element_size() for piece in pieces])
        self.merged, self.parts = merged, parts

    def holds(self) -> bool:
        """Whether the members' parameters still lie in the merged memory."""
        return self.merged is not None and self._holds(self.merged, self.current())

    def _holds(self, merged: torch.Tensor, parts: Sequence[torch.Tensor]) -> bool:
        if any(part is not known for part, known in zip(parts, self.parts, strict=True)):
            return False
        if torch.compiler.is_compiling():  # an address cannot be traced; `.to()` and loading join anew before a trace
            return True
        start = merged.data_ptr()
        return all(
            part.data_ptr() == start + offset and part.dtype is merged.dtype
            for part, offset in zip(parts, self.offsets, strict=True)
        )

    def rejoin(self) -> None:
        """Join anew what a move, a cast or a load took apart; what cannot lie together now stays apart."""
        if not self.holds():
            self.merged = None
            if self.fits():
                self.join()

    def split(self) -> None:
        """Give each parameter that lies in the merged memory a memory of its own again."""
        if self.merged is None:
            return
        start = self.merged.data_ptr()
        with torch.inference_mode(False), torch.no_grad():
            for part, known, offset in zip(self.current(), self.parts, self.offsets, strict=True):
                if part is known and part.data_ptr() == start + offset:
                    part.data = part.data.clone()
        self.merged, self.parts = None, ()

    def value(self) -> torch.Tensor:
        """Return the stacked tensor; a copy, if something else took the parameters elsewhere meanwhile."""
        parts = self.current()
        merged = self.merged
        if merged is None or not self._holds(merged, parts):
            return torch.cat(parts)
        if torch.is_grad_enabled() and any(part.requires_grad for part in parts):
            stacked: torch.Tensor = _Alias.apply(merged, *parts)  # type: ignore[no-untyped-call]
            return stacked
        return merged


def _reader(name: str) -> property:
    def read(module: nn.Module) -> torch.Tensor:
        source: Source = module.__dict__[_SOURCES][name]
        return source.value()

    return property(read)


def _training(module: nn.Module) -> bool:
    first: nn.Module = module.__dict__[_FIRST]
    return first.training


def _stays(module: nn.Module, mode: bool) -> None:
    """The mode is the first member's."""


@cache
def _linked(cls: type[nn.Module], names: tuple[str, ...]) -> type[nn.Module]:
    """Return a class like `cls` whose modules read these tensors, and their mode, from elsewhere."""
    entries: dict[str, Any] = {name: _reader(name) for name in names}
    entries["training"] = property(_training, _stays)
    return type(cls.__name__, (cls,), {**entries, "__module__": cls.__module__, "__qualname__": cls.__qualname__})


def link(module: nn.Module, sources: Mapping[str, Source], first: nn.Module) -> None:
    """Let a module of a layout read tensors from `sources`, by name, and its mode from the first member."""
    for name in sources:
        module._parameters.pop(name, None)
        module._buffers.pop(name, None)
    linked(module, dict(sources), first)
    made = _linked(type(module), tuple(sorted(sources)))  # type: ignore[arg-type]  # a class is hashable
    object.__setattr__(module, "__class__", made)  # past that of modules, which takes 2 µs


def linked(module: nn.Module, sources: dict[str, Source], first: nn.Module) -> None:
    """Say where a module whose class reads elsewhere finds its tensors and its mode."""
    module.__dict__[_SOURCES] = sources
    module.__dict__[_FIRST] = first


def following(modules: Iterable[nn.Module], first: nn.Module) -> None:
    """Let modules of a layout that read nothing from elsewhere have the first member's mode all the same."""
    for module in modules:
        if _FIRST not in module.__dict__:
            link(module, {}, first)


def twin(member: nn.Module, first: nn.Module, drop: Callable[[str], bool]) -> nn.Module:
    """Return a module with a member's own parameters, buffers and children, that runs the forward of its class.

    A layout may hold a member and call it; the member itself runs the kernel by then.
    """
    made = object.__new__(type(member))
    made.__dict__.update({key: value for key, value in member.__dict__.items() if not drop(key)})
    link(made, {}, first)
    return made
