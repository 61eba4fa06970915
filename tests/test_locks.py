"""`kerncfg lock` and `fetch`, as far as they print and end; what they do is in `test_hub_cli`."""

from __future__ import annotations

import json
import os
import pty
import shlex
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from kerncfg.cli import main
from tests.hub import kernels
from tests.hub.kernels import TRUSTED
from tests.hubbing import planned, row

if TYPE_CHECKING:
    from tests.hub.fixtures import TestHub

NORMS = f"{TRUSTED}/norms"
WORDS = ("inherited=none", row(f"{NORMS}@v1"))


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, hub: TestHub) -> Path:
    monkeypatch.chdir(tmp_path)
    hub.add(kernels.norms())
    return tmp_path


def call(capsys: pytest.CaptureFixture[str], *words: str) -> tuple[int, str, str]:
    code = main(list(words))
    out, err = capsys.readouterr()
    return code, out, err


def test_a_lock_is_told_and_printed(capsys: pytest.CaptureFixture[str], folder: Path) -> None:
    assert call(capsys, "lock", *WORDS) == (0, "", "written to kerncfg.lock: 1 pinned, 0 not\n")
    words = ("inherited=none", "kernels.RMSNorm.cpu=builtin:RMSNorm")
    nothing = "0 pinned, 0 not; nothing to pin: no row names a kernel of the Hub\n"
    assert call(capsys, "lock", "--lock", "empty.lock", *words) == (0, "", f"written to empty.lock: {nothing}")
    code, out, _ = call(capsys, "lock", "--json", "--lock", "other.lock", *WORDS)
    assert code == 0 and json.loads(out) == json.loads((folder / "other.lock").read_text())
    assert (folder / "other.lock").read_bytes() == (folder / "kerncfg.lock").read_bytes()
    assert call(capsys, "lock", "--check", *WORDS) == (0, "", "kerncfg.lock: nothing moved\n")
    code, out, _ = call(capsys, "lock", "--check", "--json", *WORDS)
    assert code == 0 and json.loads(out) == {"moved": [], "unchecked": {}}


def test_a_check_writes_nothing(capsys: pytest.CaptureFixture[str], folder: Path) -> None:
    assert call(capsys, "lock", WORDS[0])[0] == 0
    before = (folder / "kerncfg.lock").read_bytes()
    code, out, err = call(capsys, "lock", "--check", *WORDS)
    assert (code, out, err) == (1, f"{NORMS}@v1: not locked\n", "kerncfg.lock: 1 moved\n")
    assert (folder / "kerncfg.lock").read_bytes() == before


def test_what_a_terminal_obeys_in_a_lock_is_spelled_out(capsys: pytest.CaptureFixture[str], folder: Path) -> None:
    assert call(capsys, "lock", *WORDS)[0] == 0
    data = json.loads((folder / "kerncfg.lock").read_text())
    data["pins"][f"{NORMS}@v1"]["note"] = "n\x1b[31m\npinned: forged"
    (folder / "kerncfg.lock").write_text(json.dumps(data))
    assert call(capsys, "lock", *WORDS)[1] == rf"pinned: {NORMS}@v1: n\x1b[31m\npinned: forged" + "\n"


def test_a_list_of_nothing_is_no_lock_that_nothing_moved_from(capsys: pytest.CaptureFixture[str], folder: Path) -> None:
    (folder / "kerncfg.lock").write_text("[]")
    for words in (["lock", "--check"], ["lock"], ["plan"]):
        code, out, err = call(capsys, *words, WORDS[0], *(["target=cpu"] if words == ["plan"] else []))
        assert (code, out) == (1, "")
        assert err.startswith("error: kerncfg.lock: found an empty list, needed a map with `schema` and `pins`\n")


@pytest.mark.parametrize("options", [(), ("--lock", "my locks/x.lock", "--trust", "acme")], ids=["usual", "named"])
def test_a_check_without_a_lock_is_one_error_with_the_line_that_writes_it(
    capsys: pytest.CaptureFixture[str], hub: TestHub, folder: Path, options: tuple[str, ...]
) -> None:
    Path("my locks").mkdir()
    with hub.log.expect(0):
        code, out, err = call(capsys, "lock", "--check", *WORDS, *options)
    assert (code, out) == (1, "")
    place = options[1] if options else "kerncfg.lock"
    first, hint, see = err.splitlines()
    assert first == f"error: there is no {place}, needed the lock to check" and see.endswith("#lock")
    line = hint.removeprefix("  hint: write it first: kerncfg ")
    assert call(capsys, *shlex.split(line))[0] == 0  # as it stands there
    assert call(capsys, "lock", "--check", *WORDS, *options)[0] == 0


