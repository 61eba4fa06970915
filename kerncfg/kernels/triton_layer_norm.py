"""The Triton path of LayerNorm: device code, launches, and the autograd function over them.

A tile is height x width elements. Short rows share a tile; a row wider than MAX_WIDTH is walked in blocks, and read a
second time from the cache. Mean and variance come from one walk: those of each block, taken around the block's own
mean, are merged into those of the blocks before (Chan, Golub and LeVeque 1979), so that a large mean cancels nothing.
Backward, with h = (x - mean)·r and d = g·w:

    dx = r · (d - mean(d) - h · mean(d · h))        dw = Σ over rows of g · h        db = Σ over rows of g

The sums over rows are made without atomics: each of at most PROGRAMS programs adds up its own rows in float32 and
writes a partial row of each, and a torch sum adds those. The same input gives the same bits; PROGRAMS does not depend
on the GPU, so neither does the split. Neither the inputs nor g are written to. A weight or bias that is not there is
`None` down to the device code, which then has no trace of it.

Under `torch.compile` the launches appear as two opaque custom operators. Eager calls go to the launches
directly: an operator's dispatch costs 12 µs a call, as much as the launch.
"""

from typing import Any

import torch
import triton
import triton.language as tl

from kerncfg.kernels._path import LAUNCH_OPTIONS, on_device_of, refuse_second_derivative

MAX_WIDTH = 8192  # the width that RMSNorm's backward holds in registers; this one's has one more row of sums
TILE = 2048  # 16 values a thread at 4 warps, in bfloat16 two 16-byte loads
PROGRAMS = 512  # about four for each of an H200's 132 processors; their partial rows cost 2·512·n·4 bytes


@triton.jit
def _load(pointers, inside):  # type: ignore[no-untyped-def]  # triton has no types for what it traces
    return tl.load(pointers, mask=inside, other=0.0).to(tl.float32)


@triton.jit  # type: ignore[untyped-decorator]
def _forward_kernel(  # type: ignore[no-untyped-def]
    x_ptr, w_ptr, b_ptr, y_ptr, mean_ptr, rstd_ptr, x_stride, n_rows, n_cols, eps,
    height: tl.constexpr, width: tl.constexpr,
):  # fmt: skip
    rows = tl.program_id(0).to(tl.int64) * height + tl.arange(0, height)[:, None]
    mean = tl.zeros([height, 1], tl.float32)
    squares = tl.zeros([height, 1], tl.float32)
    for start in range(0, n_cols, width):
        cols = start + tl.arange(0, width)[None, :]
        inside = (rows < n_rows) & (cols < n_cols)
        x = _load(x_ptr + rows * x_stride + cols, inside)
        size = tl.minimum(n_cols - start, width)
        of_block = tl.sum(x, axis=1, keep_dims=True) / size
        centred = tl.where(inside, x - of_block, 0.0)
        step = of_block - mean
        share = size / (start + size)  # of all columns so far
        mean += step * share
        squares += tl.sum(centred * centred, axis=1, keep_dims=True) + step * step * share * start
    rstd = tl.rsqrt(squares / n_cols + eps)
    tl.store(mean_ptr + rows, mean, mask=rows < n_rows)
    tl.store(rstd_ptr + rows, rstd, mask=rows < n_rows)
    for start in range(0, n_cols, width):
        cols = start + tl.arange(0, width)[None, :]
        inside = (rows < n_rows) & (cols < n_cols)
        y = (_load(x_ptr + rows * x_stride + cols, inside) - mean) * rstd
        if w_ptr is not None:
            y *= _load(w_ptr + cols, cols < n_cols)
        if b_ptr is not None:
            y += _load(b_ptr + cols, cols < n_cols)
        tl.store(y_ptr + rows * n_cols + cols, y.to(y_ptr.dtype.element_ty), mask=inside)


