"""The whole model with all its kernels, and with each alone, against itself without: what no single call shows.

A kernel that is right for the first call and wrong for a later one, or that returns memory it uses again, is found
here and nowhere else. Models amplify differences, so the yardstick is what the model itself makes of rounding:
`judge.judge_rows`.
"""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, nullcontext, suppress
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any

import torch
from torch.utils import _pytree as pytree

from kerncfg.applier.bind import Edit, Owner, bind, unbind
from kerncfg.errors import ApplyError
from kerncfg.evidence.capture import Forgetful, originals
from kerncfg.evidence.compare import Thresholds, compare, structure
from kerncfg.evidence.contents import cloned, contents, equal, foreign, one_line, settled
from kerncfg.evidence.judge import Difference, judge, judge_rows
from kerncfg.evidence.keeping import undisturbed
from kerncfg.evidence.listening import nothing_of_padding
from kerncfg.evidence.padding import Padding, is_all, may_pad, moved_rows, told, without
from kerncfg.evidence.process import process_kept
from kerncfg.evidence.rows import Alone, Whole
from kerncfg.evidence.widen import Wide, own_copy, widened

if TYPE_CHECKING:
    from torch import nn

    from kerncfg.applier.apply import Bindings
    from kerncfg.documents.plan import Kernel
    from kerncfg.documents.target import Mode

__all__ = ["MOVED", "failed", "whole"]

_SEED = 20_260_101
# Runs with roundings moved. One run's error may be small by luck, in a single number by a factor of 8 once in 13
# times; that of all five is in one of 300,000.
MOVED = 4
_RANDOM = "none, the model draws random numbers: its output is shown and not judged"
_NOBODYS = "none, all of the output is computed from padding, which is nobody's: it is not judged"

_MEASURES = ("max_abs", "max_rel", "identical", "within")

Parts = dict[str, Any]


def whole(
    bindings: Bindings,
    inputs: Mapping[str, Any],
    modes: Sequence[Mode],
    thresholds: Thresholds,
    notes: list[str] | None = None,
) -> Whole:
    """Compare the model's output in each mode that swaps something; return the first that fails, else the first.

    In the mode that is returned every kernel runs alone besides. The model is left as it was before. `notes` get what
    is to be said of what was not compared.
    """
    swapping = [mode for mode in modes if any(site.kernels.get(mode) for site in bindings.sites)]
    first: tuple[_Comparison, Whole] | None = None
    with undisturbed(bindings.model, [part for site in bindings.sites for part in site.modules]) as again:
        for mode in swapping:
            comparison = _Comparison(bindings, inputs, mode, thresholds, again)
            row = comparison.row(first and first[0])
            if notes is not None:
                notes += [note for note in comparison.notes if note not in notes]
            if not row.passed:
                return comparison.apart(row)
            first = first or (comparison, row)
        assert first is not None  # a site swaps in some mode
        return first[0].apart(first[1])


def failed(mode: Mode, reason: str) -> Whole:
    """Return the row of a model that could not be compared."""
    return _row(mode, Difference(reasons=(reason,)), reference="none", passed=False)


class _TogetherOnly(Exception):
    """The attention of a row cannot be used without that of another."""


