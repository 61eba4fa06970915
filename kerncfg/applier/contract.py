"""Whether a kernel fits a layer: what its class and the layer's class decide, and what only the module can answer.

Every function returns the reason against it, or `None`.
"""

from __future__ import annotations

import dis
import inspect
import sys
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from enum import Enum
from functools import cache
from types import CodeType, FunctionType
from typing import TYPE_CHECKING, Any

import torch
from torch import nn

from kerncfg.documents.target import DEVICES, Mode

if TYPE_CHECKING:
    from kerncfg.applier.adapters import LayerClass

__all__ = ["Fit", "MissingAttribute", "conditions_fault", "device_fault", "fit", "module_fault"]

_MEMBERS = {"forward", "can_torch_compile", "has_backward"}
_METHOD_FLAG = sys.version_info >= (3, 12)  # since then LOAD_ATTR says in its lowest bit that a call follows


class MissingAttribute(LookupError):
    """A `when` condition asks for an attribute that the module has not; the argument is its path."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Fit:
    """What is known of a kernel and a class of layers before any module is looked at.

    `names` are the attributes that the kernel reads and that not every module of the class need have; `parts` those
    that it takes apart rather than calls, so that what is wrapped around a child there would be passed by.
    """

    fault: str | None
    forward: Callable[..., Any] | None = None
    names: tuple[str, ...] = ()
    parts: tuple[str, ...] = ()


def fit(code: Any, layer: LayerClass, mode: Mode) -> Fit:
    """Compare a kernel's code with a class of layers, for one mode."""
    fault = _class_fault(code) or _mode_fault(code, mode) or _signature_fault(code, layer)
    if fault is not None:
        return Fit(fault=fault)
    names, parts = _reads(code.forward)
    names = {name for name in names if not hasattr(layer.cls, name)}
    return Fit(fault=None, forward=code.forward, names=tuple(sorted(names)), parts=tuple(sorted(parts)))


def _class_fault(code: Any) -> str | None:
    if not (isinstance(code, type) and issubclass(code, nn.Module)):
        return f"a layer kernel is a subclass of torch.nn.Module, this is a {type(code).__name__}"
    if code.__init__ is not nn.Module.__init__:
        return "a layer kernel is stateless, this has an __init__ of its own"
    own = (vars(base) for base in code.__mro__ if base not in nn.Module.__mro__)
    members = {name for names in own for name in names if not (name.startswith("__") and name.endswith("__"))}
    if extra := sorted(name for name in members - _MEMBERS if not hasattr(nn.Module, name)):
        allowed = "forward, has_backward and can_torch_compile"
        return f"a layer kernel has no members but {allowed}, this has {', '.join(extra)}"
    forward = inspect.getattr_static(code, "forward")
    if isinstance(forward, staticmethod | classmethod) or not callable(forward):
        return f"a layer kernel's forward is a method, this is a {type(forward).__name__}"
    if forward is nn.Module.forward:
        return "this has no forward"
    if "__class__" in getattr(getattr(inspect.unwrap(forward), "__code__", None), "co_freevars", ()):
        return "its forward calls super(), which means nothing in the layer that borrows it"
    return None


def _mode_fault(code: Any, mode: Mode) -> str | None:
    if mode.training and not getattr(code, "has_backward", True):
        return f"has_backward is false, and {mode} needs gradients"
    if mode.compiled and not getattr(code, "can_torch_compile", False):
        return f"can_torch_compile is not true, and {mode} runs under torch.compile"
    return None


def _signature_fault(code: Any, layer: LayerClass) -> str | None:
    mine, theirs = _signature(code.forward), _signature(layer.forward)
    if mine is None or theirs is None:
        which = code if mine is None else layer.cls
        return f"the signature of {which.__qualname__}.forward cannot be read"
    if len(mine) == len(theirs) and all(map(_same, mine, theirs)):
        return None
    return f"its forward is {_spelled(mine)}, that of {layer.cls.__qualname__} is {_spelled(theirs)}"


def _signature(forward: Callable[..., Any]) -> list[inspect.Parameter] | None:
    try:
        parameters = list(inspect.signature(forward).parameters.values())
    except (TypeError, ValueError):
        return None
    return [parameter.replace(annotation=inspect.Parameter.empty) for parameter in parameters[1:]]


