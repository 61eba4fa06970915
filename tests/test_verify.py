from __future__ import annotations

import copy
import json
from functools import cache
from typing import Any

import pytest
import torch
from torch import nn

from kerncfg.compiler.schema import validate
from kerncfg.evidence.verify import Verification, verify
from tests.subjects import (
    POLICY,
    DropNorm,
    Norm,
    applied,
    fault,
    matched,
    packaged,
    qwen3,
    stack,
)
from tests.test_capture import assert_as_before, state

HALVES = ["bfloat16", "float16"]
DTYPES = ["float32", *HALVES]


@cache
def verified(name: str, dtype: str = "float32", training: bool = True) -> Verification:
    """Verify one of the kernels in `faults` on a small Qwen3."""
    loaded = qwen3(dtype)
    with applied(loaded.model, fault(name, training=training)) as bindings:
        return verify(bindings, loaded.inputs, POLICY)


def verified_alone(name: str, norm: type[Norm] = Norm, mode: str | None = None) -> Verification:
    """Verify one of the kernels in `faults` on a plain module."""
    model, inputs = stack(norm)
    with applied(model, matched(name, norm), mode=mode) as bindings:
        return verify(bindings, inputs, POLICY)


@pytest.mark.parametrize("dtype", [*DTYPES, "float64"])
@pytest.mark.parametrize("name", ["Faithful", "Reordered", "Fused"])
def test_a_kernel_that_only_computes_otherwise_passes(name: str, dtype: str) -> None:
    found = verified(name, dtype)
    assert [row.reason for row in found.rows] == [None, None, None]
    assert all(row.backward is not None and row.backward.passed for row in found.rows)
    assert found.passed


@pytest.mark.parametrize("model", ["qwen3", "llama"])
@pytest.mark.parametrize("dtype", DTYPES)
def test_the_bundled_kernels_pass(model: str, dtype: str) -> None:
    loaded = packaged(model, dtype=dtype, layers=1)
    mlp = "kernels.SwiGLUMLP={match:{class:'*MLP'},cpu:builtin:SwiGLUMLP}"
    with applied(loaded.model, "kernels.RMSNorm.cpu=builtin:RMSNorm", mlp) as bindings:
        found = verify(bindings, loaded.inputs, POLICY)
    assert {row.name for row in found.rows} == {"RMSNorm", "SwiGLUMLP"}
    assert [row.reason for row in found.rows if row.reason] == []
    assert found.passed


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(
    "name",
    [
        "WeightOffset",
        "NoWeight",
        "EpsilonOutside",
        "OneWrong",
        "NotANumber",
        "WrongShape",
        "WrongType",
        "ReturnsTuple",
        "Raises",
        "WritesToInput",
        "WritesToWeight",
    ],
)
def test_a_faulty_forward_fails_with_nothing_else_to_go_by(name: str, dtype: str) -> None:
    loaded = packaged("qwen3", dtype=dtype, layers=1)
    with applied(loaded.model, fault(name, training=False)) as bindings:
        found = verify(bindings, loaded.inputs, POLICY)
    assert not found.passed
    assert found.rows[0].reason
    assert found.rows[0].path == "model.layers.0.input_layernorm"


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("name", ["WeakGradient", "LostGradient", "OnlyInTraining", "CutOff"])
def test_a_fault_that_only_training_shows_fails(name: str, dtype: str) -> None:
    assert not any(row.passed for row in verified(name, dtype).rows)
    assert verified(name, dtype, training=False).passed


def test_a_wrong_gradient_is_blamed_on_the_backward() -> None:
    row = verified("WeakGradient").rows[0]
    assert row.backward is not None
    assert (row.passed, row.backward.passed, row.max_abs) == (False, False, 0)
    assert row.backward.gain == pytest.approx(-0.1, abs=1e-3)
    assert row.reason is not None and row.reason.startswith("in training, gradient of input 0: ")


def test_a_gradient_that_is_missing_is_named() -> None:
    backward = verified("LostGradient").rows[0].backward
    assert backward is not None and backward.reason is not None
    assert backward.reason.startswith("gradient of weight: 64 of 64 values are out of tolerance")


def test_a_fault_in_training_alone_names_the_mode() -> None:
    row = verified("OnlyInTraining").rows[0]
    assert row.reason is not None and row.reason.startswith("in training, output: ")


