from __future__ import annotations

import json
from pathlib import Path

import pytest
import yaml

from kerncfg.cli import main
from kerncfg.compiler.schema import validate

SMALL = (
    "model.config.num_hidden_layers=2",
    "model.config.hidden_size=64",
    "model.config.intermediate_size=96",
    "model.config.head_dim=16",
    "model.config.vocab_size=128",
    "model.sequence=16",
)
FAULTS = Path(__file__).parent / "faults"
DOCUMENTS = ("plan", "report", "verification", "measurement")


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Every run writes below its working directory."""
    monkeypatch.chdir(tmp_path)
    return tmp_path


def call(*arguments: str) -> int:
    return main(list(arguments))


def runs(folder: Path) -> list[Path]:
    return sorted(file.parent for file in folder.glob("outputs/**/plan.json"))


def test_a_run_leaves_config_overrides_and_four_documents(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert call("run", "kernels=bundled", *SMALL) == 0
    (made,) = runs(folder)
    for name in DOCUMENTS:
        validate(json.loads((made / f"{name}.json").read_text()), name)
    assert yaml.safe_load((made / ".hydra" / "overrides.yaml").read_text())[0] == "kernels=bundled"
    assert yaml.safe_load((made / ".hydra" / "config.yaml").read_text())["kernels"]["RMSNorm"]["cuda"]
    report = json.loads((made / "report.json").read_text())
    assert report["counts"]["swapped"] == 9  # four norms in each of two layers, and the last
    out = capsys.readouterr().out
    assert f"passed: {made}" in out.replace(str(folder) + "/", "") or "passed: " in out


def test_a_run_prints_plan_report_verification_and_measurement(capsys: pytest.CaptureFixture[str]) -> None:
    assert call("run", "kernels=bundled", *SMALL) == 0
    out = capsys.readouterr().out
    positions = [out.index(word) for word in ("plan ", "\nreport", "\nverification", "\nmeasurement", "passed: ")]
    assert positions == sorted(positions)


def test_a_run_as_json_prints_nothing_but_data(capsys: pytest.CaptureFixture[str]) -> None:
    assert call("run", "--json", "kernels=bundled", *SMALL) == 0
    data = json.loads(capsys.readouterr().out)
    assert data["passed"] is True
    assert set(DOCUMENTS) <= set(data)


def test_a_sweep_makes_a_folder_for_each_run(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert call("run", "-m", "kernels=none,bundled", *SMALL) == 0
    made = runs(folder)
    assert len(made) == 2
    swapped = [json.loads((each / "report.json").read_text())["counts"]["swapped"] for each in made]
    assert swapped == [0, 9]


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
    assert call("run", "--config-dir", "my_conf", "kernels=mine", "model=mine") == 0
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
