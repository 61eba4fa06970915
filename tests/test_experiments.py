"""The packaged experiments are worked examples: each plans anywhere, and those for this machine's CPU run on it."""

from __future__ import annotations

from pathlib import Path

import pytest

import kerncfg
from kerncfg.locations import conf
from kerncfg.run import run

EXPERIMENTS = sorted(file.stem for file in (conf() / "experiment").glob("*.yaml"))
SMALL = ("model.config.num_hidden_layers=1", "model.batch=1", "model.sequence=8")
SWAPPED = {"cpu_bundled": 6, "cpu_llama_strict": 4, "original": 0}


@pytest.mark.parametrize("name", EXPERIMENTS)
def test_an_experiment_plans_anywhere(name: str) -> None:
    plan = kerncfg.plan(f"experiment={name}")
    assert plan.target.device == ("cuda" if name.startswith("h100") else plan.target.device)


@pytest.mark.parametrize("name", SWAPPED)
def test_an_experiment_for_a_cpu_runs_here(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (outcome,) = run([f"experiment={name}", *SMALL, "target=cpu"])
    assert outcome.passed, outcome.error
    assert outcome.report is not None and outcome.report.counts.get("swapped", 0) == SWAPPED[name]
