from __future__ import annotations

import contextlib
import io
import json
import os
import pty
import re
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import yaml

import kerncfg
from kerncfg.cli import main
from kerncfg.cli.tables import print_stage, print_sweep
from kerncfg.compiler.schema import validate
from kerncfg.evidence.rows import Measurement, TimedModel
from kerncfg.run import Outcome, run
from tests.builders import kernel_folder
from tests.page.test_report import TIMED, given_way

SMALL = (
    "model.config.num_hidden_layers=2",
    "model.config.hidden_size=64",
    "model.config.intermediate_size=96",
    "model.config.head_dim=16",
    "model.config.vocab_size=128",
    "model.sequence=16",
)
FAULTS = Path(__file__).parent / "faults"
GUARD = Path(__file__).parent / "hub" / "guard"
CHECKOUT = Path(__file__).parent.parent
DOCUMENTS = ("plan", "report", "verification", "measurement")


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Every run writes below its working directory."""
    monkeypatch.chdir(tmp_path)
    return tmp_path


def call(*arguments: str) -> int:
    return main(list(arguments))


def elsewhere(folder: Path) -> dict[str, str]:
    """The environment of a process that finds the modules of a folder, and in which tests' measurements are brief."""
    paths = [str(folder), str(GUARD), str(CHECKOUT), *filter(None, [os.environ.get("PYTHONPATH")])]
    return {**os.environ, "PYTHONPATH": os.pathsep.join(paths)}


def at_a_terminal(*arguments: str) -> tuple[int, list[str]]:
    """Call with a terminal for standard error, and return the exit code and the lines there but warnings."""
    ours, theirs = pty.openpty()
    with pytest.MonkeyPatch.context() as patch, os.fdopen(theirs, "w", encoding="utf-8") as terminal:
        patch.setattr(sys, "stderr", terminal)
        code = call(*arguments)
        terminal.flush()
        said = os.read(ours, 65536).decode()
    os.close(ours)
    return code, [line for line in said.splitlines() if not line.startswith("warning: ")]


def runs(folder: Path) -> list[Path]:
    return sorted(file.parent for file in folder.glob("outputs/**/plan.json"))


@pytest.fixture(scope="module")
def bundled(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, str]:
    """The folder of one run with the bundled kernels, for those who read what it left, and what it printed."""
    folder = tmp_path_factory.mktemp("bundled")
    with contextlib.chdir(folder), contextlib.redirect_stdout(io.StringIO()) as printed:
        assert call("run", "kernels=bundled", *SMALL) == 0
    return folder, printed.getvalue()


def test_a_run_leaves_config_overrides_and_four_documents(bundled: tuple[Path, str]) -> None:
    folder, out = bundled
    (made,) = runs(folder)
    for name in (*DOCUMENTS, "outcome"):
        validate(json.loads((made / f"{name}.json").read_text()), name)
    assert yaml.safe_load((made / ".hydra" / "overrides.yaml").read_text())[0] == "kernels=bundled"
    assert yaml.safe_load((made / ".hydra" / "config.yaml").read_text())["kernels"]["RMSNorm"]["cuda"]
    report = json.loads((made / "report.json").read_text())
    assert (
        report["counts"]["swapped"] == 11
    )  # four norms and a rotary embedding in each of two layers, and the last norm
    assert f"passed: {made}" in out.replace(str(folder) + "/", "") or "passed: " in out


def test_a_run_prints_plan_report_verification_and_measurement(bundled: tuple[Path, str]) -> None:
    _, out = bundled
    positions = [out.index(word) for word in ("plan ", "\nreport", "\nverification", "\nmeasurement", "passed: ")]
    assert positions == sorted(positions)


def test_a_run_as_json_prints_nothing_but_data(capsys: pytest.CaptureFixture[str]) -> None:
    assert call("run", "--json", "kernels=bundled", *SMALL) == 0
    data = json.loads(capsys.readouterr().out)
    validate(data, "run")
    (made,) = data["runs"]
    assert made["passed"] is True
    assert set(DOCUMENTS) <= set(made)


def test_a_run_that_fails_has_its_error_in_its_data(capsys: pytest.CaptureFixture[str]) -> None:
    assert call("run", "--json", "model.architecture=Qwen3ForCausalLMM", *SMALL) == 1
    data = json.loads(capsys.readouterr().out)
    validate(data, "run")
    assert data["runs"][0]["error"]["issues"][0]["file"] == "override: model.architecture=Qwen3ForCausalLMM"
    assert data["runs"][0]["report"] is None


