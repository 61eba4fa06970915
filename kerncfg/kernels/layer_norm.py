"""LayerNorm as `torch.nn.LayerNorm` computes it over the last dimension.

With n the row length, w and b the weight and the bias, where there are any, and ε the module's `eps` (Ba, Kiros and
Hinton 2016, https://arxiv.org/abs/1607.06450):

    r = (var(x) + ε)^(-1/2)               in float32, the variance divided by n
    y = cast((x - mean(x)) · r · w + b)   in float32, then cast to x's dtype

Two paths compute it. The Triton one (`triton_layer_norm`) reads and writes a row once, and keeps two float32 a row: in
bfloat16 it moves 4n bytes forward and 6n backward. The torch one is `torch.nn.functional.layer_norm`, which is fused on
every device. It also takes what the kernel does not: a normalized shape of several dimensions, a weight of another
dtype than x, and autocast, under which torch's norm returns float32 where the device's rules say so.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import nn
from torch.nn import functional

from kerncfg.kernels._path import takes_triton


def layer_norm(
    x: torch.Tensor,
    normalized_shape: Sequence[int],
    weight: torch.Tensor | None,
    bias: torch.Tensor | None,
    eps: float,
) -> torch.Tensor:
    """Take mean and variance out of the last dimensions of `x`, scale by `weight` and add `bias`.

    Shapes: `x` is (..., *normalized_shape), `weight` and `bias` are `normalized_shape` or absent, the result is that
    of `x`. On the Triton path it is contiguous.
    Dtypes: float32, bfloat16 and float16, the same for all; anything else takes the torch path.

    Raises:
        RuntimeError: from torch, if the shapes do not fit.
        ImportError: if `x` is on a device that needs triton, and triton is not installed.
    """
    affine = [t for t in (weight, bias) if t is not None]
    row = x.shape[-1:]
    fits = tuple(normalized_shape) == row and all(t.shape == row and t.dtype == x.dtype for t in affine)
    if fits and not torch.is_autocast_enabled(x.device.type) and takes_triton(x, *affine):
        from kerncfg.kernels.triton_layer_norm import LayerNormFunction

        result: torch.Tensor = LayerNormFunction.apply(x, weight, bias, eps)  # type: ignore[no-untyped-call]
        return result
    return functional.layer_norm(x, tuple(normalized_shape), weight, bias, eps)


def layer_norm_reference(
    x: torch.Tensor,
    normalized_shape: Sequence[int],
    weight: torch.Tensor | None,
    bias: torch.Tensor | None,
    eps: float,
) -> torch.Tensor:
    """Compute the same from the formula, one operation after the other.

    Shapes as in `layer_norm`, any dtypes; all is computed in float32, or in float64 for float64 input.
    """
    dims = tuple(range(-len(normalized_shape), 0))
    wide = x.to(torch.promote_types(x.dtype, torch.float32))
    centred = wide - wide.mean(dims, keepdim=True)
    result = centred * torch.rsqrt(centred.square().mean(dims, keepdim=True) + eps)
    if weight is not None:
        result = result * weight
    if bias is not None:
        result = result + bias
    return result.to(x.dtype)


class LayerNorm(nn.Module):
    """Forward of `torch.nn.LayerNorm`, for modules with `normalized_shape`, `weight`, `bias` and `eps`."""

    can_torch_compile = True
    has_backward = True
    deterministic = True

    normalized_shape: tuple[int, ...]
    weight: torch.Tensor | None
    bias: torch.Tensor | None
    eps: float

    def forward(self, input: torch.Tensor) -> torch.Tensor:
        """Normalise `input` (..., *normalized_shape); dtypes and errors as in `layer_norm`."""
        return layer_norm(input, self.normalized_shape, self.weight, self.bias, self.eps)