class _Comparison:
    """One mode: the original's result, the kernels', and as many more as it takes to tell them apart."""

    def __init__(
        self,
        bindings: Bindings,
        inputs: Mapping[str, Any],
        mode: Mode,
        thresholds: Thresholds,
        again: Callable[[], None],
    ) -> None:
        self._bindings, self._inputs, self._mode, self._thresholds = bindings, inputs, mode, thresholds
        self._again = again
        self._grad = mode.training
        self._draws = False
        self._own: Parts | None = None
        self._reference: tuple[str, Parts | None] = ("none", None)
        self._others: list[Parts] = []
        self._attending = any(site.kind == "attention" for site in bindings.sites)
        # What of the result is computed from padding, by place; `None` where that could not be found out.
        self._padding: Mapping[str, torch.Tensor] | None = {}
        self._disturbed: list[Parts] = []  # the original's result with other padding, where that was run
        self.notes: tuple[str, ...] = ()

    def row(self, before: _Comparison | None) -> Whole:
        try:
            self._own = self._original()
        except BaseException as error:
            foreign(error)
            return failed(self._mode, f"cannot be compared: without kernels it raised {one_line(error)}")
        if self._attending and may_pad(self._inputs, self._bindings.model):
            draws = self._draws
            self._own = self._apart_from_padding(self._own)
            self._draws = draws
        if before is not None and before._own is not None and not before._draws and _identical(before._own, self._own):
            self._reference = before._reference  # a model that is the same in training has the same reference
        else:
            self._reference = (_RANDOM, None) if self._draws else self._truth()
        if self._padding and is_all(self._own, self._padding):
            self._reference = _NOBODYS, None
        found, passed = self._compared(nullcontext)
        return _row(self._mode, found, reference=self._reference[0] if found.count else "none", passed=passed)

    def _apart_from_padding(self, own: Parts) -> Parts:
        """Return the original's result without what is computed from padding, which is then left out of every other."""
        padding = Padding(self._bindings)
        try:
            self._run(padding.masks)
            other = self._run(padding.disturbed)
        except BaseException as error:
            foreign(error)
            self._padding = None
            return nothing_of_padding(own, self._inputs)
        if not padding.disturbs:
            return own
        self._padding = moved_rows(own, other)
        self._disturbed = [without(other, self._padding)]  # what moves by less has that much room
        self.notes = (told(self._padding),) if self._padding else ()
        return without(own, self._padding)

    def apart(self, row: Whole) -> Whole:
        """Return the row with what each kernel does by itself, which is the row itself where there is but one."""
        kernels = {
            (site.name, kernel): None for site in self._bindings.sites if (kernel := site.kernels.get(self._mode))
        }
        if self._own is None:
            return row
        found = []
        for name, kernel in kernels if len(kernels) > 1 else ():
            with suppress(_TogetherOnly):  # parts that share their masks: what one has, the other has too
                found.append((name, kernel, *self._compared(partial(self._only, name, kernel))))
        alone = [_alone(name, kernel, one, passed) for name, kernel, one, passed in found]
        if len(kernels) == 1:
            measures = {name: getattr(row, name) for name in (*_MEASURES, "passed", "reason")}
            alone = [Alone(name=name, kernel=str(kernel.reference), **measures) for name, kernel in kernels]
        alone.sort(key=lambda one: -_size(one.max_rel))
        return replace(row, alone=tuple(alone), reason=row.reason and f"{row.reason}{_blame(alone)}")

    def _compared(self, around: Callable[[], AbstractContextManager[Any]]) -> tuple[Difference, bool]:
        own, (_, truth) = self._own, self._reference
        assert own is not None
        draws = self._reference[0] is _RANDOM
        try:
            kernel = self._run(around)
        except _TogetherOnly:
            raise
        except BaseException as error:
            foreign(error)
            return Difference(reasons=(f"raised {one_line(error)}",)), False
        if unlike := structure(own, kernel):
            return Difference(reasons=(unlike,)), False
        if draws:
            found = self._judged(own, kernel, None, None)
            return found, found.max_abs is None or math.isfinite(found.max_abs)
        found = self._judged(own, kernel, truth, self._others)
        if not found.passed and not self._others:
            self._others = [self._run(partial(self._moved, number)) for number in range(MOVED)] + self._disturbed
            found = self._judged(own, kernel, truth, self._others)
        return found, found.passed

    def _judged(self, own: Parts, kernel: Parts, truth: Parts | None, others: Sequence[Parts] | None) -> Difference:
        weights = {tensor.dtype for tensor in self._bindings.model.parameters() if tensor.is_floating_point()}

        def by(what: str, o: torch.Tensor, k: torch.Tensor, r: torch.Tensor | None) -> Difference:
            if others is None:
                return judge(what, o, k, r, self._thresholds)
            alike = [other[what] for other in others if isinstance(other.get(what), torch.Tensor)]
            return judge_rows(what, o, k, r, alike, self._thresholds, weights)

        dtype = str(next(iter(weights), torch.float32)).removeprefix("torch.")
        return Difference.merged(compare(own, kernel, truth, self._thresholds, dtype, by=by))

    def _original(self) -> Parts:
        try:
            return self._run(partial(originals, self._bindings))
        except BaseException as error:
            foreign(error)
            if self._grad:
                raise
            self._grad = True  # a model that differentiates in its own forward cannot run without
            return self._run(partial(originals, self._bindings))

    def _run(self, around: Callable[[], AbstractContextManager[Any]]) -> Parts:
        """Run the model once; nobody asks for its backward, so its activations are not kept unless it does itself."""
        forgetful = Forgetful()
        try:
            return self._result(around, forgetful.hooks() if self._grad else nullcontext())
        except BaseException as error:
            foreign(error)
            if not forgetful.asked:
                raise
        return self._result(around, nullcontext())

    def _result(self, around: Callable[[], AbstractContextManager[Any]], keeping: AbstractContextManager[Any]) -> Parts:
        model = self._bindings.model
        try:
            with torch.set_grad_enabled(self._grad), process_kept() as process, keeping:
                model.train(self._mode.training)
                with around():
                    process.seed(_SEED)
                    result = model(**cloned(dict(self._inputs)))
                    self._draws = bool(process.draws())
                return self._settled(result)
        finally:
            self._again()

    def _settled(self, result: Any) -> Parts:
        parts = settled(contents(result, "output"))
        return nothing_of_padding(parts, self._inputs) if self._padding is None else without(parts, self._padding)

    def _only(self, name: str, kernel: Kernel) -> ExitStack:
        """Let every site run its own forward, but for those of one row that run one kernel."""
        stack, owner, mode = ExitStack(), Owner.of("evidence"), self._mode
        mine = [site for site in self._bindings.sites if (site.name, site.kernels.get(mode)) == (name, kernel)]
        attending = {id(site.module) for site in mine if site.kind == "attention"}
        try:
            stack.enter_context(
                self._bindings.originals(lambda one: any(id(place.module) in attending for place in one.part.places))
            )
        except ApplyError as error:
            raise _TogetherOnly(error.message) from error
        for site in mine:
            if site.kind != "attention":
                for module, forward in site.runs(mode):
                    edit = Edit(owner, (forward, forward), (kernel, kernel))
                    bind(module, edit)
                    stack.callback(unbind, module, edit)
        return stack

    def _moved(self, number: int) -> ExitStack:
        """Let the originals run, and move what swapped layers return by up to one eps."""
        stack = ExitStack()
        stack.enter_context(originals(self._bindings))

        def move(tensor: torch.Tensor) -> torch.Tensor:
            if not tensor.is_floating_point() or tensor.layout != torch.strided or tensor.is_nested:
                return tensor
            noise = torch.rand(tensor.shape, generator=generator).mul_(2).sub_(1) * torch.finfo(tensor.dtype).eps
            return (tensor * (1 + noise.to(tensor.device, torch.float32))).to(tensor.dtype)

        def hook(_: nn.Module, __: Any, result: Any) -> Any:
            return pytree.tree_map_only(torch.Tensor, move, result)

        generator = torch.Generator().manual_seed(number)
        for site in self._bindings.sites:
            stack.callback(site.modules[-1].register_forward_hook(hook).remove)
        return stack

    def _truth(self, keeping: AbstractContextManager[Any] | None = None) -> tuple[str, Parts | None]:
        """Return the result in float64, or why there is none and the original is the yardstick."""
        model, mode = self._bindings.model, self._mode
        if lack := _lack_of_memory(model):
            return f"none, {lack}", None
        forgetful = Forgetful()
        try:
            with torch.set_grad_enabled(self._grad), process_kept() as process, keeping or forgetful.hooks():
                copy = own_copy(model).train(mode.training)
                given = widened(dict(self._inputs))
                process.seed(_SEED)
                with Wide():  # type: ignore[no-untyped-call]
                    return "float64", self._settled(copy(**given))
        except BaseException as error:
            foreign(error)
            if forgetful.asked:  # it differentiates in its own forward
                return self._truth(nullcontext())
            return f"none, the model does not run in float64: {one_line(error)}", None


