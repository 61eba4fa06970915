"""Fusion on real models: the same results, parameters, checkpoints and gradients, and back without a trace."""

from __future__ import annotations

import copy
import io
import random
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import pytest
import torch
from torch import nn

from kerncfg.applier import fused as making
from kerncfg.applier.bind import Edit, Owner, bind, unbind
from kerncfg.applier.fuse import Fusion, fuse, fusion_of, unfuse
from kerncfg.applier.stacking import Stack
from kerncfg.errors import ApplyError, ConflictError
from kerncfg.kernels.rms_norm import RMSNorm
from tests.fusing import MEMBERS, Block, blocks, fused, norm, prepared, transformer
from tests.snapshot import snapshot

if TYPE_CHECKING:
    from pathlib import Path

KINDS = ["RMSNormMLP", "Declared", "Mapped", "Turned", "TurnedMapped"]
SHARING = KINDS[:3]
BLOCKS = [("Norm", "*.norm"), ("MLP", "*.mlp")]
INPUT = torch.tensor([[5, 17, 33, 2, 96, 0, 41, 8], [7, 7, 60, 12, 3, 88, 21, 90]])

# Two float32 runs of three products of 48 terms, in another order: fixed before anything was measured.
ROOM: dict[str, Any] = {"rtol": 1e-5, "atol": 1e-5}


def logits(model: Any) -> torch.Tensor:
    result: torch.Tensor = model(INPUT).logits
    return result


def step(model: Any, optimizer: torch.optim.Optimizer) -> None:
    optimizer.zero_grad()
    model(INPUT, labels=INPUT).loss.backward()
    optimizer.step()


def different() -> Any:
    model = transformer()
    with torch.no_grad():
        for place, parameter in enumerate(model.parameters()):
            parameter.mul_(1 + 0.1 * (place % 3))
    return model


def same_state(model: nn.Module, other: nn.Module, **room: Any) -> None:
    mine, theirs = model.state_dict(), other.state_dict()
    assert list(mine) == list(theirs)
    for name, value in mine.items():
        assert value.shape == theirs[name].shape
        torch.testing.assert_close(value, theirs[name], **(room or {"rtol": 0, "atol": 0}))


def assert_shares(fusion: Fusion) -> None:
    """The rows of the stacked weight are the members' weights: by address, not by value."""
    layout, mlp = fusion.layouts[0], fusion.members[1]
    assert isinstance(layout, nn.Module)
    with torch.no_grad():
        stacked: Any = getattr(layout, "gate_up_weight", None)
        stacked = layout.get_submodule("gate_up_proj").weight if stacked is None else stacked
    gate, up = mlp.get_parameter("gate_proj.weight"), mlp.get_parameter("up_proj.weight")
    assert stacked.data_ptr() == gate.data_ptr()
    assert up.data_ptr() == gate.data_ptr() + gate.nbytes
    assert stacked.untyped_storage().nbytes() == gate.nbytes + up.nbytes


def fusions(model: nn.Module) -> list[Fusion]:
    return list({id(found): found for part in model.modules() if (found := fusion_of(part))}.values())


@pytest.mark.parametrize("name", ["Qwen3", "Llama"])
@pytest.mark.parametrize("kind", [*KINDS, "Holding"])
def test_a_fused_model_computes_the_same_and_has_the_same_state(kind: str, name: str) -> None:
    model, other = transformer(name), transformer(name)
    untouched = snapshot(other)
    made = fused(model, kind)
    assert [one.paths[0] for one in made] == [f"model.layers.{n}.post_attention_layernorm" for n in (0, 1)]
    torch.testing.assert_close(logits(model), logits(other), **ROOM)
    same_state(model, other)
    assert snapshot(other)["modules"] == untouched["modules"]


@pytest.mark.parametrize("kind", [*KINDS, "Holding"])
def test_reverting_leaves_no_trace(kind: str) -> None:
    fused(transformer(), kind)  # what is imported for the first time does not count
    model = transformer()
    before, state = snapshot(model), torch.random.get_rng_state()
    made = fused(model, kind)
    assert snapshot(model) != before
    for fusion in reversed(made):
        fusion.revert()
        fusion.revert()
    assert snapshot(model) == before
    assert torch.equal(torch.random.get_rng_state(), state)
    same_state(model, transformer())
    parameters = list(model.parameters())
    assert len({parameter.untyped_storage().data_ptr() for parameter in parameters}) == len(parameters)


