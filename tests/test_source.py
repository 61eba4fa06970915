"""Sources are read and not run; the documented examples of each tool mean here what they mean there."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from kerncfg.dialects.source import read_source
from kerncfg.errors import ConfigError


@pytest.fixture
def source(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.chdir(tmp_path)

    def read(text: str, line: int | None = None) -> Any:
        Path("train.py").write_text(text, encoding="utf-8")
        return read_source(Path("train.py"), line)

    return read


def test_nothing_of_the_file_is_run(source: Any) -> None:
    found = source("raise SystemExit\nopen('ran', 'w')\nc = KernelConfig({'A': 'a/b:C'})\n")
    assert found.document == {"kernels": {"A": "a/b:C"}}
    assert not Path("ran").exists()


def test_the_place_is_that_of_the_call(source: Any) -> None:
    found = source("\n\nc = KernelConfig({'A': 'a/b:C'})\n")
    assert str(found.origin) == "train.py:3"
    assert list(found.lines())[2:] == ["kernels:", '  A: "a/b:C"  # train.py:3']


def test_the_parts_of_one_set_up_are_one_document(source: Any) -> None:
    text = """
mapping = {"RMSNorm": "/path/to/liger-kernels:LigerRMSNorm"}
config = transformers.KernelConfig(mapping, use_local_kernel=True, inherit_mapping=False)
model = AutoModelForCausalLM.from_pretrained("q", kernel_config=config, attn_implementation="sdpa", use_kernels=True)
"""
    assert source(text).document == {
        "kernels": {"RMSNorm": "/path/to/liger-kernels:LigerRMSNorm", "inherit_mapping": False},
        "attention": {"default": "sdpa"},
    }


def test_attention_without_kernels_inherits_nothing(source: Any) -> None:
    text = "m = AutoModel.from_pretrained('q', attn_implementation='eager')"
    assert source(text).document == {"kernels": {"inherit_mapping": False}, "attention": {"default": "eager"}}


def test_use_kernels_inherits_the_default_mapping(source: Any) -> None:
    assert source("m = AutoModel.from_config(c, use_kernels=True)").document == {"kernels": {}}


def test_consent_for_every_publisher_is_remarked_upon(source: Any) -> None:
    found = source("m = AutoModel.from_pretrained('q', attn_implementation='a/b', allow_all_kernels=True)")
    assert found.document["trust"] == {"allow_all_kernels": True}
    assert [remark.message for remark in found.remarks] == [
        "allow_all_kernels=True lets the code of every publisher run"
    ]


def test_mappings_of_the_kernels_library_are_read(source: Any) -> None:
    text = """
