"""What the shell is offered, asked as bash asks: by its variables, in a process of its own."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

import kerncfg
from kerncfg.cli import main
from kerncfg.cli.completing import joined
from kerncfg.cli.offers import names, offers
from tests.test_configs import ADDRESS, shared

if TYPE_CHECKING:
    from tests.hub.fixtures import TestHub

ROOT = Path(__file__).parents[1]


def ask(*words: str, shell: str = "bash", program: str = "-m kerncfg") -> subprocess.CompletedProcess[str]:
    """Ask as the shell's script does; the last word is the one being completed."""
    env = {
        **os.environ,
        "PYTHONPATH": str(ROOT),
        "_KERNCFG_COMPLETE": f"{shell}_complete",
        "COMP_WORDS": "\n".join(["kerncfg", *words]) if shell == "bash" else " ".join(["kerncfg", *words]),
        "COMP_CWORD": words[-1] if shell == "fish" else str(len(words)),
    }
    command = [sys.executable, *program.split(" ", 1)]
    return subprocess.run(command, env=env, capture_output=True, text=True, check=False)


def offered(*words: str) -> list[str]:
    done = ask(*words)
    assert done.stderr == ""
    return [line.partition(",")[2] for line in done.stdout.splitlines() if line.startswith("plain,")]


def test_a_command() -> None:
    assert offered("ex") == ["explain"]


def test_the_options_of_a_group_after_the_cut_that_bash_makes() -> None:
    assert offered("plan", "kernels", "=", "b") == ["bundled", "bundled_gemma"]
    assert offered("plan", "kernels", "=") == ["bundled", "bundled_gemma", "default", "liger", "none", "reference"]
    assert offered("plan", "kernels=") == [f"kernels={name}" for name in offered("plan", "kernels", "=")]


def test_a_target() -> None:
    assert offered("plan", "kernels", "=", "liger", "target", "=", "h") == ["h100"]
    assert {"auto", "h100", "mi300x"} <= {*offered("plan", "target", "=")}


def test_a_new_word_starts_afresh() -> None:
    assert {"kernels=", "kernels.", "target=", "policy.", "enabled="} <= {*offered("plan", "target", "=", "h100", "")}


def test_names_of_rows_and_then_devices() -> None:
    assert offered("plan", "kernels.RMS") == ["kernels.RMSNorm.", "kernels.RMSNormGated."]
    assert offered("plan", "kernels.RMSNorm.c") == [
        "kernels.RMSNorm.cuda=",
        "kernels.RMSNorm.cpu=",
        "kernels.RMSNorm.capability=",
    ]


def test_a_reference_with_its_cuts() -> None:
    words = ("plan", "kernels.RMSNorm.cuda", "=")
    assert {"original", "inherited", "null", "builtin:RMSNorm"} <= {*offered(*words)}
    assert offered(*words, "builtin", ":", "R") == ["RMSNorm"]
    assert offered(*words, "kernels-community/liger-kernels", "@") == ["v3:LigerRMSNorm"]


def test_a_removal() -> None:
    assert offered("plan", "~kernels.SiL") == ["~kernels.SiLU"]


def test_the_name_to_explain() -> None:
    assert offered("explain", "target", "=", "h100", "RMS") == ["RMSNorm", "RMSNormGated"]


def test_plans_to_compare_and_files_to_validate_are_files() -> None:
    assert ask("diff", "a.js").stdout == "file,a.js\n"
    assert ask("validate", "conf/a.y").stdout == "file,conf/a.y\n"


def test_options_of_a_place_on_the_hub_come_from_the_cache_alone(hub: TestHub) -> None:
    shared(hub, optimizer__adam="lr: 1\n")
    words = ("plan", "hydra.searchpath", "=", "[hf", ":", "//acme/shared", "@", "main]")
    assert "theirs" not in offered(*words, "kernels", "=")
    kerncfg.plan(f"hydra.searchpath=[{ADDRESS}]", "experiment=fast", "target=cpu")
    hub.log.clear()
    assert "theirs" in offered(*words, "kernels", "=")
    assert offered(*words, "experiment", "=", "fa") == ["fast"]
    assert offered(*words, "opti") == ["optimizer=", "optimizer=adam"]
    assert hub.log.count() == 0


def test_an_experiment_to_push(tmp_path: Path) -> None:
    (tmp_path / "experiment").mkdir()
    (tmp_path / "experiment/swift.yaml").write_text("# @package _global_\n")
    assert offered("push", "--config-dir", str(tmp_path), "swi") == ["swift"]


def test_options() -> None:
    assert "--config-dir" in offered("plan", "--")


def test_groups_and_rows_of_ones_own(tmp_path: Path) -> None:
    (tmp_path / "kernels").mkdir()
    (tmp_path / "kernels/mine.yaml").write_text("MyNorm: org/a@v1:A\ninherit_mapping: false\n")
    (tmp_path / "kernels/broken.yaml").write_text("a: [\n")
    (tmp_path / "data").mkdir()
    (tmp_path / "data/small.yaml").write_text("x: 1\n")
    for option in (["--config-dir", str(tmp_path)], ["--config-dir", "=", str(tmp_path)]):
        assert offered("plan", *option, "kernels", "=", "m") == ["mine"]
        assert offered("plan", *option, "kernels.My")[0] == "kernels.MyNorm."
        assert offered("plan", *option, "data", "=") == ["small"]


@pytest.mark.parametrize("shell", ["zsh", "fish"])
def test_shells_that_do_not_cut_get_whole_words(shell: str) -> None:
    done = ask("plan", "target=h1", shell=shell)
    assert done.returncode == 0
    assert "target=h100" in done.stdout


