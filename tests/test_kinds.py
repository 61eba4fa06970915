"""Layers, functions, attention and fusions by one plan on one model, and the way back."""

from __future__ import annotations

import copy
import gc
import inspect
import io
import pickle
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from types import FrameType
from typing import Any

import pytest
import torch

import kerncfg
from kerncfg.applier.apply import apply, revert
from kerncfg.applier.decide import Decisions
from kerncfg.applier.settle import Settled
from kerncfg.documents.target import Mode
from kerncfg.errors import ApplyError, ConflictError, ContractError, KerncfgWarning
from kerncfg.evidence.verify import verify
from tests import attending, kinds
from tests.attending import TOLERANCE
from tests.attention_kernels import seen
from tests.kinds import ATTENTION, FUSED, NORM, ROTARY, SITES, gradients, logits, plan, qwen, state
from tests.subjects import POLICY


@pytest.fixture(scope="module")
def four() -> kerncfg.Plan:
    return plan()


def only(*rows: str) -> kerncfg.Plan:
    return kerncfg.plan("inherited=none", *rows)


@pytest.fixture(autouse=True)
def collected() -> None:
    """Let no model of an earlier test hold a name in the registries."""
    gc.collect()


# All four at once


@pytest.mark.parametrize("way", ["file", "override", "data"])
def test_one_document_swaps_four_kinds_and_all_is_back_after_revert(way: str, tmp_path: Path) -> None:
    model = qwen()
    before, ran, own = state(model), dict(seen), logits(model)
    bindings = apply(kinds.plan_of(way, tmp_path), model)
    assert kinds.kinds(bindings.report) == SITES
    assert bindings.report.counts == {"swapped": sum(SITES.values()), "kept": 0, "off": 0}
    torch.testing.assert_close(logits(model), own, **TOLERANCE)
    assert seen["interface"] == ran["interface"] + kinds.LAYERS
    bindings.revert()
    assert state(model) == before
    assert torch.equal(logits(model), own)
    assert {row.reason for row in bindings.report.rows} == {"reverted"}


def test_one_document_means_one_plan_however_it_is_said(tmp_path: Path) -> None:
    assert len({kinds.plan_of(way, tmp_path).digest for way in ("file", "override", "data")}) == 1


@pytest.mark.filterwarnings("ignore:.*should not be instantiated:DeprecationWarning")  # PyTorch's own, in dynamo
@pytest.mark.parametrize("mode", list(Mode))
def test_outputs_and_gradients_are_those_of_the_original_in_every_mode(mode: Mode, four: kerncfg.Plan) -> None:
    model, other = qwen(), qwen()
    if mode.compiled:
        logits(torch.compile(model, backend="eager"))  # what this leaves in modules and classes is not ours
    before = state(model)
    bindings = apply(four, model, mode=mode)
    assert kinds.kinds(bindings.report) == SITES
    model.train(mode.training)
    other.train(mode.training)
    run: Any = torch.compile(model, backend="aot_eager") if mode.compiled else model
    torch.testing.assert_close(logits(run), logits(other), **TOLERANCE)
    if mode.training:
        theirs = gradients(other)
        for name, gradient in gradients(run).items():
            own = theirs[name.removeprefix("_orig_mod.")]
            assert (gradient - own).abs().max() <= 1e-4 * own.abs().max(), name
    torch._dynamo.reset()
    model.zero_grad()
    model.eval()
    bindings.revert()
    assert state(model) == before


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # PyTorch's own
def test_inductor_gives_the_same(four: kerncfg.Plan) -> None:
    model, own = qwen(), logits(qwen())
    with apply(four, model, compile=True):
        torch.testing.assert_close(logits(torch.compile(model)), own, **TOLERANCE)
    torch._dynamo.reset()


def test_the_report_is_in_the_models_order_and_notes_what_members_were_left_to(four: kerncfg.Plan) -> None:
    report = apply(four, qwen()).report
    assert [row.path for row in report.rows] == [
        "model",
        *(
            f"model.layers.{number}.{path}"
            for number in range(kinds.LAYERS)
            for path in (
                "self_attn",
                "self_attn.q_norm",
                "self_attn.k_norm",
                "input_layernorm",
                "post_attention_layernorm",
            )
        ),
        "model.norm",
    ]
    assert report.notes == ("kernels.RMSNorm: left to fusions.norm_mlp, in 2 places",)
    assert report.idle == {}