def _identical(one: Parts, other: Parts) -> bool:
    return one.keys() == other.keys() and all(equal(part, other[place]) for place, part in one.items())


def _alone(name: str, kernel: Kernel, found: Difference, passed: bool) -> Alone:
    measures = {measure: getattr(found, measure) for measure in _MEASURES}
    reason = found.reasons[0] if found.reasons else None
    return Alone(name=name, kernel=str(kernel.reference), passed=passed, reason=reason, **measures)


def _blame(alone: Sequence[Alone]) -> str:
    if len(alone) < 2:
        return ""
    moving = [f"{one.name} ({one.kernel})" for one in alone if not one.passed]
    return f"; it is {' and '.join(moving)} alone" if moving else "; no kernel does so alone"


def _size(value: float | None) -> float:
    return math.inf if value is None or math.isnan(value) else value


def _row(mode: Mode, found: Difference, *, reference: str, passed: bool) -> Whole:
    measures = {name: getattr(found, name) for name in _MEASURES}
    reason = found.reasons[0] if found.reasons else None
    return Whole(mode=mode.value, passed=passed, reason=reason, reference=reference, **measures)


def _lack_of_memory(model: nn.Module) -> str | None:
    """Say that a copy in float64 would not fit, if that is known."""
    tensors = list({id(tensor): tensor for tensor in (*model.parameters(), *model.buffers())}.values())
    needed = 8 * sum(tensor.numel() for tensor in tensors)
    device = next((tensor.device for tensor in tensors), torch.device("cpu"))
    if device.type == "cuda":
        free = torch.cuda.mem_get_info(device)[0]
    elif device.type == "cpu" and "SC_AVPHYS_PAGES" in getattr(os, "sysconf_names", {}):
        free = os.sysconf("SC_AVPHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    else:
        return None
    return f"float64 would take {needed / 1e9:.1f} GB, and {free / 1e9:.1f} GB are free" if needed > free else None
