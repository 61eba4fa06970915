"""Which modules a fusion joins, found in real models, and who else may want them."""

from __future__ import annotations

import gc
from typing import TYPE_CHECKING

import pytest
import torch
from torch import nn

from kerncfg.applier.groups import Group, check_conflicts, groups, inner, named_parts
from kerncfg.errors import ApplyError, ConflictError
from tests.fusing import MEMBERS, Block, Norm, blocks, transformer

if TYPE_CHECKING:
    from collections.abc import Sequence

BLOCKS = [("Norm", "*.norm"), ("MLP", "*.mlp")]


def paths(model: nn.Module, members: Sequence[tuple[str, str]]) -> list[tuple[str, ...]]:
    return [group.paths for group in groups(model, members)]


def test_every_layer_gives_a_group_in_the_order_of_the_members() -> None:
    model = transformer()
    found = groups(model, MEMBERS)
    assert [group.parent for group in found] == ["model.layers.0", "model.layers.1"]
    assert found[1].paths == ("model.layers.1.post_attention_layernorm", "model.layers.1.mlp")
    assert found[1].modules[0] is model.get_submodule("model.layers.1.post_attention_layernorm")
    assert found[1].modules[1] is model.get_submodule("model.layers.1.mlp")


def test_a_pattern_for_one_layer_takes_one_layer() -> None:
    members = [(name, pattern.replace("*", "1")) for name, pattern in MEMBERS]
    assert [path for path, _ in paths(transformer(), members)] == ["model.layers.1.post_attention_layernorm"]


def test_a_star_is_one_segment_and_a_dot_is_a_dot() -> None:
    model = nn.Module()
    model.outer, model.outerXinner = nn.Sequential(Block()), Block()
    assert paths(model, [("Norm", "outer.0.norm")]) == [("outer.0.norm",)]
    assert paths(model, [("Norm", "outer.*.norm")]) == [("outer.0.norm",)]
    with pytest.raises(ApplyError, match=r"a member is missing in outer \(no Norm norm\)"):
        groups(model, [("Norm", "*.norm")])
    with pytest.raises(ApplyError, match=r"no parent has \[Norm, outer\.inner\.norm\]"):
        groups(model, [("Norm", "outer.inner.norm")])


def test_two_stars_are_any_number_and_match_only_parents_that_have_a_member() -> None:
    model = nn.Sequential(nn.Sequential(Block()), Block(), nn.Linear(2, 2))
    members = [("Norm", "**.norm"), ("MLP", "**.mlp")]
    assert paths(model, members) == [("0.0.norm", "0.0.mlp"), ("1.norm", "1.mlp")]


@pytest.mark.parametrize("name", ["RMSNorm", "Qwen3RMSNorm", "Norm"])
def test_a_class_is_named_by_registration_name_or_ending(name: str) -> None:
    assert len(groups(transformer(), [(name, "model.layers.*.input_layernorm")])) == 2


def test_a_subclass_answers_to_the_base_whose_forward_it_inherits_only() -> None:
    class Quiet(Norm):
        pass

    class Loud(Norm):
        def forward(self, hidden_states: torch.Tensor) -> torch.Tensor:
            return 2 * super().forward(hidden_states)

    model = nn.Sequential(Block(), Block())
    model[0].norm = Quiet(8)
    assert len(groups(model, [("Norm", "0.norm")])) == 1
    model[0].norm = Loud(8)
    with pytest.raises(ApplyError, match=r"a member is missing in 0 \(norm is a Loud\)"):
        groups(model, [("Norm", "0.norm")])


def test_no_match_names_the_nearest_paths() -> None:
    with pytest.raises(ApplyError) as caught:
        groups(transformer(), [("RMSNorm", "model.layer.*.post_attention_layernorm"), ("MLP", "model.layer.*.mlp")])
    assert caught.value.message.startswith("no parent has [RMSNorm, model.layer.*.post_attention_layernorm], [MLP, ")
    assert caught.value.hint is not None
    assert "model.layers.*.post_attention_layernorm (Qwen3RMSNorm)" in caught.value.hint
    assert "model.layers.*.mlp (Qwen3MLP)" in caught.value.hint


