"""What happens to a model after kernels were applied to it, or had happened before: the same for every kind of site."""

from __future__ import annotations

import copy
import gc
import io
import pickle
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
import torch
from torch import nn
from torch._dynamo.backends.registry import lookup_backend

from kerncfg.applier.apply import Bindings, apply, revert
from kerncfg.errors import KerncfgWarning
from tests import lifecycle
from tests.lifecycle import EVERY, ROOM, SITES, TOKENS, close, logits, plan_of
from tests.snapshot import snapshot

if TYPE_CHECKING:
    from kerncfg.applier.report import ReportRow

each_kind = pytest.mark.parametrize("kind", EVERY)


@pytest.fixture(scope="module")
def own() -> dict[bool, torch.Tensor]:
    """What the model says without kernels, when not training and when training."""
    return {mode: logits(lifecycle.model(), mode) for mode in (False, True)}


@pytest.fixture(scope="module")
def swapped() -> dict[str, dict[bool, torch.Tensor]]:
    """What the model says with the kernels of each kind."""
    found = {}
    for kind in EVERY:
        model, bindings = applied(kind)
        found[kind] = {mode: logits(model, mode) for mode in (False, True)}
        bindings.revert()  # else its names leave the registries when it is collected, in the middle of a test
    return found


def applied(kind: str, **said: Any) -> tuple[Any, Bindings]:
    model = lifecycle.model()
    return model, apply(plan_of(kind), model, **said)


def rows(bindings: Bindings, kind: str | None = None, status: str = "swapped") -> list[ReportRow]:
    return [row for row in bindings.report.rows if row.status == status and kind in (None, row.kind)]


@each_kind
def test_kernels_follow_the_mode_and_revert_leaves_nothing(
    kind: str, own: dict[bool, torch.Tensor], swapped: dict[str, dict[bool, torch.Tensor]]
) -> None:
    model = lifecycle.model()
    apply(plan_of(kind), model).revert()  # what is imported for the first time does not count
    gc.collect()
    before = snapshot(model)
    bindings = apply(plan_of(kind), model)
    assert len(rows(bindings)) == SITES[kind] == len(bindings.report.rows)
    results = [own[False], own[True], swapped[kind][False], swapped[kind][True]]
    assert [close(one, other) for one in results for other in results].count(True) == 6  # the two plain ones are one
    for mode in (True, False, False, True, False):
        assert torch.equal(logits(model, mode), swapped[kind][mode])
    bindings.revert()
    assert snapshot(model) == before
    assert torch.equal(logits(model), own[False])


# Graphs


class Counting:
    """A backend that counts what it compiles."""

    def __init__(self) -> None:
        self.count = 0

    def __call__(self, graph: Any, inputs: Any) -> Any:
        self.count += 1
        return lookup_backend("aot_eager")(graph, inputs)


def _heavy(*options: str) -> Any:
    """Every kind with every option; the default run has all kinds at once, with the first two."""
    return [
        pytest.param(kind, option, marks=() if kind == "all" and option in options[:2] else pytest.mark.slow)
        for kind in EVERY
        for option in options
    ]


@pytest.mark.parametrize(("kind", "order"), _heavy("after", "before", "in place"))
def test_a_model_is_one_graph_and_compiled_once_a_mode(
    kind: str, order: str, own: dict[bool, torch.Tensor], swapped: dict[str, dict[bool, torch.Tensor]]
) -> None:
    torch._dynamo.reset()
    backend = Counting()
    model = lifecycle.model().requires_grad_(False)
    compiled = model
    if order == "before":
        compiled = torch.compile(model, backend=backend, fullgraph=True)
        assert close(logits(compiled), own[False])
    elif order == "in place":
        model.compile(backend=backend, fullgraph=True)
        assert close(logits(model), own[False])
    before = backend.count
    bindings = apply(plan_of(kind), compiled, compile=order == "after")
    assert {row.mode for row in bindings.report.rows} == {"inference_compile"}
    if order == "after":
        compiled = torch.compile(model, backend=backend, fullgraph=True)
    for mode in (False, True, False, True):
        torch.testing.assert_close(logits(compiled, mode), swapped[kind][mode], **ROOM)
    assert backend.count == before + 2
    bindings.revert()
    torch.testing.assert_close(logits(compiled, False), own[False], **ROOM)


