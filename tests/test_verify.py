from __future__ import annotations

import copy
import importlib
import inspect
import json
import os
import signal
import sys
import threading
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from kerncfg.compiler.schema import validate
from kerncfg.evidence.bench import bench
from kerncfg.evidence.verify import Verification, verify
from tests.snapshot import snapshot
from tests.subjects import (
    FAULTS,
    MAYBE,
    POLICY,
    DropNorm,
    Norm,
    applied,
    calling,
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
    mlp = "kernels.SwiGLUMLP={match: {class: '*MLP'}, cpu: builtin:SwiGLUMLP}"
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
    kernels = "kernels.RMSNorm.cpu={inference: builtin:RMSNorm, training: %s}"
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
    told = text.splitlines()[6:]
    assert told[0].startswith("model.layers.0.input_layernorm")
    assert ": in training, gradient of input 0: " in told[0]


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
    calls = []

    class Counting(Norm):
        def forward(self, hidden_states: torch.Tensor) -> torch.Tensor:
            calls.append(1)
            if len(calls) > 1:
                raise RuntimeError("once only")
            return super().forward(hidden_states)

    model = nn.Sequential(Counting(16))
    with applied(model, matched("Faithful", Counting)) as bindings:
        found = verify(bindings, {"input": torch.randn(2, 16)}, POLICY)
    assert not found.passed
    assert found.rows[0].reason is not None and "the original cannot be run alone: raised" in found.rows[0].reason


@dataclass
class Result:
    value: torch.Tensor
    count: int = 1


class Bag:
    def __init__(self, value: Any) -> None:
        self.value = value


WRAPS: dict[str, Callable[[torch.Tensor, int], Any]] = {
    "dataclass": lambda value, factor: Result(value * factor),
    "count": lambda value, factor: Result(value, factor),
    "object": lambda value, factor: Bag([value * factor]),
    "number": lambda value, factor: (value, float(factor)),
    "keys": lambda value, factor: {"ab"[factor - 1]: value},
    "nesting": lambda value, factor: (value, [value]) if factor == 1 else ([value], value),
    "sparse": lambda value, factor: (value * factor).to_sparse(),
}


class Wrapped(nn.Module):
    """Scales, and returns the result in something."""

    def __init__(self, kind: str) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.rand(16) + 0.5)
        self.kind = kind

    def wrap(self, value: torch.Tensor, factor: int) -> Any:
        return WRAPS[self.kind](value, factor)

    def forward(self, x: torch.Tensor) -> Any:
        return self.wrap(x * self.weight, 1)


def of(model: nn.Module, override: str, **inputs: Any) -> Verification:
    with applied(model, override) as bindings:
        found = verify(bindings, inputs, POLICY)
    validate(json.loads(json.dumps(found.to_dict(), allow_nan=False)), "verification")
    return found


def iterate(items: Iterable[int]) -> Iterator[int]:
    yield from items


class Around(nn.Module):
    """A model of one layer."""

    def __init__(self, layer: nn.Module) -> None:
        super().__init__()
        self.layer = layer

    def forward(self, x: Any) -> Any:
        return self.layer(x)


@pytest.mark.parametrize("kind", WRAPS)
def test_results_are_compared_whatever_they_are_in(kind: str) -> None:
    good, bad = (
        of(Around(Wrapped(kind)), matched(name, Wrapped), x=torch.rand(4, 16)) for name in ("Wraps", "WrapsWrong")
    )
    assert good.passed and good.rows[0].reason is None
    assert not bad.rows[0].passed and bad.rows[0].reason
    assert bad.model is not None and not bad.model.passed


def test_gradients_flow_through_dataclasses() -> None:
    row = of(Around(Wrapped("dataclass")), matched("Wraps", Wrapped), x=torch.rand(4, 16)).rows[0]
    assert row.backward is not None and row.backward.passed


def test_nothing_compared_is_nothing_passed() -> None:
    class Secret(nn.Module):
        def forward(self, x: Any) -> Any:
            return object()

    found = of(Around(Secret()), matched("Same", Secret), x=object())
    assert not found.passed
    assert found.rows[0].reason == (
        "in inference, nothing could be compared: output is an object, which cannot be looked into"
    )


