from __future__ import annotations

import json
from pathlib import Path

import pytest
import yaml

import kerncfg
from kerncfg.compiler.schema import validate
from kerncfg.errors import ConfigError

COMMIT = "c" * 40
PIN = {"dependency": {"repo-id": "o/r", "version": 3}, "lock": {"commit": COMMIT}}


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    Path("train.py").write_text("c = KernelConfig({'N': ('o/r:X', {'version': 3})})\n", encoding="utf-8")
    Path("kernels.lock").write_text(json.dumps([PIN]), encoding="utf-8")
    return tmp_path


def test_pins_go_into_the_rows_of_a_source() -> None:
    found = kerncfg.translate("train.py", "kernels.lock")
    assert found.document == {"kernels": {"N": {"kernel": f"o/r@{COMMIT}:X"}}}
    assert not found.remarks


def test_the_order_of_the_files_does_not_matter() -> None:
    one, other = kerncfg.translate("train.py", "kernels.lock"), kerncfg.translate(Path("kernels.lock"), "train.py:1")
    assert one.document == other.document


def test_a_lock_file_alone_says_that_it_names_no_layer() -> None:
    found = kerncfg.translate("kernels.lock")
    assert found.document == {"kernels": {}}
    (remark,) = found.remarks
    assert (remark.file, remark.hint) == ("kernels.lock", f"write kernels.NAME=o/r@{COMMIT}:Name for each layer")


def test_folders_come_from_the_variable() -> None:
    assert kerncfg.translate("train.py", "LOCAL_KERNELS=o/r=/k").document == {"kernels": {"N": {"kernel": "/k:X"}}}


def test_a_variable_alone_stands_where_it_is_said() -> None:
    (remark,) = kerncfg.translate("LOCAL_KERNELS=o/r=/k").remarks
    assert remark.file == "LOCAL_KERNELS"


@pytest.mark.parametrize("name", ["arguments.yaml", "arguments.json"])
def test_training_arguments_are_read(name: str) -> None:
    said = {"output_dir": "out", "use_liger_kernel": True, "liger_kernel_config": {"rms_norm": True, "swiglu": False}}
    Path(name).write_text(json.dumps(said), encoding="utf-8")
    found = kerncfg.translate(name)
    assert "RMSNorm" in found.document["kernels"]
    assert found.origin.place == name and found.origin.line == 1


def test_the_attention_beside_the_flags_is_read_too() -> None:
    text = "use_liger_kernel: {}\nattn_implementation: kernels-community/flash-attn2\n"
    for switch in ("true", "false"):
        Path("a.yaml").write_text(text.format(switch), encoding="utf-8")
        assert kerncfg.translate("a.yaml").document["attention"] == {"default": "kernels-community/flash-attn2"}
    Path("a.yaml").write_text(
        "use_liger_kernel: true\nattn_implementation: {text: sdpa, vision: eager}\n", encoding="utf-8"
    )
    with pytest.raises(ConfigError, match=r"a\.yaml:2:\d+: attn_implementation: .*has no equivalent"):
        kerncfg.translate("a.yaml")


def test_training_arguments_that_switch_it_off_swap_nothing() -> None:
    Path("a.yaml").write_text("use_liger_kernel: false\nliger_kernel_config: {rms_norm: true}\n", encoding="utf-8")
    assert kerncfg.translate("a.yaml").document == {"kernels": {}}


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("a: 1\n", "holds none of use_liger_kernel and liger_kernel_config"),
        ("liger_kernel_config: [rope]\n", r"a\.yaml:1:.*is no map of flags"),
        ("x: 1\nliger_kernel_config: {ropes: true}\n", r"a\.yaml:2: ropes=True is no flag of Liger's"),
        ("[1]\n", "entry 0 names no repository and commit"),
        ("[1\n", r"a\.yaml:\d: not JSON"),
    ],
)
def test_what_is_no_such_file_is_refused(text: str, message: str) -> None:
    Path("a.yaml").write_text(text, encoding="utf-8")
    with pytest.raises(ConfigError, match=message):
        kerncfg.translate("a.yaml")


def test_files_that_cannot_be_read_are_told() -> None:
    Path("binary.yaml").write_bytes(b"\xff\xfe\x00")
    for name, message in (("nothing.py", "cannot be read"), ("binary.yaml", "is no text"), (".", "cannot be read")):
        with pytest.raises(ConfigError, match=message):
            kerncfg.translate(name)
    with pytest.raises(ConfigError, match="import needs a file"):
        kerncfg.translate()


def test_two_sources_are_one_document_unless_they_differ() -> None:
    Path("other.py").write_text("c = KernelConfig({'M': 'a/b:C', 'N': ('o/r:X', {'version': 3})})\n", encoding="utf-8")
    assert kerncfg.translate("train.py", "other.py").document["kernels"].keys() == {"M", "N"}
    Path("other.py").write_text("\nc = KernelConfig({'N': 'a/b:C'})\n", encoding="utf-8")
    with pytest.raises(ConfigError, match=r"kernels\.N is said in both train\.py:1 and other\.py:2"):
        kerncfg.translate("train.py", "other.py")


def test_the_lines_are_the_document_as_a_valid_experiment() -> None:
    found = kerncfg.translate("train.py")
    text = "\n".join(found.lines())
    assert text.startswith("# @package _global_\n# yaml-language-server: $schema=file://")
    assert yaml.safe_load(text) == found.document
    validate(dict(found.document), "experiment")
