"""Reads a build's name and says whether, and how well, it suits a target.

The grammar is the Hub's: `torch-BACKEND`, `torch-universal`, `torchXY[-cxx11|-cxx98]-BACKEND-CPU-OS`,
`torch-stable-abiXY-BACKEND-CPU-OS`, `tvm-ffiXY-BACKEND-CPU-OS`. Folders in the same layout follow it too.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Self

from packaging.version import Version

if TYPE_CHECKING:
    from kerncfg.documents.target import Target

__all__ = ["Variant"]

_ARCH = re.compile(
    r"(?P<abi>torch-stable-abi|torch|tvm-ffi)(?P<major>\d)(?P<minor>\d+)"
    r"(?:-(?P<cxx>cxx11|cxx98))?-(?P<backend>[a-z]+)(?P<version>(?:\d{2,})?)"
    r"-(?P<cpu>x86_64|aarch64)-(?P<os>linux|darwin|windows)",
    re.ASCII,
)
_NOARCH = re.compile(r"torch-(?P<backend>universal|cpu|cuda|rocm|xpu|metal|npu|neuron|tpu)")

# The build's word for a device, with and without its version digits -> the device.
_ARCH_BACKENDS = {
    "cpu": "cpu", "metal": "mps", "neuron": "neuron", "tpu": "tpu",
    "cu": "cuda", "rocm": "rocm", "xpu": "xpu", "cann": "npu",
}  # fmt: skip
_UNVERSIONED = {"cpu", "metal", "neuron", "tpu"}
_NOARCH_BACKENDS = {
    "cpu": "cpu", "cuda": "cuda", "rocm": "rocm", "xpu": "xpu",
    "metal": "mps", "npu": "npu", "neuron": "neuron", "tpu": "tpu",
}  # fmt: skip
_MACOS_FOR_METAL = 26
_FREE_THREADED_ABI = (3, 15)


@dataclass(frozen=True, slots=True, kw_only=True)
class Variant:
    """One build inside a kernel repository; `device` is `None` for a universal build."""

    name: str
    abi: str
    abi_version: tuple[int, int] | None
    cxx11: bool | None
    device: str | None
    backend_version: str | None
    cpu: str | None
    os: str | None

    @classmethod
    def parse(cls, name: str) -> Self | None:
        """Read a build's folder name; `None` if it is not the name of a build."""
        if match := _NOARCH.fullmatch(name):
            device = _NOARCH_BACKENDS.get(match["backend"])
            abi = "noarch" if device else "universal"
            return cls(
                name=name, abi=abi, abi_version=None, cxx11=None,
                device=device, backend_version=None, cpu=None, os=None,
            )  # fmt: skip
        match = _ARCH.fullmatch(name)
        if match is None or match["backend"] not in _ARCH_BACKENDS:
            return None
        if bool(match["version"]) == (match["backend"] in _UNVERSIONED):
            return None
        if match["cxx"] and match["abi"] != "torch":
            return None
        return cls(
            name=name,
            abi=match["abi"],
            abi_version=(int(match["major"]), int(match["minor"])),
            cxx11={"cxx11": True, "cxx98": False}.get(match["cxx"]),
            device=_ARCH_BACKENDS[match["backend"]],
            backend_version=_dotted(match["version"]),
            cpu=match["cpu"],
            os=match["os"],
        )

    def refusal(self, target: Target) -> str | None:
        """Return why this build cannot run on the target, naming both sides, or `None` if it can."""
        if self.device not in (None, target.device):
            return f"built for {self.device}, the target is {target.device}"
        if self.device == "mps" and not _new_enough_for_metal(target):
            return f"needs macOS {_MACOS_FOR_METAL} or newer, the target has {target.macos or 'none'}"
        if self.cpu is None:
            return None
        if (self.cpu, self.os) != (target.cpu, target.os):
            return f"built for {self.cpu} {self.os}, the target is {target.cpu} {target.os}"
        if target.free_threaded and Version(target.python).release < _FREE_THREADED_ABI:
            needed = ".".join(map(str, _FREE_THREADED_ABI))
            return f"compiled builds need Python {needed} if free-threaded, the target has {target.python}"
        return self._abi_refusal(target) or self._backend_refusal(target)

    def _abi_refusal(self, target: Target) -> str | None:
        assert self.abi_version is not None
        needed = ".".join(map(str, self.abi_version))
        found = target.packages.get("apache-tvm-ffi") if self.abi == "tvm-ffi" else target.torch
        library = "tvm-ffi" if self.abi == "tvm-ffi" else "torch"
        if found is None:
            return f"needs {library} {needed}, the target has none"
        release = (Version(found).major, Version(found).minor)
        if self.abi == "torch-stable-abi":
            if release < self.abi_version:
                return f"needs torch {needed} or newer, the target has {found}"
        elif release != self.abi_version:
            return f"needs {library} {needed}, the target has {found}"
        if self.cxx11 is not None and target.cxx11_abi is not None and self.cxx11 != target.cxx11_abi:
            words = {True: "cxx11", False: "cxx98"}
            return f"built with the {words[self.cxx11]} ABI, the target's torch uses {words[target.cxx11_abi]}"
        return None

    def _backend_refusal(self, target: Target) -> str | None:
        if self.backend_version is None:
            return None
        found = target.backend_version
        if found is None:
            return f"needs {self.device} {self.backend_version}, the target's version is not known"
        built, have = Version(self.backend_version), Version(found)
        if self.device == "cuda":
            fits = built.major == have.major and built.minor <= have.minor
        else:
            fits = built.release[:2] == have.release[:2]
        return None if fits else f"built for {self.device} {self.backend_version}, the target has {found}"

    def rank(self) -> tuple[int, tuple[int, int], Version, str]:
        """Return the key by which the better of two fitting builds sorts last; the name breaks ties."""
        order = ["universal", "noarch", "tvm-ffi", "torch-cxx", "torch", "torch-stable-abi"]
        abi = "torch-cxx" if self.abi == "torch" and self.cxx11 is not None else self.abi
        return order.index(abi), self.abi_version or (0, 0), Version(self.backend_version or "0"), self.name


def _dotted(digits: str) -> str | None:
    """Put the dot back: `cu126` is 12.6, `rocm64` 6.4, `xpu20252` 2025.2."""
    return f"{digits[:-1]}.{digits[-1]}" if digits else None


def _new_enough_for_metal(target: Target) -> bool:
    return target.macos is not None and Version(target.macos).major >= _MACOS_FOR_METAL
