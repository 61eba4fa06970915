"""SwiGLU against its formula, float64, and the class it replaces; under both paths (see conftest)."""

from __future__ import annotations

import copy
from typing import TYPE_CHECKING, Any, TypeAlias

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.nn import functional

from kerncfg.kernels._path import INTERPRETED
from kerncfg.kernels.layers import SwiGLUMLP
from kerncfg.kernels.swiglu import silu_and_mul, silu_and_mul_reference
from tests.kernels.closeness import DTYPES, assert_close, randn

if TYPE_CHECKING:
    from collections.abc import Callable

    Forward: TypeAlias = Callable[..., torch.Tensor]
    View: TypeAlias = Callable[[torch.Tensor], torch.Tensor]

OURS: Forward = SwiGLUMLP.forward  # its self may be any module with the three projections

# less than a block, odd, a block and one more, several blocks
SHAPES = [(1,), (5, 7, 33), (25, 41), (3, 2, 1024)]


def exact(gate: torch.Tensor, up: torch.Tensor) -> torch.Tensor:
    gate, up = gate.double(), up.double()
    return gate * torch.sigmoid(gate) * up


def run(function: Forward, gate: torch.Tensor, up: torch.Tensor, grad: torch.Tensor) -> tuple[torch.Tensor, ...]:
    """Forward and backward on leaves of its own: result, d_gate, d_up."""
    gate, up = gate.detach().requires_grad_(), up.detach().requires_grad_()
    result = function(gate, up)
    return result, *torch.autograd.grad(result, (gate, up), grad.to(result.dtype))


# numpy says so under the interpreter; e^-a is meant to reach infinity
overflows = pytest.mark.filterwarnings("ignore:overflow encountered in exp:RuntimeWarning")


def case(shape: tuple[int, ...], device: str, dtype: torch.dtype = torch.float32) -> tuple[torch.Tensor, ...]:
    return tuple(3 * randn(*shape, dtype=dtype, device=device, seed=seed) for seed in range(3))


@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_agrees_with_the_reference_and_with_float64(device: str, dtype: torch.dtype, shape: tuple[int, ...]) -> None:
    gate, up, grad = case(shape, device, dtype)
    result = run(silu_and_mul, gate, up, grad)
    for actual, expected in zip(result, run(silu_and_mul_reference, gate, up, grad), strict=True):
        assert actual.dtype == expected.dtype == dtype
        assert_close(actual, expected)
    for actual, expected in zip(result, run(exact, gate.double(), up.double(), grad), strict=True):
        assert_close(actual, expected)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_agrees_with_the_class_of_transformers(device: str, dtype: torch.dtype) -> None:
    from transformers.models.llama import configuration_llama
    from transformers.models.llama import modeling_llama as llama

    config = configuration_llama.LlamaConfig(hidden_size=24, intermediate_size=72, num_attention_heads=2)
    make: Callable[..., torch.nn.Module] = llama.LlamaMLP
    module = make(config).to(device, dtype)
    for seed, parameter in enumerate(module.parameters()):
        parameter.data.copy_(0.3 * randn(*parameter.shape, dtype=dtype, device=device, seed=seed))
    x, grad = (randn(2, 9, 24, dtype=dtype, device=device, seed=seed) for seed in (3, 4))
    theirs: Forward = llama.LlamaMLP.forward
    results = {}
    for forward in (theirs, OURS):
        leaf = x.clone().requires_grad_()
        result = forward(module, leaf)
        results[forward] = result, *torch.autograd.grad(result, (leaf, *module.parameters()), grad)
    for actual, expected in zip(results[OURS], results[theirs], strict=True):
        assert_close(actual, expected)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
def test_rounds_where_eager_rounds(device: str, dtype: torch.dtype) -> None:
    gate, up, _ = case((25, 41), device, dtype)
    same = silu_and_mul(gate, up) == functional.silu(gate) * up
    assert same.float().mean() > 0.99, "another cast order than eager's"


def test_projections_are_called_as_modules(device: str) -> None:
    mlp = torch.nn.Module()
    mlp.gate_proj, mlp.up_proj, mlp.down_proj = (torch.nn.Linear(8, 8, device=device) for _ in range(3))
    plain = OURS(mlp, torch.ones(2, 8, device=device))
    names = {child: name for name, child in mlp.named_children()}
    seen = []

    def double(module: torch.nn.Module, inputs: Any, output: torch.Tensor) -> torch.Tensor:
        seen.append(names[module])
        return 2 * output

    for child in names:
        child.register_forward_hook(double)
    hooked = OURS(mlp, torch.ones(2, 8, device=device))
    assert seen == ["gate_proj", "up_proj", "down_proj"]
    assert not torch.equal(plain, hooked)


VIEWS: dict[str, View] = {
    "transposed": lambda x: x.transpose(0, 1),
    "strided columns": lambda x: x[..., ::2],
    "half of a wider tensor": lambda x: x.chunk(2, dim=-1)[1],
    "expanded": lambda x: x[:1].expand(4, -1, -1),
}


@pytest.mark.parametrize("view", VIEWS.values(), ids=VIEWS)
def test_takes_views_of_inputs_and_gradient(device: str, view: View) -> None:
    gate, up, grad = (view(t) for t in case((6, 8, 34), device))
    expected = run(silu_and_mul_reference, gate, up, grad)
    for actual, other in zip(run(silu_and_mul, gate, up, grad), expected, strict=True):
        assert_close(actual, other)


def test_takes_a_gate_and_a_value_of_different_layout(device: str) -> None:
    gate, up, grad = case((12, 12), device)
    expected = run(silu_and_mul_reference, gate.T, up, grad)
    for actual, other in zip(run(silu_and_mul, gate.T, up, grad), expected, strict=True):
        assert_close(actual, other)


