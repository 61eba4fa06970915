"""A kernel that reads inside a child, and what comes around that child after it was applied."""

from __future__ import annotations

import copy
import pickle
from contextlib import nullcontext
from typing import Any

import pytest
import torch
from torch import nn

from kerncfg.applier.apply import Bindings, apply
from kerncfg.applier.passing import guarded, names_in
from kerncfg.errors import KerncfgWarning
from tests import lifecycle
from tests.lifecycle import ROOM, TOKENS, close, logits, plan_of
from tests.planning import plan, step

WARNS = r"a Qwen3MLP runs its own forward and no kernel: its forward reads inside self\.gate_proj, past "
peft_may_warn = pytest.mark.filterwarnings("ignore:`is_gradient_checkpointing` is deprecated")


def applied(*rows: Any) -> tuple[Any, Bindings]:
    model = lifecycle.model()
    row = step("mlp", "python:tests.lifecycle:Inside", match={"path": "**.mlp"})
    return model, apply(plan(row, *rows, trust=plan_of("layer").trust), model)


@pytest.fixture(scope="module")
def own() -> torch.Tensor:
    return logits(lifecycle.model())


@pytest.fixture(scope="module")
def swapped() -> torch.Tensor:
    return logits(applied()[0])


@peft_may_warn
def test_an_adapter_that_comes_later_trains_and_the_report_says_what_runs(swapped: torch.Tensor) -> None:
    """Read past, it would never train, and nobody would know."""
    import peft

    stock, bindings = applied()
    torch.manual_seed(1)
    config = peft.LoraConfig(r=2, target_modules=["gate_proj"], init_lora_weights=False, task_type="CAUSAL_LM")
    model: Any = peft.get_peft_model(stock, config)
    assert {(row.status, row.kernel) for row in bindings.report.rows} == {("kept", None)}
    reason = "changed since: its forward reads inside self.gate_proj, past the adapter Linear there"
    assert all(row.reason.startswith(reason) for row in bindings.report.rows)
    with pytest.warns(KerncfgWarning, match=f"{WARNS}the adapter Linear there"):
        model(input_ids=TOKENS, labels=TOKENS).loss.backward()
    found = {name: value.grad for name, value in model.named_parameters() if "lora_" in name}
    assert len(found) == 4 and all(grad is not None and grad.abs().sum() > 0 for grad in found.values())
    assert torch.equal(logits(model.unload()), swapped)
    assert {row.status for row in bindings.report.rows} == {"swapped"}


def test_hooks_and_wrappers_that_come_later_run_and_when_they_go_the_kernel_does(
    own: torch.Tensor, swapped: torch.Tensor
) -> None:
    model, bindings = applied()
    first, second = (layer.mlp.gate_proj for layer in model.model.layers)
    calls: list[str] = []
    hook = first.register_forward_hook(lambda *seen: calls.append("hook"))
    before = second.forward

    def forward(*arguments: Any) -> Any:
        calls.append("wrapper")
        return before(*arguments)

    second.forward = forward
    with pytest.warns(KerncfgWarning, match=WARNS):
        assert torch.equal(logits(model), own)
    assert calls == ["hook", "wrapper"]
    assert [row.reason.partition("past ")[2].partition(",")[0] for row in bindings.report.rows] == [
        "its forward hooks",
        "the wrapper around its forward",
    ]
    hook.remove()
    del second.forward
    assert torch.equal(logits(model), swapped)


def test_a_kernel_of_the_childs_own_is_nothing_that_is_passed_by(swapped: torch.Tensor) -> None:
    model, bindings = applied(step("gate", "python:tests.lifecycle:Doubled", match={"path": "**.gate_proj"}))
    assert {row.status for row in bindings.report.rows} == {"swapped"}
    assert torch.equal(logits(model), swapped)


@pytest.mark.parametrize("way", ["copied", "saved"])
def test_copies_and_files_give_way_too(way: str, own: torch.Tensor, swapped: torch.Tensor) -> None:
    model, _ = applied()
    other: Any = copy.deepcopy(model) if way == "copied" else pickle.loads(pickle.dumps(model))
    assert torch.equal(logits(other), swapped)
    for layer in other.model.layers:
        layer.mlp.gate_proj.register_forward_hook(lambda *seen: None)
    with pytest.warns(KerncfgWarning, match=WARNS):
        assert torch.equal(logits(other), own)
    assert torch.equal(logits(model), swapped)


def test_a_compiled_kernel_is_one_graph_and_gives_way() -> None:
    torch._dynamo.reset()
    model, bindings = applied()
    mlp, x = model.model.layers[0].mlp.requires_grad_(False), torch.ones(1, 2, model.config.hidden_size)
    compiled: Any = torch.compile(mlp, backend="eager", fullgraph=True)
    swapped = mlp(x)
    torch.testing.assert_close(compiled(x), swapped, **ROOM)
    hook = mlp.gate_proj.register_forward_pre_hook(lambda *seen: None)
    torch._dynamo.reset()  # PyTorch itself does not see hooks that come after it compiled
    found = compiled(x)
    hook.remove()
    bindings.revert()
    torch.testing.assert_close(found, mlp(x), **ROOM)
    assert not close(found, swapped)


class Outer(nn.Module):
    """An MLP inside of another module."""

    def __init__(self) -> None:
        super().__init__()
        self.mlp = lifecycle.model().model.layers[0].mlp

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.mlp(x)  # type: ignore[no-any-return]


@pytest.mark.parametrize("first", [False, True], ids=["hooks after", "hooks before"])
@pytest.mark.parametrize(("path", "passed"), [("gate_proj", True), ("up_proj", False)])
def test_what_is_around_a_childs_child_counts_where_the_kernel_reads_it(first: bool, path: str, passed: bool) -> None:
    outer, x = Outer(), torch.ones(1, 2, 32)
    own, calls = outer(x), [0]
    hooked = outer.mlp.get_submodule(path)
    row = step("outer", "python:tests.lifecycle:DeepInside", match={"class": "Outer"})

    def count(*_: Any) -> None:
        calls[0] += 1

    if first:
        hooked.register_forward_hook(count)
    kept = first and passed
    with pytest.warns(KerncfgWarning, match="past its forward hooks") if kept else nullcontext():
        bindings = apply(plan(row, trust=plan_of("layer").trust), outer)
    if not first:
        hooked.register_forward_hook(count)
    with pytest.warns(KerncfgWarning, match=r"self\.mlp\.gate_proj") if passed and not first else nullcontext():
        found = outer(x)
    assert calls == [1] and close(found, own) == passed
    assert [one.status for one in bindings.report.rows] == ["kept" if passed else "swapped"]


def test_a_forward_is_guarded_once_for_each_set_of_children() -> None:
    forward, mlp = lifecycle.Inside.forward, lifecycle.model().model.layers[0].mlp
    names = names_in(mlp, {"up_proj", "gate_proj", "config", "nothing"})
    assert names == ("gate_proj", "up_proj")
    assert guarded(forward, names) is guarded(forward, names)
    assert names_in(mlp.gate_proj, {"weight"}) == ()
