"""A composed document as an experiment file: it composes to the same again, on top of the nearest packaged options."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from kerncfg.compiler.compose import compose
from kerncfg.errors import ConfigError
from kerncfg.sharing.experiment import checked_name, files_of, shareable

NAME = "shared"


def written(*words: str, config_dir: Path | None = None) -> dict[str, str]:
    data, origins = compose(words, config_dir=config_dir)
    return files_of(shareable(data, origins), NAME)


def again(files: dict[str, str], folder: Path) -> dict[str, Any]:
    """What somebody else composes from the files, with a config of their own that starts elsewhere."""
    for path, text in files.items():
        (folder / path).parent.mkdir(parents=True, exist_ok=True)
        (folder / path).write_text(text)
    return compose([f"experiment={NAME}"], config_dir=folder)[0]


@pytest.mark.parametrize(
    "words",
    [
        (),
        ("kernels=liger", "target=h100", "policy=strict"),
        ("experiment=cpu_llama_strict",),
        ("kernels=bundled", "~kernels.RMSNorm", "inherited=none"),
        ("kernels.RMSNorm={cuda: {inference: 'a/b@v1:C', training: original}, match: {class: '*Norm'}}",),
        ("kernels.X=[a/b@v1:C, {kernel: d/e:F, version: '>=1.0,<2.0', when: {config.act: [silu, 1, true]}}]",),
        ("kernels.inherit_mapping=false", "enabled=false"),
        ("kernels.X=null", "kernels.Y=''", "policy.verify.gate=true", "model.dtype=bfloat16", "model.seed=7"),
        ("attention=sdpa", "attention.vision={path: 'model.visual.**', kernel: eager}"),
        ("fusions.f={members: [[A, a.*.x], [B, a.*.y]], kernel: a/b@v1:C}",),
        ("model={pretrained: org/name}", "target={device: cuda, capability: '9.0'}"),
    ],
    ids=str,
)
def test_what_is_written_composes_to_the_same(words: tuple[str, ...], tmp_path: Path) -> None:
    data, _ = compose(words)
    found = again(written(*words), tmp_path)
    assert {**found, "trust": None} == {**data, "trust": None}


def test_only_what_differs_from_a_packaged_option_is_said() -> None:
    (text,) = written("kernels=bundled", "kernels.SiLU.cpu=a/b@v1:C", "model=llama", "model.sequence=8").values()
    assert text.splitlines() == [
        "# @package _global_",
        "# Written by `kerncfg push`.",
        "defaults:",
        "  - override /kernels: bundled",
        "  - override /kernels@inherited: default",
        "  - override /fusions: none",
        "  - override /attention: default",
        "  - override /policy: default",
        "  - override /target: auto",
        "  - override /model: llama",
        "kernels:",
        "  SiLU:",
        '    cpu: "a/b@v1:C"',
        "model:",
        "  sequence: 8",
    ]


def test_a_node_that_no_option_can_be_the_base_of_is_a_group_of_its_own() -> None:
    files = written("model={pretrained: org/name}")
    assert set(files) == {f"experiment/{NAME}.yaml", f"model/{NAME}.yaml"}
    assert f"  - override /model: {NAME}" in files[f"experiment/{NAME}.yaml"]


def test_consent_is_left_out_wherever_it_stands() -> None:
    words = ("trust.publishers.acme=true", "kernels.X=[{kernel: acme/k@v1:K, trust_remote_code: true}]")
    (text,) = written(*words).values()
    assert "trust" not in text and "acme/k@v1:K" in text


def test_what_others_do_not_have_is_refused_with_every_place(tmp_path: Path) -> None:
    (tmp_path / "kernels").mkdir()
    (tmp_path / "kernels/mine.yaml").write_text("X: ./here:K\nY: {cpu: python:mine:K}\n")
    data, origins = compose(["kernels=mine"], config_dir=tmp_path)
    with pytest.raises(ConfigError) as caught:
        shareable(data, origins)
    assert [(issue.path, issue.line) for issue in caught.value.issues] == [("kernels.X", 1), ("kernels.Y.cpu", 2)]


@pytest.mark.parametrize("name", ["fast", "fast-2", "h100_tuned", "7b"])
def test_a_name_that_files_and_command_lines_take(name: str) -> None:
    assert checked_name(name) == name