def test_leaving_with_takes_all_four_back_also_on_an_error(four: kerncfg.Plan) -> None:
    model = qwen()
    before = state(model)
    with pytest.raises(ZeroDivisionError), apply(four, model):
        assert state(model) != before
        _ = 1 / 0
    assert state(model) == before


def test_revert_of_a_model_takes_all_four_back_and_handles_are_harmless(four: kerncfg.Plan) -> None:
    model = qwen()
    before = state(model)
    bindings = [apply(four, model), apply(only(NORM, ROTARY), model)]
    revert(model)
    assert state(model) == before
    revert(model)
    for one in bindings:
        one.revert()
    assert state(model) == before


# A failure at any edit


class Injected(BaseException):
    """Comes at one call of ours."""


def failing(monkeypatch: pytest.MonkeyPatch, at: int) -> list[Any]:
    """Let the edits of the next applies fail at one call within them, and return the code of all calls before it."""
    do, calls = Settled.do, []

    def trace(frame: FrameType, event: str, _: Any) -> None:
        code = frame.f_code
        # To be closed is a call of a generator, too, and nothing can be raised in it.
        if event == "call" and "/kerncfg/" in code.co_filename and not code.co_flags & inspect.CO_GENERATOR:
            calls.append(frame.f_code)
            if len(calls) == at + 1:
                raise Injected

    def traced(self: Settled, root: Any) -> None:
        calls.clear()
        former = sys.gettrace()
        sys.settrace(trace)
        try:
            do(self, root)
        finally:
            sys.settrace(former)

    monkeypatch.setattr(Settled, "do", traced)
    return calls


def places(monkeypatch: pytest.MonkeyPatch, said: kerncfg.Plan, model: Any, every: bool) -> list[int]:
    """Return at which calls to fail: all, or the first and the last of every function that is called."""
    apply(said, model).revert()  # what is called once for good is called here
    with monkeypatch.context() as patch:
        calls = failing(patch, -1)
        bindings = apply(said, model)
        found = list(calls)
        bindings.revert()
    if every:
        return list(range(1, len(found)))
    ends = {code: place for place, code in enumerate(found)}
    starts = {code: place for place, code in reversed(list(enumerate(found)))}
    return sorted({*ends.values(), *starts.values()} - {0})


