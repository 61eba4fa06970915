"""The rotary embedding against its formula, float64, and the function it replaces; under both paths (see conftest)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, TypeAlias

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from kerncfg.kernels._path import INTERPRETED
from kerncfg.kernels.layers import RotaryPosEmb
from kerncfg.kernels.rotary import rotary_pos_emb, rotary_pos_emb_reference
from tests.kernels.closeness import DTYPES, assert_close, randn

if TYPE_CHECKING:
    from collections.abc import Callable

    Turn: TypeAlias = Callable[..., tuple[torch.Tensor, torch.Tensor]]

OURS: Turn = rotary_pos_emb

# batch, heads of q, heads of k, tokens, n: one of each; odd counts; a half that is no power of two; several tiles
SHAPES = [(1, 1, 1, 1, 2), (2, 3, 1, 5, 8), (3, 4, 2, 7, 24), (1, 8, 8, 3, 256)]


def case(
    shape: tuple[int, ...], device: str, dtype: torch.dtype = torch.float32, axis: int = 1, batches: int | None = None
) -> tuple[torch.Tensor, ...]:
    """q, k, cos, sin and two gradients; heads are views of (batch, tokens, heads, n), as models have them."""
    batch, q_heads, k_heads, tokens, n = shape
    counts = (q_heads, k_heads, q_heads, k_heads)
    heads = [randn(batch, tokens, count, n, dtype=dtype, device=device, seed=seed) for seed, count in enumerate(counts)]
    if axis == 1:
        heads = [x.transpose(1, 2) for x in heads]
    angles = randn(batches or batch, tokens, n // 2, dtype=torch.float32, device="cpu", seed=9).repeat(1, 1, 2)
    return heads[0], heads[1], angles.cos().to(device, dtype), angles.sin().to(device, dtype), heads[2], heads[3]


def exact(q: torch.Tensor, k: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor, axis: int = 1) -> Any:
    """Turn pairs as complex numbers in float64: nothing of the formula's halves is left in it."""
    cos, sin = (x.double().unsqueeze(axis) for x in (cos, sin))

    def turn(x: torch.Tensor) -> torch.Tensor:
        half = x.shape[-1] // 2
        pairs = torch.complex(x[..., :half].double(), x[..., half:].double())
        turned = pairs * torch.complex(cos[..., :half], sin[..., :half])
        return torch.cat((turned.real, turned.imag), dim=-1)

    return turn(q), turn(k)


def run(turn: Turn, arguments: tuple[torch.Tensor, ...], axis: int = 1) -> tuple[torch.Tensor, ...]:
    """Forward and backward on leaves of its own: q, k, d_q, d_k."""
    q, k, cos, sin, *grads = arguments
    leaves = [x.detach().requires_grad_() for x in (q, k)]
    results = turn(*leaves, cos, sin, axis)
    found = torch.autograd.grad(results, leaves, [g.to(r.dtype) for g, r in zip(grads, results, strict=True)])
    return *results, *found


@pytest.mark.parametrize("axis", [1, 2])
@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_matches_the_formula_and_float64(device: str, dtype: torch.dtype, shape: tuple[int, ...], axis: int) -> None:
    arguments = case(shape, device, dtype, axis)
    wide = tuple(x.double() for x in arguments)
    found = run(rotary_pos_emb, arguments, axis)
    formula, truth = run(rotary_pos_emb_reference, arguments, axis), run(exact, wide, axis)
    for actual, expected, true in zip(found, formula, truth, strict=True):
        assert actual.dtype == dtype
        assert_close(actual, expected)
        assert_close(actual, true)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_matches_the_function_that_it_replaces(device: str, dtype: torch.dtype) -> None:
    llama = pytest.importorskip("transformers.models.llama.modeling_llama")
    arguments = case((2, 4, 2, 5, 16), device, dtype)
    for actual, expected in zip(
        run(rotary_pos_emb, arguments), run(llama.apply_rotary_pos_emb, arguments), strict=True
    ):
        assert_close(actual, expected)


def test_one_angle_serves_a_whole_batch(device: str) -> None:
    arguments = case((3, 2, 1, 4, 8), device, batches=1)
    for actual, expected in zip(run(rotary_pos_emb, arguments), run(rotary_pos_emb_reference, arguments), strict=True):
        assert_close(actual, expected)


@pytest.mark.parametrize("axis", [-2, -3])
def test_the_axis_may_be_counted_from_the_end(device: str, axis: int) -> None:
    q, k, cos, sin, _, _ = case((2, 3, 1, 5, 8), device, axis=axis + 4)
    found, formula = rotary_pos_emb(q, k, cos, sin, axis), rotary_pos_emb_reference(q, k, cos, sin, axis + 4)
    for actual, expected in zip(found, formula, strict=True):
        assert_close(actual, expected)


def test_a_second_derivative_is_right(device: str) -> None:
    q, k, cos, sin, grad, _ = case((1, 2, 1, 3, 8), device)

    def twice(turn: Turn) -> torch.Tensor:
        leaf = q.detach().requires_grad_()
        (first,) = torch.autograd.grad((turn(leaf, k, cos, sin)[0] ** 3 * grad).sum(), leaf, create_graph=True)
        return torch.autograd.grad(first.square().sum(), leaf)[0]

    assert_close(twice(rotary_pos_emb), twice(rotary_pos_emb_reference))


