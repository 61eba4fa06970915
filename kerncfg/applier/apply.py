"""Runs a plan on a model: all of it, or nothing.

Which row takes which module, and what each module will run, is settled before the first edit; then every edit goes on
a list that undoes them all, should one fail or the user want the model back.
"""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from types import MethodType, TracebackType
from typing import TYPE_CHECKING, Any, Self

from torch import nn
from torch.jit import ScriptModule

from kerncfg.applier.adapters import Site, Sites, adapter_for
from kerncfg.applier.adapters.torch import compiled, unwrapped, walk
from kerncfg.applier.bind import Edit, Owner, bind, bound, unbind, unbind_all
from kerncfg.applier.decide import Decided, Decisions
from kerncfg.applier.findings import check
from kerncfg.applier.match import Claim, claims
from kerncfg.applier.report import Report, ReportRow
from kerncfg.documents.target import Mode
from kerncfg.errors import ApplyError, ConflictError

if TYPE_CHECKING:
    from kerncfg.documents.plan import Kernel, Plan, Step

__all__ = ["Binding", "Bindings", "Report", "ReportRow", "apply", "revert"]

_PLAIN = (Mode.INFERENCE, Mode.TRAINING)
_COMPILE = (Mode.INFERENCE_COMPILE, Mode.TRAINING_COMPILE)


def apply(plan: Plan, model: nn.Module, mode: Mode | str | None = None, compile: bool = False) -> Bindings:
    """Make a model run a plan's kernels; on an error it is as it was before.

    Without `mode` the kernels follow `model.train()` and `model.eval()`; a given mode is fixed. `compile` selects the
    modes for `torch.compile`, and so does a model that is compiled already.

    Raises:
        ApplyError: The plan cannot be carried out on this model, or a strict plan leaves a row without effect.
        ConflictError: Two rows take one module.
        ContractError: A kernel does not fit, and its row may not fall back.
        TrustError: Nobody consented to a kernel's code.
    """
    root = _root(model)
    modes = _modes(mode, compile, model)
    owner = Owner.of(", ".join(step.name for step in plan.steps if step.kind == "bind") or "no kernel")
    with _collector_paused():
        sites = adapter_for(root).sites(root)
        taken = claims(sites, plan.steps)
        decisions = Decisions(plan, modes, owner)
        decisions.admit({id(claim): claim[0] for claim in taken if claim is not None}.values(), root)
        decided = decisions.decide(sites, taken)
        notes = check(plan, sites, taken, decided)
        _bind(sites.modules, decided)
    return Bindings(
        plan=plan, model=model, owner=owner, modes=modes, sites=sites, claims=taken, decided=decided, notes=notes
    )


def revert(model: nn.Module) -> None:
    """Give every module of a model its own forward back, whoever applied what to it; copies and parts too."""
    for module in walk(model)[1]:
        unbind_all(module)


@dataclass(frozen=True, slots=True, kw_only=True)
class Binding:
    """One module that runs a kernel in some mode; `None` among `kernels` is the original."""

    path: str
    name: str
    module: nn.Module
    kernels: Mapping[Mode, Kernel | None]
    forwards: Mapping[Mode, Callable[..., Any] | None]

    def original(self) -> Callable[..., Any]:
        """Return the module's own forward."""
        return MethodType(type(self.module).forward, self.module)

    def forward(self, mode: Mode | str) -> Callable[..., Any]:
        """Return what runs in a mode of this apply, as a method of the module.

        Raises:
            ApplyError: This apply has not that mode.
        """
        mode = _mode(mode)
        if mode not in self.forwards:
            raise ApplyError(f"{self.path}: nothing was applied for {mode}, only for {', '.join(self.forwards)}")
        found = self.forwards[mode]
        return self.original() if found is None else MethodType(found, self.module)


