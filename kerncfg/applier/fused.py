"""A fusion that is made: its members and layouts, how copies, moves and loads keep them, and the way back.

The members stay where they are, with their parameters. The first one's forward becomes the kernel's, run on a layout
that no part of the model holds; the others hand on what they are given. This assumes what every fusion of siblings
does: that the parent calls the members one after the other, each on what the one before returned. In a mode without a
kernel every member runs its own forward, and nothing is assumed.
"""

from __future__ import annotations

import copy
import functools
from collections.abc import Callable, Sequence, Set
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch import nn

from kerncfg.applier.bind import Edit, Owner, bind, bound, unbind
from kerncfg.applier.connecting import Stacks, around, connect, construct, lay_out, randomness, stack_key
from kerncfg.applier.edits import FUSION as ENTRY
from kerncfg.applier.groups import named_parts
from kerncfg.applier.stacking import Stack
from kerncfg.errors import ApplyError
from kerncfg.sources import reload

if TYPE_CHECKING:
    from kerncfg.applier.converting import Converted
    from kerncfg.applier.groups import Group, Parts
    from kerncfg.documents.plan import Kernel

__all__ = ["ENTRY", "Fusion", "Members", "Pair", "Prepared"]

_APPLY = "_apply"

Pair = tuple[Any, Any]  # of the class or kernel when not training, and when training; `None` is the original


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Prepared:
    """A fusion that fits, before anything is changed: the layouts are made, no parameter has moved.

    `notes` is what the user should know of it, for the report.
    """

    group: Group
    codes: Pair
    kernels: tuple[Kernel | None, Kernel | None]
    layouts: tuple[nn.Module | None, nn.Module | None]
    stacks: tuple[Stack, ...]
    converted: tuple[Converted, ...]
    config: Any
    notes: tuple[str, ...]


@dataclass(frozen=True, slots=True, eq=False)
class _FuseEdit(Edit):
    """What a fusion does to one member: the first runs the kernels, the others hand on."""

    first: bool

    def arrived(self, module: nn.Module) -> None:
        """Let the fusion of a copy be built when its last member is there."""
        found = module.__dict__.get(ENTRY)
        if isinstance(found, Fusion) and hasattr(found, "awaited"):
            found.complete()

    def __reduce__(self) -> tuple[Any, ...]:
        return _reloaded, (self.owner, self.kernels, self.first)


def _reloaded(owner: Owner, kernels: tuple[Kernel | None, Kernel | None], first: bool) -> _FuseEdit:
    codes = tuple(None if kernel is None else reload(kernel).code for kernel in kernels)
    return _FuseEdit(owner, _forwards(codes, first), kernels, first)


def _forwards(codes: Sequence[Any], first: bool) -> tuple[Callable[..., Any] | None, Callable[..., Any] | None]:
    idle, training = (
        None if code is None else (_runner(code.forward, bool(place)) if first else _hand_on)
        for place, code in enumerate(codes)
    )
    # One function where both modes run one kernel: what is compiled is compiled once.
    return (idle, idle) if first and codes[0] is codes[1] else (idle, training)


@functools.cache
def _runner(forward: Callable[..., Any], training: bool) -> Callable[..., Any]:
    """Return the forward of a first member: the kernel's, run on the layout."""

    @functools.wraps(forward)
    def run(module: nn.Module, *arguments: Any, **keywords: Any) -> Any:
        fusion: Fusion = module.__dict__[ENTRY]
        fusion.check(arguments)
        layout = fusion.layouts[training]
        return forward(fusion.built(training) if layout is None else layout, *arguments, **keywords)

    return run


def _hand_on(module: nn.Module, *arguments: Any, **keywords: Any) -> Any:
    """Return the one thing given, as `nn.Identity` does, however it is called."""
    values = (*arguments, *keywords.values())
    if len(values) != 1:
        raise ApplyError(
            f"a {type(module).__qualname__} that is fused into the module before it was called with {len(values)} "
            "arguments, and can hand on one",
            hint="fuse only members that the parent calls one after the other, each on what the last one returned",
        )
    return values[0]


