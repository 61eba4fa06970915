"""Whether a kernel fits a layer: what its class and the layer's class decide, and what only the module can answer.

Every function returns the reason against it, or `None`.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from enum import Enum
from functools import cache
from types import FunctionType
from typing import TYPE_CHECKING, Any

import torch
from torch import nn

from kerncfg.applier.adapters.torch import walk
from kerncfg.applier.attributes import attributes
from kerncfg.applier.called import as_function
from kerncfg.applier.passing import around, inner_child
from kerncfg.documents.target import DEVICES, Mode

if TYPE_CHECKING:
    from kerncfg.applier.adapters import Function, LayerClass

__all__ = [
    "Fit",
    "MissingAttribute",
    "conditions_fault",
    "device_fault",
    "fit",
    "function_fit",
    "module_fault",
    "tensors",
]

_FLAGS = ("has_backward", "can_torch_compile", "deterministic")


class _Nothing(nn.Module):
    """What every class statement brings, and what only speaks of a module: the members that a kernel may have."""

    weight: torch.Tensor

    def forward(self) -> None: ...

    def extra_repr(self) -> str:
        return ""


_MEMBERS = {*vars(_Nothing), *_FLAGS}


class MissingAttribute(LookupError):
    """A `when` condition asks for an attribute that the module has not; the argument is its path."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Fit:
    """What is known of a kernel and a class of layers before any module is looked at.

    `names` are the attributes that the kernel reads and that not every module of the class need have; `parts` those
    that it takes apart rather than calls, so that what is wrapped around a child there would be passed by. `hint` is
    the cure of a fault that has one.
    """

    fault: str | None
    hint: str | None = None
    forward: Callable[..., Any] | None = None
    names: tuple[str, ...] = ()
    parts: tuple[str, ...] = ()


def fit(code: Any, layer: LayerClass, mode: Mode) -> Fit:
    """Compare a kernel's code with a class of layers, for one mode."""
    if fault := _class_fault(code) or _mode_fault(code, mode):
        return Fit(fault=fault)
    if fault := _signature_fault(code, layer):
        theirs = _signature(layer.forward)
        takes = f"write a kernel whose forward takes {_spelled(theirs).removeprefix('forward')}" if theirs else None
        return Fit(fault=fault, hint=takes and f"{takes}, or narrow the row with match")
    found = attributes(code.forward)
    if found.sets:
        return Fit(fault=f"a layer kernel is stateless, its forward changes self: {', '.join(sorted(found.sets))}")
    names = {name for name in found.reads if not hasattr(layer.cls, name)}
    return Fit(fault=None, forward=code.forward, names=tuple(sorted(names)), parts=tuple(sorted(found.parts)))


def function_fit(code: Any, function: Function, mode: Mode) -> Fit:
    """Compare a kernel's code, a class or a function, with a function that a forward calls, for one mode."""
    is_class = isinstance(code, type)
    fault = _class_fault(code) if is_class else _function_fault(code)
    if fault := fault or _mode_fault(code, mode):
        return Fit(fault=fault)
    own: Any = getattr(code, "forward", None) if is_class else code
    mine = _parameters(_plain(own), bound=is_class)
    other: Any = function.function
    is_module = isinstance(other, nn.Module)  # what the `kernels` library makes of a function
    theirs = _parameters(type(other).forward if is_module else other, bound=is_module)
    if mine is None or theirs is None:
        which = getattr(code, "__qualname__", str(code)) if mine is None else function.called
        return Fit(fault=f"the signature of {which} cannot be read")
    if len(mine) != len(theirs) or not all(map(_same, mine, theirs)):
        takes = str(inspect.Signature(theirs))
        fault = f"it takes {inspect.Signature(mine)}, {function.called} takes {takes}"
        return Fit(fault=fault, hint=f"write a kernel that takes {takes}, or narrow the row with match")
    if is_class:
        found = attributes(own)
        if used := sorted({*found.sets, *(name for name in found.reads if not hasattr(code, name))}):
            return Fit(
                fault=f"its forward uses {', '.join(f'self.{name}' for name in used)}, and a function has no self"
            )
    return Fit(fault=None, forward=as_function(code))


def _function_fault(code: Any) -> str | None:
    if not callable(code):
        return f"a function's kernel is a subclass of torch.nn.Module or a function, this is a {type(code).__name__}"
    if isinstance(code, nn.Module):
        return "a function's kernel is a class or a function, this is a module with a state of its own"
    return _coroutine_fault(inspect.unwrap(code)) or _flags_fault(code)


