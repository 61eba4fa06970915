from __future__ import annotations

import json
import os
import pty
import subprocess
import sys
import warnings
from pathlib import Path
from typing import Any

import click
import pytest
import yaml

from kerncfg.cli import main, program
from kerncfg.compiler.schema import validate as check
from kerncfg.errors import ConfigError, IntegrityError, KerncfgError, KerncfgWarning, SourceError, TrustError


def call(*arguments: str) -> int:
    return main(list(arguments))


def test_plan_prints_each_own_row_with_its_reason_and_origin(capsys: pytest.CaptureFixture[str]) -> None:
    assert call("plan", "target=h100", "kernels=bundled") == 0
    out = capsys.readouterr().out
    line = next(line for line in out.splitlines() if line.startswith("RMSNorm "))
    assert line.split("  ")[0] == "RMSNorm"
    assert "builtin:RMSNorm" in line and "all modes" in line and "preset: kernels/bundled.yaml:" in line


def test_plan_says_why_a_hub_kernel_is_passed_over(capsys: pytest.CaptureFixture[str]) -> None:
    assert call("plan", "target=h100", "kernels=liger") == 0
    out = capsys.readouterr().out
    refused = [line for line in out.splitlines() if "not kernels-community/liger-kernels@v3:LigerRMSNorm" in line]
    assert len(refused) == 1
    assert "gave no answer about" in refused[0]


def test_plan_shows_residual_conditions_and_the_second_choice(capsys: pytest.CaptureFixture[str]) -> None:
    assert call("plan", "target=h100", "kernels=bundled") == 0
    out = capsys.readouterr().out
    assert "if config.hidden_act is silu or swish" in out
    assert "else original" in out


def test_inherited_names_that_keep_the_original_share_a_line(capsys: pytest.CaptureFixture[str]) -> None:
    assert call("plan", "target=cpu") == 0
    out = capsys.readouterr().out
    assert sum("no row for cpu" in line for line in out.splitlines()) == 1
    assert "names keep the original" in out and "GeluTanh" not in out
    assert call("plan", "target=cpu", "--all") == 0
    assert "GeluTanh" in capsys.readouterr().out


def test_no_description_of_a_command_is_cut(tmp_path: Path) -> None:
    done = run_kerncfg("--help", cwd=tmp_path, COLUMNS="80")
    _, commands = done.stdout.split("Commands:")
    assert len(commands.split("\n")) > 9 and "..." not in commands


