"""What a layout declares, made definite: by name, by conversions of transformers, by the arguments of a class."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest
import torch
from torch import nn
from transformers.core_model_loading import WeightRenaming

from kerncfg.applier.arguments import Unknown, arguments, names_of
from kerncfg.applier.layouts import Unfit, companion, scheme
from kerncfg.kernels.layers import RMSNormMLP
from kerncfg.kernels.rms_norm_mlp import RMSNormMLPLayout
from tests.fusing import Alone, Block, DeclaredLayout, Mapped, MappedLayout, Norm, RemadeLayout, TurnedLayout

PATHS = ["model.layers.3.post_attention_layernorm", "model.layers.3.mlp"]


def found(layout: type[nn.Module]) -> Any:
    block = Block()
    members = [block.norm, block.mlp]
    return scheme(layout(*members), members, ["norm", "mlp"], PATHS, None)


def test_the_companion_stands_in_the_kernel_s_module() -> None:
    assert companion(Mapped) is MappedLayout
    assert companion(RMSNormMLP) is RMSNormMLPLayout
    assert companion(Alone) is None
    assert companion(len) is None


@pytest.mark.parametrize("layout", [DeclaredLayout, MappedLayout])
def test_both_declarations_say_the_same(layout: type[nn.Module]) -> None:
    result = found(layout)
    assert result.kept == {"scale": "norm.weight", "down_proj.weight": "mlp.down_proj.weight"}
    assert result.stacked == {"gate_up_proj.weight": ("mlp.gate_proj.weight", "mlp.up_proj.weight")}
    assert result.converted == []


def test_transforms_of_a_layout_are_left_as_they_were() -> None:
    before = [(one._was_used, dict(one.collected_tensors)) for one in MappedLayout.conversion_mapping]
    found(MappedLayout)
    assert [(one._was_used, dict(one.collected_tensors)) for one in MappedLayout.conversion_mapping] == before


def test_a_bare_model_s_keys_get_the_prefix_that_the_patterns_have() -> None:
    class Bare(nn.Module):
        base_model_prefix = "model"

    block = Block()
    members = [block.norm, block.mlp]
    paths = [path.removeprefix("model.") for path in PATHS]
    assert scheme(MappedLayout(*members), members, ["norm", "mlp"], paths, Bare()).kept["scale"] == "norm.weight"


def test_methods_take_what_is_left() -> None:
    (conversion,) = found(TurnedLayout).converted
    assert conversion.sources == ("mlp.gate_proj.weight", "mlp.up_proj.weight")
    assert conversion.targets == ("gate", "up")


class _Base(nn.Module):
    def __init__(self, norm: Any, mlp: Any) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.ones(8))
        self.mlp = mlp


class Unknowing(_Base):
    conversion: Mapping[str, str] = {"scale": "norm.bias"}


class Ambiguous(_Base):
    conversion: Mapping[str, str] = {"scale": "weight", "mlp": "weight"}


class Misnamed(_Base):
    conversion: Mapping[str, str] = {"scales": "norm.weight"}


class Forgetful(_Base):
    conversion_mapping = (WeightRenaming("other.weight", "post_attention_layernorm.scale"),)


@pytest.mark.parametrize(
    ("layout", "reason"),
    [
        (Unknowing, "its conversion names norm.bias, which no member has"),
        (Ambiguous, "its conversion names mlp, which it has not; it has scale"),
        (Misnamed, "its conversion names scales, which it has not; it has scale"),
        (Forgetful, "its scale has no source: say in conversion what it is made of"),
    ],
)
def test_a_wrong_declaration_is_said(layout: type[nn.Module], reason: str) -> None:
    with pytest.raises(Unfit) as caught:
        found(layout)
    assert str(caught.value) == reason


def test_members_are_called_as_the_constructor_calls_them() -> None:
    block = Block()
    assert names_of(DeclaredLayout, [block.norm, block.mlp]) == ["norm", "mlp"]
    assert names_of(DeclaredLayout, [block.norm]) is None
    assert names_of(nn.Sequential, [block.norm, block.mlp]) == ["member0", "member1"]
    assert arguments(DeclaredLayout, [block.norm, block.mlp]) == [block.norm, block.mlp]


def test_arguments_of_the_member_s_class_are_found_where_it_puts_them() -> None:
    class Like(nn.Module):
        def __init__(self, hidden_size: int, eps: float = 1e-6, *, elementwise: bool = True) -> None:
            super().__init__()
            self.weight = nn.Parameter(torch.ones(hidden_size))
            self.variance_epsilon = eps

    assert names_of(RemadeLayout, [Like(12, 1e-3)]) == ["module"]
    assert arguments(RemadeLayout, [Like(12, 1e-3)]) == {"hidden_size": 12, "eps": 1e-3}

    class Linear(nn.Module):
        def __init__(self, in_features: int, out_features: int) -> None:
            super().__init__()

    assert arguments(Linear, [nn.Linear(3, 5)]) == {"in_features": 3, "out_features": 5}


def test_an_argument_that_left_no_trace_is_unknown() -> None:
    class Hidden(Norm):
        def __init__(self, size: int, secret: float = 0.5) -> None:
            super().__init__(size)

    class HiddenLayout(nn.Module):
        def __init__(self, size: int, secret: float = 0.5) -> None:
            super().__init__()

    with pytest.raises(Unknown, match="secret"):
        arguments(HiddenLayout, [Hidden(4, 0.7)])
