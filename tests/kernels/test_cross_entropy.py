"""The causal loss against its formula, float64, and the function it replaces; under both paths (see conftest)."""

from __future__ import annotations

import inspect
from typing import TYPE_CHECKING, Any, TypeAlias

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.nn import functional

from kerncfg.kernels._path import INTERPRETED
from kerncfg.kernels.cross_entropy import cross_entropy_sum, cross_entropy_sum_reference
from kerncfg.kernels.layers import ForCausalLMLoss
from tests.kernels.closeness import DTYPES, assert_close, randn

if TYPE_CHECKING:
    from collections.abc import Callable

    Forward: TypeAlias = Callable[..., torch.Tensor]
    View: TypeAlias = Callable[[torch.Tensor], torch.Tensor]

# one column, odd, one row, more than one block and than two
SHAPES = [(4, 1), (35, 33), (1, 97), (7, 1000), (3, 8193), (2, 20001)]
IGNORED = -100


def ours(logits: torch.Tensor, labels: Any, *rest: Any, **options: Any) -> torch.Tensor:
    result: torch.Tensor = ForCausalLMLoss.forward(None, logits, labels, *rest, **options)  # type: ignore[arg-type]
    return result


def exact(logits: torch.Tensor, labels: torch.Tensor, ignored: int = IGNORED) -> torch.Tensor:
    rows, labels = logits.double()[labels != ignored], labels[labels != ignored]
    return (torch.logsumexp(rows, 1) - rows[torch.arange(len(rows)), labels]).sum()


def run(function: Forward, logits: torch.Tensor, *rest: Any) -> tuple[torch.Tensor, torch.Tensor]:
    """Forward and backward on a leaf of its own: result, and the logits' gradient for an incoming one of 0.7."""
    logits = logits.detach().requires_grad_()
    result = function(logits, *rest)
    (gradient,) = torch.autograd.grad(result, logits, torch.full_like(result, 0.7))
    return result, gradient


def case(
    shape: tuple[int, int], device: str, dtype: torch.dtype = torch.float32, ignored: bool = True
) -> tuple[torch.Tensor, torch.Tensor]:
    logits = 3 * randn(*shape, dtype=dtype, device=device)
    labels = torch.randint(shape[1], shape[:1], generator=torch.Generator().manual_seed(4))
    if ignored and shape[0] > 1:
        labels[::3] = IGNORED
    return logits, labels.to(device)


@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_agrees_with_the_reference_and_with_float64(device: str, dtype: torch.dtype, shape: tuple[int, int]) -> None:
    logits, labels = case(shape, device, dtype)
    loss, gradient = run(cross_entropy_sum, logits, labels)
    assert (loss.dtype, gradient.dtype) == (torch.float32, dtype)
    for function, given_logits in ((cross_entropy_sum_reference, logits), (exact, logits.double())):
        expected, slope = run(function, given_logits, labels)
        assert_close(loss, expected)
        assert_close(gradient, slope)


def test_the_signature_is_that_of_the_function() -> None:
    from transformers.loss import loss_utils

    theirs = inspect.signature(loss_utils.ForCausalLMLoss).parameters.values()
    mine = list(inspect.signature(ForCausalLMLoss.forward).parameters.values())[1:]
    assert [(p.name, p.kind, p.default) for p in mine] == [(p.name, p.kind, p.default) for p in theirs]


CALLS: dict[str, dict[str, Any]] = {
    "labels": {},
    "another index is ignored": {"ignore_index": 5, "labels": torch.arange(18).reshape(2, 9) % 7},
    "a number of items": {"num_items_in_batch": 11},
    "a number of items in a tensor": {"num_items_in_batch": torch.tensor(11)},
    "labels shifted already": {"labels": None, "shift_labels": torch.arange(18).reshape(2, 9) % 7},
    "keywords of the model's": {"some_flag": True},
}


@pytest.mark.parametrize("options", CALLS.values(), ids=CALLS)
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_agrees_with_the_function_of_transformers(device: str, dtype: torch.dtype, options: dict[str, Any]) -> None:
    from transformers.loss import loss_utils

    logits = 3 * randn(2, 9, 37, dtype=dtype, device=device)
    labels = (torch.arange(18).reshape(2, 9) * 5) % 37
    labels[:, ::4] = IGNORED
    arguments: dict[str, Any] = {"labels": labels.to(device), "vocab_size": 37, **options}
    results: list[tuple[torch.Tensor, ...]] = []
    for function in (ours, loss_utils.ForCausalLMLoss):
        leaf = logits.clone().requires_grad_()
        loss = function(leaf, **arguments)
        results.append((loss, *torch.autograd.grad(loss, leaf)))
    for actual, expected in zip(*results, strict=True):
        assert (actual.dtype, actual.shape) == (expected.dtype, expected.shape)
        assert_close(actual, expected)


