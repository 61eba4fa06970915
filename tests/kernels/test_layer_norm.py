"""LayerNorm against its formula, float64, and torch's own; under both paths (see conftest)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, TypeAlias

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn
from torch.nn import functional

from kerncfg.kernels._path import INTERPRETED
from kerncfg.kernels.layer_norm import layer_norm, layer_norm_reference
from kerncfg.kernels.layers import LayerNorm
from tests.kernels.closeness import DTYPES, assert_close, randn

if TYPE_CHECKING:
    from collections.abc import Callable

    Forward: TypeAlias = Callable[..., torch.Tensor]
    View: TypeAlias = Callable[[torch.Tensor], torch.Tensor]

EPS = 1e-5
OURS: Forward = LayerNorm.forward  # its self may be any module
# odd, a whole tile of rows and a bit, a power of two, more than one block and than two, one row alone
SHAPES = [(5, 7, 33), (70, 63), (2, 3, 128), (2, 8193), (1, 20001), (9,)]
AFFINE = [(True, True), (True, False), (False, True), (False, False)]


def exact(x: torch.Tensor, weight: torch.Tensor | None, bias: torch.Tensor | None, eps: float = EPS) -> torch.Tensor:
    x = x.double()
    centred = x - x.mean(-1, keepdim=True)
    result = centred / torch.sqrt(centred.square().mean(-1, keepdim=True) + eps)
    result = result if weight is None else result * weight.double()
    return result if bias is None else result + bias.double()


def ours(x: torch.Tensor, weight: torch.Tensor | None, bias: torch.Tensor | None, eps: float = EPS) -> torch.Tensor:
    return layer_norm(x, x.shape[-1:], weight, bias, eps)


def formula(x: torch.Tensor, weight: torch.Tensor | None, bias: torch.Tensor | None, eps: float = EPS) -> torch.Tensor:
    return layer_norm_reference(x, x.shape[-1:], weight, bias, eps)


def torchs(x: torch.Tensor, weight: torch.Tensor | None, bias: torch.Tensor | None, eps: float = EPS) -> torch.Tensor:
    return functional.layer_norm(x, x.shape[-1:], weight, bias, eps)


def run(function: Forward, *inputs_and_grad: Any) -> tuple[torch.Tensor, ...]:
    """Forward and backward on leaves of its own: result, dx, and dweight and dbias where there are any."""
    *inputs, grad = inputs_and_grad
    leaves = [None if t is None else t.detach().requires_grad_() for t in inputs]
    result = function(*leaves)
    return result, *torch.autograd.grad(result, [t for t in leaves if t is not None], grad.to(result.dtype))


def widened(*tensors: Any) -> tuple[Any, ...]:
    return tuple(None if t is None else t.double() for t in tensors)


def assert_right(expected: tuple[torch.Tensor, ...], *inputs_and_grad: Any) -> None:
    """Compare the Triton path within the tolerance, and the torch path with torch's own, bit by bit.

    Torch's own on a CPU adds up the weight's gradient in 16 bits where the rest is in 16 bits, outside of any tolerance
    that a sum in float32 keeps; the torch path is to be torch's, no more and no less.
    """
    actual = run(ours, *inputs_and_grad)
    on_cpu = actual[0].device.type == "cpu" and not INTERPRETED
    for index, other in enumerate(run(torchs, *inputs_and_grad) if on_cpu else expected):
        assert actual[index].shape == other.shape
        if on_cpu:
            assert torch.equal(actual[index], other)
        else:
            assert_close(actual[index], other)
    assert len(actual) == len(expected)


def case(
    shape: tuple[int, ...], device: str, dtype: torch.dtype = torch.float32, weight: bool = True, bias: bool = True
) -> tuple[Any, ...]:
    x = 1 + randn(*shape, dtype=dtype, device=device)
    w = 1 + 0.1 * randn(shape[-1], dtype=dtype, device=device) if weight else None
    b = 0.1 * randn(shape[-1], dtype=dtype, device=device, seed=3) if bias else None
    return x, w, b, randn(*shape, dtype=dtype, device=device, seed=1)


@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_agrees_with_the_reference_and_with_float64(device: str, dtype: torch.dtype, shape: tuple[int, ...]) -> None:
    *inputs, grad = case(shape, device, dtype)
    reference = run(formula, *inputs, grad)
    assert {t.dtype for t in (*run(ours, *inputs, grad), *reference)} == {dtype}
    assert_right(reference, *inputs, grad)
    assert_right(run(exact, *widened(*inputs), grad), *inputs, grad)


@pytest.mark.parametrize(("weight", "bias"), AFFINE[1:])
@pytest.mark.parametrize("shape", [(5, 7, 33), (3, 8193)], ids=str)
def test_weight_and_bias_may_each_be_absent(device: str, shape: tuple[int, ...], weight: bool, bias: bool) -> None:
    *inputs, grad = case(shape, device, torch.float32, weight, bias)
    expected = run(exact, *widened(*inputs), grad)
    assert len(expected) == 2 + weight + bias
    assert_right(expected, *inputs, grad)


@pytest.mark.parametrize("options", [{}, {"bias": False}, {"elementwise_affine": False}, {"eps": 0.3}], ids=str)
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_agrees_with_torchs_own_on_its_module(device: str, dtype: torch.dtype, options: dict[str, Any]) -> None:
    module = nn.LayerNorm(96, **options).to(device, dtype)
    x, weight, bias, grad = case((2, 9, 96), device, dtype)
    for parameter, value in ((module.weight, weight), (module.bias, bias)):
        if parameter is not None:
            parameter.data.copy_(value)
    results = []
    theirs: Forward = nn.LayerNorm.forward
    for forward in (OURS, theirs):
        leaf = x.clone().requires_grad_()
        result = forward(module, leaf)
        results.append((result, *torch.autograd.grad(result, (leaf, *module.parameters()), grad)))
    for actual, expected in zip(*results, strict=True):
        assert actual.dtype == expected.dtype
        if actual.dim() > 1 or dtype == torch.float32 or device != "cpu":  # see assert_right for the others
            assert_close(actual, expected)
    if dtype != torch.float32:
        assert (results[0][0] == results[1][0]).float().mean() > 0.99, "rounds elsewhere than torch"


VIEWS: dict[str, View] = {
    "transposed": lambda x: x.transpose(0, 1),
    "strided rows": lambda x: x[:, ::2],
    "strided columns": lambda x: x[..., ::2],
    "columns of a wider tensor": lambda x: x[..., 3:20],
    "expanded": lambda x: x[:1].expand(4, -1, -1),
    "turned": lambda x: x.permute(2, 1, 0),
}


@pytest.mark.parametrize("view", VIEWS.values(), ids=VIEWS)
def test_takes_views_of_input_weight_and_gradient(device: str, view: View) -> None:
    x, grad = (view(randn(6, 8, 34, dtype=torch.float32, device=device, seed=s)) for s in (0, 1))
    weight, bias = (randn(2 * x.shape[-1], dtype=torch.float32, device=device, seed=s)[::2] for s in (0, 1))
    expected = run(formula, x, weight, bias, grad)
    assert_right(expected, x, weight, bias, grad)


@pytest.mark.parametrize("shape", [(0, 8), (3, 0), (2, 0, 5)], ids=str)
def test_takes_empty_input(device: str, shape: tuple[int, ...]) -> None:
    result, dx, dweight, dbias = run(ours, *case(shape, device, torch.bfloat16))
    assert result.shape == dx.shape == shape
    assert result.dtype == torch.bfloat16
    assert not dweight.any() and not dbias.any()


def test_a_normalized_shape_of_several_dimensions_is_torchs(device: str) -> None:
    module = nn.LayerNorm((3, 8), device=device)
    x = randn(2, 3, 8, dtype=torch.float32, device=device)
    assert torch.equal(OURS(module, x), module(x))
    assert_close(OURS(module, x), layer_norm_reference(x, (3, 8), module.weight, module.bias, module.eps))


def test_what_the_kernel_does_not_take_goes_through_torch(device: str) -> None:
    x, weight, bias, _ = case((3, 8), device, torch.float64)
    assert torch.equal(ours(x, weight, bias), functional.layer_norm(x, (8,), weight, bias, EPS))
    if device == "cpu":  # where torch takes a weight of another dtype
        half = x.to(torch.bfloat16)
        single = weight.float(), bias.float()
        assert torch.equal(ours(half, *single), functional.layer_norm(half, (8,), *single, EPS))


def test_shapes_that_do_not_fit_are_torchs_error(device: str) -> None:
    x, weight, bias, _ = case((3, 8), device)
    with pytest.raises(RuntimeError, match="normalized_shape"):
        layer_norm(x, (7,), None, None, EPS)
    with pytest.raises(RuntimeError, match="weight"):
        layer_norm(x, (8,), weight[:7], bias, EPS)


@pytest.mark.property
@settings(max_examples=20, deadline=None, derandomize=True, database=None)
@given(rows=st.integers(1, 40), columns=st.integers(8, 200), magnitude=st.sampled_from([1e-4, 1.0, 1e4]))
def test_any_small_shape_and_magnitude(rows: int, columns: int, magnitude: float) -> None:
    # from eight columns on: dx is what is orthogonal to x and to ones, which of fewer can be all cancellation
    x, weight, bias, grad = case((rows, columns), "cpu")
    x = (x - 1) * magnitude
    expected = run(exact, *widened(x, weight, bias), grad)
    assert_right(expected, x, weight, bias, grad)


@pytest.mark.parametrize("columns", [100, 8193, 20001])
def test_a_large_mean_cancels_nothing(device: str, columns: int) -> None:
    # integers and a mean of a power of two: x - mean is exact, so what is lost would be lost in the variance
    x = (4 * randn(3, columns, dtype=torch.float32, device=device)).round() + 2**16
    expected = exact(x, None, None)
    scale = expected.abs().max()
    assert (ours(x, None, None).double() - expected).abs().max() < 1e-3 * scale
    naive = x.square().mean(-1) - x.mean(-1).square()
    assert (naive - x.double().var(-1, correction=0)).abs().max() > 1, "the case is too easy"


def test_a_constant_row_is_its_bias(device: str) -> None:
    _, weight, bias, _ = case((2, 64), device)
    assert_close(ours(torch.full((2, 64), 3.0, device=device), weight, bias), bias.expand(2, -1))


def test_gradient_is_the_slope_of_the_function(device: str) -> None:
    # a central difference of the float64 formula along a random direction, with no autograd in it
    *inputs, grad = case((4, 33), device)
    along = [randn(*t.shape, dtype=torch.float64, device=device, seed=7) for t in inputs]
    step = 1e-5
    moved = [[t + s * a for t, a in zip(inputs, along, strict=True)] for s in (step, -step)]
    ahead, behind = (exact(x, weight, bias) for x, weight, bias in moved)
    slope = ((ahead - behind) / (2 * step) * grad).sum()
    products = [(d * a).sum() for d, a in zip(run(ours, *inputs, grad)[1:], along, strict=True)]
    assert_close(torch.stack(products).sum(), slope, torch.float32)


@pytest.mark.parametrize(
    ("dtype", "shape"), [*((dtype, (70, 63)) for dtype in DTYPES), (torch.bfloat16, (2, 8193))], ids=str
)
def test_leaves_its_arguments_alone_and_repeats_itself(device: str, dtype: torch.dtype, shape: tuple[int, ...]) -> None:
    arguments = case(shape, device, dtype)
    before = [t.clone() for t in arguments]
    first = run(ours, *arguments)
    again = run(ours, *arguments)
    with torch.no_grad():
        inference = ours(*arguments[:3])
    assert all(torch.equal(a, b) for a, b in zip(arguments, before, strict=True))
    assert all(torch.equal(a, b) for a, b in zip(first, again, strict=True))
    assert torch.equal(first[0], inference)


FAULTS: dict[str, Forward] = {
    "weight off by 3 %": lambda x, weight, bias: ours(x, weight * 1.03, bias),
    "no bias": lambda x, weight, bias: ours(x, weight, None),
    "no mean": lambda x, weight, bias: ours(x - 2 * x.mean(-1, keepdim=True), weight, bias) + 0.03,
    "divided by n - 1": lambda x, weight, bias: ours(x, weight * (7 / 8) ** 0.5, bias),
    "eps outside the root": lambda x, weight, bias: (
        (x.float() - x.float().mean(-1, keepdim=True)) / (x.float().std(-1, correction=0, keepdim=True) + EPS) * weight
        + bias
    ).to(x.dtype),
}


@pytest.mark.parametrize("fault", FAULTS.values(), ids=FAULTS)
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_tolerance_catches_a_wrong_forward(device: str, dtype: torch.dtype, fault: Forward) -> None:
    x, weight, bias, _ = case((16, 8), device, dtype)
    x = (x - 1) * 3e-3  # the variance is then as small as eps
    assert_close(ours(x, weight, bias), exact(x, weight, bias))
    with pytest.raises(AssertionError, match="more than the tolerance"):
        assert_close(fault(x, weight, bias), exact(x, weight, bias), dtype)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_tolerance_catches_a_gradient_factor(device: str, dtype: torch.dtype) -> None:
    *inputs, grad = case((16, 64), device, dtype)
    expected = run(exact, *widened(*inputs), grad)
    assert_right(expected, *inputs, grad)
    for actual, other in zip(run(ours, *inputs, grad)[1:], expected[1:], strict=True):
        with pytest.raises(AssertionError, match="more than the tolerance"):
            assert_close(actual * 0.9, other, dtype)


@pytest.mark.filterwarnings("ignore:.*should not be instantiated")  # torch, of its own tracing
@pytest.mark.parametrize(("weight", "bias"), AFFINE)
def test_compiles_in_one_graph(device: str, weight: bool, bias: bool) -> None:
    arguments = case((6, 33), device, torch.bfloat16, weight, bias)
    torch.compiler.reset()
    compiled = torch.compile(ours, backend="aot_eager", fullgraph=True)
    for actual, expected in zip(run(compiled, *arguments), run(ours, *arguments), strict=True):
        assert actual.stride() == expected.stride()
        assert_close(actual, expected)


def test_autocast_gives_the_dtype_that_torchs_own_gives(device: str) -> None:
    x, weight, bias, _ = case((4, 33), device, torch.bfloat16)
    with torch.autocast(device, dtype=torch.bfloat16):
        for inputs in ((x, weight, bias), (x.float(), weight.float(), bias.float())):
            assert torch.equal(ours(*inputs), functional.layer_norm(inputs[0], (33,), *inputs[1:], EPS))


if INTERPRETED:

    @pytest.mark.parametrize("shape", [(150, 63), (5, 8193)], ids=str)
    def test_programs_that_own_several_tiles(monkeypatch: pytest.MonkeyPatch, shape: tuple[int, ...]) -> None:
        from kerncfg.kernels import triton_layer_norm

        monkeypatch.setattr(triton_layer_norm, "PROGRAMS", 2)
        *inputs, grad = case(shape, "cpu")
        expected = run(exact, *widened(*inputs), grad)
        for actual, other in zip(run(ours, *inputs, grad), expected, strict=True):
            assert_close(actual, other)

    def test_a_second_derivative_is_refused() -> None:
        x, weight, bias, _ = case((4, 33), "cpu")
        with pytest.raises(NotImplementedError, match="no second derivative"):
            torch.autograd.grad(ours(x.requires_grad_(), weight, bias).sum(), x, create_graph=True)

    @pytest.mark.parametrize(("weight", "bias"), AFFINE)
    def test_operators_keep_their_promises(weight: bool, bias: bool) -> None:
        from kerncfg.kernels.triton_layer_norm import backward_op, forward_op

        x, w, b, grad = case((5, 33), "cpu", torch.bfloat16, weight, bias)
        checks = ("test_schema", "test_faketensor", "test_aot_dispatch_dynamic")
        torch.library.opcheck(forward_op, (x, w, b, EPS), test_utils=checks)
        _, mean, rstd = forward_op(x, w, b, EPS)
        turned = x.mT.contiguous().mT
        torch.library.opcheck(backward_op, (grad, turned, w, mean, rstd, bias), test_utils=checks)
