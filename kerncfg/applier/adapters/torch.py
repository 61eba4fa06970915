"""The layers of any PyTorch model: its modules, and the names that decorators left on their classes."""

from __future__ import annotations

import inspect
import sys
from collections.abc import Callable, Mapping
from functools import partial
from types import FunctionType
from typing import Any, TypeVar

from torch import nn

from kerncfg.applier.adapters import Function, LayerClass, Sites
from kerncfg.applier.adapters.registrations import marked
from kerncfg.applier.called import called

__all__ = ["TorchAdapter", "compiled", "kernel_layer", "unwrapped"]

_MARKER = "_kerncfg_layer"
_KERNELS_MARKER = "kernel_layer_name"  # what the `kernels` library's decorators set
_KERNELS_CONDITION = "kernel_condition"

_Layer = TypeVar("_Layer", bound=type[nn.Module])


def kernel_layer(name: str) -> Callable[[_Layer], _Layer]:
    """Register the decorated class as a layer, so that rows of that name take its modules.

    Raises:
        TypeError: The name is no text, or the class no module.
    """
    if not isinstance(name, str) or not name.isidentifier():
        raise TypeError(f"a layer's name is a Python name, found {name!r}; write @kernel_layer('Name')")

    def register(cls: _Layer) -> _Layer:
        if not (isinstance(cls, type) and issubclass(cls, nn.Module)):
            raise TypeError(f"@kernel_layer({name!r}) is for subclasses of torch.nn.Module, found {cls!r}")
        setattr(cls, _MARKER, name)
        return cls

    return register


class TorchAdapter:
    """Knows every model; names come from kerncfg's own decorator and from the `kernels` library's."""

    def handles(self, model: nn.Module) -> bool:
        """Any module is a model of PyTorch."""
        return True

    def sites(self, model: nn.Module) -> Sites:
        """Return every module once, in the model's order; a compiled wrapper is looked through."""
        paths, modules, shared = walk(model)
        layers = {cls: self.layer(cls) for cls in set(map(type, modules))}
        return Sites(paths, modules, [layers[type(module)] for module in modules], shared)

    def layer(self, cls: type[nn.Module]) -> LayerClass | None:
        """Say what modules of a class can be taken for; `None` if they have no forward."""
        mro = cls.__mro__
        end = next(index for index, base in enumerate(mro) if "forward" in vars(base)) + 1
        if mro[end - 1] is nn.Module or _is_function(cls):
            return None
        forward = _of_class(cls, "forward")
        return LayerClass(
            cls=cls,
            classes=mro[:end],
            name=next(filter(None, map(self.registered, mro[:end])), None),
            inherited=next(filter(None, map(self.registered, mro[end:])), None),
            forward=forward,
            condition=_of_class(cls, _KERNELS_CONDITION),
            functions=self.functions(mro, end, forward),
        )

    def functions(self, mro: tuple[type, ...], end: int, forward: Any) -> tuple[Function, ...]:
        """Return what a forward calls by name; the classes before `end` speak for it, those beyond do not."""
        calls = called(forward)
        if not calls:
            return ()
        # The nearest class is the last to say a name.
        own, beyond = (
            {name: text for cls in reversed(part) for name, text in self.declared(cls, calls).items()}
            for part in (mro[:end], mro[end:])
        )
        return tuple(
            Function(called=name, function=function, name=own.get(name), inherited=beyond.get(name))
            for name, function in calls.items()
        )

    def declared(self, cls: type, calls: Mapping[str, Callable[..., Any]]) -> Mapping[str, str]:
        """Return which of the functions that a forward calls this very class declares, and their registered names."""
        functions = _kernelized(vars(cls).get("__init__"))
        names = {name: marked(value) for name, value in calls.items() if any(value is known for known in functions)}
        return {name: text for name, text in names.items() if text is not None}

    def registered(self, cls: type) -> str | None:
        """Return the name that this very class, not a base, is registered under."""
        found = vars(cls)
        name = found.get(_MARKER) or found.get(_KERNELS_MARKER)
        return name if isinstance(name, str) else None