@pytest.mark.parametrize("kind", KINDS)
def test_reverting_gives_the_same_objects_with_the_trained_weights(kind: str) -> None:
    model, other = transformer(), transformer()
    modules, parameters = list(model.modules()), list(model.parameters())
    made = fused(model, kind)
    pairs = [(one, torch.optim.AdamW(one.parameters(), lr=1e-2)) for one in (model, other)]
    for _ in range(5):
        for one, optimizer in pairs:
            step(one.train(), optimizer)
    for fusion in made:
        fusion.revert()
    assert all(a is b for a, b in zip(model.modules(), modules, strict=True))
    assert all(a is b for a, b in zip(model.parameters(), parameters, strict=True))
    same_state(model, other, rtol=1e-4, atol=1e-5)
    name = "model.layers.0.mlp.up_proj.weight"
    assert not torch.equal(model.state_dict()[name], transformer().state_dict()[name])


@pytest.mark.parametrize("kind", SHARING)
def test_an_optimizer_made_before_goes_on_and_the_memory_is_one(kind: str) -> None:
    model, other = transformer(), transformer()
    pairs = [(one, torch.optim.AdamW(one.parameters(), lr=1e-2)) for one in (model, other)]
    gate, up = (model.get_parameter(f"model.layers.0.mlp.{name}_proj.weight") for name in ("gate", "up"))
    assert gate.untyped_storage().data_ptr() != up.untyped_storage().data_ptr()
    made = fused(model, kind)
    for fusion in made:
        assert_shares(fusion)
    for _ in range(5):
        for one, optimizer in pairs:
            step(one.train(), optimizer)
        for fusion in made:
            assert_shares(fusion)
    same_state(model, other, rtol=1e-4, atol=1e-5)
    for fusion in made:
        fusion.revert()
    assert gate.untyped_storage().data_ptr() != up.untyped_storage().data_ptr()
    for one, optimizer in pairs:
        step(one, optimizer)
    same_state(model, other, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("kind", ["Turned", "TurnedMapped"])
def test_new_parameters_are_said_and_an_optimizer_made_before_leaves_them(kind: str) -> None:
    model = transformer()
    optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
    name = "model.layers.0.mlp.up_proj.weight"
    before = model.state_dict()[name].clone()
    made = fused(model, kind)
    assert made[0].notes[1].startswith("new parameters take the place of mlp.gate_proj.weight, mlp.up_proj.weight: ")
    step(model, optimizer)
    assert torch.equal(model.state_dict()[name], before)
    step(model, torch.optim.SGD(model.parameters(), lr=1.0))
    assert not torch.equal(model.state_dict()[name], before)


@pytest.mark.parametrize("assign", [False, True])
@pytest.mark.parametrize("kind", KINDS)
def test_checkpoints_go_both_ways_strictly(kind: str, assign: bool) -> None:
    model, other = transformer(), different()
    made = fused(model, kind)
    assert model.load_state_dict(other.state_dict(), strict=True, assign=assign) == ([], [])
    torch.testing.assert_close(logits(model), logits(other), **ROOM)
    same_state(model, other)
    if kind in SHARING:
        for fusion in made:
            assert_shares(fusion)
    fresh = transformer()
    fresh.load_state_dict(model.state_dict(), strict=True, assign=assign)
    torch.testing.assert_close(logits(fresh), logits(other), **ROOM)
    for fusion in made:
        fusion.revert()
    same_state(model, other)
    assert torch.equal(logits(model), logits(other))


@pytest.mark.parametrize("kind", KINDS)
def test_a_part_of_a_checkpoint_changes_that_part(kind: str) -> None:
    model, other = transformer(), transformer()
    fused(model, kind)
    part = {"model.layers.1.mlp.up_proj.weight": torch.full((48, 32), 0.01)}
    for one in (model, other):
        assert len(one.load_state_dict(part, strict=False).missing_keys) == len(one.state_dict()) - 1
    same_state(model, other)
    torch.testing.assert_close(logits(model), logits(other), **ROOM)


def test_a_wrong_key_or_shape_is_refused_as_without_a_fusion() -> None:
    model = transformer()
    fused(model, "Turned")
    state = model.state_dict()
    name = "model.layers.0.mlp.gate_proj.weight"
    with pytest.raises(RuntimeError, match=f"size mismatch for {name}"):
        model.load_state_dict({**state, name: state[name].T})
    with pytest.raises(RuntimeError, match=f'Missing key.*"{name}"'):
        model.load_state_dict({key: value for key, value in state.items() if key != name})
    same_state(model, transformer())


@pytest.mark.parametrize("kind", KINDS)
def test_a_saved_folder_holds_stock_weights(kind: str, tmp_path: Path) -> None:
    model: Any = transformer()
    fused(model, kind)
    model.save_pretrained(tmp_path)
    read = type(model).from_pretrained(tmp_path)
    same_state(read, transformer())
    assert fusions(read) == []


@pytest.mark.parametrize("kind", KINDS)
def test_a_state_dict_is_not_taken_back_by_what_comes_after(kind: str) -> None:
    model = transformer()
    fused(model, kind)
    kept, variables = model.state_dict(), model.state_dict(keep_vars=True)
    model.state_dict()
    for name, value in transformer().state_dict().items():
        assert torch.equal(kept[name], value)
        assert torch.equal(variables[name].detach(), value)
        assert isinstance(variables[name], nn.Parameter)


@pytest.mark.parametrize("kind", [*KINDS, "Holding"])
def test_a_copy_runs_on_its_own_weights_and_reverts_alone(kind: str) -> None:
    model = transformer()
    made = fused(model, kind)
    twin = copy.deepcopy(model)
    mine = fusions(twin)
    assert len(mine) == 2
    assert not set(map(id, mine)) & set(map(id, made))
    assert torch.equal(logits(twin), logits(model))
    twin.load_state_dict(different().state_dict())
    torch.testing.assert_close(logits(twin), logits(different()), **ROOM)
    torch.testing.assert_close(logits(model), logits(transformer()), **ROOM)
    for part in list(twin.modules()):
        unfuse(part)
    assert fusions(twin) == []
    assert torch.equal(logits(twin), logits(different()))
    assert len(fusions(model)) == 2
    if kind in SHARING:
        for fusion in made:
            assert_shares(fusion)


@pytest.mark.parametrize("kind", [*KINDS, "Holding"])
def test_a_file_keeps_the_fusion(kind: str) -> None:
    model = transformer()
    fused(model, kind)
    file = io.BytesIO()
    torch.save(model, file)
    file.seek(0)
    read = torch.load(file, weights_only=False)
    assert [fusion.codes for fusion in fusions(read)] == [fusion.codes for fusion in fusions(model)]
    assert torch.equal(logits(read), logits(model))
    same_state(read, model)
    if kind in SHARING:
        for fusion in fusions(read):
            assert_shares(fusion)
    step(read, torch.optim.SGD(read.parameters(), lr=1.0))
    assert not torch.equal(logits(read), logits(model))


@pytest.mark.parametrize("kind", KINDS)
def test_a_cast_and_a_move_keep_it(kind: str) -> None:
    model, other = transformer(), transformer()
    made = fused(model, kind)
    for change in (torch.float64, torch.bfloat16, torch.float32):
        model.to(change)
        other.to(change)
        assert all(value.dtype == change for value in model.state_dict().values())
        if kind in SHARING:
            for fusion in made:
                assert_shares(fusion)
    same_state(model, other)
    torch.testing.assert_close(logits(model), logits(other), **ROOM)
    for fusion in made:
        fusion.revert()
    same_state(model, other)


def test_a_model_on_meta_is_fused_and_filled_later() -> None:
    with torch.device("meta"):
        model = blocks()
    made = fused(model, "RMSNormMLP", members=BLOCKS)
    model.to_empty(device="cpu")
    model.load_state_dict(blocks().state_dict())
    for fusion in made:
        assert_shares(fusion)
    x = torch.randn(3, 8)
    torch.testing.assert_close(model(x), blocks()(x), **ROOM)


def test_modes_without_a_kernel_run_the_original() -> None:
    model, other = transformer(), transformer()
    made = fused(model, "Holding", "original")  # drops half of everything, were it to run in training
    for training in (True, False, True):
        model.train(training)
        assert made[0].layouts[0] is not None
        assert made[0].layouts[0].training is training
        torch.testing.assert_close(logits(model), logits(other), **ROOM)
    made = fused(other, "original", "Holding")
    assert torch.equal(logits(other.eval()), logits(transformer()))
    assert not torch.allclose(logits(other.train()), logits(transformer()))


def test_each_mode_has_its_kernel_and_both_share_one_memory() -> None:
    model = transformer()
    made = fused(model, "RMSNormMLP", "Declared")
    assert len(made[0].stacks) == 1
    assert_shares(made[0])
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    other = transformer()
    for one, steps in ((model, optimizer), (other, torch.optim.SGD(other.parameters(), lr=0.1))):
        step(one.train(), steps)
        one.eval()
    torch.testing.assert_close(logits(model), logits(other), **ROOM)


def test_parameters_that_need_no_gradient_get_none() -> None:
    model, other = transformer(), transformer()
    fused(model, "RMSNormMLP")
    for one in (model, other):
        one.get_submodule("model.layers.0.mlp.gate_proj").requires_grad_(False)
        one(INPUT, labels=INPUT).loss.backward()
    assert model.get_parameter("model.layers.0.mlp.gate_proj.weight").grad is None
    for (name, mine), theirs in zip(model.named_parameters(), other.parameters(), strict=True):
        if theirs.grad is not None:
            assert mine.grad is not None, name
            torch.testing.assert_close(mine.grad, theirs.grad, **ROOM)


def test_biases_are_stacked_too() -> None:
    model, other = blocks(bias=True), blocks(bias=True)
    made = fused(model, "RMSNormMLP", members=BLOCKS)
    assert len(made[0].stacks) == 2
    x = torch.randn(3, 8)
    for one in (model, other):
        torch.autograd.backward(one(x).square().sum())
    torch.testing.assert_close(model(x), other(x), **ROOM)
    for mine, theirs in zip(model.parameters(), other.parameters(), strict=True):
        torch.testing.assert_close(mine.grad, theirs.grad, **ROOM)


def test_tensors_put_in_for_one_call_are_the_ones_that_run() -> None:
    model, other = transformer(), transformer()
    fused(model, "Declared")
    swapped = {name: 1.1 * value for name, value in other.named_parameters()}
    results = [torch.func.functional_call(one, swapped, (INPUT,)).logits for one in (model, other)]
    torch.testing.assert_close(*results, **ROOM)
    torch.testing.assert_close(logits(model), logits(other), **ROOM)


def test_parameters_that_something_else_moved_are_read_where_they_are() -> None:
    model, other = transformer(), transformer()
    (first, second) = fused(model, "RMSNormMLP")
    for one in (model, other):
        weight = one.get_parameter("model.layers.0.mlp.gate_proj.weight")
        weight.data = weight.data * 1.5
    torch.testing.assert_close(logits(model), logits(other), **ROOM)
    assert first.changed() is not None
    assert "no longer share one memory" in str(first.changed())
    assert second.changed() is None


def test_what_comes_between_later_is_said() -> None:
    model = transformer()
    (first, second) = fused(model, "RMSNormMLP")
    model.get_submodule("model.layers.0.mlp").register_module("up_proj", nn.Linear(32, 48, bias=False))
    model.get_submodule("model.layers.1.mlp.gate_proj").register_forward_hook(lambda *_: None)
    assert "model.layers.0.mlp.up_proj is another module" in str(first.changed())
    assert "model.layers.1.mlp.gate_proj has hooks" in str(second.changed())


COMPILED = pytest.mark.filterwarnings("ignore:.*should not be instantiated")  # torch, of its own tracing


@COMPILED
@pytest.mark.parametrize("kind", ["RMSNormMLP", "Mapped", "Holding"])
def test_compiles_in_one_graph_before_and_after(kind: str) -> None:
    torch._dynamo.reset()  # what other tests compiled of these classes counts towards its limit
    model, other = transformer(), transformer()
    compiled = torch.compile(model, backend="aot_eager", fullgraph=True)
    torch.testing.assert_close(logits(compiled), logits(other), **ROOM)
    made = fused(model, kind)
    torch.testing.assert_close(logits(compiled), logits(other), **ROOM)
    fresh = torch.compile(copy.deepcopy(model), backend="aot_eager", fullgraph=True)
    torch.testing.assert_close(logits(fresh), logits(other), **ROOM)
    torch.autograd.backward(logits(compiled).square().sum())
    torch.autograd.backward(logits(other).square().sum())
    for mine, theirs in zip(model.parameters(), other.parameters(), strict=True):
        torch.testing.assert_close(mine.grad, theirs.grad, rtol=1e-4, atol=1e-4)
    for fusion in made:
        fusion.revert()
    torch.testing.assert_close(logits(compiled), logits(other), **ROOM)


@COMPILED
def test_one_compilation_for_each_mode() -> None:
    from torch._dynamo.testing import CompileCounter

    model = transformer()
    fused(model, "RMSNormMLP", "original")
    counter = CompileCounter()
    compiled = torch.compile(model, backend=counter, fullgraph=True)
    for training in (False, True, False, True):
        model.train(training)
        logits(compiled)
    assert counter.frame_count == 2


@COMPILED
@pytest.mark.parametrize("strict", [False, True])
def test_exports(strict: bool) -> None:
    model = blocks()
    fused(model, "RMSNormMLP", members=BLOCKS)
    x = torch.randn(3, 8)
    exported = torch.export.export(model, (x,), strict=strict)
    torch.testing.assert_close(exported.module()(x), model(x), **ROOM)
    assert sorted(exported.state_dict) == sorted(model.state_dict())


def test_gradient_checkpointing_gives_the_same_gradients() -> None:
    model: Any = transformer()
    other: Any = transformer()
    fused(model, "RMSNormMLP")
    model.config.use_cache = other.config.use_cache = False
    model.activation_checkpointing_enable()
    for one in (model, other):
        one.train()(INPUT, labels=INPUT).loss.backward()
    for mine, theirs in zip(model.parameters(), other.parameters(), strict=True):
        torch.testing.assert_close(mine.grad, theirs.grad, **ROOM)


def test_only_the_matching_layer_is_fused() -> None:
    model = transformer()
    fused(model, "RMSNormMLP", members=[(name, pattern.replace("*", "1")) for name, pattern in MEMBERS])
    first, second = (model.get_submodule(f"model.layers.{place}.mlp") for place in (0, 1))
    assert fusion_of(first) is None
    assert fusion_of(second) is not None
    assert "forward" not in vars(first)
    assert vars(type(first)) == vars(type(second))


@pytest.mark.parametrize("kind", ["Scaled", "Remade"])
def test_a_layout_of_one_member_is_the_same_mechanism(kind: str) -> None:
    members = [("RMSNorm", "model.layers.*.input_layernorm")]
    model, other = transformer(rms_norm_eps=1e-3), transformer(rms_norm_eps=1e-3)
    before = snapshot(model)
    made = fused(model, kind, members=members)
    layout = made[0].layouts[0]
    assert layout is not None
    assert layout.scale is model.get_parameter("model.layers.0.input_layernorm.weight")
    assert layout.variance_epsilon == 1e-3
    assert made[0].notes == ()
    assert torch.equal(logits(model), logits(other))
    for fusion in made:
        fusion.revert()
    assert snapshot(model) == before


def _hook(model: nn.Module) -> None:
    model.get_submodule("model.layers.0.mlp").register_forward_hook(lambda *_: None)


def _inner_hook(model: nn.Module) -> None:
    model.get_submodule("model.layers.0.mlp.gate_proj").register_full_backward_hook(lambda *_: None)


def _parametrize(model: nn.Module) -> None:
    nn.utils.parametrizations.weight_norm(model.get_submodule("model.layers.0.mlp.gate_proj"))


def _wrap(model: nn.Module) -> None:
    gate = model.get_submodule("model.layers.0.mlp.gate_proj")
    gate.forward = lambda x: nn.Linear.forward(gate, x)  # type: ignore[arg-type]


def _tie(model: nn.Module) -> None:
    mlp = model.get_submodule("model.layers.0.mlp")
    mlp.get_submodule("gate_proj").weight = mlp.get_parameter("up_proj.weight")


def _tie_memory(model: nn.Module) -> None:
    mlp = model.get_submodule("model.layers.0.mlp")
    mlp.get_parameter("gate_proj.weight").data = mlp.get_parameter("up_proj.weight").data


def _cast(model: nn.Module) -> None:
    model.get_submodule("model.layers.0.mlp.gate_proj").to(torch.bfloat16)


def _activate(model: nn.Module) -> None:
    model.get_submodule("model.layers.0.mlp").act_fn = nn.GELU()


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (_hook, "model.layers.0.mlp has hooks, which the kernel would pass by"),
        (_inner_hook, "model.layers.0.mlp.gate_proj has hooks, which"),
        (_parametrize, "model.layers.0.mlp.gate_proj has a parametrization, which"),
        (_wrap, "model.layers.0.mlp.gate_proj has a forward set on the instance, which"),
        (_tie, "mlp.gate_proj.weight is tied to another parameter"),
        (_tie_memory, "mlp.gate_proj.weight is tied to another parameter"),
        (_cast, "mlp.gate_proj.weight and mlp.up_proj.weight differ in dtype, device or width"),
        (_activate, "RMSNormMLPLayout(norm, mlp) raised ValueError: the MLP's activation is not SiLU"),
    ],
)
def test_what_a_kernel_would_pass_by_is_a_reason(change: Callable[[nn.Module], None], reason: str) -> None:
    model = transformer()
    change(model)
    before = snapshot(model)
    first, second = prepared(model, "RMSNormMLP")
    assert isinstance(first, str)
    assert first.startswith(reason)
    assert not isinstance(second, str)
    assert snapshot(model)["modules"] == before["modules"]


