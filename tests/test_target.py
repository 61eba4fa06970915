from __future__ import annotations

from typing import Any

import pytest

from kerncfg.documents.target import DEVICES, MODE_PREFERENCE, Mode, Target, canonical_device
from tests.builders import INFERENCE, INFERENCE_COMPILE, TRAINING, TRAINING_COMPILE, target


@pytest.mark.parametrize(
    ("mode", "training", "compiled"),
    [
        (INFERENCE, False, False),
        (TRAINING, True, False),
        (INFERENCE_COMPILE, False, True),
        (TRAINING_COMPILE, True, True),
    ],
)
def test_a_mode_knows_its_two_sides(mode: Mode, training: bool, compiled: bool) -> None:
    assert (mode.training, mode.compiled) == (training, compiled)


def test_modes_serve_each_other_as_in_the_hub_library() -> None:
    assert MODE_PREFERENCE == {
        "inference": ("inference", "inference_compile", "training", "training_compile"),
        "training": ("training", "training_compile"),
        "inference_compile": ("inference_compile", "training_compile"),
        "training_compile": ("training_compile",),
    }


@pytest.mark.parametrize("mode", Mode)
def test_a_mode_serves_itself_first(mode: Mode) -> None:
    assert MODE_PREFERENCE[mode][0] is mode


@pytest.mark.parametrize("mode", Mode)
def test_who_serves_can_do_all_that_is_asked(mode: Mode) -> None:
    servers = MODE_PREFERENCE[mode]
    assert all(server.training or not mode.training for server in servers)
    assert all(server.compiled or not mode.compiled for server in servers)


def test_the_devices_are_those_of_the_language() -> None:
    assert set(DEVICES) == {"cuda", "rocm", "xpu", "mps", "npu", "neuron", "tpu", "cpu"}


@pytest.mark.parametrize(
    ("word", "device"), [("cuda", "cuda"), ("metal", "mps"), ("mps", "mps"), ("any", None), ("gpu", None)]
)
def test_a_word_for_a_device_leads_to_its_own_name(word: str, device: str | None) -> None:
    assert canonical_device(word) == device


def test_amd_devices_are_cuda_to_torch() -> None:
    assert DEVICES["rocm"].torch == "cuda"


def test_devices_with_a_compute_capability() -> None:
    assert [name for name, device in DEVICES.items() if device.has_capability] == ["cuda", "rocm"]


def test_a_target_is_the_same_after_a_round_trip() -> None:
    made = target(packages={"triton": "3.5", "kernels": "0.17"})
    assert Target.from_dict(made.to_dict()) == made


def test_a_target_as_data_has_every_key_and_sorted_packages() -> None:
    data = target("cpu", packages={"triton": "3.5", "kernels": "0.17"}).to_dict()
    assert data == {
        "device": "cpu",
        "capability": None,
        "arch": None,
        "torch": "2.13.0",
        "backend_version": None,
        "cxx11_abi": True,
        "cpu": "x86_64",
        "os": "linux",
        "macos": None,
        "python": "3.11.9",
        "free_threaded": False,
        "packages": {"kernels": "0.17", "triton": "3.5"},
    }
    assert list(data["packages"]) == ["kernels", "triton"]


@pytest.mark.parametrize(
    ("said", "difference"),
    [
        ({}, {}),
        ({"torch": "2.9.0"}, {"torch": ("2.13.0", "2.9.0")}),
        (
            {"capability": "8.0", "packages": {"triton": "3"}},
            {"capability": ("9.0", "8.0"), "packages": ({}, {"triton": "3"})},
        ),
    ],
)
def test_the_difference_of_two_targets_holds_both_sides(said: Any, difference: Any) -> None:
    assert target().difference(target(**said)) == difference


def test_a_target_can_be_a_key() -> None:
    assert {target(packages={"triton": "3"})} == {target(packages={"triton": "3"})}
