"""How the parameters of a fused kernel come from those of the members: what its layout declares, made definite.

A kernel `Name` has a companion `NameLayout(nn.Module)` in its module. Its constructor takes the member modules in order
and says, in one of three ways, which parameter of its own is which of theirs:

- the very tensor or module of a member, assigned: `self.down_proj = mlp.down_proj`;
- `conversion`, a map from a parameter of the layout to what it is made of: `"norm.weight"`, or a list of parameters
  that are stacked by rows; the first part is the constructor's name for the member, and may be left out where one
  member alone has such a parameter;
- `conversion_mapping`, transformers' list of `WeightRenaming` and `WeightConverter` over the keys of a checkpoint.

A layout of one module may instead take what that module's class takes, as transformers has it.

Whatever these leave open goes through `from_stock` and `to_stock`, two methods from and to maps of tensors by name.
"""

from __future__ import annotations

import copy
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol, runtime_checkable

import torch
from torch import nn

from kerncfg.applier.groups import Parts, named_parts
from kerncfg.applier.stacking import Slot

__all__ = ["Conversion", "Convertible", "Layout", "Scheme", "Unfit", "companion", "scheme"]

Tensors = Mapping[str, torch.Tensor]


class Layout(Protocol):
    """What a companion class may have beside its parameters; all of it is optional."""

    conversion: Mapping[str, str | Sequence[str]]
    conversion_mapping: Sequence[Any]


@runtime_checkable
class Convertible(Protocol):
    """A layout whose parameters are neither the members' own nor stacks of them."""

    def from_stock(self, tensors: Tensors) -> Tensors:
        """Return the layout's tensors, by their names in it, from the members', named `argument.path`."""

    def to_stock(self, tensors: Tensors) -> Tensors:
        """Return the members' tensors from the layout's."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Conversion:
    """Parameters of the layout that are made from parameters of members, and the way back; all by name."""

    sources: tuple[str, ...]
    targets: tuple[str, ...]
    forward: Callable[[Tensors], Tensors]
    back: Callable[[Tensors], Tensors]


@dataclass(slots=True, kw_only=True)
class Scheme:
    """Where each tensor of a layout comes from. Stock names are `argument.path`, own names paths in the layout."""

    slots: Mapping[str, Slot]  # every parameter and buffer of the members, by stock name
    own: Mapping[str, Slot]  # those of the layout, by own name
    kept: dict[str, str] = field(default_factory=dict)
    stacked: dict[str, tuple[str, ...]] = field(default_factory=dict)
    converted: list[Conversion] = field(default_factory=list)
    used: set[str] = field(default_factory=set)
    inside: frozenset[int] = frozenset()  # the ids of the members and of all in them
    held: frozenset[int] = frozenset()  # the ids of the layout and of all in it, members' modules among them

    def take(self, own: str, names: Sequence[str], *, stack: bool) -> None:
        """Note what a tensor of the layout is made of."""
        if stack:
            self.stacked[own] = tuple(names)
        else:
            self.kept[own] = names[0]
        self.used.update(names)


class Unfit(Exception):
    """A layout does not suit the members; the argument is the reason."""


def companion(code: Any) -> type[nn.Module] | None:
    """Return the layout class beside a kernel's class, in the module that defines it."""
    module = sys.modules.get(getattr(code, "__module__", ""))
    found = getattr(module, f"{getattr(code, '__name__', '')}Layout", None)
    return found if isinstance(found, type) and issubclass(found, nn.Module) else None


