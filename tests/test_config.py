from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from kerncfg.documents.config import Candidate, Conditions, KernelRef, Match, Origin, Policy, Row, Trust
from kerncfg.documents.target import Mode
from tests.builders import A, B, C, config, file, override, preset


@pytest.mark.parametrize(
    ("origin", "text"),
    [
        (file("my.yaml", 3), "my.yaml:3"),
        (file("my.yaml"), "my.yaml"),
        (preset("kernels/liger.yaml", 7), "preset: kernels/liger.yaml:7"),
        (override("kernels.X=builtin:X"), "override: kernels.X=builtin:X"),
        (Origin(kind="argument"), "argument"),
    ],
)
def test_an_origin_reads_as_the_plan_shows_it(origin: Origin, text: str) -> None:
    assert str(origin) == text


@pytest.mark.parametrize(
    ("kind", "local", "trust"),
    [
        ("file", True, True),
        ("override", True, True),
        ("argument", True, False),
        ("preset", False, False),
    ],
)
def test_consent_comes_from_the_person_who_runs_it(kind: str, local: bool, trust: bool) -> None:
    origin = Origin(kind=kind)
    assert (origin.names_local_code, origin.grants_trust) == (local, trust)


CONDITIONS = Conditions(
    capability=">=8.0", torch=">=2.9", dtype=("bfloat16",), when=(("config.hidden_act", ("silu", None)),)
)


def test_conditions_as_data_hold_what_is_set() -> None:
    assert Conditions().to_dict() == {}
    assert CONDITIONS.to_dict() == {
        "capability": ">=8.0",
        "torch": ">=2.9",
        "dtype": ["bfloat16"],
        "when": {"config.hidden_act": ["silu", None]},
    }


def test_what_only_a_module_can_answer_is_residual() -> None:
    expected = {"dtype": ["bfloat16"], "when": {"config.hidden_act": ["silu", None]}}
    assert CONDITIONS.residual() == expected


def test_a_candidate_as_data_is_longhand() -> None:
    candidate = Candidate(ref=KernelRef.parse(A), conditions=Conditions(torch=">=2.9"), trust_remote_code=True)
    assert candidate.to_dict() == {"kernel": A, "torch": ">=2.9", "trust_remote_code": True}


def test_where_a_candidate_was_said_does_not_make_it_another() -> None:
    ref = KernelRef.parse(A)
    assert Candidate(ref=ref, origin=file()) == Candidate(ref=ref, origin=preset())


@pytest.mark.parametrize(
    "data",
    [
        {"class": "*RMSNorm"},
        {"path": "model.layers.*.norm", "type": "torch.nn.RMSNorm"},
        {"name": "RMSNorm", "function": "rotate"},
        {},
    ],
)
def test_a_match_is_the_same_after_a_round_trip(data: dict[str, str]) -> None:
    assert Match.from_dict(data).to_dict() == data


def row(**cells: str) -> Row:
    made = {device: dict.fromkeys(Mode, (Candidate(ref=KernelRef.parse(text)),)) for device, text in cells.items()}
    return Row(name="N", cells=made, fallback="original", own=True)


@pytest.mark.parametrize(("device", "text"), [("cuda", B), ("cpu", A), ("rocm", A)])
def test_a_device_without_its_own_cell_has_that_of_any(device: str, text: str) -> None:
    assert row(any=A, cuda=B).references(device) == {KernelRef.parse(text)}


def test_a_device_may_have_no_cell() -> None:
    assert row(cuda=A).at("cpu") == {}


def test_a_row_gives_its_candidates_of_every_device() -> None:
    found = {candidate.ref for candidate in row(any=A, cuda=B, cpu=C).candidates()}
    assert found == {KernelRef.parse(text) for text in (A, B, C)}


def test_trust_grows_by_publisher_repository_folder_and_module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    grown = Trust(publishers=frozenset({"me"})).plus("acme", "acme/norms", "/a/../b", "./c", "python:p.q")
    assert grown == Trust(
        publishers=frozenset({"me", "acme"}),
        repositories=frozenset({"acme/norms"}),
        local=frozenset({"/b", str(tmp_path / "c"), "python:p.q"}),
    )


def test_trust_as_data_does_not_say_what_is_local() -> None:
    trust = Trust(publishers=frozenset({"b", "a"}), repositories=frozenset({"o/r"}), local=frozenset({"/x"}))
    assert trust.to_dict() == {
        "publishers": {"a": True, "b": True},
        "repositories": {"o/r": True},
        "allow_all_kernels": False,
    }


def test_a_policy_as_data_is_its_node() -> None:
    node: dict[str, Any] = {"fallback": "error", "strict": True, "require_pin": True, "deterministic": True, "seed": 3}
    assert Policy(**node, verify={"on_fail": "error"}).to_dict() == {**node, "verify": {"on_fail": "error"}}


def test_a_config_as_data_parts_what_is_own_from_what_was_inherited() -> None:
    made = config({"N": {"cuda": [A, "inherited"], "cpu": None}}, {"N": B, "M": C})
    assert made.to_dict() == {
        "enabled": True,
        "inherited": {
            "M": {"any": [{"kernel": C}], "fallback": "original"},
            "N": {"any": [{"kernel": B}], "cuda": [{"kernel": B}]},
        },
        "kernels": {
            "N": {
                "cuda": [{"kernel": A}, "inherited"],
                "cpu": [{"kernel": "original"}],
                "fallback": "original",
            }
        },
        "fusions": {},
        "attention": {},
        "trust": {
            "publishers": {"kernels-community": True},
            "repositories": {},
            "allow_all_kernels": False,
        },
        "policy": {
            "fallback": "original",
            "strict": False,
            "require_pin": False,
            "deterministic": False,
            "seed": None,
            "verify": {"on_fail": "report"},
        },
    }


def test_modes_that_differ_are_written_by_mode() -> None:
    made = config({"N": {"cpu": {"inference": A, "training": [B, C]}}})
    assert made.to_dict()["kernels"]["N"]["cpu"] == {
        "inference": [{"kernel": A}],
        "training": [{"kernel": B}, {"kernel": C}],
    }


def test_match_and_exclude_are_written_with_the_row() -> None:
    said = {"any": [{"kernel": A}], "match": {"class": "X"}, "exclude": ["a.*"], "fallback": "error"}
    assert config({"N": said}).to_dict()["kernels"]["N"] == said


def test_notes_do_not_make_a_config_another() -> None:
    made = config({"N": A})
    assert made.notes == ()
    assert made == config({"N": {"any": A}})
