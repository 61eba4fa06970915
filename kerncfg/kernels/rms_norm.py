"""RMSNorm as Llama computes it.

With n the row length, w the weight and ε the variance epsilon (Zhang and Sennrich 2019,
https://arxiv.org/abs/1910.07467, in the cast order of transformers' `LlamaRMSNorm`):

    r = (mean(x²) + ε)^(-1/2)      in float32
    y = w · cast(x · r)            cast to x's dtype first, then multiplied; y has the promoted dtype

Two paths compute it. The Triton one (`triton_rms_norm`) reads and writes a row once: in bfloat16 4n bytes
forward and 6n backward, where the seven eager kernels move 36n forward alone. The torch one is a call of
`torch.nn.functional.rms_norm` without weight, then the product: that order, and not the call with weight, is
what rounds as Llama does in bfloat16.
"""

from __future__ import annotations

import torch
from torch import nn
from torch.nn import functional

from kerncfg.kernels._path import TRITON_DTYPES, takes_triton


def rms_norm(x: torch.Tensor, weight: torch.Tensor, eps: float) -> torch.Tensor:
    """Normalise the last dimension of `x` by its root mean square and scale it by `weight`.

    Shapes: `x` is (..., n), `weight` is (n,), the result is (..., n). On the Triton path it is contiguous.
    Dtypes: float32, bfloat16 and float16, mixed at will; the result has the promoted dtype. Any other dtype,
    and empty input, takes `rms_norm_reference`.

    Raises:
        ValueError: if `weight` does not hold one element for each column of `x`.
        ImportError: if `x` is on a device that needs triton, and triton is not installed.
    """
    if weight.shape != x.shape[-1:]:
        raise ValueError(f"weight has shape {tuple(weight.shape)}, expected {tuple(x.shape[-1:])} like a row")
    if takes_triton(x, weight):
        from kerncfg.kernels.triton_rms_norm import RMSNormFunction

        result: torch.Tensor = RMSNormFunction.apply(x, weight, eps)  # type: ignore[no-untyped-call]
        return result
    if x.dtype in TRITON_DTYPES and x.numel() > 0:
        return _rms_norm_torch(x, weight, eps)
    return rms_norm_reference(x, weight, eps)


def rms_norm_reference(x: torch.Tensor, weight: torch.Tensor, eps: float) -> torch.Tensor:
    """Compute the same from the formula, one operation after the other.

    Shapes and dtypes as in `rms_norm`, and any other dtype; the norm itself is taken in float32.
    """
    wide = x.to(torch.float32)
    scale = torch.rsqrt(wide.square().mean(-1, keepdim=True) + eps)
    return weight * (wide * scale).to(x.dtype)


def _rms_norm_torch(x: torch.Tensor, weight: torch.Tensor, eps: float) -> torch.Tensor:
    normal = functional.rms_norm(x, x.shape[-1:], None, eps)
    recorded = torch.is_grad_enabled() and (normal.requires_grad or weight.requires_grad)
    if recorded or weight.dtype != normal.dtype:
        return weight * normal
    return normal.mul_(weight)  # rms_norm's own buffer, not x: saves an allocation


class RMSNorm(nn.Module):
    """Forward of a Llama-style RMSNorm, for modules with `weight` and `variance_epsilon`."""

    can_torch_compile = True
    has_backward = True
    deterministic = True

    weight: torch.Tensor
    variance_epsilon: float

    def forward(self, hidden_states: torch.Tensor) -> torch.Tensor:
        """Normalise `hidden_states` (..., n); dtypes and errors as in `rms_norm`."""
        return rms_norm(hidden_states, self.weight, self.variance_epsilon)
