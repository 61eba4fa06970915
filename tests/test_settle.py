"""Everything is settled before the first edit, and what is settled is done as a whole or not at all."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest
import torch
from torch import nn

import kerncfg
from kerncfg.applier.adapters.attention_names import Use
from kerncfg.applier.bind import Owner
from kerncfg.applier.settle import Settled, settle
from kerncfg.documents.target import Mode
from kerncfg.errors import ApplyError
from tests import attending, kinds
from tests.snapshot import snapshot
from tests.subjects import applied

BOTH = (Mode.INFERENCE, Mode.TRAINING)


def settled(model: nn.Module, *rows: str) -> Settled:
    made = kerncfg.plan("inherited=none", *rows, target="cpu") if rows else kinds.plan()
    return settle(made, model, BOTH, Owner.of("test"))


def test_settling_four_kinds_changes_nothing() -> None:
    model = kinds.qwen()
    settled(model)  # which imports the kernels
    before = snapshot(model)
    found = settled(model)
    assert snapshot(model) == before
    assert found.attended is None and all(one.fusion is None for one in found.fusions)


def test_the_edits_of_layers_and_functions_are_there_before_they_are_made() -> None:
    model = kinds.qwen()
    found = settled(model)
    assert Counter(type(module).__name__ for module, _ in found.function_edits()) == {"Qwen3Attention": kinds.LAYERS}
    # Fusions first, which a layer's edit must not stand before; a fusion's own are made when it is done.
    made = [type(module).__name__ for module, _ in found.edits()]
    assert made == ["Qwen3RMSNorm"] * kinds.SITES["layer"] + ["Qwen3Attention"] * kinds.LAYERS


def test_two_functions_of_one_module_are_one_edit() -> None:
    class Twice(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return first(x) + second(x)

    rows = [
        f"kernels.{name}={{match: {{function: {name}}}, cpu: 'python:tests.test_settle:kernel'}}"
        for name in ("first", "second")
    ]
    model = nn.Sequential(Twice())
    found = settled(model, *rows)
    assert len(found.functions) == 2
    assert [module for module, _ in found.function_edits()] == [model[0]]
    found.do(model)
    assert torch.equal(model(torch.ones(2)), torch.full((2,), 20.0))


def first(x: torch.Tensor) -> torch.Tensor:
    return x


def second(x: torch.Tensor) -> torch.Tensor:
    return x


def kernel(x: torch.Tensor) -> torch.Tensor:
    return x * 10


def test_a_name_that_somebody_else_took_undoes_all_that_was_done_before_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """Attention comes last: by then layers, functions and fusions are on the model."""
    from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

    model = kinds.qwen()
    kinds.qwen()
    found = settled(model)
    monkeypatch.setattr(Use, "name", property(lambda _: "taken"))
    monkeypatch.setitem(ALL_ATTENTION_FUNCTIONS._global_mapping, "taken", print)
    before = snapshot(model)
    with pytest.raises(ApplyError, match="taken stands in transformers' registries already"):
        found.do(model)
    assert snapshot(model) == before


# B35: kernels of one row whose signatures drift apart


def test_kernels_of_one_row_that_differ_in_signature_are_told_with_both_before_they_run() -> None:
    rotary = "python:tests.fakes_functions"
    row = f"kernels.rotary_pos_emb.cpu={{inference: '{rotary}:HalfQ', training: '{rotary}:OtherDefault'}}"
    with applied(attending.model("qwen3"), "inherited=none", row) as bindings:
        assert {tuple(one.modes.values()) for one in bindings.report.rows} == {(f"{rotary}:HalfQ", "original")}
        (note,) = [note for note in bindings.report.notes if "training runs the original" in note]
    assert note.startswith("kernels.rotary_pos_emb: training runs the original: ")
    assert f"{rotary}:OtherDefault" in note and "unsqueeze_dim=2)" in note and "unsqueeze_dim=1)" in note


def test_every_candidate_that_was_tried_says_how_its_signature_differs() -> None:
    rotary = "python:tests.fakes_functions"
    row = f"kernels.rotary_pos_emb.cpu=['{rotary}:OtherDefault', '{rotary}:Keyword', '{rotary}:HalfQ']"
    with applied(attending.model("qwen3"), "inherited=none", row) as bindings:
        (said,) = {one.reason for one in bindings.report.rows}
    assert said.index("unsqueeze_dim=2)") < said.index("*, unsqueeze_dim=1)")
    assert said.count("apply_rotary_pos_emb takes (q, k, cos, sin, unsqueeze_dim=1)") == 2


def test_a_path_that_is_excluded_is_kept_though_the_kernel_would_fit() -> None:
    row = "kernels.rotary_pos_emb={cpu: 'python:tests.fakes_functions:HalfQ', exclude: ['model.layers.0.*']}"
    with applied(attending.model("qwen3"), "inherited=none", row) as bindings:
        found: dict[str, Any] = {one.path: (one.status, one.reason) for one in bindings.report.rows}
    assert found["model.layers.0.self_attn"] == ("kept", "excluded by model.layers.0.*")
    assert found["model.layers.1.self_attn"][0] == "swapped"


def test_a_row_that_a_mode_leaves_alone_on_purpose_has_nothing_to_tell() -> None:
    row = "kernels.RMSNorm.cpu={inference: 'builtin:RMSNorm', training: original}"
    with applied(attending.model("qwen3"), "inherited=none", row) as bindings:
        assert bindings.report.notes == ()