@triton.jit  # type: ignore[untyped-decorator]
def _backward_kernel(  # type: ignore[no-untyped-def]
    g_ptr, x_ptr, w_ptr, mean_ptr, rstd_ptr, dx_ptr, dw_ptr, db_ptr, g_stride, x_stride, n_rows, n_cols,
    height: tl.constexpr, width: tl.constexpr,
):  # fmt: skip
    program = tl.program_id(0)
    cols = tl.arange(0, width)[None, :]
    dw = tl.zeros([height, width], tl.float32)
    db = tl.zeros([height, width], tl.float32)
    for tile in range(program, tl.cdiv(n_rows, height), tl.num_programs(0)):
        rows = (tile * height + tl.arange(0, height)[:, None]).to(tl.int64)
        inside = (rows < n_rows) & (cols < n_cols)
        g = _load(g_ptr + rows * g_stride + cols, inside)
        x = _load(x_ptr + rows * x_stride + cols, inside)
        mean = tl.load(mean_ptr + rows, mask=rows < n_rows, other=0.0)
        rstd = tl.load(rstd_ptr + rows, mask=rows < n_rows, other=0.0)
        normal = (x - mean) * rstd
        d = g
        if w_ptr is not None:
            d = g * _load(w_ptr + cols, cols < n_cols)
        slope = tl.sum(d * normal, axis=1, keep_dims=True) / n_cols
        dx = rstd * (d - tl.sum(d, axis=1, keep_dims=True) / n_cols - normal * slope)
        tl.store(dx_ptr + rows * n_cols + cols, dx.to(dx_ptr.dtype.element_ty), mask=inside)
        dw += g * normal
        db += g
    at = program * n_cols + cols
    if dw_ptr is not None:
        tl.store(dw_ptr + at, tl.sum(dw, axis=0, keep_dims=True), mask=cols < n_cols)
    if db_ptr is not None:
        tl.store(db_ptr + at, tl.sum(db, axis=0, keep_dims=True), mask=cols < n_cols)


@triton.jit  # type: ignore[untyped-decorator]
def _backward_kernel_wide(  # type: ignore[no-untyped-def]
    g_ptr, x_ptr, w_ptr, mean_ptr, rstd_ptr, dx_ptr, dw_ptr, db_ptr, g_stride, x_stride, n_rows, n_cols,
    width: tl.constexpr,
):  # fmt: skip
    program = tl.program_id(0).to(tl.int64)
    for row in range(program, n_rows, tl.num_programs(0)):
        mean = tl.load(mean_ptr + row)
        rstd = tl.load(rstd_ptr + row)
        totals = tl.zeros([width], tl.float32)
        products = tl.zeros([width], tl.float32)
        for start in range(0, n_cols, width):
            cols = start + tl.arange(0, width)
            d = _load(g_ptr + row * g_stride + cols, cols < n_cols)
            if w_ptr is not None:
                d *= _load(w_ptr + cols, cols < n_cols)
            totals += d
            products += d * (_load(x_ptr + row * x_stride + cols, cols < n_cols) - mean) * rstd
        offset = tl.sum(totals) / n_cols
        slope = tl.sum(products) / n_cols
        for start in range(0, n_cols, width):
            cols = start + tl.arange(0, width)
            d = _load(g_ptr + row * g_stride + cols, cols < n_cols)
            if w_ptr is not None:
                d *= _load(w_ptr + cols, cols < n_cols)
            normal = (_load(x_ptr + row * x_stride + cols, cols < n_cols) - mean) * rstd
            dx = rstd * (d - offset - normal * slope)
            tl.store(dx_ptr + row * n_cols + cols, dx.to(dx_ptr.dtype.element_ty), mask=cols < n_cols)
    # columns outside, rows inside: one block of registers holds each sum, and x and g are read again
    if dw_ptr is not None or db_ptr is not None:
        for start in range(0, n_cols, width):
            cols = start + tl.arange(0, width)
            dw = tl.zeros([width], tl.float32)
            db = tl.zeros([width], tl.float32)
            for row in range(program, n_rows, tl.num_programs(0)):
                g = _load(g_ptr + row * g_stride + cols, cols < n_cols)
                x = _load(x_ptr + row * x_stride + cols, cols < n_cols)
                dw += g * (x - tl.load(mean_ptr + row)) * tl.load(rstd_ptr + row)
                db += g
            if dw_ptr is not None:
                tl.store(dw_ptr + program * n_cols + cols, dw, mask=cols < n_cols)
            if db_ptr is not None:
                tl.store(db_ptr + program * n_cols + cols, db, mask=cols < n_cols)


