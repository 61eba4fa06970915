"""Rotary position embedding as Llama applies it, to queries and keys at once.

With a head x = (x₁, x₂) of two halves, and the cosine and sine of its position's angles (Su et al. 2021,
https://arxiv.org/abs/2104.09864, in the half-split order of transformers' `apply_rotary_pos_emb`):

    y = x · cos + (-x₂, x₁) · sin          each product rounded to the dtype, then added

Models that turn in float32, or with half as many angles, register their function under the same name, with the same
parameters, and this kernel is not theirs. `conf/kernels/bundled.yaml` names the models that it is for.

Turning is linear, and its gradient turns back. Eager makes five passes over q and k forward, two of them to write
-x₂ and x₁ side by side; the torch path makes two, the Triton one (`triton_rotary`) a single one, in one launch.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

from kerncfg.kernels._path import TRITON_DTYPES, takes_triton

Pair = tuple[torch.Tensor, torch.Tensor]


def rotary_pos_emb(
    q: torch.Tensor, k: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor, unsqueeze_dim: int = 1
) -> Pair:
    """Turn every head of `q` and `k` by the angles of its position.

    Shapes: `q` and `k` are (batch, heads, tokens, n) with `unsqueeze_dim` 1, (batch, tokens, heads, n) with 2; `cos`
    and `sin` are (batch or 1, tokens, n). The results have the shapes and strides of `q` and `k`.
    Dtypes: float32, bfloat16 and float16, the same for all four. Anything else, empty input, and angles that need a
    gradient take `rotary_pos_emb_reference`.

    Raises:
        ImportError: if the tensors are on a device that needs triton, and triton is not installed.
    """
    axis = unsqueeze_dim if unsqueeze_dim >= 0 else unsqueeze_dim + 4
    if not _regular(q, k, cos, sin, axis):
        return rotary_pos_emb_reference(q, k, cos, sin, unsqueeze_dim)
    if takes_triton(q, k, cos, sin):
        from kerncfg.kernels.triton_rotary import RotaryFunction

        turned: Pair = RotaryFunction.apply(q, k, cos, sin, axis, False)  # type: ignore[no-untyped-call]
        return turned
    cos, sin = cos.unsqueeze(axis), sin.unsqueeze(axis)
    if torch.is_grad_enabled() and (q.requires_grad or k.requires_grad):
        return _Turn.apply(q, cos, sin, False), _Turn.apply(k, cos, sin, False)  # type: ignore[no-untyped-call]
    return _turned(q, cos, sin, False), _turned(k, cos, sin, False)


def rotary_pos_emb_reference(
    q: torch.Tensor, k: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor, unsqueeze_dim: int = 1
) -> Pair:
    """Compute the same from the formula, one operation after the other.

    Shapes as in `rotary_pos_emb`, and whatever broadcasts; the results have the promoted dtypes.
    """
    cos, sin = cos.unsqueeze(unsqueeze_dim), sin.unsqueeze(unsqueeze_dim)

    def turn(x: torch.Tensor) -> torch.Tensor:
        first, second = x.tensor_split(2, dim=-1) if x.shape[-1] % 2 == 0 else _split(x)
        return x * cos + torch.cat((-second, first), dim=-1) * sin

    return turn(q), turn(k)


def _split(x: torch.Tensor) -> Pair:
    return x[..., : x.shape[-1] // 2], x[..., x.shape[-1] // 2 :]


def _regular(q: torch.Tensor, k: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor, axis: int) -> bool:
    """Whether shapes and dtypes are those of attention."""
    if axis not in (1, 2) or q.dim() != 4 or k.dim() != 4 or cos.dim() != 3 or sin.shape != cos.shape:
        return False
    batch, columns, tokens = q.shape[0], q.shape[-1], q.shape[3 - axis]
    if k.shape[0] != batch or k.shape[-1] != columns or k.shape[3 - axis] != tokens or columns % 2:
        return False
    if cos.shape[0] not in (1, batch) or cos.shape[1:] != (tokens, columns):
        return False
    if q.dtype not in TRITON_DTYPES or not (q.dtype == k.dtype == cos.dtype == sin.dtype):
        return False
    return q.numel() > 0 and k.numel() > 0 and not cos.requires_grad and not sin.requires_grad


def _turned(x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor, back: bool) -> torch.Tensor:
    """Turn one tensor, or turn it back, in a buffer of its own."""
    half = x.shape[-1] // 2
    first, second = x[..., :half], x[..., half:]
    for_first, for_second = sin[..., :half], sin[..., half:]
    if back:
        for_first, for_second = for_second, for_first
    result = x * cos
    result[..., :half].addcmul_(second, for_first, value=1 if back else -1)
    result[..., half:].addcmul_(first, for_second, value=-1 if back else 1)
    return result


class _Turn(torch.autograd.Function):
    """A turn, whose gradient is the turn back: so it can be differentiated any number of times."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor, back: bool) -> torch.Tensor:
        ctx.save_for_backward(cos, sin)
        ctx.back = back
        return _turned(x, cos, sin, back)

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor) -> tuple[torch.Tensor, None, None, None]:
        cos, sin = ctx.saved_tensors
        return _Turn.apply(grad, cos, sin, not ctx.back), None, None, None  # type: ignore[no-untyped-call]


class RotaryPosEmb(nn.Module):
    """Forward of a function that turns queries and keys: what models register as `rotary_pos_emb`."""

    can_torch_compile = True
    has_backward = True
    deterministic = True

    def forward(
        self, q: torch.Tensor, k: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor, unsqueeze_dim: int = 1
    ) -> Pair:
        """Turn `q` and `k`; shapes, dtypes and errors as in `rotary_pos_emb`."""
        return rotary_pos_emb(q, k, cos, sin, unsqueeze_dim)