@pytest.mark.parametrize("shape", [(0, 8), (3, 0)], ids=str)
def test_takes_empty_input(device: str, shape: tuple[int, ...]) -> None:
    result, d_gate, d_up = run(silu_and_mul, *case(shape, device, torch.bfloat16))
    assert result.shape == d_gate.shape == d_up.shape == shape
    assert result.dtype == torch.bfloat16


@pytest.mark.parametrize("recorded", [True, False])
def test_what_the_kernel_does_not_take_goes_through_torch(device: str, recorded: bool) -> None:
    gate, up, _ = case((3, 8), device)
    with torch.set_grad_enabled(recorded):
        for other_gate, other_up in ((gate.double(), up.double()), (gate.half(), up), (gate[:1], up)):
            result = silu_and_mul(other_gate.requires_grad_(recorded), other_up)
            assert torch.equal(result, functional.silu(other_gate) * other_up)


@overflows
def test_extreme_gates_stay_finite(device: str) -> None:
    gate = torch.tensor([-1e4, -100.0, 0.0, 100.0, 1e4], device=device)
    result, d_gate, d_up = run(silu_and_mul, gate, torch.ones_like(gate), torch.ones_like(gate))
    assert_close(result, exact(gate, torch.ones_like(gate)))
    assert torch.equal(d_up, result)
    assert_close(d_gate, torch.tensor([0.0, 0.0, 0.5, 1.0, 1.0], device=device))


@overflows
@pytest.mark.property
@settings(max_examples=20, deadline=None, derandomize=True, database=None)
@given(rows=st.integers(1, 40), columns=st.integers(1, 100), magnitude=st.sampled_from([1e-4, 1.0, 10.0]))
def test_any_small_shape_and_magnitude(rows: int, columns: int, magnitude: float) -> None:
    gate, up, grad = case((rows, columns), "cpu")
    expected = run(exact, gate.double() * magnitude, up.double(), grad)
    for actual, other in zip(run(silu_and_mul, gate * magnitude, up, grad), expected, strict=True):
        assert_close(actual, other)


def test_gradient_is_the_slope_of_the_function(device: str) -> None:
    # a central difference of the float64 formula along a random direction, with no autograd in it
    gate, up, grad = case((4, 33), device)
    along = [randn(4, 33, dtype=torch.float64, device=device, seed=seed) for seed in (5, 6)]
    step = 1e-5
    ahead, behind = (exact(gate + s * along[0], up + s * along[1]) for s in (step, -step))
    slope = ((ahead - behind) / (2 * step) * grad).sum()
    _, d_gate, d_up = run(silu_and_mul, gate, up, grad)
    assert_close((d_gate * along[0]).sum() + (d_up * along[1]).sum(), slope, torch.float32)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_leaves_its_arguments_alone_and_repeats_itself(device: str, dtype: torch.dtype) -> None:
    arguments = case((25, 41), device, dtype)
    before = [t.clone() for t in arguments]
    first = run(silu_and_mul, *arguments)
    again = run(silu_and_mul, *arguments)
    with torch.no_grad():
        inference = silu_and_mul(*arguments[:2])
    assert all(torch.equal(a, b) for a, b in zip(arguments, before, strict=True))
    assert all(torch.equal(a, b) for a, b in zip(first, again, strict=True))
    assert torch.equal(first[0], inference)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_tolerance_catches_planted_faults(device: str, dtype: torch.dtype) -> None:
    gate, up, grad = case((16, 64), device, dtype)
    expected = run(exact, gate.double(), up.double(), grad)
    with pytest.raises(AssertionError, match="more than the tolerance"):
        assert_close(silu_and_mul(gate, up * 1.03), expected[0])
    for actual, other in zip(run(silu_and_mul, gate, up, grad)[1:], expected[1:], strict=True):
        assert_close(actual, other)
        with pytest.raises(AssertionError, match="more than the tolerance"):
            assert_close(actual * 0.9, other)


@pytest.mark.filterwarnings("ignore:.*should not be instantiated")  # torch, of its own tracing
def test_compiles_in_one_graph(device: str) -> None:
    dtype = torch.bfloat16
    mlp = torch.nn.Module()
    mlp.gate_proj, mlp.up_proj, mlp.down_proj = (
        torch.nn.Linear(a, b, device=device, dtype=dtype) for a, b in ((8, 20), (8, 20), (20, 8))
    )
    mlp.forward = SwiGLUMLP.forward.__get__(mlp)
    twin = copy.deepcopy(mlp)
    compiled = torch.compile(twin, backend="aot_eager", fullgraph=True)
    x = randn(3, 8, dtype=dtype, device=device)
    for module in (mlp, compiled):
        module(x).square().sum().backward()
    assert_close(compiled(x), mlp(x))
    for actual, expected in zip(twin.parameters(), mlp.parameters(), strict=True):
        assert actual.grad is not None
        assert expected.grad is not None
        assert_close(actual.grad, expected.grad)


if INTERPRETED:

    def test_a_second_derivative_is_refused() -> None:
        gate, up, _ = case((4, 33), "cpu")
        with pytest.raises(NotImplementedError, match="no second derivative"):
            torch.autograd.grad(silu_and_mul(gate.requires_grad_(), up).sum(), gate, create_graph=True)

    def test_operators_keep_their_promises() -> None:
        from kerncfg.kernels.triton_swiglu import backward_op, forward_op

        gate, up, grad = case((5, 33), "cpu", torch.bfloat16)
        checks = ("test_schema", "test_faketensor", "test_aot_dispatch_dynamic")
        torch.library.opcheck(forward_op, (gate.mT.contiguous().mT, up), test_utils=checks)
        torch.library.opcheck(backward_op, (grad, gate, up.mT.contiguous().mT), test_utils=checks)
