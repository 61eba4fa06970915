"""Rows of fusions and attention, and how each is called."""

from __future__ import annotations

import pytest

from kerncfg.documents.config import AttentionRow, Fusion, Member, Origin
from kerncfg.documents.target import Mode
from tests.builders import A, config

NORM_MLP = [["RMSNorm", "layers.*.norm"], ["MLP", "layers.*.mlp"]]


def test_a_fusion_as_data_lists_its_members_in_order() -> None:
    found = config(fusions={"f": {"members": NORM_MLP, "cuda": A, "fallback": "error"}}).fusions["f"]
    assert found.to_dict() == {"members": NORM_MLP, "cuda": [{"kernel": A}], "fallback": "error"}


def test_a_fusion_that_is_only_off_is_null_as_data() -> None:
    found = config(fusions={"f": None}).fusions["f"]
    assert found.to_dict() is None
    assert [str(candidate.ref) for candidate in found.at("cpu")[Mode.TRAINING]] == ["original"]


def test_a_row_of_attention_as_data_says_its_part_and_its_mask() -> None:
    found = config(attention={"a": {"path": "model.visual.**", "kernel": "sdpa"}, "b": "org/a@v1"}).attention
    assert found["a"].to_dict() == {
        "path": "model.visual.**", "mask": "auto", "any": [{"kernel": "sdpa"}], "fallback": "original",
    }  # fmt: skip
    assert found["b"].to_dict() == {"mask": "auto", "any": [{"kernel": "org/a@v1"}], "fallback": "original"}


def test_only_a_layers_row_is_called_by_its_name_alone() -> None:
    found = config({"N": A}, fusions={"N": None}, attention={"N": None})
    assert [(row.title, row.key) for row in found.every()] == [
        ("N", "kernels.N"), ("fusions.N", "fusions.N"), ("attention.N", "attention.N"),
    ]  # fmt: skip
    assert [type(row) for row in found.every()][1:] == [Fusion, AttentionRow]


def test_a_member_has_a_parent() -> None:
    assert Member(name="M", path="layers.*.mlp").parent == "layers.*"
    assert Member(name="M", path="mlp").parent == ""
    assert str(Member(name="M", path="mlp")) == "M at mlp"


@pytest.mark.parametrize(
    ("kind", "names", "grants"),
    [
        ("file", True, True),
        ("override", True, True),
        ("argument", True, False),
        ("preset", False, False),
        ("hub", False, False),
    ],
)
def test_what_may_be_said_where(kind: str, names: bool, grants: bool) -> None:
    origin = Origin(kind=kind, place="there.yaml", line=3)
    assert (origin.names_local_code, origin.grants_trust) == (names, grants)


def test_a_file_of_the_hub_is_called_by_its_address() -> None:
    assert str(Origin(kind="hub", place="hf://a/b@main/x.yaml", line=3)) == "hf://a/b@main/x.yaml:3"
