"""Reads a build's metadata.json, and says whether the build suits a target whose kind of device it is for.

The rules are those of the `kernels` library, release 0.17.2, whose parser is not Python; tests/peers compares the two.
Stricter here: an `id` has to be a name, a part that is a map has to be written as one, the whole file in UTF-8, and an
address as git takes it.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, Self

from packaging.version import Version

from kerncfg.documents.fields import (
    TOO_LARGE,
    Part,
    Read,
    anything,
    each,
    flag,
    loaded,
    optional,
    shown,
    text,
    unsigned,
    wrong,
)

if TYPE_CHECKING:
    from kerncfg.documents.target import Target

__all__ = ["FORMAT", "Dependency", "Metadata"]

FORMAT = "0.17.2"  # the release of the `kernels` library whose rules are followed here

Dependency = tuple[str, int | None, str | None]

_BACKENDS = ("cann", "cpu", "cuda", "metal", "neuron", "rocm", "tpu", "xpu")
_DEVICES = {"cann": "npu", "metal": "mps"}
_KEYS = {"id", "name", "version", "license", "python-depends", "backend", "kernel-depends", "kernels-minver"}
_KEYS |= {"upstream", "source", "digest", "provenance"}
_DEPENDENCY = ("repo-id", "version", "revision")
_GIT = {"commit", "sha", "dirty"}

_SCHEMES = ("https", "http", "git", "ssh", "git+ssh", "git+https", "git+http")
_NO_HOST = r"@:\0-\x20\x7f<>^|\[\]\\"  # what stands in no host's name
_SCP = rf"(?:[^:]*@)?[^{_NO_HOST}]+:(?!//).+"  # git@host:path
# What follows `https:`, nearly as browsers read it: who, a host, a port.
_WEB = (
    rf"[/\\]*(?:[^/\\?#]*@)?(?:\[[0-9A-Fa-f:.]+\]|[^/?#%{_NO_HOST}]+)(?::[0-9]{{0,4}}|:[0-5][0-9]{{4}})?(?:[/\\?#]|$)"
)

# What `python-depends` may name (kernels 0.17.2, python_depends.json), for any device or for one -> what is
# installed for it, `None` where there is nothing to import.
_PACKAGES: Mapping[str, str | None] = {"einops": "einops", "helion": "helion", "tvm-ffi": "apache-tvm-ffi"}
_PACKAGES_OF: Mapping[str, Mapping[str, str | None]] = {
    "cuda": {"nvidia-cutlass-dsl": "nvidia-cutlass-dsl"},
    "neuron": {"nki": "nki"},
    "xpu": {"onednn": None},
}

_CUDA_ARCH = re.compile(r"(?P<major>\d+)\.(?P<minor>\d+)(?P<suffix>[af]?)(?P<ptx>(?:\+PTX)?)", re.ASCII)
_GCN_ARCH = re.compile(r"gfx(?P<major>\d+)(?P<minor>[0-9a-f])[0-9a-f]", re.ASCII)  # the last digit is the stepping


@dataclass(frozen=True, slots=True, kw_only=True)
class Metadata:
    """What a build says of itself, as far as a decision rests on it.

    `backend` is the Hub's word for the device, `archs` is empty where the build names none, a dependency on a kernel
    is (repository, version, revision) with one of the two `None`; `dirty`: built from files that no commit has.
    """

    id: str
    name: str
    backend: str
    archs: tuple[str, ...] = ()
    python_depends: tuple[str, ...] = ()
    kernel_depends: tuple[Dependency, ...] = ()
    kernels_minver: str | None = None
    dirty: bool = False

    @classmethod
    def parse(cls, content: bytes) -> Self:
        """Read the bytes of a metadata.json.

        Raises:
            SourceError: The bytes are no JSON, or a key is not as the format wants it.
        """
        top = Part(loaded(content), "", _KEYS)
        backend = Part(top.read("backend", anything), "backend", {"type", "archs"})
        archs = backend.read("archs", optional(_TEXTS))
        for key, read in _CHECKED.items():
            top.read(key, read)
        return cls(
            id=top.read("id", _ID),
            name=top.read("name", _NAME),
            backend=backend.read("type", _BACKEND),
            archs=archs or (),
            python_depends=top.read("python-depends", _TEXTS),
            kernel_depends=top.read("kernel-depends", _DEPENDENCIES) if "kernel-depends" in top.data else (),
            kernels_minver=top.read("kernels-minver", optional(_minver)),
            dirty=top.read("provenance", optional(_dirty)) or False,
        )

    def to_dict(self) -> dict[str, Any]:
        """Return what `from_dict` takes: plain data in the Hub's words, every key present."""
        return {
            "id": self.id,
            "name": self.name,
            "backend": {"type": self.backend, "archs": [*self.archs]},
            "python-depends": [*self.python_depends],
            "kernel-depends": [_dependency_dict(dependency) for dependency in self.kernel_depends],
            "kernels-minver": self.kernels_minver,
            "dirty": self.dirty,
        }

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> Self:
        """Build the metadata from the plain data of `to_dict`."""
        depends = data["kernel-depends"]
        return cls(
            id=data["id"],
            name=data["name"],
            backend=data["backend"]["type"],
            archs=tuple(data["backend"]["archs"]),
            python_depends=tuple(data["python-depends"]),
            kernel_depends=tuple((one["repo-id"], one.get("version"), one.get("revision")) for one in depends),
            kernels_minver=data["kernels-minver"],
            dirty=data["dirty"],
        )

    def refusal(self, target: Target) -> str | None:
        """Return why this build cannot run on the target, naming both sides, or `None` if it can.

        What is not known of the target refuses nothing, and a build for another device is the variant's to refuse.
        """
        return self._arch_refusal(target) or self._format_refusal() or self._python_refusal(target)

    def _arch_refusal(self, target: Target) -> str | None:
        if not self.archs or _DEVICES.get(self.backend, self.backend) != target.device:
            return None
        said = ", ".join(self.archs)
        if target.device == "cuda" and target.capability is not None:
            verdicts = [_runs_on(arch, Version(target.capability)) for arch in self.archs]
            fits = any(verdicts) or all(verdict is None for verdict in verdicts)
            return None if fits else f"built for capability {said}, the target has {target.capability}"
        if target.device == "rocm" and target.arch is not None:
            return None if target.arch in self.archs else f"built for architecture {said}, the target has {target.arch}"
        if target.device == "rocm" and target.capability is not None:
            return self._gcn_refusal(Version(target.capability))
        return None

    def _gcn_refusal(self, capability: Version) -> str | None:
        """Compare with what the capability tells of the architecture: all but its last digit."""
        known = [match for arch in self.archs if (match := _GCN_ARCH.fullmatch(arch))]
        near = [match for match in known if (int(match["major"]), int(match["minor"], 16)) == _pair(capability)]
        if near or len(known) < len(self.archs):
            return None
        return f"built for architecture {', '.join(self.archs)}, the target has capability {capability}"

    def _format_refusal(self) -> str | None:
        if self.kernels_minver is None or Version(self.kernels_minver) <= Version(FORMAT):
            return None
        return f"needs kernels {self.kernels_minver} or newer, kerncfg reads what {FORMAT} does"

    def _python_refusal(self, target: Target) -> str | None:
        allowed = {**_PACKAGES, **_PACKAGES_OF.get(target.device, {})}
        unknown = [name for name in self.python_depends if name not in allowed]
        if unknown:
            return f"needs the Python package {unknown[0]}, a build for {target.device} may need {', '.join(allowed)}"
        missing = [name for name in self.python_depends if (allowed[name] or "") not in {"", *target.packages}]
        if not missing:
            return None
        install = " ".join(str(allowed[name]) for name in missing)
        return f"needs {' and '.join(missing)}, not installed here: pip install {install}"


