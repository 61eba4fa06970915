"""The inputs that each swapped site really gets, from one run of the model, and the model left as it was."""

from __future__ import annotations

import weakref
from collections.abc import Hashable, Iterator, Mapping
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch

from kerncfg.errors import ApplyError
from kerncfg.evidence.contents import Opaque, Shell, cloned, contents, copied, one_line, shape_of, tensors_of
from kerncfg.evidence.keeping import undisturbed

if TYPE_CHECKING:
    from torch import nn

    from kerncfg.applier.apply import Binding, Bindings
    from kerncfg.documents.plan import Kernel
    from kerncfg.documents.target import Mode

__all__ = ["Captured", "Forgetful", "Sample", "capture", "input_contents", "measured_modes", "originals"]

_SHAPES = 4  # of the inputs that a row shows


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Sample:
    """One call of one site, standing for every site that is called alike; `paths` names them all.

    Inputs are deep copies, tensors detached clones that keep whether a gradient was wanted. `shared` names those that
    refuse to be copied, and that every run therefore gets as the one before left them.
    """

    binding: Binding
    args: tuple[Any, ...]
    kwargs: Mapping[str, Any]
    paths: tuple[str, ...]
    shared: tuple[str, ...] = ()

    @property
    def device(self) -> str:
        """The device of the first tensor the site gets or holds; `cpu` if there is none."""
        return next((str(tensor.device) for tensor in self._tensors()), "cpu")

    @property
    def dtype(self) -> str:
        """The dtype of the first floating tensor the site gets or holds, else of the first, else `none`."""
        tensors = self._tensors()
        floating = next((tensor for tensor in tensors if tensor.is_floating_point()), None)
        found = floating if floating is not None else next(iter(tensors), None)
        return "none" if found is None else str(found.dtype).removeprefix("torch.")

    @property
    def shape(self) -> str:
        """The shapes of the tensors among the inputs, as in `2x8x64, 2x8`."""
        given = input_contents(self.args, self.kwargs, objects=False).values()
        shapes = [shape_of(part) for part in given if isinstance(part, torch.Tensor)]
        return ", ".join([*shapes[:_SHAPES], *(["…"] if len(shapes) > _SHAPES else [])]) or "none"

    def _tensors(self) -> list[torch.Tensor]:
        module = self.binding.whole
        return [*tensors_of((self.args, dict(self.kwargs))), *module.parameters(), *module.buffers()]

    def kernels(self, modes: tuple[Mode, ...]) -> dict[Kernel, tuple[Mode, ...]]:
        """Return each kernel that some of the modes run here, with those modes."""
        found: dict[Kernel, tuple[Mode, ...]] = {}
        for mode in modes:
            kernel = self.binding.kernels.get(mode)
            if kernel is not None:
                found[kernel] = (*found.get(kernel, ()), mode)
        return found


@dataclass(frozen=True, slots=True, kw_only=True)
class Captured:
    """The distinct samples of one run, and the sites that the run did not reach."""

    samples: tuple[Sample, ...]
    unreached: tuple[str, ...]


def capture(bindings: Bindings, inputs: Mapping[str, Any]) -> Captured:
    """Run the model once with its own forwards, in eval mode, and return what its swapped sites got.

    Calls of the same kernels and class with the same dtypes, shapes and other arguments are one sample, the
    first of them: a model of many equal layers gives a handful. The run records for autograd without saving
    activations, unless the model itself asks for them.
    """
    calls = _Calls()
    model = bindings.model
    with undisturbed(model), ExitStack() as hooks, torch.enable_grad():
        model.eval()
        hooks.enter_context(originals(bindings))
        for binding in bindings.sites:

            def hook(_: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any], site: Binding = binding) -> None:
                calls.note(site, args, kwargs)

            hooks.callback(binding.module.register_forward_pre_hook(hook, with_kwargs=True).remove)
        forgetful = Forgetful()
        try:
            with undisturbed(model), forgetful.hooks():
                _run(model, inputs)
        except ApplyError:
            if not forgetful.asked:
                raise
            calls = _Calls()  # a model that differentiates in its own forward needs its activations
            _run(model, inputs)
    return calls.captured(bindings)


