"""The hooks for pre-commit, run by pre-commit on a repository that has them from this one."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
import yaml

from kerncfg.cli import program
from tests.hub import kernels

if TYPE_CHECKING:
    from tests.hub.fixtures import TestHub

CHECKOUT = Path(__file__).parent.parent
HOOKS: list[dict[str, Any]] = yaml.safe_load((CHECKOUT / ".pre-commit-hooks.yaml").read_text("utf-8"))
EXAMPLES = {
    "conf/kernels/mine.yaml": True,
    "kernels/mine.yaml": True,
    "conf/experiment/fast.yaml": True,
    "conf/config.yaml": False,
    ".github/workflows/ci.yaml": False,
    "kernels/mine.py": False,
}


def test_the_hooks_are_those_two() -> None:
    assert [hook["id"] for hook in HOOKS] == ["kerncfg-validate", "kerncfg-lock-check"]
    assert all(hook["language"] == "system" for hook in HOOKS)


def test_they_run_commands_that_there_are() -> None:
    assert HOOKS[0]["entry"].split()[1] in program.commands
    assert HOOKS[1]["entry"].split()[1:] == ["lock", "--check"]


@pytest.mark.parametrize("path", EXAMPLES)
def test_the_files_are_those_of_the_groups(path: str) -> None:
    import re

    assert bool(re.search(HOOKS[0]["files"], path)) is EXAMPLES[path]


def test_the_page_writes_out_the_same_hooks() -> None:
    page = (CHECKOUT / "docs/commands.md").read_text("utf-8")
    said = page.partition("cat > .pre-commit-config.yaml <<'EOF'\n")[2].partition("EOF\n")[0]
    (local,) = yaml.safe_load(said)["repos"]
    assert local["repo"] == "local"
    for written, hook in zip(local["hooks"], HOOKS, strict=True):
        assert written["entry"].startswith(hook["entry"])
        assert all(hook[key] == value for key, value in written.items() if key != "entry")


class Repository:
    """A git repository with some of the hooks, in a folder of its own."""

    def __init__(self, folder: Path, *ids: str, environment: Mapping[str, str] = os.environ) -> None:
        self.folder = folder / "work"
        self.folder.mkdir()
        self.environment = {
            **{name: value for name, value in environment.items() if not name.startswith("GIT_")},
            "PRE_COMMIT_HOME": str(folder / "cache"),
            "PATH": f"{_scripts(folder)}{os.pathsep}{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}",
            "GIT_CONFIG_GLOBAL": os.devnull,
            "PYTHONPATH": os.pathsep.join(filter(None, [str(CHECKOUT), environment.get("PYTHONPATH")])),
        }
        hooks = folder / "hooks"
        hooks.mkdir()
        shutil.copy(CHECKOUT / ".pre-commit-hooks.yaml", hooks)
        self.git("init", "-q", at=hooks)
        self.git("add", "-A", at=hooks)
        self.git("-c", "user.name=a", "-c", "user.email=a@b", "commit", "-qm", "hooks", at=hooks)
        self.source = f"  - repo: {hooks}\n    rev: {self.git('rev-parse', 'HEAD', at=hooks).stdout.strip()}\n"
        self.git("init", "-q")
        self.use(*ids)

    def use(self, *ids: str, **options: Any) -> None:
        """Name the hooks, each with these options."""
        hooks = yaml.safe_dump([{"id": one, **options} for one in ids], default_flow_style=True, width=999).strip()
        self.write(".pre-commit-config.yaml", f"repos:\n{self.source}    hooks: {hooks}\n")

    def write(self, name: str, text: str) -> None:
        file = self.folder / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text, encoding="utf-8")

    def git(self, *words: str, at: Path | None = None) -> subprocess.CompletedProcess[str]:
        return self.call("git", *words, at=at or self.folder, check=True)

    def call(self, *words: str, at: Path, check: bool = False) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            words, cwd=at, env=self.environment, capture_output=True, text=True, timeout=120, check=check
        )

    def run(self) -> subprocess.CompletedProcess[str]:
        self.git("add", "-A")
        return self.call(sys.executable, "-m", "pre_commit", "run", "--all-files", at=self.folder)


def _scripts(folder: Path) -> Path:
    """Give a folder with a `kerncfg` that is this checkout's, installed or not."""
    scripts = folder / "bin"
    scripts.mkdir()
    script = scripts / "kerncfg"
    script.write_text(f'#!/bin/sh\nexec "{sys.executable}" -m kerncfg "$@"\n', encoding="utf-8")
    script.chmod(0o755)
    return scripts


@pytest.fixture
def repository(tmp_path: Path) -> Repository:
    pytest.importorskip("pre_commit")
    return Repository(tmp_path, "kerncfg-validate")


@pytest.mark.skipif(os.name == "nt", reason="the script that stands for kerncfg is a shell's")
def test_a_fault_stops_the_commit_with_its_place_and_its_mending_lets_it_through(repository: Repository) -> None:
    repository.write("conf/kernels/mine.yaml", "RMSNorm:\n  cdua: builtin:RMSNorm\n")
    repository.write("conf/experiment/fast.yaml", "# @package _global_\nkernels: {RMSNorm: builtin:RMSNorm}\n")
    repository.write("other.yaml", "cdua: 1\n")
    done = repository.run()
    assert done.returncode == 1, done.stdout + done.stderr
    assert "conf/kernels/mine.yaml:2:3: kernels.RMSNorm.cdua: unknown key `cdua`" in done.stdout
    assert "did you mean cuda?" in done.stdout
    repository.write("conf/kernels/mine.yaml", "RMSNorm:\n  cuda: builtin:RMSNorm\n")
    done = repository.run()
    assert done.returncode == 0, done.stdout + done.stderr
    assert "kerncfg validate" in done.stdout and "Passed" in done.stdout


@pytest.mark.skipif(os.name == "nt", reason="the script that stands for kerncfg is a shell's")
def test_a_lock_that_is_not_what_is_named_stops_the_commit_until_it_is_made_again(tmp_path: Path, hub: TestHub) -> None:
    norms = kernels.norms()
    hub.add(norms)
    repository = Repository(tmp_path, "kerncfg-lock-check", environment=hub.environment())
    place = "conf/kernels/mine.yaml"
    repository.write(place, "# @package kernels\nScale: {cpu: 'kernels-community/norms@v2:Scale'}\n")
    words = ["--config-dir", "conf", "kernels=mine", "inherited=none"]
    repository.use("kerncfg-lock-check", args=words)
    lock = (sys.executable, "-m", "kerncfg", "lock", *words)
    repository.call(*lock, at=repository.folder, check=True)
    done = repository.run()
    assert done.returncode == 0, done.stdout + done.stderr
    assert "kerncfg lock --check" in done.stdout and "Passed" in done.stdout
    before, after = norms.branches["v2"], kernels.move(norms, "v2", 24)
    done = repository.run()
    assert done.returncode == 1, done.stdout + done.stderr
    assert f"{before[:7]}" in done.stdout and f"{after[:7]}" in done.stdout
    repository.write(place, "# @package kernels\nScale: {cpu: 'kernels-community/norms@v3:Scale'}\n")
    done = repository.run()
    assert done.returncode == 1 and "norms@v3" in done.stdout
    repository.call(*lock, at=repository.folder, check=True)
    done = repository.run()
    assert done.returncode == 0, done.stdout + done.stderr