def _runs_on(arch: str, capability: Version) -> bool | None:
    """Say whether code for a CUDA architecture runs on a capability, `None` if the architecture has no known form."""
    match = _CUDA_ARCH.fullmatch(arch)
    if match is None:
        return None
    built, have = (int(match["major"]), int(match["minor"])), _pair(capability)
    if match["suffix"] == "a":
        return built == have
    return built <= have and (built[0] == have[0] or bool(match["ptx"] and not match["suffix"]))


def _pair(version: Version) -> tuple[int, int]:
    return version.major, version.minor


def _dependency_dict(dependency: Dependency) -> dict[str, Any]:
    repository, version, revision = dependency
    return {"repo-id": repository} | ({"revision": revision} if version is None else {"version": version})


def _dependency(value: Any, path: str) -> Dependency:
    entry = Part(value, path, _DEPENDENCY)
    for key in sorted({*entry.data}.difference(_DEPENDENCY)):
        raise wrong(path, f"a map with the key {shown(key)}", f"only {', '.join(_DEPENDENCY)}")
    version = entry.read("version", optional(unsigned))
    revision = entry.read("revision", optional(text))
    if (version is None) is (revision is None):
        both = "a map with neither version nor revision" if version is None else "a map with both version and revision"
        raise wrong(path, both, "one of the two")
    return entry.read("repo-id", text), version, revision


