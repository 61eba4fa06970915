from __future__ import annotations

import gc
import json
from functools import cache
from typing import Any

import pytest
import torch
from torch import nn

import kerncfg
from kerncfg.compiler.schema import validate
from kerncfg.evidence.bench import bench
from kerncfg.evidence.rows import Measurement, TimedRow, Timing
from tests.subjects import FAULTS, MAYBE, applied, calling, fault, matched, qwen3, stack
from tests.test_capture import assert_as_before, state
from tests.test_verify import Around, Cache, Cached, Caching

QUICK = 0.005  # seconds for each comparison: enough for three pairs, and nothing here asks what is faster


@cache
def measured(name: str, training: bool = True, mode: str | None = None) -> Measurement:
    loaded = qwen3()
    with applied(loaded.model, fault(name, training=training), mode=mode) as bindings:
        return bench(bindings, loaded.inputs, seconds=QUICK)


def test_every_kernel_is_measured_in_every_mode_that_runs_it() -> None:
    found = measured("Faithful")
    assert [row.mode for row in found.rows] == ["inference"] * 3 + ["training"] * 3
    assert [row.sites for row in found.rows[:3]] == [5, 2, 2]
    assert found.model is not None and found.model.training is not None
    assert found.passed


def test_a_mode_that_runs_the_original_is_not_measured() -> None:
    found = measured("Faithful", training=False)
    assert {row.mode for row in found.rows} == {"inference"}
    assert found.model is not None and (found.model.mode, found.model.training) == ("inference", None)


def test_a_fixed_mode_is_the_only_one_measured() -> None:
    found = measured("Faithful", mode="training")
    assert {row.mode for row in found.rows} == {"training"}
    assert found.model is not None and (found.model.mode, found.model.training) == ("training", None)


def test_the_speedup_is_that_of_the_medians() -> None:
    for row in measured("Reordered", training=False).rows:
        assert row.original_s is not None and row.kernel_s is not None and row.speedup is not None
        assert row.speedup == pytest.approx(row.original_s / row.kernel_s)
        assert row.runs >= 3 and row.spread is not None and row.spread >= 0


def test_a_kernel_that_raises_fails_its_row_and_the_model_is_spared() -> None:
    found = measured("Raises")
    assert {row.reason for row in found.rows} == {"raised RuntimeError: out of resource: shared memory"}
    assert found.rows[0].verdict is None
    assert not found.passed
    assert found.model is not None and found.model.reason is not None
    assert found.model.reason.startswith("not run with its kernels: model.layers.0.input_layernorm: ")


def test_a_kernel_that_writes_to_a_weight_does_not_change_it() -> None:
    loaded = qwen3()
    weights = {name: value.clone() for name, value in loaded.model.state_dict().items()}
    with applied(loaded.model, fault("WritesToWeight", training=False)) as bindings:
        found = bench(bindings, loaded.inputs, seconds=QUICK)
    assert {row.reason for row in found.rows} == {"writes to weight"}
    for name, value in loaded.model.state_dict().items():
        assert torch.equal(value, weights[name]), name


@pytest.mark.parametrize("name", ["WritesToInput", "WritesToGradient"])
def test_every_reading_starts_from_the_same_inputs(name: str) -> None:
    loaded = qwen3()
    given = loaded.inputs["input_ids"].clone()
    with applied(loaded.model, fault(name, training=name == "WritesToGradient")) as bindings:
        assert bench(bindings, loaded.inputs, seconds=QUICK).passed
    assert torch.equal(loaded.inputs["input_ids"], given)


@pytest.mark.parametrize("training", [False, True])
@pytest.mark.parametrize("name", ["Faithful", "Raises", "WritesToGradient"])
def test_the_model_is_as_before(name: str, training: bool) -> None:
    model, inputs = stack()
    model.train(training)
    model.dropout.train(not training)
    model.first.weight.grad = torch.ones(16)
    with applied(model, matched(name)) as bindings:
        before, random = state(model), torch.get_rng_state()
        bench(bindings, inputs, seconds=QUICK)
        assert_as_before(model, before)
        assert torch.equal(torch.get_rng_state(), random)
    assert gc.isenabled()


def test_frozen_weights_are_measured_forward_only() -> None:
    model, inputs = stack()
    model.requires_grad_(False)
    with applied(model, matched("Faithful")) as bindings:
        assert bench(bindings, inputs, seconds=QUICK).passed


def test_sites_that_were_not_reached_are_noted() -> None:
    model, inputs = stack()
    with applied(model, matched("Faithful")) as bindings:
        found = bench(bindings, inputs, seconds=QUICK)
    assert found.notes == ("spare: not reached by the run of the model, so not measured",)


def test_nothing_swapped_is_nothing_to_measure() -> None:
    loaded = qwen3()
    with applied(loaded.model, "kernels=reference") as bindings:
        found = bench(bindings, loaded.inputs)
    assert (found.rows, found.model, found.passed) == ((), None, True)


@pytest.mark.parametrize("name", ["Faithful", "Raises"])
def test_the_document_is_json_in_the_form_of_its_schema(name: str) -> None:
    data = measured(name).to_dict()
    validate(json.loads(json.dumps(data, allow_nan=False)), "measurement")


