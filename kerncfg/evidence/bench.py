"""Each swapped kernel and the whole model against the original, in time and memory."""

from __future__ import annotations

import gc
import statistics
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any

import torch

from kerncfg.evidence.capture import Sample, capture, measured_modes, originals
from kerncfg.evidence.contents import FOREIGN, cloned, contents, one_line, shape_of, tensors_of
from kerncfg.evidence.keeping import described, state_kept, undisturbed
from kerncfg.evidence.rows import Measurement, TimedModel, TimedRow, Timing

if TYPE_CHECKING:
    from torch import nn

    from kerncfg.applier.apply import Bindings
    from kerncfg.documents.target import Mode

__all__ = ["Measurement", "bench"]

_WARM_UPS = 3
_BLOCK = 2e-3  # seconds of repeated calls for one reading: a thousand times what reading the clock costs
_PAIRS = 15  # wanted at least, if the budget allows: quartiles of fewer say little
_MOST_PAIRS = 400
_FEWEST_PAIRS = 3
_FOR_QUARTILES = 8


def bench(bindings: Bindings, inputs: Mapping[str, Any], *, seconds: float = 0.5) -> Measurement:
    """Time each swapped kernel on the inputs its sites get, and the model, in each mode that swaps something.

    Readings of original and kernel alternate, and so does their order, so that a machine that warms up or is
    shared slows both. `seconds` bounds each comparison, but for a warm-up and three pairs. Training is
    timed forward and backward together. The model is left exactly as it was.
    """
    if not bindings.sites:
        return Measurement(rows=(), model=None, notes=("nothing is swapped, so there is nothing to measure",))
    captured = capture(bindings, inputs)
    modes = measured_modes(bindings)
    rows: list[TimedRow] = []
    whole: dict[Mode, Timing] = {}
    parts = [part for binding in bindings.sites for part in binding.modules]
    with undisturbed(bindings.model, parts), _no_collections():
        for mode in modes:
            bindings.model.train(mode.training)
            with originals(bindings):
                found = [_row(sample, mode, seconds) for sample in captured.samples if sample.binding.kernels.get(mode)]
            rows += found
            if faulty := next((row for row in found if row.reason), None):
                whole[mode] = Timing(reason=f"not run with its kernels: {faulty.path}: see its row")
            elif found:
                whole[mode] = _whole(bindings, inputs, mode, seconds)
    notes = tuple(f"{path}: not reached by the run of the model, so not measured" for path in captured.unreached)
    return Measurement(rows=tuple(rows), model=_model(whole), notes=notes)


@dataclass(kw_only=True)
class _Call:
    """One forward, and in training its backward, on inputs of its own that `refresh` puts back.

    A backward may overwrite what it is given; without that, a reading would start from another's leftovers. Inputs
    that a call changes in more than values, such as a cache that grows, are `used_up` by it: each reading is then of
    one call, on a new copy.
    """

    forward: Callable[..., Any]
    module: nn.Module
    inputs: tuple[tuple[Any, ...], dict[str, Any]]
    training: bool
    around: Callable[[], AbstractContextManager[None]] = nullcontext
    used_up: bool = field(init=False, default=False)
    upstream: dict[int, torch.Tensor] = field(init=False, default_factory=dict)

    def __post_init__(self) -> None:
        self._take()
        before = _outline((self.args, self.kwargs))
        if self.training or not _simple(before):
            with self.around(), torch.set_grad_enabled(self.training):
                outputs = tensors_of(self.forward(*self.args, **self.kwargs))
            self.upstream = {
                place: torch.randn_like(output) for place, output in enumerate(outputs) if output.requires_grad
            }
        self.used_up = _outline((self.args, self.kwargs)) != before
        self._take()

    def _take(self) -> None:
        self.args, self.kwargs = cloned(self.inputs)
        given = tensors_of((self.args, self.kwargs))
        self.wanted = [tensor for tensor in given if tensor.requires_grad] if self.training else []
        self.wanted += [weight for weight in self.module.parameters() if weight.requires_grad and self.training]
        self.held = [*given, *self.upstream.values()]
        self.values = [tensor.detach().clone() for tensor in self.held]

    def refresh(self) -> None:
        if self.used_up:
            self._take()
            return
        with torch.no_grad():
            for tensor, value in zip(self.held, self.values, strict=True):
                tensor.copy_(value)

    def __call__(self) -> None:
        with torch.set_grad_enabled(self.training):
            result = self.forward(*self.args, **self.kwargs)
            if self.upstream and self.wanted:
                outputs = tensors_of(result)
                results = [outputs[place] for place in self.upstream]
                torch.autograd.grad(results, self.wanted, list(self.upstream.values()), allow_unused=True)


def _outline(value: Any) -> dict[str, Any]:
    """Return what a value is made of without the values: places, and the shapes of tensors."""
    return {
        place: shape_of(part) if isinstance(part, torch.Tensor) else type(part)
        for place, part in contents(value).items()
    }


def _simple(outline: Mapping[str, Any]) -> bool:
    """Whether there is nothing in the inputs that could grow: no place below an argument."""
    return not any(place.count("[") + place.count(".") > 2 for place in outline)


