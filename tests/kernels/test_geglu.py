"""GeGLU against its formulas, float64, and the classes it replaces; under both paths (see conftest)."""

from __future__ import annotations

import copy
import importlib
import math
from typing import TYPE_CHECKING, Any, TypeAlias

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.nn import functional

from kerncfg.kernels._path import INTERPRETED
from kerncfg.kernels.geglu import gelu_and_mul, gelu_and_mul_reference, which_gelu
from kerncfg.kernels.layers import GeGLUMLP
from tests.kernels.closeness import DTYPES, assert_close, randn

if TYPE_CHECKING:
    from collections.abc import Callable

    Forward: TypeAlias = Callable[..., torch.Tensor]
    View: TypeAlias = Callable[[torch.Tensor], torch.Tensor]

OURS: Forward = GeGLUMLP.forward  # its self may be any module with the three projections and an activation

each_gelu = pytest.mark.parametrize("approximate", ["tanh", "none"])

# less than a block, odd, a block and one more, several blocks
SHAPES = [(1,), (5, 7, 33), (25, 41), (3, 2, 1024)]


def exact(gate: torch.Tensor, up: torch.Tensor, approximate: str) -> torch.Tensor:
    gate, up = gate.double(), up.double()
    if approximate == "none":
        return gate * (1 + torch.erf(gate / math.sqrt(2))) / 2 * up
    return gate * torch.sigmoid(2 * math.sqrt(2 / math.pi) * (gate + 0.044715 * gate**3)) * up


def run(function: Forward, *arguments: Any) -> tuple[torch.Tensor, ...]:
    """Forward and backward on leaves of its own: result, d_gate, d_up; `arguments` are gate, up, gradient and form."""
    gate, up, grad, approximate = (*arguments, "tanh")[:4]
    gate, up = gate.detach().requires_grad_(), up.detach().requires_grad_()
    result = function(gate, up, approximate)
    return result, *torch.autograd.grad(result, (gate, up), grad.to(result.dtype))


def assert_right(
    actual: tuple[torch.Tensor, ...], expected: tuple[torch.Tensor, ...], inputs: tuple[torch.Tensor, ...], form: str
) -> None:
    """Compare the Triton path within the tolerance, and the torch path with eager, bit by bit.

    Eager's slope of the form by tanh is further from float64 than the tolerance for gates beyond 5, since 1 - tanh²
    cancels; the torch path is to be eager, no more and no less.
    """
    if INTERPRETED or actual[0].device.type != "cpu":
        for ours, right in zip(actual, expected, strict=True):
            assert_close(ours, right)
    else:
        assert all(torch.equal(a, b) for a, b in zip(actual, run(eager, *inputs, form), strict=True))


def eager(gate: torch.Tensor, up: torch.Tensor, approximate: str) -> torch.Tensor:
    return functional.gelu(gate, approximate=approximate) * up


# numpy says so under the interpreter; e^-2z is meant to reach infinity
overflows = pytest.mark.filterwarnings("ignore:overflow encountered in exp:RuntimeWarning")


def case(shape: tuple[int, ...], device: str, dtype: torch.dtype = torch.float32) -> tuple[Any, ...]:
    return tuple(3 * randn(*shape, dtype=dtype, device=device, seed=seed) for seed in range(3))


@each_gelu
@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_agrees_with_the_reference_and_with_float64(
    device: str, dtype: torch.dtype, shape: tuple[int, ...], approximate: str
) -> None:
    gate, up, grad = case(shape, device, dtype)
    result = run(gelu_and_mul, gate, up, grad, approximate)
    reference = run(gelu_and_mul_reference, gate, up, grad, approximate)
    assert {t.dtype for t in (*result, *reference)} == {dtype}
    assert_right(result, reference, (gate, up, grad), approximate)
    assert_right(result, run(exact, gate.double(), up.double(), grad, approximate), (gate, up, grad), approximate)


def mlp_of(file: str, name: str, device: str, dtype: torch.dtype, **config: Any) -> torch.nn.Module:
    """Build the MLP of a model of transformers, with weights from a seed."""
    modeling: Any = importlib.import_module(f"transformers.models.{file}.modeling_{file}")
    configuration: Any = importlib.import_module(f"transformers.models.{file}.configuration_{file}")
    made = getattr(configuration, name)(hidden_size=24, intermediate_size=72, num_attention_heads=2, **config)
    classes = {"GemmaConfig": "GemmaMLP", "Gemma2Config": "Gemma2MLP", "LlamaConfig": "LlamaMLP"}
    module: torch.nn.Module = getattr(modeling, classes[name])(made).to(device, dtype)
    for seed, parameter in enumerate(module.parameters()):
        parameter.data.copy_(0.3 * randn(*parameter.shape, dtype=dtype, device=device, seed=seed))
    return module


