"""GeGLU: the gated MLP of Gemma and its kin.

For a gate a = W_gate·x and a value u = W_up·x (Shazeer 2020, https://arxiv.org/abs/2002.05202):

    h = cast(gelu(a)) · u        gelu in float32, rounded to a's dtype, then multiplied
    y = W_down·h

    gelu(a) = a · Φ(a)                          exact, Φ(a) = (1 + erf(a/√2)) / 2
    gelu(a) ≈ a · (1 + tanh z) / 2              z = √(2/π) · (a + 0.044715·a³)

Which of the two is read from the module's own `act_fn`; an activation of any other kind is called as the module it
is. The projections are called in any case, so adapters, hooks and quantized layers on them keep working. For a row of
m elements of b bytes the Triton path (`triton_geglu`) moves 3mb forward (a and u in, h out) and 5mb backward, where
it computes gelu(a) again; eager moves 5mb and 9mb, and keeps gelu(a) as well. The torch path is what eager does, in
inference into one buffer.
"""

from __future__ import annotations

import functools
import math
from typing import Any

import torch
from torch import nn
from torch.nn import functional

from kerncfg.kernels._path import takes_triton


def gelu_and_mul(gate: torch.Tensor, up: torch.Tensor, approximate: str = "tanh") -> torch.Tensor:
    """Multiply `up` by the GELU of `gate`, exact for `approximate` "none" and by tanh for "tanh".

    Shapes: both (...), as is the result; shapes that broadcast are taken, on the torch path.
    Dtypes: float32, bfloat16 and float16, the same for both; anything else takes the torch path.

    Raises:
        ValueError: if `approximate` is neither.
        ImportError: if the tensors are on a device that needs triton, and triton is not installed.
    """
    if approximate not in ("none", "tanh"):
        raise ValueError(f"approximate is {approximate!r}, expected 'none' or 'tanh'")
    if gate.shape == up.shape and gate.dtype == up.dtype and takes_triton(gate, up):
        from kerncfg.kernels.triton_geglu import GeluAndMulFunction

        result: torch.Tensor = GeluAndMulFunction.apply(gate, up, approximate == "tanh")  # type: ignore[no-untyped-call]
        return result
    return _product(functional.gelu(gate, approximate=approximate), up)


def gelu_and_mul_reference(gate: torch.Tensor, up: torch.Tensor, approximate: str = "tanh") -> torch.Tensor:
    """Compute the same from the formula, one operation after the other.

    Shapes and dtypes as in `gelu_and_mul`; GELU is taken in float64, since in float32 the slope of the form by tanh
    is wrong by more than a rounding for gates beyond 5.
    """
    wide = gate.to(torch.float64)
    if approximate == "tanh":
        share = (1 + torch.tanh(math.sqrt(2 / math.pi) * (wide + 0.044715 * wide**3))) / 2
    else:
        share = (1 + torch.erf(wide / math.sqrt(2))) / 2
    return (wide * share).to(gate.dtype) * up


def _product(activated: torch.Tensor, up: torch.Tensor) -> torch.Tensor:
    recorded = torch.is_grad_enabled() and (activated.requires_grad or up.requires_grad)
    if recorded or activated.shape != up.shape or activated.dtype != up.dtype:
        return activated * up
    return activated.mul_(up)  # gelu's own buffer, not gate: saves an allocation


def which_gelu(act_fn: Any) -> str | None:
    """Say which GELU an activation module computes, as `approximate` of `gelu_and_mul`; `None` for any other.

    Known are `torch.nn.GELU` and what transformers makes of "gelu" and "gelu_pytorch_tanh". Those it makes of
    "gelu_new", "gelu_python" and "gelu_python_tanh" are not: they round after every step.
    """
    kind = type(act_fn).__name__
    if type(act_fn) is nn.GELU:
        return act_fn.approximate
    inner = getattr(act_fn, "act", None)
    if kind == "GELUActivation" and inner is functional.gelu:
        return "none"
    if kind == "GELUTanh" and isinstance(inner, functools.partial) and inner.func is functional.gelu:
        return "tanh" if inner.keywords == {"approximate": "tanh"} else None
    return None


class GeGLUMLP(nn.Module):
    """Forward of a gated MLP with GELU, for modules with `gate_proj`, `up_proj`, `down_proj` and `act_fn`."""

    can_torch_compile = True
    has_backward = True
    deterministic = True

    gate_proj: nn.Module
    up_proj: nn.Module
    down_proj: nn.Module
    act_fn: Any

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Map `x` (..., hidden) to (..., hidden); dtypes and errors as in `gelu_and_mul`."""
        gate, up = self.gate_proj(x), self.up_proj(x)
        approximate = which_gelu(self.act_fn)
        hidden = self.act_fn(gate) * up if approximate is None else gelu_and_mul(gate, up, approximate)
        result: torch.Tensor = self.down_proj(hidden)
        return result