@pytest.mark.parametrize(
    ("kind", "training", "reason"),
    [
        ("Half", None, "HalfLayout: it takes no account of mlp.gate_proj.weight, mlp.up_proj.weight"),
        ("NoSource", None, "NoSourceLayout: its extra has no source: say in conversion what it is made of"),
        ("Alone", None, "a fused kernel needs a class AloneLayout(nn.Module) beside it, in tests.fusing"),
        ("Scaled", None, "ScaledLayout(norm: 'Any') -> 'None' takes other arguments than the 2 members"),
        (
            "Turned",
            "original",
            "TurnedLayout makes new parameters of mlp.gate_proj.weight, mlp.up_proj.weight, so it has",
        ),
        (
            "Turned",
            "RMSNormMLP",
            "TurnedLayout makes new parameters of mlp.gate_proj.weight, mlp.up_proj.weight, so it has",
        ),
    ],
)
def test_a_layout_that_does_not_fit_is_a_reason(kind: str, training: str | None, reason: str) -> None:
    model = transformer()
    before = snapshot(model)
    found = prepared(model, kind, training)
    assert isinstance(found[0], str)
    assert found[0].startswith(reason)
    assert snapshot(model) == before


def test_a_fused_member_is_not_fused_again() -> None:
    model = transformer()
    fused(model, "RMSNormMLP")
    with pytest.raises(ConflictError, match=r"mlp is fused already, as part of model\.layers\.1\.post_attention_layer"):
        prepared(model, "Holding", members=[("MLP", "model.layers.1.mlp")])