@pytest.mark.filterwarnings("ignore:`torch.jit.script_method` is deprecated")  # torch, of its own Inductor
@pytest.mark.slow
def test_inductor_compiles_all_kinds_as_one(swapped: dict[str, dict[bool, torch.Tensor]]) -> None:
    torch._dynamo.reset()
    model, _ = applied("all", compile=True)
    compiled: Any = torch.compile(model, fullgraph=True)
    with torch.no_grad():
        torch.testing.assert_close(logits(compiled, False), swapped["all"][False], **ROOM)


@pytest.mark.filterwarnings("ignore:While compiling, we found certain side effects")  # of transformers, without us too
@pytest.mark.filterwarnings("ignore:.*should not be instantiated")  # torch, of its own tracing
@pytest.mark.parametrize(("kind", "way"), _heavy("traced", "strict"))
def test_an_exported_model_has_the_kernels(kind: str, way: str, swapped: dict[str, dict[bool, torch.Tensor]]) -> None:
    model, _ = applied(kind)
    exported: Any = torch.export.export(model, (TOKENS,), strict=way == "strict")
    torch.testing.assert_close(exported.module()(TOKENS).logits.detach(), swapped[kind][False], **ROOM)


# Training


def gradients(model: Any) -> dict[str, torch.Tensor]:
    model.zero_grad()
    model(TOKENS, labels=TOKENS).loss.backward()
    return {name: parameter.grad.clone() for name, parameter in model.named_parameters()}


@each_kind
@pytest.mark.parametrize("reentrant", [False, True])
def test_checkpointed_layers_run_the_kernels_again_in_backward(kind: str, reentrant: bool) -> None:
    model, _ = applied(kind)
    plain = lifecycle.model().train()
    expected = gradients(model.train())
    for one in (model, plain):
        one.enable_input_require_grads()
        one.activation_checkpointing_enable({"use_reentrant": reentrant})
    found = gradients(model)
    assert found.keys() == expected.keys()
    for name, gradient in expected.items():
        torch.testing.assert_close(found[name], gradient, **ROOM)
    assert not all(close(found[name], gradient) for name, gradient in gradients(plain).items())


@each_kind
def test_kernels_run_under_autocast(
    kind: str, own: dict[bool, torch.Tensor], swapped: dict[str, dict[bool, torch.Tensor]]
) -> None:
    model, bindings = applied(kind)
    room: dict[str, Any] = {"rtol": 2**-5, "atol": 2**-5}  # bfloat16 has 8 bits, and two layers round a dozen times
    with torch.autocast("cpu", dtype=torch.bfloat16):
        found = logits(model)
        bindings.revert()
        plain = logits(model)
    assert found.dtype == plain.dtype == torch.bfloat16
    assert torch.allclose(found.float(), swapped[kind][False], **room)
    assert torch.allclose(plain.float(), own[False], **room)
    assert not torch.allclose(swapped[kind][False], own[False], **room)


# What is put around modules


def counted(model: Any, modules: list[nn.Module]) -> list[str]:
    calls: list[str] = []
    for module in modules:
        module.register_forward_pre_hook(lambda *seen: calls.append("before"))
        module.register_forward_hook(lambda *seen: calls.append("after"))
    return calls


