"""Files and names in the place of others: the error says what was given, what was expected, and what to type."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

import kerncfg
from kerncfg import errors
from kerncfg.cli import main
from tests.hub import kernels
from tests.hub.kernels import ACME
from tests.hubbing import CPU, row

if TYPE_CHECKING:
    from tests.hub.fixtures import TestHub

BUILTIN = (*CPU, "kernels.RMSNorm.cpu=builtin:RMSNorm")
LIGER = "from liger_kernel.transformers import apply_liger_kernel_to_llama\napply_liger_kernel_to_llama"


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def said(capsys: pytest.CaptureFixture[str], *words: str) -> str:
    assert main(list(words)) == 1
    out, err = capsys.readouterr()
    assert out == ""
    return err


def test_a_plan_is_no_lock_and_a_lock_is_no_plan(capsys: pytest.CaptureFixture[str]) -> None:
    kerncfg.plan(*BUILTIN).save("plan.json")
    kerncfg.lock("inherited=none").save("kerncfg.lock")
    entry = {"dependency": {"repo-id": "a/b", "version": 1}, "lock": {"commit": "0" * 40}}
    Path("kernels.lock").write_text(json.dumps([entry]))
    for words in (("plan", *BUILTIN, "--lock"), ("lock", *BUILTIN, "--lock"), ("lock", *BUILTIN, "--from")):
        assert said(capsys, *words, "plan.json").startswith("error: plan.json: is a plan, not a lock\n  hint: ")
    assert said(capsys, "fetch", "kerncfg.lock").startswith("error: kerncfg.lock: is a lock, not a plan\n  hint: ")
    assert said(capsys, "diff", "plan.json", "kerncfg.lock").startswith("error: kerncfg.lock: is a lock, not a plan")
    expected = "error: kernels.lock: is a lock of the `kernels` library, not a plan\n  hint: "
    assert said(capsys, "fetch", "kernels.lock").startswith(expected)


@pytest.mark.parametrize(
    ("words", "what"),
    [
        (("fetch", ""), "an argument"),
        (("diff", "a", ""), "an argument"),
        (("validate", ""), "an argument"),
        (("report", ""), "an argument"),
        (("compare", ""), "an argument"),
        (("plan", "--lock", ""), "--lock"),
        (("plan", "-o", ""), "-o"),
        (("plan", "--config-dir", ""), "--config-dir"),
        (("lock", "--from", ""), "--from"),
    ],
)
def test_an_empty_name_is_not_the_working_directory(
    words: tuple[str, ...], what: str, capsys: pytest.CaptureFixture[str]
) -> None:
    expected = f"error: {what} is empty, expected the name of a file or folder\n"
    assert said(capsys, *words).startswith(expected)
    assert not list(Path().iterdir())


def test_import_needs_a_name_too(capsys: pytest.CaptureFixture[str]) -> None:
    assert said(capsys, "import", "").startswith("error: import needs a file")


@pytest.mark.parametrize("word", ["=x", ".=x", "kernels.=x", "kernels..X=y", "~.X"])
def test_an_empty_key_is_told_as_one(word: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert "has an empty part in its key" in said(capsys, "plan", word)


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("l.py", f"{LIGER}(rope=True, nonsense=True)"),
        ("l.py", f"{LIGER}(rope=True, nonsense=computed())"),
        ("l.py", f'flags = {{"nonsense": True}}\n{LIGER}(**flags)'),
        ("l.py", f'{LIGER}(**{{"rope": True, "nonsense": True}})'),
        ("l.py", "TrainingArguments(use_liger_kernel=True, liger_kernel_config={'nonsense': True})"),
        ("l.yaml", "use_liger_kernel: true\nliger_kernel_config: {nonsense: true}\n"),
        ("l.yaml", "liger_kernel_config: {nonsense: true}\n"),
    ],
)
def test_a_flag_that_liger_has_not_is_an_error(name: str, text: str, capsys: pytest.CaptureFixture[str]) -> None:
    Path(name).write_text(text)
    err = said(capsys, "import", name)
    assert (
        err.startswith(f"error: {name}")
        and "nonsense=" in err
        and "is no flag of Liger's\n  hint: there are rope" in err
    )


def test_what_cannot_be_read_of_liger_is_a_remark(capsys: pytest.CaptureFixture[str]) -> None:
    Path("l.py").write_text(f"{LIGER}(False, **computed(), rms_norm=False)")
    assert main(["import", "l.py"]) == 0
    out, err = capsys.readouterr()
    assert "RMSNorm" not in out
    assert "a flag without its name is not written out: it is 'False'" in err
    assert "**computed() is not written out: " in err


def test_a_switch_that_is_no_boolean_is_not_off(capsys: pytest.CaptureFixture[str]) -> None:
    Path("l.yaml").write_text("use_liger_kernel: 'yes'\n")
    assert "use_liger_kernel: found 'yes', expected true or false" in said(capsys, "import", "l.yaml")


def test_a_plan_from_a_file_says_how_to_consent(hub: TestHub, capsys: pytest.CaptureFixture[str]) -> None:
    hub.add(kernels.norms(f"{ACME}/norms"))
    kerncfg.plan(*CPU, row(f"{ACME}/norms@v1"), trust=[ACME]).save("plan.json")
    hint = f"hint: for a plan from a file say --trust {ACME}/norms, in Python load_plan(…, trust=['{ACME}/norms'])"
    assert hint in said(capsys, "fetch", "plan.json")
    with pytest.raises(errors.TrustError) as caught:
        kerncfg.fetch(kerncfg.load_plan("plan.json"))
    assert hint in str(caught.value)
    assert main(["fetch", "plan.json", "--trust", f"{ACME}/norms"]) == 0
    kerncfg.fetch(kerncfg.load_plan("plan.json", trust=[f"{ACME}/norms"]))
