"""New parameters of a layout, made from those of the members, which leave the model for as long.

The new ones take the places of the old, so that optimizers made afterwards and `.to()` find them. Around saving and
loading the old ones come back, with the values of the new: a checkpoint holds what the unfused model's would.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import torch
from torch import nn

from kerncfg.applier.stacking import Kept, Slot

if TYPE_CHECKING:
    from kerncfg.applier.layouts import Conversion

__all__ = ["Converted", "drop_hooks"]

_HOOKS = ("_state_dict_pre_hooks", "_state_dict_hooks", "_load_state_dict_pre_hooks", "_load_state_dict_post_hooks")


class Converted:
    """The parameters of one conversion: the members' own, the layout's, and the places in the model they share."""

    __slots__ = ("homes", "layers", "new", "shapes", "slots", "sources", "stock", "targets", "ways")

    def __init__(self, conversion: Conversion, slots: Mapping[str, Slot]) -> None:
        self.sources = conversion.sources
        self.targets = conversion.targets
        self.slots = [slots[name] for name in conversion.sources]
        self.ways: tuple[Callable[..., Any], Callable[..., Any]] | None = (conversion.forward, conversion.back)
        self.shapes = [slot.get().shape for slot in self.slots]
        self.homes: list[Slot] = []
        self.stock: list[nn.Parameter] = []
        self.new: list[nn.Parameter] = []
        self.layers: list[tuple[nn.Module, list[str]]] = []  # each owner, and its parameters in their order

    def values(self) -> list[torch.Tensor]:
        """Return the new parameters' values, from what the members have now.

        Raises:
            LookupError: The conversion does not give one tensor for each of its targets.
        """
        return self._forward([slot.get().detach() for slot in self.slots])

    def _forward(self, tensors: Sequence[torch.Tensor]) -> list[torch.Tensor]:
        assert self.ways is not None
        with torch.inference_mode(False), torch.no_grad():
            made = self.ways[0](dict(zip(self.sources, tensors, strict=True)))
            return [_own(made[name], tensors) for name in self.targets]

    def back(self, tensors: Sequence[torch.Tensor]) -> list[torch.Tensor]:
        """Return the members' values from those of new parameters."""
        assert self.ways is not None
        with torch.inference_mode(False), torch.no_grad():
            made = self.ways[1](dict(zip(self.targets, tensors, strict=True)))
            return [_own(made[name], tensors) for name in self.sources]

    def install(self, values: Sequence[torch.Tensor]) -> None:
        """Put new parameters where the members' were; these keep their identity, and lose their memory."""
        stock = [slot.owner._parameters[slot.name] for slot in self.slots]
        trains = any(one.requires_grad for one in stock if one is not None)
        self.new = [nn.Parameter(value, requires_grad=trains) for value in values]
        self.stock = [one for one in stock if one is not None]
        self.homes = self._homes()
        self.layers = [(owner, list(owner._parameters)) for owner in self._owners()]
        for owner, _ in self.layers:
            self._show_new(owner)
            self._hook(owner)
        for one in self.stock:
            one.data = one.data.new_empty(0)

    def remove(self) -> None:
        """Put the members' parameters back, with the values that the new ones have by now."""
        for owner, _ in self.layers:
            drop_hooks(owner, self)
        self._look()
        for one, value in zip(self.stock, self.back([one.detach() for one in self.new]), strict=True):
            one.data = value
        for owner, _ in self.layers:
            self._show_stock(owner)

    def readers(self) -> list[Kept]:
        """Return where the layout reads each new parameter: its place in the model."""
        return [Kept(home) for home in self._homes()]

    def _homes(self) -> list[Slot]:
        """Return the places of the new parameters: those of the old, and more beside the first if need be."""
        first, name = self.slots[0]
        extra = range(len(self.slots), len(self.targets))
        return [*self.slots[: len(self.targets)], *(Slot(first, f"{name}_{place}") for place in extra)]

    def show(self) -> None:
        """Show the new parameters at all their places."""
        for owner, _ in self.layers:
            self.hide(owner)

    def _owners(self) -> Iterator[nn.Module]:
        seen = set()
        for slot in self.slots:
            if id(slot.owner) not in seen:
                seen.add(id(slot.owner))
                yield slot.owner

    def _show_new(self, owner: nn.Module) -> None:
        for slot in self.slots:
            if slot.owner is owner:
                owner._parameters.pop(slot.name, None)
        for slot, one in zip(self.homes, self.new, strict=True):
            if slot.owner is owner:
                owner._parameters[slot.name] = one

    def _show_stock(self, owner: nn.Module) -> None:
        """Put an owner's parameters back, all in the order that they had."""
        entries = owner._parameters
        own = {id(one) for one in self.new}
        others = {key: value for key, value in entries.items() if id(value) not in own}
        mine = {slot.name: one for slot, one in zip(self.slots, self.stock, strict=True) if slot.owner is owner}
        order = next(order for known, order in self.layers if known is owner)
        entries.clear()
        entries.update(
            {key: mine[key] if key in mine else others[key] for key in order if key in mine or key in others}
        )
        entries.update({key: value for key, value in others.items() if key not in entries})

    def _hook(self, owner: nn.Module) -> None:
        for kind, hook in zip(_HOOKS, (_Expose(self), _Hide(self), _Open(self, owner), _Load(self)), strict=True):
            hooks = owner.__dict__[kind]
            hooks[_key(hooks)] = hook

    def expose(self, owner: nn.Module) -> None:
        """Show an owner's stock parameters, with the values of now."""
        self._look()
        values = self.back([one.detach() for one in self.new])
        for slot, one, value in zip(self.slots, self.stock, values, strict=True):
            if slot.owner is owner:
                one.data = value
        self._show_stock(owner)

    def _look(self) -> None:
        """See whether something put other parameters where the new ones were, as a move may."""
        stock = {id(one) for one in self.stock}
        there = [slot.owner._parameters.get(slot.name) for slot in self.homes]
        self.new = [
            one if found is None or id(found) in stock else found for found, one in zip(there, self.new, strict=True)
        ]

    def blank(self) -> None:
        """Show stock parameters of the right form with any values, so that a copy's layout can be made."""
        for one, shape, new in zip(self.stock, self.shapes, self._alike(), strict=True):
            one.data = new.data.new_empty(shape)
        for owner, _ in self.layers:
            self._show_stock(owner)

    def _alike(self) -> list[nn.Parameter]:
        return [self.new[0]] * len(self.stock)

    def hide(self, owner: nn.Module) -> None:
        """Show the new parameters again."""
        self._show_new(owner)
        for slot, one in zip(self.slots, self.stock, strict=True):
            if slot.owner is owner:
                one.data = one.data.new_empty(0)

    def load(self, owner: nn.Module) -> None:
        """Take over what was loaded into an owner's stock parameters, or put there instead of them."""
        known = self.back([one.detach() for one in self.new])
        for place, slot in enumerate(self.slots):
            if slot.owner is owner and (found := owner._parameters.get(slot.name)) is not None:
                self.stock[place] = found
                known[place] = found.detach()
        values = self._forward(known)
        with torch.no_grad():
            for one, value in zip(self.new, values, strict=True):
                if (one.shape, one.dtype, one.device) == (value.shape, value.dtype, value.device):
                    one.copy_(value)
                else:
                    one.data = value
        self.hide(owner)

    def __getstate__(self) -> dict[str, Any]:
        # The ways are methods of a layout, which a copy makes anew.
        return {key: getattr(self, key) for key in self.__slots__ if key != "ways"}

    def __setstate__(self, state: dict[str, Any]) -> None:
        for key, value in state.items():
            setattr(self, key, value)
        self.ways = None


