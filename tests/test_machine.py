from __future__ import annotations

import importlib.metadata
import platform
import subprocess
import sys
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from kerncfg import machine
from kerncfg.documents import metadata
from kerncfg.documents.target import DEVICES
from kerncfg.errors import ConfigError
from kerncfg.machine import PROBES, detect, device_of


def _loads_torch(node: dict[str, Any]) -> bool:
    code = f"from kerncfg.machine import detect; import sys; detect({node}); print('torch' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True, timeout=60)
    return done.stdout.strip() == "True"


def test_a_described_target_needs_no_torch() -> None:
    assert not _loads_torch({"name": "h100", "device": "cuda", "capability": "9.0"})


def test_this_machine_is_asked_of_torch() -> None:
    assert _loads_torch({"device": "auto"})


def present() -> str:
    if torch.cuda.is_available():
        return "rocm" if torch.version.hip else "cuda"
    others = [name for name in ("mps", "xpu") if getattr(torch, name).is_available()]
    return others[0] if others else "cpu"


@pytest.mark.parametrize("node", [{"device": "auto"}, {}], ids=str)
def test_this_machine_is_found(node: dict[str, Any]) -> None:
    found = detect(node)
    assert found.device == present()
    assert found.torch == importlib.metadata.version("torch")
    assert found.python == platform.python_version()
    assert found.os == platform.system().lower()
    assert found.cpu in ("x86_64", "aarch64")
    assert found.cxx11_abi is torch.compiled_with_cxx11_abi()


@pytest.mark.gpu
def test_a_gpus_capability_and_backend_are_found() -> None:
    major, minor = torch.cuda.get_device_capability()
    found = detect({"device": "auto"})
    assert found.capability == f"{major}.{minor}"
    assert str(torch.version.hip or torch.version.cuda).startswith(str(found.backend_version))
    assert bool(found.arch) is bool(torch.version.hip)


def test_what_a_described_target_leaves_out_comes_from_this_environment() -> None:
    here = detect({"device": "auto"})
    found = detect({"device": "cuda", "capability": "9.0", "torch": "2.9.0", "os": "windows"})
    assert (found.capability, found.torch, found.os) == ("9.0", "2.9.0", "windows")
    assert (found.cpu, found.python, found.packages) == (here.cpu, here.python, here.packages)


def test_the_hardware_of_a_described_target_does_not_come_from_this_machine() -> None:
    found = detect({"device": "cuda"})
    assert (found.capability, found.arch, found.backend_version) == (None, None, None)


def test_null_leaves_a_key_out() -> None:
    assert detect({"device": "cpu", "torch": None, "capability": None}) == detect({"device": "cpu"})


def test_what_is_said_wins_over_what_is_found() -> None:
    assert detect({"device": "auto", "capability": "7.5"}).capability == "7.5"


def test_packages_that_are_said_stand_beside_those_installed() -> None:
    found = detect({"device": "cpu", "packages": {"apache-tvm-ffi": "0.1.9", "triton": "1.0"}}).packages
    assert found == {**detect({"device": "cpu"}).packages, "apache-tvm-ffi": "0.1.9", "triton": "1.0"}