def test_it_asks_files_alone() -> None:
    """No library that takes long, and no network, which the tests' own guard would not see in another process."""
    code = (
        "import atexit, sys; from kerncfg.cli import main; "
        "atexit.register(lambda: print(*sys.modules, file=sys.stderr)); main([])"
    )
    loaded = {*ask("plan", "kernels.RMSNorm.cuda", "=", program=f"-c {code}").stderr.split()}
    assert "kerncfg.cli.offers" in loaded
    assert not loaded & {"torch", "hydra", "omegaconf", "jsonschema", "rich", "transformers", "huggingface_hub"}


def test_it_takes_less_than_half_a_second_of_processor_time() -> None:
    code = (
        "import atexit, sys, time; from kerncfg.cli import main; "
        "atexit.register(lambda: print(time.process_time(), file=sys.stderr)); main([])"
    )
    taken = min(float(ask("plan", "kernels.RMS", program=f"-c {code}").stderr) for _ in range(2))
    assert taken < 0.5


def test_the_script_works_in_bash(tmp_path: Path) -> None:
    command = tmp_path / "kerncfg"
    command.write_text(f'#!/bin/sh\nexec "{sys.executable}" -m kerncfg "$@"\n')
    command.chmod(0o755)
    asked = (
        'eval "$(kerncfg completion bash)"; COMP_WORDS=(kerncfg plan kernels = b); COMP_CWORD=4; '
        '_kerncfg_completion kerncfg b =; printf "%s\\n" "${COMPREPLY[@]}"'
    )
    env = {**os.environ, "PYTHONPATH": str(ROOT), "PATH": f"{tmp_path}{os.pathsep}{os.environ['PATH']}"}
    done = subprocess.run(["bash", "-c", asked], env=env, capture_output=True, text=True, check=False)
    assert (done.stdout, done.stderr) == ("bundled\nbundled_gemma\n", "")


@pytest.mark.parametrize(
    ("shell", "words"), [("bash", "complete -o"), ("zsh", "#compdef kerncfg"), ("fish", "complete")]
)
def test_the_script_of_each_shell(shell: str, words: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["completion", shell]) == 0
    script = capsys.readouterr().out
    assert words in script and "_KERNCFG_COMPLETE" in script
    assert main(["completion", "--json", shell]) == 0
    assert json.loads(capsys.readouterr().out) == {"shell": shell, "script": script.removesuffix("\n")}


@pytest.mark.parametrize(("words", "message"), [(["tcsh"], "no completion for 'tcsh'"), ([], "no shell is named")])
def test_another_shell_is_a_finding(words: list[str], message: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["completion", *words]) == 1
    assert capsys.readouterr().err.startswith(f"error: {message}\n  hint: write kerncfg completion bash, zsh or fish\n")


@pytest.mark.parametrize(
    ("cut", "whole"),
    [
        (["kerncfg", "plan", "a", "=", "b"], ["kerncfg", "plan", "a=b"]),
        (["kerncfg", "plan", "a", "=", "b", "c"], ["kerncfg", "plan", "a=b", "c"]),
        (
            ["kerncfg", "plan", "k", "=", "o/r", "@>=", "2.0,", "<", "3", ":", "N"],
            ["kerncfg", "plan", "k=o/r@>=2.0,<3:N"],
        ),
        (["kerncfg"], ["kerncfg"]),
        ([], []),
    ],
)  # fmt: skip
def test_what_bash_cut_is_put_together(cut: list[str], whole: list[str]) -> None:
    assert joined(cut) == whole


@pytest.mark.parametrize(
    ("word", "expected"),
    [
        ("policy.f", ["policy.fallback=", "policy.fallback=original", "policy.fallback=error"]),
        ("policy.strict=", ["policy.strict=true", "policy.strict=false"]),
        ("enabled=", ["enabled=true", "enabled=false"]),
        ("target.dev", ["target.device="]),
        ("inherited=n", ["inherited=none"]),
        ("experiment=c", ["experiment=cpu_bundled"]),
        ("kernels.RMSNorm.cuda.inf", [
            "kernels.RMSNorm.cuda.inference=", "kernels.RMSNorm.cuda.inference_compile=",
        ]),
        ("kernels.RMSNorm.cuda.when.", []),
        ("kernels.SiLU", ["kernels.SiLU.", "kernels.SiLU="]),
        ("kernels.RMSNorm.cuda", ["kernels.RMSNorm.cuda=", "kernels.RMSNorm.cuda."]),
        ("kernels.RMSNorm.match.c", ["kernels.RMSNorm.match.class="]),
        ("attention=f", [f"attention=flash_attention_{number}" for number in (2, 3, 4)]),
        ("attention.default=s", ["attention.default=sdpa"]),
        ("attention.default=flash", [f"attention.default=flash_attention_{number}" for number in (2, 3, 4)]),
        ("attention.default=kernels-community/ai", ["attention.default=kernels-community/aiter-flash-attn@v2"]),
        ("attention.default.ma", ["attention.default.mask=", "attention.default.mask=auto"]),
        ("~attention.d", ["~attention.default"]),
        ("fusions=", ["fusions=none"]),
        ("nothing.at.all", []),
        ("nothing=", []),
    ],
)  # fmt: skip
def test_what_may_come_next(word: str, expected: list[str]) -> None:
    found = offers(word)
    assert found[: len(expected)] == expected
    assert all(offer.startswith(word) for offer in found)


def test_every_offer_of_a_group_is_a_file_that_is_there() -> None:
    assert names() == sorted({*names()})
    assert "RMSNorm" in names() and "inherit_mapping" not in names()
