"""Plain data of any origin: nested without end, and texts that hold half of a character, are faults with a place."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

import kerncfg
from kerncfg.cli import main
from kerncfg.documents.config import KernelRef
from kerncfg.documents.lock import Lock, Pin
from kerncfg.documents.plain import half, loads
from kerncfg.errors import ConfigError, LockError

HALF = "\ud800"
DEEP = {"list": "[" * 10_000 + "]" * 10_000, "map": '{"a":' * 10_000 + "1" + "}" * 10_000}
# Below what the parser refuses by itself, and too deep for whoever reads it.
DEEP["parsed"] = '{"schema": 1, "digest": "d", "target": ' + "[" * 400 + "]" * 400 + ', "steps": [], "pins": {}}'
PLAN = ("inherited=none", "target=cpu", "kernels.RMSNorm.cpu=builtin:RMSNorm")


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.mark.parametrize(
    ("data", "place"),
    [
        (f"a{HALF}", "'a\\ud800'"),
        ({"a": [1, {"b": HALF}]}, "a.1.b: '\\ud800'"),
        ({"a": {HALF: 1}}, "a: '\\ud800'"),
        ({"a": ("x", HALF)}, "a.1: '\\ud800'"),
        ({"a": ["whole", "😀", 1, None, {"b": 2.0}]}, None),
    ],
)
def test_half_of_a_character_is_found_with_its_place(data: object, place: str | None) -> None:
    assert half(data) == place


def test_json_is_read_and_its_faults_are_values_errors() -> None:
    assert loads(b'{"a": "\\ud83d\\ude00"}') == {"a": "😀"}
    with pytest.raises(ValueError, match=r"half of a character: a\.0: '\\ud83d'"):
        loads('{"a": ["\\ud83d"]}')
    with pytest.raises(ValueError, match=r"^nested too deeply$"):
        loads(DEEP["list"])


def commands(file: str) -> Iterator[tuple[str, ...]]:
    yield ("import", file)
    yield ("plan", *PLAN, "--lock", file)
    yield ("lock", *PLAN, "--lock", file)
    yield ("lock", *PLAN, "--from", file)
    yield ("fetch", file)
    yield ("diff", file, file)
    yield ("validate", file)


@pytest.mark.parametrize("kind", DEEP)
@pytest.mark.parametrize("name", ["x.json", "kernels.lock", "x.yaml"])
def test_a_file_that_is_nested_too_deeply_is_one_error(
    kind: str, name: str, capsys: pytest.CaptureFixture[str]
) -> None:
    Path(name).write_text(DEEP[kind])
    for words in commands(name):
        assert main(list(words)) == 1, words
        out, err = capsys.readouterr()
        assert out == "" and err.startswith("error: ") and name in err and len(err) < 1000, words
        assert "recursion" not in err


@pytest.mark.parametrize("text", ["[" * 10_000 + "]" * 10_000, "f(" + "-" * 900 + "1)", "f(" + "-" * 10_000 + "1)"])
def test_so_is_a_python_source(text: str, capsys: pytest.CaptureFixture[str]) -> None:
    Path("x.py").write_text(f"KernelConfig({text})\n")
    assert main(["import", "x.py"]) == 1
    err = capsys.readouterr().err
    assert err.startswith("error: x.py: ") or err.startswith("error: x.py:1: ")
    assert "nested" in err


@pytest.mark.parametrize("kind", DEEP)
@pytest.mark.parametrize("name", ["outcome", "plan", "report", "verification", "measurement"])
def test_so_is_a_file_of_a_run(
    kind: str, name: str, run_folder: Path, folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    shutil.copytree(run_folder, "made")
    Path("made", f"{name}.json").write_text(DEEP[kind])
    assert main(["report", "made"]) == 1
    assert f"made/{name}.json" in capsys.readouterr().err
    assert main(["compare", "made"]) == 1
    out, err = capsys.readouterr()
    assert f"made/{name}.json" in out + err


@pytest.fixture(scope="module")
def run_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The least that is a run: a plan and what became of it."""
    folder = tmp_path_factory.mktemp("run")
    kerncfg.plan(*PLAN).save(folder / "plan.json")
    return folder


def test_half_of_a_character_in_a_file_is_one_error(capsys: pytest.CaptureFixture[str]) -> None:
    plan = json.loads(kerncfg.plan(*PLAN).to_json())
    plan["notes"] = [HALF]
    Path("plan.json").write_text(json.dumps(plan))
    lock = {"schema": 1, "pins": {"a/b@v1": {"reason": HALF, "note": None, "releases": [], "versions": {}}}}
    Path("kerncfg.lock").write_text(json.dumps(lock))
    assert main(["fetch", "plan.json"]) == 1
    assert r"error: plan.json: not JSON (half of a character: notes.0: '\ud800')" in capsys.readouterr().err
    assert main(["plan", *PLAN]) == 1
    assert r"kerncfg.lock: not JSON (half of a character: pins.a/b@v1.reason: '\ud800')" in capsys.readouterr().err


def test_in_what_is_said_in_python_too() -> None:
    with pytest.raises(ConfigError, match=r"an override holds half of a character: .*expected text in UTF-8"):
        kerncfg.plan(*PLAN, f"kernels.X.cpu=builtin:{HALF}")
    with pytest.raises(ConfigError, match=r"config= holds half of a character: kernels\.X: '\\ud800'"):
        kerncfg.plan(config={"kernels": {"X": HALF}})
    lock = Lock(pins={KernelRef.parse("a/b@v1"): Pin(ref=KernelRef.parse("a/b@v1"), reason=HALF)})
    with pytest.raises(LockError, match=r"the lock holds half of a character: pins\.a/b@v1\.reason"):
        lock.save("kerncfg.lock")
    assert not list(Path().iterdir())
    plan = replace(kerncfg.plan(*PLAN), notes=(HALF,))
    with pytest.raises(ConfigError, match=r"the plan holds half of a character: notes\.0"):
        plan.save("plan.json")
    assert not list(Path().iterdir())


@pytest.mark.parametrize(
    "words",
    [
        (b"plan", b"kernels.X=builtin:\xff"),
        (b"plan", b"--config-dir", b"d\xff", b"kernels=mine"),
        (b"plan", b"--json", b"--config-dir", b"d\xff", b"kernels=mine"),
        (b"plan", b"--trust", b"\xff"),
        (b"import", b"d\xff/x.py"),
        (b"fetch", b"d\xff"),
    ],
)
def test_a_byte_on_the_command_line_that_is_no_utf_8_ends_in_no_traceback(words: tuple[bytes, ...]) -> None:
    kernels = Path(os.fsdecode(b"d\xff"), "kernels")
    kernels.mkdir(parents=True)
    Path(kernels, "mine.yaml").write_text("RMSNorm: {cpu: 'builtin:RMSNorm'}\n")
    asked = [sys.executable.encode(), b"-m", b"kerncfg", *words]
    done = subprocess.run(asked, capture_output=True, check=False)
    assert b"Traceback" not in done.stderr, done.stderr.decode()
    assert done.returncode in (0, 1)