MLPS = [
    ("gemma", "GemmaConfig", {"hidden_act": "gelu_pytorch_tanh"}),
    ("gemma", "GemmaConfig", {"hidden_act": "gelu"}),
    ("gemma2", "Gemma2Config", {"hidden_activation": "gelu_pytorch_tanh"}),
    ("llama", "LlamaConfig", {"hidden_act": "gelu_new"}),
    ("llama", "LlamaConfig", {"hidden_act": "silu"}),
]


@pytest.mark.parametrize(("file", "name", "config"), MLPS, ids=str)
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_agrees_with_the_classes_of_transformers_whatever_their_activation(
    device: str, dtype: torch.dtype, file: str, name: str, config: dict[str, str]
) -> None:
    module = mlp_of(file, name, device, dtype, **config)
    x, grad = (randn(2, 9, 24, dtype=dtype, device=device, seed=seed) for seed in (3, 4))
    theirs: Forward = type(module).forward
    results = []
    for forward in (OURS, theirs):
        leaf = x.clone().requires_grad_()
        result = forward(module, leaf)
        results.append((result, *torch.autograd.grad(result, (leaf, *module.parameters()), grad)))
    for actual, expected in zip(*results, strict=True):
        assert_close(actual, expected)


def test_the_activation_is_read_from_the_module_and_nothing_is_guessed() -> None:
    from transformers.activations import ACT2FN

    class GELUActivation(torch.nn.Module):
        """Another class of the same name."""

        act = torch.nn.GELU()

    known = {name: which_gelu(ACT2FN[name]) for name in ACT2FN if name != "xielu"}
    assert {name: found for name, found in known.items() if found} == {"gelu": "none", "gelu_pytorch_tanh": "tanh"}
    assert [which_gelu(torch.nn.GELU(approximate=found)) for found in ("none", "tanh")] == ["none", "tanh"]
    assert [which_gelu(other) for other in (functional.gelu, torch.nn.SiLU(), GELUActivation(), None)] == [None] * 4


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
@each_gelu
def test_rounds_where_eager_rounds(device: str, dtype: torch.dtype, approximate: str) -> None:
    # gates below -3 are left out: eager's 1 + tanh z cancels there, and what remains is its own rounding
    gate, up, _ = case((25, 41), device, dtype)
    same = gelu_and_mul(gate, up, approximate) == functional.gelu(gate, approximate=approximate) * up
    assert same[gate > -3].float().mean() > 0.99, "another cast order than eager's"


def test_projections_are_called_as_modules(device: str) -> None:
    mlp = torch.nn.Module()
    mlp.gate_proj, mlp.up_proj, mlp.down_proj = (torch.nn.Linear(8, 8, device=device) for _ in range(3))
    mlp.act_fn = torch.nn.GELU()
    plain = OURS(mlp, torch.ones(2, 8, device=device))
    names = {child: name for name, child in mlp.named_children() if name != "act_fn"}
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
@each_gelu
def test_takes_views_of_inputs_and_gradient(device: str, view: View, approximate: str) -> None:
    gate, up, grad = (view(t) for t in case((6, 8, 34), device))
    expected = run(gelu_and_mul_reference, gate, up, grad, approximate)
    assert_right(run(gelu_and_mul, gate, up, grad, approximate), expected, (gate, up, grad), approximate)


def test_takes_a_gate_and_a_value_of_different_layout(device: str) -> None:
    gate, up, grad = case((12, 12), device)
    expected = run(gelu_and_mul_reference, gate.T, up, grad)
    assert_right(run(gelu_and_mul, gate.T, up, grad), expected, (gate.T, up, grad), "tanh")


@pytest.mark.parametrize("shape", [(0, 8), (3, 0)], ids=str)
def test_takes_empty_input(device: str, shape: tuple[int, ...]) -> None:
    result, d_gate, d_up = run(gelu_and_mul, *case(shape, device, torch.bfloat16))
    assert result.shape == d_gate.shape == d_up.shape == shape
    assert result.dtype == torch.bfloat16


@pytest.mark.parametrize("recorded", [True, False])
def test_what_the_kernel_does_not_take_goes_through_torch(device: str, recorded: bool) -> None:
    gate, up, _ = case((3, 8), device)
    with torch.set_grad_enabled(recorded):
        for other_gate, other_up in ((gate.double(), up.double()), (gate.half(), up), (gate[:1], up)):
            result = gelu_and_mul(other_gate.requires_grad_(recorded), other_up)
            assert torch.equal(result, functional.gelu(other_gate, approximate="tanh") * other_up)


def test_refuses_a_gelu_that_is_neither(device: str) -> None:
    with pytest.raises(ValueError, match="approximate is 'erf', expected 'none' or 'tanh'"):
        gelu_and_mul(torch.ones(2, device=device), torch.ones(2, device=device), "erf")


