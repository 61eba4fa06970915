"""Groups that are alike share where tensors come from; each has a layout that its constructor made."""

from __future__ import annotations

import collections
import random
from collections.abc import Callable
from typing import Any

import numpy
import pytest
import torch
from torch import nn

import kerncfg.applier.fuse as fuse_module
from kerncfg.applier import connecting
from kerncfg.applier.edits import Owner
from kerncfg.applier.fuse import Fusion, Prepared, fuse, prepare, survey
from kerncfg.applier.groups import groups
from kerncfg.kernels.rms_norm_mlp import RMSNormMLP, RMSNormMLPLayout
from tests.fusing import MEMBERS, MODES, transformer
from tests.snapshot import snapshot

LAYERS = 4
made: list[str] = []


class Counted(RMSNormMLP):
    """Counts its constructions."""


class CountedLayout(RMSNormMLPLayout):
    def __init__(self, norm: Any, mlp: Any) -> None:
        super().__init__(norm, mlp)
        made.append(type(self).__name__)
        self.look(norm, mlp)

    def look(self, norm: Any, mlp: Any) -> None: ...


class State(Counted): ...


class Needy(dict[str, int]):
    def __init__(self, owner: Any) -> None:
        super().__init__()
        self.owner = owner


class StateLayout(CountedLayout):
    __slots__ = ("slotted",)
    conversion: Any

    def look(self, norm: Any, mlp: Any) -> None:
        self.index = len(made)
        self.drawn = torch.rand(()).item(), random.random()
        self.mark = getattr(norm.weight, "mark", None)
        self.flags = getattr(mlp, "flags", None)
        self.hooks = len(mlp._state_dict_pre_hooks), sorted(mlp._non_persistent_buffers_set)
        self.cache: Any = collections.defaultdict(list)
        self.needy = Needy(mlp)
        object.__setattr__(self, "slotted", mlp)
        with torch._C.DisableTorchFunction():
            self.first = float(norm.weight.detach()[0])


class Number(Counted): ...


class NumberLayout(CountedLayout):
    def look(self, norm: Any, mlp: Any) -> None:
        self.scale = norm.weight.sum().item()


class Listed(Counted): ...


class ListedLayout(CountedLayout):
    def look(self, norm: Any, mlp: Any) -> None:
        self.scale = sum(norm.weight.tolist())


class Beside(Counted): ...


class BesideLayout(CountedLayout):
    def look(self, norm: Any, mlp: Any) -> None:
        self.scale = nn.Parameter(norm.weight).sum().item()  # another object, on the same memory


class Holds(Counted): ...


class HoldsLayout(CountedLayout):
    def look(self, norm: Any, mlp: Any) -> None:
        self.seen = [mlp]


class Own(Counted): ...


class OwnLayout(CountedLayout):
    def look(self, norm: Any, mlp: Any) -> None:
        self.act = nn.SiLU()


class Buffered(Counted): ...


class BufferedLayout(CountedLayout):
    def look(self, norm: Any, mlp: Any) -> None:
        self.register_buffer("scale", torch.ones(3))


def model(change: Callable[[Any], None] | None = None) -> Any:
    made.clear()
    found = transformer(num_hidden_layers=LAYERS)
    for place, layer in enumerate(found.model.layers):
        nn.init.constant_(layer.post_attention_layernorm.weight, 1 + place / 10)
    if change is not None:
        change(found.model.layers[2])
    return found


def prepared(root: Any, code: Any) -> list[Prepared | str]:
    looked = survey(root)
    return [prepare(looked, group, (code, code), (None, None), MODES) for group in groups(root, MEMBERS)]


def layouts(found: list[Prepared | str]) -> list[Any]:
    assert all(isinstance(one, Prepared) for one in found)
    return [one.layouts[0] for one in found if isinstance(one, Prepared)]


def fused(root: Any, code: Any) -> tuple[Fusion, ...]:
    return fuse([one for one in prepared(root, code) if isinstance(one, Prepared)], Owner.of("test"))


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, ...]]:
    """The paths of the groups for which it was found out where the tensors come from."""
    found: list[tuple[str, ...]] = []
    own = connecting.lay_out

    def lay_out(code: Any, layout: Any, members: Any, paths: Any, *rest: Any) -> Any:
        found.append(paths)
        return own(code, layout, members, paths, *rest)

    monkeypatch.setattr(fuse_module, "lay_out", lay_out)
    return found