def _kernelized(init: Any) -> list[Any]:
    """Return the functions that `use_kernelized_func` of the `kernels` library, which wraps `__init__`, was given."""
    found: list[Any] = []
    while isinstance(init, FunctionType) and init.__module__.partition(".")[0] == "kernels":
        cells = [cell.cell_contents for cell in init.__closure__ or ()]
        found += [value for cell in cells if isinstance(cell, tuple) for value in cell]
        init = next((cell for cell in cells if isinstance(cell, FunctionType)), None)
    return found


def _of_class(cls: type, name: str) -> Any:
    """Return an attribute of a class past its metaclass; a data descriptor is returned as it is, not asked."""
    found = inspect.getattr_static(cls, name, None)
    return found if found is None or hasattr(type(found), "__set__") else type.__getattribute__(cls, name)


def walk(model: nn.Module) -> tuple[list[str], list[nn.Module], dict[int, tuple[str, ...]]]:
    """Return every module's first path, the modules, and the further paths of those that have several, by place.

    As `named_modules`, but a `torch.compile` wrapper does not show: its module stands in its place.
    """
    wrapper = _compiled_wrapper()
    model = unwrapped(model)
    paths, modules, seen = [""], [model], {id(model)}
    again: list[tuple[str, nn.Module]] = []

    def visit(module: nn.Module, prefix: str) -> None:
        for name, child in module._modules.items():
            if child is None:
                continue
            if wrapper and isinstance(child, wrapper):
                child = unwrapped(child)
            if id(child) in seen:
                again.append((prefix + name, child))
                continue
            seen.add(id(child))
            paths.append(prefix + name)
            modules.append(child)
            if child._modules:
                visit(child, f"{prefix}{name}.")  # noqa: F821 (it is there until the end)

    visit(model, "")
    del visit  # a function that names itself is a cycle, and would hold the model until it is collected
    shared: dict[int, tuple[str, ...]] = {}
    if again:
        places = {id(module): place for place, module in enumerate(modules)}
        for path, module in again:
            _add_paths(module, path, places, shared, ())
    return paths, modules, shared


def _add_paths(
    module: nn.Module, path: str, places: dict[int, int], shared: dict[int, tuple[str, ...]], above: tuple[int, ...]
) -> None:
    """Add the paths of a module that was met again, and of all in it; a module inside itself has no end of them."""
    place = places[id(module)]
    if place in above:
        return
    shared[place] = (*shared.get(place, ()), path)
    for name, child in module._modules.items():
        if child is not None:
            _add_paths(unwrapped(child), f"{path}.{name}", places, shared, (*above, place))


def compiled(model: nn.Module) -> bool:
    """Whether the model, or any part of it, runs under `torch.compile` already."""
    wrapper = _compiled_wrapper()
    left, seen = [model], {id(model)}
    while wrapper and left:
        module = left.pop()
        if isinstance(module, wrapper) or module._compiled_call_impl is not None or _is_compiled_forward(module):
            return True
        left += [part for part in module._modules.values() if part is not None and id(part) not in seen]
        seen.update(map(id, module._modules.values()))
    return False


def _is_compiled_forward(module: nn.Module) -> bool:
    """Whether something set `torch.compile(module.forward)`, or a class compiles the forward that calls its parts.

    `get_compiler_config` is what PyTorch offers to the user of such a function. The class of a module without parts
    does not count: a kernel takes the place of that forward.
    """
    found = module.__dict__.get("forward")
    if found is None and module._modules:
        found = inspect.getattr_static(type(module), "forward")
    while isinstance(found, partial):
        found = found.func
    return found is not None and hasattr(found, "get_compiler_config")


def unwrapped(model: nn.Module) -> nn.Module:
    """Return the model that a `torch.compile` wrapper stands for, or the model itself."""
    wrapper: Any = _compiled_wrapper()
    while isinstance(model, wrapper):
        inner: nn.Module = model._orig_mod
        model = inner
    return model


def _compiled_wrapper() -> tuple[type, ...]:
    """Return the class that `torch.compile` wraps in, as a tuple: none where nothing was compiled in this process.

    Importing it would take a second.
    """
    found = getattr(sys.modules.get("torch._dynamo.eval_frame"), "OptimizedModule", None)
    return () if found is None else (found,)


def _is_function(cls: type) -> bool:
    """Whether the `kernels` library made this class of a function: its one instance serves every model."""
    return cls.__module__.partition(".")[0] == "kernels"