def forward(
    x: torch.Tensor, weight: torch.Tensor | None, bias: torch.Tensor | None, eps: float
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Launch the forward kernel: `x` (..., n) to the result, and mean and r, one float32 a row each."""
    rows = _as_rows(x)
    n_rows, n_cols = rows.shape
    result = torch.empty(x.shape, dtype=x.dtype, device=x.device)
    mean, rstd = (torch.empty(n_rows, dtype=torch.float32, device=x.device) for _ in range(2))
    height, width, warps = _tile(n_cols)
    with on_device_of(x):
        _forward_kernel[(triton.cdiv(n_rows, height),)](
            rows, _whole(weight), _whole(bias), result, mean, rstd, rows.stride(0), n_rows, n_cols, eps,
            height=height, width=width, num_warps=warps, **LAUNCH_OPTIONS,
        )  # fmt: skip
    return result, mean, rstd


def backward(
    grad: torch.Tensor, x: torch.Tensor, weight: torch.Tensor | None, mean: torch.Tensor, rstd: torch.Tensor,
    has_bias: bool,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:  # fmt: skip
    """Launch the backward kernel: the result's gradient to those of `x`, weight and bias; an absent one's is empty."""
    rows, grads = _as_rows(x), _as_rows(grad)
    n_rows, n_cols = rows.shape
    height, width, warps = _tile(n_cols)
    programs = min(PROGRAMS, triton.cdiv(n_rows, height))
    dx = torch.empty(x.shape, dtype=x.dtype, device=x.device)
    partial = [
        torch.empty(programs, n_cols, dtype=torch.float32, device=x.device) if there else None
        for there in (weight is not None, has_bias)
    ]
    strides = (grads.stride(0), rows.stride(0), n_rows, n_cols)
    arguments = (grads, rows, _whole(weight), mean, rstd, dx, *partial, *strides)
    with on_device_of(x):
        if n_cols <= width:
            _backward_kernel[(programs,)](*arguments, height=height, width=width, num_warps=warps, **LAUNCH_OPTIONS)
        else:
            _backward_kernel_wide[(programs,)](*arguments, width=width, num_warps=warps, **LAUNCH_OPTIONS)
    dw, db = (x.new_empty(0) if sums is None else sums.sum(0).to(x.dtype) for sums in partial)
    return dx, dw, db


forward_op = torch.library.custom_op("kerncfg_kernels::layer_norm", forward, mutates_args=())
backward_op = torch.library.custom_op("kerncfg_kernels::layer_norm_backward", backward, mutates_args=())


@forward_op.register_fake
def _(
    x: torch.Tensor, weight: torch.Tensor | None, bias: torch.Tensor | None, eps: float
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    mean, rstd = (x.new_empty(x.numel() // x.shape[-1], dtype=torch.float32) for _ in range(2))
    return x.new_empty(x.shape), mean, rstd


@backward_op.register_fake
def _(
    grad: torch.Tensor, x: torch.Tensor, weight: torch.Tensor | None, mean: torch.Tensor, rstd: torch.Tensor,
    has_bias: bool,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:  # fmt: skip
    n_cols = x.shape[-1]
    dw, db = (x.new_empty(n_cols if there else 0) for there in (weight is not None, has_bias))
    return x.new_empty(x.shape), dw, db


class LayerNormFunction(torch.autograd.Function):
    """LayerNorm with its gradient, once differentiable."""

    @staticmethod
    def forward(
        ctx: Any, x: torch.Tensor, weight: torch.Tensor | None, bias: torch.Tensor | None, eps: float
    ) -> torch.Tensor:
        """Keep `x`, `weight` and two float32 a row for backward."""
        launch = forward_op if torch.compiler.is_compiling() else forward
        result, mean, rstd = launch(x, weight, bias, eps)
        ctx.save_for_backward(x, weight, mean, rstd)
        ctx.has_bias = bias is not None
        return result

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor | None, torch.Tensor | None, None]:
        """Return the gradients of `x`, and of the weight and the bias where there are any."""
        refuse_second_derivative()
        launch = backward_op if torch.compiler.is_compiling() else backward
        x, weight, mean, rstd = ctx.saved_tensors
        dx, dw, db = launch(grad, x, weight, mean, rstd, ctx.has_bias)
        return dx, None if weight is None else dw, db if ctx.has_bias else None, None


def _as_rows(x: torch.Tensor) -> torch.Tensor:
    rows = x.reshape(-1, x.shape[-1])
    return rows if rows.stride(-1) == 1 else rows.contiguous()


def _whole(parameter: torch.Tensor | None) -> torch.Tensor | None:
    return None if parameter is None else parameter.contiguous()


def _tile(n_cols: int) -> tuple[int, int, int]:
    width = min(triton.next_power_of_2(n_cols), MAX_WIDTH)
    height = max(1, TILE // width)
    return height, width, min(16, height * width // 512)