from kernels import Device, CUDAProperties, LayerRepository, Mode, register_kernel_mapping
kernel_layer_mapping = {
    "SiluAndMul": {
        Device(type="cuda", properties=CUDAProperties(min_capability=75, max_capability=89)):
            LayerRepository(repo_id="kernels-community/activation", layer_name="SiluAndMul", version=1),
        "rocm": {
            Mode.INFERENCE: LayerRepository(repo_id="kernels-community/activation", layer_name="SiluAndMul", version=1),
            Mode.TRAINING | Mode.TORCH_COMPILE: LayerRepository("a/b", layer_name="C", revision="main"),
        },
    }
}
register_kernel_mapping(kernel_layer_mapping, inherit_mapping=False)
"""
    silu = {"kernel": "kernels-community/activation:SiluAndMul", "version": 1}
    assert source(text).document["kernels"] == {
        "inherit_mapping": False,
        "SiluAndMul": {
            "cuda": {**silu, "capability": ">=7.5,<=8.9"},
            "rocm": {"inference": silu, "training_compile": {"kernel": "a/b:C", "revision": "main"}},
        },
    }


def test_an_entry_that_is_computed_does_not_take_the_others_with_it(source: Any) -> None:
    found = source("c = KernelConfig({'A': 'a/b:C', 'B': names['B'], key(): 'a/b:D'})")
    assert found.document == {"kernels": {"A": "a/b:C"}}
    assert [str(remark).partition("\n")[0] for remark in found.remarks] == [
        "train.py:1: kernel_mapping['B'] is not written out: it is computed by \"names['B']\"",
        "train.py:1: kernel_mapping[key()] is not written out: it is computed by key(…)",
    ]


@pytest.mark.parametrize(
    ("text", "what"),
    [
        ("KernelConfig(load())", "kernel_mapping is not written out"),
        ("KernelConfig({}, use_local_kernel=flag)", "use_local_kernel is not written out"),
        ("KernelConfig({**other()})", "kernel_mapping is not written out"),
        ("m.from_pretrained('q', attn_implementation=args.attn)", "attn_implementation is not written out"),
        ("m.from_pretrained('q', kernel_config=make())", "kernel_config is not written out"),
        ("m.from_pretrained('q', kernel_config=config)", "kernel_config is not written out"),
        ("apply_liger_kernel_to_llama(rope=args.rope)", "rope is not written out"),
    ],
)
def test_what_is_computed_is_remarked_upon(source: Any, text: str, what: str) -> None:
    assert any(remark.message.startswith(what) and remark.line == 1 for remark in source(text).remarks)


def test_several_places_are_told_apart_by_their_lines(source: Any) -> None:
    text = "a = KernelConfig({'A': 'a/b:A'})\nb = KernelConfig(\n    {'B': 'a/b:B'}\n)\n"
    with pytest.raises(ConfigError, match=r"sets up kernels in 2 places: lines 1, 2\n  hint: say which: train.py:1"):
        source(text)
    assert source(text, 1).document == {"kernels": {"A": "a/b:A"}}
    assert source(text, 3).document == {"kernels": {"B": "a/b:B"}}
    with pytest.raises(ConfigError, match="sets up no kernels at line 9"):
        source(text, 9)


def test_a_source_without_kernels_is_refused(source: Any) -> None:
    with pytest.raises(ConfigError, match=r"train\.py: sets up no kernels"):
        source("m = AutoModel.from_pretrained('q', device_map='auto')")


def test_what_is_no_python_is_refused(source: Any) -> None:
    with pytest.raises(ConfigError, match=r"train\.py:1: not Python"):
        source("kernels: {}:")


def test_bytes_that_are_no_python_are_refused(tmp_path: Path) -> None:
    (tmp_path / "x.py").write_bytes(b"a = 1\x00")
    with pytest.raises(ConfigError, match="not Python"):
        read_source(tmp_path / "x.py")


def test_a_name_that_leads_to_itself_ends(source: Any) -> None:
    found = source("a = b\nb = a\nc = KernelConfig(a)\nm.from_pretrained('q', kernel_config=c)")
    assert any(remark.message.startswith("kernel_mapping is not written out") for remark in found.remarks)


def test_faults_of_a_mapping_stand_at_their_line(source: Any) -> None:
    with pytest.raises(ConfigError, match=r"train\.py:2: kernels\.A: 'b:C': 'b' is no repository"):
        source("\nKernelConfig({'A': 'b:C'})")


LIGER = {
    # the examples of Liger's README and of transformers' TrainingArguments
    "apply_liger_kernel_to_llama()": {"RMSNorm", "GatedMLP"},
    "apply_liger_kernel_to_llama(rope=True, swiglu=True, cross_entropy=True, "
    "fused_linear_cross_entropy=False, rms_norm=False)": {"GatedMLP"},
    "_apply_liger_kernel_to_instance(model=model, rms_norm=True, swiglu=False, geglu=False)": {"RMSNorm"},
    "m = AutoLigerKernelForCausalLM.from_pretrained('path/to/some/model')": {"RMSNorm", "GatedMLP"},
    "AutoLigerKernelForCausalLM.from_pretrained('q', use_cache=False, swiglu=False, geglu=False)": {"RMSNorm"},
    "_apply_liger_kernel('gemma', rms_norm=True)": {"GatedMLP"},
    "TrainingArguments('out', use_liger_kernel=True)": {"RMSNorm", "GatedMLP"},
    "SFTConfig(use_liger_kernel=True, liger_kernel_config={'rms_norm': False, 'geglu': False, 'swiglu': False})": set(),
    "TrainingArguments('out', use_liger_kernel=False, liger_kernel_config={'rms_norm': True})": set(),
}


@pytest.mark.parametrize("text", LIGER)
def test_calls_of_liger_are_read(source: Any, text: str) -> None:
    assert source(text).document["kernels"].keys() - {"inherit_mapping"} == LIGER[text]
