"""What comes with `pull`: all of a shared experiment or nothing, nothing that grants trust, nothing that is run."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

import kerncfg
from kerncfg.cli import main
from kerncfg.compiler.schema import validate
from kerncfg.errors import ConfigError, SourceError
from tests.hub.git import File
from tests.hub.repos import Repository

if TYPE_CHECKING:
    from tests.hub.fixtures import TestHub

GLOBAL = "# @package _global_\n"
FILES = {
    "experiment/fast.yaml": f"{GLOBAL}kernels: {{RMSNorm: {{cpu: 'builtin:RMSNorm'}}}}\n",
    "plan.json": "{}\n",
    "weights.safetensors": "0" * 100,
    "setup.py": "raise SystemExit\n",
    ".github/workflows/x.yaml": "on: push\n",
    ".pre-commit-config.yaml": "repos: []\n",
    "experiment/.hidden.yaml": f"{GLOBAL}enabled: false\n",
    "other/x.yaml": "run: this\n",
}


@pytest.fixture
def shared(hub: TestHub, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Repository:
    """A repository with an experiment, weights and code; the working directory is empty."""
    (tmp_path / "work").mkdir()
    monkeypatch.chdir(tmp_path / "work")
    made = Repository("acme/fast", "model").describe("How fast.")
    made.commit(FILES)
    hub.add(made)
    return made


def test_an_experiment_comes_into_a_folder_of_its_name(hub: TestHub, shared: Repository) -> None:
    found = kerncfg.pull("acme/fast")
    assert found.folder == Path("fast") and found.experiments == ["fast"]
    assert found.commit == shared.branches["main"]
    assert {str(path.relative_to("fast")) for path in Path("fast").rglob("*") if path.is_file()} == {
        "README.md", "experiment/fast.yaml", "plan.json",
    }  # fmt: skip
    assert Path("fast/experiment/fast.yaml").read_text() == FILES["experiment/fast.yaml"]
    assert not Path("fast/experiment/fast.yaml").is_symlink()
    plan = kerncfg.plan("experiment=fast", "inherited=none", "target=cpu", config_dir="fast")
    assert plan.step("RMSNorm").kind == "bind"


def test_a_revision_and_another_type_are_said_as_in_addresses(hub: TestHub, shared: Repository) -> None:
    commit = shared.branches["main"]
    shared.commit({"experiment/fast.yaml": f"{GLOBAL}enabled: false\n"})
    assert kerncfg.pull(f"acme/fast@{commit}", "old").commit == commit
    assert "enabled" not in Path("old/experiment/fast.yaml").read_text()
    data = Repository("acme/set", "dataset").describe()
    data.commit(FILES)
    hub.add(data)
    assert kerncfg.pull("datasets/acme/set", "set").address == "hf://datasets/acme/set"


@pytest.mark.usefixtures("shared")
def test_files_that_are_there_stay_unless_forced(hub: TestHub) -> None:
    kerncfg.pull("acme/fast", "here")
    assert kerncfg.pull("acme/fast", "here").files  # the same content is no conflict
    Path("here/experiment/fast.yaml").write_text("mine\n")
    with pytest.raises(ConfigError, match=r"here has experiment/fast\.yaml already, with other") as caught:
        kerncfg.pull("acme/fast", "here")
    assert "--force" in str(caught.value)
    assert Path("here/experiment/fast.yaml").read_text() == "mine\n"
    kerncfg.pull("acme/fast", "here", force=True)
    assert Path("here/experiment/fast.yaml").read_text() == FILES["experiment/fast.yaml"]


@pytest.mark.usefixtures("shared")
def test_a_link_that_stands_there_is_replaced_and_not_followed(hub: TestHub) -> None:
    Path("here/experiment").mkdir(parents=True)
    Path("precious").write_text("precious\n")
    Path("here/experiment/fast.yaml").symlink_to(Path("precious").absolute())
    with pytest.raises(ConfigError, match="already"):
        kerncfg.pull("acme/fast", "here")
    kerncfg.pull("acme/fast", "here", force=True)
    assert Path("precious").read_text() == "precious\n" and not Path("here/experiment/fast.yaml").is_symlink()


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("trust: {publishers: {evil: true}}", "cannot grant trust"),
        ("kernels: {X: {kernel: evil/k@v1:K, trust_remote_code: true}}", "cannot grant trust"),
        ("kernels: {X: 'python:evil:K'}", "cannot name 'python:evil:K'"),
        ("kernels: {X: ./evil:K}", "cannot name './evil:K'"),
        ("model: {pretrained: '${oc.env:HOME}'}", "cannot look up"),
        ("kernels: {X: {_target_: evil}}", "cannot hold `_target_`"),
        ("hydra: {run: {dir: /tmp}}", "cannot steer Hydra"),
    ],
)
def test_what_would_be_the_users_own_word_is_refused_and_nothing_is_written(
    hub: TestHub, shared: Repository, text: str, message: str
) -> None:
    shared.commit({"experiment/evil.yaml": f"{GLOBAL}{text}\n"})
    with pytest.raises(ConfigError) as caught:
        kerncfg.pull("acme/fast", "here")
    assert message in str(caught.value) and caught.value.issues[0].file == "experiment/evil.yaml"
    assert not Path("here").exists()


def test_a_path_that_leads_out_of_the_folder_is_refused(hub: TestHub, shared: Repository) -> None:
    shared.commit({"../out.yaml": "X: null\n"})
    with pytest.raises(SourceError, match="leads out of its folder"):
        kerncfg.pull("acme/fast", "here")
    assert not Path("here").exists()


def test_a_dry_run_writes_nothing_and_tells_all(
    hub: TestHub, shared: Repository, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["pull", "acme/fast", "--dry-run"]) == 0
    assert not Path("fast").exists()
    said = capsys.readouterr().out
    assert f"would write fast/experiment/fast.yaml  {len(FILES['experiment/fast.yaml'])} bytes" in said
    assert f"from hf://acme/fast at commit {shared.branches['main']}" in said


@pytest.mark.usefixtures("shared")
def test_the_command_says_how_to_run_it(hub: TestHub, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["pull", "acme/fast", "here"]) == 0
    captured = capsys.readouterr()
    assert captured.err == "run it: kerncfg run --config-dir here experiment=fast\n"
    assert main(["pull", "acme/fast", "here", "--json"]) == 0
    data = json.loads(capsys.readouterr().out)
    validate(data, "pull")
    assert data["experiments"] == ["fast"] and data["folder"] == "here" and set(data["files"]) == {
        "README.md", "experiment/fast.yaml", "plan.json",
    }  # fmt: skip


def test_what_is_not_there_is_an_error(hub: TestHub, shared: Repository, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["pull", "acme/none"]) == 3
    assert main(["pull", "acme"]) == 1
    shared.commit({"experiment/fast.yaml": None})
    assert main(["pull", "acme/fast"]) == 3
    assert "there is no .yaml file in it" in capsys.readouterr().err


def test_a_folder_that_cannot_be_written_is_an_error_of_the_place(hub: TestHub, shared: Repository) -> None:
    Path("here").write_text("a file\n")
    with pytest.raises((SourceError, ConfigError)):
        kerncfg.pull("acme/fast", "here")
    with pytest.raises(SourceError, match="here cannot be written"):
        kerncfg.pull("acme/fast", "here", force=True)


def test_a_large_text_comes_whole(hub: TestHub, shared: Repository) -> None:
    rows = "".join(f"Row{number}: {{cpu: 'builtin:RMSNorm'}}\n" for number in range(2000)).encode()
    shared.commit({"kernels/many.yaml": File(data=rows, lfs=True)})
    kerncfg.pull("acme/fast", "here")
    assert Path("here/kernels/many.yaml").read_bytes() == rows
