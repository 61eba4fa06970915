"""The Triton path of RMSNorm, Llama's and Gemma's: device code, launches, and the autograd function over them.

A tile is height x width elements. Short rows share a tile, so that a head norm of 128 columns still moves
4 KiB a step; a row wider than MAX_WIDTH is walked in blocks, and read a second time from the cache. Backward,
with h = x·r rounded as in forward, and d = g·w:

    dx = r · (d - x·r · mean(d · x·r))        dw = Σ over rows of g · h

Gemma's norm is `zero_centered`: 1 + w stands for w, h is not rounded, and the result has the dtype of x.

The sum over rows is made without atomics: each of at most PROGRAMS programs adds up its own rows in float32
and writes one partial row, and one torch sum adds those. The same input gives the same bits; PROGRAMS does
not depend on the GPU, so neither does the split. Neither the inputs nor g are written to.

Under `torch.compile` the launches appear as two opaque custom operators. Eager calls go to the launches
directly: an operator's dispatch costs 12 µs a call, as much as the launch.
"""

from typing import Any

import torch
import triton
import triton.language as tl

from kerncfg.kernels._path import LAUNCH_OPTIONS, on_device_of, refuse_second_derivative

MAX_WIDTH = 8192  # the widest row that backward holds in registers; at twice that ptxas for sm_90 spills
TILE = 2048  # 16 values a thread at 4 warps, in bfloat16 two 16-byte loads
PROGRAMS = 512  # about four for each of an H200's 132 processors; their partial rows cost 512·n·4 bytes


@triton.jit
def _load(pointers, inside):  # type: ignore[no-untyped-def]  # triton has no types for what it traces
    return tl.load(pointers, mask=inside, other=0.0).to(tl.float32)


@triton.jit  # type: ignore[untyped-decorator]
def _weight(pointers, inside, zero_centered: tl.constexpr):  # type: ignore[no-untyped-def]
    w = _load(pointers, inside)
    return 1.0 + w if zero_centered else w


@triton.jit  # type: ignore[untyped-decorator]
def _rounded(normal, dtype: tl.constexpr, zero_centered: tl.constexpr):  # type: ignore[no-untyped-def]
    return normal if zero_centered else normal.to(dtype).to(tl.float32)


@triton.jit  # type: ignore[untyped-decorator]
def _forward_kernel(  # type: ignore[no-untyped-def]
    x_ptr, w_ptr, y_ptr, rstd_ptr, x_stride, n_rows, n_cols, eps,
    zero_centered: tl.constexpr, height: tl.constexpr, width: tl.constexpr,
):  # fmt: skip
    rows = tl.program_id(0).to(tl.int64) * height + tl.arange(0, height)[:, None]
    squares = tl.zeros([height, width], tl.float32)
    for start in range(0, n_cols, width):
        cols = start + tl.arange(0, width)[None, :]
        inside = (rows < n_rows) & (cols < n_cols)
        x = _load(x_ptr + rows * x_stride + cols, inside)
        squares += x * x
    rstd = tl.rsqrt(tl.sum(squares, axis=1, keep_dims=True) / n_cols + eps)
    tl.store(rstd_ptr + rows, rstd, mask=rows < n_rows)
    for start in range(0, n_cols, width):
        cols = start + tl.arange(0, width)[None, :]
        inside = (rows < n_rows) & (cols < n_cols)
        x = _load(x_ptr + rows * x_stride + cols, inside)
        w = _weight(w_ptr + cols, cols < n_cols, zero_centered)
        normal = _rounded(x * rstd, x_ptr.dtype.element_ty, zero_centered)
        tl.store(y_ptr + rows * n_cols + cols, (w * normal).to(y_ptr.dtype.element_ty), mask=inside)