def test_one_answer_serves_all_groups_and_what_comes_of_it_is_the_same(asked: list[Any]) -> None:
    root = model()
    found = layouts(prepared(root, Counted))
    assert len(asked) == 1
    assert len(made) == LAYERS
    first, *others = found
    for place, layout in enumerate(others, 1):
        layer = root.model.layers[place]
        assert type(layout) is type(first)
        assert list(layout.__dict__.keys() ^ first.__dict__.keys()) == []
        assert layout.weight is layer.post_attention_layernorm.weight
        assert layout.down_proj is layer.mlp.down_proj
        parts = [layer.mlp.gate_proj.weight, layer.mlp.up_proj.weight]
        assert torch.equal(layout.gate_up_weight, torch.cat(parts))
        assert layout.variance_epsilon == layer.post_attention_layernorm.variance_epsilon
        for key, value in layout.__dict__.items():
            assert not isinstance(value, dict | list | set) or value is not first.__dict__[key], key
        assert layout.conversion == first.conversion
        assert layout.conversion["gate_up_weight"] is not first.conversion["gate_up_weight"]


def test_what_runs_on_a_layout_made_again_is_right_shares_memory_and_goes_back() -> None:
    root, plain = model(), model()
    ids = torch.arange(6)[None]
    before = snapshot(root)
    fusions = fused(root, Counted)
    torch.testing.assert_close(root(ids).logits, plain(ids).logits)
    for fusion, layer in zip(fusions, root.model.layers, strict=True):
        gate, up = layer.mlp.gate_proj.weight, layer.mlp.up_proj.weight
        assert up.data_ptr() == gate.data_ptr() + gate.numel() * gate.element_size()
        layout: Any = fusion.layouts[0]
        assert layout.gate_up_weight.data_ptr() == gate.data_ptr()
        layer.train()
        assert layout.training
        layer.eval()
        assert not layout.training
    for fusion in reversed(fusions):
        fusion.revert()
    assert snapshot(root) == before


@pytest.mark.parametrize("code", [Number, Listed, Beside])
def test_a_constructor_that_looks_at_values_is_asked_for_each_group(code: Any) -> None:
    root = model()
    scales = [layout.scale for layout in layouts(prepared(root, code))]
    assert scales == pytest.approx([layer.post_attention_layernorm.weight.sum().item() for layer in root.model.layers])
    assert len(set(scales)) == len(made) == LAYERS


def test_what_a_constructor_sees_beside_the_tensors_is_that_of_each_group() -> None:
    root = model()
    for place, layer in enumerate(root.model.layers):
        layer.post_attention_layernorm.weight.mark = place
        layer.mlp.flags = (True,) if place % 2 else (1,)
    root.model.layers[2].mlp.register_state_dict_pre_hook(lambda *_: None)
    random.seed(0)
    found = layouts(prepared(root, State))
    assert [layout.index for layout in found] == [1, 2, 3, 4]
    assert [layout.mark for layout in found] == [0, 1, 2, 3]
    assert [type(layout.flags[0]) for layout in found] == [int, bool, int, bool]
    assert [layout.hooks[0] for layout in found] == [0, 0, 1, 0]
    assert [layout.first for layout in found] == pytest.approx([1.0, 1.1, 1.2, 1.3])
    assert len({layout.drawn[1] for layout in found}) == LAYERS
    for layout, layer in zip(found, root.model.layers, strict=True):
        assert layout.cache["new"] == []
        assert layout.needy.owner is layer.mlp
        assert layout.slotted is layer.mlp


def _tables(layer: Any) -> None:
    layer.mlp.table = torch.arange(3)


def _arrays(layer: Any) -> None:
    layer.mlp.table = numpy.arange(3)


def _normed(layer: Any) -> None:
    with pytest.warns(FutureWarning):
        nn.utils.weight_norm(layer.mlp.down_proj)


@pytest.mark.parametrize("change", [_tables, _arrays, _normed])
def test_members_may_have_tensors_and_arrays_as_attributes(change: Callable[[Any], None]) -> None:
    root, ids = model(), torch.arange(6)[None]
    for layer in root.model.layers:
        change(layer)
    expected = root(ids).logits
    found = prepared(root, Counted)
    if change is not _normed:
        assert all(isinstance(one, Prepared) for one in found)
    assert not any(isinstance(one, str) and "raised" in one for one in found)
    fuse([one for one in found if isinstance(one, Prepared)], Owner.of("test"))
    torch.testing.assert_close(root(ids).logits, expected)