def input_contents(args: tuple[Any, ...], kwargs: Mapping[str, Any], *, objects: bool = True) -> dict[str, Any]:
    """Return `contents` of all arguments, each named as it was given: `input 0`, `input mask`."""
    found: dict[str, Any] = {}
    for name, value in [*enumerate(args), *kwargs.items()]:
        found |= contents(value, f"input {name}", objects=objects)
    return found


def measured_modes(bindings: Bindings) -> tuple[Mode, ...]:
    """Return the modes that were applied: the fixed one, or the two that follow the model's own."""
    return tuple(dict.fromkeys(mode for binding in bindings.sites for mode in binding.kernels))


@contextmanager
def originals(bindings: Bindings) -> Iterator[None]:
    """Let every swapped site run the model's own forward, in whatever is wrapped around it."""
    with bindings.originals():
        yield


def _run(model: nn.Module, inputs: Mapping[str, Any]) -> None:
    try:
        model(**cloned(dict(inputs)))
    except Exception as error:
        given = ", ".join(inputs) or "nothing"
        message = f"the model's own forward raised {one_line(error)}"
        raise ApplyError(message, hint=f"it was called with {given}; check what its inputs should be") from error


class _Calls:
    """The first of all calls that are alike, and where the others were made."""

    def __init__(self) -> None:
        self._found: dict[Hashable, tuple[Binding, tuple[Any, ...], dict[str, Any], tuple[str, ...]]] = {}
        self._paths: dict[Hashable, dict[str, None]] = {}

    def note(self, binding: Binding, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        key = _likeness(binding, args, kwargs)
        if key not in self._found:
            named: dict[Any, Any] = {**dict(enumerate(args)), **kwargs}
            made, shared = copied(named)
            places = tuple(f"input {place.strip('[.]').replace('].', '.')} ({kind})" for place, kind in shared)
            kept = tuple(made.pop(number) for number in range(len(args)))
            self._found[key] = (binding, kept, made, places)
        self._paths.setdefault(key, {})[binding.path] = None

    def captured(self, bindings: Bindings) -> Captured:
        reached = {path for group in self._paths.values() for path in group}
        return Captured(
            samples=tuple(
                Sample(binding=binding, args=args, kwargs=kwargs, paths=tuple(self._paths[key]), shared=shared)
                for key, (binding, args, kwargs, shared) in self._found.items()
            ),
            unreached=tuple(binding.path for binding in bindings.sites if binding.path not in reached),
        )


class Forgetful:
    """Keeps no tensor alive for a backward, and knows if somebody asked for one that is gone."""

    def __init__(self) -> None:
        self.asked = False

    def hooks(self) -> AbstractContextManager[Any]:
        """Let autograd record, and save nothing."""
        return torch.autograd.graph.saved_tensors_hooks(self.pack, self.unpack)

    def pack(self, tensor: torch.Tensor) -> weakref.ref[torch.Tensor]:
        """Remember where a tensor is."""
        return weakref.ref(tensor)

    def unpack(self, packed: weakref.ref[torch.Tensor]) -> torch.Tensor:
        """Return it, if it is still there."""
        found = packed()
        if found is None:
            self.asked = True
            raise RuntimeError("this run keeps no activations")
        return found


def _likeness(binding: Binding, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Hashable:
    return (
        binding.name,
        tuple(binding.kernels.items()),
        tuple(map(type, binding.modules)),
        tuple((name, tensor.dtype, tensor.shape) for name, tensor in binding.whole.named_parameters()),
        tuple((place, _kind(part)) for place, part in input_contents(args, kwargs, objects=False).items()),
    )


def _kind(part: Any) -> Hashable:
    if isinstance(part, torch.Tensor):
        plain = part.layout == torch.strided and not part.is_nested
        return part.dtype, part.device, shape_of(part), plain and part.is_contiguous(), part.requires_grad
    return part if isinstance(part, (Shell, Opaque)) else (type(part), repr(part))
