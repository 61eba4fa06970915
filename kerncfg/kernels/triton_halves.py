"""The Triton path of SwiGLU's middle line on two halves of one tensor, gate and value side by side in each row.

The result is walked flat; its element i lies in row i / m and column i mod m, the gate 2m to a row and the value m
further on. Backward as in `triton_swiglu`, both gradients written where a product's backward wants them: side by side.

Under `torch.compile` the launches appear as two opaque custom operators; eager calls go to the launches directly.
"""

from typing import Any

import torch
import triton
import triton.language as tl

from kerncfg.kernels._path import LAUNCH_OPTIONS, on_device_of, refuse_second_derivative

WIDTH = 1024  # as in triton_swiglu


@triton.jit
def _load(pointers, inside):  # type: ignore[no-untyped-def]  # triton has no types for what it traces
    return tl.load(pointers, mask=inside, other=0.0).to(tl.float32)


@triton.jit  # type: ignore[untyped-decorator]
def _forward_kernel(  # type: ignore[no-untyped-def]
    stacked_ptr, result_ptr, n, n_cols, width: tl.constexpr
):
    at = tl.program_id(0).to(tl.int64) * width + tl.arange(0, width)
    place = (at // n_cols) * 2 * n_cols + at % n_cols
    gate = _load(stacked_ptr + place, at < n)
    up = _load(stacked_ptr + place + n_cols, at < n)
    silu = (gate / (1 + tl.exp(-gate))).to(stacked_ptr.dtype.element_ty).to(tl.float32)
    tl.store(result_ptr + at, (silu * up).to(result_ptr.dtype.element_ty), mask=at < n)


@triton.jit  # type: ignore[untyped-decorator]
def _backward_kernel(  # type: ignore[no-untyped-def]
    grad_ptr, stacked_ptr, d_stacked_ptr, n, n_cols, width: tl.constexpr
):
    at = tl.program_id(0).to(tl.int64) * width + tl.arange(0, width)
    place = (at // n_cols) * 2 * n_cols + at % n_cols
    grad = _load(grad_ptr + at, at < n)
    gate = _load(stacked_ptr + place, at < n)
    up = _load(stacked_ptr + place + n_cols, at < n)
    sigmoid = 1 / (1 + tl.exp(-gate))
    silu = (gate * sigmoid).to(stacked_ptr.dtype.element_ty).to(tl.float32)
    d_gate = grad * up * sigmoid * (1 + gate * (1 - sigmoid))
    tl.store(d_stacked_ptr + place, d_gate.to(d_stacked_ptr.dtype.element_ty), mask=at < n)
    tl.store(d_stacked_ptr + place + n_cols, (grad * silu).to(d_stacked_ptr.dtype.element_ty), mask=at < n)


def forward(stacked: torch.Tensor) -> torch.Tensor:
    """Launch the forward kernel on a tensor (..., 2m)."""
    n_cols = stacked.shape[-1] // 2
    result = torch.empty((*stacked.shape[:-1], n_cols), dtype=stacked.dtype, device=stacked.device)
    with on_device_of(stacked):
        _forward_kernel[_grid(result)](
            stacked.contiguous(), result, result.numel(), n_cols, width=WIDTH, **LAUNCH_OPTIONS
        )
    return result


def backward(grad: torch.Tensor, stacked: torch.Tensor) -> torch.Tensor:
    """Launch the backward kernel: the result's gradient and the input to the input's gradient."""
    d_stacked = torch.empty(stacked.shape, dtype=stacked.dtype, device=stacked.device)
    inputs = (grad.contiguous(), stacked.contiguous())
    with on_device_of(stacked):
        _backward_kernel[_grid(grad)](
            *inputs, d_stacked, grad.numel(), stacked.shape[-1] // 2, width=WIDTH, **LAUNCH_OPTIONS
        )
    return d_stacked


forward_op = torch.library.custom_op("kerncfg_kernels::silu_and_mul_halves", forward, mutates_args=())
backward_op = torch.library.custom_op("kerncfg_kernels::silu_and_mul_halves_backward", backward, mutates_args=())


@forward_op.register_fake
def _(stacked: torch.Tensor) -> torch.Tensor:
    return stacked.new_empty((*stacked.shape[:-1], stacked.shape[-1] // 2))


@backward_op.register_fake
def _(grad: torch.Tensor, stacked: torch.Tensor) -> torch.Tensor:
    return stacked.new_empty(stacked.shape)


class SiluAndMulHalvesFunction(torch.autograd.Function):
    """SiLU of the first half times the second, with its gradient, once differentiable."""

    @staticmethod
    def forward(ctx: Any, stacked: torch.Tensor) -> torch.Tensor:
        """Keep the input for backward, and nothing else."""
        ctx.save_for_backward(stacked)
        launch = forward_op if torch.compiler.is_compiling() else forward
        return launch(stacked)

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor) -> torch.Tensor:
        """Return the gradient of both halves."""
        refuse_second_derivative()
        launch = backward_op if torch.compiler.is_compiling() else backward
        return launch(grad, *ctx.saved_tensors)


def _grid(x: torch.Tensor) -> tuple[int]:
    return (triton.cdiv(x.numel(), WIDTH),)