@each_kind
@pytest.mark.parametrize("first", [False, True], ids=["hooks after", "hooks before"])
def test_hooks_around_what_calls_a_kernel_fire(
    kind: str, first: bool, swapped: dict[str, dict[bool, torch.Tensor]]
) -> None:
    model = lifecycle.model()
    around = [model, model.model, *model.model.layers, *(layer.self_attn for layer in model.model.layers)]
    around += [model.model.norm]
    calls = counted(model, around) if first else []
    bindings = apply(plan_of(kind), model)
    calls = calls if first else counted(model, around)
    assert torch.equal(logits(model), swapped[kind][False])
    assert (calls.count("before"), calls.count("after")) == (len(around), len(around))
    bindings.revert()
    logits(model)
    assert len(calls) == 4 * len(around)


def test_a_fused_member_with_hooks_is_kept_and_one_that_gets_them_later_is_told() -> None:
    model = lifecycle.model()
    calls = counted(model, [model.model.layers[0].mlp])
    bindings = apply(plan_of("fusion"), model)
    assert [(row.path, row.status) for row in bindings.report.rows] == [
        ("model.layers.0.post_attention_layernorm", "kept"),
        ("model.layers.1.post_attention_layernorm", "swapped"),
    ]
    assert "hooks" in bindings.report.rows[0].reason
    logits(model)
    assert len(calls) == 2
    counted(model, [model.model.layers[1].mlp.up_proj])
    assert "hooks" in bindings.report.rows[1].reason


# Copies and files


def round_trip(model: nn.Module, how: str) -> Any:
    if how == "deepcopy":
        return copy.deepcopy(model)
    if how == "pickle":
        return pickle.loads(pickle.dumps(model))
    file = io.BytesIO()
    torch.save(model, file)
    file.seek(0)
    return torch.load(file, weights_only=False)


@each_kind
@pytest.mark.parametrize("how", ["deepcopy", "pickle", "torch.save"])
def test_a_copy_runs_kernels_on_its_own_weights_and_reverts_alone(
    kind: str, how: str, own: dict[bool, torch.Tensor], swapped: dict[str, dict[bool, torch.Tensor]]
) -> None:
    model, bindings = applied(kind)
    other = round_trip(model, how)
    assert [torch.equal(logits(other, mode), swapped[kind][mode]) for mode in (True, False)] == [True, True]
    assert list(other.state_dict()) == list(lifecycle.model().state_dict())
    assert not {id(one) for one in other.parameters()} & {id(one) for one in model.parameters()}
    with torch.no_grad():
        for parameter in other.parameters():
            parameter.mul_(1.25)
    assert not close(logits(other), swapped[kind][False])
    assert torch.equal(logits(model), swapped[kind][False])
    with torch.no_grad():
        for parameter in other.parameters():
            parameter.div_(1.25)
    revert(other)
    torch.testing.assert_close(logits(other), own[False], **ROOM)
    assert torch.equal(logits(model), swapped[kind][False])
    bindings.revert()
    assert torch.equal(logits(model), own[False])
    assert not any(key.startswith("_kerncfg") for module in other.modules() for key in vars(module))