def test_a_row_that_swaps_nothing_is_told_at_the_end(capsys: pytest.CaptureFixture[str]) -> None:
    rows = ("kernels=bundled", "kernels.RMSNrom.cpu=builtin:RMSNorm")
    assert call("run", *rows, *SMALL) == 0
    *_, told, passed = capsys.readouterr().out.splitlines()
    assert told.startswith("passed, but nothing swapped: kernels.RMSNrom: no layer RMSNrom, said at override: ")
    assert passed.startswith("passed: ")
    assert call("run", *rows, "policy=strict", *SMALL) == 1
    assert "policy.strict: rows that swap nothing: kernels.RMSNrom: " in capsys.readouterr().err


def test_rows_that_swap_nothing_for_one_reason_share_a_line(capsys: pytest.CaptureFixture[str]) -> None:
    rows = [f"kernels.{name}.cuda=builtin:RMSNorm" for name in "ABCDE"]
    assert call("run", *(f"{row}" for row in rows), "kernels.RMSNorm.cuda=builtin:RMSNorm", *SMALL) == 0
    lines = [line for line in capsys.readouterr().out.splitlines() if line.startswith("nothing swapped: ")]
    assert any(line == "nothing swapped: kernels.RMSNorm: no row for cpu" for line in lines)


def test_where_a_model_cannot_be_built_the_place_of_the_value_is_told(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (folder / "my" / "model").mkdir(parents=True)
    (folder / "my" / "model" / "mine.yaml").write_text("factory: python:nowhere:make\n")
    assert call("run", "--config-dir", "my", "model=mine") == 1
    assert "error: my/model/mine.yaml:1:10: model.factory: there is no module 'nowhere'" in capsys.readouterr().err
    (folder / "raises_when_called.py").write_text("def make():\n    raise ValueError('no such size')\n")
    word = "model={factory: python:raises_when_called:make}"
    assert call("run", word) == 3
    assert f"error: override: {word}: model.factory: python:raises_when_called:make raised" in capsys.readouterr().err


def test_a_device_that_is_not_here_is_a_matter_of_the_environment(capsys: pytest.CaptureFixture[str]) -> None:
    assert call("run", "target={device: tpu}", *SMALL) == 3
    assert "target: this machine cannot hold a model on tpu" in capsys.readouterr().err


def test_a_policy_may_make_a_kernel_that_fails_an_error(capsys: pytest.CaptureFixture[str]) -> None:
    row = f"kernels.RMSNorm.cpu={FAULTS}:WeightOffset"
    assert call("run", row, "policy.verify.on_fail=error", *SMALL) == 1
    captured = capsys.readouterr()
    assert f"error: verification failed, and policy.verify.on_fail is error: RMSNorm ({FAULTS}:Weigh" in captured.err
    assert f"RMSNorm ({FAULTS}:WeightOffset) failed verification: its speed means nothing" in captured.out


def test_of_what_was_taken_off_for_failing_no_speed_is_told(capsys: pytest.CaptureFixture[str]) -> None:
    found = given_way()
    print_stage(found, "measurement")
    assert "failed verification" not in capsys.readouterr().out
    found.measurement = Measurement(rows=(replace(TIMED, kernel="org/repo@v1:Gone"),), model=None)
    print_stage(found, "measurement")
    assert "Norm (org/repo@v1:Gone) failed verification: its speed means nothing" in capsys.readouterr().out


def test_a_sweep_says_whether_its_speedups_are_any(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    timing: dict[str, Any] = {"original_s": 1.0, "kernel_s": 25.0, "speedup": 0.04, "spread": 24.5, "verdict": "none"}
    model = TimedModel(mode="inference", runs=9, **timing)
    made = Outcome(folder=folder / "0", overrides=[], measurement=Measurement(rows=(), model=model))
    print_sweep([made])
    assert "  yes     0.04 same  " in capsys.readouterr().out


def test_a_sweep_makes_a_folder_for_each_run(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert call("run", "-m", "kernels=none,bundled", *SMALL) == 0
    made = runs(folder)
    assert len(made) == 2
    swapped = [json.loads((each / "report.json").read_text())["counts"]["swapped"] for each in made]
    assert swapped == [0, 11]
    lines = capsys.readouterr().out.splitlines()
    assert [line for line in lines if line.startswith("run ") and " of 2: " in line] == [
        "run 1 of 2: kernels=none", "run 2 of 2: kernels=bundled",
    ]  # fmt: skip
    head, first, second = (line.split() for line in lines[-3:])
    assert head == ["run", "overrides", "swapped", "passed", "model", "speedup", "folder"]
    assert first[:5] == ["1", "kernels=none", "0", "yes", "-"]
    assert second[:4] == ["2", "kernels=bundled", "11", "yes"]
    assert Path(second[-1]) == made[1].relative_to(folder)


def test_a_sweep_in_other_processes_is_told_in_order_and_loses_no_job(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    # Three heads do not go with two for keys and values: every second job ends in an error of the model's own.
    launcher = ("hydra/launcher=joblib", "hydra.launcher.n_jobs=2", "hydra.sweep.dir=sweep")
    swept = ("kernels=none,bundled", "model.config.num_attention_heads=4,3")
    assert call("run", "-m", *swept, *SMALL, *launcher) == 1
    captured = capsys.readouterr()
    out = captured.out.splitlines()
    assert [line for line in out if line.startswith("run ") and " of 4: " in line] == [
        f"run {number} of 4: kernels={kernels} model.config.num_attention_heads={heads}"
        for number, (kernels, heads) in enumerate([("none", 4), ("none", 3), ("bundled", 4), ("bundled", 3)], 1)
    ]
    assert [line.split()[4] for line in out[-4:]] == ["yes", "yes", "yes", "NO"]
    assert "the model's own forward raised RuntimeError" in captured.err
    assert call("compare", "--json", "sweep") == 1
    data = json.loads(capsys.readouterr().out)
    validate(data, "comparison")
    assert [job["passed"] for job in data["jobs"]] == [True, True, True, False]
    assert data["jobs"][3]["differs"] == ["kernels=bundled", "model.config.num_attention_heads=3"]
    assert (folder / "sweep/compare.html").is_file()


def test_a_sweep_in_other_processes_as_json_prints_nothing_but_data(tmp_path: Path) -> None:
    source = "import torch\nprint('imported')\n" + NORM.replace("wide = hidden", "print('called'); wide = hidden", 1)
    kernel_folder(tmp_path / "loud", source)
    (tmp_path / "plain_model_of_jobs.py").write_text(PLAIN)  # without transformers, which every process would import
    for group, text in {
        "kernels": f"norm:\n  match: {{class: MyRMSNorm}}\n  cpu: {tmp_path}/loud:Norm\n",
        "model": "factory: python:plain_model_of_jobs:make\n",
    }.items():
        (tmp_path / "my_conf" / group).mkdir(parents=True)
        (tmp_path / "my_conf" / group / "mine.yaml").write_text(text)
    words = ["--config-dir", "my_conf", "inherited=none", "kernels=mine", "model=mine", "policy.seed=0,1"]
    done = subprocess.run(
        [sys.executable, "-m", "kerncfg", "run", "-m", "--json", *words, "hydra/launcher=joblib"],
        cwd=tmp_path, env=elsewhere(tmp_path), capture_output=True, text=True, timeout=240, check=False,
    )  # fmt: skip
    data = json.loads(done.stdout)
    validate(data, "run")
    assert [made["swept"] for made in data["runs"]] == [["policy.seed=0"], ["policy.seed=1"]]
    assert [made["report"]["counts"]["swapped"] for made in data["runs"]] == [1, 1]
    assert "called" in done.stderr


KILLED = """
import os, pathlib, time
import torch

def fine():
    return torch.nn.Linear(4, 4), {"input": torch.ones(1, 4)}

def ends():
    while not pathlib.Path("sweep/0/report.html").exists():
        time.sleep(0.1)
    os._exit(9)
"""


def test_a_sweep_whose_process_is_killed_says_so_and_keeps_what_had_ended(folder: Path) -> None:
    (folder / "killed.py").write_text(KILLED)
    models = "model={factory: python:killed:fine},{factory: python:killed:ends}"
    done = subprocess.run(
        [sys.executable, "-m", "kerncfg", "run", "-m", models, "hydra/launcher=joblib", "hydra.launcher.n_jobs=2",
         "hydra.sweep.dir=sweep"],
        cwd=folder, capture_output=True, text=True, timeout=240, check=False,
        env=elsewhere(folder),
    )  # fmt: skip
    assert done.returncode == 3, done.stderr
    assert "error: the launcher raised TerminatedWorkerError" in done.stderr
    assert "1 of 2 jobs had ended" in done.stderr
    assert "the run did not come to its end" in done.stderr
    assert call("compare", "sweep") == 1
    assert [job["passed"] for job in kerncfg.compare(folder / "sweep").to_dict()["jobs"]] == [True, False]


def test_what_a_job_of_a_sweep_raises_is_its_own_and_not_the_others(
    folder: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    from kerncfg import job

    carry_out = job.perform

    def breaks(outcome: Outcome, **more: Any) -> None:
        if outcome.number == 1:
            raise ZeroDivisionError("deep inside")
        if outcome.number == 2:
            raise SystemExit(3)
        carry_out(outcome, **more)

    monkeypatch.setattr(job, "perform", breaks)
    assert call("run", "-m", "kernels=none,reference,bundled", *SMALL, "hydra.sweep.dir=sweep") == 1
    captured = capsys.readouterr()
    assert [line.split()[3] for line in captured.out.splitlines()[-3:]] == ["NO", "NO", "yes"]
    assert "error: the job raised ZeroDivisionError: deep inside" in captured.err
    assert "error: the job raised SystemExit: 3" in captured.err
    assert "deep inside" in (folder / "sweep/0/traceback.txt").read_text()
    with pytest.raises(ZeroDivisionError):
        call("run", "kernels=none", *SMALL)


def test_a_run_says_where_its_files_are_looked_for(folder: Path) -> None:
    (folder / "shared/kernels").mkdir(parents=True)
    (folder / "shared/kernels/theirs.yaml").write_text("RMSNorm: {cpu: builtin:RMSNorm}\n")
    search = f"hydra.searchpath=[file://{folder}/shared]"
    assert call("run", search, "kernels=theirs", *SMALL) == 0
    (made,) = runs(folder)
    outcome = json.loads((made / "outcome.json").read_text())
    assert outcome["overrides"][:2] == [search, "kernels=theirs"]
    assert outcome["command"][2:4] == [search, "kernels=theirs"]


def test_a_sweep_as_json_has_the_shape_of_a_run(capsys: pytest.CaptureFixture[str]) -> None:
    assert call("run", "-m", "--json", "kernels=none,bundled", *SMALL) == 0
    data = json.loads(capsys.readouterr().out)
    validate(data, "run")
    assert [made["swept"] for made in data["runs"]] == [["kernels=none"], ["kernels=bundled"]]


def test_llama_runs_the_same_kernels(folder: Path) -> None:
    assert call("run", "kernels=bundled", "model=llama", *SMALL) == 0
    (made,) = runs(folder)
    assert json.loads((made / "report.json").read_text())["counts"]["swapped"] == 7
    verification = json.loads((made / "verification.json").read_text())
    assert verification["passed"] and verification["rows"]


def test_gemma_norms_are_not_touched_by_the_row_for_rmsnorm(folder: Path) -> None:
    words = ("model=gemma", "model.config.num_hidden_layers=1", "model.sequence=16")
    assert call("run", "kernels.RMSNorm.cpu=builtin:RMSNorm", *words) == 0
    (made,) = runs(folder)
    rows = json.loads((made / "report.json").read_text())["rows"]
    assert not [row for row in rows if row["status"] == "swapped"]


@pytest.mark.parametrize("fault", ["WeightOffset", "WeakGradient", "EpsilonOutside"])
def test_a_kernel_that_computes_something_else_fails_the_run(
    fault: str, folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert call("run", f"kernels.RMSNorm.cpu={FAULTS}:{fault}", *SMALL) == 1
    (made,) = runs(folder)
    verification = json.loads((made / "verification.json").read_text())
    assert not verification["passed"]
    assert {row["name"] for row in verification["rows"] if not row["passed"]} == {"RMSNorm"}
    assert "failed: " in capsys.readouterr().out


def test_the_true_kernel_in_a_folder_of_ones_own_passes(folder: Path) -> None:
    assert call("run", f"kernels.RMSNorm.cpu={FAULTS}:Faithful", *SMALL) == 0


NORM = """
import torch
from torch import nn

class Norm(nn.Module):
    def forward(self, hidden_states):
        wide = hidden_states.float()
        wide = wide * torch.rsqrt(wide.pow(2).mean(-1, keepdim=True) + self.variance_epsilon)
        return self.weight * wide.to(hidden_states.dtype)
"""

PLAIN = """
import torch
from torch import nn

class MyRMSNorm(nn.Module):
    def __init__(self, size):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(size))
        self.variance_epsilon = 1e-6

    def forward(self, hidden_states):
        wide = hidden_states.float()
        wide = wide * torch.rsqrt(wide.pow(2).mean(-1, keepdim=True) + self.variance_epsilon)
        return self.weight * wide.to(hidden_states.dtype)

class Plain(nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.norm, self.last = nn.Linear(8, 32), MyRMSNorm(32), nn.Linear(32, 4)

    def forward(self, x):
        return self.last(self.norm(self.first(x)))

def make():
    return Plain(), {"x": torch.randn(16, 8)}
"""


def test_a_plain_module_from_a_folder_of_the_users_own(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (folder / "plain_model_of_mine.py").write_text(PLAIN)
    for group, text in {
        "kernels": "norm:\n  match: {class: '*RMSNorm'}\n  cpu: builtin:RMSNorm\n",
        "model": "factory: python:plain_model_of_mine:make\ndtype: float32\nseed: 0\nbatch: 2\nsequence: 8\n",
    }.items():
        (folder / "my_conf" / group).mkdir(parents=True)
        (folder / "my_conf" / group / "mine.yaml").write_text(text)
    told = ["building the model …", "verifying 1 swapped sites …", "measuring 1 swapped sites …"]
    assert at_a_terminal("run", "--config-dir", "my_conf", "kernels=mine", "model=mine") == (0, told)
    assert "building the model" not in capsys.readouterr().out
    (made,) = runs(folder)
    rows = json.loads((made / "report.json").read_text())["rows"]
    swapped = [(row["path"], row["kernel"]) for row in rows if row["status"] == "swapped"]
    assert swapped == [("norm", "builtin:RMSNorm")]


def test_what_cannot_be_composed_starts_no_job_and_makes_no_folder(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert call("run", "-m", "kernels=none,bundeld") == 1
    err = capsys.readouterr().err
    assert "bundeld" in err and "bundled" in err
    assert not (folder / "outputs").exists()


def test_an_error_in_a_job_is_a_sentence_and_an_exit_code(capsys: pytest.CaptureFixture[str]) -> None:
    assert call("run", "model.architecture=Qwen3ForCausalLMM", *SMALL) == 1
    captured = capsys.readouterr()
    assert "Qwen3ForCausalLM" in captured.err
    assert "Traceback" not in captured.err + captured.out


def test_a_sweep_of_a_model_given_as_a_map_runs(folder: Path) -> None:
    (folder / "plain_model_swept.py").write_text(PLAIN)
    model = "model={factory: python:plain_model_swept:make, dtype: float32, seed: 0, batch: 2, sequence: 8}"
    assert call("run", "-m", model, "kernels=none,bundled", "inherited=none") == 0
    assert len(runs(folder)) == 2


def test_what_a_kernel_prints_is_no_part_of_the_data(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    kernel = kernel_folder(folder / "loud", "print('loud')\n" + NORM)
    (folder / "plain_model_loud.py").write_text(PLAIN)
    model = "model={factory: python:plain_model_loud:make, dtype: float32, seed: 0, batch: 2, sequence: 8}"
    row = f"kernels.norm={{match: {{class: MyRMSNorm}}, cpu: '{kernel}:Norm'}}"
    assert call("run", "--json", model, row, "inherited=none") == 0
    captured = capsys.readouterr()
    assert json.loads(captured.out)["runs"][0]["report"]["counts"]["swapped"] == 1
    assert "loud" in captured.err


def test_a_folder_that_cannot_be_made_is_a_sentence(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (folder / "taken").write_text("")
    assert call("run", *SMALL, "hydra.run.dir=taken/run") == 3
    err = capsys.readouterr().err
    assert "the run's folder cannot be written" in err
    assert "hint: choose another with hydra.run.dir=FOLDER" in err
    assert "Traceback" not in err


def test_the_composed_config_of_a_run_is_the_one_that_ran(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = ("kernels=bundled", "inherited=none", "kernels.RMSNorm.cpu.inference.dtype=float32", *SMALL)
    assert call("run", *words) == 0
    capsys.readouterr()
    assert call("show", *words) == 0
    (made,) = runs(folder)
    assert (made / "config.yaml").read_text() == capsys.readouterr().out


def test_a_list_takes_the_place_of_a_map_by_file_by_override_and_in_a_sweep(folder: Path) -> None:
    place = folder / "mine/kernels"
    place.mkdir(parents=True)
    (place / "own.yaml").write_text("defaults: [bundled, _self_]\nRMSNorm: {cpu: [builtin:RMSNorm, original]}\n")
    none = "model.architecture=NoSuchModel"  # the job ends at once, after its plan
    listed = "kernels.RMSNorm.cuda=[builtin:RMSNorm, original]"
    (one,) = run([none, "kernels=own", listed], config_dir=folder / "mine")
    assert one.plan is not None
    assert one.command[-1] == listed
    sweep = "kernels.RMSNorm.cpu=original,[builtin:RMSNorm,original]"
    found = run([none, "kernels=bundled", sweep], multirun=True)
    assert [outcome.plan is not None for outcome in found] == [True, True]
    assert [outcome.swept for outcome in found] == [
        ["kernels.RMSNorm.cpu=original"],
        ["kernels.RMSNorm.cpu=[builtin:RMSNorm,original]"],
    ]


def test_a_map_in_a_sweep_replaces_the_row_as_it_does_in_one_run(folder: Path) -> None:
    row = "kernels.RMSNorm={cpu: builtin:RMSNorm}"
    found = run(["model.architecture=NoSuchModel", "kernels=bundled", row, "policy=default,strict"], multirun=True)
    plain = kerncfg.plan("kernels=bundled", row)
    assert found[0].plan is not None
    assert found[0].plan.digest == plain.digest
    assert [outcome.overrides[2] for outcome in found] == [row, row]


WRONG = f"kernels.RMSNorm.cpu={FAULTS}:WeightOffset"


def test_a_row_that_fails_gives_way_and_the_exit_code_says_so(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code, told = at_a_terminal("run", "inherited=none", WRONG, "policy.verify.on_fail=fallback", *SMALL)
    said = ["building the model …", "verifying 9 swapped sites …", "measuring 9 swapped sites …"]
    assert (code, told) == (1, said)
    (made,) = runs(folder)
    verification, report = (json.loads((made / f"{name}.json").read_text()) for name in ("verification", "report"))
    validate(verification, "verification")
    assert [one["name"] for one in verification["removed"]] == ["RMSNorm"]
    assert report["counts"]["swapped"] == 0
    assert "failed verification: model.layers.0.input_layernorm: " in report["rows"][0]["reason"]
    out = capsys.readouterr().out
    assert "removed: RMSNorm" in out and "failed: " in out


def test_verify_prints_the_comparison_and_makes_no_folder(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert call("verify", "inherited=none", "kernels.RMSNorm.cpu=builtin:RMSNorm", *SMALL) == 0
    assert capsys.readouterr().out.startswith("name ")
    assert list(folder.iterdir()) == []


def test_verify_exits_with_1_where_a_kernel_computes_something_else(capsys: pytest.CaptureFixture[str]) -> None:
    assert call("verify", "--json", "inherited=none", WRONG, *SMALL) == 1
    data = json.loads(capsys.readouterr().out)
    validate(data, "verification")
    assert not data["passed"]
    assert call("verify", "inherited=none", WRONG, "policy.verify.on_fail=error", *SMALL) == 1
    out, err = capsys.readouterr()
    assert out.startswith("name ")
    assert "error: verification failed, and policy.verify.on_fail is error: RMSNorm (" in err


@pytest.mark.parametrize(
    ("source", "reason"),
    [
        ("class Other: pass", "idle:Norm: no 'Norm' there; it has Other"),
        ("class Norm(:", "SyntaxError"),
        (NORM.replace("hidden_states", "x"), "(hidden_states)"),
        (NORM.replace("variance_epsilon", "delta"), "delta"),
    ],
)
def test_verify_and_bench_fail_where_a_row_of_ones_own_swaps_nothing(
    source: str, reason: str, folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    name = f"kernel_{len(source)}_idle"
    row = f"kernels.norm={{match: {{class: MyRMSNorm}}, cpu: ./{name}:Norm}}"
    kernel_folder(folder / name, source)
    (folder / "plain_model_idle.py").write_text(PLAIN)
    words = ("inherited=none", row, "model={factory: python:plain_model_idle:make}")
    assert call("verify", *words) == 1
    out, err = capsys.readouterr()
    assert "nothing is swapped" in out
    (line,) = [line for line in err.splitlines() if line.startswith("failed: nothing swapped: kernels.norm: ")]
    assert reason in line
    assert call("bench", "--json", *words) == 1
    data = json.loads(capsys.readouterr().out)
    validate(data, "measurement")
    assert not data["passed"] and line in data["notes"]


def test_verify_says_of_a_mode_that_it_runs_the_original(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    kernel_folder(folder / "no_backward_kernel", NORM + "    has_backward = False\n")
    (folder / "plain_model_no_backward.py").write_text(PLAIN)
    row = "kernels.norm={match: {class: MyRMSNorm}, cpu: ./no_backward_kernel:Norm}"
    assert call("verify", "inherited=none", row, "model={factory: python:plain_model_no_backward:make}") == 0
    out, err = capsys.readouterr()
    assert "note: kernels.norm: training runs the original: " in err and "has_backward is false" in err
    assert "training" not in out


def test_verify_asks_nothing_of_rows_that_are_not_for_here(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (folder / "plain_model_elsewhere.py").write_text(PLAIN)
    rows = (
        "kernels.A.cuda=builtin:RMSNorm",
        "kernels.B.cpu=original",
        "kernels.C.cpu={kernel: builtin:RMSNorm, torch: '>=99'}",
    )
    words = ("kernels=bundled", "model={factory: python:plain_model_elsewhere:make}")
    assert call("verify", *words, *rows) == 0
    err = capsys.readouterr().err
    assert "\nnothing swapped: kernels.A: no layer A; " in f"\n{err}" and "failed" not in err
    assert call("verify", *words, "kernels.RMSNorm.cpu=builtin:RMSNorm") == 1
    assert "failed: nothing swapped: kernels.RMSNorm: no layer RMSNorm" in capsys.readouterr().err


def test_a_run_and_a_sweep_say_that_they_swapped_nothing(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    kernel_folder(folder / "half_a_kernel", NORM.replace("class Norm(", "class Other("))
    (folder / "plain_model_swept_idle.py").write_text(PLAIN)
    row = "kernels.norm={match: {class: MyRMSNorm}, cpu: builtin:RMSNorm}"
    words = ("inherited=none", row, "model={factory: python:plain_model_swept_idle:make}", "hydra.sweep.dir=sweep")
    assert call("run", "-m", *words, "kernels.norm.cpu=original,./half_a_kernel:Norm") == 0
    lines = capsys.readouterr().out.splitlines()
    assert [line for line in lines if line.startswith("run 2 of 2: ")] == [
        "run 2 of 2: kernels.norm.cpu=./half_a_kernel:Norm"
    ]
    assert [line[:43] for line in lines if "passed, but" in line] == ["passed, but nothing swapped: kernels.norm: "]
    first, second = lines[-2:]
    assert re.search(r"  0  +yes  +-  ", first)
    assert re.search(r"  0  +yes, nothing swapped  +-  ", second)
    assert call("compare", "sweep") == 0
    assert "  yes, nothing swapped  " in capsys.readouterr().out.splitlines()[2]
    jobs = kerncfg.compare(folder / "sweep").to_dict()["jobs"]
    assert [list(job["unswapped"]) for job in jobs] == [[], ["kernels.norm"]]
    assert jobs[1]["differs"] == ["kernels.norm.cpu=./half_a_kernel:Norm"]
    said = json.loads((folder / "sweep/1/plan.json").read_text())["steps"][0]["modes"]["inference"]["rejected"][0]
    assert said["origin"] == "override: kernels.norm.cpu=./half_a_kernel:Norm"


def test_verify_of_what_cannot_be_built_is_an_error_and_no_data(capsys: pytest.CaptureFixture[str]) -> None:
    assert call("verify", "--json", "model.architecture=Qwen3ForCausalLMM", *SMALL) == 1
    out, err = capsys.readouterr()
    assert out == "" and "did you mean" in err


def test_bench_prints_the_measurement(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = ("bench", "--json", "inherited=none", "kernels.RMSNorm.cpu=builtin:RMSNorm", *SMALL)
    assert at_a_terminal(*words) == (0, ["building the model …", "measuring 9 swapped sites …"])
    data = json.loads(capsys.readouterr().out)
    validate(data, "measurement")
    assert data["rows"] and data["generation"]["prefill"]["kernel_tokens_s"]
    assert list(folder.iterdir()) == []