@pytest.mark.parametrize(
    ("words", "meant"),
    [
        (["plan", "--target", "h100"], "target is an override: write target=h100"),
        (["run", "--kernels=bundled"], "kernels is an override: write kernels=bundled"),
        (["plan", "--policy"], "policy is an override: write policy=NAME"),
        (["show", "--kernels.X.cpu", "a/b:C"], "kernels.X.cpu is an override: write kernels.X.cpu=a/b:C"),
    ],
)
def test_an_override_written_as_an_option_is_told_how_it_is_written(
    words: list[str], meant: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert call(*words) == 2
    assert capsys.readouterr().err.endswith(f"\n  hint: {meant}\n")


def test_two_config_folders_are_refused(capsys: pytest.CaptureFixture[str]) -> None:
    assert call("plan", "--config-dir", "a", "target=cpu", "--config-dir", "b") == 1
    assert "--config-dir is given 2 times: a and b" in capsys.readouterr().err


def test_plan_as_json_is_the_saved_plan(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    file = tmp_path / "plan.json"
    assert call("plan", "target=h100", "--json", "-o", str(file), "kernels=bundled") == 0
    assert json.loads(capsys.readouterr().out) == json.loads(file.read_text())


def test_plan_that_cannot_be_written_says_why(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    assert call("plan", "target=h100", "-o", str(tmp_path / "no" / "plan.json")) == 1
    assert "No such file or directory" in capsys.readouterr().err


def test_options_and_overrides_come_in_any_order(capsys: pytest.CaptureFixture[str]) -> None:
    assert call("plan", "target=h100", "--json", "kernels=bundled", "--trust", "acme") == 0
    first = capsys.readouterr().out
    assert call("plan", "--trust", "acme", "--json", "kernels=bundled", "target=h100") == 0
    assert capsys.readouterr().out == first


def test_trust_on_the_command_line_is_consent(capsys: pytest.CaptureFixture[str]) -> None:
    row = "kernels.X.cuda=acme/norms@v1:X"
    assert call("plan", "target=h100", "--json", row) == 0
    assert "acme is not trusted" in _refusal(capsys, "X")
    assert call("plan", "target=h100", "--json", row, "--trust", "acme/norms") == 0
    assert "gave no answer about" in _refusal(capsys, "X")


def _refusal(capsys: pytest.CaptureFixture[str], name: str) -> str:
    steps: list[dict[str, Any]] = json.loads(capsys.readouterr().out)["steps"]
    step = next(step for step in steps if step["name"] == name)
    return str(step["modes"]["inference"]["rejected"][0]["reason"])


def test_a_word_that_is_no_override_is_a_finding(capsys: pytest.CaptureFixture[str]) -> None:
    assert call("plan", "target=h100", "bundled") == 1
    err = capsys.readouterr().err
    assert err.startswith("error: 'bundled' is no override\n  hint: an override has the form key=value or ~key\n")


def test_an_unknown_option_is_a_usage_error(capsys: pytest.CaptureFixture[str]) -> None:
    assert call("plan", "--loud") == 2
    assert "--loud" in capsys.readouterr().err


def test_an_unknown_command_is_a_usage_error(capsys: pytest.CaptureFixture[str]) -> None:
    assert call("plna") == 2
    assert "plna" in capsys.readouterr().err


def test_a_missing_folder_module_is_a_finding_not_a_traceback(capsys: pytest.CaptureFixture[str]) -> None:
    assert call("plan", "--config-dir", "nowhere", "target=h100") == 1
    assert "nowhere" in capsys.readouterr().err


def test_a_row_that_may_not_fall_back_is_a_finding(capsys: pytest.CaptureFixture[str]) -> None:
    row = "kernels.RMSNorm={cuda: kernels-community/a@v1:A, fallback: error}"
    assert call("plan", "target=h100", row) == 1
    err = capsys.readouterr().err
    assert "kernels.RMSNorm: no kernel for cuda: kernels-community/a@v1:A" in err
    assert "hint:" in err


def test_show_prints_yaml_that_reads_back_as_the_document(capsys: pytest.CaptureFixture[str]) -> None:
    words = ("target=h100", "kernels=bundled", "kernels.X.cpu=org/r@>=2.0,<3.0:X")
    assert call("show", *words) == 0
    text = capsys.readouterr().out
    assert call("show", "--json", *words) == 0
    assert yaml.safe_load(text) == json.loads(capsys.readouterr().out)


def test_show_says_where_a_value_was_said(capsys: pytest.CaptureFixture[str]) -> None:
    assert call("show", "target=h100", "kernels.X.cpu=builtin:RMSNorm") == 0
    line = next(line for line in capsys.readouterr().out.splitlines() if "builtin:RMSNorm" in line)
    assert line == '    cpu: "builtin:RMSNorm"  # override: kernels.X.cpu=builtin:RMSNorm'


def test_validate_accepts_what_is_shipped(capsys: pytest.CaptureFixture[str]) -> None:
    assert call("validate") == 0
    assert capsys.readouterr().out == "valid: the composed configuration\n"


def test_validate_reports_every_fault_in_one_run(capsys: pytest.CaptureFixture[str]) -> None:
    assert call("validate", "kernels.A.cudaa=org/r@v1:A", "kernels.B.cpu=org/r:", "polcy.strict=true") == 1
    assert call("validate", "--json", "kernels.A.cudaa=org/r@v1:A", "kernels.B.verison=2") == 1
    found = json.loads(capsys.readouterr().out)
    check(found, "validation")
    assert not found["valid"]
    assert [issue["path"] for issue in found["issues"]] == ["kernels.A.cudaa", "kernels.B.verison"]


def test_validate_checks_files_by_their_group(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    file = tmp_path / "kernels" / "mine.yaml"
    file.parent.mkdir()
    file.write_text("RMSNorm:\n  cuda: org/r@v1:A\n  cpuu: org/r@v1:B\n")
    assert call("validate", str(file)) == 1
    err = capsys.readouterr().err
    assert f"{file}:3:3: " in err and "cpuu" in err and "cpu" in err


def test_schema_lists_and_prints(capsys: pytest.CaptureFixture[str]) -> None:
    assert call("schema") == 0
    names = capsys.readouterr().out.split()
    assert {"config", "kernels", "plan", "report"} <= set(names)
    for name in names:
        assert call("schema", name) == 0
        assert json.loads(capsys.readouterr().out)["$schema"].endswith("2020-12/schema")


def test_an_unknown_schema_lists_those_there_are(capsys: pytest.CaptureFixture[str]) -> None:
    assert call("schema", "kernel") == 1
    assert "kernels" in capsys.readouterr().err


PLAIN = f"{sys.executable} -m kerncfg"


def run_kerncfg(*arguments: str, cwd: Path, **environment: str) -> subprocess.CompletedProcess[str]:
    """Run the command line as a user would, in a folder of its own."""
    root = Path(__file__).parents[1]
    env = {**os.environ, "PYTHONPATH": str(root), **environment}
    command = [sys.executable, "-m", "kerncfg", *arguments]
    return subprocess.run(command, cwd=cwd, env=env, capture_output=True, text=True, check=False)


@pytest.mark.parametrize(
    ("line", "code", "said"),
    [
        ("kerncfg plan >&-", 0, ""),
        ("kerncfg plan >/dev/full", 3, "error: No space left on device: what was to be printed\n"),
        ("rmdir $PWD; kerncfg plan", 3, "error: No such file or directory: the working directory was removed\n"),
        ("HF_ENDPOINT=https://[::1 kerncfg pull a/b", 3, "error: HF_ENDPOINT is no web address, needed "),
        ("HF_ENDPOINT=https://[::1 kerncfg push a a/b --yes", 3, "error: HF_ENDPOINT is no web address, needed "),
        (
            "HF_ENDPOINT=https://[::1 kerncfg plan hydra.searchpath=[hf://a/b]",
            3,
            "error: HF_ENDPOINT is no web address, ",
        ),
    ],
)
def test_what_is_wrong_around_a_command_is_told_in_a_line(tmp_path: Path, line: str, code: int, said: str) -> None:
    typed = line.replace("kerncfg plan", f"{PLAIN} plan inherited=none target=cpu").replace("kerncfg pu", f"{PLAIN} pu")
    env = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[1])}
    done = subprocess.run(["bash", "-c", typed], cwd=tmp_path, env=env, capture_output=True, text=True, check=False)
    assert done.returncode == code, done.stderr
    assert done.stderr.startswith(said) and "Traceback" not in done.stderr


def test_a_search_path_may_be_added_to_with_a_plus(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "kernels").mkdir()
    (tmp_path / "kernels" / "mine.yaml").write_text("X: {cpu: builtin:RMSNorm}\n", encoding="utf-8")
    assert call("plan", "target=cpu", "inherited=none", f"+hydra.searchpath=[file://{tmp_path}]", "kernels=mine") == 0
    assert "builtin:RMSNorm" in capsys.readouterr().out


def test_help_imports_neither_torch_nor_hydra(tmp_path: Path) -> None:
    program = "import sys; from kerncfg.cli import main; main(['--help']); print(*sys.modules)"
    env = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[1])}
    done = subprocess.run([sys.executable, "-c", program], env=env, capture_output=True, text=True, check=True)
    loaded = set(done.stdout.split())
    assert not loaded & {"torch", "hydra", "omegaconf", "rich", "jsonschema", "transformers"}


