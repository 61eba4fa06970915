"""Fusion: several sibling modules run as one kernel, on their own parameters, until it is taken back.

The members stay where they are, with their parameters. The first one's forward becomes the kernel's, run on a layout
that no part of the model holds; the others hand on what they are given. This assumes what every fusion of siblings
does: that the parent calls the members one after the other, each on what the one before returned. In a mode without a
kernel every member runs its own forward, and nothing is assumed.
"""

from __future__ import annotations

import copy
import functools
import inspect
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import torch
from torch import nn

from kerncfg.applier.arguments import Unknown, arguments, names_of
from kerncfg.applier.attributes import attributes
from kerncfg.applier.bind import Edit, Owner, bind, bound, unbind
from kerncfg.applier.contract import fit
from kerncfg.applier.converting import Converted
from kerncfg.applier.layouts import Scheme, Unfit, companion, scheme
from kerncfg.applier.stacking import Kept, Source, Stack, following, link, twin
from kerncfg.errors import ApplyError, ConflictError
from kerncfg.sources import reload

if TYPE_CHECKING:
    from kerncfg.applier.groups import Group
    from kerncfg.documents.plan import Kernel
    from kerncfg.documents.target import Mode

__all__ = ["ENTRY", "Fusion", "Prepared", "fuse", "fusion_of", "prepare", "tied", "unfuse"]

ENTRY = "_kerncfg_fusion"
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


def prepare(
    root: nn.Module,
    group: Group,
    codes: Pair,
    kernels: tuple[Kernel | None, Kernel | None],
    modes: tuple[Mode, Mode],
    shared: frozenset[int] | None = None,
) -> Prepared | str:
    """Return a fusion that can be made of a group, or the reason against it; nothing of the model changes.

    `codes` are the kernels' classes when not training and when training, `None` for the original; `shared` is
    `tied(root)`, to be asked once for many groups.

    Raises:
        ConflictError: A member is part of a fusion already.
    """
    for path, member in zip(group.paths, group.modules, strict=True):
        if ENTRY in member.__dict__:
            raise ConflictError(
                f"{path} is fused already, as part of {', '.join(member.__dict__[ENTRY].paths)}",
                hint="revert the apply that did so first",
            )
    try:
        return _Preparation(root, group, tied(root) if shared is None else shared).prepared(codes, kernels, modes)
    except Unfit as reason:
        return str(reason)


def tied(root: nn.Module) -> frozenset[int]:
    """Return the ids of the parameters that have several places in a model, or lie where another one lies."""
    places: dict[int, int] = {}
    starts: dict[int, int] = {}
    found = set()
    for module in root.modules():
        for parameter in module._parameters.values():
            if parameter is None:
                continue
            places[id(parameter)] = places.get(id(parameter), 0) + 1
            if places[id(parameter)] > 1:
                found.add(id(parameter))
            start = 0 if parameter.is_meta or not _plain(parameter) else parameter.data_ptr()
            if start and starts.setdefault(start, id(parameter)) != id(parameter):
                found.update((starts[start], id(parameter)))
    return frozenset(found)


def _plain(parameter: torch.Tensor) -> bool:
    return type(parameter) is nn.Parameter