def test_a_kernel_of_an_earlier_apply_runs_again_after_the_fusion() -> None:
    model = blocks()
    member = model[0].norm
    edit = Edit(Owner.of("earlier"), (RMSNorm.forward, RMSNorm.forward), (None, None))
    bind(member, edit)
    made = fused(model, "RMSNormMLP", members=BLOCKS)
    x = torch.randn(3, 8)
    torch.testing.assert_close(model(x), blocks()(x), **ROOM)
    for fusion in made:
        fusion.revert()
    assert member.forward.__func__ is RMSNorm.forward
    unbind(member, edit)
    torch.testing.assert_close(model(x), blocks()(x), rtol=0, atol=0)


def test_a_parent_that_gives_more_than_one_argument_is_told_so() -> None:
    class Pair(Block):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            result: torch.Tensor = self.mlp(self.norm(x), x)
            return result

    model = nn.Sequential(Pair())
    fused(model, "RMSNormMLP", members=BLOCKS)
    with pytest.raises(ApplyError, match="was called with 2 arguments, and can hand on one"):
        model(torch.randn(3, 8))


def test_the_original_of_a_fusion_is_its_members_in_turn() -> None:
    model = blocks()
    made = fused(model, "RMSNormMLP", members=BLOCKS)
    x = torch.randn(3, 8)
    first = blocks()[0]
    assert torch.equal(made[0].original(x), first.mlp(first.norm(x)))
    assert torch.equal(made[0].original(hidden_states=x), first.mlp(first.norm(x)))


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("place", range(6))
def test_a_failure_at_any_edit_leaves_the_model_as_it_was(
    kind: str, place: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = transformer()
    before = snapshot(model)
    count = iter(range(100))

    def failing(function: Callable[..., Any]) -> Callable[..., Any]:
        def call(*arguments: Any) -> Any:
            if next(count) == place:
                raise RuntimeError("injected")
            return function(*arguments)

        return call

    monkeypatch.setattr(making, "bind", failing(bind))
    monkeypatch.setattr(Stack, "join", failing(Stack.join))
    monkeypatch.setattr(Fusion, "_enter", failing(Fusion._enter))
    with pytest.raises(RuntimeError, match="injected"):
        fused(model, kind)
    assert snapshot(model) == before
    same_state(model, transformer())
    assert torch.equal(logits(model), logits(transformer()))


def test_fusing_nothing_is_nothing() -> None:
    assert fuse([], Owner.of("test")) == ()
    unfuse(nn.Linear(2, 2))


@pytest.mark.property
def test_any_order_of_events_keeps_the_fused_model_equal_to_the_plain_one() -> None:
    draw = random.Random(0)
    for kind in ("RMSNormMLP", "Declared", "Turned"):
        model, other = blocks(), blocks()
        fused(model, kind, members=BLOCKS)
        x = torch.randn(3, 8, generator=torch.Generator().manual_seed(1))
        for _ in range(30):
            event = draw.choice(["train", "double", "load", "assign", "copy", "mode"])
            if event == "train":
                for one in (model, other):
                    one.zero_grad()
                    one(x).square().mean().backward()
                    torch.optim.SGD(one.parameters(), lr=0.1).step()
            elif event == "double":
                for one in (model, other):
                    one.double().float()
            elif event in ("load", "assign"):
                state = {name: 0.9 * value for name, value in other.state_dict().items()}
                for one in (model, other):
                    one.load_state_dict(
                        {name: value.clone() for name, value in state.items()}, assign=event == "assign"
                    )
            elif event == "copy":
                model = copy.deepcopy(model)
            else:
                model.train(draw.random() < 0.5)
            torch.testing.assert_close(model(x), other(x), rtol=1e-4, atol=1e-4)
            same_state(model, other, rtol=1e-4, atol=1e-4)
        for part in list(model.modules()):
            unfuse(part)
        same_state(model, other, rtol=1e-4, atol=1e-4)


def test_the_norm_of_the_tests_is_that_of_the_model() -> None:
    member = transformer().get_submodule("model.norm")
    x = torch.randn(2, 32)
    assert torch.equal(norm(x, member.get_parameter("weight"), 1e-6), member(x))


@COMPILED
def test_tensors_put_in_for_one_call_are_the_ones_that_are_compiled() -> None:
    model, other = blocks(), blocks()
    fused(model, "RMSNormMLP", members=BLOCKS)
    x = torch.randn(3, 8)
    swapped = {name: 1.1 * value.detach() for name, value in other.named_parameters()}
    run = torch.compile(lambda given: torch.func.functional_call(model, given, (x,)), backend="aot_eager")
    torch.testing.assert_close(run(swapped), torch.func.functional_call(other, swapped, (x,)), **ROOM)


def test_a_parameter_that_a_member_got_meanwhile_stays() -> None:
    model = blocks()
    made = fused(model, "Turned", members=BLOCKS)
    extra = nn.Parameter(torch.ones(1))
    model[0].mlp.gate_proj.register_parameter("extra", extra)
    assert "0.mlp.gate_proj.extra" in model.state_dict()
    for fusion in made:
        fusion.revert()
    assert model[0].mlp.gate_proj.extra is extra
    assert list(model[0].mlp.gate_proj._parameters) == ["weight", "bias", "extra"]
