"""Two strangers: one shares an experiment on the Hub, the other runs it from an empty folder with one command."""

from __future__ import annotations

import json
import shlex
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import huggingface_hub
import pytest

import kerncfg
from kerncfg.cli import main
from kerncfg.errors import TrustError
from kerncfg.locations import conf
from kerncfg.run import run
from kerncfg.sharing.push import Parcel, push
from tests.hub import kernels
from tests.hub.kernels import ACME
from tests.hubbing import refusal, typed

if TYPE_CHECKING:
    from tests.hub.fixtures import TestHub
    from tests.hub.repos import Repository

NORMS = f"{ACME}/norms"
EXPERIMENT = """# @package _global_
defaults:
  - override /kernels@inherited: none
  - override /target: cpu
trust: {repositories: {acme/norms: true}}
kernels:
  SiLU: {cpu: {inference: acme/norms@v1:SiLU, training: original}}
model:
  config: {num_hidden_layers: 1, hidden_size: 64, intermediate_size: 96, head_dim: 16, vocab_size: 128}
  sequence: 4
"""


class Shared(NamedTuple):
    hub: TestHub
    parcel: Parcel
    norms: Repository
    empty: Path  # the other's folder

    def words(self, *more: str) -> list[str]:
        """The one line of the card, without consent."""
        line = shlex.split(self.parcel.command)
        return [*line[1 : line.index("--trust")], *more]

    @property
    def stranger(self) -> dict[str, str | None]:
        """The other's machine: a cache of its own, and no token."""
        return {"HF_HOME": str(self.empty.parent / "their-hf"), "HF_TOKEN": None}


@pytest.fixture
def shared(hub: TestHub, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Shared:
    """The first stranger's push, from a machine on which consent was given."""
    norms = kernels.norms(NORMS)
    hub.add(norms)
    hub.tokens["first"], hub.writers["first"] = frozenset({"*"}), frozenset({ACME})
    (tmp_path / "first/my/experiment").mkdir(parents=True)
    (tmp_path / "first/my/experiment/fast.yaml").write_text(EXPERIMENT)
    (tmp_path / "second/empty").mkdir(parents=True)
    with monkeypatch.context() as first:
        first.chdir(tmp_path / "first")
        first.setenv("HF_TOKEN", "first")
        parcel = push("fast", f"{ACME}/fast", config_dir="my")
    huggingface_hub.close_session()
    hub.log.clear()
    return Shared(hub, parcel, norms, tmp_path / "second/empty")


def test_the_other_is_asked_for_consent_before_foreign_code_runs_and_then_gets_the_same_plan(shared: Shared) -> None:
    hub, parcel, _, empty = shared
    refused = typed(hub, empty, *shared.words("hydra.run.dir=refused"), **shared.stranger)
    assert refused.code == 1
    said = refused.err[refused.err.index("error: ") :]
    assert "SiLU, said at hf://acme/fast@main/experiment/fast.yaml:" in said
    assert "would run code of acme/norms, and a fetched file is no consent to that" in said
    assert hub.log.count(repository=NORMS) == 0  # not even asked about
    assert not (empty / "refused/report.json").exists()
    line = said[said.index("type kerncfg run ") + len("type ") :].splitlines()[0]
    assert "--trust acme/norms" in line and f"hf://acme/fast@{parcel.commit}" in line  # the very same again

    ran = typed(hub, empty, *shlex.split(line)[1:], "hydra.run.dir=out", **shared.stranger)
    assert ran.code == 0, ran.err
    plan = json.loads((empty / "out/plan.json").read_text())
    assert plan["digest"] == parcel.digest
    assert plan["searchpath"] == {f"hf://acme/fast@{parcel.commit}": parcel.commit}
    assert json.loads((empty / "out/report.json").read_text())["counts"]["swapped"] == 1
    outcome = json.loads((empty / "out/outcome.json").read_text())
    assert f"hydra.searchpath=[hf://acme/fast@{parcel.commit}]" in outcome["command"]
    assert f"hf://acme/fast@{parcel.commit}" in (empty / "out/.hydra/hydra.yaml").read_text()


@pytest.fixture
def other(shared: Shared, monkeypatch: pytest.MonkeyPatch) -> Shared:
    """The same, with this process on the other's machine."""
    monkeypatch.chdir(shared.empty)
    monkeypatch.setenv("HF_HOME", str(shared.stranger["HF_HOME"]))
    return shared


def test_an_address_in_ones_own_config_file_is_pinned_in_the_command_too(other: Shared) -> None:
    address, commit = other.parcel.address, other.parcel.commit
    (other.empty / "my").mkdir()
    (other.empty / "other's").mkdir()
    search = f'hydra:\n  searchpath: [{address}, "file://{other.empty}/other\'s"]'
    (other.empty / "my/config.yaml").write_text((conf() / "config.yaml").read_text().replace("hydra:", search))
    words = ["experiment=fast", "hydra.run.dir=out"]
    (outcome,) = run(words, config_dir=Path("my"))
    assert isinstance(outcome.error, TrustError)
    assert f"hydra.searchpath=[hf://acme/fast@{commit}," in str(outcome.error.hint)
    assert outcome.command[-2].startswith(f"hydra.searchpath=[hf://acme/fast@{commit},'file://")
    kernels.move(other.norms, "v1", 7)
    again = kerncfg.plan(*outcome.command[4:], config_dir="my")
    assert dict(again.searchpath) == {f"hf://acme/fast@{commit}": commit}


def test_a_plan_says_the_same_with_consent_and_without_it_why_not(other: Shared) -> None:
    words = other.words()[1:]
    without = kerncfg.plan(*words)
    assert "trust.repositories.acme/norms=true" in refusal(without, "SiLU")
    assert without.digest != other.parcel.digest
    assert other.hub.log.count(repository=NORMS) == 0
    given = kerncfg.plan(*words, trust=[NORMS])
    assert given.digest == other.parcel.digest
    assert given.searchpath == {other.parcel.address: other.parcel.commit}


def test_with_the_lock_that_came_along_the_plan_stays_though_the_kernel_moves(other: Shared) -> None:
    kernels.move(other.norms, "v1", 7)
    folder = kerncfg.pull(f"{ACME}/fast").folder
    moved = kerncfg.plan("experiment=fast", config_dir=folder, trust=[NORMS])
    locked = kerncfg.plan("experiment=fast", config_dir=folder, trust=[NORMS], lock=folder / "kerncfg.lock")
    assert moved.digest != other.parcel.digest == locked.digest


def test_the_others_verify_refuses_too(other: Shared, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["verify", *other.words()[1:]]) == 1
    assert "if you trust it, type --trust acme/norms" in capsys.readouterr().err