def _own(value: torch.Tensor, given: Sequence[torch.Tensor]) -> torch.Tensor:
    """Return a tensor with memory of its own: a conversion may return views, of what it was given or of each other."""
    value = value.detach()
    taken = {one.untyped_storage()._cdata for one in given}
    memory = value.untyped_storage()
    return value.clone() if memory._cdata in taken or memory.nbytes() > value.nbytes else value


def _key(hooks: Mapping[int, Any]) -> int:
    """Return a key that no hook has; PyTorch's own come from a counter that starts at 0."""
    return min([0, *hooks]) - 1


class _Hook:
    __slots__ = ("converted", "owner", "with_module")

    def __init__(self, converted: Converted, owner: nn.Module | None = None) -> None:
        self.converted = converted
        self.owner = owner
        self.with_module = False


class _Expose(_Hook):
    def __call__(self, module: nn.Module, prefix: str, keep_vars: bool) -> None:
        self.converted.expose(module)


class _Hide(_Hook):
    def __call__(self, module: nn.Module, state: dict[str, Any], prefix: str, metadata: Any) -> None:
        for slot in self.converted.slots:  # the memory of what was handed out stays with it
            if slot.owner is module and isinstance(found := state.get(prefix + slot.name), nn.Parameter):
                state[prefix + slot.name] = nn.Parameter(found.data, requires_grad=found.requires_grad)
        self.converted.hide(module)


class _Open(_Hook):
    def __call__(self, *arguments: Any) -> None:
        assert self.owner is not None
        self.converted.expose(self.owner)


class _Load(_Hook):
    def __call__(self, module: nn.Module, keys: Any) -> None:
        self.converted.load(module)


def drop_hooks(owner: nn.Module, converted: Converted) -> None:
    """Take the hooks of one conversion off a module."""
    for kind in _HOOKS:
        hooks = owner.__dict__[kind]
        for key in [key for key, hook in hooks.items() if isinstance(hook, _Hook) and hook.converted is converted]:
            del hooks[key]