@pytest.mark.parametrize(
    ("nested", "every"),
    [
        (False, False),
        (True, False),
        pytest.param(False, True, marks=pytest.mark.slow),
        pytest.param(True, True, marks=pytest.mark.slow),
    ],
)
def test_a_failure_at_any_call_leaves_the_model_and_all_registries_as_they_were(
    nested: bool, every: bool, four: kerncfg.Plan, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = qwen()
    if nested:
        apply(only(NORM, ROTARY, "attention.default=python:tests.attention_kernels:plain"), model)
    before, own = state(model), logits(model)
    found = places(monkeypatch, four, model, every)
    assert len(found) > 60
    for place in found:
        with monkeypatch.context() as patch:
            calls = failing(patch, place)
            with pytest.raises(Injected):
                apply(four, model)
        assert state(model) == before, f"failed in {calls[place].co_qualname}, call {place}"
    assert torch.equal(logits(model), own)
    bindings = apply(four, model)
    assert kinds.kinds(bindings.report) == SITES
    bindings.revert()
    assert state(model) == before


# Nested, copied, beside each other


@pytest.mark.parametrize(
    ("outer", "inner"),
    [
        ((NORM, ROTARY, FUSED, ATTENTION), (NORM,)),
        ((NORM,), (ATTENTION,)),
        ((ATTENTION,), (NORM,)),
        ((FUSED,), (ATTENTION,)),
        ((ATTENTION,), (FUSED,)),
        ((ROTARY,), (FUSED,)),
        ((NORM,), (NORM, ROTARY, FUSED, ATTENTION)),
        ((ATTENTION,), ("attention.default=python:tests.attention_kernels:plain",)),
    ],
)
def test_nested_applies_revert_in_reverse_order_only(outer: tuple[str, ...], inner: tuple[str, ...]) -> None:
    model = qwen()
    before, own = state(model), logits(model)
    first = apply(only(*outer), model)
    between = state(model)
    second = apply(only(*inner), model)
    torch.testing.assert_close(logits(model), own, **TOLERANCE)
    after = state(model)
    with pytest.raises(ConflictError, match="cannot be reverted while"):
        first.revert()
    assert state(model) == after
    second.revert()
    assert state(model) == between
    torch.testing.assert_close(logits(model), own, **TOLERANCE)
    first.revert()
    assert state(model) == before


@pytest.mark.parametrize("inner", [NORM, ROTARY, "attention.default=python:tests.attention_kernels:plain"])
def test_an_error_in_a_with_comes_out_as_itself_though_a_later_apply_is_on(inner: str, four: kerncfg.Plan) -> None:
    model = qwen()
    before, own = state(model), logits(model)
    with pytest.raises(ZeroDivisionError) as caught, apply(four, model):
        apply(only(inner), model)
        _ = 1 / 0
    assert "kerncfg.revert(model) takes that back too" in caught.value.__notes__[0]
    torch.testing.assert_close(logits(model), own, **TOLERANCE)
    revert(model)
    assert state(model) == before


def test_a_later_apply_leaves_fused_members_and_what_is_in_them_alone(four: kerncfg.Plan) -> None:
    model = qwen()
    own = logits(model)
    first = apply(four, model)
    rows = (NORM, "kernels.up={match: {path: '**.up_proj'}, kernel: 'python:tests.fakes:Ten'}")
    with apply(only(*rows), model) as second:
        report = second.report
        torch.testing.assert_close(logits(model), own, **TOLERANCE)
        kept = {row.path: row.reason for row in report.rows if row.status == "kept"}
        assert list(kept) == [f"model.layers.{number}.post_attention_layernorm" for number in range(kinds.LAYERS)]
        assert set(kept.values()) == {"part of a fusion that was applied before, whose kernel runs its members as one"}
        assert f"kernels.up: left to {first._settled.owner}, in 2 places" in report.notes
    first.revert()


@pytest.mark.parametrize("how", ["deepcopy", "pickle", "torch.save"])
def test_a_copy_runs_all_four_on_its_own_weights_and_reverts_alone(how: str, four: kerncfg.Plan) -> None:
    model = qwen()
    before, own = state(model), logits(model)
    bindings = apply(four, model)
    made = copied(model, how)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.mul_(1.5)
    ran = seen["interface"]
    torch.testing.assert_close(logits(made), own, **TOLERANCE)
    assert seen["interface"] == ran + kinds.LAYERS
    changed = logits(model)
    revert(made)
    assert not [key for part in made.modules() for key in vars(part) if key.startswith("_kerncfg")]
    assert torch.equal(logits(made), own)
    assert torch.equal(logits(model), changed)
    assert kinds.kinds(bindings.report) == SITES
    bindings.revert()
    after = state(model)
    assert {key: after[key] for key in after if key != "tensors"} == {
        key: before[key] for key in before if key != "tensors"
    }


def copied(model: Any, how: str) -> Any:
    if how == "deepcopy":
        return copy.deepcopy(model)
    if how == "pickle":
        return pickle.loads(pickle.dumps(model))
    file = io.BytesIO()
    torch.save(model, file)
    file.seek(0)
    return torch.load(file, weights_only=False)


def test_a_copy_made_before_the_first_is_reverted_keeps_its_attention_afterwards(four: kerncfg.Plan) -> None:
    model = qwen()
    own = logits(model)
    bindings = apply(four, model)
    made = copy.deepcopy(model)
    bindings.revert()
    ran = seen["interface"]
    torch.testing.assert_close(logits(made), own, **TOLERANCE)
    assert seen["interface"] == ran + kinds.LAYERS


def test_another_process_runs_all_four_of_a_saved_model(four: kerncfg.Plan, tmp_path: Path) -> None:
    model = qwen()
    apply(four, model)
    torch.save((model, logits(model)), tmp_path / "model.pt")
    script = f"""
import torch, kerncfg
from tests import attending, kinds
from tests.attention_kernels import seen
model, expected = torch.load({str(tmp_path / "model.pt")!r}, weights_only=False)
torch.testing.assert_close(kinds.logits(model), expected, rtol=1e-4, atol=1e-5)
assert seen["interface"] == kinds.LAYERS, seen
kerncfg.revert(model)
kinds.logits(model)
assert seen["interface"] == kinds.LAYERS, seen
"""
    found = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=False)
    assert found.returncode == 0, found.stderr


