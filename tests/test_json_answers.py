"""What every command prints under `--json` follows a schema that `kerncfg schema` prints."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from jsonschema import Draft202012Validator

from kerncfg.cli import main, program
from kerncfg.compiler.schema import names, schema, validate
from tests.hub import kernels
from tests.hub.kernels import TRUSTED
from tests.hubbing import CPU, planned, row

if TYPE_CHECKING:
    from tests.hub.fixtures import TestHub

NORMS = row(f"{TRUSTED}/norms@v1")
GONE = f"kernels.X.cpu={TRUSTED}/gone@v1:X"
ASKED = {
    "plan": ("plan", *CPU, NORMS),
    "explain": ("explain", "Scale", *CPU, NORMS),
    "diff": ("diff", "plan.json", "other.json"),
    "lock": ("lock", *CPU, NORMS, GONE),
    "lock --check": ("lock", "--check", *CPU, NORMS, GONE),
    "lock --check, moved": ("lock", "--check", "--lock", "none.lock", *CPU, NORMS),
    "fetch": ("fetch", "plan.json"),
    "fetch --dry-run": ("fetch", "plan.json", "--dry-run"),
    "show": ("show", *CPU, NORMS),
    "validate": ("validate", *CPU, NORMS),
    "validate, with a fault": ("validate", "kernels.X.cdua=a/b:C"),
    "doctor": ("doctor",),
    "import": ("import", "l.yaml"),
    "schema": ("schema",),
    "completion": ("completion", "bash"),
    "compare": ("compare", "made"),
}
SCHEMAS = {
    "explain": "explanation",
    "diff": "difference",
    "lock --check": "lock-check",
    "show": "config",
    "validate": "validation",
    "import": "translation",
    "schema": "schema-names",
    "compare": "comparison",
}
# What needs a model or an experiment: `test_run`, `test_verify`, `test_bench`, `test_push` and `test_pull`.
ELSEWHERE = {"run", "verify", "bench", "push", "pull"}


def test_every_command_that_prints_data_is_asked() -> None:
    printing = {
        name
        for name, command in program.commands.items()
        if any("--json" in parameter.opts for parameter in command.params)
    }
    assert printing - ELSEWHERE == {words[0] for words in ASKED.values()}


@pytest.fixture
def asked(
    hub: TestHub, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> Iterator[Any]:
    monkeypatch.chdir(tmp_path)
    hub.add(kernels.norms())
    planned(NORMS).save("plan.json")
    planned(NORMS.replace("@v1", "@v2")).save("other.json")
    Path("made").mkdir()
    planned(NORMS).save("made/plan.json")
    Path("l.yaml").write_text("use_liger_kernel: true\n")
    Path("none.lock").write_text('{"schema": 1, "pins": {}}')
    assert main(["lock", *CPU, NORMS, GONE]) == 0
    capsys.readouterr()

    def ask(*words: str) -> Any:
        assert main([*words, "--json"]) in (0, 1)
        return json.loads(capsys.readouterr().out)

    yield ask


@pytest.mark.parametrize("name", ASKED)
def test_it_follows_its_schema(name: str, asked: Any) -> None:
    usual = name.partition(",")[0].removesuffix(" --dry-run")
    validate(asked(*ASKED[name]), SCHEMAS.get(usual, usual))


def test_a_fetch_that_failed_follows_it_too(hub: TestHub, asked: Any, capsys: pytest.CaptureFixture[str]) -> None:
    hub.fault("layers", status=404, code="EntryNotFound", times=None)
    assert main(["fetch", "plan.json", "--json"]) == 3
    found = json.loads(capsys.readouterr().out)
    validate(found, "fetch")
    assert found["kernels"][0]["reason"].startswith("HTTP 404: ")


def test_a_check_that_nobody_answers_follows_it_too(
    hub: TestHub, asked: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    with hub.unreachable():
        assert main(["lock", "--check", "--json", *CPU, NORMS, GONE]) == 3
    found = json.loads(capsys.readouterr().out)
    validate(found, "lock-check")
    assert found["moved"] == [] and set(found["unchecked"]) == {f"{TRUSTED}/norms@v1", f"{TRUSTED}/gone@v1"}


@pytest.mark.parametrize("name", names())
def test_a_schema_is_one(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["schema", name, "--json"]) == 0
    printed = json.loads(capsys.readouterr().out)
    assert printed == schema(name)
    Draft202012Validator.check_schema(printed)
