"""Gemma's RMSNorm against its formula, float64, and the classes it replaces; under both paths (see conftest)."""

from __future__ import annotations

import importlib
import itertools
from typing import TYPE_CHECKING, Any, TypeAlias

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from kerncfg.kernels._path import INTERPRETED
from kerncfg.kernels.gemma_rms_norm import gemma_rms_norm, gemma_rms_norm_reference
from kerncfg.kernels.layers import GemmaRMSNorm
from kerncfg.kernels.rms_norm import rms_norm
from tests.kernels.closeness import DTYPES, assert_close, randn

if TYPE_CHECKING:
    from collections.abc import Callable

    Forward: TypeAlias = Callable[..., torch.Tensor]
    View: TypeAlias = Callable[[torch.Tensor], torch.Tensor]

EPS = 1e-6
# one column, odd, a whole tile of rows and a bit, a power of two, one row of more than one block, one row alone
SHAPES = [(4, 1), (5, 7, 33), (70, 63), (2, 3, 128), (1, 16385), (9,)]
# Every class of transformers with this arithmetic, and the model file it is in.
CLASSES = [
    ("gemma", "GemmaRMSNorm"),
    ("gemma2", "Gemma2RMSNorm"),
    ("gemma3", "Gemma3RMSNorm"),
    ("qwen3_next", "Qwen3NextRMSNorm"),
    ("qwen3_5", "Qwen3_5RMSNorm"),
]


def exact(x: torch.Tensor, weight: torch.Tensor, eps: float = EPS) -> torch.Tensor:
    x, weight = x.double(), weight.double()
    return (1 + weight) * x / torch.sqrt(x.square().mean(-1, keepdim=True) + eps)


def run(function: Forward, x: torch.Tensor, weight: torch.Tensor, grad: torch.Tensor) -> tuple[torch.Tensor, ...]:
    """Forward and backward on leaves of its own: result, dx, dweight."""
    x, weight = x.detach().requires_grad_(), weight.detach().requires_grad_()
    result = function(x, weight, EPS)
    return result, *torch.autograd.grad(result, (x, weight), grad.to(result.dtype))