def scheme(
    layout: nn.Module,
    members: Sequence[nn.Module],
    names: Sequence[str],
    paths: Sequence[str],
    root: nn.Module | None,
    every: Sequence[Parts] = (),
) -> Scheme:
    """Find out where each parameter of a layout comes from; `every` are the parts of each member, if they are known.

    Raises:
        Unfit: One has no source, or a parameter of a member would go unused.
    """
    every = every or [named_parts(member) for member in members]
    inside = frozenset([id(part) for parts in every for _, part in parts])
    slots: dict[str, Slot] = {}
    for name, parts in zip(names, every, strict=True):
        for path, part in parts:
            where = f"{name}.{path}." if path else f"{name}."
            for tensors in (part._parameters, part._buffers):
                for key, value in tensors.items() if tensors else ():
                    if value is not None:
                        slots[where + key] = Slot(part, key)
    own = _own(layout, inside)
    held = frozenset([id(part) for _, part in named_parts(layout)])
    found = Scheme(slots=slots, own=own, inside=inside, held=held)
    _identical(own, found)
    declared = getattr(layout, "conversion", None) or {}
    if declared:
        _declared(declared, own, found)
    elif transforms := list(getattr(layout, "conversion_mapping", None) or ()):
        full = {stock: _full(stock, names, paths) for stock in slots}
        _transformed(copy.deepcopy(transforms), own, found, full, f"{paths[0]}.", root)
    _by_name(own, found, names[0])
    _rest(layout, own, found)
    return found


def _own(layout: nn.Module, inside: frozenset[int]) -> dict[str, Slot]:
    """Return the layout's own parameters and buffers, by path; modules of the members that it holds are theirs."""
    found: dict[str, Slot] = {}
    _add_own(layout, "", inside, found)
    return found


def _add_own(module: nn.Module, prefix: str, inside: frozenset[int], found: dict[str, Slot]) -> None:
    for tensors in (module._parameters, module._buffers):
        for key, value in tensors.items() if tensors else ():
            if value is not None:
                found[prefix + key] = Slot(module, key)
    for key, child in module._modules.items():
        if child is not None and id(child) not in inside:
            _add_own(child, f"{prefix}{key}.", inside, found)


def _identical(own: Mapping[str, Slot], found: Scheme) -> None:
    """Take the tensors and modules of members that the constructor assigned as they are."""
    stock = {id(slot.get()): name for name, slot in found.slots.items()}
    for name, slot in own.items():
        if (same := stock.get(id(slot.get()))) is not None:
            found.take(name, [same], stack=False)
    found.used.update([name for name, slot in found.slots.items() if id(slot.owner) in found.held])


def _declared(declared: Mapping[str, str | Sequence[str]], own: Mapping[str, Slot], found: Scheme) -> None:
    for name, said in declared.items():
        if name not in own:
            raise Unfit(f"its conversion names {name}, which it has not; it has {', '.join(own) or 'no parameter'}")
        sources = [_stock(one, found.slots) for one in ([said] if isinstance(said, str) else said)]
        found.take(name, sources, stack=not isinstance(said, str))


def _stock(said: str, slots: Mapping[str, Slot]) -> str:
    if said in slots:
        return said
    ends = [name for name in slots if name.partition(".")[2] == said]
    if len(ends) != 1:
        raise Unfit(f"its conversion names {said}, which {'several members have' if ends else 'no member has'}")
    return ends[0]


def _full(stock: str, names: Sequence[str], paths: Sequence[str]) -> str:
    """Return the checkpoint's key of a parameter of a member."""
    name, _, rest = stock.partition(".")
    return f"{paths[names.index(name)]}.{rest}"


def _transformed(
    transforms: Sequence[Any],
    own: Mapping[str, Slot],
    found: Scheme,
    full: Mapping[str, str],
    first: str,
    root: nn.Module | None,
) -> None:
    """Read a list of transformers' conversions: renamings are kept, concatenated rows stacked, the rest converted."""
    base = getattr(root, "base_model_prefix", "")
    renamings = [one for one in transforms if not hasattr(one, "operations")]
    converters = [one for one in transforms if hasattr(one, "operations")]
    for prefix in dict.fromkeys(["", f"{base}." if base else ""]):  # a bare model's keys lack the prefix
        gathered: dict[tuple[int, str], list[tuple[str, str, str]]] = {}
        for stock, key in full.items():
            if stock in found.used:
                continue
            renamed = prefix + key
            for one in renamings:
                renamed = one.rename_source_key(renamed)[0]
            between = renamed
            for place, one in enumerate(converters):
                renamed, pattern = one.rename_source_key(between)
                if pattern is not None:
                    gathered.setdefault((place, renamed), []).append((pattern, stock, between))
                    break
            else:
                name = renamed.removeprefix(prefix + first)
                if renamed != prefix + key and renamed.startswith(prefix + first) and name in own:
                    found.take(name, [stock], stack=False)
        for (place, target), parts in gathered.items():
            _converter(converters[place], target, parts, own, found, prefix + first, root)


