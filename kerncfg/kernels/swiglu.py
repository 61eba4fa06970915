"""SwiGLU: the gated MLP of Llama and its kin.

For a gate a = W_gate·x and a value u = W_up·x (Shazeer 2020, https://arxiv.org/abs/2002.05202):

    h = cast(silu(a)) · u        silu(a) = a / (1 + e^-a) in float32, rounded to a's dtype, then multiplied
    y = W_down·h

Only the line in the middle is a kernel; the three projections are called as the modules they are, so
adapters, hooks and quantized layers on them keep working. For a row of m elements of b bytes the Triton path
(`triton_swiglu`) moves 3mb forward (a and u in, h out) and 5mb backward, where it computes silu(a) again;
eager moves 5mb and 9mb, and keeps silu(a) as well. The torch path is what eager does, in inference into one
buffer.
"""

from __future__ import annotations

import torch
from torch import nn
from torch.nn import functional

from kerncfg.kernels._path import takes_triton


def silu_and_mul(gate: torch.Tensor, up: torch.Tensor) -> torch.Tensor:
    """Multiply `up` by the SiLU of `gate`.

    Shapes: both (...), as is the result; shapes that broadcast are taken, on the torch path.
    Dtypes: float32, bfloat16 and float16, the same for both; anything else takes the torch path.

    Raises:
        ImportError: if the tensors are on a device that needs triton, and triton is not installed.
    """
    if gate.shape == up.shape and gate.dtype == up.dtype and takes_triton(gate, up):
        from kerncfg.kernels.triton_swiglu import SiluAndMulFunction

        result: torch.Tensor = SiluAndMulFunction.apply(gate, up)  # type: ignore[no-untyped-call]
        return result
    return _silu_and_mul_torch(gate, up)


def silu_and_mul_reference(gate: torch.Tensor, up: torch.Tensor) -> torch.Tensor:
    """Compute the same from the formula, one operation after the other.

    Shapes and dtypes as in `silu_and_mul`; SiLU is taken in float32, or in float64 for float64 input.
    """
    wide = gate.to(torch.promote_types(gate.dtype, torch.float32))
    return (wide / (1 + torch.exp(-wide))).to(gate.dtype) * up


def _silu_and_mul_torch(gate: torch.Tensor, up: torch.Tensor) -> torch.Tensor:
    activated = functional.silu(gate)
    recorded = torch.is_grad_enabled() and (activated.requires_grad or up.requires_grad)
    if recorded or activated.shape != up.shape or activated.dtype != up.dtype:
        return activated * up
    return activated.mul_(up)  # silu's own buffer, not gate: saves an allocation


class SwiGLUMLP(nn.Module):
    """Forward of a gated MLP with SiLU, for modules with `gate_proj`, `up_proj` and `down_proj`."""

    can_torch_compile = True
    has_backward = True
    deterministic = True

    gate_proj: nn.Module
    up_proj: nn.Module
    down_proj: nn.Module

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Map `x` (..., hidden) to (..., hidden); dtypes and errors as in `silu_and_mul`."""
        hidden = silu_and_mul(self.gate_proj(x), self.up_proj(x))
        result: torch.Tensor = self.down_proj(hidden)
        return result