@dataclass(slots=True)
class _Preparation:
    root: nn.Module
    group: Group
    shared: frozenset[int]
    stacks: dict[tuple[tuple[int, str], ...], Stack] = field(default_factory=dict)
    converted: list[Converted] = field(default_factory=list)

    def prepared(self, codes: Pair, kernels: tuple[Kernel | None, Kernel | None], modes: tuple[Mode, Mode]) -> Prepared:
        layouts: dict[Any, nn.Module] = {}
        for code, mode in zip(codes, modes, strict=True):
            if code is None:
                continue
            if fault := self._fault(code, mode):
                raise Unfit(fault)
            if code not in layouts:
                layouts[code] = self._layout(code)
        if self.converted and len(set(codes)) > 1:
            names = ", ".join(name for one in self.converted for name in one.sources)
            raise Unfit(f"it makes new parameters of {names}, and has to run in every mode for that")
        return Prepared(
            group=self.group,
            codes=codes,
            kernels=kernels,
            layouts=(layouts.get(codes[0]), layouts.get(codes[1])),
            stacks=tuple(self.stacks.values()),
            converted=tuple(self.converted),
            config=getattr(self.root, "config", None),
            notes=tuple(self._notes()),
        )

    def _fault(self, code: Any, mode: Mode) -> str | None:
        """Say what speaks against a kernel before its layout is made."""
        first = self.group.layers[0]
        if fault := fit(code, first, mode).fault:
            return fault
        layout = companion(code)
        if layout is None:
            return f"a fused kernel needs a class {code.__name__}Layout(nn.Module) beside it, in {code.__module__}"
        if names_of(layout, self.group.modules) is None:
            takes, count = inspect.signature(layout), len(self.group.modules)
            return f"{layout.__name__}{takes} does not take {count} {'member' if count == 1 else 'members'}"
        return None

    def _layout(self, code: Any) -> nn.Module:
        """Make a kernel's layout of the members, and let it read their tensors."""
        layout, found = lay_out(code, self.group.modules, self.group.paths, self.root)
        self._check_members(layout)
        missing = [
            name
            for name in sorted(attributes(code.forward).reads)
            if not hasattr(code, name) and not hasattr(layout, name)
        ]
        if missing:
            raise Unfit(f"its forward reads self.{missing[0]}, which {type(layout).__name__} has not")
        for name, stocks in found.stacked.items():
            self._stack(name, stocks, found)
        for name, stock in found.kept.items():
            self._check_shape(name, found, found.slots[stock].get().shape)
        self.converted += [self._conversion(one, found) for one in found.converted]
        _connect(layout, found, self.stacks, self.converted, self.group.modules)
        return layout

    def _stack(self, name: str, stocks: Sequence[str], found: Scheme) -> None:
        slots = [found.slots[stock] for stock in stocks]
        stack = Stack(slots)
        for stock, slot in zip(stocks, slots, strict=True):
            self._check_free(stock, slot.get())
        if not stack.fits():
            raise Unfit(f"{' and '.join(stocks)} differ in dtype, device or width, or are no plain parameters")
        rows = sum(part.shape[0] for part in stack.current())
        self._check_shape(name, found, torch.Size([rows, *stack.current()[0].shape[1:]]))
        key = tuple((id(owner), one) for owner, one in slots)
        others = {place for other in self.stacks if other != key for place in other}
        if others.intersection(key) or len(set(key)) < len(key):
            raise Unfit(f"{' and '.join(stocks)} are stacked in two ways")
        self.stacks.setdefault(key, stack)

    def _conversion(self, conversion: Any, found: Scheme) -> Converted:
        made = Converted(conversion, found.slots)
        for stock, slot in zip(conversion.sources, made.slots, strict=True):
            self._check_free(stock, slot.get())
        try:
            values = made.values()
            again = made.back(values)
        except Exception as error:
            raise Unfit(f"converting {', '.join(conversion.sources)} raised {type(error).__name__}: {error}") from error
        for name, value in zip(conversion.targets, values, strict=True):
            self._check_shape(name, found, value.shape)
        for stock, slot, value in zip(conversion.sources, made.slots, again, strict=True):
            before = slot.get().detach()
            if value.shape != before.shape or not (before.is_meta or torch.allclose(value, before, *_round(before))):
                raise Unfit(f"{stock} does not come back from its conversion as it was")
        return made

    def _check_free(self, stock: str, parameter: torch.Tensor) -> None:
        if not isinstance(parameter, nn.Parameter):
            raise Unfit(f"{stock} is no parameter, and cannot be converted")
        if id(parameter) in self.shared:
            raise Unfit(f"{stock} is tied to another parameter, so it cannot move alone")

    def _check_shape(self, name: str, found: Scheme, shape: torch.Size) -> None:
        said = found.own[name].get().shape if name in found.own else None
        if said != shape:
            there = "is not there" if said is None else f"has shape {tuple(said)}"
            raise Unfit(f"{name} of the layout {there}, what it is made of has {tuple(shape)}")

    def _check_members(self, layout: nn.Module) -> None:
        """Refuse members around which, or inside which, something is that the kernel would pass by."""
        held = {id(part) for part in layout.modules()}
        for path, member in zip(self.group.paths, self.group.modules, strict=True):
            for name, part in member.named_modules():
                passed = part is member or id(part) not in held
                if passed and (around := _around(part)):
                    raise Unfit(f"{f'{path}.{name}' if name else path} has {around}, which the kernel would pass by")

    def _notes(self) -> Iterator[str]:
        first, *others = self.group.paths
        if others:
            yield f"{', '.join(others)} {'hands' if len(others) == 1 else 'hand'} on what {first} returns"
        for one in self.converted:
            yield (
                f"new parameters take the place of {', '.join(one.sources)}: an optimizer made before does not train "
                "them, one made afterwards does"
            )


