"""Runs a plan on a model: all of it, or nothing.

Which row takes which module, and what each module will run, is settled before the first edit; then every edit goes on
a list that undoes them all, should one fail or the user want the model back.
"""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from functools import cached_property
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self

from torch import nn
from torch.jit import ScriptModule

from kerncfg.applier import attention
from kerncfg.applier.adapters.attention_calls import Run, intercepted
from kerncfg.applier.adapters.torch import compiled, unwrapped, walk
from kerncfg.applier.added import added
from kerncfg.applier.bind import Edit, Owner, bind, bound, unbind, unbind_all
from kerncfg.applier.binding import Binding, mode_of, sites_of
from kerncfg.applier.deterministic import Hold, hold, notes, release, release_all
from kerncfg.applier.fuse import unfuse
from kerncfg.applier.report import Report, ReportRow
from kerncfg.applier.settle import Settled, settle
from kerncfg.applier.telling import rows_of
from kerncfg.documents.plan import Plan
from kerncfg.documents.target import Mode
from kerncfg.errors import ApplyError, ConflictError

if TYPE_CHECKING:
    from kerncfg.applier.bound import Bound

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
    owner = Owner.of(", ".join(step.title for step in plan.steps if step.kind != "keep") or "no kernel")
    with _collector_paused():
        settled = settle(plan, root, modes, owner)
        _check_replicas(settled)
        held = hold(plan, model, owner.number)
        try:
            settled.do(root)
        except BaseException:
            release(held)
            raise
    settled.findings = replace(settled.findings, notes=(*settled.findings.notes, *notes(plan)))
    return Bindings(plan=plan, model=model, settled=settled, held=held)


def revert(model: nn.Module) -> None:
    """Give every module of a model its own forward back, whoever applied what to it; copies and parts too."""
    attention.revert(model)
    modules = walk(model)[1]
    for module in modules:
        unfuse(module)
        unbind_all(module)
    release_all(set(map(id, modules)))


class Bindings:
    """What one apply did to a model, and the way back: `revert()`, or the end of a `with`."""

    def __init__(self, *, plan: Plan, model: nn.Module, settled: Settled, held: Hold | None = None) -> None:
        self.plan = plan
        self.model = model
        self._settled = settled
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
            self._undo()  # what was applied later stays on, over the original
            attended = self._settled.attended
            if attended is not None and not attended.covered:
                attended.revert()
            error.add_note(f"kerncfg: {conflict.message}; kerncfg.revert(model) takes that back too")

    def __repr__(self) -> str:
        counts = self.report.counts
        return (
            f"<Bindings of {self._settled.owner}: {', '.join(f'{count} {status}' for status, count in counts.items())}>"
        )

    @cached_property
    def sites(self) -> tuple[Binding, ...]:
        """What runs a kernel in some mode, in the model's order: layers, functions, fusions and attention."""
        return sites_of(self._settled)

    @contextmanager
    def originals(self, attending: Callable[[attention.Wanted], bool] | None = None) -> Iterator[None]:
        """Let every module run its own forward, and use its own attention, for as long as a `with` lasts.

        `attending` says which parts go on with the attention that was chosen for them.

        Raises:
            ApplyError: These parts cannot do so without the others.
        """
        edit = Edit(Owner.of("original forwards"), (None, None), (None, None))
        with ExitStack() as undo:
            if self._settled.attended is not None:
                undo.enter_context(self._settled.attended.suspended(attending))
            for module in {id(module): module for module, _ in self._settled.edits()}.values():
                if bound(module) is not None:
                    bind(module, edit)
                    undo.callback(unbind, module, edit)
            yield

    @contextmanager
    def watched(self, run: Run, *, own: bool) -> Iterator[None]:
        """Let `run(function, module, arguments, keywords)` stand for the model's own attention, or the chosen one.

        Every module runs its own forward meanwhile.
        """
        attended = self._settled.attended
        names = [was if own else name for _, was, name in attended.choices] if attended is not None else []
        with self.originals(None if own else lambda _: True), intercepted(names, run):
            yield

    @property
    def modes(self) -> tuple[Mode, Mode]:
        """The modes that the kernels follow, when not training and when training: the same one twice if it is fixed."""
        return self._settled.modes

    @property
    def report(self) -> Report:
        """Every site as it is now: what its present mode runs, or that it was reverted, or added, since."""
        rows = list(rows_of(self._settled))
        found = self._settled.findings
        try:
            rows += added(self._settled, self.plan, _root(self.model))
        except ApplyError as error:
            found = replace(found, notes=(*found.notes, f"added after apply: {error.message}"))
        return Report(rows=tuple(rows), notes=found.notes, idle=found.idle, absent=found.absent)

    def _edits(self) -> Iterator[tuple[Bound, Edit]]:
        """Yield the edits that are still there, each with what it is part of."""
        for module, edit in self._settled.edits():
            if (made := bound(module)) is not None and made.has(edit):
                yield made, edit

    def revert(self) -> None:
        """Give the modules back what they ran before; twice is harmless.

        Raises:
            ConflictError: Something was applied later to the same model, and is still on.
        """
        owner, attended = self._settled.owner, self._settled.attended
        on = any(self._edits()) or (attended is not None and attended.active)
        for module in walk(self.model)[1] if on else ():
            made, held = bound(module), attention.Held.of(module)
            later = made.edit.owner if made is not None else owner
            if later.number <= owner.number and held is not None and held.owner is not None:
                later = held.owner
            if later.number > owner.number:
                raise ConflictError(
                    f"{owner} cannot be reverted while {later} is on this model",
                    hint="revert in reverse order, or all at once with kerncfg.revert(model)",
                )
        if attended is not None:
            attended.revert()
        self._undo()

    def _undo(self) -> None:
        for made, edit in reversed(list(self._edits())):
            made.drop(edit)
        for one in reversed(self._settled.fusions):
            if one.fusion is not None:
                one.fusion.revert()
        release(self._held)


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
        raise _replicas("model")
    return root


def _check_replicas(settled: Settled) -> None:
    """Refuse a model in which a part is a `DataParallel`.

    Raises:
        ApplyError: There is one.
    """
    modules = settled.sites.modules
    if any([issubclass(cls, nn.DataParallel) for cls in set(map(type, modules))]):
        found = next(place for place, module in enumerate(modules) if isinstance(module, nn.DataParallel))
        raise _replicas(f"model.{settled.sites.paths[found]}")


def _replicas(place: str) -> ApplyError:
    return ApplyError(
        "the replicas of a DataParallel would all run the first one's kernels",
        hint=f"use DistributedDataParallel, or apply to {place}.module and run that",
    )


def _modes(mode: Mode | str | None, compile: bool, model: nn.Module) -> tuple[Mode, Mode]:
    """Return the modes when not training and when training: the same one twice if it is fixed."""
    is_compiled = compile or compiled(model)
    if mode is None:
        return _COMPILE if is_compiled else _PLAIN
    mode = mode_of(mode)
    fixed = _COMPILE[mode.training] if compile else mode
    if is_compiled and not fixed.compiled:
        raise ApplyError(
            f"the model is compiled, and {fixed} is for models that are not",
            hint=f"give mode={_COMPILE[fixed.training].value!r}, or apply before torch.compile",
        )
    return fixed, fixed


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
