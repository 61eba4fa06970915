"""Private configurations: which modules get one, what they held before, and how copies and files keep both."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from copy import deepcopy
from dataclasses import dataclass, field
from typing import Any

from torch import nn

from kerncfg.applier.adapters.attention import BUILT_IN, Part, Registries, is_config
from kerncfg.applier.adapters.attention_names import Lease, kind_of
from kerncfg.applier.adapters.attention_source import SETTING
from kerncfg.applier.adapters.torch import walk
from kerncfg.errors import ApplyError

__all__ = ["ENTRY", "Edits", "Held", "Swap", "edits"]

ENTRY = "_kerncfg_attention"
_OWN = frozenset(nn.Module().__dict__)  # what every module has; to ask each of its values would take most of the time
_INTERNAL = f"{SETTING}_internal"


@dataclass(slots=True, eq=False)
class Swap:
    """One configuration and the private copy that takes its place; `base` is what the copy held at first."""

    original: Any
    private: Any
    base: dict[str, Any]

    @classmethod
    def of(cls, original: Any) -> Swap:
        """Make a shallow copy of a configuration, past what its class does when it is built."""
        private = object.__new__(type(original))
        private.__dict__.update(original.__dict__)
        return cls(original, private, {})

    def settle(self) -> None:
        """Remember what the copy holds, now that it is as it shall be."""
        self.base = dict(self.private.__dict__)

    def give_back(self) -> None:
        """Write to the first configuration what was set on the copy in the meantime; there it would have gone."""
        for key, value in self.private.__dict__.items():
            if key not in (SETTING, _INTERNAL) and self.base.get(key, self) is not value:
                self.original.__dict__[key] = self.base[key] = value


class Held:
    """What was done to one module, by which apply: the configurations it holds now, by attribute, and their name."""

    __slots__ = ("below", "leases", "owner", "swaps")

    def __init__(
        self, swaps: dict[str, Swap], leases: tuple[Lease, ...], below: Held | None = None, owner: Any = None
    ) -> None:
        self.swaps, self.leases, self.below, self.owner = swaps, leases, below, owner
        for lease in leases:
            lease.holds += 1

    @staticmethod
    def of(module: nn.Module) -> Held | None:
        """Return what was done last to a module."""
        found = module.__dict__.get(ENTRY)
        return found if isinstance(found, Held) else None

    def put(self, module: nn.Module) -> None:
        """Give the module its private configurations."""
        for name, swap in self.swaps.items():
            module.__dict__[name] = swap.private
        module.__dict__[ENTRY] = self

    def drop(self, module: nn.Module) -> None:
        """Give the module back what it held; a configuration that was set since stays."""
        for name, swap in self.swaps.items():
            if module.__dict__.get(name) is swap.private:
                swap.give_back()
                module.__dict__[name] = swap.original
        if self.below is not None:
            module.__dict__[ENTRY] = self.below
        else:
            del module.__dict__[ENTRY]
        for lease in self.leases:
            lease.holds -= 1
            if lease.holds == 0:
                lease.close()

    def __deepcopy__(self, memo: dict[int, Any]) -> Held:
        return Held(deepcopy(self.swaps, memo), deepcopy(self.leases, memo), deepcopy(self.below, memo), self.owner)

    def __reduce__(self) -> tuple[Any, ...]:
        return Held, (self.swaps, self.leases, self.below, self.owner)


@dataclass(slots=True, kw_only=True)
class Edits:
    """All that is to be done to the modules of a model, and the way back."""

    names: Mapping[int, str]  # by the id of each part
    before: Mapping[int, str | None]
    modules: list[tuple[nn.Module, dict[str, Swap]]]
    leases: tuple[Lease, ...]
    owner: Any = None
    done: list[tuple[nn.Module, Held]] = field(default_factory=list)

    def do(self) -> None:
        """Give every module its private configurations."""
        for module, swaps in self.modules:
            held = Held(swaps, self.leases, Held.of(module), self.owner)
            self.done.append((module, held))
            held.put(module)

    def active(self) -> bool:
        """Whether anything of this is still on, or nothing had to be done."""
        return not self.modules or any(Held.of(module) is held for module, held in self.done)

    def covered(self) -> bool:
        """Whether something was done later to one of the modules, and is still on."""
        found = ((Held.of(module), held) for module, held in self.done)
        return any(top is not held and any(below is held for below in _below(top)) for top, held in found)

    def undo(self) -> None:
        """Take back what was done, the last first; what is gone already is passed by."""
        while self.done:
            module, held = self.done.pop()
            if Held.of(module) is held:
                held.drop(module)


def _below(held: Held | None) -> Iterator[Held]:
    while held is not None:
        yield held
        held = held.below


def edits(
    model: nn.Module,
    wanted: Sequence[Part],
    every: Sequence[Part],
    names: Mapping[int, str],
    kinds: Mapping[int, str | None],
    leases: Mapping[str, Lease],
    walked: tuple[Sequence[str], Sequence[nn.Module]] | None = None,
) -> Edits:
    """Settle which modules of a model get which private configurations, so that parts use attention by other names.

    `walked` are the model's paths and modules, if they are known.

    Raises:
        ApplyError: Parts that share a configuration are to have different kinds of masks.
    """
    registries = Registries.find()
    if registries is None:
        return Edits(names=names, before={}, modules=[], leases=())
    paths, modules = walked or walk(model)[:2]
    holders = _holders(paths, modules, registries)
    mine = {part.path: part for part in wanted}
    every = [mine.get(part.path, part) for part in every]
    users = _users(every, names, registries)
    shared = {key: found for key, (_, found) in users.items() if not _agree(found, names)}
    for sharing in shared.values():
        _check_kinds(sharing, kinds)
    whole = {key: names[id(found[0])] for key, (_, found) in users.items() if key not in shared}
    swaps = {key: _private(users[key][0], name) for key, name in whole.items() if _name(users[key][0]) != name}
    _add_around(holders, swaps, every, names, registries)
    apart = {
        (key, _scope(part, sharing, names)): _private(users[key][0], names[id(part)])
        for key, sharing in shared.items()
        for part in sharing
        if id(part) in names and names[id(part)] != _name(users[key][0])
    }
    made = []
    for path, module, held in holders:
        found = {name: swaps.get(id(value)) or _nearest(apart, id(value), path) for name, value in held.items()}
        if any(found.values()):
            made.append((module, {name: swap for name, swap in found.items() if swap is not None}))
    before = {id(part): part.current for part in wanted}
    return Edits(names=names, before=before, modules=made, leases=tuple(leases.values()))


_Holder = tuple[str, nn.Module, dict[str, Any]]


def _holders(paths: Sequence[str], modules: Sequence[nn.Module], registries: Registries) -> list[_Holder]:
    """Return the modules that hold configurations, each with those it holds, by attribute."""
    cls, found = registries.config, []
    for path, module in zip(paths, modules, strict=True):
        entries = module.__dict__
        held = [name for name in entries if name not in _OWN and isinstance(entries[name], cls)]
        if held:
            found.append((path, module, {name: entries[name] for name in held}))
    return found


_Users = dict[int, tuple[Any, list[Part]]]


def _users(every: Sequence[Part], names: Mapping[int, str], registries: Registries) -> _Users:
    """Return every configuration that a wanted part looks at, with all parts that do."""
    found: _Users = {}
    for part in every:
        for config in _configs(part, registries):
            found.setdefault(id(config), (config, []))[1].append(part)
    return {key: users for key, users in found.items() if any(id(part) in names for part in users[1])}


def _configs(part: Part, registries: Registries) -> list[Any]:
    """Return the configurations that a part's modules look at for their attention, each once."""
    found = [part.module.__dict__.get("config")]
    for place in (*part.places, *part.readers):
        for chain in place.reading.chains:
            value: Any = place.module
            for name in chain:
                value = getattr(value, name, None)
            found.append(value)
    return list({id(config): config for config in found if is_config(config, registries)}.values())