class Fusion:
    """One group that is fused: its members, the layouts that the kernels run on, and the way back."""

    __slots__ = (
        "awaited",
        "codes",
        "config",
        "converted",
        "edits",
        "kernels",
        "layouts",
        "members",
        "notes",
        "parts",
        "paths",
        "stacks",
        "watched",
    )

    def __init__(self, prepared: Prepared, owner: Owner, last: Fusion | None = None) -> None:
        self.members = prepared.group.modules
        self.paths = prepared.group.paths
        self.codes = prepared.codes
        self.kernels = prepared.kernels
        self.layouts = prepared.layouts
        self.stacks = prepared.stacks
        self.converted = prepared.converted
        self.config = prepared.config
        self.notes = prepared.notes
        self.parts: Set[int] = prepared.group.inside
        self.watched = self._watched(prepared.group.parts)
        self.awaited = False  # whether this is a copy whose members are not all there
        self.edits = self._shared(last, owner) or tuple(
            _FuseEdit(owner, _forwards(self.codes, place == 0), self.kernels, place == 0)
            for place in range(len(self.members))
        )

    def _shared(self, last: Fusion | None, owner: Owner) -> tuple[_FuseEdit, ...] | None:
        """Return the edits of the fusion made before this, if they are the same: those of a hundred layers are."""
        if last is None or last.codes != self.codes or last.kernels != self.kernels:
            return None
        return last.edits if len(last.edits) == len(self.members) and last.edits[0].owner is owner else None

    @property
    def path(self) -> str:
        """The path of the first member."""
        return self.paths[0]

    def original(self, *arguments: Any, **keywords: Any) -> Any:
        """Run what the members computed before: each class's own forward, on what the one before returned."""
        return _in_turn(self.members, *arguments, **keywords)

    def make(self, every: Sequence[Parts]) -> None:
        """Do every edit; on an error none of them stays. `every` are the parts of each member."""
        try:
            for converted in self.converted:
                converted.install(converted.values())
            for stack in self.stacks:
                stack.join()
            owners = self._all_owners()
            for member, parts, edit in zip(self.members, every, self.edits, strict=True):
                self._enter(member, parts, owners)
                bind(member, edit)
        except BaseException:
            self.revert()
            raise

    def _enter(self, member: nn.Module, parts: Parts, owners: Sequence[nn.Module]) -> None:
        member.__dict__[ENTRY] = self
        member.__dict__[_APPLY] = _Applied(self, member, member.__dict__.get(_APPLY))
        inside = {id(part) for _, part in parts}
        for owner in owners:
            if id(owner) not in inside:
                continue
            hooks = owner.__dict__["_load_state_dict_post_hooks"]
            hooks[min([0, *hooks]) - 1] = _Loaded(self)

    def _all_owners(self) -> list[nn.Module]:
        """Return the parts of members that have a stacked parameter."""
        return list({id(slot.owner): slot.owner for stack in self.stacks for slot in stack.slots}.values())

    def revert(self) -> None:
        """Let every member run its own forward, on parameters in memory of their own; twice is harmless."""
        for member, edit in zip(reversed(self.members), reversed(self.edits), strict=True):
            unbind(member, edit)
            if member.__dict__.get(ENTRY) is self:
                del member.__dict__[ENTRY]
            applied = member.__dict__.get(_APPLY)
            if isinstance(applied, _Applied) and applied.fusion is self:
                if applied.prior is None:
                    del member.__dict__[_APPLY]
                else:
                    member.__dict__[_APPLY] = applied.prior
        for owner in self._all_owners():
            hooks = owner.__dict__["_load_state_dict_post_hooks"]
            for key in [key for key, hook in hooks.items() if isinstance(hook, _Loaded) and hook.fusion is self]:
                del hooks[key]
        for stack in self.stacks:
            stack.split()
        for converted in reversed(self.converted):
            if converted.stock:
                converted.remove()
                converted.stock = []

    def changed(self) -> str | None:
        """Say what came between the members and the kernel since, which passes it by; for reports."""
        held = {id(part) for layout in self.layouts if layout is not None for part in layout.modules()}
        for path, member in zip(self.paths, self.members, strict=True):
            for name, part in member.named_modules():
                where = f"{path}.{name}" if name else path
                if part is not member and id(part) not in held and id(part) not in self.parts:
                    return f"changed since: {where} is another module, which the kernel does not run"
                if part is not member and id(part) not in held and (found := around(part)):
                    return f"changed since: {where} has {found}, which the kernel passes by"
        if all(stack.holds() for stack in self.stacks):
            return None
        return "changed since: stacked parameters no longer share one memory, so each call stacks a copy of them"

    def _watched(
        self, every: Sequence[Parts]
    ) -> tuple[tuple[nn.Module, dict[str, Any], tuple[tuple[str, Any], ...]], ...]:
        """Return each part of the members with its children as they are, but for what a layout calls as it is then."""
        layouts = {id(layout): layout for layout in self.layouts if layout is not None}.values()
        own = {id(part._modules) for layout in layouts for _, part in named_parts(layout)}
        parts = {id(part): part for parts in every for _, part in parts}.values()
        return tuple(
            [(part, part._modules, tuple(part._modules.items())) for part in parts if id(part._modules) not in own]
        )

    def check(self, arguments: tuple[Any, ...]) -> None:
        """Refuse to run past what was put into the members since, in silence; 2 µs where nothing was.

        Raises:
            ApplyError: A part is another module now, as an adapter makes it, or its weights are away.
        """
        for part, children, known in self.watched:
            for name, child in known:
                if children[name] is not child:
                    raise self._passed(f"has another {name} by now, a {type(children[name]).__qualname__}", part)
        if torch.compiler.is_compiling():
            return
        for part, _, _ in self.watched:
            for parameter in part._parameters.values():
                if parameter is not None and parameter.is_meta and not arguments[0].is_meta:
                    raise self._passed("has its weights on meta, where something keeps them between calls", part)

    def _passed(self, what: str, part: nn.Module) -> ApplyError:
        return ApplyError(
            f"a {type(part).__qualname__} {what}, and the kernel that is fused into {self.path} would pass by it",
            hint="call kerncfg.revert(model) first, and apply again afterwards",
        )

    def rejoin(self) -> None:
        """Let parameters that were moved, cast or replaced share one memory again."""
        for stack in self.stacks:
            stack.rejoin()

    def complete(self) -> None:
        """Build the layouts of a copy when all its members are there, which may be before or after this is."""
        if self.awaited and all(bound(member) is not None for member in self.members):
            self.awaited = False
            self.build()

    def build(self) -> None:
        """Make the layouts of a copy, on the copy's own parameters."""
        made: dict[Any, nn.Module] = {}
        stacks: Stacks = {}
        for converted in self.converted:
            converted.blank()
        for code in dict.fromkeys(code for code in self.codes if code is not None):
            with randomness(self.members):
                layout = construct(code, self.members)
                found = lay_out(code, layout, self.members, self.paths, None)
            for stocks in found.stacked.values():
                stack = Stack([found.slots[stock] for stock in stocks])
                stacks.setdefault(stack_key(stack.slots), stack)
            for converted, conversion in zip(self.converted, found.converted, strict=True):
                converted.ways = conversion.forward, conversion.back
            connect(layout, found, stacks, self.converted, self.members)
            made[code] = layout
        for converted in self.converted:
            converted.show()
        self.stacks = tuple(stacks.values())
        self.parts = {id(part) for member in self.members for part in member.modules()}
        self.rejoin()
        self.layouts = made.get(self.codes[0]), made.get(self.codes[1])
        self.watched = self._watched([*map(named_parts, self.members)])

    def built(self, training: bool) -> nn.Module:
        """Return a layout that was not there yet: of a copy whose members came one by one."""
        self.build()
        layout = self.layouts[training]
        assert layout is not None
        return layout

    def __getstate__(self) -> dict[str, Any]:
        names = ("members", "paths", "kernels", "converted", "config", "notes", "edits")
        return {name: getattr(self, name) for name in names}

    def __setstate__(self, state: dict[str, Any]) -> None:
        for name, value in state.items():
            setattr(self, name, value)
        idle, training = (None if kernel is None else reload(kernel).code for kernel in self.kernels)
        self._await((idle, training))

    def __deepcopy__(self, memo: dict[int, Any]) -> Fusion:
        made = memo[id(self)] = Fusion.__new__(Fusion)
        for name, value in self.__getstate__().items():
            setattr(made, name, copy.deepcopy(value, memo))
        made._await(self.codes)
        return made

    def _await(self, codes: Pair) -> None:
        """Be without layouts until the members, which may be copied or read after this, are there."""
        self.codes = codes
        self.layouts, self.stacks, self.watched = (None, None), (), ()
        self.awaited = True
        self.complete()


