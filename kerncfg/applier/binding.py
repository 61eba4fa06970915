"""What an apply bound where: each module, function, fusion and attention that runs a kernel, and what ran before."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from types import MethodType
from typing import TYPE_CHECKING, Any

from kerncfg.applier.adapters.attention_calls import function_of
from kerncfg.applier.attention import Held
from kerncfg.applier.functions import counted
from kerncfg.applier.fused import Members
from kerncfg.documents.target import Mode
from kerncfg.errors import ApplyError

if TYPE_CHECKING:
    from torch import nn

    from kerncfg.applier.adapters import Site
    from kerncfg.applier.decide import Decided
    from kerncfg.applier.functions import FunctionSite
    from kerncfg.applier.fusing import FusionSite
    from kerncfg.applier.settle import Settled
    from kerncfg.documents.plan import Kernel, Step

__all__ = ["Binding", "mode_of", "sites_of"]

_Forwards = Sequence[Callable[..., Any] | None]


@dataclass(frozen=True, slots=True, kw_only=True)
class Binding:
    """One site that runs a kernel in some mode; `None` among `kernels` is the original. `kind` is the report's.

    Of a fusion, `module` is the first member, which is called, and `whole` a module that holds all of them and runs
    their own forwards one after the other: its parameters are the kernel's, and a copy of it is a copy of the site.
    Of a function, `module` is the caller, and `calls` says how often the kernel ran so far in what `forward` returned,
    for a forward need not come by it. Of attention, `module` is what calls it, and `own` what was called before; what
    these return is the first of the two results, for the second, the weights, is nobody's but eager's.
    """

    path: str
    name: str
    module: nn.Module
    kernels: Mapping[Mode, Kernel | None]
    forwards: Mapping[Mode, Callable[..., Any] | None]
    whole: nn.Module
    kind: str = "layer"
    calls: Callable[[], int] | None = None
    others: Sequence[Mapping[Mode, Callable[..., Any] | None]] = ()  # the forwards of a fusion's further members
    own: Callable[..., Any] | None = None

    @property
    def modules(self) -> tuple[nn.Module, ...]:
        """The modules whose forwards were replaced: the module itself, or all members of a fusion."""
        return tuple(self.whole.members()) if isinstance(self.whole, Members) else (self.module,)

    def runs(self, mode: Mode) -> list[tuple[nn.Module, Callable[..., Any] | None]]:
        """Return each of the modules with the forward that it has in a mode; `None` is its own."""
        each = (self.forwards, *self.others)
        return [(module, forwards[mode]) for module, forwards in zip(self.modules, each, strict=True)]

    def original(self, whole: nn.Module | None = None) -> Callable[..., Any]:
        """Return what ran here before any kernel, or, of a copy of `whole`, what would run there."""
        found = self.whole if whole is None else whole
        return MethodType(type(found).forward if self.own is None else self.own, found)

    def forward(self, mode: Mode | str) -> Callable[..., Any]:
        """Return what runs in a mode of this apply, as a method of the module.

        Raises:
            ApplyError: This apply has not that mode.
        """
        mode = mode_of(mode)
        if mode not in self.forwards:
            raise ApplyError(f"{self.path}: nothing was applied for {mode}, only for {', '.join(self.forwards)}")
        found = self.forwards[mode]
        return self.original() if found is None else MethodType(found, self.module)


def mode_of(mode: Mode | str) -> Mode:
    """Return a mode by its name.

    Raises:
        ApplyError: There is none of that name.
    """
    try:
        return Mode(mode)
    except ValueError:
        raise ApplyError(f"no mode {mode!r}", hint=f"the modes are {', '.join(Mode)}") from None


def sites_of(settled: Settled) -> tuple[Binding, ...]:
    """Return the bindings of an apply, in the model's order."""
    found = [_own(settled, *record, record[2].edit.forwards) for record in _layers(settled)]
    found += [_called(settled, one) for one in settled.functions if one.decided.swaps]
    found += [_fused(settled, one) for one in settled.fusions if one.fusion is not None]
    found += _attending(settled)
    places = {path: place for place, path in enumerate(settled.sites.paths)}
    return tuple(sorted(found, key=lambda binding: places[binding.path]))


def _layers(settled: Settled) -> Iterator[tuple[Site, Step, Decided]]:
    for place, (claim, decided) in enumerate(zip(settled.claims, settled.decided, strict=True)):
        if claim is not None and decided is not None and decided.swaps:
            yield settled.sites[place], claim[0], decided


def _called(settled: Settled, one: FunctionSite) -> Binding:
    forwards, counter = counted(one)
    return _own(settled, one.site, one.step, one.decided, forwards, kind="function", calls=lambda: counter.calls)


def _attending(settled: Settled) -> Iterator[Binding]:
    """Yield a binding for each module that calls the attention of a part, where its functions are known."""
    rows = {id(one.wanted): one for one in settled.attention}
    for wanted, before, name in settled.attended.choices if settled.attended is not None else ():
        kernels = [verdict.kernel for verdict in rows[id(wanted)].verdicts]
        for place in wanted.part.places:
            own, now = function_of(place, before), function_of(place, name)
            if own is None or now is None:
                continue
            chosen = _first(now, _configs(settled, place.module))
            forwards = [chosen if kernel is not None else None for kernel in kernels]
            yield Binding(
                path=place.path,
                name=wanted.name,
                module=place.module,
                kernels=dict(zip(settled.modes, kernels, strict=True)),
                forwards=dict(zip(settled.modes, forwards, strict=True)),
                whole=place.module,
                kind="attention",
                own=_first(own, {}),
            )


def _configs(settled: Settled, module: nn.Module) -> dict[str, Any]:
    """Return the private configurations that this apply gave a module, by attribute."""
    held = Held.of(module)
    while held is not None and held.owner is not settled.owner:
        held = held.below
    return {} if held is None else {name: swap.private for name, swap in held.swaps.items()}


def _first(function: Callable[..., Any], configs: Mapping[str, Any]) -> Callable[..., Any]:
    """Return attention without its weights; flash attention looks for its name in the module, which so has it then."""

    def attention(module: nn.Module, *arguments: Any, **keywords: Any) -> Any:
        entries = module.__dict__
        before = {name: entries[name] for name in configs if name in entries}
        entries.update({name: configs[name] for name in before})
        try:
            result, _ = function(module, *arguments, **keywords)
        finally:
            entries.update(before)
        return result

    return attention


def _own(settled: Settled, site: Site, step: Step, decided: Decided, forwards: _Forwards, **more: Any) -> Binding:
    return Binding(
        path=site.path,
        name=step.name,
        module=site.module,
        kernels=dict(zip(settled.modes, decided.edit.kernels, strict=True)),
        forwards=dict(zip(settled.modes, forwards, strict=True)),
        whole=site.module,
        **more,
    )


def _fused(settled: Settled, one: FusionSite) -> Binding:
    fusion = one.fusion
    assert fusion is not None
    first, *others = (dict(zip(settled.modes, edit.forwards, strict=True)) for edit in fusion.edits)
    return Binding(
        path=one.group.path,
        name=one.step.name,
        module=fusion.members[0],
        kernels=dict(zip(settled.modes, fusion.kernels, strict=True)),
        forwards=first,
        others=others,
        whole=Members.of(fusion) if len(fusion.members) > 1 else fusion.members[0],
        kind="fusion" if one.step.node == "fusions" else "layer",
    )
