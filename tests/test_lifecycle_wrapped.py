"""Models that something else wraps, shards or adapts, before or after kernels are applied: for every kind of site."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import accelerate
import pytest
import torch
from accelerate.hooks import remove_hook_from_submodules
from torch import distributed, nn
from torch._C._distributed_c10d import HashStore
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard

from kerncfg.applier.apply import Bindings, apply, revert
from kerncfg.errors import ApplyError, KerncfgWarning
from tests import lifecycle
from tests.lifecycle import EVERY, KINDS, ROOM, TOKENS, close, logits, plan_of
from tests.planning import plan, step
from tests.snapshot import snapshot

each_kind = pytest.mark.parametrize("kind", EVERY)
CPU = torch.device("cpu")
UNFUSED = ("layer", "function", "attention")
EVERYWHERE = [("RMSNorm", "**.layers.*.post_attention_layernorm"), ("MLP", "**.layers.*.mlp")]


def applied(kind: str) -> tuple[Any, Bindings]:
    model = lifecycle.model()
    return model, apply(plan_of(kind), model)


def by_kind(bindings: Bindings) -> dict[str, set[str]]:
    found: dict[str, set[str]] = {}
    for row in bindings.report.rows:
        found.setdefault(row.kind, set()).add(row.status)
    return found


# accelerate


def offloaded(model: Any) -> Any:
    return accelerate.cpu_offload(model, execution_device=CPU)


def dispatched(model: Any) -> Any:
    places = ("model.embed_tokens", "model.layers.0", "model.layers.1", "model.norm", "model.rotary_emb", "lm_head")
    return accelerate.dispatch_model(model, dict.fromkeys(places, "cpu"), main_device="cpu", force_hooks=True)


@pytest.mark.parametrize("wrap", [offloaded, dispatched])
@each_kind
def test_a_model_with_accelerates_hooks_runs_the_kernels_under_them(kind: str, wrap: Any) -> None:
    """Weights that are on meta between calls are on the device that the hooks bring them to."""
    model = wrap(lifecycle.model())
    own = logits(model)
    before = snapshot(model)
    if kind == "fusion":
        with pytest.warns(KerncfgWarning, match="has a forward set on the instance, which the kernel would pass by"):
            bindings = apply(plan_of(kind), model)
        assert by_kind(bindings) == {"fusion": {"kept"}}
        assert torch.equal(logits(model), own)
    else:
        bindings = apply(plan_of(kind), model)
        kept = by_kind(bindings)
        assert kept.pop("fusion", {"kept"}) == {"kept"}
        assert set(kept) == (set(UNFUSED) if kind == "all" else {kind})
        assert set().union(*kept.values()) == {"swapped"}
        plain = lifecycle.model()
        rows = lifecycle.steps()
        apply(plan(*(rows[one] for one in kept), trust=plan_of(kind).trust), plain)
        for mode in (False, True):
            assert torch.equal(logits(model, mode), logits(plain, mode))
    bindings.revert()
    assert torch.equal(logits(model, False), own)
    after = snapshot(model)
    assert after["classes"] == before["classes"]
    assert not any(key.startswith("_kerncfg") for module in model.modules() for key in vars(module))
    remove_hook_from_submodules(model)


@each_kind
def test_accelerates_hooks_may_come_after_the_kernels(kind: str) -> None:
    model, bindings = applied(kind)
    expected = {mode: logits(model, mode) for mode in (True, False)}
    offloaded(model)
    if kind in ("fusion", "all"):
        assert any("which the kernel passes by" in row.reason for row in bindings.report.rows)
        with pytest.raises(ApplyError, match=r"has its weights on meta, .* would pass by it"):
            logits(model)
    else:
        for mode in (True, False):
            assert torch.equal(logits(model, mode), expected[mode])
        assert all(row.status == "swapped" for row in bindings.report.rows)
    bindings.revert()
    assert torch.equal(logits(model), logits(lifecycle.model()))


# PEFT

peft_may_warn = pytest.mark.filterwarnings(
    "ignore:`is_gradient_checkpointing` is deprecated"
)  # of transformers, in peft


def adapted(model: Any, *targets: str) -> Any:
    import peft

    torch.manual_seed(1)
    return peft.get_peft_model(
        model, peft.LoraConfig(r=2, target_modules=list(targets), init_lora_weights=False, task_type="CAUSAL_LM")
    )


def adapters(model: nn.Module) -> dict[str, torch.Tensor]:
    return {name: value for name, value in model.named_parameters() if "lora_" in name}


def trained(model: Any) -> None:
    model.train()
    model.zero_grad()
    model(input_ids=TOKENS, labels=TOKENS).loss.backward()
    for name, adapter in adapters(model).items():
        assert adapter.grad is not None and adapter.grad.abs().sum() > 0, name
    model.eval()


@peft_may_warn
@pytest.mark.parametrize("kind", UNFUSED)
@pytest.mark.parametrize("first", [False, True], ids=["adapters after", "adapters before"])
def test_kernels_and_adapters_run_side_by_side(kind: str, first: bool) -> None:
    targets = ("q_proj", "v_proj", "gate_proj", "down_proj")
    own = logits(adapted(lifecycle.model(), *targets), False)
    if first:
        model = adapted(lifecycle.model(), *targets)
        bindings = apply(plan_of(kind), model)
    else:
        stock, bindings = applied(kind)
        model = adapted(stock, *targets)
    assert {row.status for row in bindings.report.rows} == {"swapped"}
    assert not close(logits(model, False), own)
    trained(model)
    with model.disable_adapter():
        plain, _ = applied(kind)
        torch.testing.assert_close(logits(model), logits(plain), **ROOM)
    bindings.revert()
    assert torch.equal(logits(model), own)


@peft_may_warn
def test_a_layer_with_an_adapter_is_kept_and_its_siblings_and_what_it_wraps_are_swapped() -> None:
    model = adapted(lifecycle.model(), "q_proj")
    linear = "python:tests.lifecycle:Doubled"
    match = {"path": "**.self_attn.*_proj"}
    bindings = apply(plan(step("projections", linear, match=match), trust=plan_of("layer").trust), model)
    told = {row.path.rpartition(".")[2]: (row.status, row.reason) for row in bindings.report.rows}
    assert {name: status for name, (status, _) in told.items()} == {
        "q_proj": "kept", "k_proj": "swapped", "v_proj": "swapped", "o_proj": "swapped",
    }  # fmt: skip
    assert "wrapped by the adapter peft.tuners.lora" in told["q_proj"][1]
    trained(model)
    below = apply(plan(step("below", linear, match={"path": "**.base_layer"}), trust=plan_of("layer").trust), model)
    assert [row.status for row in below.report.rows] == ["swapped"] * 2
    trained(model)
    below.revert()
    bindings.revert()


@peft_may_warn
def test_a_group_with_an_adapter_in_it_is_kept_and_the_other_is_fused() -> None:
    model = adapted(lifecycle.model(), "gate_proj")
    layer = model.base_model.model.model.layers[1]
    layer.mlp.gate_proj = layer.mlp.gate_proj.base_layer
    fusion = lifecycle.steps(EVERYWHERE)["fusion"]
    bindings = apply(plan(fusion, trust=plan_of("fusion").trust), model)
    first, second = bindings.report.rows
    assert (first.status, second.status) == ("kept", "swapped")
    assert "mlp.gate_proj has an adapter, Linear, which the kernel would pass by" in first.reason
    trained(model)
    bindings.revert()


@peft_may_warn
def test_an_adapter_that_is_put_into_a_fused_member_later_stops_the_next_call() -> None:
    """Run past, it would never train, and nobody would know."""
    model, bindings = applied("fusion")
    other = adapted(model, "q_proj", "v_proj")
    trained(other)
    model = adapted(other.unload(), "down_proj")
    assert all("mlp.down_proj is another module" in row.reason for row in bindings.report.rows)
    with pytest.raises(ApplyError, match="has another down_proj by now, a Linear") as error:
        logits(model)
    assert "kerncfg.revert(model)" in str(error.value.hint)
    revert(model)
    trained(model)
    again = apply(plan(lifecycle.steps(EVERYWHERE)["fusion"], trust=plan_of("fusion").trust), model)
    assert {row.status for row in again.report.rows} == {"swapped"}  # the kernel calls down_proj, adapter and all
    trained(model)


# FSDP2


@pytest.fixture(scope="module")
def mesh() -> Iterator[Any]:
    """One rank."""
    distributed.init_process_group("gloo", rank=0, world_size=1, store=HashStore())
    yield init_device_mesh("cpu", (1,))
    distributed.destroy_process_group()


def sharded(model: Any, mesh: Any) -> Any:
    for layer in model.model.layers:
        fully_shard(layer, mesh=mesh)
    fully_shard(model, mesh=mesh)
    return model


def whole(gradient: Any) -> torch.Tensor:
    found: torch.Tensor = gradient.full_tensor() if hasattr(gradient, "full_tensor") else gradient
    return found


def gradients(model: Any) -> dict[str, torch.Tensor]:
    model.train()
    model(TOKENS, labels=TOKENS).loss.backward()
    found = {name: whole(parameter.grad).clone() for name, parameter in model.named_parameters()}
    model.zero_grad()
    model.eval()
    return found


@each_kind
@pytest.mark.parametrize("first", [False, True], ids=["sharded after", "sharded before"])
def test_a_sharded_model_runs_and_trains_the_kernels(kind: str, first: bool, mesh: Any) -> None:
    fuses = kind in ("fusion", "all")
    if first and fuses:  # sharded parameters cannot share one memory
        model = sharded(lifecycle.model(), mesh)
        if kind == "fusion":
            with pytest.warns(KerncfgWarning, match="are no plain parameters"):
                bindings = apply(plan_of(kind), model)
        else:
            bindings = apply(plan_of(kind), model)
        assert by_kind(bindings)["fusion"] == {"kept"}
        plain = lifecycle.model()
        if kind == "all":
            rows = lifecycle.steps()
            apply(plan(*(rows[one] for one in UNFUSED), trust=plan_of(kind).trust), plain)
    else:
        plain, _ = applied(kind)
        model = lifecycle.model()
        if first:
            sharded(model, mesh)
        bindings = apply(plan_of(kind), model)
        if not first:
            sharded(model, mesh)
        assert {row.status for row in bindings.report.rows} == {"swapped"}
        told = [row.reason for row in bindings.report.rows if row.kind == "fusion"]
        assert all("each call stacks a copy of them" in reason for reason in told)
    for mode in (True, False):
        torch.testing.assert_close(logits(model, mode), logits(plain, mode), **ROOM)
    found, expected = gradients(model), gradients(plain)
    assert found.keys() == expected.keys()
    for name, gradient in expected.items():
        torch.testing.assert_close(found[name], gradient, **ROOM)
    bindings.revert()
    torch.testing.assert_close(logits(model), logits(lifecycle.model()), **ROOM)


# Others


@pytest.mark.parametrize("kind", KINDS)
def test_a_wrapper_whose_replicas_would_share_kernels_is_refused(kind: str) -> None:
    with pytest.raises(ApplyError, match=r"model\.module"):
        apply(plan_of(kind), nn.DataParallel(lifecycle.model()))
    inside = nn.ModuleDict({"text": nn.DataParallel(lifecycle.model().model.layers[0].mlp), "other": lifecycle.model()})
    before = snapshot(inside)["modules"]
    with pytest.raises(ApplyError, match="would all run the first one's kernels") as error:
        apply(plan(lifecycle.steps(EVERYWHERE)[kind], trust=plan_of(kind).trust), inside)
    assert "model.text.module" in str(error.value.hint)
    assert snapshot(inside)["modules"] == before


@each_kind
def test_a_distributed_wrapper_is_handled_as_what_it_wraps(kind: str, mesh: Any) -> None:
    model, plain = lifecycle.model(), applied(kind)[0]
    wrapped: Any = nn.parallel.DistributedDataParallel(model)
    rows = lifecycle.steps(EVERYWHERE)
    said = rows.values() if kind == "all" else [rows[kind]]
    bindings = apply(plan(*said, trust=plan_of(kind).trust), wrapped)
    for mode in (True, False):
        torch.testing.assert_close(logits(wrapped, mode), logits(plain, mode), **ROOM)
    wrapped.train()
    wrapped(TOKENS, labels=TOKENS).loss.backward()
    expected = gradients(plain)
    for name, parameter in model.named_parameters():
        assert parameter.grad is not None
        torch.testing.assert_close(parameter.grad, expected[name], **ROOM)
    bindings.revert()