def test_a_layer_without_any_tensor_is_compared() -> None:
    class Plain(nn.Module):
        def forward(self, x: Any) -> Any:
            return x

    row = of(Around(Plain()), matched("Same", Plain), x=3).rows[0]
    assert (row.passed, row.device, row.dtype, row.shape) == (True, "cpu", "none", "none")


class Adding(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x.add_(1)


class Before(Around):
    """Gives the layer a tensor of the model's own."""

    def forward(self, x: Any) -> Any:
        return self.layer(x * 1)


def test_a_layer_that_writes_to_its_input_passes_with_a_kernel_that_does_so_too() -> None:
    x = torch.rand(4, 16)
    assert of(Before(Adding()), matched("AddsInPlace", Adding), x=x).passed
    found = of(Before(Adding()), matched("AddsBeside", Adding), x=x)
    assert found.rows[0].reason == "in inference, input 0 after the call: 64 of 64 values are out of tolerance"


class Cache:
    def __init__(self) -> None:
        self.items: list[torch.Tensor] = []


class Cached(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.rand(16) + 0.5)

    def forward(self, x: torch.Tensor, cache: Cache) -> torch.Tensor:
        cache.items.append(x * self.weight)
        return torch.stack(cache.items).sum(0)


class Caching(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = Cached(), Cached()

    def forward(self, x: torch.Tensor, cache: Cache) -> torch.Tensor:
        result: torch.Tensor = self.first(x, cache) + self.second(x, cache)
        return result


def test_caches_are_copied_for_every_run_and_what_is_done_to_them_is_compared() -> None:
    cache = Cache()
    good, bad = (
        of(Caching(), matched(name, Cached), x=torch.rand(4, 16), cache=cache) for name in ("Remembers", "Forgets")
    )
    assert (good.passed, good.rows[0].reference, good.rows[0].sites) == (True, "float64", 2)
    assert bad.rows[0].reason == (
        "in inference, input 1.items after the call is a list of 0, the original's a list of 1"
    )
    assert cache.items == []


def test_an_input_that_cannot_be_copied_is_named_before_a_kernel_is_blamed() -> None:
    class Plain(nn.Module):
        def forward(self, x: Any) -> Any:
            return list(x)

    class Drained(Around):
        def forward(self, x: Any) -> Any:
            return self.layer(iterate(range(x)))

    found = of(Drained(Plain()), matched("Same", Plain), x=3)
    row = found.rows[0]
    assert row.reason is not None and row.reason.startswith(
        "in inference, cannot be compared, since input 0 (a generator)"
    )
    assert row.reference.startswith("none, input 0 (a generator) cannot be copied")


def test_inputs_of_the_model_that_cannot_be_copied_are_noted() -> None:
    found = of(Around(Wrapped("dataclass")), matched("Wraps", Wrapped), x=torch.rand(4, 16))
    assert found.notes == ()

    class Ignoring(Around):
        def forward(self, x: Any, rest: Any = None) -> Any:
            return self.layer(x)

    model = Ignoring(Wrapped("dataclass"))
    found = of(model, matched("Wraps", Wrapped), x=torch.rand(4, 16), rest=iterate(()))
    assert found.notes == ("inputs.rest: a generator cannot be copied, so every run got it as the one before left it",)


TAMPERING: dict[str, tuple[Callable[[Any], Any], str]] = {
    "buffer": (lambda layer: layer.register_buffer("scale", torch.ones(1)), "changes the module: adds buffer scale"),
    "attribute": (lambda layer: setattr(layer, "seen", 1), "changes the module: adds attribute seen"),
    "hook": (lambda layer: layer.register_forward_hook(print), "changes the module: changes _forward_hooks"),
    "gradient": (lambda layer: setattr(layer.weight, "grad", torch.ones(16)), "writes to the gradient of weight"),
    "replaced": (
        lambda layer: setattr(layer, "weight", nn.Parameter(torch.ones(16))),
        "changes the module: sets parameter weight",
    ),
    "dtype": (
        lambda _: torch.set_default_dtype(torch.float64),
        "changes the default dtype for the whole process",
    ),
    "signal": (
        lambda _: signal.signal(signal.SIGINT, signal.SIG_IGN),
        "changes the handlers of signals for the whole process",
    ),
    "output": (lambda _: setattr(sys, "stdout", None), "changes sys.stdout for the whole process"),
    "end": (lambda _: os._exit(0), "raised Ended: os._exit(0) would have ended the process without a result"),
}


@pytest.mark.parametrize("kind", TAMPERING)
def test_a_kernel_that_changes_the_module_or_the_process_fails_and_leaves_no_trace(kind: str) -> None:
    act, reason = TAMPERING[kind]

    class Open(Norm):
        def tamper(self) -> None:
            act(self)

    model = Around(Open(16))
    before, weight = list(vars(model.layer)), model.layer.weight
    with applied(model, matched("Tampers", Open), mode="inference") as bindings:
        found = verify(bindings, {"x": torch.rand(4, 16)}, POLICY)
        entries = list(vars(model.layer))
    assert found.rows[0].reason == reason
    assert not found.passed
    assert [name for name in entries if name not in ("_kerncfg", "forward", "train", "__getstate__")] == before
    assert model.layer.weight is weight and weight.grad is None
    assert signal.getsignal(signal.SIGINT) is not signal.SIG_IGN and sys.stdout is not None
    assert (torch.get_default_dtype(), list(model.state_dict())) == (torch.float32, ["layer.weight"])
    assert not model.layer._forward_hooks


def test_drawing_random_numbers_is_a_hazard() -> None:
    class Open(Norm):
        def tamper(self) -> None:
            torch.rand(1)

    row = of(Around(Open(16)), matched("Tampers", Open), x=torch.rand(4, 16)).rows[0]
    assert (row.passed, row.hazards) == (True, ("draws from the global random state",))


def test_a_thread_that_goes_on_is_a_hazard() -> None:
    end = threading.Event()

    class Open(Norm):
        def tamper(self) -> None:
            threading.Thread(target=end.wait, name="watch").start()

    try:
        row = of(Around(Open(16)), matched("Tampers", Open), x=torch.rand(4, 16)).rows[0]
    finally:
        end.set()
    assert (row.passed, row.hazards) == (True, ("leaves the thread watch running",))


def test_a_kernel_that_leaves_out_what_the_original_tracks_in_training_fails() -> None:
    class Plain(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.register_buffer("count", torch.zeros(()))
            self.calls = 0

        count: torch.Tensor

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            self.calls += 1
            if self.training:
                self.count += 1
            return x

    row = of(Before(Plain()), matched("Same", Plain), x=torch.rand(4, 16)).rows[0]
    assert row.reason == "in training, leaves the module's count as it was, which the original writes to"
    assert row.hazards == ("leaves the module's calls as it was, which the original sets",)


@pytest.mark.parametrize(
    ("name", "reason"),
    [
        ("Exits", "in inference, raised SystemExit: 3"),
        ("GivesUp", "in inference, raised _Speechless: its text cannot be had: ValueError"),
        ("Sparse", "in inference, output: layout is torch.sparse_coo, the original's torch.strided"),
        ("Meta", "in inference, output: device is meta, the original's cpu"),
        ("ReusesBuffer", "in inference, returns the same memory from two calls, so that the second changes the result"),
    ],
)
def test_odd_kernels_fail_their_rows_with_a_reason(name: str, reason: str) -> None:
    row = verified_alone(name).rows[0]
    assert row.reason is not None and row.reason.startswith(reason)


def test_ctrl_c_is_the_persons_and_no_fault_of_a_kernel() -> None:
    model, inputs = stack(Norm)
    with applied(model, matched("Interrupted", Norm)) as bindings:
        during = snapshot(model)
        with pytest.raises(KeyboardInterrupt):
            verify(bindings, inputs, POLICY)
        with pytest.raises(KeyboardInterrupt):
            bench(bindings, inputs, seconds=0.001)
        assert snapshot(model) == during


def test_a_long_error_is_shortened_and_told_once() -> None:
    found = verified_alone("LongWinded")
    assert max(len(row.reason or "") for row in found.rows) < 350
    assert str(found).count("raised RuntimeError") == 1


def test_sparse_gradients_are_compared() -> None:
    class Table(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.weight = nn.Parameter(torch.rand(5, 16))

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return nn.functional.embedding(x, self.weight, sparse=True)

    row = of(Around(Table()), matched("LooksUp", Table), x=torch.tensor([1, 2])).rows[0]
    assert row.passed and row.backward is not None and row.backward.passed


def test_a_layer_that_differentiates_in_its_forward_is_verified() -> None:
    class Force(Norm):
        def forward(self, hidden_states: torch.Tensor) -> torch.Tensor:
            if not torch.is_grad_enabled():
                raise RuntimeError("needs autograd")
            return super().forward(hidden_states)

    assert of(Around(Force(16)), matched("Faithful", Force), x=torch.rand(4, 16)).rows[0].passed


def test_rows_of_one_site_are_told_apart_by_shape() -> None:
    class Both(Around):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            result: torch.Tensor = self.layer(x).sum() + self.layer(x[0]).sum()
            return result

    found = of(Both(Norm(16)), matched("Faithful"), x=torch.rand(4, 16))
    assert [(row.path, row.shape) for row in found.rows] == [("layer", "4x16"), ("layer", "16")]
    assert "4x16" in str(found)


# The names that a copy of a function needs from where it stood.
COPY = """
from transformers.models.qwen3 import modeling_qwen3
globals().update({name: value for name, value in vars(modeling_qwen3).items() if not name.startswith("__")})


class Copied(nn.Module):
"""


def test_the_attention_of_transformers_is_its_own_kernel_on_a_model_with_a_cache(tmp_path: Path) -> None:
    modeling = importlib.import_module("transformers.models.qwen3.modeling_qwen3")
    folder = tmp_path / "copied"
    folder.mkdir()
    source = "from __future__ import annotations\n" + COPY + inspect.getsource(modeling.Qwen3Attention.forward)
    (folder / "__init__.py").write_text(source, "utf-8")
    loaded = qwen3()
    override = f"kernels.Attention={{match: {{class: Qwen3Attention}}, cpu: {folder}:Copied}}"
    found = of(loaded.model, override, **loaded.inputs)
    assert [(row.reason, row.reference, row.sites) for row in found.rows] == [(None, "float64", 2)]
    assert found.passed


class Copying(nn.Module):
    """A layer that returns its input's values in memory of their own."""

    def forward(self, hidden_states: torch.Tensor) -> torch.Tensor:
        return hidden_states.clone()


def test_a_result_that_shares_memory_with_an_input_is_a_hazard() -> None:
    model = Around(Copying())
    with applied(model, matched("SharesInput", Copying)) as bindings:
        found = verify(bindings, {"x": torch.rand(4, 16)}, POLICY)
    assert found.rows[0].hazards == ("output shares memory with input 0",)
    assert found.passed


def test_what_the_original_shares_too_is_none() -> None:
    class Passing(Copying):
        def forward(self, hidden_states: torch.Tensor) -> torch.Tensor:
            return hidden_states.view_as(hidden_states)

    with applied(Around(Passing()), matched("SharesInput", Passing)) as bindings:
        assert verify(bindings, {"x": torch.rand(4, 16)}, POLICY).rows[0].hazards == ()


def test_a_result_with_other_strides_is_a_hazard() -> None:
    row = verified("Transposed").rows[0]
    assert row.passed
    assert row.hazards == ("output has the strides (64, 128, 1), the original's (512, 64, 1)",)


def test_setting_the_default_device_fails_and_is_put_back() -> None:
    found = verified("MovesHome")
    assert found.rows[0].reason == "in inference, changes the default device for the whole process"
    assert torch.get_default_device() == torch.device("cpu")


@pytest.mark.parametrize("name", ["Faithful", "Reordered", "Fused"])
def test_a_right_kernel_has_no_hazards(name: str) -> None:
    assert {row.hazards for row in verified(name).rows} == {()}


TWO = (
    f"kernels.Wrong={{match: {{path: model.layers.*.input_layernorm}}, cpu: {FAULTS}:WeightOffset}}",
    f"kernels.Right={{match: {{path: model.layers.*.post_attention_layernorm}}, cpu: {FAULTS}:Faithful}}",
)


def test_the_kernel_that_moves_the_output_is_named_by_running_each_alone() -> None:
    loaded = qwen3()
    with applied(loaded.model, "inherited=none", *TWO) as bindings:
        whole = verify(bindings, loaded.inputs, POLICY).model
    assert whole is not None and whole.reason is not None
    assert [(one.name, one.passed) for one in whole.alone] == [("Wrong", False), ("Right", True)]
    wrong, right = whole.alone
    assert (right.max_abs, right.identical) == (0, 1)
    assert (wrong.max_abs, wrong.within) == (whole.max_abs, whole.within)
    assert whole.reason.endswith(f"; it is Wrong ({FAULTS}:WeightOffset) alone")


def test_one_kernel_is_all_there_is_alone() -> None:
    whole = verified("WeightOffset").model
    assert whole is not None and len(whole.alone) == 1
    assert (whole.alone[0].max_abs, whole.alone[0].passed) == (whole.max_abs, False)


def test_the_table_says_what_each_kernel_does_alone() -> None:
    loaded = qwen3()
    with applied(loaded.model, "inherited=none", *TWO) as bindings:
        text = str(verify(bindings, loaded.inputs, POLICY))
    assert [line.split()[:2] for line in text.splitlines() if " alone " in line][:2] == [
        ["Wrong", "alone"],
        ["Right", "alone"],
    ]


def test_a_function_that_is_replaced_is_verified_where_it_is_called() -> None:
    loaded = qwen3()
    rows = ("inherited=none", "kernels.rotary_pos_emb.cpu=builtin:RotaryPosEmb", "kernels.RMSNorm.cpu=builtin:RMSNorm")
    with applied(loaded.model, *rows) as bindings:
        found = verify(bindings, loaded.inputs, POLICY)
    row = next(row for row in found.rows if row.name == "rotary_pos_emb")
    assert (row.path, row.sites, row.modes) == ("model.layers.0.self_attn", 2, ("inference", "training"))
    assert row.backward is not None and row.backward.passed
    assert found.passed
    assert found.model is not None and {one.name for one in found.model.alone} == {"rotary_pos_emb", "RMSNorm"}


def test_a_wrong_function_is_blamed_and_its_neighbours_are_not() -> None:
    loaded = qwen3()
    rows = ("kernels.rotary_pos_emb.cpu=python:tests.fakes_functions:triple_q", "kernels.RMSNorm.cpu=builtin:RMSNorm")
    with applied(loaded.model, "inherited=none", *rows) as bindings:
        found = verify(bindings, loaded.inputs, POLICY)
    assert {row.name: row.passed for row in found.rows} == {"rotary_pos_emb": False, "RMSNorm": True}
    assert found.model is not None and [one.name for one in found.model.alone if not one.passed] == ["rotary_pos_emb"]


def test_a_function_that_nothing_came_by_is_not_verified_and_noted() -> None:
    with applied(calling(), MAYBE.replace("doubles", "triples")) as bindings:
        odd = verify(bindings, {"x": torch.ones(3, 4)}, POLICY)
        assert (odd.rows, odd.failures) == ((), {})
        assert odd.notes == ("caller: Maybe was not called by the run of the model, so not verified",)
        assert [row.passed for row in verify(bindings, {"x": torch.ones(4, 4)}, POLICY).rows] == [False]
    with applied(calling(), MAYBE) as bindings:
        assert verify(bindings, {"x": torch.ones(4, 4)}, POLICY).passed
