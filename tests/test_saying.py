"""What rows of fusions and attention say, where each part was said, and what is wrong with them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from kerncfg.compiler.compose import compose
from kerncfg.compiler.normalise import normalise
from kerncfg.compiler.policy import trusted
from kerncfg.documents.config import Config, KernelRef, Member
from kerncfg.documents.target import Mode
from kerncfg.errors import ConfigError, Issue
from tests.builders import A, B, config, document, origins, override, preset

MEMBERS = [["Norm", "layers.*.norm"], ["MLP", "layers.*.mlp"]]


def faults(**nodes: Any) -> list[Issue]:
    with pytest.raises(ConfigError) as caught:
        config(**nodes)
    return caught.value.issues


def composed(*words: str, config_dir: Path | None = None) -> Config:
    data, found = compose(["inherited=none", *words], config_dir=config_dir)
    return normalise(data, origins=found)


def test_a_fusion_says_its_members_and_what_a_layers_row_says() -> None:
    said = {"members": MEMBERS, "kernel": "org/a:A", "version": 2, "cpu": {"training": B}, "dtype": "bfloat16"}
    found = config(fusions={"f": said}).fusions["f"]
    assert found.members == (Member(name="Norm", path="layers.*.norm"), Member(name="MLP", path="layers.*.mlp"))
    cells = {device: [str(each.ref) for each in found.at(device)[Mode.TRAINING]] for device in ("cuda", "cpu")}
    assert cells == {"cuda": ["org/a@v2:A"], "cpu": [B]}
    assert {candidate.conditions.dtype for candidate in found.candidates()} == {("bfloat16",)}


def test_a_row_of_attention_says_a_kernel_a_part_and_a_mask() -> None:
    found = config(attention={"a": {"kernel": "./k", "path": "model.**", "mask": "eager"}}).attention["a"]
    assert (found.path, found.mask) == ("model.**", "eager")
    (candidate,) = found.at("cuda")[Mode.INFERENCE]
    assert (candidate.ref.scheme, candidate.ref.location, candidate.ref.name) == ("path", str(Path.cwd() / "k"), None)


def test_rows_that_say_nothing_of_falling_back_take_it_from_the_policy() -> None:
    found = config(fusions={"f": None}, attention={"a": "sdpa"}, policy={"fallback": "error"})
    assert {row.fallback for row in found.every()} == {"error"}


@pytest.mark.parametrize(
    ("members", "path", "message", "hint"),
    [
        ([["N", "a.*.n"], ["M", "a.0.m"]], "1.1", "'a.0.m' and 'a.*.n' have different parents, expected one", "a.*.m"),
        ([["N", "n"], ["M", "a.m"]], "1.1", "'a.m' and 'n' have different parents, expected one", "as in m"),
        ([["N", "a.**"]], "0.1", "'a.**' ends in any number of modules, expected the name of one", "a.**.mlp"),
        ([["N", "a.n"], ["M", "a.n"]], "1.1", "'a.n' is said twice in one fusion", "keep one of the two"),
    ],
)
def test_members_stand_beside_each_other(members: Any, path: str, message: str, hint: str) -> None:
    (issue,) = faults(fusions={"f": {"members": members, "kernel": A}})
    assert (issue.path, issue.message) == (f"fusions.f.members.{path}", message)
    assert hint in (issue.hint or "")


@pytest.mark.parametrize("said", ["inherited", ["sdpa", "inherited"], {"cuda": "inherited"}])
def test_nothing_is_inherited_by_attention(said: Any) -> None:
    (issue,) = faults(attention={"a": said})
    assert issue.message == "'inherited' stands where nothing is inherited: attention has no default rows"
    assert issue.hint == "leave it out, or write attention.a=null for off"


@pytest.mark.parametrize("node", [{"fusions": {"f": {"members": MEMBERS}}}, {"attention": {"f": {"mask": "sdpa"}}}])
def test_a_row_names_a_kernel(node: Any) -> None:
    (issue,) = faults(**node)
    assert (issue.path, issue.message) == (f"{next(iter(node))}.f", "no kernel is named")


def test_a_row_of_kernels_need_not() -> None:
    assert config({"N": {"match": {"class": "*"}}}).rows["N"].cells == {}


def test_only_attention_names_kernels_without_a_name_and_those_of_the_framework() -> None:
    for node in ({"kernels": {"X": "sdpa"}}, {"fusions": {"X": {"members": MEMBERS, "kernel": "eager"}}}):
        (issue,) = faults(**node)
        assert "this is an attention" in issue.message and "write attention.default=" in (issue.hint or "")
    (issue,) = faults(fusions={"X": {"members": MEMBERS, "kernel": "org/a@v1"}})
    assert "no kernel name" in issue.message


def test_a_condition_is_said_where_its_attribute_stands() -> None:
    data = document({"N": {"kernel": A, "when": {"config": {"act": "silu"}, "bias": False}}})
    at = {"kernels.N.when": preset(line=4), "kernels.N.when.config.act": override("kernels.N.when.config.act=silu")}
    found = normalise(data, origins=origins(data, at={"kernels.N": preset(), **at})).rows["N"]
    (candidate,) = found.at("cuda")[Mode.INFERENCE]
    assert {key: str(origin) for key, origin in candidate.conditions.asked.items()} == {
        "bias": "preset: kernels/bundled.yaml:4",
        "config.act": "override: kernels.N.when.config.act=silu",
    }


def test_a_condition_without_origins_was_said_nowhere() -> None:
    (candidate,) = config({"N": {"kernel": A, "when": {"bias": False}}}).rows["N"].at("cuda")[Mode.INFERENCE]
    assert candidate.conditions.asked == {}


@pytest.mark.parametrize("node", ["fusions", "attention"])
@pytest.mark.parametrize("reference", ["python:acme.kernels:Name", "/acme/kernels:Name"])
def test_naming_local_code_in_ones_own_file_or_override_is_consent(node: str, reference: str, tmp_path: Path) -> None:
    (tmp_path / node).mkdir()
    members = "members: [[N, a.n]], " if node == "fusions" else ""
    (tmp_path / node / "mine.yaml").write_text(f"X: {{{members}kernel: {reference!r}}}\n")
    for words in ([f"{node}=mine"], [f"{node}.X={{{members}kernel: {reference!r}}}"]):
        assert trusted(KernelRef.parse(reference), composed(*words, config_dir=tmp_path).trust) is None


def test_naming_it_in_a_preset_is_not() -> None:
    data = document(attention={"X": "python:acme.kernels"})
    found = normalise(data, origins=origins(data, preset("attention/x.yaml")))
    assert trusted(KernelRef.parse("python:acme.kernels", attention=True), found.trust) is not None


def test_a_config_as_data_normalises_to_itself() -> None:
    made = config(
        {"N": A},
        fusions={"f": {"members": MEMBERS, "cuda": [A, None], "when": {"a.b": [1]}}, "off": None},
        attention={"a": {"path": "x.**", "mask": "sdpa", "rocm": {"training": "eager"}, "any": B}, "off": None},
    )
    assert normalise(made.to_dict()) == made
    assert normalise(made.to_dict()).to_dict() == made.to_dict()