@triton.jit  # type: ignore[untyped-decorator]
def _backward_kernel(  # type: ignore[no-untyped-def]
    g_ptr, x_ptr, w_ptr, rstd_ptr, dx_ptr, partial_ptr, g_stride, x_stride, n_rows, n_cols,
    zero_centered: tl.constexpr, height: tl.constexpr, width: tl.constexpr,
):  # fmt: skip
    program = tl.program_id(0)
    cols = tl.arange(0, width)[None, :]
    w = _weight(w_ptr + cols, cols < n_cols, zero_centered)
    dw = tl.zeros([height, width], tl.float32)
    for tile in range(program, tl.cdiv(n_rows, height), tl.num_programs(0)):
        rows = (tile * height + tl.arange(0, height)[:, None]).to(tl.int64)
        inside = (rows < n_rows) & (cols < n_cols)
        g = _load(g_ptr + rows * g_stride + cols, inside)
        x = _load(x_ptr + rows * x_stride + cols, inside)
        rstd = tl.load(rstd_ptr + rows, mask=rows < n_rows, other=0.0)
        normal = x * rstd
        slope = tl.sum(g * w * normal, axis=1, keep_dims=True) / n_cols
        dx = rstd * (g * w - normal * slope)
        tl.store(dx_ptr + rows * n_cols + cols, dx.to(dx_ptr.dtype.element_ty), mask=inside)
        dw += g * _rounded(normal, x_ptr.dtype.element_ty, zero_centered)
    tl.store(partial_ptr + program * n_cols + cols, tl.sum(dw, axis=0, keep_dims=True), mask=cols < n_cols)


@triton.jit  # type: ignore[untyped-decorator]
def _backward_kernel_wide(  # type: ignore[no-untyped-def]
    g_ptr, x_ptr, w_ptr, rstd_ptr, dx_ptr, partial_ptr, g_stride, x_stride, n_rows, n_cols,
    zero_centered: tl.constexpr, width: tl.constexpr,
):  # fmt: skip
    program = tl.program_id(0).to(tl.int64)
    for row in range(program, n_rows, tl.num_programs(0)):
        rstd = tl.load(rstd_ptr + row)
        products = tl.zeros([width], tl.float32)
        for start in range(0, n_cols, width):
            cols = start + tl.arange(0, width)
            g = _load(g_ptr + row * g_stride + cols, cols < n_cols)
            x = _load(x_ptr + row * x_stride + cols, cols < n_cols)
            products += g * _weight(w_ptr + cols, cols < n_cols, zero_centered) * (x * rstd)
        slope = tl.sum(products) / n_cols
        for start in range(0, n_cols, width):
            cols = start + tl.arange(0, width)
            g = _load(g_ptr + row * g_stride + cols, cols < n_cols)
            x = _load(x_ptr + row * x_stride + cols, cols < n_cols)
            w = _weight(w_ptr + cols, cols < n_cols, zero_centered)
            dx = rstd * (g * w - x * rstd * slope)
            tl.store(dx_ptr + row * n_cols + cols, dx.to(dx_ptr.dtype.element_ty), mask=cols < n_cols)
    # columns outside, rows inside: one block of registers holds the sum, and x and g are read again
    for start in range(0, n_cols, width):
        cols = start + tl.arange(0, width)
        dw = tl.zeros([width], tl.float32)
        for row in range(program, n_rows, tl.num_programs(0)):
            g = _load(g_ptr + row * g_stride + cols, cols < n_cols)
            x = _load(x_ptr + row * x_stride + cols, cols < n_cols)
            dw += g * _rounded(x * tl.load(rstd_ptr + row), x_ptr.dtype.element_ty, zero_centered)
        tl.store(partial_ptr + program * n_cols + cols, dw, mask=cols < n_cols)


def forward(
    x: torch.Tensor, weight: torch.Tensor, eps: float, zero_centered: bool = False
) -> tuple[torch.Tensor, torch.Tensor]:
    """Launch the forward kernel: `x` (..., n) and `weight` (n,) to the result and r, one float32 a row."""
    rows = _as_rows(x)
    n_rows, n_cols = rows.shape
    result = torch.empty(x.shape, dtype=_result_dtype(x, weight, zero_centered), device=x.device)
    rstd = torch.empty(n_rows, dtype=torch.float32, device=x.device)
    height, width, warps = _tile(n_cols)
    with on_device_of(x):
        _forward_kernel[(triton.cdiv(n_rows, height),)](
            rows, weight.contiguous(), result, rstd, rows.stride(0), n_rows, n_cols, eps,
            zero_centered=zero_centered, height=height, width=width, num_warps=warps, **LAUNCH_OPTIONS,
        )  # fmt: skip
    return result, rstd