def _minver(value: Any, path: str) -> str:
    said = text(value, path, r"\s*\+?[0-9]{1,40}(\.\+?[0-9]{1,40}){2}\s*", "three numbers with dots")
    numbers = [int(part) for part in said.split(".")]
    if max(numbers) >= TOO_LARGE:
        raise wrong(path, shown(value), "three numbers of 64 bits")
    return ".".join(map(str, numbers))


def _git_url(value: Any, path: str) -> None:
    address = re.sub(r"[\t\r\n]", "", text(value, path, expected="the address of a git repository")).strip()
    scheme, colon, rest = address.partition(":")
    if not re.fullmatch(r"[A-Za-z][A-Za-z0-9+.-]*", scheme):
        good = re.fullmatch(_SCP, address) is not None
    elif scheme.lower() in ("https", "http"):
        good = re.match(_WEB, rest) is not None
    else:
        good = bool(colon) and scheme.lower() in _SCHEMES
    if not good:
        raise wrong(path, shown(value), f"the address of a git repository, with one of {', '.join(_SCHEMES)}")


def _digest(value: Any, path: str) -> None:
    part = Part(value, path, {"algorithm", "files"})
    part.read("algorithm", partial(text, pattern="sha256|sha512", expected="sha256 or sha512"))
    files = Part(part.read("files", anything), part.at("files"), ())
    for name, said in files.pairs:
        text(said, files.at(name))


def _dirty(value: Any, path: str) -> bool:
    """Read the provenance; say whether the kernel or its builder had changes that no commit has."""
    part = Part(value, path, {"kernel-builder", "kernel"})
    builder = Part(part.read("kernel-builder", anything), part.at("kernel-builder"), _GIT | {"version"})
    builder.read("version", text)
    built = _git(builder) if _GIT.intersection(builder.data) else False
    return part.read("kernel", optional(lambda found, at: _git(Part(found, at, _GIT)))) or built


def _git(part: Part) -> bool:
    """Read a commit, which may be called sha, and whether there were changes on top of it."""
    if {"commit", "sha"} <= {*part.data}:
        raise wrong(part.at("commit"), "there twice, once as sha", "it once")
    key = "sha" if "sha" in part.data else "commit"
    part.read(key, partial(text, pattern=r"[0-9A-Fa-f]{40}([0-9A-Fa-f]{24})?", expected="40 or 64 hexadecimal digits"))
    return part.read("dirty", flag)


_ID = partial(text, pattern=r"_?[A-Za-z]\w*", expected="a name of letters, digits and _")
_NAME = partial(
    text, pattern=r"[a-z][-a-z0-9]*[a-z0-9]", expected="lower-case letters, digits and dashes, at least two"
)
_BACKEND = partial(text, pattern="|".join(_BACKENDS), expected=f"one of {', '.join(_BACKENDS)}")
_TEXTS: Read[tuple[str, ...]] = partial(each, read=text)
_DEPENDENCIES: Read[tuple[Dependency, ...]] = partial(each, read=_dependency)

# Checked as the Hub library checks them, and not needed.
_CHECKED: Mapping[str, Read[object]] = {
    "version": unsigned,
    "license": text,
    "upstream": optional(_git_url),
    "source": optional(_git_url),
    "digest": optional(_digest),
}
