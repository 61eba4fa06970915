"""One run of one forward on clones of captured inputs: its results, its gradients, and what it wrote to."""

from __future__ import annotations

import copy
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from types import MethodType
from typing import TYPE_CHECKING, Any

import torch
from torch.utils import _pytree as pytree
from torch.utils._python_dispatch import TorchDispatchMode

from kerncfg.applier.bind import unbind_all
from kerncfg.errors import KerncfgWarning
from kerncfg.evidence.capture import one_line, same, tensors_of

if TYPE_CHECKING:
    from torch import nn

    from kerncfg.evidence.capture import Sample

__all__ = ["Trial", "attempt", "in_float64", "values_kept"]

_NARROW = (torch.float32, torch.float16, torch.bfloat16)


@dataclass(slots=True, kw_only=True)
class Trial:
    """What one run gave. `fault` is why it cannot be compared; `hazards` is what it did besides computing."""

    outputs: list[torch.Tensor] = field(default_factory=list)
    structure: str = ""
    upstream: Mapping[int, torch.Tensor] = field(default_factory=dict)
    gradients: dict[str, torch.Tensor | None] = field(default_factory=dict)
    hazards: list[str] = field(default_factory=list)
    fault: str | None = None


def attempt(
    forward: Callable[..., Any],
    module: nn.Module,
    sample: Sample,
    *,
    seed: int,
    training: bool,
    upstream: Mapping[int, torch.Tensor] | None = None,
) -> Trial:
    """Run `forward` once on clones of the sample's inputs, in training backward too, and never raise.

    `upstream` holds the gradients of the outputs by place; without it they are drawn, the same ones each
    time. Parameters and buffers of `module` that were written to get their values back. Writing to an input
    in the forward is a fault, in the backward a hazard.
    """
    trial = Trial()
    given, leaves = _prepared((sample.args, dict(sample.kwargs)), training=training)
    with values_kept(module) as written, torch.set_grad_enabled(training):
        torch.manual_seed(seed)
        try:
            result = forward(*given[0], **given[1])
            outputs = tensors_of(result)
            # Cloned before the backward, which may use the buffers of the results for its own.
            trial.outputs, trial.structure = [output.detach().clone() for output in outputs], _structure(result)
            if touched := _touched(given, sample):
                trial.fault = f"the forward writes to its {touched}"
            elif training:
                trial.upstream = _drawn(outputs) if upstream is None else upstream
                _backward(trial, outputs, module, leaves)
                if touched := _touched(given, sample):
                    trial.hazards.append(f"the backward writes to its {touched}")
        except Exception as error:  # whatever foreign code raises is a finding, not an end
            trial.fault = f"raised {one_line(error)}"
    if written and trial.fault is None:
        trial.fault = f"writes to {' and '.join(written)}"
    return trial


def in_float64(sample: Sample, *, seed: int, training: bool, upstream: Mapping[int, torch.Tensor]) -> Trial:
    """Run the original on a copy of its module in float64: inputs, weights and everything in between.

    Norms and the like compute in float32 by name, and would do so on float64 inputs too. So each operation
    that asks for a narrower floating type is given float64 instead, on the level below autograd; only what
    the code decides by looking at a dtype, or computes outside PyTorch's operations, keeps its own precision.
    """
    try:
        module = _own_copy(sample.binding.module).double().train(training)
    except Exception as error:  # a module that cannot be copied is verified without a reference
        return Trial(fault=f"no copy of it can be made: {one_line(error)}")
    wide = type(sample)(
        binding=sample.binding,
        args=_widened(sample.args),
        kwargs=_widened(dict(sample.kwargs)),
        paths=sample.paths,
    )
    given = {place: gradient.double() for place, gradient in upstream.items()}
    with _Wide():  # type: ignore[no-untyped-call]
        forward = MethodType(type(module).forward, module)
        return attempt(forward, module, wide, seed=seed, training=training, upstream=given)


