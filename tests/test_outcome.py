from __future__ import annotations

import json
import math
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from kerncfg.applier.report import Report, ReportRow
from kerncfg.compiler.schema import validate
from kerncfg.errors import ConfigError, ContractError, Issue, KerncfgError, SourceError
from kerncfg.evidence.rows import Check, Measurement, Row, TimedModel, TimedRow, Timing, Verification, Whole
from kerncfg.outcome import Environment, Outcome, blaming, command, folders, read, write_json
from kerncfg.page.comparison import compared
from kerncfg.page.report import page, report
from kerncfg.page.sweep import compare
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


def test_what_a_terminal_obeys_is_spelled_out_where_what_a_job_left_is_printed(tmp_path: Path) -> None:
    outcome, sign = full(tmp_path), "\x1b[31m\nnote: forged"
    assert outcome.report and outcome.verification and outcome.measurement
    site = replace(outcome.report.rows[0], name=f"Norm{sign}", reason=f"chosen{sign}")
    outcome.report = replace(outcome.report, rows=(site,), notes=(f"n{sign}",))
    row = replace(ROW, name=f"Norm{sign}", reason=f"off{sign}")
    outcome.verification = replace(outcome.verification, rows=(row,), notes=(f"v{sign}",))
    timed = replace(TIMED, shape=f"2x8{sign}", reason=f"raised{sign}")
    outcome.measurement = replace(outcome.measurement, rows=(timed,), notes=(f"m{sign}",))
    outcome.overrides = outcome.swept = [f"kernels=a{sign}"]
    outcome.error = KerncfgError(f"e{sign}")
    again = saved(outcome)
    texts = [str(again.report), str(again.verification), str(again.measurement), str(compared([again, again]))]
    assert again.report and again.error
    texts += [again.report._repr_html_()]
    for text in texts:
        assert "\x1b" not in text and "\nnote: forged" not in text and r"\x1b[31m\nnote: forged" in text
    assert "\x1b" not in str(again.error) + page(again)


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


# A document, the keys down to one value, a wrong value that is JSON, and what the error says besides the file's name.
WRONG: list[tuple[str, tuple[str | int, ...], Any, str]] = [
    ("report", ("rows", 0, "status"), "moved", "rows.0.status"),
    ("report", ("rows", 0, "modes"), None, "rows.0.modes"),
    ("report", ("rows", 0, "name"), {"a": 1}, "rows.0.name"),
    ("report", ("idle",), [1], "idle"),
    ("report", ("notes",), 3, "notes"),
    ("verification", ("rows", 0, "max_abs"), "x", "rows.0.max_abs"),
    ("verification", ("rows", 0, "modes"), None, "rows.0.modes"),
    ("verification", ("rows", 0, "error"), [], "rows.0.error"),
    ("verification", ("model", "within"), "much", "model.within"),
    ("verification", ("removed",), [{"name": 1}], "removed.0"),
    ("measurement", ("rows", 0, "spread"), -1, "rows.0.spread"),
    ("measurement", ("model", "spread"), -1, "model.spread"),
    ("measurement", ("model", "speedup"), "fast", "model.speedup"),
]
NAMES = [f"{name}: {'.'.join(map(str, keys))}: {value}" for name, keys, value, _ in WRONG]


def leave(folder: Path) -> None:
    """Write documents of a run with figures everywhere that a page or a comparison makes use of."""
    found = full(folder)
    assert found.report and found.verification and found.measurement
    row = replace(ROW, passed=True, error=1e-3, original_error=1e-4, max_abs=0.1, max_rel=0.1, gain=0.0, backward=None)
    figures = {"original_s": 1.0, "kernel_s": 2.0, "speedup": 0.5, "spread": 0.1, "verdict": "slower", "runs": 9}
    write_json(folder / "report.json", found.report.to_dict())
    write_json(folder / "verification.json", replace(found.verification, rows=(row,)).to_dict())
    timed = replace(TIMED, reason=None, **figures)  # type: ignore[arg-type]
    model = TimedModel(mode="inference", training=TIMING, **figures)  # type: ignore[arg-type]
    write_json(folder / "measurement.json", Measurement(rows=(timed,), model=model).to_dict())