def test_another_process_runs_all_kernels_of_a_saved_model(
    tmp_path: Path, own: dict[bool, torch.Tensor], swapped: dict[str, dict[bool, torch.Tensor]]
) -> None:
    model, _ = applied("all")
    torch.save(model, tmp_path / "model.pt")
    code = f"""
import torch, kerncfg
from tests.lifecycle import logits
model = torch.load({str(tmp_path / "model.pt")!r}, weights_only=False)
found = [logits(model, False), logits(model, True)]
kerncfg.revert(model)
torch.save([*found, logits(model, False)], {str(tmp_path / "found.pt")!r})
"""
    root = Path(__file__).parent.parent
    done = subprocess.run([sys.executable, "-c", code], cwd=root, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    found = torch.load(tmp_path / "found.pt")
    assert [close(one, right) for one, right in zip(found, [*swapped["all"].values(), own[False]], strict=True)] == [
        True
    ] * 3


@each_kind
def test_the_state_goes_both_ways_and_a_folder_holds_stock_weights(
    kind: str, tmp_path: Path, own: dict[bool, torch.Tensor], swapped: dict[str, dict[bool, torch.Tensor]]
) -> None:
    model, bindings = applied(kind)
    plain = lifecycle.model()
    with torch.no_grad():
        for parameter in plain.parameters():
            parameter.mul_(1.25)
    model.load_state_dict(plain.state_dict())
    assert not close(logits(model), swapped[kind][False])
    model.load_state_dict(lifecycle.model().state_dict(), assign=True)
    assert torch.equal(logits(model), swapped[kind][False])
    plain.load_state_dict(model.state_dict())
    assert torch.equal(logits(plain), own[False])
    model.save_pretrained(tmp_path)
    again = type(model).from_pretrained(tmp_path)
    torch.testing.assert_close(logits(again, False), own[False], **ROOM)
    bindings.revert()
    assert torch.equal(logits(model), own[False])


# Devices and dtypes


@each_kind
def test_a_cast_after_apply_is_as_a_cast_before(kind: str) -> None:
    model, bindings = applied(kind)
    other = lifecycle.model().to(torch.bfloat16)
    plain = logits(other)
    model.to(torch.bfloat16)
    apply(plan_of(kind), other)
    assert logits(model).dtype == torch.bfloat16
    assert torch.equal(logits(model), logits(other))
    bindings.revert()
    assert torch.equal(logits(model), plain)


@each_kind
def test_a_model_that_moves_away_keeps_its_kernels_until_it_is_reverted(
    kind: str, swapped: dict[str, dict[bool, torch.Tensor]]
) -> None:
    model, bindings = applied(kind)
    state = {name: value.clone() for name, value in model.state_dict().items()}
    buffers = {name: value.clone() for name, value in model.named_buffers()}
    model.to("meta")
    assert len(rows(bindings)) == SITES[kind]
    model.to_empty(device="cpu")
    model.load_state_dict(state)
    for name, value in model.named_buffers():
        value.copy_(buffers[name])
    assert torch.equal(logits(model), swapped[kind][False])
    bindings.revert()
    assert not any(key.startswith("_kerncfg") for module in model.modules() for key in vars(module))


@each_kind
def test_a_site_on_another_device_is_kept_with_the_reason(kind: str) -> None:
    model = lifecycle.model()
    model.model.layers[1].to("meta")
    if kind == "attention":
        with pytest.warns(
            KerncfgWarning, match=r"no module runs one: .*model\.layers\.1\.self_attn: the module is on meta"
        ):
            bindings = apply(plan_of(kind), model)
    else:
        bindings = apply(plan_of(kind), model)
    away = [row for row in bindings.report.rows if "layers.1." in row.path or row.kind == "attention"]
    assert away and {(row.status, row.kernel) for row in away} == {("kept", None)}
    assert all("is on meta, the plan is for cpu" in row.reason for row in away), [row.reason for row in away]
    assert all(row.status == "swapped" for row in bindings.report.rows if row not in away)
    bindings.revert()


# Later


@each_kind
def test_what_is_added_later_is_reported_as_not_covered_until_apply_is_run_again(kind: str) -> None:
    model, bindings = applied(kind)
    more = lifecycle.model(num_hidden_layers=3).model.layers[2]
    model.model.layers.append(more)
    found = [row for row in rows(bindings, status="kept") if "added after apply" in row.reason]
    kinds = {row.kind for row in found}
    assert kinds == ({"layer", "function", "attention", "fusion"} if kind == "all" else {kind})
    if kind in ("fusion", "all"):
        assert found[0].reason == "added after apply; revert, and apply again to cover it"
        bindings.revert()
    with apply(plan_of(kind), model) as again:
        assert not [row for row in again.report.rows if "added after apply" in row.reason]
        assert any("layers.2." in row.path for row in rows(again)) or kind == "attention"