class Members(nn.Module):
    """The members of a fusion by their names, beside the model: what they computed before it, as one module."""

    @classmethod
    def of(cls, fusion: Fusion) -> Members:
        """Hold a fusion's members."""
        made = cls()
        for path, member in zip(fusion.paths, fusion.members, strict=True):
            made.add_module(path.rpartition(".")[2], member)
        return made

    def members(self) -> tuple[nn.Module, ...]:
        """Return the members, in the order in which they are called."""
        return tuple(self.children())

    def forward(self, *arguments: Any, **keywords: Any) -> Any:
        """Run each class's own forward, on what the one before returned."""
        return _in_turn(self.members(), *arguments, **keywords)


def _in_turn(members: Sequence[nn.Module], *arguments: Any, **keywords: Any) -> Any:
    first, *others = members
    result = type(first).forward(first, *arguments, **keywords)
    for member in others:
        result = type(member).forward(member, result)
    return result


class _Applied:
    """`_apply` of a member: what moves or casts it takes stacked parameters apart, and they join again."""

    __slots__ = ("fusion", "member", "prior")

    def __init__(self, fusion: Fusion, member: nn.Module, prior: Any) -> None:
        self.fusion = fusion
        self.member = member
        self.prior = prior

    def __call__(self, function: Callable[[torch.Tensor], torch.Tensor], recurse: bool = True) -> nn.Module:
        own = self.prior or functools.partial(type(self.member)._apply, self.member)
        result: nn.Module = own(function, recurse)
        self.fusion.rejoin()
        return result


class _Loaded:
    """A hook after loading, which with `assign=True` puts other parameters in the place of the stacked ones."""

    __slots__ = ("fusion",)

    def __init__(self, fusion: Fusion) -> None:
        self.fusion = fusion

    def __call__(self, module: nn.Module, keys: Any) -> None:
        self.fusion.rejoin()
