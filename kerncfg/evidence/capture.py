"""The inputs that each swapped site really gets, from one run of the model, and the model left as it was."""

from __future__ import annotations

from collections.abc import Hashable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch.utils import _pytree as pytree

from kerncfg.applier.bind import Edit, Owner, bind, unbind
from kerncfg.errors import ApplyError

if TYPE_CHECKING:
    from torch import nn

    from kerncfg.applier.apply import Binding, Bindings
    from kerncfg.documents.plan import Kernel
    from kerncfg.documents.target import Mode

__all__ = [
    "Captured",
    "Sample",
    "capture",
    "cloned",
    "measured_modes",
    "one_line",
    "originals",
    "tensors_of",
    "undisturbed",
]


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Sample:
    """One call of one site, standing for every site that is called alike; `paths` names them all.

    Tensors are detached clones that keep whether a gradient was wanted; what is no tensor is kept as it is.
    """

    binding: Binding
    args: tuple[Any, ...]
    kwargs: Mapping[str, Any]
    paths: tuple[str, ...]

    @property
    def device(self) -> str:
        """The device of the first tensor the site gets or holds."""
        return str(next(iter([*tensors_of((self.args, self.kwargs)), *self.binding.module.parameters()])).device)

    @property
    def dtype(self) -> str:
        """The dtype of the first floating tensor the site gets or holds."""
        tensors = [*tensors_of((self.args, self.kwargs)), *self.binding.module.parameters()]
        floating = next((tensor for tensor in tensors if tensor.is_floating_point()), tensors[0])
        return str(floating.dtype).removeprefix("torch.")

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
    activations.
    """
    found: dict[Hashable, tuple[Binding, tuple[Any, ...], dict[str, Any]]] = {}
    paths: dict[Hashable, dict[str, None]] = {}

    def note(binding: Binding, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        key = _likeness(binding, args, kwargs)
        if key not in found:
            found[key] = (binding, *cloned((args, kwargs)))
        paths.setdefault(key, {})[binding.path] = None

    model = bindings.model
    with undisturbed(model), ExitStack() as hooks, torch.enable_grad():
        model.eval()
        hooks.enter_context(originals(bindings))
        for binding in bindings.sites:

            def hook(_: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any], site: Binding = binding) -> None:
                note(site, args, kwargs)

            hooks.callback(binding.module.register_forward_pre_hook(hook, with_kwargs=True).remove)
        with torch.autograd.graph.saved_tensors_hooks(_forgotten, _forgotten):
            _run(model, inputs)
    reached = {path for group in paths.values() for path in group}
    return Captured(
        samples=tuple(
            Sample(binding=binding, args=args, kwargs=kwargs, paths=tuple(paths[key]))
            for key, (binding, args, kwargs) in found.items()
        ),
        unreached=tuple(binding.path for binding in bindings.sites if binding.path not in reached),
    )


def measured_modes(bindings: Bindings) -> tuple[Mode, ...]:
    """Return the modes that were applied: the fixed one, or the two that follow the model's own."""
    return tuple(dict.fromkeys(mode for binding in bindings.sites for mode in binding.kernels))


@contextmanager
def originals(bindings: Bindings) -> Iterator[None]:
    """Let every swapped site run the model's own forward, in whatever is wrapped around it."""
    edit = Edit(Owner.of("evidence"), (None, None), (None, None))
    with ExitStack() as undo:
        for binding in bindings.sites:
            bind(binding.module, edit)
            undo.callback(unbind, binding.module, edit)
        yield


@contextmanager
def undisturbed(model: nn.Module) -> Iterator[None]:
    """Put modes, buffers, gradients and random state of the model back on the way out."""
    modes = [(module, module.training) for module in model.modules()]
    buffers = [
        (module._buffers, name, buffer) for module in model.modules() for name, buffer in module._buffers.items()
    ]
    values = [None if buffer is None else buffer.clone() for _, _, buffer in buffers]
    gradients = [(parameter, parameter.grad) for parameter in model.parameters()]
    for parameter, _ in gradients:
        parameter.grad = None
    try:
        with random_state_kept(model):
            yield
    finally:
        for module, training in modes:  # parents stand before their children, whom they take along
            if module.training is not training:
                module.train(training)
        with torch.no_grad():
            for (own, name, buffer), value in zip(buffers, values, strict=True):
                own[name] = buffer
                if buffer is not None and value is not None and not same(buffer, value):
                    buffer.copy_(value)
        for parameter, gradient in gradients:
            parameter.grad = gradient


@contextmanager
def random_state_kept(model: nn.Module) -> Iterator[None]:
    """Fork the random state of the CPU and of the devices that the model is on."""
    used = {tensor.device for tensor in (*model.parameters(), *model.buffers())}
    types = {device.type for device in used} & {"cuda", "xpu"}
    with ExitStack() as stack:
        stack.enter_context(torch.random.fork_rng(devices=[]))
        for kind in sorted(types):
            indices = sorted(device.index or 0 for device in used if device.type == kind)
            stack.enter_context(torch.random.fork_rng(devices=indices, device_type=kind))
        yield


def cloned(value: Any) -> Any:
    """Return the same structure with every tensor detached and cloned; a wanted gradient stays wanted."""

    def clone(tensor: torch.Tensor) -> torch.Tensor:
        return tensor.detach().clone().requires_grad_(tensor.requires_grad)

    return pytree.tree_map_only(torch.Tensor, clone, value)


def tensors_of(value: Any) -> list[torch.Tensor]:
    """Return the tensors of a structure of tuples, lists, dicts and registered classes, in order."""
    return [leaf for leaf in pytree.tree_leaves(value) if isinstance(leaf, torch.Tensor)]


def same(one: torch.Tensor, other: torch.Tensor) -> bool:
    """Whether two tensors of one shape hold the same values, NaN being equal to NaN."""
    return bool(((one == other) | (one.isnan() & other.isnan())).all())


def one_line(error: BaseException) -> str:
    """Return an exception's type and the first line of its text."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return f"{type(error).__name__}: {lines[0]}" if lines else type(error).__name__


def _run(model: nn.Module, inputs: Mapping[str, Any]) -> None:
    try:
        model(**cloned(dict(inputs)))
    except Exception as error:
        given = ", ".join(inputs) or "nothing"
        message = f"the model's own forward raised {one_line(error)}"
        raise ApplyError(message, hint=f"it was called with {given}; check what its inputs should be") from error


def _forgotten(_: torch.Tensor) -> torch.Tensor:
    return torch.empty(0)


def _likeness(binding: Binding, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Hashable:
    leaves, structure = pytree.tree_flatten((args, dict(kwargs)))
    module = binding.module
    return (
        binding.name,
        tuple(binding.kernels.items()),
        type(module),
        tuple((name, tensor.dtype, tensor.shape) for name, tensor in module.named_parameters()),
        str(structure),
        tuple(_kind(leaf) for leaf in leaves),
    )


def _kind(leaf: Any) -> Any:
    if isinstance(leaf, torch.Tensor):
        return leaf.dtype, leaf.device, leaf.shape, leaf.is_contiguous(), leaf.requires_grad
    return leaf if isinstance(leaf, (int, float, str, bool, type(None))) else type(leaf)
