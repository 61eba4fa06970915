from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import pytest

from kerncfg.applier.report import Report, ReportRow
from kerncfg.compiler.schema import validate
from kerncfg.errors import ConfigError, ContractError, Issue, KerncfgError, SourceError
from kerncfg.evidence.rows import Check, Measurement, Row, TimedModel, TimedRow, Timing, Verification, Whole
from kerncfg.outcome import Environment, Outcome, command, folders, read, write_json
from tests.planning import plan, step

CHECK: dict[str, Any] = {"passed": False, "reason": "off", "max_abs": math.inf, "max_rel": math.nan, "error": 1e-3,
         "original_error": 0.0,
         "gain": -math.inf, "identical": 0.0, "within": None, "repeatable": None}  # fmt: skip
ROW = Row(
    **CHECK, name="Norm", path="a", sites=1, kernel="builtin:RMSNorm", modes=("inference", "training"), device="cpu",
    dtype="float32", shape="2x8", reference="float64", hazards=("writes",),
    backward=Check(**CHECK), backward_reason=None,
)  # fmt: skip
TIMING = Timing(original_s=1.0, kernel_s=2.0, speedup=0.5, spread=0.1, verdict="slower", runs=9)
TIMED = TimedRow(
    name="Norm", path="a", sites=1, kernel="builtin:RMSNorm", mode="training", device="cpu", dtype="float32",
    shape="2x8", reason="raised",
)  # fmt: skip


def full(folder: Path) -> Outcome:
    """An outcome with something in every part."""
    site = ReportRow(
        path="a", name="Norm", kind="layer", status="swapped", kernel="builtin:RMSNorm", mode="inference",
        reason="chosen",
        modes={"inference": "builtin:RMSNorm"},
    )  # fmt: skip
    whole = Whole(mode="inference", passed=True, reason=None, reference="float64", max_abs=0.0, max_rel=0.0,
                  identical=1.0, within=1.0)  # fmt: skip
    return Outcome(
        folder=folder,
        overrides=["kernels=a"],
        swept=["kernels=a"],
        number=2,
        total=None,
        plan=plan(step("Norm", "builtin:RMSNorm")),
        report=Report(rows=(site,), notes=("n",), idle={"kernels.X": "no layer"}, absent=("Y",)),
        verification=Verification(rows=(ROW,), model=whole, notes=("v",)),
        measurement=Measurement(rows=(TIMED,), model=TimedModel(mode="inference", training=TIMING), notes=("m",)),
        seconds={"plan": 0.5},
        command=["kerncfg", "run", "kernels=a"],
        started="2026-01-01T00:00:00+00:00",
        sweep="x",
        environment=Environment.here(),
        finished=True,
    )


def saved(outcome: Outcome) -> Outcome:
    outcome.save()
    for name in ("plan", "report", "verification", "measurement"):
        write_json(outcome.home / f"{name}.json", getattr(outcome, name).to_dict())
    return read(outcome.home)


def test_what_a_job_left_is_read_back_as_it_was(tmp_path: Path) -> None:
    outcome = full(tmp_path)
    found = saved(outcome)
    assert found.to_dict() == outcome.to_dict()
    assert (found.plan, found.report) == (outcome.plan, outcome.report)
    assert repr(found.verification) == repr(outcome.verification)  # NaN is not equal to itself
    assert found.measurement == outcome.measurement
    kept = ("number", "total", "swept", "command", "started", "sweep", "environment", "finished")
    assert [getattr(found, name) for name in kept] == [getattr(outcome, name) for name in kept]


def test_its_file_has_the_schema(tmp_path: Path) -> None:
    full(tmp_path).save()
    validate(json.loads((tmp_path / "outcome.json").read_text("utf-8")), "outcome")


ERRORS = [
    ConfigError([Issue(message="unknown key", path="a.b", file="x.yaml", line=3, column=1, hint="mend")]),
    ContractError("does not fit", hint="mend"),
    SourceError("not there"),
    KerncfgError("off"),
]


@pytest.mark.parametrize("error", ERRORS, ids=lambda error: type(error).__name__)
def test_an_error_is_read_back_with_its_kind_and_its_hint(error: KerncfgError, tmp_path: Path) -> None:
    outcome = full(tmp_path)
    outcome.error = error
    found = saved(outcome).error
    assert type(found) is type(error)
    assert found is not None and found.to_dict() == error.to_dict()


def test_a_kind_of_error_that_is_not_known_here_is_an_error_all_the_same(tmp_path: Path) -> None:
    outcome = full(tmp_path)
    outcome.error = KerncfgError("off")
    outcome.save()
    file = tmp_path / "outcome.json"
    file.write_text(file.read_text("utf-8").replace('"KerncfgError"', '"Issue"'), encoding="utf-8")
    assert type(read(tmp_path).error) is KerncfgError


def test_the_environment_names_what_changes_what_runs_and_no_more(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_TOKEN", "secret")
    monkeypatch.setenv("USE_HUB_KERNELS", "0")
    found = Environment.here()
    assert found.variables["USE_HUB_KERNELS"] == "0"
    assert "secret" not in repr(found)
    assert {"torch", "hydra-core"} <= set(found.packages)


def test_the_command_has_every_option_that_the_job_was_given() -> None:
    found = command(["a=b"], Path("my conf"), ["org"], "my.lock")
    assert found == ["kerncfg", "run", "--config-dir", "my conf", "--trust", "org", "--lock", "my.lock", "a=b"]
    assert command(["a=b"], None, (), None) == ["kerncfg", "run", "a=b"]


def test_folders_come_in_the_order_of_their_numbers(tmp_path: Path) -> None:
    for name in ("2", "10", "1"):
        made = tmp_path / name
        made.mkdir()
        (made / "outcome.json").touch()
    assert [folder.name for folder in folders(tmp_path)] == ["1", "2", "10"]
    assert folders(tmp_path / "2") == [tmp_path / "2"]
