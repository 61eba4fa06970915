from __future__ import annotations

import json
from pathlib import Path

import pytest

from kerncfg.cli import main
from kerncfg.compiler.schema import validate as check


@pytest.fixture(autouse=True)
def source(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("train.py").write_text("c = KernelConfig({'RMSNorm': 'builtin:RMSNorm', 'B': x})\n", encoding="utf-8")


def test_the_file_goes_to_standard_output_and_remarks_to_standard_error(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["import", "train.py"]) == 0
    found = capsys.readouterr()
    assert found.out.splitlines()[2:] == ["kernels:", '  RMSNorm: "builtin:RMSNorm"  # train.py:1']
    assert found.err.splitlines() == [
        "note: train.py:1: kernel_mapping['B'] is not written out: x is assigned nowhere in this file",
        "  hint: write it into the imported file",
        "  see: docs/troubleshooting.md#not-written-out",
    ]


def test_what_was_imported_is_an_experiment_of_ones_own(capsys: pytest.CaptureFixture[str]) -> None:
    main(["import", "train.py"])
    Path("conf/experiment").mkdir(parents=True)
    Path("conf/experiment/imported.yaml").write_text(capsys.readouterr().out, encoding="utf-8")
    assert main(["validate", "conf/experiment/imported.yaml"]) == 0
    assert main(["plan", "--config-dir", "conf", "experiment=imported", "target=cpu", "inherited=none"]) == 0
    assert "conf/experiment/imported.yaml:4" in capsys.readouterr().out


def test_data_holds_the_document_and_the_remarks(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["import", "train.py", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    check(found, "translation")
    assert found["document"] == {"kernels": {"RMSNorm": "builtin:RMSNorm"}}
    assert [remark["line"] for remark in found["remarks"]] == [1]


def test_a_file_that_cannot_be_read_is_a_finding(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["import", "nothing.py"]) == 1
    assert "error: nothing.py: cannot be read" in capsys.readouterr().err