def _round(value: torch.Tensor) -> tuple[float, float]:
    """Return how far a value may be off after two conversions: a few roundings."""
    eps = torch.finfo(value.dtype).eps if value.is_floating_point() else 0.0
    return 4 * eps, 4 * eps * float(value.abs().max()) if value.numel() else 0.0


def _around(part: nn.Module) -> str | None:
    entries = part.__dict__
    made = bound(part)
    if "forward" in entries and (made is None or entries["forward"] is not made.current):
        return "a forward set on the instance"
    if "base_layer" in entries["_modules"]:
        return f"an adapter, {type(part).__qualname__},"
    if "parametrizations" in entries["_modules"]:
        return "a parametrization"
    hooks = ("_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks")
    return "hooks" if any(entries.get(name) for name in hooks) else None


def lay_out(
    code: Any, members: Sequence[nn.Module], paths: Sequence[str], root: nn.Module | None
) -> tuple[nn.Module, Scheme]:
    """Make the layout of a kernel, and find out where its tensors come from; random numbers are left as they were.

    Raises:
        Unfit: It cannot be made of these members.
    """
    cls: Any = companion(code)
    names = names_of(cls, members) or []
    cuda = sorted({p.device.index for member in members for p in member.parameters() if p.device.type == "cuda"})
    try:
        given = arguments(cls, members)
        with torch.random.fork_rng(devices=cuda), torch.inference_mode(False):
            layout = cls(**given) if isinstance(given, Mapping) else cls(*given)
    except Unknown as name:
        raise Unfit(f"{cls.__name__} wants {name}, and what that was cannot be told from the module") from None
    except Exception as error:
        raise Unfit(f"{cls.__name__}({', '.join(names)}) raised {type(error).__name__}: {error}") from error
    try:
        return layout, scheme(layout, members, names, paths, root)
    except Unfit as reason:
        raise Unfit(f"{cls.__name__}: {reason}") from None


def _connect(
    layout: nn.Module,
    found: Scheme,
    stacks: dict[tuple[tuple[int, str], ...], Stack],
    converted: Sequence[Converted],
    members: Sequence[nn.Module],
) -> None:
    """Let a layout read every tensor where it lives."""
    first = members[0]
    sources: dict[str, Source] = {own: Kept(found.slots[stock]) for own, stock in found.kept.items()}
    for own, stocks in found.stacked.items():
        sources[own] = stacks[tuple((id(owner), name) for owner, name in (found.slots[one] for one in stocks))]
    for one in converted:
        sources |= {own: home for own, home in zip(one.targets, one.readers(), strict=True)}
    inside = {id(part) for member in members for part in member.modules()}
    mine = _mine(layout, inside)
    by_owner: dict[int, dict[str, Source]] = {}
    for own, source in sources.items():
        slot = found.own[own]
        by_owner.setdefault(id(slot.owner), {})[slot.name] = source
    for module in mine:
        if id(module) in by_owner:
            link(module, by_owner[id(module)], first)
        for name, child in module._modules.items():
            if any(child is member for member in members):
                module._modules[name] = twin(child, first, _is_ours)
    following(mine, first)


def _mine(layout: nn.Module, inside: set[int]) -> list[nn.Module]:
    """Return the modules that the layout made itself."""
    found = [layout]
    for module in found:
        found += [
            child
            for child in module._modules.values()
            if child is not None and id(child) not in inside and not any(child is known for known in found)
        ]
    return found


