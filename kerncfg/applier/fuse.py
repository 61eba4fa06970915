"""Fusion: whether siblings can run as one kernel, decided before anything is changed, and all of them or none.

`groups` finds the siblings, `prepare` asks and makes the layouts, `fuse` does the edits, and each `Fusion` reverts.
"""

from __future__ import annotations

import inspect
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import torch
from torch import nn

from kerncfg.applier.adapters.torch import walk
from kerncfg.applier.alike import Make, learn
from kerncfg.applier.arguments import names_of
from kerncfg.applier.attributes import attributes
from kerncfg.applier.connecting import Stacks, around, connect, construct, lay_out, randomness, stack_key
from kerncfg.applier.contract import fit
from kerncfg.applier.converting import Converted
from kerncfg.applier.fused import ENTRY, Fusion, Pair, Prepared
from kerncfg.applier.layouts import Scheme, Unfit, companion
from kerncfg.applier.stacking import Stack, link
from kerncfg.errors import ConflictError

if TYPE_CHECKING:
    from kerncfg.applier.edits import Owner
    from kerncfg.applier.groups import Group
    from kerncfg.documents.plan import Kernel
    from kerncfg.documents.target import Mode

__all__ = ["Fusion", "Prepared", "Survey", "fuse", "fusion_of", "prepare", "survey", "unfuse"]


_MAKES = 3  # that are kept of one kernel for members of one class: each layout is compared with all of them


@dataclass(frozen=True, slots=True, eq=False)
class Survey:
    """What is the same for all groups of a model: which parameters are tied, and what classes alone decide.

    With `still` whoever asked for it puts the random numbers back, once for all groups.
    """

    root: nn.Module
    tied: frozenset[int]
    still: bool = False
    faults: dict[Any, str | None] = field(default_factory=dict)
    reads: dict[Any, list[str]] = field(default_factory=dict)
    makes: dict[Any, list[Make]] = field(default_factory=dict)  # of layouts that were made, by kernel and classes


