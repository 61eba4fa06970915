"""Reads this machine into a target.

What a described target leaves out comes from this environment, and is read without importing torch; torch is
asked only about a device of this machine.
"""

from __future__ import annotations

import importlib.metadata
import importlib.util
import platform
import re
import sysconfig
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from packaging.version import InvalidVersion, Version

from kerncfg.documents.target import DEVICES, Target, canonical_device
from kerncfg.errors import ConfigError, Issue

__all__ = ["ON", "PROBES", "detect", "device_of", "here", "hub_is_on"]

ON = {"1", "ON", "YES", "TRUE"}  # what transformers takes for true in USE_HUB_KERNELS

_CPUS = {"amd64": "x86_64", "arm64": "aarch64"}
_VERSIONS = ("capability", "torch", "backend_version", "macos", "python")
# What conditions ask about, and what a build's metadata may need (documents/metadata).
_PACKAGES = (
    "apache-tvm-ffi", "transformers", "triton", "kernels", "einops", "helion", "nvidia-cutlass-dsl", "nki",
    "flash-attn", "flash-attn-3", "flash-attn-4",
)  # fmt: skip


def detect(node: Mapping[str, Any]) -> Target:
    """Return the target that the `target` node describes, the gaps filled from this machine.

    Raises:
        ConfigError: The node names a device that is none, or versions that are none.
    """
    wanted = node.get("device", "auto")
    device = _present() if wanted == "auto" else canonical_device(wanted)
    if device is None:
        hint = f"write auto or one of {', '.join(DEVICES)}"
        raise ConfigError(f"target.device: {wanted!r} is no device", hint=hint)
    probed = PROBES[device]() if wanted == "auto" else {}
    found = _software() | {"capability": None, "arch": None, "backend_version": _built_for(device)} | probed
    said = {key: value for key, value in node.items() if key not in ("device", "name") and value is not None}
    packages = found["packages"] | dict(said.get("packages", {}))
    _check_versions(said)
    return Target(device=device, **{**found, **said, "packages": packages})


def _check_versions(said: Mapping[str, Any]) -> None:
    versions = {key: said[key] for key in _VERSIONS if key in said}
    versions |= {f"packages.{name}": version for name, version in said.get("packages", {}).items()}
    issues = []
    for key, version in versions.items():
        try:
            Version(version)
        except InvalidVersion:
            hint = "write numbers with dots, such as 2.9.0"
            issues.append(Issue(message=f"{version!r} is no version", path=f"target.{key}", hint=hint))
    if issues:
        raise ConfigError(issues)


def here(device: str) -> Target:
    """Return this machine as the target of a model that is on one of its devices."""
    found = detect({"device": "auto"})
    return found if found.device == device else detect({"device": device})


def device_of(tensor_device: Any) -> str:
    """Return our name for the `torch.device` of a tensor: AMD's devices call themselves cuda there."""
    if tensor_device.type == "cuda":
        return _cuda_or_rocm()
    kind = str(tensor_device.type)
    names = {device.torch: name for name, device in DEVICES.items() if name not in ("cuda", "rocm")}
    return names.get(kind, kind)


def hub_is_on(environment: Mapping[str, str]) -> bool:
    """Say whether kernels from the Hub may run here at all."""
    value = environment.get("USE_HUB_KERNELS")
    return value is None or value.upper() in ON


def _present() -> str:
    """Return the device that torch would use here, in the order of the Hub library."""
    import torch

    if torch.cuda.is_available():
        return _cuda_or_rocm()
    for name in ("mps", "xpu", "npu"):
        module = getattr(torch, name, None)
        if module is not None and module.is_available():
            return name
    return "cpu"


def _cuda_or_rocm() -> str:
    import torch

    return "rocm" if torch.version.hip else "cuda"


def _cuda() -> dict[str, Any]:
    import torch

    major, minor = torch.cuda.get_device_capability()
    version = torch.version.hip or torch.version.cuda
    return {"capability": f"{major}.{minor}", "backend_version": _release(version)}


def _rocm() -> dict[str, Any]:
    import torch

    name = torch.cuda.get_device_properties(torch.cuda.current_device()).gcnArchName
    return {**_cuda(), "arch": name.partition(":")[0]}  # `gfx90a:sramecc+:xnack-` is gfx90a


def _xpu() -> dict[str, Any]:
    import torch

    return {"backend_version": _xpu_version(getattr(torch.version, "xpu", None))}


def _xpu_version(version: str | None) -> str | None:
    """Return the version of Intel's compiler: `20250201` is 2025.2."""
    return f"{version[:4]}.{version[5:6]}" if version else None


def _built_for(device: str) -> str | None:
    """Return the version of CUDA, ROCm or XPU that the installed torch was built for, without importing torch."""
    key = {"cuda": "cuda", "rocm": "hip", "xpu": "xpu"}.get(device)
    spec = importlib.util.find_spec("torch") if key else None
    if spec is None or spec.origin is None:
        return None
    text = Path(spec.origin).with_name("version.py").read_text(encoding="utf-8")
    found = re.search(rf"^{key}\b.*= *'(.*)'", text, re.MULTILINE)
    version = found[1] if found else None
    return _xpu_version(version) if device == "xpu" else _release(version)


def _nothing() -> dict[str, Any]:
    return {}


PROBES: Mapping[str, Callable[[], dict[str, Any]]] = {
    "cuda": _cuda,
    "rocm": _rocm,
    "xpu": _xpu,
    "mps": _nothing,
    "npu": _nothing,
    "neuron": _nothing,
    "tpu": _nothing,
    "cpu": _nothing,
}


def _software() -> dict[str, Any]:
    """Return what can be known of this environment without importing torch."""
    torch = _installed("torch")
    cpu = platform.machine().lower()
    return {
        "torch": torch,
        "cxx11_abi": None if torch is None else True,  # as all of torch's wheels since 2.7 have it
        "cpu": _CPUS.get(cpu, cpu),
        "os": platform.system().lower(),
        "macos": platform.mac_ver()[0] or None,
        "python": platform.python_version(),
        "free_threaded": bool(sysconfig.get_config_var("Py_GIL_DISABLED")),
        "packages": {name: version for name in _PACKAGES if (version := _installed(name))},
    }


def _installed(package: str) -> str | None:
    """Return the version of a package, read off its line: parsing all that it says of itself takes 20 times as long."""
    try:
        found = importlib.metadata.distribution(package)
    except importlib.metadata.PackageNotFoundError:
        return None
    line = re.search(r"^Version: *(\S+) *$", found.read_text("METADATA") or "", re.MULTILINE)
    return line[1] if line else found.version


def _release(version: str | None) -> str | None:
    """Return the first two numbers of a backend's version: `6.4.43482-0f2d60242` is 6.4."""
    match = re.match(r"\d+(\.\d+)?", version or "")
    return match[0] if match else None
