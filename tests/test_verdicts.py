from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from kerncfg.documents.config import KernelRef
from kerncfg.documents.plan import Kernel
from kerncfg.errors import KerncfgWarning
from kerncfg.verdicts import Judged, Verdicts, environment, identity

KERNEL = Kernel(reference=KernelRef.parse("builtin:RMSNorm"), digest="a" * 64)
HERE = {"device": "cpu", "torch": "2.13"}


def judged(repeatable: bool | None, kernel: Kernel = KERNEL) -> Judged:
    name = str(kernel.reference)
    return Judged(name="X", kernel=name, identity=identity(kernel), passed=True, reason=None, repeatable=repeatable)


def question(plan: str = "b" * 64, **more: Any) -> dict[str, Any]:
    return {"plan": plan, "environment": HERE, **more}


def test_what_was_answered_is_found_by_the_same_question_alone(tmp_path: Path) -> None:
    verdicts = Verdicts(tmp_path / "deep" / "verdicts")
    assert verdicts.find(question()) is None
    verdicts.keep(question(), [judged(True)])
    assert verdicts.find(question()) == (judged(True),)
    assert verdicts.find(question(plan="c" * 64)) is None
    assert verdicts.find(question(modes=["training"])) is None


def test_a_broken_file_was_never_asked(tmp_path: Path) -> None:
    verdicts = Verdicts(tmp_path)
    verdicts.keep(question(), [judged(True)])
    (file,) = tmp_path.glob("*.json")
    whole = file.read_text()
    for text in ("", "{", "[]", whole.replace('"schema": 1', '"schema": 2'), whole.replace('"passed"', '"parsed"')):
        file.write_text(text)
        assert verdicts.find(question()) is None
        assert verdicts.repeatable(KERNEL, HERE) is None


def test_a_file_whose_name_collides_answers_another_question(tmp_path: Path) -> None:
    verdicts = Verdicts(tmp_path)
    verdicts.keep(question(), [judged(True)])
    (file,) = tmp_path.glob("*.json")
    data = json.loads(file.read_text())
    data["question"]["environment"]["torch"] = "2.12"
    file.write_text(json.dumps(data))
    assert verdicts.find(question()) is None


def test_a_kernel_is_repeatable_where_it_never_differed(tmp_path: Path) -> None:
    verdicts = Verdicts(tmp_path)
    assert verdicts.repeatable(KERNEL, HERE) is None
    verdicts.keep(question(), [judged(True), judged(None)])
    assert verdicts.repeatable(KERNEL, HERE) is True
    assert verdicts.repeatable(replace(KERNEL, digest="d" * 64), HERE) is None
    assert verdicts.repeatable(KERNEL, {**HERE, "torch": "2.14"}) is None
    verdicts.keep(question(plan="c" * 64), [judged(False)])
    assert verdicts.repeatable(KERNEL, HERE) is False


def test_a_folder_that_cannot_be_written_is_warned_about(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.warns(KerncfgWarning, match="the verdict cannot be kept: .*KERNCFG_CACHE"):
        Verdicts(tmp_path / "file").keep(question(), [judged(True)])


def test_the_usual_folder(tmp_path: Path) -> None:
    def folder(**said: str) -> Path:
        return Verdicts.usual(said)._folder

    assert folder(KERNCFG_CACHE="/a", XDG_CACHE_HOME="/b") == Path("/a/verdicts")
    assert folder(XDG_CACHE_HOME="/b") == Path("/b/kerncfg/verdicts")
    assert folder() == Path.home() / ".cache/kerncfg/verdicts"


def test_the_environment_is_this_machine_as_a_target() -> None:
    found = environment("cpu")
    assert found["device"] == "cpu" and found["torch"] and "python" in found