def _own_copy(module: nn.Module) -> nn.Module:
    """Return a copy that runs no kernels."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", KerncfgWarning)  # it says that a copy lost its kernel, which is the aim
        made = copy.deepcopy(module)
    for part in made.modules():
        unbind_all(part)
    return made


class _Wide(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Computes in float64 what asks for a narrower floating type."""

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return func(*map(_wider, args), **{name: _wider(value) for name, value in (kwargs or {}).items()})


def _wider(value: Any) -> Any:
    return torch.float64 if isinstance(value, torch.dtype) and value in _NARROW else value


def _drawn(outputs: Sequence[torch.Tensor]) -> dict[int, torch.Tensor]:
    found = {}
    for place, output in enumerate(outputs):
        if output.requires_grad:
            generator = torch.Generator().manual_seed(place)  # the CPU's: the same for every run and device
            found[place] = torch.randn(output.shape, generator=generator).to(output.device, output.dtype)
    return found


def _backward(
    trial: Trial, outputs: Sequence[torch.Tensor], module: nn.Module, leaves: Mapping[str, torch.Tensor]
) -> None:
    upstream = trial.upstream
    weights = {name: weight for name, weight in module.named_parameters() if weight.requires_grad}
    wanted = {**leaves, **weights}
    cut = [place for place in upstream if place >= len(outputs) or not outputs[place].requires_grad]
    if cut:
        trial.fault = f"output {cut[0]} is cut off from autograd"
    elif upstream and wanted:
        given = {place: gradient.clone() for place, gradient in upstream.items()}
        results = [outputs[place] for place in given]
        found = torch.autograd.grad(results, list(wanted.values()), list(given.values()), allow_unused=True)
        trial.gradients = {
            name: None if gradient is None else gradient.detach() for name, gradient in zip(wanted, found, strict=True)
        }
        if not all(same(given[place], upstream[place]) for place in given):
            trial.hazards.append("the backward writes to the gradient it is given")


def _prepared(structure: Any, *, training: bool) -> tuple[Any, dict[str, torch.Tensor]]:
    """Clone all tensors; where a gradient is wanted, the clone is no leaf and can be written to."""
    leaves: dict[str, torch.Tensor] = {}
    place = -1

    def prepare(tensor: torch.Tensor) -> torch.Tensor:
        nonlocal place
        place += 1
        clone = tensor.detach().clone()
        if not (training and tensor.requires_grad):
            return clone
        leaves[f"input {place}"] = leaf = clone.requires_grad_()
        return leaf.clone()

    return pytree.tree_map_only(torch.Tensor, prepare, structure), leaves


def _touched(given: Any, sample: Sample) -> str | None:
    before = tensors_of((sample.args, dict(sample.kwargs)))
    pairs = zip(tensors_of(given), before, strict=True)
    places = [str(place) for place, (now, then) in enumerate(pairs) if not _unchanged(now, then)]
    return f"input {' and '.join(places)}" if places else None


def _unchanged(now: torch.Tensor, then: torch.Tensor) -> bool:
    return now.shape == then.shape and same(now.detach(), then.detach())


@contextmanager
def values_kept(module: nn.Module) -> Iterator[list[str]]:
    """Give parameters and buffers their values back; the list names the parameters written to."""
    held = [*module.named_parameters(), *module.named_buffers()]
    parameters = {name for name, _ in module.named_parameters()}
    values = [tensor.detach().clone() for _, tensor in held]
    written: list[str] = []
    try:
        yield written
    finally:
        with torch.no_grad():
            for (name, tensor), value in zip(held, values, strict=True):
                if not same(tensor, value):
                    tensor.copy_(value)
                    if name in parameters:
                        written.append(name)


def _widened(structure: Any) -> Any:
    def widen(tensor: torch.Tensor) -> torch.Tensor:
        wide = tensor.detach().double() if tensor.is_floating_point() else tensor
        return wide.requires_grad_(tensor.requires_grad)

    return pytree.tree_map_only(torch.Tensor, widen, structure)


def _structure(result: Any) -> str:
    leaves = pytree.tree_leaves(result)
    if len(leaves) == 1 and leaves[0] is result:
        return "a tensor" if isinstance(result, torch.Tensor) else f"a {type(result).__name__}"
    return f"a {type(result).__name__} of {len(leaves)}"