def test_a_parameter_that_does_not_lie_row_after_row_is_not_stacked() -> None:
    def turn(layer: Any) -> None:
        layer.mlp.gate_proj.weight.data = layer.mlp.gate_proj.weight.data.T.contiguous().T

    root = model(turn)
    strides = [one.stride() for one in root.parameters()]
    found = prepared(root, Counted)
    assert found[2] == (
        "mlp.gate_proj.weight has strides (1, 48), and what is stacked by rows has to lie row after row"
    )
    for fusion in fuse([one for one in found if isinstance(one, Prepared)], Owner.of("test")):
        fusion.revert()
    assert [one.stride() for one in root.parameters()] == strides


@pytest.mark.parametrize("code", [Holds, Own, Buffered])
def test_what_a_layout_has_of_its_own_is_made_for_each_group(code: Any) -> None:
    found = layouts(prepared(model(), code))
    assert len(made) == LAYERS
    assert (
        len(
            {
                id(getattr(layout, name))
                for layout in found
                for name in ("seen", "act", "scale")
                if hasattr(layout, name)
            }
        )
        == LAYERS
    )


def _epsilon(layer: Any) -> None:
    layer.post_attention_layernorm.variance_epsilon = 0.5


def _attribute(layer: Any) -> None:
    layer.mlp.extra = 1


def _config(layer: Any) -> None:
    layer.mlp.config = object()


def _bias(layer: Any) -> None:
    layer.mlp.down_proj.bias = nn.Parameter(torch.zeros(layer.mlp.down_proj.out_features))


def _frozen(layer: Any) -> None:
    layer.mlp.gate_proj.weight.requires_grad_(False)


def _wide(layer: Any) -> None:
    layer.mlp.half()


def _class(layer: Any) -> None:
    layer.mlp.down_proj = type("Other", (nn.Linear,), {})(48, 32, bias=False)


@pytest.mark.parametrize("change", [_epsilon, _attribute, _config, _bias, _frozen, _wide, _class])
def test_a_layout_is_made_of_the_group_that_it_is_for(change: Callable[[Any], None], asked: list[Any]) -> None:
    root = model(change)
    found = layouts(prepared(root, Counted))
    assert len(made) == LAYERS
    assert len(asked) == (2 if change in (_bias, _class) else 1)
    assert found[2].variance_epsilon == root.model.layers[2].post_attention_layernorm.variance_epsilon
    assert found[2].gate_up_weight.dtype is root.model.layers[2].mlp.gate_proj.weight.dtype


def _hook(layer: Any) -> None:
    layer.mlp.gate_proj.register_forward_hook(lambda *_: None)


def _forward(layer: Any) -> None:
    layer.mlp.forward = layer.mlp.forward


def _tied(layer: Any) -> None:
    layer.tied = nn.Linear(1, 1)
    layer.tied.weight = layer.mlp.up_proj.weight


def _cast(layer: Any) -> None:
    layer.mlp.up_proj.half()


def _raised(layer: Any) -> None:
    layer.mlp.act_fn = nn.Tanh()


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (_hook, "model.layers.2.mlp.gate_proj has hooks"),
        (_forward, "model.layers.2.mlp has a forward set on the instance"),
        (_tied, "mlp.up_proj.weight is tied to another parameter"),
        (_cast, "mlp.gate_proj.weight and mlp.up_proj.weight differ in dtype"),
        (_raised, "CountedLayout(norm, mlp) raised ValueError"),
    ],
)
def test_a_later_group_is_refused_for_what_the_first_would_be(change: Callable[[Any], None], reason: str) -> None:
    found = prepared(model(change), Counted)
    assert [isinstance(one, Prepared) for one in found] == [True, True, False, True]
    assert str(found[2]).startswith(reason)


def test_two_kernels_of_one_group_share_their_stacks_also_when_made_again() -> None:
    root = model()
    looked = survey(root)
    found = [prepare(looked, group, (Counted, RMSNormMLP), (None, None), MODES) for group in groups(root, MEMBERS)]
    for one in found:
        assert isinstance(one, Prepared)
        assert len(one.stacks) == 1
        sources = [layout.__dict__["_kerncfg_sources"] for layout in one.layouts if layout is not None]
        assert sources[0]["gate_up_weight"] is sources[1]["gate_up_weight"] is one.stacks[0]