def spoil(folder: Path, name: str, keys: tuple[str | int, ...], value: Any) -> None:
    """Put a wrong value into a document."""
    file = folder / f"{name}.json"
    data = json.loads(file.read_text("utf-8"))
    inner = data
    for key in keys[:-1]:
        inner = inner[key]
    inner[keys[-1]] = value
    file.write_text(json.dumps(data), encoding="utf-8")


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a run in which all is well."""
    folder = tmp_path_factory.mktemp("whole") / "run"
    folder.mkdir()
    saved(full(folder))
    leave(folder)
    return folder


def test_the_folder_that_is_spoilt_below_is_well(whole: Path, tmp_path: Path) -> None:
    assert report(whole, tmp_path / "page.html").is_file()
    assert not any(job.error for job in compare(whole, output=tmp_path / "all.html").jobs)


@pytest.mark.parametrize(("name", "keys", "value", "place"), WRONG, ids=NAMES)
def test_a_wrong_value_is_an_error_of_its_file_and_key(
    name: str, keys: tuple[str | int, ...], value: Any, place: str, whole: Path, tmp_path: Path
) -> None:
    bad = shutil.copytree(whole, tmp_path / "bad")
    spoil(bad, name, keys, value)
    with pytest.raises(ConfigError) as caught:
        report(bad)
    assert {issue.file for issue in caught.value.issues} == {str(bad / f"{name}.json")}
    assert any((issue.path or "").startswith(place) for issue in caught.value.issues)


# What a comparison has no use for, and so does not see.
UNUSED = {("verification", key) for key in ("max_abs", "error", "within", "modes")}


@pytest.mark.parametrize(("name", "keys", "value", "place"), WRONG, ids=NAMES)
def test_a_wrong_value_is_an_error_of_that_run_and_of_no_other_that_is_compared(
    name: str, keys: tuple[str | int, ...], value: Any, place: str, whole: Path, tmp_path: Path
) -> None:
    bad = shutil.copytree(whole, tmp_path / "bad")
    spoil(bad, name, keys, value)
    found = compare(bad, whole, output=tmp_path / "all.html")
    spoilt, good = sorted(found.jobs, key=lambda job: job.folder != str(bad))
    assert not good.error and good.counts and good.model and good.kernels
    assert json.dumps(found.to_dict(), allow_nan=False) and (tmp_path / "all.html").is_file()
    used = (name, keys[-1]) not in UNUSED
    assert bool(spoilt.error) is used and str(found).count("ERROR") == used
    if spoilt.error:
        assert f"{name}.json" in spoilt.error["message"] and place in spoilt.error["message"]


@pytest.mark.parametrize(
    ("name", "keys", "value"),
    [
        ("verification", ("rows", 0, "original_error"), -1),
        ("measurement", ("model", "original_s"), 10**400),
        ("measurement", ("rows", 0, "speedup"), 10**400),
    ],
)
def test_a_wrong_value_that_no_schema_knows_is_an_error_of_the_folders_files(
    name: str, keys: tuple[str | int, ...], value: Any, whole: Path, tmp_path: Path
) -> None:
    bad = shutil.copytree(whole, tmp_path / "bad")
    spoil(bad, name, keys, value)
    with pytest.raises(ConfigError, match=rf"bad: .*{name}\.json.* holds a value that no run writes: \w+Error"):
        report(bad)
    assert not next(job for job in compare(bad, whole).jobs if job.folder == str(whole)).error


def test_a_configuration_that_is_no_text_is_said_to_be_none(whole: Path, tmp_path: Path) -> None:
    bad = shutil.copytree(whole, tmp_path / "bad")
    (bad / "config.yaml").write_bytes(b"model: 1\na: \xff\n")
    with pytest.raises(ConfigError, match=r"config\.yaml:2:4: the byte 0xff is not UTF-8"):
        report(bad)
    assert not any(job.error for job in compare(bad, whole).jobs)


def test_what_hydra_wrote_that_is_no_text_or_no_list_is_said_to_be_none(whole: Path, tmp_path: Path) -> None:
    bad = shutil.copytree(whole, tmp_path / "bad")
    (bad / "outcome.json").unlink()
    (bad / ".hydra").mkdir()
    for data in (b"- \xff\n", b"  3\n"):
        (bad / ".hydra/overrides.yaml").write_bytes(data)
        with pytest.raises(ConfigError, match="bad"):
            report(bad)


def test_an_error_that_is_ours_and_one_that_no_value_causes_pass_as_they_are(tmp_path: Path) -> None:
    for error in (SourceError("away"), KeyboardInterrupt(), OSError("full")):
        with pytest.raises(type(error)) as caught, blaming(tmp_path):
            raise error
        assert caught.value is error
    with (
        pytest.raises(ConfigError, match=r"outcome\.json holds a value that no run writes: KeyError: 'a'"),
        blaming(tmp_path),
    ):
        raise KeyError("a")
