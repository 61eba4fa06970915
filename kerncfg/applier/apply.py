"""Runs a plan on a model: all of it, or nothing.

Which row takes which module, and what each module will run, is settled before the first edit; then every edit goes on
a list that undoes them all, should one fail or the user want the model back.
"""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import cached_property
from types import MethodType, TracebackType
from typing import TYPE_CHECKING, Any, Self

from torch import nn
from torch.jit import ScriptModule

from kerncfg.applier.adapters import Site, Sites, adapter_for
from kerncfg.applier.adapters.torch import compiled, unwrapped, walk
from kerncfg.applier.bind import Owner, bind, bound, is_plain, running, unbind, unbind_all
from kerncfg.applier.decide import Decided, Decisions
from kerncfg.applier.deterministic import Hold, hold, notes, release, release_all
from kerncfg.applier.findings import Findings, check
from kerncfg.applier.functions import FunctionDecisions, FunctionSite, counted, function_claims
from kerncfg.applier.match import Claim, claims
from kerncfg.applier.report import Report, ReportRow
from kerncfg.documents.plan import Plan
from kerncfg.documents.target import Mode
from kerncfg.errors import ApplyError, ConflictError

if TYPE_CHECKING:
    from kerncfg.applier.bind import Edit
    from kerncfg.applier.bound import Bound
    from kerncfg.documents.plan import Kernel, Step

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
    _check_plan(plan, model)
    root = _root(model)
    modes = _modes(mode, compile, model)
    owner = Owner.of(", ".join(step.name for step in plan.steps if step.kind == "bind") or "no kernel")
    with _collector_paused():
        sites = adapter_for(root).sites(root)
        taken = claims(sites, plan.steps)
        decisions = Decisions(plan, modes, owner)
        called = function_claims(sites, plan.steps)
        steps = {id(claim[0]): claim[0] for claim in taken if claim is not None}
        decisions.admit([*{**steps, **{id(one.claim[0]): one.claim[0] for one in called}}.values()], root)
        decided = decisions.decide(sites, taken)
        functions = FunctionDecisions(decisions).decide_functions(called, decided, taken) if called else []
        findings = check(plan, sites, taken, decided, functions, decisions.hints)
        held = hold(plan, model, owner.number)
        try:
            _bind(sites.modules, decided, _edited(functions))
        except BaseException:
            release(held)
            raise
    return Bindings(
        plan=plan,
        model=model,
        owner=owner,
        modes=modes,
        sites=sites,
        claims=taken,
        decided=decided,
        functions=functions,
        findings=replace(findings, notes=(*findings.notes, *notes(plan))),
        held=held,
    )


def revert(model: nn.Module) -> None:
    """Give every module of a model its own forward back, whoever applied what to it; copies and parts too."""
    modules = walk(model)[1]
    for module in modules:
        unbind_all(module)
    release_all(set(map(id, modules)))


