"""Groups that are alike share what the first construction showed; whatever could tell them apart has its own."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

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


def test_one_construction_serves_all_groups_and_what_comes_of_it_is_the_same() -> None:
    root = model()
    found = layouts(prepared(root, Counted))
    assert len(made) == 1
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
    assert len(made) == 1
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
def test_a_group_that_a_constructor_could_tell_from_the_others_has_its_own(change: Callable[[Any], None]) -> None:
    root = model(change)
    found = layouts(prepared(root, Counted))
    assert len(made) == 2
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
