from __future__ import annotations

import math
from typing import Any

import pytest

from kerncfg.compiler.schema import schema
from kerncfg.evidence.rows import SCHEMA, Check, Measurement, Row, TimedModel, Timing, Verification, Whole

MEASURES: dict[str, Any] = {
    "max_abs": 1e-3,
    "max_rel": 2e-3,
    "error": 1e-4,
    "original_error": 1e-4,
    "gain": 0.0,
    "identical": 0.5,
    "within": 1.0,
    "repeatable": True,
}
WHOLE: dict[str, Any] = {
    "mode": "inference",
    "reference": "float64",
    "max_abs": 0.0,
    "max_rel": 0.0,
    "identical": 1.0,
    "within": 1.0,
}


def row(**said: Any) -> Row:
    usual: dict[str, Any] = {"name": "RMSNorm", "path": "a.norm", "sites": 1, "kernel": "builtin:RMSNorm"}
    where = {
        "modes": ("inference",),
        "device": "cpu",
        "dtype": "float32",
        "shape": "2x8",
        "reference": "float64",
        "hazards": (),
    }
    verdict = {"passed": True, "reason": None, "backward": None, "backward_reason": "training runs the original"}
    return Row(**{**usual, **where, **verdict, **MEASURES, **said})


@pytest.mark.parametrize("name", ["verification", "measurement"])
def test_the_format_number_is_that_of_the_schema(name: str) -> None:
    assert schema(name)["properties"]["schema"]["const"] == SCHEMA


def test_a_verification_passes_if_every_row_and_the_model_do() -> None:
    good, bad = Whole(passed=True, reason=None, **WHOLE), Whole(passed=False, reason="raised", **WHOLE)
    assert Verification(rows=(row(),), model=good).passed
    assert not Verification(rows=(row(), row(passed=False)), model=good).passed
    assert not Verification(rows=(row(),), model=bad).passed


def test_a_backward_is_written_as_the_same_keys_again() -> None:
    data = row(backward=Check(passed=False, reason="why", **MEASURES)).to_dict()
    assert data["backward"] == {"passed": False, "reason": "why", **MEASURES}
    assert set(data) >= set(data["backward"])


def test_numbers_that_json_lacks_are_written_as_text() -> None:
    assert row(max_abs=math.inf).to_dict()["max_abs"] == "inf"


def test_the_table_of_a_verification_shows_every_row_and_the_model() -> None:
    backward = Check(passed=False, reason="why", **MEASURES)
    whole = Whole(passed=True, reason=None, **WHOLE)
    rows = (row(), row(path="b.norm", sites=3, passed=False, reason="off", backward=backward))
    head, first, second, model, within, reason, backwards = str(Verification(rows=rows, model=whole)).splitlines()
    assert head.split()[:3] == ["name", "path", "shape"]
    assert first.split()[:6] == ["RMSNorm", "a.norm", "2x8", "builtin:RMSNorm", "inference", "yes"]
    assert "b.norm and 2 more" in second and second.split()[-1] == "NO"
    assert model.split()[:3] == ["model", "inference", "yes"]
    assert within.startswith("within: ")
    assert reason == "b.norm: off"
    assert backwards == "b.norm: why"


def test_a_measurement_that_could_not_be_made_does_not_pass() -> None:
    timing: dict[str, Any] = {"original_s": 2.0, "kernel_s": 1.0, "speedup": 2.0, "spread": 0.1, "verdict": "faster"}
    good = TimedModel(mode="inference", runs=9, training=Timing(**timing), **timing)
    assert Measurement(rows=(), model=good).passed
    assert not Measurement(rows=(), model=TimedModel(mode="inference", reason="raised")).passed
    assert len(str(Measurement(rows=(), model=good)).splitlines()) == 4


def test_a_difference_inside_the_spread_is_printed_as_the_same() -> None:
    timing: dict[str, Any] = {"original_s": 1.0, "kernel_s": 1.0, "speedup": 1.0, "spread": 0.1, "verdict": "none"}
    model = TimedModel(mode="inference", runs=9, **timing)
    lines = str(Measurement(rows=(), model=model)).splitlines()
    assert lines[1].split()[-1] == "same"
    assert lines[-1].endswith("same: the speedup is within that factor of 1, or not every block of readings shows it")
    assert model.to_dict()["verdict"] == "none"


def test_nothing_to_show_is_no_table() -> None:
    assert str(Measurement(rows=(), model=None, notes=("nothing is swapped",))) == "nothing is swapped"


def test_what_a_kernel_did_besides_computing_is_printed() -> None:
    odd = row(hazards=("backward wrote to the gradient",), repeatable=False, reference="none: the original is random")
    assert odd.steady is None
    assert str(Verification(rows=(odd,), model=None)).splitlines()[3:] == [
        "a.norm: hazard: backward wrote to the gradient",
        "a.norm: not repeatable, as the original: two runs on the same inputs gave different bits",
        "a.norm: none: the original is random",
    ]
