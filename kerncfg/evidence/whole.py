"""The whole model with all its kernels against itself without: what no single call shows.

A kernel that is right for the first call and wrong for a later one, or that returns memory it uses again, is found
here and nowhere else. Models amplify differences, so the yardstick is what the model itself makes of rounding:
`judge.judge_rows`.
"""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, nullcontext
from functools import partial
from typing import TYPE_CHECKING, Any

import torch
from torch.utils import _pytree as pytree

from kerncfg.evidence.capture import originals
from kerncfg.evidence.compare import Thresholds, compare, structure
from kerncfg.evidence.contents import FOREIGN, cloned, contents, one_line, settled
from kerncfg.evidence.judge import Difference, judge, judge_rows
from kerncfg.evidence.keeping import process_kept, undisturbed
from kerncfg.evidence.rows import Whole
from kerncfg.evidence.widen import Wide, own_copy, widened

if TYPE_CHECKING:
    from torch import nn

    from kerncfg.applier.apply import Bindings
    from kerncfg.documents.target import Mode

__all__ = ["failed", "whole"]

_SEED = 20_260_101
# Runs with roundings moved. One run's error may be small by luck, in a single number by a factor of 8 once in 13
# times; that of all five is in one of 300,000.
_MOVED = 4
_RANDOM = "none, the model draws random numbers: its output is shown and not judged"

Parts = dict[str, Any]


def whole(bindings: Bindings, inputs: Mapping[str, Any], modes: Sequence[Mode], thresholds: Thresholds) -> Whole:
    """Compare the model's output in each mode that swaps something; return the first that fails, else the first.

    The model is left as it was before.
    """
    swapping = [mode for mode in modes if any(site.kernels.get(mode) for site in bindings.sites)]
    rows: list[Whole] = []
    for mode in swapping:
        rows.append(_Comparison(bindings, inputs, mode, thresholds).row())
        if not rows[-1].passed:
            return rows[-1]
    return rows[0]


def failed(mode: Mode, reason: str) -> Whole:
    """Return the row of a model that could not be compared."""
    return _row(mode, Difference(reasons=(reason,)), reference="none", passed=False)


class _Comparison:
    """One mode: the original's result, the kernels', and as many more as it takes to tell them apart."""

    def __init__(self, bindings: Bindings, inputs: Mapping[str, Any], mode: Mode, thresholds: Thresholds) -> None:
        self._bindings, self._inputs, self._mode, self._thresholds = bindings, inputs, mode, thresholds
        self._sites = [site.module for site in bindings.sites]
        self._grad = mode.training
        self._draws = False

    def row(self) -> Whole:
        try:
            own = self._original()
        except FOREIGN as error:
            return failed(self._mode, f"cannot be compared: without kernels it raised {one_line(error)}")
        draws = self._draws
        try:
            kernel = self._run(nullcontext, self._sites)
        except FOREIGN as error:  # foreign code again
            return failed(self._mode, f"raised {one_line(error)}")
        if unlike := structure(own, kernel):
            return failed(self._mode, unlike)
        if draws:
            found = self._judged(own, kernel, None, None)
            finite = found.max_abs is None or math.isfinite(found.max_abs)
            return _row(self._mode, found, reference=_RANDOM, passed=finite)
        reference, truth = self._truth()
        found = self._judged(own, kernel, truth, [])
        if not found.passed:
            others = [self._run(partial(self._moved, number)) for number in range(_MOVED)]
            found = self._judged(own, kernel, truth, others)
        return _row(self._mode, found, reference=reference, passed=found.passed)

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
        except FOREIGN:
            if self._grad:
                raise
            self._grad = True  # a model that differentiates in its own forward cannot run without
            return self._run(partial(originals, self._bindings))

    def _run(self, around: Callable[[], AbstractContextManager[Any]], parts: Sequence[nn.Module] = ()) -> Parts:
        model, mode = self._bindings.model, self._mode
        with undisturbed(model, parts), torch.set_grad_enabled(self._grad), process_kept() as process:
            model.train(mode.training)
            with around():
                process.seed(_SEED)
                result = model(**cloned(dict(self._inputs)))
                self._draws = bool(process.draws())
            return settled(contents(result, "output"))

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

    def _truth(self) -> tuple[str, Parts | None]:
        """Return the result in float64, or why there is none and the original is the yardstick."""
        model, mode = self._bindings.model, self._mode
        if lack := _lack_of_memory(model):
            return f"none, {lack}", None
        try:
            with undisturbed(model), torch.set_grad_enabled(self._grad), process_kept() as process:
                copy = own_copy(model).train(mode.training)
                given = widened(dict(self._inputs))
                process.seed(_SEED)
                with Wide():  # type: ignore[no-untyped-call]
                    return "float64", settled(contents(copy(**given), "output"))
        except FOREIGN as error:
            return f"none, the model does not run in float64: {one_line(error)}", None


def _row(mode: Mode, found: Difference, *, reference: str, passed: bool) -> Whole:
    measures = {name: getattr(found, name) for name in ("max_abs", "max_rel", "identical", "within")}
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
