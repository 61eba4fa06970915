"""What is asked before any edit, for every kind of site: a kernel's flags, conditions, and what is wrapped around."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn

import kerncfg
from kerncfg.applier.apply import apply
from kerncfg.documents.target import Mode
from kerncfg.errors import ApplyError, ConfigError, KerncfgWarning
from tests import lifecycle
from tests.fusing import MEMBERS
from tests.lifecycle import EVERY, KINDS, SITES, close, logits, plan_of
from tests.planning import choice, plan, step
from tests.snapshot import snapshot

each_kind = pytest.mark.parametrize("kind", EVERY)
each_single_kind = pytest.mark.parametrize("kind", KINDS)

BARE: dict[str, tuple[str, str, dict[str, Any]]] = {
    "layer": ("RMSNorm", "LayerIdle", {}),
    "function": ("rotary_pos_emb", "FunctionIdle", {}),
    "attention": ("default", "attention_idle", {"node": "attention"}),
    "fusion": ("norm_mlp", "FusionIdle", {"node": "fusions", "members": MEMBERS}),
}
# By kind: the kernel that says it has no backward, and the one that says it is not for torch.compile.
FLAGGED = {
    "layer": ("LayerForward", "LayerEager"),
    "function": ("FunctionForward", "FunctionEager"),
    "attention": ("attention_forward", "attention_eager"),
    "fusion": ("FusionForward", "FusionEager"),
}


def row(kind: str, kernel: str | None = None, **conditions: Any) -> Any:
    """A plan of one row of a kind, with conditions on its only kernel."""
    name, usual, others = BARE[kind]
    said = choice(f"python:tests.lifecycle:{kernel or usual}", **conditions)
    return plan(step(name, said, **others), trust=plan_of(kind).trust)


def told(bindings: Any) -> set[tuple[str, str]]:
    return {(row.status, row.reason) for row in bindings.report.rows}


# A kernel's flags


@each_single_kind
def test_a_kernel_without_backward_is_kept_out_of_training_alone(kind: str) -> None:
    model, own = lifecycle.model(), logits(lifecycle.model(), True)
    bindings = apply(row(kind, FLAGGED[kind][0]), model)
    assert {one.status for one in bindings.report.rows} == {"swapped"}
    assert not close(logits(model, False), logits(lifecycle.model()))
    assert torch.equal(logits(model, True), own)
    (one,) = {(row.status, row.reason) for row in bindings.report.rows}
    assert one[0] == "kept" and "has_backward is false, and training needs gradients" in one[1]


@each_single_kind
def test_a_kernel_that_is_not_for_compile_is_kept_out_of_it(kind: str) -> None:
    model = lifecycle.model()
    with pytest.warns(KerncfgWarning, match="can_torch_compile is not true, and inference_compile runs under"):
        bindings = apply(row(kind, FLAGGED[kind][1]), model, compile=True)
    assert {one.status for one in bindings.report.rows} == {"kept"}
    assert torch.equal(logits(model), logits(lifecycle.model()))
    with apply(row(kind, FLAGGED[kind][1]), model) as plain:
        assert {one.status for one in plain.report.rows} == {"swapped"}


# Conditions, which each instance answers for itself


@each_single_kind
def test_a_condition_is_asked_of_each_instance(kind: str) -> None:
    """Where an option that the kernel hard-codes is another, the original runs, and the report says which."""
    key = {"layer": "variance_epsilon", "function": "config.model_type", "attention": "config.model_type"}
    path = key.get(kind, "config.hidden_act")
    right: Any = {"layer": 1e-6, "fusion": "silu"}.get(kind, "qwen3")
    model = lifecycle.model()
    with apply(row(kind, when={path: [right]}), model) as bindings:
        assert bindings.report.counts == {"swapped": SITES[kind], "kept": 0, "off": 0}
    with pytest.warns(KerncfgWarning, match=f"needs {path} other, found {right}"):
        bindings = apply(row(kind, when={path: ["other"]}), model)
    assert {status for status, _ in told(bindings)} == {"kept"}
    assert torch.equal(logits(model), logits(lifecycle.model()))


def test_two_instances_with_another_activation_get_the_kernel_and_the_original() -> None:
    """A kernel for one activation, and a model whose layers differ in it."""
    model = lifecycle.model()
    other = lifecycle.model(hidden_act="gelu").model.layers[1].mlp
    model.model.layers[1].mlp = other
    own = logits(model)
    said = choice("python:tests.lifecycle:Gated", when={"config.hidden_act": ["silu"]})
    match = {"path": "**.mlp"}
    for one in (
        plan(step("mlp", said, match=match), trust=plan_of("layer").trust),
        row("fusion", when={"config.hidden_act": ["silu"]}),
    ):
        bindings = apply(one, model)
        first, second = bindings.report.rows
        assert (first.status, second.status) == ("swapped", "kept")
        assert "needs config.hidden_act silu, found gelu" in second.reason
        assert not close(logits(model), own)
        bindings.revert()
        assert torch.equal(logits(model), own)


@each_single_kind
def test_a_condition_on_an_attribute_that_is_not_there_is_an_error_and_nothing_is_done(kind: str) -> None:
    model = lifecycle.model()
    before = snapshot(model)["modules"]
    with pytest.raises(ApplyError, match=r"when\.config\.hidden_akt asks for what the module has not") as error:
        apply(row(kind, when={"config.hidden_akt": ["silu"]}), model)
    assert "kernels.yaml:3" in error.value.message
    assert snapshot(model)["modules"] == before


@each_single_kind
def test_dtype_is_asked_of_each_instance(kind: str) -> None:
    model = lifecycle.model()
    wanted = row(kind, dtype=["bfloat16"])
    with pytest.warns(KerncfgWarning, match="needs dtype bfloat16, found float32"):
        apply(wanted, model)
    model.to(torch.bfloat16)
    bindings = apply(wanted, model)
    assert bindings.report.counts["swapped"] == SITES[kind]


# Masks


def test_a_mask_that_there_is_not_is_refused_before_anything_is_planned() -> None:
    with pytest.raises(ConfigError, match=r"attention\.default\.mask"):
        kerncfg.plan(config={"kernels": {}, "attention": {"default": {"kernel": "sdpa", "mask": "causal"}}})


# Built, loaded, wrapped: in any order


@each_kind
def test_applying_before_and_after_loading_is_the_same(kind: str) -> None:
    state = {name: value * 1.25 for name, value in lifecycle.model().state_dict().items()}
    first, second, third = lifecycle.model(), lifecycle.model(), lifecycle.model()
    one = apply(plan_of(kind), first)
    first.load_state_dict(state)
    second.load_state_dict(state)
    two = apply(plan_of(kind), second)
    third.load_state_dict(state)
    assert one.report.rows == two.report.rows
    for mode in (False, True):
        assert torch.equal(logits(first, mode), logits(second, mode))
        assert not close(logits(first, mode), logits(third, mode))


def wrapped(module: nn.Module, calls: list[str]) -> None:
    old = module.forward

    def forward(*arguments: Any, **keywords: Any) -> Any:
        calls.append(type(module).__name__)
        return old(*arguments, **keywords)

    module.forward = forward


@each_kind
@pytest.mark.parametrize("falls", [False, True], ids=["swapped", "fallen back"])
def test_a_forward_that_was_wrapped_keeps_its_wrapper_under_every_kind(kind: str, falls: bool) -> None:
    calls: list[str] = []
    model = lifecycle.model()
    layer = model.model.layers[0]
    for module in (layer.input_layernorm, layer.self_attn, layer.post_attention_layernorm, layer.mlp):
        wrapped(module, calls)
    before = {id(module): module.__dict__.get("forward") for module in model.modules()}
    own = logits(model)
    assert len(calls) == 4
    if falls:
        rows = lifecycle.steps() if kind == "all" else {kind: lifecycle.steps()[kind]}
        kept = [one for name in rows for one in row(name, when={"training": ["never"]}).steps]
        with pytest.warns(KerncfgWarning, match="needs training never"):
            bindings = apply(plan(*kept, trust=plan_of(kind).trust), model)
    else:
        bindings = apply(plan_of(kind), model)
        fused = [one for one in bindings.report.rows if one.kind == "fusion"]
        assert [one.status for one in fused] == (["kept", "swapped"] if fused else [])
    for mode in (False, True):
        calls.clear()
        found = logits(model, mode)
        assert len(calls) == 4 and close(found, own) == falls
    bindings.revert()
    assert {id(module): module.__dict__.get("forward") for module in model.modules()} == before
    calls.clear()
    assert torch.equal(logits(model, False), own) and len(calls) == 4


def test_modes_are_four_everywhere() -> None:
    """The kernels of the tests stand in every mode; else half of the above would pass for want of a kernel."""
    for kind in KINDS:
        (one,) = plan_of(kind).steps
        assert set(one.modes) == set(Mode)
        assert all(not found.choices[0].original for found in one.modes.values())