def test_a_kernel_that_raises_fails_its_row_with_its_own_words() -> None:
    found = verified("Raises")
    assert found.rows[0].reason == "in inference, raised RuntimeError: out of resource: shared memory"
    assert found.rows[0].within is None
    assert found.model is not None and not found.model.passed
    assert found.model.reason is not None and found.model.reason.startswith("not run with its kernels: model.layers.0")


def test_a_kernel_that_writes_to_its_input_says_to_which() -> None:
    assert verified("WritesToInput", training=False).rows[0].reason == "the forward writes to its input 0"


def test_a_kernel_that_writes_to_a_weight_does_not_change_it() -> None:
    loaded = qwen3()
    weights = {name: value.clone() for name, value in loaded.model.state_dict().items()}
    with applied(loaded.model, fault("WritesToWeight", training=False)) as bindings:
        found = verify(bindings, loaded.inputs, POLICY)
    assert found.rows[0].reason == "writes to weight"
    for name, value in loaded.model.state_dict().items():
        assert torch.equal(value, weights[name]), name


def test_writing_to_the_gradient_is_a_hazard_and_no_failure() -> None:
    found = verified("WritesToGradient")
    assert found.passed
    assert found.rows[0].hazards == ("the backward writes to the gradient it is given",)


def test_a_backward_that_reuses_the_buffer_of_the_result_is_judged_by_what_it_returned() -> None:
    assert verified("ReusesResult").passed


def test_what_chance_changes_is_not_repeatable() -> None:
    found = verified("Unsteady")
    assert found.passed
    assert [row.repeatable for row in found.rows] == [False, False, False]
    assert all(row.repeatable and row.backward and row.backward.repeatable for row in verified("Faithful").rows)


def test_a_layer_that_draws_random_numbers_is_compared_under_the_same_ones() -> None:
    found = verified_alone("Dropping", DropNorm)
    assert found.passed
    assert found.rows[0].reference == "none, the original draws random numbers"
    assert found.rows[0].repeatable is False


def test_leaving_the_dropping_out_fails() -> None:
    found = verified_alone("Faithful", DropNorm)
    assert [row.passed for row in found.rows] == [False, False]
    assert all(row.reason is not None and row.reason.startswith("in training, ") for row in found.rows)


def test_the_reference_is_float64_all_the_way() -> None:
    """A norm computes in float32 by name: were that not widened, a float32 original would have no error."""
    row = verified("Faithful").rows[0]
    assert row.reference == "float64"
    assert row.original_error is not None and 1e-8 < row.original_error < 1e-6


def test_a_row_spans_the_modes_that_its_kernel_serves() -> None:
    assert {row.modes for row in verified("Faithful").rows} == {("inference", "training")}
    row = verified("Faithful", training=False).rows[0]
    assert row.modes == ("inference",)
    assert (row.backward, row.backward_reason) == (None, "training runs the original")


def test_two_kernels_of_one_row_are_two_rows() -> None:
    loaded = qwen3()
    kernels = "kernels.RMSNorm.cpu={inference:builtin:RMSNorm,training:%s}"
    where = fault("WeakGradient").partition("=")[2]
    with applied(loaded.model, kernels % where) as bindings:
        found = verify(bindings, loaded.inputs, POLICY)
    assert [(row.modes, row.passed) for row in found.rows[:2]] == [(("inference",), True), (("training",), False)]


@pytest.mark.parametrize(("mode", "modes"), [("inference", {("inference",)}), ("training", {("training",)})])
def test_a_fixed_mode_is_the_only_one_verified(mode: str, modes: set[tuple[str, ...]]) -> None:
    found = verified_alone("Faithful", mode=mode)
    assert found.passed
    assert {row.modes for row in found.rows} == modes
    assert found.model is not None and found.model.mode == mode


def test_frozen_weights_leave_no_backward_to_compare() -> None:
    model, inputs = stack()
    model.requires_grad_(False)
    with applied(model, matched("WeakGradient")) as bindings:
        found = verify(bindings, inputs, POLICY)
    assert found.rows[0].backward_reason == "nothing here needs a gradient"