def _spelled(parameters: list[inspect.Parameter]) -> str:
    return f"forward{inspect.Signature(parameters)}"


def _same(mine: inspect.Parameter, theirs: inspect.Parameter) -> bool:
    if (mine.name, mine.kind) != (theirs.name, theirs.kind):
        return False
    return mine.default is theirs.default or (
        type(mine.default) is type(theirs.default) and repr(mine.default) == repr(theirs.default)
    )


def _reads(forward: Callable[..., Any]) -> tuple[set[str], set[str]]:
    """Return the attributes that a forward reads of its module, and those of them that it does not just call.

    A name that also stands there as text is left out: it is asked for with `hasattr` or `getattr` first.
    """
    function = inspect.unwrap(forward)
    if not isinstance(function, FunctionType) or not function.__code__.co_argcount:
        return set(), set()
    owner = function.__code__.co_varnames[0]
    names: set[str] = set()
    parts: set[str] = set()
    optional: set[Any] = set()
    for code in _codes(function.__code__, owner):
        optional.update(constant for constant in code.co_consts if isinstance(constant, str))
        before = None
        for step in dis.get_instructions(code):
            if before is not None and _loads(before, owner):
                if step.opname == "STORE_ATTR":
                    optional.add(step.argval)
                elif step.opname in ("LOAD_ATTR", "LOAD_METHOD"):
                    names.add(step.argval)
                    if step.opname == "LOAD_ATTR" and not (_METHOD_FLAG and (step.arg or 0) & 1):
                        parts.add(step.argval)
            before = step
    return names - optional, parts


def _codes(code: CodeType, owner: str) -> Iterator[CodeType]:
    """Yield a function's code and that of the functions and comprehensions in it that see its first argument."""
    yield code
    for constant in code.co_consts:
        if isinstance(constant, CodeType) and owner in constant.co_freevars:
            yield from _codes(constant, owner)


def _loads(step: dis.Instruction, owner: str) -> bool:
    if not step.opname.startswith(("LOAD_FAST", "LOAD_DEREF")):
        return False
    return step.argval == owner or (isinstance(step.argval, tuple) and step.argval[-1] == owner)


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
        child = children.get(name)
        if child is not None and (around := _around(child)):
            return f"its forward reads inside self.{name}, past {around}"
    return None


def _around(child: nn.Module) -> str | None:
    entries = child.__dict__
    if "base_layer" in entries["_modules"]:
        return f"the adapter {type(child).__qualname__} there"
    if "forward" in entries:
        return "the wrapper around its forward"
    if entries["_forward_hooks"] or entries["_forward_pre_hooks"]:
        return "its forward hooks"
    return None


def device_fault(module: nn.Module, device: str) -> str | None:
    """Say where a module is, if that is not the plan's device; one without parameters and buffers is nowhere."""
    entries = module.__dict__
    if entries["_modules"]:
        tensors: Any = (*module.parameters(), *module.buffers())
    else:
        tensors = (*entries["_parameters"].values(), *entries["_buffers"].values())
    for tensor in tensors:
        if tensor is not None and (found := _device(tensor.device)) != device:
            return f"the module is on {found}, the plan is for {device}"
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
        tensors = (*module.parameters(), *module.buffers())
        floating = [tensor for tensor in tensors if tensor.is_floating_point()] or tensors
        found = sorted({str(tensor.dtype).removeprefix("torch.") for tensor in floating})
        if not found or not set(found) <= set(wanted):
            return f"needs dtype {' or '.join(wanted)}, found {', '.join(found) or 'no parameter'}"
    for path, values in conditions.get("when", {}).items():
        value = _value(module, path)
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
    if isinstance(found, torch.Tensor) and found.numel() == 1:
        found = found.item()
    if isinstance(found, Enum):
        found = found.value
    if isinstance(found, torch.dtype):
        found = str(found).removeprefix("torch.")
    if isinstance(found, tuple):
        found = list(found)
    return (
        isinstance(found, bool) == isinstance(wanted, bool)
        and type(found) not in (torch.Tensor,)
        and bool(found == wanted)
    )
