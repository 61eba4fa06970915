"""Each swapped kernel and the whole model against the original, in time and memory."""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any

import torch

from kerncfg.evidence.capture import Sample, capture, measured_modes, originals
from kerncfg.evidence.contents import cloned, contents, shape_of, tensors_of
from kerncfg.evidence.keeping import described, state_kept, undisturbed
from kerncfg.evidence.rows import Generation, Measurement, TimedModel, TimedRow, Timing
from kerncfg.evidence.timing import Contest, rounds
from kerncfg.evidence.tokens import Speaking

if TYPE_CHECKING:
    from torch import nn

    from kerncfg.applier.apply import Bindings
    from kerncfg.documents.target import Mode

__all__ = ["Measurement", "bench"]


def bench(bindings: Bindings, inputs: Mapping[str, Any], *, seconds: float = 0.5) -> Measurement:
    """Time each swapped kernel on the inputs its sites get, and the model, in each mode that swaps something.

    Training is timed forward and backward together, a language model besides by what it reads and writes. `seconds`
    bounds each comparison, but for warm-ups and the fewest readings; `timing` says how they are taken. The model is
    left exactly as it was.
    """
    if not bindings.sites:
        return Measurement(rows=(), model=None, notes=("nothing is swapped, so there is nothing to measure",))
    captured = capture(bindings, inputs)
    notes = [f"{path}: not reached by the run of the model, so not measured" for path in captured.unreached]
    rows: list[TimedRow] = []
    whole: dict[Mode, Timing] = {}
    generation = None
    parts = [part for binding in bindings.sites for part in binding.modules]
    with undisturbed(bindings.model, parts), _no_collections():
        for mode in measured_modes(bindings):
            bindings.model.train(mode.training)
            samples = [sample for sample in captured.samples if sample.binding.kernels.get(mode)]
            if not samples:
                continue
            race = _Race(bindings, inputs, mode, samples, seconds)
            race.run()
            rows += race.rows()
            whole[mode] = race.whole()
            generation = generation or race.generation()
            notes += [note for note in race.notes if note not in notes]
    return Measurement(rows=tuple(rows), model=_model(whole), generation=generation, notes=tuple(notes))


class _Race:
    """One mode: every site's kernel, the whole model, and what a language model reads and writes, block by block."""

    def __init__(
        self, bindings: Bindings, inputs: Mapping[str, Any], mode: Mode, samples: list[Sample], seconds: float
    ) -> None:
        self._bindings, self._mode = bindings, mode
        self._samples = samples
        self._sites = [_Site(sample, mode, seconds) for sample in samples]
        self._model = _whole(bindings, inputs, mode, seconds)
        self._speaking = Speaking.of(bindings, inputs, seconds) if not mode.training else None
        self.notes: list[str] = []

    def run(self) -> None:
        """Take every block; the model is spared kernels that raise."""
        rounds([self._all_sites, self._all_models])
        idle = {one.sample.paths: one.sample.binding.name for one in self._sites if not one.called}
        self.notes += [
            f"{path}: {name} was not called by the run of the model, so not measured"
            for paths, name in idle.items()
            for path in paths
        ]

    def _all_sites(self) -> None:
        with originals(self._bindings):
            for site in self._sites:
                site.block()

    def _all_models(self) -> None:
        if self._model.reason is None and (faulty := next((one for one in self._sites if one.contest.reason), None)):
            self._model.reason = f"not run with its kernels: {faulty.sample.paths[0]}: see its row"
        self._model.block()
        if self._speaking is not None and self._model.reason is None:
            self._speaking.block()

    def rows(self) -> list[TimedRow]:
        return [site.row() for site in self._sites if site.called]

    def whole(self) -> Timing:
        return self._model.timing()

    def generation(self) -> Generation | None:
        if self._speaking is None or self._model.reason is not None:
            return None
        if self._speaking.reason is not None:
            self.notes.append(f"tokens per second are not measured: {self._speaking.reason}")
            return None
        return self._speaking.generation()


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


class _Site:
    """One kernel on the inputs of one kind of site."""

    def __init__(self, sample: Sample, mode: Mode, seconds: float) -> None:
        self.sample, self._mode = sample, mode
        binding = sample.binding
        self.contest = Contest(
            partial(self._call, binding.original(), sample),
            partial(self._call, binding.forward(mode), sample.of_kernel),
            torch.device(sample.device),
            seconds,
        )
        self.contest.reason = sample.fault
        self._before = binding.calls() if binding.calls else 0

    @property
    def called(self) -> bool:
        """Whether the kernel ran, which is not so where it is only a part of the forward and nothing came by it."""
        calls = self.sample.binding.calls
        return calls is None or calls() > self._before or self.contest.reason is not None

    def block(self) -> None:
        module = self.sample.binding.whole
        with state_kept(module) as changes:
            self.contest.block()
        weights = {name for name, _ in module.named_parameters()}
        if done := {place: change for place, change in changes.items() if place in weights}:
            self.contest.reason = described(done)

    def row(self) -> TimedRow:
        sample, kernel = self.sample, self.sample.binding.kernels[self._mode]
        assert kernel is not None
        return TimedRow(
            name=sample.binding.name,
            path=sample.paths[0],
            sites=len(sample.paths),
            kernel=str(kernel.reference),
            mode=self._mode.value,
            device=sample.device,
            dtype=sample.dtype,
            shape=sample.shape,
            **_fields(self.contest.timing()),
        )

    def _call(self, forward: Callable[..., Any], sample: Sample) -> _Call:
        training = self._mode.training
        inputs = (sample.args, dict(sample.kwargs))
        return _Call(forward=forward, module=sample.binding.whole, inputs=inputs, training=training)


def _whole(bindings: Bindings, inputs: Mapping[str, Any], mode: Mode, seconds: float) -> Contest:
    model = bindings.model

    def call(around: Callable[[], AbstractContextManager[None]]) -> _Call:
        return _Call(forward=model, module=model, inputs=((), dict(inputs)), training=mode.training, around=around)

    device = next((tensor.device for tensor in model.parameters()), torch.device("cpu"))
    return Contest(partial(call, partial(originals, bindings)), partial(call, nullcontext), device, seconds)


def _model(whole: Mapping[Mode, Timing]) -> TimedModel | None:
    if not whole:
        return None
    first, *others = whole.items()
    return TimedModel(mode=first[0].value, training=others[0][1] if others else None, **_fields(first[1]))


def _fields(timing: Timing) -> dict[str, Any]:
    return {name: getattr(timing, name) for name in Timing.__slots__}


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
