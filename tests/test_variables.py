"""A variable with kerncfg's prefix is read, or somebody is told that it is not and what to do instead."""

from __future__ import annotations

import ast
import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

import kerncfg
from kerncfg.cli import main
from kerncfg.variables import INSTEAD, KNOWN, unread

PACKAGE = Path(kerncfg.__file__).parent
KNOWN_ONE, MISSPELT, RETIRED = "KERNCFG_CACHE", "KERNCFG_CACH", "KERNCFG_STRICT"


@pytest.fixture(autouse=True)
def without_any(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [name for name in os.environ if name.startswith("KERNCFG_") and name not in KNOWN]:
        monkeypatch.delenv(name)


@pytest.mark.parametrize(
    ("name", "cure"),
    [
        (MISSPELT, "did you mean KERNCFG_CACHE?"),
        ("kerncfg_cache", "did you mean KERNCFG_CACHE?"),
        (RETIRED, "say policy=strict"),
        ("KERNCFG_STRCIT", "say policy=strict"),
        ("KERNCFG_CONFIGDIR", "say --config-dir DIR"),
        ("KERNCFG_FLAVOUR", "say it as an override, key=value"),
    ],
)
def test_what_is_not_read_is_told_with_what_to_do_instead(name: str, cure: str) -> None:
    assert list(unread({name: "1", KNOWN_ONE: "/x", "HOME": "/", "_KERNCFG_COMPLETE": "x"})) == [(name, cure)]


def test_one_that_is_empty_is_not_set() -> None:
    assert list(unread({MISSPELT: ""})) == []


def test_the_table_holds_what_the_code_reads_and_nothing_else() -> None:
    texts = {
        node.value
        for file in PACKAGE.rglob("*.py")
        for node in ast.walk(ast.parse(file.read_text("utf-8")))
        if isinstance(node, ast.Constant) and isinstance(node.value, str)
    }
    named = {text for text in texts if re.fullmatch(r"KERNCFG_[A-Z_]+", text)}
    assert named - {"KERNCFG_"} == {*KNOWN, *INSTEAD}


@pytest.mark.parametrize(
    "words",
    [
        ["validate", "target=cpu"],
        ["show", "--json"],
        ["schema", "--json"],
        ["plan", "--json", "target=cpu", "inherited=none"],
        ["explain", "--json", "RMSNorm", "target=cpu", "inherited=none", "kernels.RMSNorm=builtin:RMSNorm"],
        ["diff", "a.json", "b.json"],
        ["completion", "bash"],
        ["lock", "--json", "inherited=none"],
    ],
)
def test_every_command_says_once_what_is_not_read(
    words: list[str], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    monkeypatch.chdir(tmp_path)
    for name in (KNOWN_ONE, MISSPELT, RETIRED):
        monkeypatch.setenv(name, "1")
    main(words)
    out, err = capsys.readouterr()
    assert [line for line in err.splitlines() if line.startswith("warning: KERNCFG_")] == [
        "warning: KERNCFG_CACH is set, and kerncfg does not read it: did you mean KERNCFG_CACHE?",
        "warning: KERNCFG_STRICT is set, and kerncfg does not read it: say policy=strict",
    ]
    assert "KERNCFG_CACH" not in out.replace("_KERNCFG_COMPLETE", "")
    if "--json" in words:
        json.loads(out)


def test_doctor_says_it_among_its_findings_and_nowhere_else(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv(MISSPELT, "1")
    main(["doctor", "--json"])
    out, err = capsys.readouterr()
    (found,) = [finding for finding in json.loads(out)["findings"] if finding["name"] == MISSPELT]
    assert (found["severity"], found["cure"]) == ("warn", "did you mean KERNCFG_CACHE?")
    assert MISSPELT not in err


def test_a_process_of_its_own_says_it_beside_clean_data() -> None:
    command = [sys.executable, "-m", "kerncfg", "schema", "--json"]
    done = subprocess.run(command, env={**os.environ, RETIRED: "1"}, capture_output=True, text=True, timeout=120)
    assert json.loads(done.stdout)
    assert done.stderr == "warning: KERNCFG_STRICT is set, and kerncfg does not read it: say policy=strict\n"