def test_a_parent_that_lacks_a_member_is_named_and_what_stands_there() -> None:
    model = blocks(4)
    model[1].mlp = nn.Identity()
    del model[2].mlp
    with pytest.raises(ApplyError, match=r"a member is missing in 1 \(mlp is a Identity\), 2 \(no MLP mlp\)") as caught:
        groups(model, BLOCKS)
    assert caught.value.hint == "narrow the patterns to the parents that have every member"


def test_members_share_one_parent() -> None:
    with pytest.raises(ApplyError, match=r"share one parent, found model\.layers\.\* and model\n"):
        groups(transformer(), [MEMBERS[0], ("RMSNorm", "model.norm")])
    with pytest.raises(ApplyError, match="at least one member"):
        groups(transformer(), [])


def test_a_member_is_one_module_of_its_parent() -> None:
    with pytest.raises(ApplyError, match=r"has 3 members that Linear, model\.layers\.0\.mlp\.\*_proj fits"):
        groups(transformer(), [("Linear", "model.layers.0.mlp.*_proj")])


def test_one_module_is_fused_once() -> None:
    shared = Norm(8)
    model = blocks(2)
    model[0].norm = model[1].norm = shared
    with pytest.raises(ApplyError, match=r"0\.norm is a member below 0 and below 1, and a module can be fused once"):
        groups(model, BLOCKS)


def test_a_parent_at_two_places_is_one_group() -> None:
    block = Block()
    assert paths(nn.Sequential(block, block), BLOCKS) == [("0.norm", "0.mlp")]


def test_members_of_the_model_itself_are_found() -> None:
    assert paths(Block(), [("Norm", "norm"), ("MLP", "mlp")]) == [("norm", "mlp")]


def test_two_fusions_of_one_module_are_a_conflict_that_names_both() -> None:
    model = blocks()
    first, second = groups(model, BLOCKS), groups(model, [("MLP", "1.mlp")])
    with pytest.raises(ConflictError, match=r"^1\.mlp is a member of fusions\.a and of fusions\.b\n"):
        check_conflicts({"fusions.a": first, "fusions.b": second}, {})
    check_conflicts({"fusions.a": first[:1], "fusions.b": second}, {})


@pytest.mark.parametrize("turned", [False, True])
def test_one_fusion_inside_another_is_a_conflict_that_names_both(turned: bool) -> None:
    model = blocks()
    found: list[tuple[str, Sequence[Group]]] = [
        ("fusions.a", groups(model, BLOCKS)),
        ("fusions.b", groups(model, [("Linear", "1.mlp.gate_proj"), ("Linear", "1.mlp.up_proj")])),
    ]
    with pytest.raises(
        ConflictError, match=r"^1\.mlp\.(gate|up)_proj, a member of fusions\.b, lies inside .*fusions\.a"
    ):
        check_conflicts(dict(reversed(found) if turned else found), {})


def test_a_match_on_a_member_is_a_conflict_and_inside_it_is_none() -> None:
    model = blocks()
    found = {"fusions.a": groups(model, BLOCKS)}
    matched = {id(model.get_submodule("1.norm")): "kernels.Mine (override: kernels.Mine=x)"}
    with pytest.raises(
        ConflictError, match=r"1\.norm is a member of fusions\.a, and kernels\.Mine \(override.*\) takes"
    ):
        check_conflicts(found, matched)
    within = id(model.get_submodule("1.mlp.gate_proj"))
    check_conflicts(found, {within: "kernels.Mine"})
    assert within in inner(found["fusions.a"][1])


def test_a_walk_over_parts_leaves_nothing_for_the_collector() -> None:
    module = nn.Sequential(nn.Sequential(nn.Linear(2, 2)))
    gc.collect()
    gc.disable()
    try:
        assert [path for path, _ in named_parts(module)] == ["", "0", "0.0"]
        assert gc.collect() == 0
    finally:
        gc.enable()