def test_a_model_trains_with_it_as_with_its_own(device: str) -> None:
    from transformers import LlamaConfig, LlamaForCausalLM

    size: dict[str, Any] = {
        "hidden_size": 16,
        "intermediate_size": 24,
        "num_hidden_layers": 1,
        "num_attention_heads": 2,
    }
    make: Callable[..., Any] = LlamaForCausalLM
    torch.manual_seed(0)
    model = make(LlamaConfig(vocab_size=61, num_key_value_heads=1, **size)).to(device).train()
    ids = torch.arange(24, device=device).reshape(2, 12) % 61
    results = []
    for function in (None, ours):
        if function is not None:
            model.loss_function = function
        model.zero_grad()
        found = model(input_ids=ids, labels=ids)
        before = found.logits.clone()
        found.loss.backward()
        assert torch.equal(found.logits, before), "the logits are the model's to return"
        results.append([found.loss, *(p.grad.clone() for p in model.parameters())])
    for actual, expected in zip(*results, strict=True):
        assert_close(actual, expected)


VIEWS: dict[str, View] = {
    "transposed": lambda x: x.T,
    "strided rows": lambda x: x[::2],
    "strided columns": lambda x: x[:, ::2],
    "columns of a wider tensor": lambda x: x[:, 3:20],
    "expanded": lambda x: x[:1].expand(4, -1),
}


@pytest.mark.parametrize("view", VIEWS.values(), ids=VIEWS)
def test_takes_views_of_logits_and_labels(device: str, view: View) -> None:
    logits = view(randn(24, 34, dtype=torch.float32, device=device))
    labels = (torch.arange(2 * len(logits), device=device) % logits.shape[1])[::2]
    for actual, expected in zip(
        run(cross_entropy_sum, logits, labels), run(exact, logits.double(), labels), strict=True
    ):
        assert_close(actual, expected)


def test_takes_no_rows_and_no_labels_to_count(device: str) -> None:
    loss, gradient = run(cross_entropy_sum, torch.ones(0, 8, device=device), torch.ones(0, device=device).long())
    assert (loss.item(), gradient.shape) == (0, (0, 8))
    logits, labels = case((4, 9), device)
    loss, gradient = run(cross_entropy_sum, logits, torch.full_like(labels, IGNORED))
    assert loss == 0 and not gradient.any()
    shifted = torch.full_like(labels, IGNORED)
    assert ours(logits, None, 9, shift_labels=shifted).isnan(), "as the mean of nothing is in torch"


def test_other_dtypes_and_shapes_take_torch(device: str) -> None:
    logits, labels = case((6, 9), device, torch.float64)
    loss = cross_entropy_sum(logits, labels)
    assert torch.equal(loss, functional.cross_entropy(logits.float(), labels, reduction="sum"))
    with pytest.raises((RuntimeError, ValueError)):
        cross_entropy_sum(logits.float(), labels[:5])


INF = float("inf")
# The loss that torch gives too: of a label that cannot be, of one that is sure, of large numbers, and of no number.
EXTREMES: dict[str, tuple[list[float], int]] = {
    "an impossible label": ([0.0, -INF, 1.0], 1),
    "a masked start": ([-INF, -INF, 1.0, 2.0], 3),
    "a sure label": ([1000.0, 0.0, -1000.0], 0),
    "large and close": ([30000.0, 30001.0, 29999.0], 1),
    "infinity": ([INF, 0.0, 1.0], 1),
    "not a number": ([float("nan"), 0.0, 1.0], 1),
    "nothing possible": ([-INF, -INF], 0),
}


@pytest.mark.filterwarnings("ignore:invalid value encountered:RuntimeWarning", "ignore:divide by zero:RuntimeWarning")
@pytest.mark.parametrize(("row", "label"), EXTREMES.values(), ids=EXTREMES)
@pytest.mark.parametrize("width", [2, 8192])
def test_extreme_logits_give_what_torch_gives(
    device: str, monkeypatch: pytest.MonkeyPatch, row: list[float], label: int, width: int
) -> None:
    if INTERPRETED or device == "cuda":
        from kerncfg.kernels import triton_cross_entropy

        monkeypatch.setattr(triton_cross_entropy, "MAX_WIDTH", width)
    logits = torch.tensor([row], device=device)
    labels = torch.tensor([label], device=device)

    def plain(x: torch.Tensor, t: torch.Tensor) -> torch.Tensor:
        return functional.cross_entropy(x.double(), t, reduction="sum")

    for actual, expected in zip(run(cross_entropy_sum, logits, labels), run(plain, logits, labels), strict=True):
        torch.testing.assert_close(actual.double(), expected.double(), rtol=1e-6, atol=1e-6, equal_nan=True)


@pytest.mark.property
@settings(max_examples=20, deadline=None, derandomize=True, database=None)
@given(rows=st.integers(1, 40), columns=st.integers(2, 200), magnitude=st.sampled_from([1e-4, 1.0, 10.0]))
def test_any_small_shape_and_magnitude(rows: int, columns: int, magnitude: float) -> None:
    logits, labels = case((rows, columns), "cpu")
    logits = logits * magnitude
    for actual, expected in zip(
        run(cross_entropy_sum, logits, labels), run(exact, logits.double(), labels), strict=True
    ):
        assert_close(actual, expected)