def test_two_models_run_two_plans(four: kerncfg.Plan) -> None:
    one, other, third = qwen(), qwen(), qwen()
    befores = [state(model) for model in (one, other, third)]
    own = logits(third)
    first = apply(four, one)
    second = apply(only(ROTARY, "attention.default=python:tests.attention_kernels:plain"), other)
    for model in (one, other, third):
        torch.testing.assert_close(logits(model), own, **TOLERANCE)
    assert state(third)["modules"] == befores[2]["modules"]
    assert kinds.kinds(first.report) == SITES
    assert kinds.kinds(second.report) == {"function": 2, "attention": 1}
    first.revert()
    torch.testing.assert_close(logits(other), own, **TOLERANCE)
    second.revert()
    assert [state(model) for model in (one, other, third)] == befores


def test_threads_apply_and_revert_at_once(four: kerncfg.Plan) -> None:
    plans = [four, only(NORM, ATTENTION), only(FUSED, "attention.default=python:tests.attention_kernels:plain")]
    models = [qwen() for _ in plans]
    befores, own, errors = [state(model) for model in models], logits(models[0]), []

    def work(said: kerncfg.Plan, model: Any) -> None:
        try:
            for _ in range(8):
                with apply(said, model):
                    torch.testing.assert_close(logits(model), own, **TOLERANCE)
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=work, args=pair) for pair in zip(plans, models, strict=True)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not errors
    assert [state(model) for model in models] == befores


# Training and checkpoints


def test_an_optimizer_made_before_trains_through_all_four(four: kerncfg.Plan) -> None:
    model, other = qwen().train(), qwen().train()
    optimizers = [torch.optim.SGD(one.parameters(), lr=0.01, momentum=0.9) for one in (model, other)]
    identity = {name: id(parameter) for name, parameter in model.named_parameters()}
    bindings = apply(four, model)
    for _ in range(3):
        for one, optimizer in zip((model, other), optimizers, strict=True):
            gradients(one)
            optimizer.step()
    assert {name: id(parameter) for name, parameter in model.named_parameters()} == identity
    bindings.revert()
    assert {name: id(parameter) for name, parameter in model.named_parameters()} == identity
    for (name, own), theirs in zip(model.named_parameters(), other.parameters(), strict=True):
        torch.testing.assert_close(own, theirs, rtol=1e-3, atol=1e-4, msg=name)
    torch.testing.assert_close(logits(model.eval()), logits(other.eval()), rtol=1e-2, atol=1e-3)


def test_checkpoints_go_both_ways_strictly_and_files_are_stock(four: kerncfg.Plan, tmp_path: Path) -> None:
    stock, model = qwen(), qwen()
    with torch.no_grad():
        for parameter in stock.parameters():
            parameter.mul_(1.25)
    weights = stock.state_dict()
    bindings = apply(four, model)
    assert list(model.state_dict()) == list(weights)
    model.load_state_dict(weights, strict=True)
    torch.testing.assert_close(logits(model), logits(stock), **TOLERANCE)
    model.save_pretrained(tmp_path / "saved")
    plain = type(stock).from_pretrained(tmp_path / "saved").eval()
    assert "kerncfg" not in (tmp_path / "saved" / "config.json").read_text()
    assert torch.equal(logits(plain), logits(stock))
    back = qwen()
    back.load_state_dict(model.state_dict(), strict=True)
    assert torch.equal(logits(back), logits(stock))
    bindings.revert()
    assert torch.equal(logits(model), logits(stock))


def test_generation_gives_the_same_tokens(four: kerncfg.Plan) -> None:
    model, other = qwen(), qwen()
    said: dict[str, Any] = {"max_new_tokens": 5, "do_sample": False, "pad_token_id": 0}
    tokens = attending.tokens()
    apply(four, model)
    assert torch.equal(model.generate(tokens, **said), other.generate(tokens, **said))


# What came later


