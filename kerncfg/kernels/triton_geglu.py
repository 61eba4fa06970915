"""The Triton path of GeGLU's middle line: device code, launches, and the autograd function over them.

Elementwise, so the tensors are walked flat. Backward, with gelu(a) = a·p(a) rounded as in forward and g the gradient
of h = gelu(a)·u:

    da = g · u · (p(a) + a · p'(a))        du = g · gelu(a)

    exact: p(a) = Φ(a), p'(a) = e^(-a²/2) / √(2π)
    tanh:  p(a) = (1 + tanh z) / 2 = 1 / (1 + e^-2z), p'(a) = e^-2z / (1 + e^-2z)² · 2z'
           z = √(2/π) · (a + 0.044715·a³), z' = √(2/π) · (1 + 3 · 0.044715·a²)

The second form is written with e^-|2z|: it neither overflows nor cancels, as eager's 1 - tanh² does for large gates.
Both in float32, rounded once. Results go to new tensors: the inputs and g may be shared with other layers.

Under `torch.compile` the launches appear as two opaque custom operators. Eager calls go to the launches
directly: an operator's dispatch costs 12 µs a call, as much as the launch.
"""

from typing import Any

import torch
import triton
import triton.language as tl

from kerncfg.kernels._path import LAUNCH_OPTIONS, on_device_of, refuse_second_derivative

WIDTH = 1024  # one 16-byte load a thread and tensor in bfloat16, at Triton's default of 4 warps


@triton.jit
def _load(pointers, inside):  # type: ignore[no-untyped-def]  # triton has no types for what it traces
    return tl.load(pointers, mask=inside, other=0.0).to(tl.float32)


@triton.jit  # type: ignore[untyped-decorator]
def _share(gate, tanh: tl.constexpr):  # type: ignore[no-untyped-def]
    if tanh:
        twice = 1.5957691216057308 * (gate + 0.044715 * gate * gate * gate)  # 2z; the factor is 2√(2/π)
        tail = tl.exp(-tl.abs(twice))
        share = tl.where(twice < 0, tail, 1.0) / (1 + tail)
        slope = tail / ((1 + tail) * (1 + tail)) * 1.5957691216057308 * (1 + 0.134145 * gate * gate)
    else:
        share = 0.5 * (1 + tl.erf(gate * 0.7071067811865476))
        slope = 0.3989422804014327 * tl.exp(-0.5 * gate * gate)
    return share, slope


@triton.jit  # type: ignore[untyped-decorator]
def _forward_kernel(  # type: ignore[no-untyped-def]
    gate_ptr, up_ptr, result_ptr, n, tanh: tl.constexpr, width: tl.constexpr
):
    at = tl.program_id(0).to(tl.int64) * width + tl.arange(0, width)
    gate = _load(gate_ptr + at, at < n)
    up = _load(up_ptr + at, at < n)
    share, _ = _share(gate, tanh)
    gelu = (gate * share).to(gate_ptr.dtype.element_ty).to(tl.float32)
    tl.store(result_ptr + at, (gelu * up).to(result_ptr.dtype.element_ty), mask=at < n)


@triton.jit  # type: ignore[untyped-decorator]
def _backward_kernel(  # type: ignore[no-untyped-def]
    grad_ptr, gate_ptr, up_ptr, d_gate_ptr, d_up_ptr, n, tanh: tl.constexpr, width: tl.constexpr
):
    at = tl.program_id(0).to(tl.int64) * width + tl.arange(0, width)
    grad = _load(grad_ptr + at, at < n)
    gate = _load(gate_ptr + at, at < n)
    up = _load(up_ptr + at, at < n)
    share, slope = _share(gate, tanh)
    gelu = (gate * share).to(gate_ptr.dtype.element_ty).to(tl.float32)
    d_gate = grad * up * (share + gate * slope)
    tl.store(d_gate_ptr + at, d_gate.to(d_gate_ptr.dtype.element_ty), mask=at < n)
    tl.store(d_up_ptr + at, (grad * gelu).to(d_up_ptr.dtype.element_ty), mask=at < n)


def forward(gate: torch.Tensor, up: torch.Tensor, tanh: bool) -> torch.Tensor:
    """Launch the forward kernel on two tensors of one shape and dtype."""
    result = torch.empty(gate.shape, dtype=gate.dtype, device=gate.device)
    with on_device_of(gate):
        _forward_kernel[_grid(gate)](
            gate.contiguous(), up.contiguous(), result, gate.numel(), tanh=tanh, width=WIDTH, **LAUNCH_OPTIONS
        )
    return result


def backward(grad: torch.Tensor, gate: torch.Tensor, up: torch.Tensor, tanh: bool) -> tuple[torch.Tensor, torch.Tensor]:
    """Launch the backward kernel: the result's gradient and the inputs to the inputs' gradients."""
    d_gate = torch.empty(gate.shape, dtype=gate.dtype, device=gate.device)
    d_up = torch.empty(up.shape, dtype=up.dtype, device=up.device)
    inputs = (grad.contiguous(), gate.contiguous(), up.contiguous())
    with on_device_of(gate):
        _backward_kernel[_grid(gate)](*inputs, d_gate, d_up, gate.numel(), tanh=tanh, width=WIDTH, **LAUNCH_OPTIONS)
    return d_gate, d_up


forward_op = torch.library.custom_op("kerncfg_kernels::gelu_and_mul", forward, mutates_args=())
backward_op = torch.library.custom_op("kerncfg_kernels::gelu_and_mul_backward", backward, mutates_args=())


@forward_op.register_fake
def _(gate: torch.Tensor, up: torch.Tensor, tanh: bool) -> torch.Tensor:
    return gate.new_empty(gate.shape)


@backward_op.register_fake
def _(grad: torch.Tensor, gate: torch.Tensor, up: torch.Tensor, tanh: bool) -> tuple[torch.Tensor, torch.Tensor]:
    return gate.new_empty(gate.shape), up.new_empty(up.shape)


class GeluAndMulFunction(torch.autograd.Function):
    """GELU of the gate times the value, with its gradient, once differentiable."""

    @staticmethod
    def forward(ctx: Any, gate: torch.Tensor, up: torch.Tensor, tanh: bool) -> torch.Tensor:
        """Keep the two inputs for backward, and nothing else."""
        ctx.save_for_backward(gate, up)
        ctx.tanh = tanh
        launch = forward_op if torch.compiler.is_compiling() else forward
        return launch(gate, up, tanh)

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, None]:
        """Return the gradients of the gate and the value."""
        refuse_second_derivative()
        launch = backward_op if torch.compiler.is_compiling() else backward
        gate, up = ctx.saved_tensors
        return *launch(grad, gate, up, ctx.tanh), None


def _grid(x: torch.Tensor) -> tuple[int]:
    return (triton.cdiv(x.numel(), WIDTH),)