def test_a_package_that_is_not_installed_is_not_there(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(machine, "_PACKAGES", ("packaging", "no-such-package-at-all"))
    assert list(detect({"device": "cpu"}).packages) == ["packaging"]


def test_a_target_without_torch_has_none(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(machine, "_installed", lambda package: None)
    found = detect({"device": "cpu"})
    assert (found.torch, found.cxx11_abi, found.packages) == (None, None, {})


def test_an_alias_is_its_device() -> None:
    assert detect({"device": "metal"}).device == "mps"


def test_another_word_is_no_device() -> None:
    with pytest.raises(ConfigError) as caught:
        detect({"device": "gpu"})
    (issue,) = caught.value.issues
    assert issue.message == "target.device: 'gpu' is no device"
    assert issue.hint == "write auto or one of cuda, rocm, xpu, mps, npu, neuron, tpu, cpu"


def test_every_version_that_is_none_is_told() -> None:
    with pytest.raises(ConfigError) as caught:
        detect({"device": "cuda", "capability": "sm90", "torch": "2.9", "packages": {"triton": "new"}})
    assert [(issue.path, issue.message) for issue in caught.value.issues] == [
        ("target.capability", "'sm90' is no version"),
        ("target.packages.triton", "'new' is no version"),
    ]
    assert {issue.hint for issue in caught.value.issues} == {"write numbers with dots, such as 2.9.0"}


def test_every_device_has_a_probe() -> None:
    assert list(PROBES) == list(DEVICES)


@pytest.mark.parametrize(("version", "expected"), [("20250201", "2025.2"), (None, None)])
def test_intels_version_is_that_of_its_compiler(
    version: str | None, expected: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch.version, "xpu", version)
    assert PROBES["xpu"]() == {"backend_version": expected}


@pytest.mark.parametrize(
    ("hip", "cuda", "expected"),
    [
        ("6.4.43482-0f2d60242", None, "6.4"),
        (None, "12.8", "12.8"),
        (None, "13", "13"),
    ],
)
def test_the_backend_has_two_numbers(
    hip: str | None, cuda: str | None, expected: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch.version, "hip", hip)
    monkeypatch.setattr(torch.version, "cuda", cuda)
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda: (9, 4))
    assert PROBES["cuda"]() == {"capability": "9.4", "backend_version": expected}


@pytest.mark.parametrize(
    ("available", "hip", "expected"),
    [
        (("cuda", "mps", "xpu"), None, "cuda"),
        (("cuda",), "6.4", "rocm"),
        (("mps", "xpu"), None, "mps"),
        (("xpu",), None, "xpu"),
        ((), None, "cpu"),
    ],
    ids=str,
)
def test_the_device_is_the_one_that_torch_would_use(
    available: tuple[str, ...], hip: str | None, expected: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("cuda", "mps", "xpu"):
        monkeypatch.setattr(getattr(torch, name), "is_available", lambda name=name: name in available)
    monkeypatch.setattr(torch.version, "hip", hip)
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda: (9, 0))
    _name_the_architecture("gfx90a", monkeypatch)
    assert detect({"device": "auto"}).device == expected


def _name_the_architecture(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "current_device", lambda: 1)
    monkeypatch.setattr(torch.cuda, "get_device_properties", {1: SimpleNamespace(gcnArchName=name)}.__getitem__)


@pytest.mark.parametrize("name", ["gfx90a", "gfx90a:sramecc+:xnack-"])
def test_an_amd_devices_architecture_is_named_without_its_features(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.version, "hip", "6.4")
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda: (9, 0))
    _name_the_architecture(name, monkeypatch)
    assert PROBES["rocm"]() == {"capability": "9.0", "backend_version": "6.4", "arch": "gfx90a"}


def test_the_packages_that_a_build_may_need_are_asked_for() -> None:
    allowed = {
        **metadata._PACKAGES,
        **{name: said for each in metadata._PACKAGES_OF.values() for name, said in each.items()},
    }
    assert {name for name in allowed.values() if name} <= {*machine._PACKAGES}


@pytest.mark.parametrize(
    ("torch_device", "hip", "expected"),
    [
        ("cpu", None, "cpu"),
        ("cuda:1", None, "cuda"),
        ("cuda", "6.4", "rocm"),
        ("mps", None, "mps"),
        ("xpu:0", None, "xpu"),
        ("meta", None, "meta"),
    ],
)
def test_a_tensors_device_has_our_name(
    torch_device: str, hip: str | None, expected: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch.version, "hip", hip)
    assert device_of(torch.device(torch_device)) == expected


@pytest.mark.parametrize(("machine_word", "cpu"), [("AMD64", "x86_64"), ("arm64", "aarch64"), ("ppc64le", "ppc64le")])
def test_a_cpu_has_one_word_on_every_system(machine_word: str, cpu: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(platform, "machine", lambda: machine_word)
    assert detect({"device": "cpu"}).cpu == cpu