def _row(sample: Sample, mode: Mode, seconds: float) -> TimedRow:
    binding = sample.binding
    kernel = binding.kernels[mode]
    assert kernel is not None

    def call(forward: Callable[..., Any]) -> _Call:
        inputs = (sample.args, dict(sample.kwargs))
        return _Call(forward=forward, module=binding.whole, inputs=inputs, training=mode.training)

    device = torch.device(sample.device)
    with state_kept(binding.whole) as changes:
        timing = _timed(partial(call, binding.original()), partial(call, binding.forward(mode)), device, seconds)
    weights = {name for name, _ in binding.whole.named_parameters()}
    done = {place: change for place, change in changes.items() if place in weights}
    if done:
        timing = Timing(reason=described(done))
    return TimedRow(
        name=binding.name,
        path=sample.paths[0],
        sites=len(sample.paths),
        kernel=str(kernel.reference),
        mode=mode.value,
        device=sample.device,
        dtype=sample.dtype,
        shape=sample.shape,
        **_fields(timing),
    )


def _whole(bindings: Bindings, inputs: Mapping[str, Any], mode: Mode, seconds: float) -> Timing:
    model = bindings.model

    def call(around: Callable[[], AbstractContextManager[None]]) -> _Call:
        return _Call(forward=model, module=model, inputs=((), dict(inputs)), training=mode.training, around=around)

    device = next((tensor.device for tensor in model.parameters()), torch.device("cpu"))
    return _timed(partial(call, partial(originals, bindings)), partial(call, nullcontext), device, seconds)


def _model(whole: Mapping[Mode, Timing]) -> TimedModel | None:
    if not whole:
        return None
    first, *others = whole.items()
    return TimedModel(mode=first[0].value, training=others[0][1] if others else None, **_fields(first[1]))


def _fields(timing: Timing) -> dict[str, Any]:
    return {name: getattr(timing, name) for name in Timing.__slots__}


def _timed(original: Callable[[], _Call], kernel: Callable[[], _Call], device: torch.device, seconds: float) -> Timing:
    """Time two calls against each other; what one of them raises becomes the reason."""
    try:
        pair = (original(), kernel())
        costs = [_warm(call, device, seconds) for call in pair]
        memory = [_peak(call, device) for call in pair]
        once = any(call.used_up for call in pair)
        repeats = 1 if once else max(1, int(min(_BLOCK / max(costs), seconds / _PAIRS / sum(costs))))
        readings = _readings(pair, repeats, device, seconds)
    except FOREIGN as error:  # foreign code; a kernel that raises fails its row, not the run
        return Timing(reason=f"raised {one_line(error)}")
    times = [statistics.median(reading) for reading in zip(*readings, strict=True)]
    ratios = [one / other for one, other in readings]
    speedup, spread = times[0] / times[1], _spread(ratios)
    return Timing(
        original_s=times[0],
        kernel_s=times[1],
        speedup=speedup,
        spread=spread,
        verdict=_verdict(speedup, statistics.median(ratios), spread),
        runs=len(readings),
        original_bytes=memory[0],
        kernel_bytes=memory[1],
    )


def _readings(
    pair: tuple[_Call, _Call], repeats: int, device: torch.device, seconds: float
) -> list[tuple[float, float]]:
    readings: list[tuple[float, float]] = []
    end = time.perf_counter() + seconds
    while len(readings) < _FEWEST_PAIRS or (time.perf_counter() < end and len(readings) < _MOST_PAIRS):
        if len(readings) % 2:
            second, first = _reading(pair[1], repeats, device), _reading(pair[0], repeats, device)
        else:
            first, second = _reading(pair[0], repeats, device), _reading(pair[1], repeats, device)
        readings.append((first, second))
    return readings


def _verdict(speedup: float, paired: float, spread: float) -> str:
    """Say what is faster where the ratio of the medians and the median of the pairs' ratios both show it."""
    if min(speedup, paired) > 1 + spread:
        return "faster"
    return "slower" if min(1 / speedup, 1 / paired) > 1 + spread else "none"


def _spread(ratios: Sequence[float]) -> float:
    """Return the interquartile range relative to the median; of too few for quartiles, twice the range."""
    if len(ratios) < _FOR_QUARTILES:
        return 2 * (max(ratios) - min(ratios)) / statistics.median(ratios)
    low, middle, high = statistics.quantiles(ratios, n=4)
    return (high - low) / middle


def _warm(call: _Call, device: torch.device, seconds: float) -> float:
    """Run a few times, so that compilers and caches have done their work, and return seconds a call."""
    costs = [_reading(call, 1, device)]
    while len(costs) < _WARM_UPS and sum(costs) < seconds / 4:
        costs.append(_reading(call, 1, device))
    return min(costs)


def _reading(call: _Call, repeats: int, device: torch.device) -> float:
    call.refresh()
    with call.around():
        if device.type == "cpu":
            start = time.perf_counter()
            for _ in range(repeats):
                call()
            return (time.perf_counter() - start) / repeats
        first, last = (torch.Event(device, enable_timing=True) for _ in range(2))
        first.record()
        for _ in range(repeats):
            call()
        last.record()
        last.synchronize()
        return float(first.elapsed_time(last)) / 1e3 / repeats


def _peak(call: _Call, device: torch.device) -> int | None:
    if device.type != "cuda":
        return None
    call.refresh()
    torch.cuda.synchronize(device)
    held = torch.cuda.memory_allocated(device)
    torch.cuda.reset_peak_memory_stats(device)
    with call.around():
        call()
    torch.cuda.synchronize(device)
    return torch.cuda.max_memory_allocated(device) - held


@contextmanager
def _no_collections() -> Iterator[None]:
    """Keep the garbage collector out of the readings."""
    was = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was:
            gc.enable()