def test_the_table_shows_seconds_in_a_unit_that_fits_and_why_a_row_has_none() -> None:
    common: dict[str, Any] = {"name": "RMSNorm", "sites": 1, "kernel": "builtin:RMSNorm", "mode": "inference"}
    place = {**common, "device": "cpu", "dtype": "float32", "shape": "2x8"}
    good = Timing(original_s=3e-5, kernel_s=2e-5, speedup=1.5, spread=0.1, verdict="faster", runs=20)
    fields: dict[str, Any] = {name: getattr(good, name) for name in Timing.__slots__}
    rows = (TimedRow(path="a", **fields, **place), TimedRow(path="b", reason="raised OSError", **place))
    text = str(Measurement(rows=rows, model=None))
    assert "30 us" in text and "1.50" in text and "faster" in text
    assert text.endswith("b: raised OSError")


def test_a_cache_that_grows_is_a_new_one_for_each_call() -> None:
    cache = Cache()
    with applied(Caching(), matched("Remembers", Cached)) as bindings:
        found = bench(bindings, {"x": torch.rand(4, 16), "cache": cache}, seconds=QUICK)
    assert found.passed
    assert [row.shape for row in found.rows] == ["4x16", "4x16"]
    assert cache.items == []


def test_a_kernel_that_ends_the_process_does_not() -> None:
    assert {row.reason for row in measured("Exits").rows} == {"raised SystemExit: 3"}
    assert all(str(row.reason).startswith("raised _Speechless") for row in measured("GivesUp").rows)


def test_a_model_without_any_tensor_is_measured() -> None:
    class Plain(nn.Module):
        def forward(self, x: Any) -> Any:
            return x

    with applied(Around(Plain()), matched("Same", Plain)) as bindings:
        assert bench(bindings, {"x": 3}, seconds=QUICK).passed


def test_a_function_that_is_replaced_is_measured_in_the_forward_that_calls_it() -> None:
    loaded = qwen3()
    with applied(loaded.model, "inherited=none", "kernels.rotary_pos_emb.cpu=builtin:RotaryPosEmb") as bindings:
        found = bench(bindings, loaded.inputs, seconds=QUICK)
    assert [(row.name, row.path, row.sites, row.mode) for row in found.rows] == [
        ("rotary_pos_emb", "model.layers.0.self_attn", 2, mode) for mode in ("inference", "training")
    ]


def test_a_function_that_nothing_came_by_is_noted() -> None:
    model = calling()
    with applied(model, MAYBE) as bindings:
        found = bench(bindings, {"x": torch.ones(3, 4)}, seconds=QUICK)
        assert (found.rows, len(found.notes)) == ((), 1)
        assert found.notes[0] == "caller: Maybe was not called by the run of the model, so not measured"
        assert bench(bindings, {"x": torch.ones(4, 4)}, seconds=QUICK).rows != ()


def test_a_language_model_is_measured_by_the_tokens_it_reads_and_writes() -> None:
    found = measured("Faithful", training=False).generation
    assert found is not None
    assert (found.batch, found.prompt, found.tokens) == (2, 8, 16)
    for spoken, tokens in ((found.prefill, 16), (found.decode, 32)):
        assert spoken.original_s and spoken.kernel_s
        assert spoken.original_tokens_s == pytest.approx(tokens / spoken.original_s)
        assert spoken.kernel_tokens_s == pytest.approx(tokens / spoken.kernel_s)
    text = str(measured("Faithful", training=False))
    assert "prefill of 2 x 8 tokens: " in text and "decode after 2 x 8 tokens: " in text


def test_what_is_written_ends_where_the_model_does() -> None:
    loaded = qwen3(max_position_embeddings=11)
    with applied(loaded.model, fault("Faithful", training=False)) as bindings:
        found = bench(bindings, loaded.inputs, seconds=QUICK).generation
    assert found is not None and found.tokens == 3
    loaded = qwen3(max_position_embeddings=8)
    with applied(loaded.model, fault("Faithful", training=False)) as bindings:
        assert bench(bindings, loaded.inputs, seconds=QUICK).generation is None


def test_a_model_that_does_not_generate_and_one_that_fails_at_it_are_measured_without() -> None:
    model, inputs = stack()
    with applied(model, matched("Faithful")) as bindings:
        assert bench(bindings, inputs, seconds=QUICK).generation is None
    loaded = qwen3()

    def forgetting(_: nn.Module, __: Any, given: Any, result: Any) -> Any:
        if given.get("use_cache"):
            result.cache = None
        return result

    with applied(loaded.model, fault("Faithful", training=False)) as bindings:
        hook = loaded.model.register_forward_hook(forgetting, with_kwargs=True)
        found = bench(bindings, loaded.inputs, seconds=QUICK)
        hook.remove()
    assert found.generation is None and found.passed
    assert found.notes == ("tokens per second are not measured: raised ValueError: the model returns no cache",)


def test_training_alone_says_nothing_of_tokens() -> None:
    assert measured("Faithful", mode="training").generation is None


@pytest.mark.gpu
def test_peak_memory_is_what_one_call_holds_besides() -> None:
    model, _ = stack()
    model.to("cuda")
    inputs = {"x": torch.randn(4096, 16, device="cuda")}
    row = f"kernels.Mine={{match: {{class: Norm}}, cuda: {FAULTS}:Faithful}}"
    with kerncfg.kernelize(model, "inherited=none", row) as bindings:
        found = bench(bindings, inputs, seconds=QUICK)
    for row_found in found.rows:
        assert row_found.original_bytes is not None and row_found.original_bytes >= 4096 * 16 * 4
        assert row_found.kernel_bytes is not None and row_found.kernel_bytes >= 4096 * 16 * 4
    assert found.model is not None and found.model.original_bytes
