"""The Triton path of cross entropy: device code, launches, and the autograd function over them.

One program walks one row of logits in blocks, with the largest value m and s = Σ e^(x - m) of the blocks so far: a
block with a larger value scales s down first (Milakov and Gimelshein 2018, https://arxiv.org/abs/1805.02867). Kept for
backward are m and log s apart, since their sum would round away what is left of a probability when m is large:

    dx = g · (e^(x - m - log s) - [the column is the label])

Backward has a program for every block of a row, so that few rows with many columns fill a GPU too. It writes to a new
tensor; the logits, which may be what the model returns, are never written to, and neither is g. Each row is one
program's and the sum over rows is torch's, so the same input gives the same bits.

Under `torch.compile` the launches appear as two opaque custom operators. Eager calls go to the launches
directly: an operator's dispatch costs 12 µs a call, as much as the launch.
"""

from typing import Any

import torch
import triton
import triton.language as tl

from kerncfg.kernels._path import LAUNCH_OPTIONS, on_device_of, refuse_second_derivative

MAX_WIDTH = 8192  # values of a row in registers at once, 16 a thread at 16 warps


@triton.jit
def _load(pointers, inside):  # type: ignore[no-untyped-def]  # triton has no types for what it traces
    return tl.load(pointers, mask=inside, other=float("-inf")).to(tl.float32)


@triton.jit  # type: ignore[untyped-decorator]
def _forward_kernel(  # type: ignore[no-untyped-def]
    x_ptr, label_ptr, loss_ptr, peak_ptr, log_ptr, x_stride, n_cols, ignored, width: tl.constexpr
):
    row = tl.program_id(0).to(tl.int64)
    peak = float("-inf")
    total = 0.0
    for start in range(0, n_cols, width):
        cols = start + tl.arange(0, width)
        x = _load(x_ptr + row * x_stride + cols, cols < n_cols)
        higher = tl.maximum(peak, tl.max(x))
        # in a row of -inf so far there is nothing to scale, and -inf - -inf is not a number
        base = tl.where(higher == float("-inf"), 0.0, higher)
        total = total * tl.exp(peak - base) + tl.sum(tl.exp(x - base))
        peak = higher
    log_total = tl.log(total)
    label = tl.load(label_ptr + row)
    known = (label >= 0) & (label < n_cols)
    hit = tl.load(x_ptr + row * x_stride + label, mask=known, other=float("nan")).to(tl.float32)
    loss = tl.where(label == ignored, 0.0, log_total + (peak - hit))
    tl.store(loss_ptr + row, loss)
    tl.store(peak_ptr + row, peak)
    tl.store(log_ptr + row, log_total)


@triton.jit  # type: ignore[untyped-decorator]
def _backward_kernel(  # type: ignore[no-untyped-def]
    g_ptr, x_ptr, label_ptr, peak_ptr, log_ptr, dx_ptr, x_stride, n_cols, ignored, width: tl.constexpr
):
    row = tl.program_id(0).to(tl.int64)
    cols = tl.program_id(1) * width + tl.arange(0, width)
    x = _load(x_ptr + row * x_stride + cols, cols < n_cols)
    label = tl.load(label_ptr + row)
    share = tl.exp(x - tl.load(peak_ptr + row) - tl.load(log_ptr + row))
    dx = tl.load(g_ptr) * tl.where(cols == label, share - 1, share)
    dx = tl.where(label == ignored, 0.0, dx)
    tl.store(dx_ptr + row * n_cols + cols, dx.to(dx_ptr.dtype.element_ty), mask=cols < n_cols)


def forward(
    logits: torch.Tensor, labels: torch.Tensor, ignore_index: int
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Launch the forward kernel: (rows, v) and (rows,) to the loss, m and log s of every row, in float32."""
    rows = _as_rows(logits)
    n_rows, n_cols = rows.shape
    losses, peak, log_total = (torch.empty(n_rows, dtype=torch.float32, device=rows.device) for _ in range(3))
    width, warps = _tile(n_cols)
    with on_device_of(rows):
        _forward_kernel[(n_rows,)](
            rows, labels.contiguous(), losses, peak, log_total, rows.stride(0), n_cols, ignore_index,
            width=width, num_warps=warps, **LAUNCH_OPTIONS,
        )  # fmt: skip
    return losses, peak, log_total


def backward(
    grad: torch.Tensor, logits: torch.Tensor, labels: torch.Tensor, peak: torch.Tensor, log_total: torch.Tensor,
    ignore_index: int,
) -> torch.Tensor:  # fmt: skip
    """Launch the backward kernel: the gradient of the sum, a float32 scalar, to that of the logits."""
    rows = _as_rows(logits)
    n_rows, n_cols = rows.shape
    dx = torch.empty(logits.shape, dtype=logits.dtype, device=logits.device)
    width, warps = _tile(n_cols)
    with on_device_of(rows):
        _backward_kernel[(n_rows, triton.cdiv(n_cols, width))](
            grad, rows, labels.contiguous(), peak, log_total, dx, rows.stride(0), n_cols, ignore_index,
            width=width, num_warps=warps, **LAUNCH_OPTIONS,
        )  # fmt: skip
    return dx


forward_op = torch.library.custom_op("kerncfg_kernels::cross_entropy", forward, mutates_args=())
backward_op = torch.library.custom_op("kerncfg_kernels::cross_entropy_backward", backward, mutates_args=())


@forward_op.register_fake
def _(logits: torch.Tensor, labels: torch.Tensor, ignore_index: int) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    losses, peak, log_total = (logits.new_empty(logits.shape[0], dtype=torch.float32) for _ in range(3))
    return losses, peak, log_total


@backward_op.register_fake
def _(
    grad: torch.Tensor, logits: torch.Tensor, labels: torch.Tensor, peak: torch.Tensor, log_total: torch.Tensor,
    ignore_index: int,
) -> torch.Tensor:  # fmt: skip
    return logits.new_empty(logits.shape)


class CrossEntropyFunction(torch.autograd.Function):
    """The sum of the rows' cross entropies with its gradient, once differentiable."""

    @staticmethod
    def forward(ctx: Any, logits: torch.Tensor, labels: torch.Tensor, ignore_index: int) -> torch.Tensor:
        """Keep the inputs and two float32 a row for backward."""
        launch = forward_op if torch.compiler.is_compiling() else forward
        losses, peak, log_total = launch(logits, labels, ignore_index)
        ctx.save_for_backward(logits, labels, peak, log_total)
        ctx.ignore_index = ignore_index
        return losses.sum()

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor) -> tuple[torch.Tensor, None, None]:
        """Return the gradient of the logits."""
        refuse_second_derivative()
        launch = backward_op if torch.compiler.is_compiling() else backward
        logits, labels, peak, log_total = ctx.saved_tensors
        return launch(grad, logits, labels, peak, log_total, ctx.ignore_index), None, None


def _as_rows(x: torch.Tensor) -> torch.Tensor:
    return x if x.stride(1) == 1 else x.contiguous()


def _tile(n_cols: int) -> tuple[int, int]:
    width = min(triton.next_power_of_2(n_cols), MAX_WIDTH)
    return width, max(1, min(16, width // 512))
