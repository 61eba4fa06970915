"""Reads a build's name and says whether, and how well, it suits a target.

The grammar is the Hub's: `torch-BACKEND`, `torch-universal`, `torchXY[-cxx11|-cxx98]-BACKEND-CPU-OS`,
`torch-stable-abiXY-BACKEND-CPU-OS`, `tvm-ffiXY-BACKEND-CPU-OS`. Folders in the same layout follow it too.

The verdicts are those of the `kernels` library but for one thing, on purpose: it asks which backend torch was built
for, and this asks for the target's device. A target that is the CPU gets CPU builds, also beside a CUDA build of torch.
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
    r"-(?P<cpu>\w+)-(?P<os>\w+)",
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
_MACOS_FOR_METAL = 26  # compiled builds use Metal 4 (kernels 0.17.2, variants.py)
_ABIS = {"cxx11": True, "cxx98": False}
_FREE_THREADED_ABI = (3, 15)
_WORST_FIRST = ("universal", "noarch", "tvm-ffi", "torch-cxx98", "torch-cxx11", "torch", "torch-stable-abi")


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
            cxx11=_ABIS.get(match["cxx"]),
            device=_ARCH_BACKENDS[match["backend"]],
            backend_version=_dotted(match["version"]),
            cpu=match["cpu"],
            os=match["os"],
        )

    def refusal(self, target: Target) -> str | None:
        """Return why this build cannot run on the target, naming both sides, or `None` if it can."""
        if self.device not in (None, target.device):
            return f"built for {self.device}, the target is {target.device}"
        if self.cpu is None:
            return None
        if (self.cpu, self.os) != (target.cpu, target.os):
            return f"built for {self.cpu} {self.os}, the target is {target.cpu} {target.os}"
        if target.free_threaded and Version(target.python).release < _FREE_THREADED_ABI:
            needed = ".".join(map(str, _FREE_THREADED_ABI))
            return f"compiled builds need Python {needed} if free-threaded, the target has {target.python}"
        return self._library_refusal(target) or self._cxx11_refusal(target) or self._backend_refusal(target)

    def _library_refusal(self, target: Target) -> str | None:
        assert self.abi_version is not None
        needed = ".".join(map(str, self.abi_version))
        library = "tvm-ffi" if self.abi == "tvm-ffi" else "torch"
        found = target.packages.get("apache-tvm-ffi") if library == "tvm-ffi" else target.torch
        if found is None:
            return f"needs {library} {needed}, the target has none"
        release = (Version(found).major, Version(found).minor)
        if self.abi == "torch-stable-abi":
            return None if self.abi_version <= release else f"needs torch {needed} or newer, the target has {found}"
        return None if self.abi_version == release else f"needs {library} {needed}, the target has {found}"

    def _cxx11_refusal(self, target: Target) -> str | None:
        if self.cxx11 is None:
            return None
        built, other = ("cxx11", "cxx98") if self.cxx11 else ("cxx98", "cxx11")
        if target.os != "linux":  # only there do the two differ, and the Hub's library takes neither elsewhere
            return f"built with the {built} ABI of Linux, the target is {target.os}"
        if target.cxx11_abi in (None, self.cxx11):
            return None
        return f"built with the {built} ABI, the target's torch uses {other}"

    def _backend_refusal(self, target: Target) -> str | None:
        if self.device == "mps" and not _new_enough_for_metal(target):
            return f"needs macOS {_MACOS_FOR_METAL} or newer, the target has {target.macos or 'none'}"
        if self.backend_version is None:
            return None
        found = target.backend_version
        if found is None:
            return f"needs {self.device} {self.backend_version}, the target's version is not known"
        built, have = Version(self.backend_version), Version(found)
        if self.device == "cuda":
            fits = built.major == have.major and built.minor <= have.minor
        else:
            # Compared as a name has them, without the dot: rocm610 is read as 61.0 and is 6.10.
            fits = f"{built.major}{built.minor}" == f"{have.major}{have.minor}"
        return None if fits else f"built for {self.device} {self.backend_version}, the target has {found}"

    def rank(self) -> tuple[int, tuple[int, int], Version, str]:
        """Return the key by which the better of two fitting builds sorts last.

        First what it was built against, compiled before portable; then the newer version of that, the newer backend,
        and the name, so that no two builds are equal and the order of a listing decides nothing.
        """
        built = self.abi if self.cxx11 is None else f"torch-{'cxx11' if self.cxx11 else 'cxx98'}"
        return _WORST_FIRST.index(built), self.abi_version or (0, 0), Version(self.backend_version or "0"), self.name


def _dotted(digits: str) -> str | None:
    """Put the dot back: `cu126` is 12.6, `rocm64` 6.4, `xpu20252` 2025.2."""
    return f"{digits[:-1]}.{digits[-1]}" if digits else None


def _new_enough_for_metal(target: Target) -> bool:
    return target.macos is not None and Version(target.macos).major >= _MACOS_FOR_METAL