@pytest.mark.parametrize(
    "change",
    [
        lambda q, k, cos, sin: (q.double(), k.double(), cos.double(), sin.double()),
        lambda q, k, cos, sin: (q.half(), k.half(), cos, sin),
        lambda q, k, cos, sin: (q, k, cos[0], sin[0]),
        lambda q, k, cos, sin: (q[:, :, :0], k[:, :, :0], cos[:, :0], sin[:, :0]),
        lambda q, k, cos, sin: (q, k, cos.requires_grad_(), sin),
        lambda q, k, cos, sin: (q[..., :1], k[..., :1], cos[..., :1], sin[..., :1]),
    ],
    ids=["float64", "mixed", "no batch", "empty", "angles that learn", "one column"],
)
def test_what_the_kernel_does_not_take_goes_through_the_formula(device: str, change: Any) -> None:
    arguments = change(*case((1, 2, 1, 4, 8), device)[:4])
    unsqueeze = 0 if arguments[2].dim() == 2 else 1
    turns: list[Turn] = [rotary_pos_emb, rotary_pos_emb_reference]
    found, expected = (turn(*arguments, unsqueeze) for turn in turns)
    for actual, other in zip(found, expected, strict=True):
        assert torch.equal(actual, other)
        assert actual.requires_grad == other.requires_grad


def test_columns_that_are_not_adjacent_are_taken(device: str) -> None:
    q, k, cos, sin, *grads = case((2, 3, 1, 5, 8), device)
    apart = [x.transpose(-1, -2).contiguous().transpose(-1, -2) for x in (q, k, cos, sin)]
    for actual, expected in zip(
        run(rotary_pos_emb, (*apart, *grads)), run(rotary_pos_emb_reference, (q, k, cos, sin, *grads)), strict=True
    ):
        assert_close(actual, expected)


@pytest.mark.property
@settings(max_examples=15, deadline=None, derandomize=True, database=None)
@given(
    shape=st.tuples(*(st.integers(1, 4) for _ in range(4)), st.integers(1, 20).map(lambda n: 2 * n)),
    axis=st.sampled_from([1, 2]),
)
def test_any_small_shape(shape: tuple[int, ...], axis: int) -> None:
    arguments = case(shape, "cpu", axis=axis)
    for actual, expected in zip(run(rotary_pos_emb, arguments, axis), run(exact, arguments, axis), strict=True):
        assert_close(actual, expected)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_leaves_its_arguments_alone_and_repeats_itself(device: str, dtype: torch.dtype) -> None:
    arguments = case((2, 4, 2, 5, 16), device, dtype)
    before = [x.clone() for x in arguments]
    first, again = run(rotary_pos_emb, arguments), run(rotary_pos_emb, arguments)
    with torch.no_grad():
        inference = OURS(*arguments[:4])
    assert all(torch.equal(a, b) for a, b in zip(arguments, before, strict=True))
    assert all(torch.equal(a, b) for a, b in zip(first, again, strict=True))
    assert all(torch.equal(a, b) for a, b in zip(first, inference, strict=False))


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_tolerance_catches_planted_faults(device: str, dtype: torch.dtype) -> None:
    q, k, cos, sin, *grads = case((2, 4, 2, 5, 16), device, dtype)
    expected = run(exact, tuple(x.double() for x in (q, k, cos, sin, *grads)))
    wrong = [
        run(rotary_pos_emb, (q, k, cos, sin * 0.95, *grads)),
        run(rotary_pos_emb, (q, k, cos, -sin, *grads)),
        run(rotary_pos_emb, (q, k, cos.roll(1, 1), sin.roll(1, 1), *grads)),
    ]
    for results in wrong:
        for actual, true in zip(results, expected, strict=True):
            with pytest.raises(AssertionError, match="more than the tolerance"):
                assert_close(actual, true)


@pytest.mark.filterwarnings("ignore:.*should not be instantiated")  # torch, of its own tracing
def test_compiles_in_one_graph(device: str) -> None:
    arguments = case((2, 4, 2, 5, 16), device)
    compiled = torch.compile(RotaryPosEmb().forward, backend="aot_eager", fullgraph=True)
    for actual, expected in zip(run(compiled, arguments), run(rotary_pos_emb, arguments), strict=True):
        assert_close(actual, expected)
    with torch.no_grad():
        turned, wanted = compiled(*arguments[:4]), OURS(*arguments[:4])  # type: ignore[arg-type]
        for actual, other in zip(turned, wanted, strict=True):
            assert_close(actual, other)


if INTERPRETED:

    def test_the_operator_keeps_its_promises() -> None:
        from kerncfg.kernels.triton_rotary import turn_op

        q, k, cos, sin, _, _ = case((2, 3, 1, 5, 8), "cpu", torch.bfloat16)
        checks = ("test_schema", "test_faketensor", "test_aot_dispatch_dynamic")
        torch.library.opcheck(turn_op, (q, k, cos, sin, 1, False), test_utils=checks)
        apart = [x.mT.contiguous().mT for x in (q, k)]
        torch.library.opcheck(turn_op, (*apart, cos, sin, 1, True), test_utils=checks)