def test_modules_added_later_are_reported_as_not_covered(four: kerncfg.Plan) -> None:
    model, own_config = qwen(), qwen().config
    bindings = apply(four, model)
    layers = model.model.layers
    layers.append(type(layers[0])(own_config, 1).eval())
    added = {(row.path, row.kind): row.reason for row in bindings.report.rows if "layers.2" in row.path}
    reason = "added after apply; revert, and apply again to cover it"
    above, norms = "model.layers.2", ("self_attn.q_norm", "self_attn.k_norm", "input_layernorm")
    assert added == {
        (f"{above}.self_attn", "function"): reason,
        (f"{above}.self_attn", "attention"): reason,
        **{(f"{above}.{path}", "layer"): reason for path in norms},
        (f"{above}.post_attention_layernorm", "fusion"): reason,
    }
    bindings.revert()
    again = apply(four, model)
    assert kinds.kinds(again.report) == {"layer": 10, "function": 3, "fusion": 3, "attention": 1}
    again.revert()


# What is off, or left


def test_a_plan_that_is_switched_off_leaves_all_four_alone() -> None:
    model = qwen()
    before = state(model)
    bindings = apply(plan("enabled=false", "policy=strict"), model)
    assert state(model) == before
    assert bindings.report.counts["swapped"] == 0


@pytest.mark.parametrize(
    ("row", "kind", "count"),
    [
        (f"fusions.norm_mlp={{members: {kinds.PAIR}, kernel: original}}", "fusion", 2),
        ("attention.default=original", "attention", 1),
        ("attention.default={kernel: original}", "attention", 1),
        ("kernels.rotary_pos_emb=null", "function", 2),
    ],
)
def test_a_row_that_is_off_is_off_by_whoever_wrote_it(row: str, kind: str, count: int) -> None:
    model = qwen()
    name = row.partition("=")[0]
    rows = [one for one in (NORM, ROTARY, FUSED, ATTENTION) if not one.startswith(name)]
    bindings = apply(only(*rows, row, "policy=strict"), model)
    assert kinds.kinds(bindings.report, "off") == {kind: count}
    (reason,) = {one.reason for one in bindings.report.rows if one.status == "off"}
    assert f"override: {name}" in reason


def test_modes_that_are_off_are_off_in_the_report() -> None:
    model = qwen()
    rows = (
        f"attention.default={{cpu: {{inference: '{kinds.INTERFACE}', training: original}}}}",
        f"fusions.norm_mlp={{members: {kinds.PAIR}, cpu: {{inference: 'builtin:RMSNormMLP', training: original}}}}",
        "kernels.rotary_pos_emb.cpu={inference: 'builtin:RotaryPosEmb', training: original}",
    )
    bindings = apply(only(*rows), model)
    assert kinds.kinds(bindings.report) == {"attention": 1, "fusion": 2, "function": 2}
    ran = seen["interface"]
    model.train()
    assert kinds.kinds(bindings.report, "off") == {"attention": 1, "fusion": 2, "function": 2}
    assert all("training" in row.mode for row in bindings.report.rows)
    logits(model)
    assert seen["interface"] == ran
    model.eval()
    logits(model)
    assert seen["interface"] == ran + kinds.LAYERS


def _unless(error: type[Exception], words: str) -> Callable[[tuple[str, ...]], None]:
    def check(rows: tuple[str, ...]) -> None:
        model = qwen()
        before = state(model)
        with pytest.raises(error, match=words):
            apply(only(*rows), model)
        assert state(model) == before

    return check


INNER = (
    "fusions.inner={members: [[Linear, '**.gate_proj'], [Linear, '**.up_proj']], kernel: 'python:tests.fusing:Alone'}"
)


@pytest.mark.parametrize(
    ("rows", "error", "words"),
    [
        (
            (FUSED, "kernels.mine={match: {class: Qwen3MLP}, kernel: 'python:tests.fakes:Ten'}"),
            ConflictError,
            r"model.layers.0.mlp is a member of fusions.norm_mlp, and kernels.mine .* takes it by match",
        ),
        (
            (FUSED, FUSED.replace("norm_mlp", "again")),
            ConflictError,
            r"is a member of fusions.(norm_mlp|again) and of fusions.(norm_mlp|again)",
        ),
        (
            (
                FUSED,
                INNER,
            ),
            ConflictError,
            r"lies inside model.layers.0.post_attention_layernorm or what fusions.norm_mlp fuses with it",
        ),
        (
            (ATTENTION, "attention.again=sdpa"),
            ConflictError,
            r"the attention of model is taken by attention.again .* and attention.default",
        ),
        (
            (f"attention.one={{path: model, kernel: '{kinds.INTERFACE}'}}", "attention.two={path: '**', kernel: sdpa}"),
            ConflictError,
            r"the attention of model is taken by attention.one .* and attention.two",
        ),
        (
            ("fusions.f={members: [[RMSNorm, model.blocks.*.norm]], kernel: 'builtin:RMSNormMLP'}",),
            ApplyError,
            r"fusions.f .*no parent has",
        ),
        (
            (f"attention.vision={{path: 'model.visual.**', kernel: '{kinds.INTERFACE}'}}",),
            ApplyError,
            "attention.vision",
        ),
    ],
    ids=["match", "two fusions", "inside", "two attentions", "two paths", "no fusion", "no part"],
)
def test_rows_that_cannot_stand_together_are_refused_before_any_edit(
    rows: tuple[str, ...], error: type[Exception], words: str
) -> None:
    _unless(error, words)(rows)