ENVIRONMENTS = {
    "no token": ({}, "HTTP 401: "),
    "a token of yesterday": ({"HF_TOKEN": "hf_old"}, "HTTP 401: "),
    "a token that cannot be sent": ({"HF_TOKEN": "hf_\nnew"}, "HF_TOKEN holds a blank"),
    "another's token": ({"HF_TOKEN": "hf_other"}, "HTTP 404: "),
    "offline": ({"HF_HUB_OFFLINE": "1"}, "as last resolved, for HF_HUB_OFFLINE is set"),
    "offline, and nothing known": ({"HF_HUB_OFFLINE": "1", "HF_HUB_CACHE": "other"}, "HF_HUB_OFFLINE is set, and"),
    "nobody there": ({"HF_ENDPOINT": "http://127.0.0.1:9"}, "as last resolved, for the Hub at http://127.0.0.1:9 gave"),
    "switched off": (
        {"USE_HUB_KERNELS": "0"},
        "Hub kernels are switched off by USE_HUB_KERNELS, needed 1, ON, YES or TRUE",
    ),
}


@pytest.mark.parametrize("name", ENVIRONMENTS)
def test_what_this_environment_is_not_told_has_not_moved(
    capsys: pytest.CaptureFixture[str], hub: TestHub, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    private = kernels.silu(f"{TRUSTED}/private")
    private.private = True
    hub.add(private)
    hub.tokens = {"hf_good": frozenset({private.name}), "hf_other": frozenset()}
    words = ("inherited=none", row(f"{private.name}@v1", "SiLU"))
    monkeypatch.setenv("HF_TOKEN", "hf_good")
    assert call(capsys, "lock", *words)[0] == 0
    monkeypatch.delenv("HF_TOKEN")
    environment, reason = ENVIRONMENTS[name]
    for variable, value in environment.items():
        monkeypatch.setenv(variable, value)
    code, out, err = call(capsys, "lock", "--check", *words)
    assert (code, err) == (3, "kerncfg.lock: nothing moved, 1 not checked\n")
    assert out.startswith(f"not checked: {private.name}@v1: {reason}")
    code, out, _ = call(capsys, "lock", "--check", "--json", *words)
    assert code == 3 and json.loads(out)["moved"] == [] and list(json.loads(out)["unchecked"]) == [f"{private.name}@v1"]


def test_what_is_gone_has_moved(
    capsys: pytest.CaptureFixture[str], hub: TestHub, monkeypatch: pytest.MonkeyPatch
) -> None:
    call(capsys, "lock", *WORDS)
    hub.remove(next(each for each in [hub.repository("kernel", NORMS)] if each))
    code, out, err = call(capsys, "lock", "--check", *WORDS)
    assert (code, err) == (1, "kerncfg.lock: 1 moved\n") and "→ HTTP 404: there is no kernel repository" in out
    # To whom sends a token the Hub says the same of what is not for him.
    hub.tokens = {"hf_other": frozenset()}
    monkeypatch.setenv("HF_TOKEN", "hf_other")
    code, out, err = call(capsys, "lock", "--check", *WORDS)
    assert (code, err) == (3, "kerncfg.lock: nothing moved, 1 not checked\n")
    assert out.startswith(f"not checked: {NORMS}@v1: HTTP 404: there is no kernel repository {NORMS} at {hub.url}, as ")
    assert "as far as the token that was sent may see, needed its branches and tags" in out
    # That a branch is gone is told to those only who may see the repository.
    hub.add(kernels.repository(NORMS, kernels.norm_layers(1), branch="v7"))
    code, out, _ = call(capsys, "lock", "--check", *WORDS)
    assert code == 1 and "→ HTTP 404: " in out and "has no such revision" in out


def test_a_row_that_nobody_trusts_is_no_finding_of_a_check(capsys: pytest.CaptureFixture[str], hub: TestHub) -> None:
    hub.add(kernels.silu("acme/act"))
    words = (*WORDS, row("acme/act@v1", "SiLU"))
    assert call(capsys, "lock", *words)[0] == 0
    assert call(capsys, "lock", "--check", *words) == (0, "", "kerncfg.lock: nothing moved\n")
    assert call(capsys, "lock", *words, "--trust", "acme", "--lock", "kerncfg.lock")[0] == 0
    locked = Path("kerncfg.lock").read_bytes()
    code, out, _ = call(capsys, "lock", "--check", *words)
    assert code == 3 and out.startswith("not checked: acme/act@v1: publisher acme is not trusted: set trust.publishers")
    assert call(capsys, "lock", *words)[0] == 0  # what the lock holds stays as it is
    assert Path("kerncfg.lock").read_bytes() == locked
    code, _, err = call(capsys, "lock", "--upgrade", "SiLU", *words)
    assert code == 3 and "acme/act@v1 stays as it is: publisher acme is not trusted" in err
    assert Path("kerncfg.lock").read_bytes() == locked


@pytest.mark.parametrize("word", ["enabled=false", "USE_HUB_KERNELS"])
def test_an_upgrade_that_nobody_may_ask_about_is_an_error(
    capsys: pytest.CaptureFixture[str], hub: TestHub, monkeypatch: pytest.MonkeyPatch, word: str
) -> None:
    call(capsys, "lock", *WORDS)
    locked = Path("kerncfg.lock").read_bytes()
    if word.isupper():
        monkeypatch.setenv(word, "0")
    with hub.log.expect(0):
        code, out, err = call(capsys, "lock", "--upgrade", "Scale", *WORDS, *([] if word.isupper() else [word]))
    assert (code, out) == (3, "") and err.startswith(f"error: {NORMS}@v1 stays as it is: ") and "switched off" in err
    assert Path("kerncfg.lock").read_bytes() == locked


def test_a_check_upgrades_nothing_and_says_so(capsys: pytest.CaptureFixture[str], hub: TestHub) -> None:
    with hub.log.expect(0):
        code, out, err = call(capsys, "lock", "--check", "--upgrade", "Scale", *WORDS)
    assert (code, out) == (1, "")
    assert err.startswith("error: --check writes nothing, and --upgrade Scale is to be written")


def test_a_lock_that_cannot_be_written_or_read_says_why(capsys: pytest.CaptureFixture[str]) -> None:
    code, _, err = call(capsys, "lock", "--lock", "no/kerncfg.lock", *WORDS)
    assert code == 1 and "no/kerncfg.lock cannot be written: No such file or directory" in err
    code, _, err = call(capsys, "lock", "--from", "gone.lock", *WORDS)
    assert code == 1 and "gone.lock: No such file or directory" in err


def test_what_is_not_pinned_is_told(capsys: pytest.CaptureFixture[str]) -> None:
    code, out, err = call(capsys, "lock", *WORDS, f"kernels.X.cpu={TRUSTED}/gone@v1:X")
    assert code == 0 and out.startswith(f"not pinned: {TRUSTED}/gone@v1: HTTP 404: there is no kernel repository")
    assert err == "written to kerncfg.lock: 1 pinned, 1 not\n"


def test_what_is_pinned_from_memory_is_told(capsys: pytest.CaptureFixture[str], hub: TestHub) -> None:
    assert call(capsys, "lock", *WORDS)[0] == 0
    with hub.unreachable():
        code, out, _ = call(capsys, "lock", "--lock", "other.lock", *WORDS)
    assert code == 0 and out.startswith(f"pinned: {NORMS}@v1: as last resolved, for the Hub at ")


def test_a_plan_without_files_has_nothing_to_fetch(capsys: pytest.CaptureFixture[str]) -> None:
    planned("kernels.RMSNorm.cpu=builtin:RMSNorm").save("plan.json")
    assert call(capsys, "fetch", "plan.json") == (0, "the plan names no kernel that is to be fetched\n", "")


def test_what_cannot_be_fetched_is_told_for_every_kernel_of_the_build(
    capsys: pytest.CaptureFixture[str], hub: TestHub
) -> None:
    hub.add(kernels.dependent())
    planned(row(f"{NORMS}@v1"), f"kernels.X.cpu={TRUSTED}/fused@v1:Scale").save("plan.json")
    hub.fault("layers", status=404, code="EntryNotFound", times=None)
    code, out, _ = call(capsys, "fetch", "plan.json")
    assert code == 3 and [line.split(" at ")[0] for line in out.splitlines()] == [
        f"failed: {TRUSTED}/fused@v1:Scale", f"failed: {NORMS}@v1:Scale",
    ]  # fmt: skip
    code, out, _ = call(capsys, "fetch", "plan.json", "--json")
    rows = json.loads(out)["kernels"]
    assert code == 3 and all(row["reason"].startswith("HTTP 404: ") for row in rows)


def test_a_terminal_sees_a_bar_and_a_pipe_does_not(hub: TestHub, folder: Path) -> None:
    planned(row(f"{NORMS}@v1")).save("plan.json")
    hub.fault("layers", delay=0.3)
    master, slave = pty.openpty()
    environment = hub.environment(TERM="xterm", COLUMNS="80")
    done = subprocess.Popen(
        [sys.executable, "-m", "kerncfg", "fetch", "plan.json"], env=environment, stdout=subprocess.PIPE, stderr=slave
    )
    out, _ = done.communicate(timeout=60)
    os.close(slave)
    seen = b""
    while True:
        try:
            part = os.read(master, 4096)
        except OSError:
            break
        if not part:
            break
        seen += part
    os.close(master)
    assert done.returncode == 0 and out.startswith(b"fetched ")
    assert b"fetching" in seen and b"%" in seen
