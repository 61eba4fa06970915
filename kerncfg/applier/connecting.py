"""Makes the layout of a fused kernel, and lets it read the members' tensors where they live."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager, nullcontext
from typing import TYPE_CHECKING, Any

import torch
from torch import nn

from kerncfg.applier.arguments import Unknown, arguments, names_of
from kerncfg.applier.bind import bound
from kerncfg.applier.contract import tensors
from kerncfg.applier.layouts import Scheme, Unfit, companion, scheme
from kerncfg.applier.stacking import Kept, Slot, Source, Stack, following, link, twin

if TYPE_CHECKING:
    from kerncfg.applier.converting import Converted
    from kerncfg.applier.groups import Parts

__all__ = ["Stacks", "around", "connect", "construct", "lay_out", "randomness", "stack_key"]

_CPU = torch.default_generator
_NOTHING = nullcontext()

# By the places of the parameters in it: the ids of their modules, and their names there.
Stacks = dict[tuple[tuple[int, str], ...], Stack]


def stack_key(slots: Sequence[Slot]) -> tuple[tuple[int, str], ...]:
    """Return what tells the stack of some parameters from others."""
    return tuple([(id(owner), name) for owner, name in slots])


def construct(code: Any, members: Sequence[nn.Module]) -> nn.Module:
    """Make the layout of a kernel; call it within `randomness`.

    Raises:
        Unfit: It cannot be made of these members.
    """
    cls: Any = companion(code)
    try:
        given: Any = arguments(cls, members)
        with torch.inference_mode(False) if torch.is_inference_mode_enabled() else _NOTHING:
            layout: nn.Module = cls(*members) if given is members else cls(**given)
            return layout
    except Unknown as name:
        raise Unfit(f"{cls.__name__} wants {name}, and what that was cannot be told from the module") from None
    except Exception as error:
        names = ", ".join(names_of(cls, members) or [])
        raise Unfit(f"{cls.__name__}({names}) raised {type(error).__name__}: {error}") from error


def lay_out(
    code: Any,
    layout: nn.Module,
    members: Sequence[nn.Module],
    paths: Sequence[str],
    root: nn.Module | None,
    every: Sequence[Parts] = (),
) -> Scheme:
    """Find out where the tensors of a layout come from; call it within `randomness`.

    `every` are the parts of each member, if they are known.

    Raises:
        Unfit: They cannot come from these members.
    """
    cls: Any = companion(code)
    try:
        return scheme(layout, members, names_of(cls, members) or [], paths, root, every)
    except Unfit as reason:
        raise Unfit(f"{cls.__name__}: {reason}") from None


@contextmanager
def randomness(members: Sequence[nn.Module]) -> Iterator[None]:
    """Put back the state of the random numbers that making layouts of members draws: `fork_rng`, without its cost."""
    devices: set[torch.device] = set()
    if torch.cuda.is_initialized():  # type: ignore[no-untyped-call]  # else no tensor is there
        devices = {tensor.device for member in members for tensor in tensors(member) if tensor.is_cuda}
    generators = [_CPU, *(torch.cuda.default_generators[device.index or 0] for device in devices)]
    before = [(generator, generator.get_state()) for generator in generators]
    try:
        yield
    finally:
        for generator, state in before:
            generator.set_state(state)


def connect(
    layout: nn.Module,
    found: Scheme,
    stacks: Stacks,
    converted: Sequence[Converted],
    members: Sequence[nn.Module],
) -> None:
    """Let a layout read every tensor where it lives."""
    first = members[0]
    sources: dict[str, Source] = {own: Kept(found.slots[stock]) for own, stock in found.kept.items()}
    for own, stocks in found.stacked.items():
        sources[own] = stacks[stack_key([found.slots[stock] for stock in stocks])]
    for one in converted:
        sources |= {own: home for own, home in zip(one.targets, one.readers(), strict=True)}
    mine = _mine(layout, found.inside)
    by_owner: dict[int, dict[str, Source]] = {}
    for own, source in sources.items():
        slot = found.own[own]
        by_owner.setdefault(id(slot.owner), {})[slot.name] = source
    for module in mine:
        if id(module) in by_owner:
            link(module, by_owner[id(module)], first)
        for name, child in module._modules.items():
            if child is not None and any(child is member for member in members):
                module._modules[name] = twin(child, first, _is_ours)
    following(mine, first)


def _mine(layout: nn.Module, inside: frozenset[int]) -> list[nn.Module]:
    """Return the modules that the layout made itself."""
    found, seen = [layout], {id(layout), *inside}
    for module in found:
        for child in module._modules.values():
            if child is not None and id(child) not in seen:
                seen.add(id(child))
                found.append(child)
    return found


def _is_ours(key: str) -> bool:
    return key.startswith("_kerncfg") or key in ("forward", "train", "eval", "__getstate__", "_apply")


def around(part: nn.Module) -> str | None:
    """Say what is on a module that a kernel would pass by: a hook, an adapter, a wrapped forward."""
    entries = part.__dict__
    if "forward" in entries and ((made := bound(part)) is None or entries["forward"] is not made.current):
        return "a forward set on the instance"
    if children := entries["_modules"]:
        if "base_layer" in children:
            return f"an adapter, {type(part).__qualname__}"
        if "parametrizations" in children:
            return "a parametrization"
    for name in _HOOKS:
        if entries.get(name):
            return "hooks"
    return None


_HOOKS = ("_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks")