def _agree(users: Sequence[Part], names: Mapping[int, str]) -> bool:
    """Whether all parts that share a configuration are to use one attention."""
    return len({names.get(id(part)) for part in users}) == 1


def _check_kinds(users: Sequence[Part], kinds: Mapping[int, str | None]) -> None:
    found = {part.path: kinds.get(id(part)) or _present_kind(part.current) for part in users}
    if len(set(found.values())) > 1:
        said = ", ".join(f"{path or 'the model'} with {kind}" for path, kind in found.items())
        raise ApplyError(
            f"parts that share one configuration cannot have different masks: {said}",
            hint="choose one attention for all of them, or one that works with the same mask",
        )


def _present_kind(name: str | None) -> str | None:
    return BUILT_IN[name][0] if name is not None and name in BUILT_IN else kind_of(name)


def _name(config: Any) -> Any:
    return getattr(config, SETTING, None)


def _private(config: Any, name: str | None) -> Swap:
    made = Swap.of(config)
    if name is not None:
        made.private.__dict__[_INTERNAL if _INTERNAL in config.__dict__ else SETTING] = name
    made.settle()
    return made


def _add_around(
    holders: Sequence[_Holder],
    swaps: dict[int, Swap],
    every: Sequence[Part],
    names: Mapping[int, str],
    registries: Registries,
) -> None:
    """Give a private copy to each configuration that holds a swapped one, since masks are made by way of it, too.

    One that no part looks at gets the name of the parts where they all have one.
    """
    looked_at = {id(config) for part in every for config in _configs(part, registries)}
    common = {names.get(id(part)) for part in every}
    name = next(iter(common)) if len(common) == 1 else None

    def visit(config: Any, above: tuple[int, ...]) -> bool:
        if id(config) in above:
            return False
        inner = {
            key: value
            for key, value in config.__dict__.items()
            if isinstance(value, registries.config) and visit(value, (*above, id(config)))
        }
        if inner:
            made = swaps.get(id(config)) or _private(config, None if id(config) in looked_at else name)
            swaps[id(config)] = made
            made.private.__dict__.update({key: swaps[id(value)].private for key, value in inner.items()})
            made.settle()
        return id(config) in swaps

    for config in {id(value): value for _, _, held in holders for value in held.values()}.values():
        visit(config, ())


def _scope(part: Part, users: Sequence[Part], names: Mapping[int, str]) -> str:
    """Return the path of the outermost module around a part in which all that share its configuration do as it does."""
    others = [f"{user.path}." for user in users if names.get(id(user)) != names[id(part)]]
    scope = above = part.path
    while above:
        above = above.rpartition(".")[0]
        if any(path.startswith(f"{above}." if above else "") for path in others):
            break
        scope = above
    return scope


def _nearest(apart: Mapping[tuple[int, str], Swap], key: int, path: str) -> Swap | None:
    """Return the copy for a module in the part that is nearest above it."""
    found = [
        (part, swap)
        for (config, part), swap in apart.items()
        if config == key and (path == part or not part or path.startswith(f"{part}."))
    ]
    return max(found, key=lambda one: len(one[0]))[1] if found else None
