"""One run of one forward on copies of captured inputs: its results, its gradients, and what else it did."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

import torch

from kerncfg.evidence.capture import input_contents
from kerncfg.evidence.compare import changed
from kerncfg.evidence.contents import contents, copied, foreign, one_line, same, settled
from kerncfg.evidence.keeping import Change, Memory
from kerncfg.evidence.process import process_kept
from kerncfg.evidence.widen import Wide, own_copy, widened

if TYPE_CHECKING:
    from torch import nn

    from kerncfg.evidence.capture import Sample

__all__ = ["Trial", "attempt", "in_float64"]


@dataclass(slots=True, kw_only=True)
class Trial:
    """What one run gave, each by its place. `fault` is why it cannot be compared.

    `given` is what the forward left of the inputs, where that is not what it found; `None` stands for what is gone.
    `module` and `process` are what the run changed besides, `threads` what goes on of it, `draws` what it did to the
    random state. `live` keeps the memory of the results, so that a later run cannot be given it by chance. `aliases`
    are results that share memory with an input, `strides` how each result lies in memory.
    """

    outputs: dict[str, Any] = field(default_factory=dict)
    live: list[torch.Tensor] = field(default_factory=list)
    upstream: Mapping[str, torch.Tensor] = field(default_factory=dict)
    gradients: dict[str, torch.Tensor | None] = field(default_factory=dict)
    given: dict[str, Any] = field(default_factory=dict)
    module: dict[str, Change] = field(default_factory=dict)
    process: list[str] = field(default_factory=list)
    threads: list[str] = field(default_factory=list)
    draws: list[str] = field(default_factory=list)
    aliases: list[str] = field(default_factory=list)
    strides: dict[str, tuple[int, ...]] = field(default_factory=dict)
    hazards: list[str] = field(default_factory=list)
    fault: str | None = None


def attempt(
    forward: Callable[..., Any],
    module: nn.Module,
    sample: Sample,
    *,
    seed: int,
    training: bool,
    upstream: Mapping[str, torch.Tensor] | None = None,
    grad: bool = False,
) -> Trial:
    """Run `forward` once on copies of the sample's inputs, in training backward too, and never raise.

    `upstream` holds the gradients of the outputs by place; without it they are drawn, the same ones each
    time. Autograd is on in training, and with `grad`. The module and the process are put back as they were.
    """
    trial = Trial()
    (args, kwargs), leaves = _prepared(sample, training=training)
    memory = Memory(module)
    try:
        with torch.set_grad_enabled(training or grad), process_kept() as process:
            process.seed(seed)
            try:
                parts = contents(forward(*args, **kwargs), "output")
                trial.draws = process.draws()
                outputs = {place: part for place, part in parts.items() if isinstance(part, torch.Tensor)}
                # Cloned before the backward, which may use the buffers of the results for its own.
                trial.outputs, trial.live = settled(parts), [output.detach() for output in outputs.values()]
                left = input_contents(args, kwargs)
                trial.given = _left(input_contents(sample.args, sample.kwargs), left)
                trial.aliases, trial.strides = _aliases(outputs, left), _strides(outputs)
                if training:
                    trial.upstream = _drawn(outputs) if upstream is None else upstream
                    _backward(trial, outputs, module, _named(args, kwargs, leaves))
                    trial.hazards += _late(trial, sample, args, kwargs)
            except BaseException as error:  # a finding, not an end
                foreign(error)
                trial.fault = f"raised {one_line(error)}"
            trial.process, trial.threads = process.changes(), process.left()
        trial.module = memory.changes()
    finally:
        memory.restore()
    return trial


def in_float64(
    sample: Sample, *, seed: int, training: bool, upstream: Mapping[str, torch.Tensor], grad: bool = False
) -> Trial:
    """Run the original on a copy of its module in float64: inputs, weights and everything in between."""
    try:
        module = own_copy(sample.binding.whole).train(training)
        args, kwargs = widened((sample.args, dict(sample.kwargs)))
    except BaseException as error:  # a module that cannot be copied is verified without a reference
        foreign(error)
        return Trial(fault=f"no copy of it can be made: {one_line(error)}")
    wide = replace(sample, args=args, kwargs=kwargs)
    given = {place: gradient.double() for place, gradient in upstream.items()}
    with Wide():  # type: ignore[no-untyped-call]
        forward = sample.original(module)
        return attempt(forward, module, wide, seed=seed, training=training, upstream=given, grad=grad)


def _aliases(outputs: Mapping[str, torch.Tensor], given: Mapping[str, Any]) -> list[str]:
    memory = {storage: place for place, part in given.items() if (storage := _storage(part)) is not None}
    held = [(place, storage) for place, output in outputs.items() if (storage := _storage(output)) is not None]
    return [f"{place} shares memory with {memory[storage]}" for place, storage in held if storage in memory]


def _storage(part: Any) -> int | None:
    plain = isinstance(part, torch.Tensor) and part.layout == torch.strided and not part.is_nested and not part.is_meta
    return part.untyped_storage().data_ptr() if plain and part.numel() else None


def _strides(outputs: Mapping[str, torch.Tensor]) -> dict[str, tuple[int, ...]]:
    """Return the steps between neighbours along every dimension that has some."""
    plain = {place: one for place, one in outputs.items() if one.layout == torch.strided and not one.is_nested}
    return {
        place: tuple(step for step, size in zip(one.stride(), one.shape, strict=True) if size > 1)
        for place, one in plain.items()
        if one.numel()
    }


def _prepared(sample: Sample, *, training: bool) -> tuple[Any, dict[int, torch.Tensor]]:
    """Copy the inputs; where a gradient is wanted, a tensor is no leaf and can be written to. Leaves by its id."""
    leaves: dict[int, torch.Tensor] = {}

    def prepare(tensor: torch.Tensor) -> torch.Tensor:
        clone = tensor.detach().clone()
        if not (training and tensor.requires_grad):
            return clone
        leaf = clone.requires_grad_()
        made = leaf.clone()
        leaves[id(made)] = leaf
        return made

    return copied((sample.args, dict(sample.kwargs)), prepare)[0], leaves


def _named(
    args: tuple[Any, ...], kwargs: Mapping[str, Any], leaves: Mapping[int, torch.Tensor]
) -> dict[str, torch.Tensor]:
    parts = input_contents(args, kwargs)
    return {place: leaves[id(part)] for place, part in parts.items() if id(part) in leaves}


def _left(before: Mapping[str, Any], after: Mapping[str, Any]) -> dict[str, Any]:
    """Return what is no longer as it was."""
    return settled({place: after.get(place) for place in changed(before, after)})


def _late(trial: Trial, sample: Sample, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> list[str]:
    """Say what only the backward wrote to."""
    left = {**input_contents(sample.args, sample.kwargs), **trial.given}
    now = input_contents(args, kwargs)
    places = [place for place in changed(left, now) if left.get(place) is not None]
    return [f"the backward writes to its {' and '.join(places)}"] if places else []


def _drawn(outputs: Mapping[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    found = {}
    for number, (place, output) in enumerate(outputs.items()):
        if output.requires_grad and output.layout == torch.strided and not output.is_nested:
            generator = torch.Generator().manual_seed(number)  # the CPU's: the same for every run and device
            found[place] = torch.randn(output.shape, generator=generator).to(output.device, output.dtype)
    return found


def _backward(
    trial: Trial, outputs: Mapping[str, torch.Tensor], module: nn.Module, leaves: Mapping[str, torch.Tensor]
) -> None:
    upstream = trial.upstream
    weights = {name: weight for name, weight in module.named_parameters() if weight.requires_grad}
    wanted = {**leaves, **weights}
    if any(place not in outputs or outputs[place].shape != upstream[place].shape for place in upstream):
        return  # the forward is wrong, and said to be so
    if cut := [place for place in upstream if not outputs[place].requires_grad]:
        trial.fault = f"{cut[0]} is cut off from autograd"
    elif upstream and wanted:
        given = {place: gradient.clone() for place, gradient in upstream.items()}
        results = [outputs[place] for place in given]
        found = torch.autograd.grad(results, list(wanted.values()), list(given.values()), allow_unused=True)
        trial.gradients = {
            name: None if gradient is None else gradient.detach() for name, gradient in zip(wanted, found, strict=True)
        }
        if not all(same(given[place], upstream[place]) for place in given):
            trial.hazards.append("the backward writes to the gradient it is given")