@dataclass(frozen=True, slots=True, kw_only=True)
class Binding:
    """One module that runs a kernel in some mode; `None` among `kernels` is the original.

    `kind` is the report's. Where the kernel is only a part of the forward, `calls` says how often it ran so far in what
    `forward` returned, for a forward need not come by it.
    """

    path: str
    name: str
    module: nn.Module
    kernels: Mapping[Mode, Kernel | None]
    forwards: Mapping[Mode, Callable[..., Any] | None]
    kind: str = "layer"
    calls: Callable[[], int] | None = None

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
        functions: list[FunctionSite],
        findings: Findings,
        held: Hold | None = None,
    ) -> None:
        self.plan = plan
        self.model = model
        self._owner = owner
        self._modes = modes
        self._sites = sites
        self._claims = claims
        self._decided = decided
        self._functions = functions
        self._findings = findings
        self._held = held

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            self.revert()
        except ConflictError as conflict:
            if error is None:
                raise
            for made, edit in reversed(list(self._edits())):  # what was applied later stays on, over the original
                made.drop(edit)
            release(self._held)
            error.add_note(f"kerncfg: {conflict.message}; kerncfg.revert(model) takes that back too")

    def __repr__(self) -> str:
        counts = self.report.counts
        return f"<Bindings of {self._owner}: {', '.join(f'{count} {status}' for status, count in counts.items())}>"

    @cached_property
    def sites(self) -> tuple[Binding, ...]:
        """The modules that run a kernel in some mode, in the model's order; one for each function that it replaces."""
        found = [
            self._binding(site, step, decided, decided.edit.forwards)
            for site, step, decided in self._records()
            if decided.swaps
        ]
        called = [(one, *counted(one)) for one in self._functions if one.decided.swaps]
        found += [
            self._binding(one.site, one.step, one.decided, forwards, kind="function", calls=lambda it=counter: it.calls)
            for one, forwards, counter in called
        ]
        if called:
            places = {path: place for place, path in enumerate(self._sites.paths)}
            found.sort(key=lambda binding: places[binding.path])
        return tuple(found)

    def _binding(self, site: Site, step: Step, decided: Decided, forwards: Sequence[Any], **more: Any) -> Binding:
        return Binding(
            path=site.path,
            name=step.name,
            module=site.module,
            kernels=dict(zip(self._modes, decided.edit.kernels, strict=True)),
            forwards=dict(zip(self._modes, forwards, strict=True)),
            **more,
        )

    @property
    def modes(self) -> tuple[Mode, Mode]:
        """The modes that the kernels follow, when not training and when training: the same one twice if it is fixed."""
        return self._modes

    @property
    def report(self) -> Report:
        """Every site as it is now: what its present mode runs, or that it was reverted, or added, since."""
        rows = [self._row(site, step, decided, decided.edit) for site, step, decided in self._records()]
        rows += [self._row(one.site, one.step, one.decided, one.edit, "function") for one in self._functions]
        if self._functions:
            places = {path: place for place, path in enumerate(self._sites.paths)}
            rows.sort(key=lambda row: places[row.path])
        found = self._findings
        try:
            rows += self._added()
        except ConflictError as error:
            found = replace(found, notes=(*found.notes, f"added after apply: {error.message}"))
        return Report(rows=tuple(rows), notes=found.notes, idle=found.idle, absent=found.absent)

    def _added(self) -> Iterator[ReportRow]:
        """Yield a row for each module that came into the model since, and that the plan has a kernel for."""
        root = _root(self.model)
        known = set(map(id, self._sites.modules))
        if all(id(module) in known for module in walk(root)[1]):
            return
        sites = adapter_for(root).sites(root)
        layers = [(place, claim, "layer") for place, claim in enumerate(claims(sites, self.plan.steps)) if claim]
        functions = [(one.place, one.claim, "function") for one in function_claims(sites, self.plan.steps)]
        for place, (step, excluding), kind in sorted((*layers, *functions), key=lambda found: found[0]):
            if excluding is None and step.kind == "bind" and id(sites.modules[place]) not in known:
                mode = self._modes[sites.modules[place].training]
                yield ReportRow(
                    path=sites.paths[place],
                    name=step.name,
                    kind=kind,
                    status="kept",
                    kernel=None,
                    mode=mode.value,
                    reason="added after apply; apply again to cover it",
                    modes={mode.value: "original" for mode in self._modes},
                )

    def _records(self) -> Iterator[tuple[Site, Step, Decided]]:
        for place, (claim, decided) in enumerate(zip(self._claims, self._decided, strict=True)):
            if claim is not None and decided is not None:
                yield self._sites[place], claim[0], decided

    def _edits(self) -> Iterator[tuple[Bound, Edit]]:
        """Yield the edits that are still there, each with what it is part of."""
        for module, decided in zip(self._sites.modules, self._decided, strict=True):
            if decided is not None and (made := bound(module)) is not None and made.has(decided.edit):
                yield made, decided.edit
        for module, edit in _edited(self._functions):
            if (made := bound(module)) is not None and made.has(edit):
                yield made, edit

    def _row(self, site: Site, step: Step, decided: Decided, edit: Edit | None, kind: str = "layer") -> ReportRow:
        training = site.module.training
        runs, changed = running(site.module, edit) if decided.swaps and edit is not None else (training, None)
        verdict = decided.verdicts[training if runs is None else runs]
        status, kernel, reason = verdict.status, verdict.kernel, changed or verdict.reason
        if runs is None:
            status, kernel = "kept", None
        kernels = zip(self._modes, decided.edit.kernels, strict=True)
        return ReportRow(
            path=site.path,
            name=step.name,
            kind=kind,
            status=status,
            kernel=str(kernel.reference) if kernel is not None else None,
            mode=self._modes[training].value,
            reason=reason,
            modes={mode.value: str(found.reference) if found else "original" for mode, found in kernels},
        )

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
        for made, edit in reversed(mine):
            made.drop(edit)
        release(self._held)


def _edited(functions: Sequence[FunctionSite]) -> list[tuple[nn.Module, Edit]]:
    """Return the modules whose forward calls other functions, each once, with its edit."""
    edits = ((one.site.module, one.edit) for one in functions if one.edit is not None)
    return list({id(module): (module, edit) for module, edit in edits}.values())


def _bind(
    modules: Sequence[nn.Module],
    outcomes: Sequence[Decided | None],
    functions: Sequence[tuple[nn.Module, Edit]],
) -> None:
    """Edit every module that gets a kernel, or whose kernel of an earlier apply is not this one's."""
    count = 0
    plain: dict[type, bool] = {}
    try:
        for module, decided in zip(modules, outcomes, strict=True):
            count += 1
            if decided is not None and (decided.swaps or bound(module) is not None):
                if (cls := type(module)) not in plain:
                    plain[cls] = is_plain(cls)
                bind(module, decided.edit, plain[cls])
        for module, edit in functions:
            bind(module, edit)
    except BaseException:
        for module, edit in reversed(functions):
            unbind(module, edit)
        for module, decided in zip(reversed(modules[:count]), reversed(outcomes[:count]), strict=True):
            if decided is not None:
                unbind(module, decided.edit)
        raise


def _check_plan(plan: Any, model: Any) -> None:
    if not isinstance(plan, Plan):
        hint = "write apply(plan, model)" if isinstance(model, Plan) else "make one with kerncfg.plan(...)"
        raise ApplyError(f"a plan is a kerncfg.Plan, found a {type(plan).__qualname__}", hint=hint)


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