def test_sites_that_were_not_reached_are_noted() -> None:
    assert verified_alone("Faithful").notes == ("spare: not reached by the run of the model, so not verified",)


def test_the_whole_model_is_compared_end_to_end() -> None:
    whole = verified("WeightOffset").model
    assert whole is not None and whole.max_rel is not None and whole.max_rel > 0.01
    same = verified("Faithful").model
    assert same is not None and (same.max_abs, same.identical, same.within, same.passed) == (0, 1, 1, True)


def test_nothing_swapped_is_nothing_to_verify() -> None:
    loaded = qwen3()
    with applied(loaded.model, "kernels=reference") as bindings:
        found = verify(bindings, loaded.inputs, POLICY)
    assert (found.rows, found.model, found.passed) == ((), None, True)


@pytest.mark.parametrize("name", ["Faithful", "WeightOffset", "Raises", "NotANumber", "WritesToInput", "WrongShape"])
def test_the_document_is_json_in_the_form_of_its_schema(name: str) -> None:
    data = verified(name).to_dict()
    validate(json.loads(json.dumps(data, allow_nan=False)), "verification")


def test_infinite_measures_are_text() -> None:
    row = verified("NotANumber", training=False).to_dict()["rows"][0]
    assert (row["max_abs"], row["passed"]) == ("nan", False)


def test_the_table_names_the_kernel_and_why_it_failed() -> None:
    text = str(verified("WeakGradient"))
    assert "model.layers.0.input_layernorm and 4 more" in text
    assert "model.layers.0.input_layernorm: in training, gradient of input 0: " in text


@pytest.mark.parametrize("training", [False, True])
@pytest.mark.parametrize("name", ["Faithful", "Raises", "WritesToInput", "WritesToWeight"])
def test_the_model_is_as_before(name: str, training: bool) -> None:
    model, inputs = stack()
    model.train(training)
    model.dropout.train(not training)
    model.first.weight.grad = torch.ones(16)
    weights = copy.deepcopy(model.state_dict())
    with applied(model, matched(name)) as bindings:
        before, random, given = state(model), torch.get_rng_state(), inputs["x"].clone()
        verify(bindings, inputs, POLICY)
        assert_as_before(model, before)
        assert torch.equal(torch.get_rng_state(), random)
        assert torch.equal(inputs["x"], given)
    for key, value in model.state_dict().items():
        assert torch.equal(value, weights[key]), key


def test_it_works_where_gradients_are_switched_off() -> None:
    model, inputs = stack()
    with applied(model, matched("WeakGradient")) as bindings, torch.no_grad():
        assert not verify(bindings, inputs, POLICY).passed


def test_a_module_that_cannot_be_copied_is_verified_without_a_reference() -> None:
    model, inputs = stack()

    def refuse(_: Any, __: Any) -> Any:
        raise TypeError("not to be copied")

    class Alone(Norm):
        __deepcopy__ = refuse

    model.first = Alone(16)
    with applied(model, matched("Faithful", Alone)) as bindings:
        found = verify(bindings, inputs, POLICY)
    assert found.passed
    assert "not to be copied" in found.rows[0].reference


def test_an_original_that_takes_float32_only_is_verified_without_a_reference() -> None:
    class Narrow(Norm):
        def forward(self, hidden_states: torch.Tensor) -> torch.Tensor:
            if hidden_states.dtype != torch.float32:
                raise TypeError("float32 only")
            return super().forward(hidden_states)

    found = verified_alone("Faithful", Narrow)
    assert found.passed
    assert found.rows[0].reference == "none, the original does not run in float64: raised TypeError: float32 only"
    assert not verified_alone("WeightOffset", Narrow).passed


def test_an_original_that_cannot_run_alone_fails_its_row_and_says_so() -> None:
    class Counting(Norm):
        calls = 0

        def forward(self, hidden_states: torch.Tensor) -> torch.Tensor:
            self.calls += 1
            if self.calls > 1:
                raise RuntimeError("once only")
            return super().forward(hidden_states)

    model = nn.Sequential(Counting(16))
    with applied(model, matched("Faithful", Counting)) as bindings:
        found = verify(bindings, {"input": torch.randn(2, 16)}, POLICY)
    assert not found.passed
    assert found.rows[0].reason is not None and "the original cannot be run alone: raised" in found.rows[0].reason
