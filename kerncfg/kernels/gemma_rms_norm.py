"""RMSNorm as Gemma computes it: the weight is kept as its distance from one, and the result is rounded once.

With n the row length, w the weight and ε the module's `eps`, as transformers' `GemmaRMSNorm` and its kin (Gemma 2
and 3, Qwen3-Next, Qwen3.5) do it:

    r = (mean(x²) + ε)^(-1/2)      in float32
    y = cast(x · r · (1 + w))      in float32, then cast to x's dtype, whatever the weight's is

Llama's norm rounds before it multiplies, and has no 1: neither takes the other's place. Two paths compute it. The
Triton one (`triton_rms_norm`) reads and writes a row once: in bfloat16 4n bytes forward and 6n backward. The torch
one is `torch.nn.functional.rms_norm` without weight, then the product, in float32; given 1 + w as its weight, the
same call was three times slower on a CPU at 1024 columns, and warns where the dtypes differ.
"""

from __future__ import annotations

import torch
from torch import nn
from torch.nn import functional

from kerncfg.kernels._path import TRITON_DTYPES, takes_triton


def gemma_rms_norm(x: torch.Tensor, weight: torch.Tensor, eps: float) -> torch.Tensor:
    """Normalise the last dimension of `x` by its root mean square and scale it by `1 + weight`.

    Shapes: `x` is (..., n), `weight` is (n,), the result is (..., n). On the Triton path it is contiguous.
    Dtypes: float32, bfloat16 and float16, mixed at will; the result has that of `x`. Any other dtype, and empty
    input, takes `gemma_rms_norm_reference`.

    Raises:
        ValueError: if `weight` does not hold one element for each column of `x`.
        ImportError: if `x` is on a device that needs triton, and triton is not installed.
    """
    if weight.shape != x.shape[-1:]:
        raise ValueError(f"weight has shape {tuple(weight.shape)}, expected {tuple(x.shape[-1:])} like a row")
    if takes_triton(x, weight):
        from kerncfg.kernels.triton_rms_norm import RMSNormFunction

        result: torch.Tensor = RMSNormFunction.apply(x, weight, eps, True)  # type: ignore[no-untyped-call]
        return result
    if x.dtype in TRITON_DTYPES and x.numel() > 0:
        return _gemma_rms_norm_torch(x, weight, eps)
    return gemma_rms_norm_reference(x, weight, eps)


def gemma_rms_norm_reference(x: torch.Tensor, weight: torch.Tensor, eps: float) -> torch.Tensor:
    """Compute the same from the formula, one operation after the other.

    Shapes and dtypes as in `gemma_rms_norm`, and any other dtype; all is computed in float32.
    """
    wide = x.to(torch.float32)
    scale = torch.rsqrt(wide.square().mean(-1, keepdim=True) + eps)
    return (wide * scale * (1 + weight.to(torch.float32))).to(x.dtype)


def _gemma_rms_norm_torch(x: torch.Tensor, weight: torch.Tensor, eps: float) -> torch.Tensor:
    normal = functional.rms_norm(x.to(torch.float32), x.shape[-1:], None, eps)
    factor = 1 + weight.to(torch.float32)
    if torch.is_grad_enabled() and (normal.requires_grad or factor.requires_grad):
        return (normal * factor).to(x.dtype)
    return normal.mul_(factor).to(x.dtype)  # rms_norm's own buffer, not x: saves an allocation


class GemmaRMSNorm(nn.Module):
    """Forward of a Gemma-style RMSNorm, for modules with `weight` and `eps`."""

    can_torch_compile = True
    has_backward = True
    deterministic = True

    weight: torch.Tensor
    eps: float

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Normalise `x` (..., n); dtypes and errors as in `gemma_rms_norm`."""
        return gemma_rms_norm(x, self.weight, self.eps)