def prepare(
    survey: Survey,
    group: Group,
    codes: Pair,
    kernels: tuple[Kernel | None, Kernel | None],
    modes: tuple[Mode, Mode],
) -> Prepared | str:
    """Return a fusion that can be made of a group, or the reason against it; nothing of the model changes.

    `codes` are the kernels' classes when not training and when training, `None` for the original.

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
        return _Preparation(survey, group).prepared(codes, kernels, modes)
    except Unfit as reason:
        return str(reason)


def survey(root: nn.Module, modules: Sequence[nn.Module] = (), *, still: bool = False) -> Survey:
    """Look once at a model whose groups are to be prepared; `modules` are all in it, if they are known."""
    return Survey(root, _tied(modules or walk(root)[1]), still)


def _tied(modules: Sequence[nn.Module]) -> frozenset[int]:
    """Return the ids of the parameters that have several places in a model, or lie where another one lies."""
    every = [one for module in modules if module._parameters for one in module._parameters.values() if one is not None]
    unique = {id(one): one for one in every}
    plain = [one for one in unique.values() if type(one) is nn.Parameter]  # on meta each lies at 0, which is no place
    starts = [one.data_ptr() for one in plain]
    found: set[int] = set()
    if len(unique) < len(every):
        found.update([own for own, places in Counter(map(id, every)).items() if places > 1])
    if len(set(starts)) < len(starts):  # else none lies where another does, as in most models
        here = {start for start, there in Counter(starts).items() if start and there > 1}
        found |= {id(one) for one, start in zip(plain, starts, strict=True) if start in here}
    return frozenset(found)


@dataclass(slots=True)
class _Preparation:
    survey: Survey
    group: Group
    stacks: Stacks = field(default_factory=dict)
    converted: list[Converted] = field(default_factory=list)

    def prepared(self, codes: Pair, kernels: tuple[Kernel | None, Kernel | None], modes: tuple[Mode, Mode]) -> Prepared:
        layouts: dict[Any, nn.Module] = {}
        classes = tuple(map(type, self.group.modules))
        for code, mode in zip(codes, modes, strict=True):
            if code is None:
                continue
            key = code, mode, self.group.layers[0], classes
            if key not in self.survey.faults:
                self.survey.faults[key] = self._fault(code, mode)
            if fault := self.survey.faults[key]:
                raise Unfit(fault)
            if code not in layouts:
                layouts[code] = self._layout(code, codes[0] is codes[1], (code, classes))
        return Prepared(
            group=self.group,
            codes=codes,
            kernels=kernels,
            layouts=(layouts.get(codes[0]), layouts.get(codes[1])),
            stacks=tuple(self.stacks.values()),
            converted=tuple(self.converted),
            config=getattr(self.survey.root, "config", None),
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
            return f"{layout.__name__}{takes} takes other arguments than the {count} members of the fusion"
        return None

    def _layout(self, code: Any, alone: bool, key: Any) -> nn.Module:
        """Make a kernel's layout of the members, and let it read their tensors."""
        group, makes = self.group, self.survey.makes.setdefault(key, [])
        try:
            with nullcontext() if self.survey.still else randomness(group.modules):
                layout = construct(code, group.modules)
                if any(self._is_linked(make, code, layout) for make in makes):
                    return layout
                found = lay_out(code, layout, group.modules, group.paths, self.survey.root, group.parts)
        except Unfit:
            self._check_members(frozenset())  # what is around a parameter hides it, and is the better reason
            raise
        self._check_members(found.held)
        made = learn(group, layout, found) if len(makes) < _MAKES else None
        self._connect(code, layout, found, alone)
        if made is not None:
            makes.append(made)
        return layout

    def _is_linked(self, make: Make, code: Any, layout: nn.Module) -> bool:
        """Link a layout that is like the one of a group before, and say whether it is."""
        sources = make.sources(layout, self.group, self.survey.tied)
        if sources is None or self._missing(code, layout):
            return False
        keys = {own: stack_key(one.slots) for own, one in sources.items() if isinstance(one, Stack)}
        if any(map(self._clashes, keys.values())):
            return False
        stacks = {own: self.stacks.setdefault(key, sources[own]) for own, key in keys.items()}  # type: ignore[arg-type]
        link(layout, {**sources, **stacks}, self.group.modules[0])
        return True

    def _missing(self, code: Any, layout: nn.Module) -> str | None:
        """Return the first name that a kernel's forward reads and its layout has not."""
        if (reads := self.survey.reads.get(code)) is None:
            names = attributes(code.forward).reads
            reads = self.survey.reads[code] = sorted(name for name in names if not hasattr(code, name))
        own = layout.__dict__, layout._parameters, layout._modules
        for name in reads:
            if name not in own[0] and name not in own[1] and name not in own[2] and not hasattr(layout, name):
                return name
        return None

    def _connect(self, code: Any, layout: nn.Module, found: Scheme, alone: bool) -> None:
        """Let a layout read the members' tensors, if what it is made of suits it."""
        if missing := self._missing(code, layout):
            raise Unfit(f"its forward reads self.{missing}, which its layout, {type(layout).__name__}, has not")
        for name, stocks in found.stacked.items():
            self._stack(name, stocks, found)
        for name, stock in found.kept.items():
            self._check_shape(name, found, found.slots[stock].get().shape)
        if found.converted and not alone:
            names = ", ".join(name for one in found.converted for name in one.sources)
            raise Unfit(f"{type(layout).__name__} makes new parameters of {names}, so it has to run in every mode")
        self.converted += [self._conversion(one, found) for one in found.converted]
        connect(layout, found, self.stacks, self.converted, self.group.modules)

    def _stack(self, name: str, stocks: Sequence[str], found: Scheme) -> None:
        slots = [found.slots[stock] for stock in stocks]
        stack = Stack(slots)
        parts = stack.current()
        for stock, part in zip(stocks, parts, strict=True):
            self._check_free(stock, part)
        if apart := [stock for stock, part in zip(stocks, parts, strict=True) if not part.is_contiguous()]:
            strides = found.slots[apart[0]].get().stride()
            raise Unfit(f"{apart[0]} has strides {strides}, and what is stacked by rows has to lie row after row")
        if not stack.fits():
            raise Unfit(f"{' and '.join(stocks)} differ in dtype, device or width, or are no plain parameters")
        rows = sum([part.shape[0] for part in parts])
        self._check_shape(name, found, torch.Size([rows, *parts[0].shape[1:]]))
        key = stack_key(slots)
        if self._clashes(key):
            raise Unfit(f"{' and '.join(stocks)} are stacked in two ways")
        self.stacks.setdefault(key, stack)

    def _clashes(self, key: Any) -> bool:
        """Whether parameters are in another stack already, or twice in this one."""
        others = {place for other in self.stacks if other != key for place in other} if self.stacks else set()
        return bool(others.intersection(key)) or len(set(key)) < len(key)

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
        if type(parameter) is not nn.Parameter and not isinstance(parameter, nn.Parameter):  # which takes 1 µs
            raise Unfit(f"{stock} is no parameter, and cannot be converted")
        if id(parameter) in self.survey.tied:
            raise Unfit(f"{stock} is tied to another parameter, so it cannot move alone")

    def _check_shape(self, name: str, found: Scheme, shape: torch.Size) -> None:
        said = found.own[name].get().shape if name in found.own else None
        if said != shape:
            there = "is not there" if said is None else f"has shape {tuple(said)}"
            raise Unfit(f"{name} of the layout {there}, what it is made of has {tuple(shape)}")

    def _check_members(self, held: frozenset[int]) -> None:
        """Refuse members around which, or inside which, something is that the kernel would pass by; not by `held`."""
        for path, parts in zip(self.group.paths, self.group.parts, strict=True):
            for name, part in parts:
                passed = not name or id(part) not in held
                if passed and (found := around(part)):
                    raise Unfit(f"{f'{path}.{name}' if name else path} has {found}, which the kernel would pass by")

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


def fuse(prepared: Sequence[Prepared], owner: Owner) -> tuple[Fusion, ...]:
    """Make every fusion, or none: on an error the model is as it was before."""
    made: list[Fusion] = []
    try:
        for one in prepared:
            fusion = Fusion(one, owner, made[-1] if made else None)
            fusion.make(one.group.parts)
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