@pytest.mark.parametrize("kernels", ["liger", "bundled"])
def test_planning_for_a_described_target_imports_no_torch(kernels: str) -> None:
    program = (
        "import sys; from kerncfg.cli import main; "
        f"code = main(['plan', 'target=h100', 'kernels={kernels}']); "
        "sys.exit(code or int('torch' in sys.modules or 'transformers' in sys.modules))"
    )
    env = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[1])}
    done = subprocess.run([sys.executable, "-c", program], env=env, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


def test_use_hub_kernels_switches_the_hub_off_and_leaves_the_rest(tmp_path: Path) -> None:
    words = ("plan", "--json", "target=h100", "kernels=bundled", "kernels.X.cuda=kernels-community/a@v1:X")
    done = run_kerncfg(*words, cwd=tmp_path, USE_HUB_KERNELS="0")
    steps = {step["name"]: step for step in json.loads(done.stdout)["steps"]}
    assert steps["RMSNorm"]["kind"] == "bind"
    assert steps["X"]["modes"]["inference"]["rejected"][0]["reason"] == (
        "Hub kernels are switched off by USE_HUB_KERNELS, needed 1, ON, YES or TRUE"
    )


def test_output_is_not_wrapped_off_a_terminal(tmp_path: Path) -> None:
    done = run_kerncfg("plan", "target=h100", "kernels=liger", cwd=tmp_path, COLUMNS="40")
    line = next(line for line in done.stdout.splitlines() if "LigerRMSNorm" in line)
    assert line.rstrip().endswith("preset: kernels/liger.yaml:5")


def test_a_warning_of_ours_is_one_line_without_a_place_in_the_source(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    @click.command()
    def noisy() -> None:
        for _ in range(2):
            warnings.warn("this has\n  no effect", KerncfgWarning, stacklevel=1)

    monkeypatch.setitem(program.commands, "noisy", noisy)
    assert call("noisy") == 0
    assert capsys.readouterr().err == "warning: this has no effect\n" * 2


def test_warnings_of_others_stay_what_they_are(monkeypatch: pytest.MonkeyPatch) -> None:
    @click.command()
    def noisy() -> None:
        warnings.warn("not ours", UserWarning, stacklevel=1)

    monkeypatch.setitem(program.commands, "noisy", noisy)
    with pytest.warns(UserWarning, match="not ours"):
        call("noisy")


@pytest.mark.parametrize(
    ("error", "code"), [(ConfigError("x"), 1), (SourceError("x"), 3), (IntegrityError("x"), 1), (TrustError("x"), 1)]
)
def test_the_exit_code_tells_a_finding_from_a_place_that_cannot_be_read(
    error: KerncfgError, code: int, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    @click.command()
    def failing() -> None:
        raise error

    monkeypatch.setitem(program.commands, "failing", failing)
    assert call("failing") == code
    assert capsys.readouterr().err == "error: x\n"


def test_the_names_of_schemas_as_json(capsys: pytest.CaptureFixture[str]) -> None:
    assert call("schema", "--json") == 0
    assert {"difference", "doctor", "explanation", "plan"} <= {*json.loads(capsys.readouterr().out)}


@pytest.mark.parametrize("variables", [{}, {"NO_COLOR": "1", "TERM": "xterm-256color"}])
def test_there_is_no_colour_off_a_terminal(tmp_path: Path, variables: dict[str, str]) -> None:
    done = run_kerncfg("plan", "target=h100", "kernels=bundled", cwd=tmp_path, **variables)
    assert "\x1b" not in done.stdout


def test_no_color_is_respected_on_a_terminal(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "kerncfg", "plan", "target=h100", "kernels=bundled"]
    shown = {name: on_a_terminal(command, tmp_path, **said) for name, said in (("", {}), ("no", {"NO_COLOR": "1"}))}
    assert "\x1b[32m" in shown[""]
    assert "\x1b[32m" not in shown["no"]


def on_a_terminal(command: list[str], cwd: Path, **environment: str) -> str:
    """Run a command with a terminal for its output, and give what it wrote there."""
    ours, theirs = pty.openpty()
    env = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[1]), "TERM": "xterm-256color", **environment}
    with subprocess.Popen(command, cwd=cwd, env=env, stdout=theirs, stderr=theirs, stdin=theirs):
        os.close(theirs)
        written = b""
        try:
            while part := os.read(ours, 65536):
                written += part
        except OSError:  # how Linux says that the other side is closed
            pass
    os.close(ours)
    return written.decode()
