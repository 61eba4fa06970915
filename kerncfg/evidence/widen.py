"""The same computation in float64: modules, inputs, and every operation that asks for less."""

from __future__ import annotations

import copy
import warnings
from typing import TYPE_CHECKING, Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode

from kerncfg.applier.apply import revert
from kerncfg.errors import KerncfgWarning
from kerncfg.evidence.contents import copied

if TYPE_CHECKING:
    from torch import nn

__all__ = ["Wide", "own_copy", "widened"]

_NARROW = (torch.float32, torch.float16, torch.bfloat16)


class Wide(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Computes in float64 what asks for a narrower floating type.

    Norms and the like compute in float32 by name, and would do so on float64 inputs too. So each operation
    that asks for a narrower floating type is given float64 instead, on the level below autograd; only what
    the code decides by looking at a dtype, or computes outside PyTorch's operations, keeps its own precision.
    """

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Run one operation."""
        return func(*map(_wider, args), **{name: _wider(value) for name, value in (kwargs or {}).items()})


def own_copy(module: nn.Module) -> nn.Module:
    """Return a copy in float64 that runs no kernels."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", KerncfgWarning)  # it says that a copy lost its kernel, which is the aim
        made = copy.deepcopy(module, _doubles(module))
    revert(made)
    return made.double()


def _doubles(module: nn.Module) -> dict[int, Any]:
    """Return what stands for each narrow parameter in a copy, so that none is held in its own type as well."""
    found: dict[int, Any] = {}
    for parameter in module.parameters():
        if type(parameter) is torch.nn.Parameter and parameter.dtype in _NARROW and parameter.layout == torch.strided:
            wide = parameter.detach().double()
            found[id(parameter)] = torch.nn.Parameter(wide, requires_grad=parameter.requires_grad)
    return found


def widened(value: Any) -> Any:
    """Return a deep copy whose floating tensors are detached and in float64."""

    def widen(tensor: torch.Tensor) -> torch.Tensor:
        wide = tensor.detach().double() if tensor.dtype in _NARROW else tensor.detach().clone()
        return wide.requires_grad_(tensor.requires_grad)

    return copied(value, widen)[0]


def _wider(value: Any) -> Any:
    return torch.float64 if isinstance(value, torch.dtype) and value in _NARROW else value