def backward(
    grad: torch.Tensor, x: torch.Tensor, weight: torch.Tensor, rstd: torch.Tensor, zero_centered: bool = False
) -> tuple[torch.Tensor, torch.Tensor]:
    """Launch the backward kernel: the result's gradient and forward's values to those of `x` and `weight`."""
    rows, grads = _as_rows(x), _as_rows(grad)
    n_rows, n_cols = rows.shape
    height, width, warps = _tile(n_cols)
    programs = min(PROGRAMS, triton.cdiv(n_rows, height))
    dx = torch.empty(x.shape, dtype=x.dtype, device=x.device)
    partial = torch.empty(programs, n_cols, dtype=torch.float32, device=x.device)
    strides = (grads.stride(0), rows.stride(0), n_rows, n_cols)
    arguments = (grads, rows, weight.contiguous(), rstd, dx, partial, *strides)
    options = {"zero_centered": zero_centered, "width": width, "num_warps": warps, **LAUNCH_OPTIONS}
    with on_device_of(x):
        if n_cols <= width:
            _backward_kernel[(programs,)](*arguments, height=height, **options)
        else:
            _backward_kernel_wide[(programs,)](*arguments, **options)
    return dx, partial.sum(0).to(weight.dtype)


forward_op = torch.library.custom_op("kerncfg_kernels::rms_norm", forward, mutates_args=())
backward_op = torch.library.custom_op("kerncfg_kernels::rms_norm_backward", backward, mutates_args=())


@forward_op.register_fake
def _(
    x: torch.Tensor, weight: torch.Tensor, eps: float, zero_centered: bool = False
) -> tuple[torch.Tensor, torch.Tensor]:
    result = torch.empty(x.shape, dtype=_result_dtype(x, weight, zero_centered), device=x.device)
    return result, x.new_empty(x.numel() // x.shape[-1], dtype=torch.float32)


@backward_op.register_fake
def _(
    grad: torch.Tensor, x: torch.Tensor, weight: torch.Tensor, rstd: torch.Tensor, zero_centered: bool = False
) -> tuple[torch.Tensor, torch.Tensor]:
    return x.new_empty(x.shape), weight.new_empty(weight.shape)


class RMSNormFunction(torch.autograd.Function):
    """RMSNorm with its gradient, once differentiable."""

    @staticmethod
    def forward(
        ctx: Any, x: torch.Tensor, weight: torch.Tensor, eps: float, zero_centered: bool = False
    ) -> torch.Tensor:
        """Keep `x`, `weight` and one float32 a row for backward."""
        launch = forward_op if torch.compiler.is_compiling() else forward
        result, rstd = launch(x, weight, eps, zero_centered)
        ctx.save_for_backward(x, weight, rstd)
        ctx.zero_centered = zero_centered
        return result

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, None, None]:
        """Return the gradients of `x` and `weight`."""
        refuse_second_derivative()
        launch = backward_op if torch.compiler.is_compiling() else backward
        x, weight, rstd = ctx.saved_tensors
        dx, dw = launch(grad, x, weight, rstd, ctx.zero_centered)
        return dx, dw, None, None


def _result_dtype(x: torch.Tensor, weight: torch.Tensor, zero_centered: bool) -> torch.dtype:
    return x.dtype if zero_centered else torch.promote_types(x.dtype, weight.dtype)


def _as_rows(x: torch.Tensor) -> torch.Tensor:
    rows = x.reshape(-1, x.shape[-1])
    return rows if rows.stride(-1) == 1 else rows.contiguous()


def _tile(n_cols: int) -> tuple[int, int, int]:
    width = min(triton.next_power_of_2(n_cols), MAX_WIDTH)
    height = max(1, TILE // width)
    return height, width, min(16, height * width // 512)