def test_gradient_is_the_slope_of_the_function(device: str) -> None:
    # a central difference of the float64 formula along a random direction, with no autograd in it
    logits, labels = case((9, 33), device)
    along = randn(9, 33, dtype=torch.float64, device=device, seed=2)
    step = 1e-5
    ahead, behind = (exact(logits + s * along, labels) for s in (step, -step))
    _, gradient = run(cross_entropy_sum, logits, labels)
    assert_close((gradient * along).sum(), 0.7 * (ahead - behind) / (2 * step), torch.float32)


@pytest.mark.parametrize("shape", [(35, 33), (3, 8193)], ids=str)
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_leaves_its_arguments_alone_and_repeats_itself(device: str, dtype: torch.dtype, shape: tuple[int, int]) -> None:
    logits, labels = case(shape, device, dtype)
    before = logits.clone(), labels.clone()
    first = run(cross_entropy_sum, logits, labels)
    again = run(cross_entropy_sum, logits, labels)
    with torch.no_grad():
        inference = cross_entropy_sum(logits, labels)
    assert torch.equal(logits, before[0]) and torch.equal(labels, before[1])
    assert all(torch.equal(a, b) for a, b in zip(first, again, strict=True))
    assert torch.equal(first[0], inference)


FAULTS: dict[str, Forward] = {
    "one label off": lambda logits, labels: cross_entropy_sum(logits, labels.where(labels < 0, (labels + 1) % 33)),
    "nothing ignored": lambda logits, labels: cross_entropy_sum(logits, labels.clamp(min=0)),
    "smoothed": lambda logits, labels: functional.cross_entropy(
        logits.float(), labels, reduction="sum", label_smoothing=0.03
    ),
}


@pytest.mark.parametrize("fault", FAULTS.values(), ids=FAULTS)
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_tolerance_catches_planted_faults(device: str, dtype: torch.dtype, fault: Forward) -> None:
    logits, labels = case((35, 33), device, dtype)
    expected = run(exact, logits.double(), labels)
    for actual, other in zip(run(fault, logits, labels), expected, strict=True):
        with pytest.raises(AssertionError, match="more than the tolerance"):
            assert_close(actual, other)
    with pytest.raises(AssertionError, match="more than the tolerance"):
        assert_close(run(cross_entropy_sum, logits, labels)[1] * 0.9, expected[1])


@pytest.mark.filterwarnings("ignore:.*should not be instantiated")  # torch, of its own tracing
def test_compiles_in_one_graph(device: str) -> None:
    logits, labels = case((6, 33), device, torch.bfloat16)
    logits, labels = logits.reshape(2, 3, 33), labels.reshape(2, 3)
    torch.compiler.reset()
    compiled = torch.compile(ours, backend="aot_eager", fullgraph=True)
    for actual, expected in zip(run(compiled, logits, labels, 33), run(ours, logits, labels, 33), strict=True):
        assert actual.stride() == expected.stride()
        assert_close(actual, expected)


def test_autocast_changes_nothing(device: str) -> None:
    logits, labels = case((4, 33), device, torch.bfloat16)
    plain = cross_entropy_sum(logits, labels)
    with torch.autocast(device, dtype=torch.bfloat16):
        assert torch.equal(cross_entropy_sum(logits, labels), plain)


if INTERPRETED:

    @pytest.mark.parametrize("label", [33, 1000, -1])
    def test_a_label_out_of_range_is_not_a_number_and_no_stray_memory(label: int) -> None:
        logits, labels = case((5, 33), "cpu", ignored=False)
        labels[2] = label
        loss, gradient = run(cross_entropy_sum, logits, labels)
        assert loss.isnan()
        assert gradient.isfinite().all()

    def test_a_second_derivative_is_refused() -> None:
        logits, labels = case((4, 33), "cpu")
        with pytest.raises(NotImplementedError, match="no second derivative"):
            torch.autograd.grad(cross_entropy_sum(logits.requires_grad_(), labels), logits, create_graph=True)

    def test_operators_keep_their_promises() -> None:
        from kerncfg.kernels.triton_cross_entropy import backward_op, forward_op

        logits, labels = case((5, 33), "cpu", torch.bfloat16)
        checks = ("test_schema", "test_faketensor", "test_aot_dispatch_dynamic")
        torch.library.opcheck(forward_op, (logits, labels, IGNORED), test_utils=checks)
        _, peak, log_total = forward_op(logits, labels, IGNORED)
        turned = logits.mT.contiguous().mT
        grad = torch.tensor(0.7)
        torch.library.opcheck(backward_op, (grad, turned, labels, peak, log_total, IGNORED), test_utils=checks)