class Bindings:
    """What one apply did to a model, and the way back: `revert()`, or the end of a `with`."""

    def __init__(
        self,
        *,
        plan: Plan,
        model: nn.Module,
        owner: Owner,
        modes: tuple[Mode, Mode],
        sites: Sites,
        claims: list[Claim | None],
        decided: list[Decided | None],
        notes: tuple[str, ...],
    ) -> None:
        self.plan = plan
        self.model = model
        self._owner = owner
        self._modes = modes
        self._sites = sites
        self._claims = claims
        self._decided = decided
        self._notes = notes

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.revert()

    def __repr__(self) -> str:
        counts = self.report.counts
        return f"<Bindings of {self._owner}: {', '.join(f'{count} {status}' for status, count in counts.items())}>"

    @cached_property
    def sites(self) -> tuple[Binding, ...]:
        """The modules that run a kernel in some mode, in the model's order."""
        return tuple(
            Binding(
                path=site.path,
                name=step.name,
                module=site.module,
                kernels=dict(zip(self._modes, decided.edit.kernels, strict=True)),
                forwards=dict(zip(self._modes, decided.edit.forwards, strict=True)),
            )
            for site, step, decided in self._records()
            if decided.swaps
        )

    @property
    def report(self) -> Report:
        """Every site as it is now: what its present mode runs, or that it was reverted since."""
        return Report(rows=tuple(self._row(*record) for record in self._records()), notes=self._notes)

    def _records(self) -> Iterator[tuple[Site, Step, Decided]]:
        for place, (claim, decided) in enumerate(zip(self._claims, self._decided, strict=True)):
            if claim is not None and decided is not None:
                yield self._sites[place], claim[0], decided

    def _edits(self) -> Iterator[tuple[nn.Module, Edit]]:
        """Yield the edits that are still there."""
        for module, decided in zip(self._sites.modules, self._decided, strict=True):
            if decided is not None and (made := bound(module)) is not None and made.has(decided.edit):
                yield module, decided.edit

    def _row(self, site: Site, step: Step, decided: Decided) -> ReportRow:
        training = site.module.training
        verdict = decided.verdicts[training]
        status, kernel, reason = verdict.status, verdict.kernel, verdict.reason
        if decided.swaps and (undone := self._undone(site.module, decided.edit)):
            status, kernel, reason = "kept", None, undone
        kernels = zip(self._modes, decided.edit.kernels, strict=True)
        return ReportRow(
            path=site.path,
            name=step.name,
            kind="layer",
            status=status,
            kernel=str(kernel.reference) if kernel is not None else None,
            mode=self._modes[training].value,
            reason=reason,
            modes={mode.value: str(found.reference) if found else "original" for mode, found in kernels},
        )

    def _undone(self, module: nn.Module, edit: Edit) -> str | None:
        made = bound(module)
        if made is None or not made.has(edit):
            return "reverted"
        return None if made.edit is edit else f"{made.edit.owner} decides here"

    def revert(self) -> None:
        """Give the modules back what they ran before; twice is harmless.

        Raises:
            ConflictError: Something was applied later to the same model, and is still on.
        """
        mine = list(self._edits())
        for module in walk(self.model)[1] if mine else ():
            made = bound(module)
            if made is not None and made.edit.owner.number > self._owner.number:
                raise ConflictError(
                    f"{self._owner} cannot be reverted while {made.edit.owner} is on this model",
                    hint="revert in reverse order, or all at once with kerncfg.revert(model)",
                )
        for module, edit in reversed(mine):
            unbind(module, edit)


def _bind(modules: Sequence[nn.Module], outcomes: Sequence[Decided | None]) -> None:
    """Edit every module that gets a kernel, or whose kernel of an earlier apply is not this one's."""
    count = 0
    try:
        for module, decided in zip(modules, outcomes, strict=True):
            count += 1
            if decided is not None and (decided.swaps or bound(module) is not None):
                bind(module, decided.edit)
    except BaseException:
        for module, decided in zip(reversed(modules[:count]), reversed(outcomes[:count]), strict=True):
            if decided is not None:
                unbind(module, decided.edit)
        raise


def _root(model: nn.Module) -> nn.Module:
    if not isinstance(model, nn.Module):
        raise ApplyError(f"a model is a torch.nn.Module, found a {type(model).__qualname__}")
    root = unwrapped(model)
    if isinstance(root, ScriptModule):
        raise ApplyError(
            f"a {type(root).__qualname__} runs code of its own, which no kernel can replace",
            hint="apply the plan to the model before torch.jit turns it into this",
        )
    if isinstance(root, nn.DataParallel):
        raise ApplyError(
            "the replicas of a DataParallel would all run the first one's kernels",
            hint="use DistributedDataParallel, or apply to model.module and run that",
        )
    return root


def _modes(mode: Mode | str | None, compile: bool, model: nn.Module) -> tuple[Mode, Mode]:
    """Return the modes when not training and when training: the same one twice if it is fixed."""
    is_compiled = compile or compiled(model)
    if mode is None:
        return _COMPILE if is_compiled else _PLAIN
    mode = _mode(mode)
    fixed = _COMPILE[mode.training] if compile else mode
    if is_compiled and not fixed.compiled:
        raise ApplyError(
            f"the model is compiled, and {fixed} is for models that are not",
            hint=f"give mode={_COMPILE[fixed.training].value!r}, or apply before torch.compile",
        )
    return fixed, fixed


def _mode(mode: Mode | str) -> Mode:
    try:
        return Mode(mode)
    except ValueError:
        raise ApplyError(f"no mode {mode!r}", hint=f"the modes are {', '.join(Mode)}") from None


@contextmanager
def _collector_paused() -> Iterator[None]:
    """Keep the garbage collector still: with it, binding 10,000 modules takes 8 times as long, and frees nothing."""
    running = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if running:
            gc.enable()
