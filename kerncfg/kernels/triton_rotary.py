"""The Triton path of the rotary position embedding: device code, launch, and the autograd function over it.

A row is one head of one token. The heads of q and of k are numbered through, so that one launch takes both, and the
rows of a token stand together, so that its cosines come from the cache. A row is read and written once. Turning back,
which is the gradient, is the same kernel with the other half's sines:

    dx₁ = g₁ · cos₁ + g₂ · sin₂        dx₂ = g₂ · cos₂ - g₁ · sin₁

Results have the strides of the inputs, as eager's have: q and k are mostly views of (batch, tokens, heads, n).

Under `torch.compile` the launch appears as an opaque custom operator. Eager calls go to it directly: an operator's
dispatch costs 12 µs a call, as much as the launch.
"""

from typing import Any

import torch
import triton
import triton.language as tl

from kerncfg.kernels._path import LAUNCH_OPTIONS, on_device_of

TILE = 1024  # values of one half a step: 8 a thread at 4 warps, one 16-byte load in bfloat16

Pair = tuple[torch.Tensor, torch.Tensor]


@triton.jit
def _either(q_ptr, q_at, k_ptr, k_at, is_q, is_k):  # type: ignore[no-untyped-def]  # triton has no types for what it traces
    return (tl.load(q_ptr + q_at, mask=is_q, other=0.0) + tl.load(k_ptr + k_at, mask=is_k, other=0.0)).to(tl.float32)


@triton.jit  # type: ignore[untyped-decorator]
def _turn_kernel(  # type: ignore[no-untyped-def]
    q_ptr, k_ptr, cos_ptr, sin_ptr, q_out_ptr, k_out_ptr,
    q_batch, q_head, q_token, k_batch, k_head, k_token,
    q_out_batch, q_out_head, q_out_token, k_out_batch, k_out_head, k_out_token,
    cos_batch, cos_token, sin_batch, sin_token,
    n_rows, n_tokens, q_heads, n_heads, half,
    back: tl.constexpr, height: tl.constexpr, width: tl.constexpr,
):  # fmt: skip
    rows = tl.program_id(0).to(tl.int64) * height + tl.arange(0, height)[:, None]
    cols = tl.arange(0, width)[None, :]
    inside = (rows < n_rows) & (cols < half)
    head = rows % n_heads
    token = rows // n_heads % n_tokens
    batch = rows // n_heads // n_tokens
    is_q = inside & (head < q_heads)
    is_k = inside & (head >= q_heads)
    q_at = batch * q_batch + head * q_head + token * q_token + cols
    k_at = batch * k_batch + (head - q_heads) * k_head + token * k_token + cols
    x_1 = _either(q_ptr, q_at, k_ptr, k_at, is_q, is_k)
    x_2 = _either(q_ptr, q_at + half, k_ptr, k_at + half, is_q, is_k)
    cos_at = batch * cos_batch + token * cos_token + cols
    sin_at = batch * sin_batch + token * sin_token + cols
    cos_1 = tl.load(cos_ptr + cos_at, mask=inside, other=0.0).to(tl.float32)
    cos_2 = tl.load(cos_ptr + cos_at + half, mask=inside, other=0.0).to(tl.float32)
    sin_1 = tl.load(sin_ptr + sin_at, mask=inside, other=0.0).to(tl.float32)
    sin_2 = tl.load(sin_ptr + sin_at + half, mask=inside, other=0.0).to(tl.float32)
    dtype = q_ptr.dtype.element_ty
    if back:
        cross_1 = (x_2 * sin_2).to(dtype).to(tl.float32)
        cross_2 = -(x_1 * sin_1).to(dtype).to(tl.float32)
    else:
        cross_1 = -(x_2 * sin_1).to(dtype).to(tl.float32)
        cross_2 = (x_1 * sin_2).to(dtype).to(tl.float32)
    y_1 = ((x_1 * cos_1).to(dtype).to(tl.float32) + cross_1).to(dtype)
    y_2 = ((x_2 * cos_2).to(dtype).to(tl.float32) + cross_2).to(dtype)
    q_at = batch * q_out_batch + head * q_out_head + token * q_out_token + cols
    k_at = batch * k_out_batch + (head - q_heads) * k_out_head + token * k_out_token + cols
    tl.store(q_out_ptr + q_at, y_1, mask=is_q)
    tl.store(q_out_ptr + q_at + half, y_2, mask=is_q)
    tl.store(k_out_ptr + k_at, y_1, mask=is_k)
    tl.store(k_out_ptr + k_at + half, y_2, mask=is_k)


def turn(
    q: torch.Tensor, k: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor, axis: int, back: bool
) -> tuple[torch.Tensor, torch.Tensor]:
    """Launch the kernel: every head of `q` and `k` turned, or turned back; `axis` is that of the heads."""
    results = [torch.empty_like(x) for x in (q, k)]
    q, k, cos, sin = (x if x.stride(-1) == 1 else x.contiguous() for x in (q, k, cos, sin))
    results = [
        out if out.stride(-1) == 1 else torch.empty(out.shape, dtype=out.dtype, device=out.device) for out in results
    ]
    heads, tokens, half = q.shape[axis] + k.shape[axis], q.shape[3 - axis], q.shape[-1] // 2
    strides = [x.stride(dim) for x in (q, k, *results) for dim in (0, axis, 3 - axis)]
    strides += [0 if x.shape[0] == 1 and dim == 0 else x.stride(dim) for x in (cos, sin) for dim in (0, 1)]
    rows, width = q.shape[0] * tokens * heads, triton.next_power_of_2(half)
    height = max(1, TILE // width)
    with on_device_of(q):
        _turn_kernel[(triton.cdiv(rows, height),)](
            q, k, cos, sin, *results, *strides, rows, tokens, q.shape[axis], heads, half,
            back=back, height=height, width=width, **LAUNCH_OPTIONS,
        )  # fmt: skip
    return results[0], results[1]


turn_op = torch.library.custom_op("kerncfg_kernels::rotary_pos_emb", turn, mutates_args=())


@turn_op.register_fake
def _(
    q: torch.Tensor, k: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor, axis: int, back: bool
) -> tuple[torch.Tensor, torch.Tensor]:
    outs = [torch.empty_like(x) for x in (q, k)]
    outs = [out if out.stride(-1) == 1 else out.new_empty(out.shape) for out in outs]
    return outs[0], outs[1]


class RotaryFunction(torch.autograd.Function):
    """A turn of queries and keys, whose gradient is the turn back: it can be differentiated any number of times."""

    @staticmethod
    def forward(
        ctx: Any, q: torch.Tensor, k: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor, axis: int, back: bool
    ) -> Pair:
        """Keep the angles for backward, and neither q nor k."""
        ctx.save_for_backward(cos, sin)
        ctx.axis, ctx.back = axis, back
        launch = turn_op if torch.compiler.is_compiling() else turn
        return launch(q, k, cos, sin, axis, back)

    @staticmethod
    def backward(ctx: Any, d_q: torch.Tensor, d_k: torch.Tensor) -> tuple[Any, ...]:
        """Return the gradients of the queries and the keys."""
        cos, sin = ctx.saved_tensors
        turned = RotaryFunction.apply(d_q, d_k, cos, sin, ctx.axis, not ctx.back)  # type: ignore[no-untyped-call]
        return *turned, None, None, None, None
