"""What the names of flash attention stand for, device by device."""

from __future__ import annotations

from typing import Any

import pytest

from kerncfg.compiler.compose import compose
from kerncfg.compiler.normalise import normalise
from kerncfg.documents.config import ANY, Config
from kerncfg.documents.target import DEVICES, Mode
from tests.builders import config

HUB = "kernels-community/"
CUDA = ["flash_attention_2", f"{HUB}flash-attn2@v4", f"{HUB}flash-attn2@v3", "sdpa"]


def row(said: Any, device: str, mode: Mode = Mode.INFERENCE) -> list[str]:
    found = config(attention={"default": said}).attention["default"]
    return [str(candidate.ref) for candidate in found.at(device)[mode]]


@pytest.mark.parametrize(
    ("name", "device", "expected"),
    [
        ("flash_attention_2", "cuda", CUDA),
        ("flash_attention_2", "xpu", CUDA),
        ("flash_attention_2", "rocm", ["flash_attention_2", f"{HUB}aiter-flash-attn@v2", "sdpa"]),
        ("flash_attention_2", "mps", ["flash_attention_2", f"{HUB}metal-flash-sdpa@v2", "sdpa"]),
        ("flash_attention_2", "cpu", ["flash_attention_2", "sdpa"]),
        ("flash_attention_3", "cuda", ["flash_attention_3", f"{HUB}vllm-flash-attn3@v1", "sdpa"]),
        ("flash_attention_3", "rocm", ["flash_attention_3", f"{HUB}aiter-flash-attn@v2", "sdpa"]),
        ("flash_attention_3", "xpu", ["flash_attention_3", "sdpa"]),
        ("flash_attention_4", "cuda", ["flash_attention_4", f"{HUB}flash-attn4@v0", "sdpa"]),
        ("flash_attention_4", "rocm", ["flash_attention_4", "sdpa"]),
    ],
)
def test_a_name_stands_for_the_compiled_package_the_hub_and_sdpa(name: str, device: str, expected: list[str]) -> None:
    assert row(name, device) == row({device: name}, device) == row({"kernel": name}, device) == expected


def test_which_hub_kernel_depends_on_torch() -> None:
    found = config(attention={"default": "flash_attention_2"}).attention["default"].at("cuda")[Mode.INFERENCE]
    assert [candidate.conditions.torch for candidate in found] == [None, ">=2.10.dev0", "<2.10.dev0", None]


def from_preset(*words: str) -> Config:
    document, origins = compose(["inherited=none", *words])
    return normalise(document, origins=origins)


@pytest.mark.parametrize("name", ["flash_attention_2", "flash_attention_3", "flash_attention_4"])
def test_the_text_means_what_the_packaged_file_says(name: str) -> None:
    by_file, by_text = from_preset(f"attention={name}"), from_preset(f"attention.default={name}")
    assert by_file.attention == by_text.attention
    assert {ANY} < set(by_text.attention["default"].cells) <= {ANY, *DEVICES}


def test_a_candidate_of_the_packaged_file_was_said_at_its_own_line() -> None:
    found = from_preset("attention=flash_attention_2").attention["default"].at("cuda")[Mode.INFERENCE]
    lines = [candidate.origin.line or 0 for candidate in found if candidate.origin]
    assert lines == sorted(set(lines)) and len(lines) == 4


def test_a_candidate_that_a_text_stands_for_was_said_where_the_text_was() -> None:
    found = from_preset("attention.default=flash_attention_2").attention["default"].at("rocm")[Mode.TRAINING]
    assert {str(candidate.origin) for candidate in found} == {"override: attention.default=flash_attention_2"}


def test_in_a_list_sdpa_follows_only_at_the_end() -> None:
    assert row(["flash_attention_3", "flash_attention_2"], "cuda") == [
        "flash_attention_3", f"{HUB}vllm-flash-attn3@v1", *CUDA,
    ]  # fmt: skip
    assert row(["flash_attention_2", "eager"], "cuda") == [*CUDA[:-1], "eager"]


def test_a_device_of_ones_own_keeps_what_it_says() -> None:
    said = {"kernel": "flash_attention_2", "cuda": {"training": "eager"}}
    assert row(said, "cuda", Mode.TRAINING) == ["eager"]
    assert row(said, "cuda") == CUDA
    assert row(said, "cpu") == ["flash_attention_2", "sdpa"]


def test_conditions_hold_for_all_that_a_name_stands_for() -> None:
    said = {"kernel": "flash_attention_2", "dtype": "bfloat16", "torch": ">=2.9", "capability": ">=8.0"}
    found = config(attention={"default": said}).attention["default"].at("cuda")[Mode.INFERENCE]
    assert {(candidate.conditions.dtype, candidate.conditions.capability) for candidate in found} == {
        (("bfloat16",), ">=8.0")
    }
    assert [candidate.conditions.torch for candidate in found] == [
        ">=2.9", ">=2.10.dev0,>=2.9", ">=2.9,<2.10.dev0", ">=2.9",
    ]  # fmt: skip


def test_only_what_is_of_version_4_is_noted_as_beta() -> None:
    for name, notes in (("flash_attention_4", ["flash_attention_4 is beta upstream"] * 2), ("flash_attention_3", [])):
        found = from_preset(f"attention={name}").attention["default"].at("cuda")[Mode.INFERENCE]
        assert [candidate.note for candidate in found if candidate.note] == notes
        assert found[-1].note is None


@pytest.mark.parametrize(
    "said",
    [
        "flash_attention_2",
        ["org/a@v1", "flash_attention_4", "eager"],
        {"kernel": "flash_attention_3", "torch": ">=2.9", "rocm": {"training": None}},
        {"cuda": "flash_attention_2", "path": "model.visual.**"},
        "sdpa",
    ],
)
def test_reading_again_what_was_read_changes_nothing(said: Any) -> None:
    made = config(attention={"default": said})
    assert normalise(made.to_dict()) == made


def test_a_device_for_which_it_stands_for_nothing_more_gets_no_cell_of_its_own() -> None:
    written = ["flash_attention_3", f"{HUB}vllm-flash-attn3@v1", "sdpa"]
    made = config(attention={"default": written})
    assert set(made.attention["default"].cells) == {ANY, "rocm", "mps"}
    assert row(written, "cuda") == written
    assert normalise(made.to_dict()) == made