# Candidates, conditions and fallback


def test_the_next_candidate_serves_where_the_first_cannot() -> None:
    model = qwen()
    own = logits(model)
    rows = (
        f"fusions.norm_mlp={{members: {kinds.PAIR}, cpu: ['python:tests.fusing:Half', "
        "'python:tests.fusing:Declared']}",
        f"attention.default.cpu=['python:tests.fusing:norm', '{kinds.INTERFACE}']",
    )
    with apply(only(*rows), model) as bindings:
        torch.testing.assert_close(logits(model), own, **TOLERANCE)
        kernels = {row.kind: (row.kernel, row.reason) for row in bindings.report.rows}
    kernel, reason = kernels["fusion"]
    assert kernel == "python:tests.fusing:Declared"
    assert "passed over: python:tests.fusing:Half" in reason
    assert reason.count("it takes no account of mlp.gate_proj.weight") == 1
    kernel, reason = kernels["attention"]
    assert kernel == kinds.INTERFACE
    assert "passed over: python:tests.fusing:norm" in reason


def test_an_untrusted_candidate_is_passed_over_and_nothing_is_asked_of_it() -> None:
    model = qwen()
    rows = (
        f"fusions.norm_mlp={{members: {kinds.PAIR}, cpu: ['stranger/fused@v1:X', 'builtin:RMSNormMLP']}}",
        f"attention.default.cpu=['stranger/attention@v1', '{kinds.INTERFACE}']",
    )
    said = only(*rows)
    for step in said.steps:
        assert "stranger" in str(step.modes[Mode.INFERENCE].rejected[0].reason)
    with apply(said, model) as bindings:
        assert kinds.kinds(bindings.report) == {"fusion": 2, "attention": 1}


def test_a_candidate_behind_one_that_serves_is_not_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    said = only(f"fusions.norm_mlp={{members: {kinds.PAIR}, cpu: ['builtin:RMSNormMLP', 'python:tests.fakes:Ten']}}")
    assert len(said.steps[-1].modes[Mode.INFERENCE].choices) == 3
    asked: set[str] = set()
    code_of = Decisions.code_of

    def noting(self: Decisions, kernel: Any) -> Any:
        asked.add(str(kernel.reference))
        return code_of(self, kernel)

    monkeypatch.setattr(Decisions, "code_of", noting)
    apply(said, qwen()).revert()
    assert asked == {"builtin:RMSNormMLP"}


@pytest.mark.parametrize(
    ("conditions", "status", "words"),
    [
        ("dtype: [float32]", "swapped", "chosen for cpu"),
        ("dtype: [bfloat16]", "kept", "dtype"),
        ("when: {training: false}", "swapped", "chosen for cpu"),
        ("when: {training: true}", "kept", "needs training True, found False"),
    ],
)
def test_conditions_are_asked_of_members_and_of_parts(conditions: str, status: str, words: str) -> None:
    model = qwen()
    before = state(model)
    rows = (
        f"fusions.norm_mlp={{members: {kinds.PAIR}, cpu: {{kernel: 'builtin:RMSNormMLP', {conditions}}}}}",
        f"attention.default.cpu=[{{kernel: '{kinds.INTERFACE}', {conditions}}}, original]",
        NORM,
    )
    bindings = apply(only(*rows), model)
    found = {row.kind: row for row in bindings.report.rows if row.kind != "layer"}
    assert {row.status for row in found.values()} == {status}
    assert set(found) == {"fusion", "attention"}
    assert all(words in row.reason for row in found.values())
    left = kinds.kinds(bindings.report)["layer"]
    assert left == (SITES["layer"] if status == "swapped" else SITES["layer"] + 2)
    bindings.revert()
    assert state(model) == before