def _class_fault(code: Any) -> str | None:
    if not (isinstance(code, type) and issubclass(code, nn.Module)):
        found = "class that is not one" if isinstance(code, type) else type(code).__name__
        return f"a layer kernel is a subclass of torch.nn.Module, this is a {found}"
    if code.__init__ is not nn.Module.__init__:
        return "a layer kernel is stateless, this has an __init__ of its own"
    own = (vars(base) for base in code.__mro__ if base not in nn.Module.__mro__)
    if extra := sorted({name for names in own for name in names} - _MEMBERS):
        allowed = "forward, has_backward, can_torch_compile and deterministic"
        return f"a layer kernel has no members but {allowed}, this has {', '.join(extra)}"
    forward = inspect.getattr_static(code, "forward")
    if isinstance(forward, staticmethod | classmethod) or not callable(forward):
        return f"a layer kernel's forward is a method, this is a {type(forward).__name__}"
    if forward is nn.Module.forward:
        return "this has no forward"
    function: Any = inspect.unwrap(forward)
    if "__class__" in getattr(getattr(function, "__code__", None), "co_freevars", ()):
        return "its forward calls super(), which means nothing in the layer that borrows it"
    return _coroutine_fault(function) or _flags_fault(code)


def _coroutine_fault(function: Any) -> str | None:
    if inspect.iscoroutinefunction(function) or inspect.isasyncgenfunction(function):
        return "its forward is async, and a layer is called without await"
    if inspect.isgeneratorfunction(function):
        return "its forward is a generator, it has a yield"
    return None


def _flags_fault(code: Any) -> str | None:
    flags = ((name, inspect.getattr_static(code, name, False)) for name in _FLAGS)
    if wrong := [f"{name} is a {type(value).__name__}" for name, value in flags if not isinstance(value, bool)]:
        return f"{' and '.join(wrong)}, which is neither true nor false"
    return None


def _mode_fault(code: Any, mode: Mode) -> str | None:
    if mode.training and not getattr(code, "has_backward", True):
        return f"has_backward is false, and {mode} needs gradients"
    if mode.compiled and not getattr(code, "can_torch_compile", False):
        return f"can_torch_compile is not true, and {mode} runs under torch.compile"
    return None


def _signature_fault(code: Any, layer: LayerClass) -> str | None:
    mine, theirs = _signature(_plain(code.forward)), _signature(layer.forward)
    if mine is None or theirs is None:
        which = code if mine is None else layer.cls
        return f"the signature of {which.__qualname__}.forward cannot be read"
    if len(mine) == len(theirs) and all(map(_same, mine, theirs)):
        return None
    return f"its forward is {_spelled(mine)}, that of {layer.cls.__qualname__} is {_spelled(theirs)}"


def _signature(forward: Callable[..., Any]) -> list[inspect.Parameter] | None:
    return _parameters(forward, bound=True)


def _parameters(function: Callable[..., Any], *, bound: bool) -> list[inspect.Parameter] | None:
    """Return what a function takes, without annotations; of one that is bound later, past its first parameter."""
    try:
        parameters = list(inspect.signature(function).parameters.values())
    except (TypeError, ValueError):
        return None
    return [parameter.replace(annotation=inspect.Parameter.empty) for parameter in parameters[bound:]]


def _plain(forward: Any) -> Any:
    """Return a function with the signature that its code has, whatever it says; one that passes all on has another's.

    Raises:
        ValueError: A function wraps itself.
    """
    inspect.unwrap(forward)
    while isinstance(forward, FunctionType):
        code = forward.__code__
        bare = FunctionType(code, {}, forward.__name__, forward.__defaults__, forward.__closure__)
        bare.__kwdefaults__ = forward.__kwdefaults__
        passes = code.co_flags & inspect.CO_VARARGS and code.co_flags & inspect.CO_VARKEYWORDS
        if not (passes and code.co_argcount <= 1 and not code.co_kwonlyargcount and hasattr(forward, "__wrapped__")):
            return bare
        forward = forward.__wrapped__
    return forward


def _spelled(parameters: list[inspect.Parameter]) -> str:
    return f"forward{inspect.Signature(parameters)}"


def _same(mine: inspect.Parameter, theirs: inspect.Parameter) -> bool:
    if (mine.name, mine.kind) != (theirs.name, theirs.kind):
        return False
    return mine.default is theirs.default or (
        type(mine.default) is type(theirs.default) and repr(mine.default) == repr(theirs.default)
    )


def module_fault(module: nn.Module, fit: Fit) -> str | None:
    """Say what of this very module keeps a fitting kernel from it: a missing attribute, or a wrapped child."""
    entries = module.__dict__
    parameters, buffers, children = entries["_parameters"], entries["_buffers"], entries["_modules"]
    for name in fit.names:
        if name not in entries and name not in parameters and name not in buffers and name not in children:
            if hasattr(module, name):  # a __getattr__ of the class's own
                continue
            return f"its forward reads self.{name}, which the module has not"
    for name in fit.parts if children else ():
        child = inner_child(module, name)
        if child is not None and (found := around(child)):
            return f"its forward reads inside self.{name}, past {found}"
    return None


