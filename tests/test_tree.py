"""A document as a tree in which every value knows where it was said."""

from __future__ import annotations

import pytest

from kerncfg.compiler.tree import Node, Origins, grow, leaves, merge, spell
from kerncfg.documents.config import Origin

FILE = Origin(kind="file", place="a.yaml", line=3, column=5)
PRESET = Origin(kind="preset", place="kernels/a.yaml", line=1)
OVERRIDE = Origin(kind="override", place="kernels.X=1")
ARGUMENT = Origin(kind="argument")


def test_a_path_is_spelt_as_it_is_typed() -> None:
    assert spell(("kernels", "RMSNorm", "cuda", 1, "capability")) == "kernels.RMSNorm.cuda.1.capability"


def test_plain_data_grows_into_a_tree_and_back() -> None:
    data = {"a": [1, {"b": None}], "c": "d"}
    assert grow(data, FILE).plain() == data
    assert [(path, node.value) for path, node in leaves(grow(data, FILE))] == [
        (("a", 0), 1), (("a", 1, "b"), None), (("c",), "d"),
    ]  # fmt: skip


def test_maps_merge_and_anything_else_is_replaced() -> None:
    lost: list[tuple[tuple[str | int, ...], Origin]] = []
    below = grow({"a": {"x": 1, "y": 2}, "b": [1, 2], "c": "text", "d": None, "e": {"z": 1}}, PRESET)
    above = grow({"a": {"y": 3}, "b": [4], "c": {"w": 5}, "d": {"v": 6}, "e": None}, FILE)
    assert merge(below, above, (), lost).plain() == {
        "a": {"x": 1, "y": 3}, "b": [4], "c": {"w": 5}, "d": {"v": 6}, "e": None,
    }  # fmt: skip
    assert lost == [(("c",), PRESET)]


@pytest.mark.parametrize(
    ("origin", "where"),
    [
        (FILE, "a.yaml:3:5: kernels.X"),
        (PRESET, "preset: kernels/a.yaml:1: kernels.X"),
        (OVERRIDE, "override: kernels.X=1: kernels.X"),
        (ARGUMENT, "kernels.X"),
    ],
)
def test_a_fault_says_where_its_value_was_said(origin: Origin, where: str) -> None:
    assert Origins(Node({}, origin)).issue(("kernels", "X"), "is wrong").where == where


def test_a_node_given_as_data_is_an_argument_and_the_others_stay_as_they_were() -> None:
    root = grow({"kernels": {"X": 1}, "policy": {"strict": True}}, FILE)
    origins = Origins(root, ((("kernels", "X"), FILE), (("policy", "strict"), FILE))).saying(["kernels"])
    assert origins.at(("kernels", "X")) == ARGUMENT
    assert origins.at(("policy", "strict")) == FILE
    assert origins.lost == ((("policy", "strict"), FILE),)