def case(
    shape: tuple[int, ...], device: str, dtype: torch.dtype = torch.float32, weight_dtype: torch.dtype | None = None
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    # with one column dx is all cancellation, unless x is so small that eps counts
    x = randn(*shape, dtype=dtype, device=device) * (1e-3 if shape[-1] == 1 else 1)
    weight = 0.1 * randn(shape[-1], dtype=weight_dtype or dtype, device=device)
    return x, weight, randn(*shape, dtype=dtype, device=device, seed=1)


@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_agrees_with_the_reference_and_with_float64(device: str, dtype: torch.dtype, shape: tuple[int, ...]) -> None:
    x, weight, grad = case(shape, device, dtype)
    result = run(gemma_rms_norm, x, weight, grad)
    for actual, expected in zip(result, run(gemma_rms_norm_reference, x, weight, grad), strict=True):
        assert actual.dtype == expected.dtype == dtype
        assert_close(actual, expected)
    for actual, expected in zip(result, run(exact, x.double(), weight.double(), grad), strict=True):
        assert_close(actual, expected)


@pytest.mark.parametrize(("dtype", "weight_dtype"), list(itertools.permutations(DTYPES, 2)), ids=str)
def test_the_result_has_the_dtype_of_the_input(device: str, dtype: torch.dtype, weight_dtype: torch.dtype) -> None:
    x, weight, grad = case((5, 7, 33), device, dtype, weight_dtype)
    result = run(gemma_rms_norm, x, weight, grad)
    assert [t.dtype for t in result] == [dtype, dtype, weight_dtype]
    for actual, other in zip(result, run(gemma_rms_norm_reference, x, weight, grad), strict=True):
        assert actual.dtype == other.dtype
        assert_close(actual, other, dtype, weight_dtype)


@pytest.mark.parametrize(("file", "name"), CLASSES)
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_agrees_with_the_classes_of_transformers(device: str, dtype: torch.dtype, file: str, name: str) -> None:
    modeling: Any = importlib.import_module(f"transformers.models.{file}.modeling_{file}")
    theirs = getattr(modeling, name)
    x, weight, grad = case((2, 9, 96), device, dtype)
    module = theirs(96, EPS).to(device, dtype)
    module.weight.data.copy_(weight)
    ours: Forward = GemmaRMSNorm.forward  # its self may be any module
    results = []
    for forward in (ours, theirs.forward):
        leaf = x.clone().requires_grad_()
        result = forward(module, leaf)
        results.append((result, *torch.autograd.grad(result, (leaf, module.weight), grad)))
    for actual, expected in zip(*results, strict=True):
        assert_close(actual, expected)
    if dtype != torch.float32:
        same = results[0][0] == results[1][0]
        assert same.float().mean() > 0.99, "another cast order than Gemma's"


def test_llamas_cast_order_is_another(device: str) -> None:
    # what the share of equal values above can tell apart, or it would show nothing
    x, weight, _ = case((2, 9, 96), device, torch.bfloat16)
    llama = rms_norm(x, 1 + weight, EPS) == gemma_rms_norm_reference(x, weight, EPS)
    assert llama.float().mean() < 0.9


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
    weight = randn(2 * x.shape[-1], dtype=torch.float32, device=device)[::2]
    expected = run(gemma_rms_norm_reference, x, weight, grad)
    for actual, other in zip(run(gemma_rms_norm, x, weight, grad), expected, strict=True):
        assert_close(actual, other)


@pytest.mark.parametrize("shape", [(0, 8), (3, 0), (2, 0, 5)], ids=str)
def test_takes_empty_input(device: str, shape: tuple[int, ...]) -> None:
    x, weight, grad = case(shape, device, torch.bfloat16)
    result, dx, dweight = run(gemma_rms_norm, x, weight, grad)
    assert result.shape == dx.shape == shape
    assert result.dtype == torch.bfloat16
    assert torch.equal(dweight, torch.zeros_like(weight))


def test_other_dtypes_take_the_reference(device: str) -> None:
    x, weight, _ = case((3, 8), device, torch.float64)
    for other in (x, x.float()):
        result = gemma_rms_norm(other, weight, EPS)
        assert result.dtype == other.dtype
        assert_close(result, gemma_rms_norm_reference(other, weight, EPS), torch.float32)


def test_refuses_a_weight_of_another_length(device: str) -> None:
    with pytest.raises(ValueError, match=r"weight has shape \(7,\), expected \(8,\)"):
        gemma_rms_norm(torch.ones(2, 8, device=device), torch.ones(7, device=device), EPS)


@pytest.mark.property
@settings(max_examples=20, deadline=None, derandomize=True, database=None)
@given(rows=st.integers(1, 40), columns=st.integers(8, 200), magnitude=st.sampled_from([1e-4, 1.0, 1e4]))
def test_any_small_shape_and_magnitude(rows: int, columns: int, magnitude: float) -> None:
    # from eight columns on: dx is what is orthogonal to x, which of fewer can be all cancellation (see `case`)
    x, weight, grad = case((rows, columns), "cpu")
    expected = run(exact, x.double() * magnitude, weight.double(), grad)
    for actual, other in zip(run(gemma_rms_norm, x * magnitude, weight, grad), expected, strict=True):
        assert_close(actual, other)


def test_gradient_is_the_slope_of_the_function(device: str) -> None:
    # a central difference of the float64 formula along a random direction, with no autograd in it
    x, weight, grad = case((4, 33), device)
    along_x, along_weight = (randn(*t.shape, dtype=torch.float64, device=device, seed=2) for t in (x, weight))
    step = 1e-5
    ahead, behind = (exact(x + s * along_x, weight + s * along_weight) for s in (step, -step))
    slope = ((ahead - behind) / (2 * step) * grad).sum()
    _, dx, dweight = run(gemma_rms_norm, x, weight, grad)
    assert_close((dx * along_x).sum() + (dweight * along_weight).sum(), slope, torch.float32)


@pytest.mark.parametrize(
    ("dtype", "shape"), [*((dtype, (70, 63)) for dtype in DTYPES), (torch.bfloat16, (2, 8193))], ids=str
)
def test_leaves_its_arguments_alone_and_repeats_itself(device: str, dtype: torch.dtype, shape: tuple[int, ...]) -> None:
    arguments = case(shape, device, dtype)
    before = [t.clone() for t in arguments]
    first = run(gemma_rms_norm, *arguments)
    again = run(gemma_rms_norm, *arguments)
    with torch.no_grad():
        inference = gemma_rms_norm(*arguments[:2], EPS)
    assert all(torch.equal(a, b) for a, b in zip(arguments, before, strict=True))
    assert all(torch.equal(a, b) for a, b in zip(first, again, strict=True))
    assert torch.equal(first[0], inference)


FAULTS: dict[str, Forward] = {
    "no offset": lambda x, weight, eps: rms_norm(x, weight, eps),
    "weight off by 3 %": lambda x, weight, eps: gemma_rms_norm(x, weight + 0.03, eps),
    "eps outside the root": lambda x, weight, eps: (
        (1 + weight.float()) * (x.float() / (x.float().square().mean(-1, keepdim=True).sqrt() + eps))
    ).to(x.dtype),
}


@pytest.mark.parametrize("fault", FAULTS.values(), ids=FAULTS)
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_tolerance_catches_a_wrong_forward(device: str, dtype: torch.dtype, fault: Forward) -> None:
    x, weight, _ = case((16, 64), device, dtype)
    x = x * 1e-3  # the mean square is then as small as eps
    assert_close(gemma_rms_norm(x, weight, EPS), exact(x, weight))
    with pytest.raises(AssertionError, match="more than the tolerance"):
        assert_close(fault(x, weight, EPS), exact(x, weight), dtype)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_tolerance_catches_a_gradient_factor(device: str, dtype: torch.dtype) -> None:
    x, weight, grad = case((16, 64), device, dtype)
    expected = run(exact, x.double(), weight.double(), grad)
    for actual, other in zip(run(gemma_rms_norm, x, weight, grad)[1:], expected[1:], strict=True):
        assert_close(actual, other)
        with pytest.raises(AssertionError, match="more than the tolerance"):
            assert_close(actual * 0.9, other, dtype)


@pytest.mark.filterwarnings("ignore:.*should not be instantiated")  # torch, of its own tracing
def test_compiles_in_one_graph(device: str) -> None:
    x, weight, grad = case((6, 33), device, torch.bfloat16)
    compiled = torch.compile(gemma_rms_norm, backend="aot_eager", fullgraph=True)
    for actual, expected in zip(run(compiled, x, weight, grad), run(gemma_rms_norm, x, weight, grad), strict=True):
        assert actual.stride() == expected.stride()
        assert_close(actual, expected)


def test_autocast_changes_nothing(device: str) -> None:
    x, weight, _ = case((4, 33), device, torch.bfloat16, torch.float32)
    with torch.autocast(device, dtype=torch.bfloat16):
        assert gemma_rms_norm(x, weight, EPS).dtype == gemma_rms_norm_reference(x, weight, EPS).dtype == torch.bfloat16


if INTERPRETED:

    @pytest.mark.parametrize("shape", [(150, 63), (5, 8193)], ids=str)
    def test_programs_that_own_several_tiles(monkeypatch: pytest.MonkeyPatch, shape: tuple[int, ...]) -> None:
        from kerncfg.kernels import triton_rms_norm

        monkeypatch.setattr(triton_rms_norm, "PROGRAMS", 2)
        x, weight, grad = case(shape, "cpu")
        expected = run(exact, x.double(), weight.double(), grad)
        for actual, other in zip(run(gemma_rms_norm, x, weight, grad), expected, strict=True):
            assert_close(actual, other)

    def test_a_second_derivative_is_refused() -> None:
        x, weight, _ = case((4, 33), "cpu")
        with pytest.raises(NotImplementedError, match="no second derivative"):
            torch.autograd.grad(gemma_rms_norm(x.requires_grad_(), weight, EPS).sum(), x, create_graph=True)

    def test_operators_keep_their_promises() -> None:
        from kerncfg.kernels.triton_rms_norm import backward_op, forward_op

        x, weight, grad = case((5, 33), "cpu", torch.bfloat16, torch.float32)
        checks = ("test_schema", "test_faketensor", "test_aot_dispatch_dynamic")
        torch.library.opcheck(forward_op, (x, weight, EPS, True), test_utils=checks)
        _, rstd = forward_op(x, weight, EPS, True)
        torch.library.opcheck(backward_op, (grad, x.mT.contiguous().mT, weight, rstd, True), test_utils=checks)
