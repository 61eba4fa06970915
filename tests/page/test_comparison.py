from __future__ import annotations

import json
import shutil
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

import kerncfg
from kerncfg.cli import main
from kerncfg.compiler.schema import validate
from kerncfg.errors import ApplyError, ConfigError
from kerncfg.evidence.rows import Measurement, TimedModel, Timing, Verification
from kerncfg.page.comparison import compared
from kerncfg.page.sweep import page
from tests.page.conftest import outcome, site
from tests.page.test_report import ROW, TIMED, given_way

if TYPE_CHECKING:
    from kerncfg.outcome import Outcome


def two() -> list[Outcome]:
    """Two runs of one sweep, of which the second failed."""
    training = Timing(original_s=1.0, kernel_s=1.25, speedup=0.8, spread=0.05, verdict="slower", runs=9)
    model = TimedModel(
        mode="inference",
        original_s=2.0,
        kernel_s=1.0,
        speedup=2.0,
        spread=0.1,
        verdict="faster",
        runs=9,
        training=training,
    )
    measured = Measurement(rows=(TIMED,), model=model)
    good = outcome(
        [site("a"), site("b")], Path("s/0"), overrides=["kernels=a", "model.batch=2"], measurement=measured,
        verification=Verification(rows=(ROW,), model=None), sweep="x", number=1,
    )  # fmt: skip
    bad = outcome([], Path("s/1"), overrides=["kernels=b", "model.batch=2"], sweep="x", number=2)
    bad.error = ApplyError("it does not fit", hint="mend it")
    return [bad, good]


def test_runs_stand_in_the_order_of_their_numbers_with_what_sets_them_apart() -> None:
    found = compared(two())
    assert [(job.number, job.differs) for job in found.jobs] == [(1, ("kernels=a",)), (2, ("kernels=b",))]
    assert found.shared == ("model.batch=2",)
    assert not found.passed
    assert found.jobs[1].error == {"error": "ApplyError", "message": "it does not fit", "hint": "mend it"}


def test_each_run_has_the_speed_of_the_model_and_of_each_kernel() -> None:
    (job, _) = compared(two()).jobs
    assert {mode: (speed.speedup, speed.verdict) for mode, speed in job.model.items()} == {
        "inference": (2.0, "faster"), "training": (0.8, "slower"),
    }  # fmt: skip
    (kernel,) = job.kernels
    assert (kernel.kernel, kernel.name, kernel.sites, kernel.passed) == ("builtin:Norm", "Norm", 2, True)
    assert kernel.slowest["inference"].speedup == kernel.fastest["inference"].speedup == 3.0


def test_the_table_has_a_line_for_each_run_and_one_for_each_fault() -> None:
    lines = str(compared(two())).splitlines()
    assert lines[0].split() == ["run", "overrides", "swapped", "passed", "model", "training", "kernels", "folder"]
    assert lines[1].split() == ["1", "kernels=a", "2", "yes", "2.00", "faster", "0.80", "slower", "builtin:Norm", "s/0"]
    assert lines[2].split()[:4] == ["2", "kernels=b", "0", "ERROR"]
    assert lines[3:] == ["all runs: model.batch=2", "run 2: ApplyError: it does not fit"]


def test_a_comparison_as_data_has_its_schema() -> None:
    validate(compared(two()).to_dict(), "comparison")


def test_a_language_models_tokens_and_what_was_taken_off_are_compared() -> None:
    first, second = two(), given_way(Path("s/2"))
    found = compared([*first, second])
    job = found.jobs[-1]
    rates = {name: (rate.speedup, rate.kernel_tokens_s) for name, rate in job.generation.items()}
    assert rates == {"prefill": (2.0, 4096.0), "decode": (1.0, 32.0)}
    assert job.removed == ("Norm (org/repo@v1:Gone)",)
    validate(found.to_dict(), "comparison")
    lines = str(found).splitlines()
    assert lines[0].split()[5:8] == ["training", "prefill", "decode"]
    assert "2.00 faster, 4,096/s" in lines[3]
    assert lines[-1] == "run 3: taken off: Norm (org/repo@v1:Gone)"
    text = page(found)
    assert "How many tokens in a second?" in text
    assert "Norm (org/repo@v1:Gone) was taken off the model" in text
    assert "How many tokens in a second?" not in page(compared(first))


def test_runs_of_several_sweeps_are_numbered_anew() -> None:
    runs = [outcome([], Path(f"{name}/0"), overrides=[f"a={name}"], sweep=name, number=7) for name in "xy"]
    assert [job.number for job in compared(runs).jobs] == [1, 2]


def test_rows_that_failed_for_one_kernel_are_one_line() -> None:
    rows = tuple(replace(ROW, passed=False, reason=f"off by {place}") for place in range(3))
    found = compared([outcome([site("a")], verification=Verification(rows=rows, model=None))])
    assert found.jobs[0].failed == ("Norm (builtin:Norm): off by 0; so do 2 more rows",)
    assert found.jobs[0].kernels[0].passed is False


def test_real_runs_are_compared_from_their_folders(
    passed: Path, failed: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    page = tmp_path / "page.html"
    assert main(["compare", str(passed), str(failed), "-o", str(page)]) == 1
    out = capsys.readouterr().out.splitlines()
    assert out[1].split()[:4] == ["1", "kernels=bundled", "11", "yes"]
    assert "NO" in out[2].split()
    assert out[-1] == f"page: {page}"
    assert "2 runs compared" in page.read_text("utf-8")


def test_a_sweeps_folder_stands_for_its_runs_and_gets_the_page(
    passed: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for number in (0, 10, 9):
        shutil.copytree(passed, tmp_path / "sweep" / str(number))
    assert main(["compare", str(tmp_path / "sweep"), "--json"]) == 0
    captured = capsys.readouterr()
    data = json.loads(captured.out)
    validate(data, "comparison")
    assert [Path(job["folder"]).name for job in data["jobs"]] == ["0", "9", "10"]
    assert captured.err == f"page: {tmp_path / 'sweep' / 'compare.html'}\n"


def test_a_run_whose_files_are_broken_does_not_lose_the_others(passed: Path, tmp_path: Path) -> None:
    for name in ("0", "1"):
        shutil.copytree(passed, tmp_path / name)
    (tmp_path / "0/report.json").write_text("{")
    found = kerncfg.compare(tmp_path)
    assert [job.passed for job in found.jobs] == [False, True]
    assert found.jobs[0].error is not None
    assert "report.json: cannot be read: not JSON" in found.jobs[0].error["message"]


@pytest.mark.parametrize(("place", "said"), [("nowhere", "is not there"), ("file", "is a file"), ("", "holds no run")])
def test_a_place_without_runs_is_named(place: str, said: str, tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(ConfigError, match=said):
        kerncfg.compare(tmp_path / place)


def test_comparing_needs_a_folder(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["compare"]) == 1
    assert "compare needs a folder, found none" in capsys.readouterr().err