def test_an_attribute_that_a_member_lacks_is_an_error_that_names_it() -> None:
    row = f"fusions.norm_mlp={{members: {kinds.PAIR}, kernel: 'builtin:RMSNormMLP', when: {{nowhere: 1}}}}"
    words = r"fusions.norm_mlp: .*when.nowhere asks for what the module has not, found at model.layers.0"
    _unless(ApplyError, words)((row,))


@pytest.mark.parametrize(
    ("row", "error", "words"),
    [
        (
            f"fusions.norm_mlp={{members: {kinds.PAIR}, kernel: 'python:tests.fusing:Half', fallback: error}}",
            ContractError,
            r"model.layers.0.post_attention_layernorm: no kernel of fusions.norm_mlp is left: .*takes no account of",
        ),
        (
            f"fusions.norm_mlp={{members: {kinds.PAIR}, kernel: 'python:tests.fusing:Half'}}",
            ApplyError,
            r"policy.strict: rows that swap nothing: fusions.norm_mlp: .*takes no account of",
        ),
        (
            "attention.default='python:tests.fusing:norm'",
            ApplyError,
            r"attention.default: the attention of model .* can be none of what is chosen",
        ),
        (
            f"attention.default={{cpu: [{{kernel: '{kinds.INTERFACE}', dtype: [float16]}}, original]}}",
            ApplyError,
            r"policy.strict: rows that swap nothing: attention.default: .*dtype",
        ),
    ],
)
def test_a_row_that_may_not_do_without_is_an_error_and_nothing_is_done(
    row: str, error: type[Exception], words: str
) -> None:
    _unless(error, words)((NORM, ROTARY, row, "policy=strict"))


def test_a_row_whose_every_site_is_left_to_a_fusion_says_so_under_strict() -> None:
    rows = (
        FUSED,
        "kernels.MLP={match: {name: MLP}, cpu: 'builtin:SwiGLUMLP'}",
        "kernels.SiLU.cpu=python:tests.fakes:Ten",
    )
    _unless(
        ApplyError, r"policy.strict: rows that swap nothing: .*kernels.SiLU: left to fusions.norm_mlp, in 2 places"
    )((FUSED, rows[2], "policy=strict"))
    bindings = apply(only(FUSED, rows[2]), qwen())
    assert bindings.report.notes == ("kernels.SiLU: left to fusions.norm_mlp, in 2 places",)
    assert bindings.report.idle == {"kernels.SiLU": "left to fusions.norm_mlp, in 2 places"}
    bindings.revert()


def test_a_site_on_another_device_is_kept_whatever_its_kind(four: kerncfg.Plan) -> None:
    model = qwen().to("meta")
    before = state(model)
    with pytest.warns(KerncfgWarning, match="no module runs one"):
        report = apply(only(NORM, ROTARY, FUSED), model).report
    assert report.counts["swapped"] == 0
    assert all("device" in row.reason or "meta" in row.reason for row in report.rows)
    assert {row.kind for row in report.rows} == {"layer", "fusion"} | {"function"}
    assert state(model) == before


# Paths of attention


def test_a_row_with_a_path_goes_before_one_for_the_whole_model() -> None:
    model = attending.model("llava")
    before = state(model)
    rows = (
        "attention.default=python:tests.attention_kernels:plain",
        "attention.vision={path: '**.vision_tower', kernel: eager}",
    )
    bindings = apply(only(*rows), model)
    found = {row.path: (row.name, row.kernel) for row in bindings.report.rows}
    assert {name for name, _ in found.values()} == {"default", "vision"}
    assert all((name == "vision") == ("vision" in path) for path, (name, _) in found.items())
    bindings.revert()
    assert state(model) == before


def test_an_attention_row_on_a_model_without_attention_is_an_error_unless_it_is_off() -> None:
    model = torch.nn.Sequential(torch.nn.Linear(2, 2))
    with pytest.raises(ApplyError, match=r"attention.default .*: the model has no part whose attention can be chosen"):
        apply(only(ATTENTION), model)
    assert apply(only("attention.default=original", "policy=strict"), model).report.rows == ()


# Kernels of layers with a layout


