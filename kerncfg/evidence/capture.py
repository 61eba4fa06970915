"""The inputs that each swapped site really gets, from one run of the model, and the model left as it was."""

from __future__ import annotations

import weakref
from collections.abc import Hashable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Any

import torch

from kerncfg.applier.adapters.torch import compiled
from kerncfg.errors import ApplyError
from kerncfg.evidence.contents import Opaque, Shell, cloned, contents, copied, foreign, one_line, shape_of, tensors_of
from kerncfg.evidence.keeping import undisturbed
from kerncfg.evidence.listening import Listening, blanked, given, likeness_of, live_rows, moved, padded

if TYPE_CHECKING:
    from collections.abc import Callable

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
    refuse to be copied, and that every run therefore gets as the one before left them. Of attention, `masked` is what a
    kernel is called with, `live` which rows count, `fault` why a kernel's masks cannot be had, and `padded` the same
    site where there is padding.
    """

    binding: Binding
    args: tuple[Any, ...]
    kwargs: Mapping[str, Any]
    paths: tuple[str, ...]
    shared: tuple[str, ...] = ()
    masked: tuple[tuple[Any, ...], Mapping[str, Any]] | None = None
    live: torch.Tensor | None = None
    fault: str | None = None
    padded: Sample | None = None

    def original(self, whole: nn.Module | None = None) -> Callable[..., Any]:
        """Return what ran here before, as `Binding.original` does, and with the rows only that count."""
        found = self.binding.original(whole)
        return found if self.live is None else blanked(found, self.live)

    def forward(self, mode: Mode) -> Callable[..., Any]:
        """Return what runs here in a mode, as `Binding.forward` does, and with the rows only that count."""
        found = self.binding.forward(mode)
        return found if self.live is None else blanked(found, self.live)

    @property
    def of_kernel(self) -> Sample:
        """The sample with what a kernel gets, which for attention are masks of its own kind."""
        return self if self.masked is None else replace(self, args=self.masked[0], kwargs=self.masked[1])

    def moved(self, number: int) -> Sample:
        """Return this sample of attention with its tensors moved by up to one eps."""
        args, kwargs = moved((self.args, dict(self.kwargs)), number)
        return replace(self, args=args, kwargs=kwargs)

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
    """The distinct samples of one run, the sites that the run did not reach, and what else is to be told."""

    samples: tuple[Sample, ...]
    unreached: tuple[str, ...]
    notes: tuple[str, ...] = ()

    def with_padding(self, other: Captured) -> Captured:
        """Return the samples with those of a padded run, by the first of their sites."""
        others = {sample.paths[0]: sample for sample in reversed(other.samples)}
        return replace(self, samples=tuple(replace(one, padded=others.get(one.paths[0])) for one in self.samples))


def capture(bindings: Bindings, inputs: Mapping[str, Any], *, padding: bool = False) -> Captured:
    """Run the model once with its own forwards, in eval mode, and return what its swapped sites got.

    Calls of the same kernels and class with the same dtypes, shapes and other arguments are one sample, the
    first of them: a model of many equal layers gives a handful. The run records for autograd without saving
    activations, unless the model itself asks for them. Where attention is swapped, the model runs once more for the
    masks; with `padding` it does both again with the first sequence padded, if it has none.
    """
    sites = [site for site in bindings.sites if site.kind != "attention"]
    with undisturbed(bindings.model), torch.enable_grad():
        bindings.model.eval()
        calls = _calls(bindings, inputs, sites)
        others = padded(bindings.model, inputs) if padding and calls.listening else None
        found = calls.captured(bindings)
        if others is not None:
            try:
                again = _calls(bindings, others, ())
            except ApplyError as error:
                notes = (*found.notes, f"attention was not tried with padding: {error.message}")
                return replace(found, notes=notes)
            found = found.with_padding(again.captured(bindings))
    return found


def _calls(bindings: Bindings, inputs: Mapping[str, Any], sites: Sequence[Binding]) -> _Calls:
    """Return what one run of the model calls these sites with, and its attention."""
    model, calls = bindings.model, _Calls(bindings)

    def hook(_: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any], site: Binding) -> None:
        calls.note(site, (args, kwargs))

    def own(*call: Any) -> Any:
        return listen(*call)

    listen = calls.listening.own(lambda site, call: calls.note(site, call))
    with ExitStack() as hooks:
        hooks.enter_context(bindings.watched(own, own=True) if calls.listening else originals(bindings))
        for binding in sites:
            told = partial(hook, site=binding)
            hooks.callback(binding.module.register_forward_pre_hook(told, with_kwargs=True).remove)
        forgetful = Forgetful()
        try:
            with undisturbed(model), forgetful.hooks():
                _run(model, inputs)
        except ApplyError:
            if not forgetful.asked:
                raise
            calls = _Calls(bindings)  # a model that differentiates in its own forward needs its activations
            listen = calls.listening.own(lambda site, call: calls.note(site, call))
            _run(model, inputs)
    if calls.listening:
        calls.fault = _masks(bindings, inputs, calls.listening)
    return calls


def _masks(bindings: Bindings, inputs: Mapping[str, Any], listening: Listening) -> str | None:
    """Run the model with the masks that are made for kernels; return what it raised."""
    model, fault = bindings.model, None
    for grad in (False, True):  # a model that differentiates in its own forward cannot run without
        try:
            watched = bindings.watched(listening.again(), own=False)
            with undisturbed(model), watched, torch.set_grad_enabled(grad), _uncompiled(model):
                model(**cloned(dict(inputs)))
        except BaseException as error:
            foreign(error)
            fault = fault or f"the model raised with the masks of its kernel: {one_line(error)}"
        else:
            return None
    return fault


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
        with _uncompiled(model):
            model(**cloned(dict(inputs)))
    except BaseException as error:
        foreign(error)
        given = ", ".join(inputs) or "nothing"
        message = f"the model's own forward raised {one_line(error)}"
        raise ApplyError(message, hint=f"it was called with {given}; check what its inputs should be") from error


def _uncompiled(model: nn.Module) -> AbstractContextManager[Any]:
    """Let a compiled model run as it is: what looks on would be compiled with it, and use up its recompilations."""
    return torch.compiler.set_stance("force_eager") if compiled(model) else nullcontext()


class _Calls:
    """The first of all calls that are alike, and where the others were made."""

    def __init__(self, bindings: Bindings) -> None:
        self._found: dict[Hashable, Sample] = {}
        self._paths: dict[Hashable, dict[str, None]] = {}
        self.listening = Listening(bindings)
        self.fault: str | None = None

    def note(self, binding: Binding, call: tuple[tuple[Any, ...], dict[str, Any]]) -> tuple[Hashable, bool]:
        """Return what tells a call from others that are not alike, and whether it is the first."""
        args, kwargs = call
        key = _likeness(binding, args, kwargs)
        first = key not in self._found
        if first:
            named: dict[Any, Any] = {**dict(enumerate(args)), **kwargs}
            made, shared = copied(named)
            places = tuple(f"input {place.strip('[.]').replace('].', '.')} ({kind})" for place, kind in shared)
            kept = tuple(made.pop(number) for number in range(len(args)))
            self._found[key] = Sample(binding=binding, args=kept, kwargs=made, paths=(), shared=places)
        self._paths.setdefault(key, {})[binding.path] = None
        return key, first

    def captured(self, bindings: Bindings) -> Captured:
        reached = {(sample.binding.kind, path) for key, sample in self._found.items() for path in self._paths[key]}
        sites = ((site.kind, site.path) for site in bindings.sites)
        return Captured(
            samples=tuple(
                replace(self._sample(key, sample), paths=tuple(self._paths[key])) for key, sample in self._found.items()
            ),
            unreached=tuple(dict.fromkeys(path for kind, path in sites if (kind, path) not in reached)),
        )

    def _sample(self, key: Hashable, sample: Sample) -> Sample:
        if sample.binding.kind != "attention":
            return sample
        own = sample.args, dict(sample.kwargs)
        masked = self.listening.masks.get(key)
        if masked is None:
            return replace(sample, fault=self.fault or "with the masks of its kernel the model does not call it")
        return replace(sample, masked=given(own, masked), live=live_rows(own, masked))


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
        (binding.kind, likeness_of(binding.module) if binding.kind == "attention" else None),
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
