"""The packaged groups: every option composes, is valid, and says what it should."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

from kerncfg.compiler.checking import check_file
from kerncfg.compiler.compose import compose
from kerncfg.compiler.normalise import normalise
from kerncfg.compiler.schema import validate
from kerncfg.documents.config import Config, KernelRef
from kerncfg.documents.target import Mode
from kerncfg.locations import conf, schemas
from kerncfg.machine import detect
from kerncfg.models import build

FILES = sorted(conf().rglob("*.yaml"))
OPTIONS = [f"{file.parent.name}={file.stem}" for file in FILES if file.parent != conf()]


def config(*overrides: str) -> Config:
    document, origins = compose(overrides)
    validate(document, origins=origins)
    return normalise(document, origins=origins)


def kernels(found: Config, name: str, device: str) -> dict[Mode, list[str]]:
    return {
        mode: [str(candidate.ref) for candidate in candidates]
        for mode, candidates in found.rows[name].at(device).items()
    }


@pytest.mark.parametrize("option", OPTIONS)
def test_every_option_composes_to_a_valid_config(option: str) -> None:
    config(option)


@pytest.mark.parametrize("file", FILES, ids=lambda file: file.relative_to(conf()).as_posix())
def test_every_file_is_valid_by_itself(file: Path) -> None:
    assert check_file(file) == []


@pytest.mark.parametrize("file", FILES, ids=lambda file: file.relative_to(conf()).as_posix())
def test_every_file_leads_editors_to_its_schema(file: Path) -> None:
    lines = file.read_text(encoding="utf-8").splitlines()
    package, *rest = lines if lines[0].startswith("# @package") else ("", *lines)
    match = re.fullmatch(r"# yaml-language-server: \$schema=(\S+)", rest[0])
    assert match is not None
    assert (file.parent / match[1]).resolve().is_relative_to(schemas())
    assert (file.parent / match[1]).is_file()
    assert bool(package) == (file.parent.name == "experiment")


def test_ones_own_mapping_and_the_inherited_one_arrive_apart() -> None:
    document, _ = compose(["kernels=bundled"])
    assert set(document["kernels"]) == {"RMSNorm", "SwiGLUMLP", "rotary_pos_emb"}
    assert len(document["inherited"]) == 28


def test_the_default_mapping_holds_every_row_of_transformers_table() -> None:
    found = config().rows
    cells = sum(len(modes) for row in found.values() for modes in row.cells.values())
    assert (len(found), cells) == (28, 91)  # counted in the table: by name, device and mode, four for any mode


@pytest.mark.parametrize(
    ("name", "device", "expected"),
    [
        ("RMSNorm", "cuda", dict.fromkeys(("inference", "training"), "liger-kernels@v3:LigerRMSNorm")),
        ("RMSNorm", "npu", dict.fromkeys(("inference", "training"), "liger-kernels@v3:LigerRMSNorm")),
        ("RMSNorm", "xpu", {"inference": "rmsnorm@v1:RMSNorm"}),
        ("RMSNorm", "mps", {"inference": "mlx-rmsnorm@v1:RMSNorm"}),
        ("RMSNorm", "cpu", {}),
        ("SwiGLUMLP", "cuda", {
            "inference_compile": "liger-kernels@v3:LigerSwiGLUMLP",
            "training_compile": "liger-kernels@v3:LigerTiledSwiGLUMLP",
        }),
        ("MegaBlocksMoeMLP", "cpu", {"inference": "megablocks@v1:CPUMegaBlocksMoeMLP"}),
        ("rotary_pos_emb", "rocm", {"inference": "aiter-rope@v3:apply_rotary_transformers"}),
        ("chunk_kda", "xpu", {"inference": "fla@v2:chunk_kimi_delta_attention"}),
        ("ForCausalLMLoss", "cuda", {"training_compile": "liger-kernels@v3:LigerForCausalLMLossLayer"}),
    ],
)  # fmt: skip
def test_the_default_mapping_says(name: str, device: str, expected: dict[str, str]) -> None:
    assert kernels(config(), name, device) == {
        Mode(mode): [f"kernels-community/{kernel}"] for mode, kernel in expected.items()
    }


def test_rows_for_one_capability_say_so() -> None:
    found = config().rows["Qwen3_5GatedDeltaNet"]
    assert {device: next(iter(modes.values()))[0].conditions.capability for device, modes in found.cells.items()} == {
        "cuda": "==12.1",
        "rocm": "==11.5",
    }


def test_on_a_cpu_the_bundled_kernels_are_only_where_they_were_measured_faster() -> None:
    found = config("experiment=cpu_bundled")
    assert kernels(found, "RMSNorm", "cpu") == {Mode.INFERENCE: ["builtin:RMSNorm"], Mode.TRAINING: ["original"]}
    assert kernels(found, "SwiGLUMLP", "cpu") == {mode: ["original"] for mode in Mode}


@pytest.mark.parametrize("preset", ["bundled", "bundled_gemma"])
def test_the_bundled_kernels_are_exactly_those_that_exist(preset: str) -> None:
    from kerncfg.kernels import layers

    named = {
        candidate.ref
        for row in config(f"kernels={preset}", "inherited=none").rows.values()
        for candidate in row.candidates()
    }
    builtin = {ref.name for ref in named if ref.scheme == "builtin"}
    assert builtin and all(hasattr(layers, str(name)) for name in builtin)


@pytest.mark.parametrize("device", ["cuda", "rocm"])
def test_ligers_rows_say_their_names_for_nvidia_and_amd(device: str) -> None:
    found = config("kernels=liger")
    names = {"RMSNorm": ["LigerRMSNorm"], "GatedMLP": ["LigerSwiGLUMLP", "LigerGEGLUMLP", "LigerGEGLUMLP"]}
    for name, expected in names.items():
        liger = [f"kernels-community/liger-kernels@v3:{kernel}" for kernel in expected]
        assert kernels(found, name, device)[Mode.INFERENCE] == liger


def test_the_reference_has_no_row_at_all() -> None:
    assert config("kernels=reference").rows == {}


def test_only_one_publisher_is_trusted_from_the_start() -> None:
    trust = config().trust
    assert trust.publishers == frozenset({"kernels-community"})
    assert not trust.repositories
    assert not trust.allow_all_kernels


def test_a_strict_policy_differs_from_the_default_in_one_word() -> None:
    default, strict = config().policy.to_dict(), config("policy=strict").policy.to_dict()
    assert {key for key in default if default[key] != strict[key]} == {"strict"}


TARGETS: dict[str, dict[str, Any]] = {
    "a100": {"device": "cuda", "capability": "8.0"},
    "h100": {"device": "cuda", "capability": "9.0", "arch": None},
    "b200": {"device": "cuda", "capability": "10.0"},
    "mi300x": {"device": "rocm", "capability": "9.4", "arch": "gfx942"},
    "max1550": {"device": "xpu", "capability": None},
    "m3": {"device": "mps", "capability": None, "macos": "26.0", "os": "darwin", "cpu": "aarch64"},
    "cpu": {"device": "cpu", "capability": None},
}


@pytest.mark.parametrize("name", TARGETS)
def test_a_target_is_the_machine_of_its_name(name: str) -> None:
    found = detect(compose([f"target={name}"])[0]["target"]).to_dict()
    assert {key: found[key] for key in TARGETS[name]} == TARGETS[name]


@pytest.mark.parametrize("name", ["qwen3", "llama", "gemma"])
def test_a_model_is_built_small_and_runs(name: str) -> None:
    document, _ = compose([f"model={name}", "target=cpu"])
    loaded = build(document["model"], detect(document["target"]))
    assert 1e6 < sum(parameter.numel() for parameter in loaded.model.parameters()) < 1e7
    assert loaded.model(**loaded.inputs).logits.shape == (2, 64, 1024)


def test_runs_go_below_outputs_and_jobs_of_a_sweep_are_numbered() -> None:
    text = (conf() / "config.yaml").read_text(encoding="utf-8")
    for line in ("chdir: false", "dir: outputs/", "dir: outputs/sweeps/", "subdir: ${hydra.job.num}"):
        assert line in text


def test_every_reference_in_a_preset_can_be_read() -> None:
    for file in FILES:
        for text in re.findall(r"kernels-community/[^\s,\]]+|builtin:\w+", file.read_text(encoding="utf-8")):
            assert text.startswith("kernels-community") is (KernelRef.parse(text).scheme == "hub")


@pytest.mark.parametrize("name", ["sdpa", "eager", "flash_attention_2", "flash_attention_3", "flash_attention_4"])
def test_an_option_of_attention_is_the_row_of_its_name(name: str) -> None:
    found = config(f"attention={name}").attention
    assert found == config(f"attention.default={name}").attention
    assert (found["default"].path, found["default"].mask) == (None, "auto")


def test_without_a_choice_nothing_is_fused_and_attention_is_the_models_own() -> None:
    found = config()
    assert (found.fusions, found.attention) == ({}, {})
    document, _ = compose([])
    assert list(document)[:6] == ["enabled", "inherited", "kernels", "fusions", "attention", "trust"]


def test_the_hub_kernels_of_attention_are_of_publishers_trusted_by_default() -> None:
    for name in ("flash_attention_2", "flash_attention_3", "flash_attention_4"):
        refs = {candidate.ref for candidate in config(f"attention={name}").attention["default"].candidates()}
        assert {ref.location.partition("/")[0] for ref in refs if ref.scheme == "hub"} == {"kernels-community"}