def test_a_layers_kernel_with_a_layout_is_a_fusion_of_one_member_and_leaves_fused_members_alone() -> None:
    model = qwen()
    before, own = state(model), logits(model)
    rows = ("kernels.RMSNorm.cpu=python:tests.fusing:Scaled", FUSED)
    bindings = apply(only(*rows), model)
    torch.testing.assert_close(logits(model), own, **TOLERANCE)
    assert kinds.kinds(bindings.report) == {"layer": SITES["layer"], "fusion": 2}
    assert bindings.report.notes == ("kernels.RMSNorm: left to fusions.norm_mlp, in 2 places",)
    assert {row.kernel for row in bindings.report.rows if row.kind == "layer"} == {"python:tests.fusing:Scaled"}
    bindings.revert()
    assert state(model) == before


def test_a_kernel_without_a_layout_serves_where_one_with_a_layout_does_not() -> None:
    model = qwen()
    own = logits(model)
    row = "kernels.RMSNorm={cpu: ['python:tests.fusing:NoSource', 'builtin:RMSNorm'], fallback: error}"
    with apply(only(row), model) as bindings:
        torch.testing.assert_close(logits(model), own, **TOLERANCE)
        assert kinds.kinds(bindings.report) == {"layer": SITES["layer"] + 2}
        assert {row.kernel for row in bindings.report.rows} == {"builtin:RMSNorm"}
        assert all("passed over: python:tests.fusing:NoSource" in row.reason for row in bindings.report.rows)


def test_mode_by_mode_a_layout_stays_apart_from_what_has_none() -> None:
    model = qwen()
    own = logits(model)
    row = "kernels.RMSNorm.cpu={inference: 'python:tests.fusing:Scaled', training: original}"
    with apply(only(row), model) as bindings:
        for training in (False, True):
            model.train(training)
            torch.testing.assert_close(logits(model), own, **TOLERANCE)
            assert bindings.report.counts["off" if training else "swapped"] == SITES["layer"] + 2


# What evidence is given


def test_a_fusion_is_one_binding_whose_copy_runs_the_members(four: kerncfg.Plan) -> None:
    model = qwen()
    x = torch.randn(2, 3, 32)
    pair = model.model.layers[0].post_attention_layernorm, model.model.layers[0].mlp
    own = pair[1](pair[0](x))
    bindings = apply(four, model)
    (site, _) = (one for one in bindings.sites if one.kind == "fusion")
    assert site.modules == pair
    assert site.module is pair[0]
    torch.testing.assert_close(site.forward("inference")(x), own, **TOLERANCE)
    assert torch.equal(site.original()(x), own)
    made = copy.deepcopy(site.whole)
    revert(made)
    assert torch.equal(site.original(made)(x), own)
    names = [name for name, _ in site.whole.named_parameters()]
    assert names == [
        "post_attention_layernorm.weight",
        *(f"mlp.{name}_proj.weight" for name in ("gate", "up", "down")),
    ]


def test_originals_run_for_as_long_as_they_are_asked_for(four: kerncfg.Plan) -> None:
    model = qwen()
    own = logits(model)
    bindings = apply(four, model)
    before, ran = state(model), dict(seen)
    with bindings.originals():
        assert torch.equal(logits(model), own)
    assert seen == ran
    assert state(model)["configs"] == before["configs"]
    logits(model)
    assert seen["interface"] == ran["interface"] + kinds.LAYERS


def test_verify_covers_fusions_with_the_gradients_of_all_members(four: kerncfg.Plan) -> None:
    model = qwen()
    before = state(model)
    with apply(four, model) as bindings:
        found = verify(bindings, {"input_ids": attending.tokens()}, POLICY)
    (row,) = (row for row in found.rows if row.name == "norm_mlp")
    assert found.passed
    assert (row.passed, row.reference, row.sites) == (True, "float64", 2)
    assert row.backward is not None
    assert row.backward.passed
    assert state(model) == before


def test_verify_finds_a_fusion_that_is_wrong_in_a_gradient_only() -> None:
    model = qwen()
    with apply(only(FUSED.replace("builtin:RMSNormMLP", "python:tests.fusing:Deaf")), model) as bindings:
        found = verify(bindings, {"input_ids": attending.tokens()}, POLICY)
    (row,) = found.rows
    assert not row.passed
    assert row.backward is not None
    assert "down_proj" in str(row.backward.reason)