def tensors(module: nn.Module) -> Iterator[torch.Tensor]:
    """Yield the parameters and buffers of a module and all in it, whatever its class makes of `parameters()`."""
    left, seen = [module], {id(module)}
    while left:  # not by `walk`: paths, and wrappers around modules, are nothing here
        entries = left.pop().__dict__
        for held in (entries["_parameters"], entries["_buffers"]):
            for tensor in held.values():
                if tensor is not None:
                    yield tensor
        if children := entries["_modules"]:
            for child in reversed(children.values()):
                if child is not None and id(child) not in seen:
                    seen.add(id(child))
                    left.append(child)


def device_fault(module: nn.Module, device: str) -> str | None:
    """Say where a module is, if that is not the plan's device; one without parameters and buffers is nowhere.

    Where accelerate keeps weights elsewhere between calls, the module is on the device that its hook brings them to.
    """
    left, seen = [module], {id(module)}
    while left:  # as `tensors`, without a generator: every module that a row takes is asked
        entries = left.pop().__dict__
        for tensor in entries["_parameters"].values():
            if tensor is not None and _device(tensor.device) != device:
                return _slow_device_fault(module, device)
        for tensor in entries["_buffers"].values() if entries["_buffers"] else ():
            if tensor is not None and _device(tensor.device) != device:
                return _slow_device_fault(module, device)
        for child in entries["_modules"].values() if entries["_modules"] else ():
            if child is not None and id(child) not in seen:
                seen.add(id(child))
                left.append(child)
    return None


def _slow_device_fault(module: nn.Module, device: str) -> str | None:
    for part in walk(module)[1]:
        entries = part.__dict__
        for tensor in [*entries["_parameters"].values(), *entries["_buffers"].values()]:
            if tensor is None:
                continue
            found = _device(tensor.device)
            if found == "meta" and (brought := _execution_device(part)) is not None:
                found = _device(brought)
            if found != device:
                return f"the module is on {found}, the plan is for {device}"
    return None


def _execution_device(module: nn.Module) -> torch.device | None:
    """Return where accelerate's hook, or one of several, has a module run."""
    hook = module.__dict__.get("_hf_hook")
    for one in getattr(hook, "hooks", (hook,)):
        said = getattr(one, "execution_device", None)
        if getattr(one, "offload", False) and said is not None:
            return torch.device(said)
    return None


@cache
def _device(found: torch.device) -> str:
    """Return a tensor's device as documents call it; PyTorch calls ROCm cuda. Cached: `type` alone takes 0.4 µs."""
    if found.type == "cuda" and torch.version.hip:
        return "rocm"
    return next((name for name, device in DEVICES.items() if device.torch == found.type), found.type)


def conditions_fault(module: nn.Module, conditions: Mapping[str, Any]) -> str | None:
    """Check the conditions that only a module can answer: `dtype`, and `when`.

    Raises:
        MissingAttribute: A `when` asks for what the module has not.
    """
    if (wanted := conditions.get("dtype")) is not None:
        every = list(tensors(module))
        floating = [tensor for tensor in every if tensor.is_floating_point()] or every
        found = sorted({str(tensor.dtype).removeprefix("torch.") for tensor in floating})
        if not found or not set(found) <= set(wanted):
            return f"needs dtype {' or '.join(wanted)}, found {', '.join(found) or 'no parameter'}"
    for path, values in conditions.get("when", {}).items():
        try:
            value = _value(module, path)
        except MissingAttribute:
            raise
        except Exception as error:  # a property of somebody's class
            return f"when.{path} cannot be read: {type(error).__name__}: {error}"
        if not any(_equal(value, wanted) for wanted in values):
            return f"needs {path} {' or '.join(map(str, values))}, found {value}"
    return None


def _value(module: nn.Module, path: str) -> Any:
    value: Any = module
    for part in path.split("."):
        if isinstance(value, Mapping):
            if part not in value:
                raise MissingAttribute(path)
            value = value[part]
        elif hasattr(value, part):
            value = getattr(value, part)
        else:
            raise MissingAttribute(path)
    return value


def _equal(found: Any, wanted: Any) -> bool:
    if isinstance(found, torch.Tensor) or type(found).__module__ == "numpy":
        try:
            found = found.item()
        except (ValueError, RuntimeError):  # more than one value, or none: nothing that can be written equals it
            return False
    if isinstance(found, Enum):
        found = found.value
    if isinstance(found, torch.dtype):
        found = str(found).removeprefix("torch.")
    if isinstance(found, tuple):
        found = list(found)
    return isinstance(found, bool) == isinstance(wanted, bool) and bool(found == wanted)
