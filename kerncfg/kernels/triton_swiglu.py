"""The Triton path of SwiGLU's middle line: device code, launches, and the autograd function over them.

Elementwise, so the tensors are walked flat. Backward, with s = 1 / (1 + e^-a), silu(a) rounded as in forward
and g the gradient of h = silu(a)·u:

    da = g · u · s · (1 + a · (1 - s))        du = g · silu(a)

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
def _forward_kernel(  # type: ignore[no-untyped-def]
    gate_ptr, up_ptr, result_ptr, n, width: tl.constexpr
):
    at = tl.program_id(0).to(tl.int64) * width + tl.arange(0, width)
    gate = _load(gate_ptr + at, at < n)
    up = _load(up_ptr + at, at < n)
    silu = (gate / (1 + tl.exp(-gate))).to(gate_ptr.dtype.element_ty).to(tl.float32)
    tl.store(result_ptr + at, (silu * up).to(result_ptr.dtype.element_ty), mask=at < n)


@triton.jit  # type: ignore[untyped-decorator]
def _backward_kernel(  # type: ignore[no-untyped-def]
    grad_ptr, gate_ptr, up_ptr, d_gate_ptr, d_up_ptr, n, width: tl.constexpr
):
    at = tl.program_id(0).to(tl.int64) * width + tl.arange(0, width)
    grad = _load(grad_ptr + at, at < n)
    gate = _load(gate_ptr + at, at < n)
    up = _load(up_ptr + at, at < n)
    sigmoid = 1 / (1 + tl.exp(-gate))
    silu = (gate * sigmoid).to(gate_ptr.dtype.element_ty).to(tl.float32)
    d_gate = grad * up * sigmoid * (1 + gate * (1 - sigmoid))
    tl.store(d_gate_ptr + at, d_gate.to(d_gate_ptr.dtype.element_ty), mask=at < n)
    tl.store(d_up_ptr + at, (grad * silu).to(d_up_ptr.dtype.element_ty), mask=at < n)


def forward(gate: torch.Tensor, up: torch.Tensor) -> torch.Tensor:
    """Launch the forward kernel on two tensors of one shape and dtype."""
    result = torch.empty(gate.shape, dtype=gate.dtype, device=gate.device)
    with on_device_of(gate):
        _forward_kernel[_grid(gate)](
            gate.contiguous(), up.contiguous(), result, gate.numel(), width=WIDTH, **LAUNCH_OPTIONS
        )
    return result


def backward(grad: torch.Tensor, gate: torch.Tensor, up: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Launch the backward kernel: the result's gradient and the inputs to the inputs' gradients."""
    d_gate = torch.empty(gate.shape, dtype=gate.dtype, device=gate.device)
    d_up = torch.empty(up.shape, dtype=up.dtype, device=up.device)
    inputs = (grad.contiguous(), gate.contiguous(), up.contiguous())
    with on_device_of(gate):
        _backward_kernel[_grid(gate)](*inputs, d_gate, d_up, gate.numel(), width=WIDTH, **LAUNCH_OPTIONS)
    return d_gate, d_up


forward_op = torch.library.custom_op("kerncfg_kernels::silu_and_mul", forward, mutates_args=())
backward_op = torch.library.custom_op("kerncfg_kernels::silu_and_mul_backward", backward, mutates_args=())


@forward_op.register_fake
def _(gate: torch.Tensor, up: torch.Tensor) -> torch.Tensor:
    return gate.new_empty(gate.shape)


@backward_op.register_fake
def _(grad: torch.Tensor, gate: torch.Tensor, up: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    return gate.new_empty(gate.shape), up.new_empty(up.shape)


class SiluAndMulFunction(torch.autograd.Function):
    """SiLU of the gate times the value, with its gradient, once differentiable."""

    @staticmethod
    def forward(ctx: Any, gate: torch.Tensor, up: torch.Tensor) -> torch.Tensor:
        """Keep the two inputs for backward, and nothing else."""
        ctx.save_for_backward(gate, up)
        launch = forward_op if torch.compiler.is_compiling() else forward
        return launch(gate, up)

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Return the gradients of the gate and the value."""
        refuse_second_derivative()
        launch = backward_op if torch.compiler.is_compiling() else backward
        return launch(grad, *ctx.saved_tensors)


def _grid(x: torch.Tensor) -> tuple[int]:
    return (triton.cdiv(x.numel(), WIDTH),)
