"""RMSNorm and the gated MLP behind it, as one: Llama's `post_attention_layernorm` and `mlp`.

With r the norm of `rms_norm`, W_gate and W_up stacked by rows into W (2m, n), and x of row length n:

    n = RMSNorm(x)        (a, u) = W·n        h = cast(silu(a)) · u        y = W_down·h

One product instead of two reads the normalised row once. On the Triton path (`triton_halves`) the middle line reads
both halves where the product left them and writes their gradients there: 3mb bytes a row forward and 5mb backward, as
`swiglu` does, without the copies that two halves of one tensor would cost it. The torch path computes what eager does.

The layout takes the two modules, and holds the down projection as it is, so that what is around that keeps working;
what is around the gate and the value would be passed by. The weights are those of the model: `conversion` says which.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, cast

import torch
from torch import nn
from torch.nn import functional

from kerncfg.kernels._path import takes_triton
from kerncfg.kernels.rms_norm import rms_norm, rms_norm_reference
from kerncfg.kernels.swiglu import silu_and_mul_reference

if TYPE_CHECKING:
    from collections.abc import Callable


def silu_and_mul_halves(stacked: torch.Tensor) -> torch.Tensor:
    """Multiply the second half of each row by the SiLU of the first.

    Shapes: `stacked` is (..., 2m), the result (..., m). Dtypes: float32, bfloat16 and float16; any other takes the
    torch path.

    Raises:
        ImportError: if the tensor is on a device that needs triton, and triton is not installed.
    """
    if takes_triton(stacked):
        from kerncfg.kernels.triton_halves import SiluAndMulHalvesFunction

        result: torch.Tensor = SiluAndMulHalvesFunction.apply(stacked)  # type: ignore[no-untyped-call]
        return result
    gate, up = stacked.chunk(2, -1)
    activated = functional.silu(gate)
    if torch.is_grad_enabled() and activated.requires_grad:
        return activated * up
    return activated.mul_(up)  # silu's own buffer, not gate: saves an allocation


def rms_norm_mlp_reference(
    x: torch.Tensor, weight: torch.Tensor, eps: float, gate: torch.Tensor, up: torch.Tensor, down: torch.Tensor
) -> torch.Tensor:
    """Compute the same from the formula, with projections (m, n), (m, n) and (n, m), one operation after the other."""
    normal = rms_norm_reference(x, weight, eps)
    return silu_and_mul_reference(normal @ gate.T, normal @ up.T) @ down.T


class RMSNormMLPLayout(nn.Module):
    """The parameters of a norm (`weight`, `variance_epsilon`) and a gated MLP with SiLU, gate and value as one.

    Raises:
        ValueError: The MLP's activation is not SiLU, or one projection has a bias and the other has none.
    """

    def __init__(self, norm: nn.Module, mlp: nn.Module) -> None:
        super().__init__()
        gate, up = cast("nn.Linear", mlp.gate_proj), cast("nn.Linear", mlp.up_proj)
        _check_silu(cast("Callable[[torch.Tensor], torch.Tensor]", mlp.act_fn))
        plain = gate.bias is None
        if plain is not (up.bias is None):
            raise ValueError("one of gate_proj and up_proj has a bias, the other has none")
        self.weight = cast("nn.Parameter", norm.weight)
        self.variance_epsilon = norm.variance_epsilon
        rows = gate.out_features + up.out_features
        # On meta: the memory is the model's, as `conversion` says.
        self.gate_up_weight = nn.Parameter(torch.empty(rows, gate.in_features, device="meta"))
        self.gate_up_bias = None if plain else nn.Parameter(torch.empty(rows, device="meta"))
        self.down_proj = mlp.down_proj
        names = ["weight"] if plain else ["weight", "bias"]
        self.conversion = {f"gate_up_{name}": [f"mlp.gate_proj.{name}", f"mlp.up_proj.{name}"] for name in names}


_POINTS = torch.linspace(-4, 4, 9, device="cpu")
_THERE = functional.silu(_POINTS)
_OWN = {*vars(nn.Module()), "inplace", "_is_hf_initialized"}  # the last two as torch and transformers set them
_ARE_SILU: set[type] = set()  # of a hundred layers, one is tried


def _check_silu(activation: Callable[[torch.Tensor], torch.Tensor]) -> None:
    cls = type(activation)
    plain = isinstance(activation, nn.Module) and vars(activation).keys() <= _OWN  # so the class alone decides
    if plain and cls in _ARE_SILU:
        return
    with torch.no_grad():
        if not torch.allclose(activation(_POINTS), _THERE, atol=1e-6):
            raise ValueError("the MLP's activation is not SiLU")
    if plain:
        _ARE_SILU.add(cls)


class RMSNormMLP(nn.Module):
    """Forward of a Llama-style RMSNorm followed by a gated MLP with SiLU, for modules of `RMSNormMLPLayout`."""

    can_torch_compile = True
    has_backward = True
    deterministic = True

    weight: torch.Tensor
    variance_epsilon: float
    gate_up_weight: torch.Tensor
    gate_up_bias: torch.Tensor | None
    down_proj: nn.Module

    def forward(self, hidden_states: torch.Tensor) -> torch.Tensor:
        """Map `hidden_states` (..., n) to (..., n); dtypes and errors as in `rms_norm` and `silu_and_mul_halves`."""
        normal = rms_norm(hidden_states, self.weight, self.variance_epsilon)
        stacked = functional.linear(normal, self.gate_up_weight, self.gate_up_bias)
        result: torch.Tensor = self.down_proj(silu_and_mul_halves(stacked))
        return result