def _is_ours(key: str) -> bool:
    return key.startswith("_kerncfg") or key in ("forward", "train", "eval", "__getstate__", _APPLY)


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
    )

    def __init__(self, prepared: Prepared, owner: Owner) -> None:
        self.members = prepared.group.modules
        self.paths = prepared.group.paths
        self.codes = prepared.codes
        self.kernels = prepared.kernels
        self.layouts = prepared.layouts
        self.stacks = prepared.stacks
        self.converted = prepared.converted
        self.config = prepared.config
        self.notes = prepared.notes
        self.parts = {id(part) for member in self.members for part in member.modules()}
        self.awaited = False  # whether this is a copy whose members are not all there
        self.edits = tuple(
            _FuseEdit(owner, _forwards(self.codes, place == 0), self.kernels, place == 0)
            for place in range(len(self.members))
        )

    @property
    def path(self) -> str:
        """The path of the first member."""
        return self.paths[0]

    def original(self, *arguments: Any, **keywords: Any) -> Any:
        """Run what the members computed before: each class's own forward, on what the one before returned."""
        first, *others = self.members
        result = type(first).forward(first, *arguments, **keywords)
        for member in others:
            result = type(member).forward(member, result)
        return result

    def make(self) -> None:
        """Do every edit; on an error none of them stays."""
        try:
            for converted in self.converted:
                converted.install(converted.values())
            for stack in self.stacks:
                stack.join()
            for member, edit in zip(self.members, self.edits, strict=True):
                self._enter(member)
                bind(member, edit)
        except BaseException:
            self.revert()
            raise

    def _enter(self, member: nn.Module) -> None:
        member.__dict__[ENTRY] = self
        member.__dict__[_APPLY] = _Applied(self, member, member.__dict__.get(_APPLY))
        for owner in self._owners(member):
            hooks = owner.__dict__["_load_state_dict_post_hooks"]
            hooks[min([0, *hooks]) - 1] = _Loaded(self)

    def _owners(self, member: nn.Module) -> list[nn.Module]:
        """Return the parts of a member that have a stacked parameter."""
        parts = {id(part) for part in member.modules()}
        owners = {id(slot.owner): slot.owner for stack in self.stacks for slot in stack.slots}
        return [owner for key, owner in owners.items() if key in parts]

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
            for owner in self._owners(member):
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
                if part is not member and id(part) not in held and (around := _around(part)):
                    return f"changed since: {where} has {around}, which the kernel passes by"
        if all(stack.holds() for stack in self.stacks):
            return None
        return "changed since: stacked parameters no longer share one memory, so each call stacks a copy of them"

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
        stacks: dict[tuple[tuple[int, str], ...], Stack] = {}
        for converted in self.converted:
            converted.blank()
        for code in dict.fromkeys(code for code in self.codes if code is not None):
            layout, found = lay_out(code, self.members, self.paths, None)
            for stocks in found.stacked.values():
                slots = [found.slots[stock] for stock in stocks]
                stacks.setdefault(tuple((id(owner), name) for owner, name in slots), Stack(slots))
            for converted, conversion in zip(self.converted, found.converted, strict=True):
                converted.ways = conversion.forward, conversion.back
            _connect(layout, found, stacks, self.converted, self.members)
            made[code] = layout
        for converted in self.converted:
            converted.show()
        self.stacks = tuple(stacks.values())
        self.parts = {id(part) for member in self.members for part in member.modules()}
        self.rejoin()
        self.layouts = made.get(self.codes[0]), made.get(self.codes[1])

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
        self.layouts, self.stacks = (None, None), ()
        self.awaited = True
        self.complete()


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


def fuse(prepared: Sequence[Prepared], owner: Owner) -> tuple[Fusion, ...]:
    """Make every fusion, or none: on an error the model is as it was before."""
    made: list[Fusion] = []
    try:
        for one in prepared:
            fusion = Fusion(one, owner)
            fusion.make()
            made.append(fusion)
    except BaseException:
        for fusion in reversed(made):
            fusion.revert()
        raise
    return tuple(made)


def fusion_of(module: nn.Module) -> Fusion | None:
    """Return the fusion that a module is a member of, if any."""
    found = module.__dict__.get(ENTRY)
    member = isinstance(found, Fusion) and any(module is one for one in found.members)
    return found if member else None


def unfuse(module: nn.Module) -> None:
    """Take the fusion of a module back, whoever made it; harmless where there is none. Copies too."""
    found = fusion_of(module)
    if found is not None:
        found.revert()
    else:
        module.__dict__.pop(ENTRY, None)