@overflows
@each_gelu
def test_extreme_gates_stay_finite(device: str, approximate: str) -> None:
    gate = torch.tensor([-1e4, -100.0, 0.0, 100.0, 1e4], device=device)
    ones = torch.ones_like(gate)
    result, d_gate, d_up = run(gelu_and_mul, gate, ones, ones, approximate)
    assert_close(result, torch.tensor([0.0, 0.0, 0.0, 100.0, 1e4], device=device))
    assert torch.equal(d_up, result)
    assert_close(d_gate, torch.tensor([0.0, 0.0, 0.5, 1.0, 1.0], device=device))


@overflows
@pytest.mark.property
@settings(max_examples=20, deadline=None, derandomize=True, database=None)
@given(
    rows=st.integers(1, 40),
    columns=st.integers(1, 100),
    magnitude=st.sampled_from([1e-4, 1.0, 10.0]),
    approximate=st.sampled_from(["none", "tanh"]),
)
def test_any_small_shape_and_magnitude(rows: int, columns: int, magnitude: float, approximate: str) -> None:
    gate, up, grad = case((rows, columns), "cpu")
    gate = gate * magnitude
    expected = run(exact, gate.double(), up.double(), grad, approximate)
    assert_right(run(gelu_and_mul, gate, up, grad, approximate), expected, (gate, up, grad), approximate)


@each_gelu
def test_gradient_is_the_slope_of_the_function(device: str, approximate: str) -> None:
    # a central difference of the float64 formula along a random direction, with no autograd in it
    gate, up, grad = case((4, 33), device)
    along = [randn(4, 33, dtype=torch.float64, device=device, seed=seed) for seed in (5, 6)]
    step = 1e-5
    ahead, behind = (exact(gate + s * along[0], up + s * along[1], approximate) for s in (step, -step))
    slope = ((ahead - behind) / (2 * step) * grad).sum()
    _, d_gate, d_up = run(gelu_and_mul, gate, up, grad, approximate)
    assert_close((d_gate * along[0]).sum() + (d_up * along[1]).sum(), slope, torch.float32)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_leaves_its_arguments_alone_and_repeats_itself(device: str, dtype: torch.dtype) -> None:
    arguments = case((25, 41), device, dtype)
    before = [t.clone() for t in arguments]
    first = run(gelu_and_mul, *arguments)
    again = run(gelu_and_mul, *arguments)
    with torch.no_grad():
        inference = gelu_and_mul(arguments[0], arguments[1])
    assert all(torch.equal(a, b) for a, b in zip(arguments, before, strict=True))
    assert all(torch.equal(a, b) for a, b in zip(first, again, strict=True))
    assert torch.equal(first[0], inference)


@each_gelu
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_tolerance_catches_planted_faults(device: str, dtype: torch.dtype, approximate: str) -> None:
    gate, up, grad = case((16, 64), device, dtype)
    expected = run(exact, gate.double(), up.double(), grad, approximate)
    with pytest.raises(AssertionError, match="more than the tolerance"):
        assert_close(gelu_and_mul(gate, up * 1.03, approximate), expected[0])
    result = run(gelu_and_mul, gate, up, grad, approximate)
    assert_right(result, expected, (gate, up, grad), approximate)
    for actual, other in zip(result[1:], expected[1:], strict=True):
        with pytest.raises(AssertionError, match="more than the tolerance"):
            assert_close(actual * 0.9, other)


def test_tolerance_tells_the_two_gelus_apart(device: str) -> None:
    gate, up, _ = case((16, 64), device)
    with pytest.raises(AssertionError, match="more than the tolerance"):
        assert_close(gelu_and_mul(gate, up, "tanh"), exact(gate, up, "none"), torch.float32)


@pytest.mark.filterwarnings("ignore:.*should not be instantiated")  # torch, of its own tracing
@pytest.mark.parametrize("act", ["gelu_pytorch_tanh", "gelu", "gelu_new"])
def test_compiles_in_one_graph(device: str, act: str) -> None:
    dtype = torch.bfloat16
    mlp = mlp_of("gemma", "GemmaConfig", device, dtype, hidden_act=act)
    mlp.forward = GeGLUMLP.forward.__get__(mlp)
    twin = copy.deepcopy(mlp)
    twin.forward = GeGLUMLP.forward.__get__(twin)
    torch.compiler.reset()
    compiled = torch.compile(twin, backend="aot_eager", fullgraph=True)
    x = randn(3, 24, dtype=dtype, device=device)
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
            torch.autograd.grad(gelu_and_mul(gate.requires_grad_(), up).sum(), gate, create_graph=True)

    def test_operators_keep_their_promises() -> None:
        from kerncfg.kernels.triton_geglu import backward_op, forward_op

        gate, up, grad = case((5, 33), "cpu", torch.bfloat16)
        checks = ("test_schema", "test_faketensor", "test_aot_dispatch_dynamic")
        for tanh in (True, False):
            torch.library.opcheck(forward_op, (gate.mT.contiguous().mT, up, tanh), test_utils=checks)
            torch.library.opcheck(backward_op, (grad, gate, up.mT.contiguous().mT, tanh), test_utils=checks)