def _converter(
    converter: Any,
    target: str,
    parts: list[tuple[str, str, str]],
    own: Mapping[str, Slot],
    found: Scheme,
    first: str,
    root: nn.Module | None,
) -> None:
    parts.sort(key=lambda part: list(converter.source_patterns).index(part[0]))
    operations = list(converter.operations)
    one_each = len({pattern for pattern, _, _ in parts}) == len(parts)
    if len(operations) == 1 and one_each and _is_rows(operations[0]) and target.removeprefix(first) in own:
        found.take(target.removeprefix(first), [stock for _, stock, _ in parts], stack=True)
        return
    config = getattr(root, "config", None)

    def forward(tensors: Tensors) -> Tensors:
        used = copy.deepcopy(converter)
        for pattern, stock, between in parts:
            used.add_tensor(target, between, pattern, tensors[stock])
        made = used.convert(target, model=root, config=config)
        return {key.removeprefix(first): _one(value) for key, value in made.items()}

    def back(tensors: Tensors) -> Tensors:
        used = converter.reverse_transform()
        named = {between: stock for _, stock, between in parts}
        renamed = ""
        for own_name, tensor in tensors.items():
            renamed, pattern = used.rename_source_key(first + own_name)
            used.add_tensor(renamed, first + own_name, pattern, tensor)
        made = used.convert(renamed, model=root, config=config)
        return {named[key]: _one(value) for key, value in made.items() if key in named}

    stocks = tuple(stock for _, stock, _ in parts)
    targets = tuple(forward({stock: found.slots[stock].get().detach() for stock in stocks}))
    found.converted.append(Conversion(sources=stocks, targets=targets, forward=forward, back=back))
    found.used.update(stocks)


def _is_rows(operation: Any) -> bool:
    """Whether an operation of transformers puts tensors below each other, and nothing else."""
    return (
        type(operation).__name__ == "Concatenate"
        and type(operation).__module__.startswith("transformers.")
        and operation.dim == 0
        and getattr(operation, "num_shards_attribute", None) is None
    )


def _one(value: Any) -> torch.Tensor:
    tensor: torch.Tensor = value[0] if isinstance(value, list | tuple) else value
    return tensor


def _by_name(own: Mapping[str, Slot], found: Scheme, first: str) -> None:
    """Take a parameter of the first member that the layout calls the same, as a checkpoint's key would."""
    for name in _open(own, found):
        if (stock := f"{first}.{name}") in found.slots and stock not in found.used:
            found.take(name, [stock], stack=False)


def _open(own: Iterable[str], found: Scheme) -> list[str]:
    converted = {target for one in found.converted for target in one.targets}
    return [name for name in own if name not in found.kept and name not in found.stacked and name not in converted]


def _rest(layout: nn.Module, own: Mapping[str, Slot], found: Scheme) -> None:
    """Give what is left over to the layout's own methods, or refuse it."""
    left = [name for name in _open(own, found) if own[name].name in own[name].owner._parameters]
    unused = [
        name for name, slot in found.slots.items() if name not in found.used and slot.name in slot.owner._parameters
    ]
    if (left or unused) and isinstance(layout, Convertible):
        found.converted.append(
            Conversion(sources=tuple(unused), targets=tuple(left), forward=layout.from_stock, back=layout.to_stock)
        )
        found.used.update(unused)
    elif left:
        raise Unfit(f"its {', '.join(left)} has no source: say in conversion what it is made of")
    elif unused:
        raise Unfit(f"it takes no account of {', '.join(unused)}")
