"""A value of the environment that came by interpolation is shown nowhere: no plan, message, file or printed line."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

import kerncfg
from kerncfg.cli import main
from kerncfg.errors import ConfigError

SECRET = "hunter2-correct-horse"
WORDS = "${oc.env:KERNCFG_TEST_SECRET}"
EVERYWHERE = [
    f"kernels.X={WORDS}",
    f"kernels.X.cpu=a/b@{WORDS}:C",
    f"kernels.X.exclude=['{WORDS}']",
    f"inherited.X={WORDS}",
    f"trust.publishers={{a: '{WORDS}'}}",
    f"policy.fallback={WORDS}",
    f"target.name={WORDS}",
    f"enabled={WORDS}",
    f"model.seed={WORDS}",
    f"model.architecture={WORDS}",
    f"model.dtype={WORDS}",
    "kernels.X=${model.pretrained}",
]


@pytest.fixture(autouse=True)
def secret(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("KERNCFG_TEST_SECRET", SECRET)


@pytest.mark.parametrize("typed", EVERYWHERE)
def test_where_it_may_not_stand_the_message_shows_the_words(typed: str) -> None:
    with pytest.raises(ConfigError) as caught:
        kerncfg.plan(f"model.pretrained={WORDS}", "~model.architecture", typed)
    assert SECRET not in f"{caught.value} {json.dumps(caught.value.to_dict())}"
    assert "${" in str(caught.value)


def test_a_plan_of_a_model_named_by_it_does_not_hold_it() -> None:
    plan = kerncfg.plan(f"model={{pretrained: '{WORDS}'}}", "target=cpu")
    assert SECRET not in json.dumps(plan.to_dict())


@pytest.mark.parametrize(
    "options", [["show"], ["show", "--json"], ["plan"], ["plan", "--json"], ["validate", "--json"]]
)
def test_nothing_that_is_printed_holds_it(options: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert main([*options, "target=cpu", f"model={{pretrained: '{WORDS}'}}"]) == 0
    out, err = capsys.readouterr()
    assert SECRET not in out + err


def test_a_run_that_fails_at_it_tells_and_writes_the_words(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    weights = tmp_path / SECRET
    weights.mkdir()
    monkeypatch.setenv("KERNCFG_TEST_SECRET", str(weights))
    said = ["dtype: float32", "seed: 0", "batch: 1", "sequence: 4"]
    model = f"model={{pretrained: '{WORDS}', {', '.join(said)}}}"
    assert main(["run", "--json", "target=cpu", "hydra.run.dir=made", model]) != 0
    out, err = capsys.readouterr()
    assert WORDS in out + err
    assert SECRET not in (out + err).replace(str(tmp_path / "made"), "")
    assert all(SECRET not in file.read_text("utf-8") for file in Path("made").rglob("*.*") if file.is_file())
