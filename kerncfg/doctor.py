"""What is wrong on a machine, each fault with its cure.

The probes are pure functions of the signs, so a finding can be had for a machine that is not here.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from packaging.requirements import Requirement
from packaging.specifiers import SpecifierSet
from packaging.utils import canonicalize_name
from packaging.version import Version

from kerncfg.locations import conf
from kerncfg.machine import ON, hub_is_on
from kerncfg.signs import COMPILERS, Facts
from kerncfg.sources.environment import Settings
from kerncfg.variables import KNOWN, PREFIX, unread

if TYPE_CHECKING:
    from kerncfg.documents.target import Target

__all__ = ["FLAGS", "PROBES", "SCHEMA", "SEVERITIES", "Diagnosis", "Finding", "examine"]

SCHEMA = 1
SEVERITIES = ("ok", "warn", "error")

_OLDEST = "7.0"  # below it neither Triton nor Inductor makes code
_MAKERS = {"cuda": "an NVIDIA", "rocm": "an AMD", "xpu": "an Intel"}
_BUILDS = {"cuda": "CUDA", "rocm": "ROCm", "xpu": "XPU"}
_INSTALL_TORCH = "install the build for it: https://pytorch.org/get-started/locally"


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """One thing that was looked at: what was found, what was expected, and what to do; `severity` is one of three."""

    name: str
    severity: str  # ok | warn | error
    found: str
    expected: str | None = None
    cure: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Diagnosis:
    """Everything that was found."""

    versions: Mapping[str, str | None]
    target: Target | None
    findings: tuple[Finding, ...]

    @property
    def ok(self) -> bool:
        """Whether nothing is worse than a warning."""
        return all(finding.severity != "error" for finding in self.findings)

    def to_dict(self) -> dict[str, Any]:
        """Return the diagnosis as plain data, in the form of `schemas/doctor.schema.json`."""
        return {
            "schema": SCHEMA,
            "ok": self.ok,
            "versions": dict(self.versions),
            "target": self.target.to_dict() if self.target else None,
            "findings": [asdict(finding) for finding in self.findings],
        }


Probe = Callable[[Facts], Iterator[Finding]]


def examine(facts: Facts) -> Diagnosis:
    """Ask every probe; what several requirements say alike is told once."""
    findings = tuple(dict.fromkeys(finding for probe in PROBES for finding in probe(facts)))
    return Diagnosis(versions=facts.versions, target=facts.target, findings=findings)


def _requirements(facts: Facts) -> Iterator[Finding]:
    """Compare what is installed with what kerncfg declares; an extra binds only what is there."""
    if facts.requires is None:
        cure = "install it: pip install kerncfg, or pip install -e . in a checkout"
        yield Finding(name="kerncfg", severity="warn", found="not installed, so it declares no versions", cure=cure)
    known = {canonicalize_name(name): name for name in facts.versions if name != "kerncfg"}
    for line in facts.requires or ():
        wanted = Requirement(line)
        name = known.get(canonicalize_name(wanted.name))
        extra = re.search(r"extra == [\"'](\w+)[\"']", line)
        found = facts.versions[name] if name else None
        asked = wanted.marker is None or wanted.marker.evaluate({"extra": extra[1] if extra else ""})
        if name is None or not asked or (extra and found is None):
            continue
        fits = found is not None and wanted.specifier.contains(found, prereleases=True)
        spec = f"{wanted.name}{wanted.specifier}"
        yield Finding(
            name=name,
            severity="ok" if fits else "warn" if extra else "error",
            found=found or "not installed",
            expected=str(wanted.specifier),
            cure=None if fits else f"pip install '{spec}'",
        )


def _kernels(facts: Facts) -> Iterator[Finding]:
    """Compare the `kernels` library with what the installed transformers takes of it."""
    found, transformers = facts.versions.get("kernels"), facts.versions.get("transformers")
    if found is None or transformers is None or facts.accepts is None:
        return
    name = "kernels with transformers"
    if SpecifierSet(facts.accepts).contains(found, prereleases=True):
        yield Finding(name=name, severity="ok", found=found, expected=facts.accepts)
        return
    cure = f"pip install 'kernels{facts.accepts}', or leave it: kerncfg needs neither, and reads the names by itself"
    said = f"kernels {found}, which transformers {transformers} takes for not installed"
    yield Finding(name=name, severity="warn", found=said, expected=facts.accepts, cure=cure)


def _device(facts: Facts) -> Iterator[Finding]:
    """Say what `target=auto` is here, and whether kernels can be compiled for it."""
    if facts.target is None:
        found = facts.failure or "no target"
        yield Finding(name="torch", severity="error", found=found, expected="torch imports", cure=_INSTALL_TORCH)
        return
    device, capability = facts.target.device, facts.target.capability
    found = device + (f", capability {capability}" if capability else "")
    if device == "cuda" and capability and Version(capability) < Version(_OLDEST):
        cure = "keep the originals on it (kernels=reference), or run on another device"
        expected = f"capability {_OLDEST} or newer"
        yield Finding(name="device", severity="error", found=found, expected=expected, cure=cure)
    else:
        yield Finding(name="device", severity="ok", found=found)


def _support(facts: Facts) -> Iterator[Finding]:
    """Find accelerators that the machine has and torch does not use."""
    used = facts.target.device if facts.target else None
    if facts.target is None or used not in ("cpu", *_MAKERS):
        return
    built = ", ".join(f"{_BUILDS[kind]} {version}" for kind, version in facts.builds.items()) or "the CPU only"
    installed = f"torch {facts.versions.get('torch')}, built for {built}"
    for kind in sorted(facts.devices - {used}):
        # Many processors have Intel graphics inside, which nobody means to use beside another accelerator.
        severity = "warn" if kind == "xpu" or used != "cpu" else "error"
        found = f"{_MAKERS[kind]} device, and {installed}"
        if kind not in facts.builds:
            expected, cure = f"a build for {_BUILDS[kind]}", _INSTALL_TORCH
        elif used == "cpu":
            expected = "torch finds the device"
            cure = "check the driver, its permissions, and variables that hide devices (CUDA_VISIBLE_DEVICES)"
        else:
            continue
        yield Finding(name="device support", severity=severity, found=found, expected=expected, cure=cure)


def _compilers(facts: Facts) -> Iterator[Finding]:
    """Find what Triton and Inductor compile with."""
    needed = facts.target is not None and facts.target.device in _MAKERS
    severity = "error" if needed else "warn"
    if facts.requires is None and facts.system == "linux" and facts.versions.get("triton") is None:
        expected = "triton, which the bundled kernels are written in"
        yield Finding(
            name="triton", severity=severity, found="not installed", expected=expected, cure="pip install triton"
        )
    if facts.compiler:
        yield Finding(name="C compiler", severity="ok", found=facts.compiler)
        return
    said = facts.environment.get("CC")
    found = f"CC={said}, which is not there" if said else f"none of {', '.join(COMPILERS)} on PATH"
    cure = "set CC to a compiler" if said else "install gcc or clang, or set CC"
    expected = "a compiler: Triton and torch.compile need one"
    yield Finding(name="C compiler", severity=severity, found=found, expected=expected, cure=cure)


def _switch(name: str, value: str) -> Finding:
    on = hub_is_on({name: value})
    known = value.upper() in {*ON, "0", "OFF", "NO", "FALSE"}
    effect = "Hub kernels are on" if on else "Hub kernels are switched off, local and bundled ones are not"
    expected = None if known else "1, ON, YES or TRUE; anything else is off"
    cure = None if on else f"unset {name}"
    return Finding(name=name, severity="ok" if on else "warn", found=f"{value}: {effect}", expected=expected, cure=cure)


def _effect(effect: str, cure: str) -> Callable[[str, str], Finding]:
    """Judge a switch that is noteworthy while it is on."""

    def judge(name: str, value: str) -> Finding:
        if value.upper() not in ON:
            return Finding(name=name, severity="ok", found=f"{value}: off")
        return Finding(name=name, severity="warn", found=f"{value}: {effect}", cure=cure)

    return judge


def _place(what: str) -> Callable[[str, str], Finding]:
    def judge(name: str, value: str) -> Finding:
        return Finding(name=name, severity="ok", found=f"{value}: {what}")

    return judge


def _own(name: str, value: str) -> Finding:
    """Judge a variable of kerncfg's own, all of which name folders that need not be there yet."""
    place = Path(value).expanduser()
    if place.is_dir() or not place.exists():
        return Finding(name=name, severity="ok", found=f"{value}: {KNOWN[name]}")
    cure = f"name a folder, or unset {name}"
    return Finding(name=name, severity="error", found=f"{value} is a file", expected=KNOWN[name], cure=cure)


def _folders(name: str, value: str) -> Finding:
    """Judge `org/repo=folder:org/repo=folder`."""
    pairs = [entry.partition("=") for entry in value.split(":") if entry]
    lost = [folder or entry for entry, _, folder in pairs if not folder or not Path(folder).expanduser().is_dir()]
    if lost:
        found, cure = f"{value}: there is no folder {', '.join(lost)}", "write org/repo=/folder, with a ':' between two"
        return Finding(name=name, severity="warn", found=found, expected="folders that are there", cure=cure)
    return Finding(name=name, severity="warn", found=f"{value}: folders take the place of these repositories")


def _endpoint(name: str, value: str) -> Finding:
    hub = Settings.read({name: value})
    if hub.fault:
        cure = f"write a whole address, or unset {name}"
        return Finding(name=name, severity="error", found="no web address", expected="https://host", cure=cure)
    return Finding(name=name, severity="ok", found=f"{hub.shown}: the Hub is asked there")  # no password


def _secret(name: str, value: str) -> Finding:
    return Finding(name=name, severity="ok", found="is set; its value is not shown")


# The variables that change what kerncfg, transformers and `kernels` do, each with what it does when set.
FLAGS: Mapping[str, Callable[[str, str], Finding]] = {
    "USE_HUB_KERNELS": _switch,
    "DISABLE_KERNEL_MAPPING": _effect(
        "the `kernels` library swaps nothing; kerncfg does not read it", "say enabled=false to switch kerncfg off"
    ),
    "LOCAL_KERNELS": _folders,
    "KERNELS_CACHE": _place("the cache of kernels"),
    "HF_HUB_CACHE": _place("the cache of the Hub"),
    "HF_HOME": _place("the home of the Hub's files"),
    "HF_HUB_OFFLINE": _effect("nothing is asked of the Hub, only the cache is used", "unset it to go online"),
    "HF_ENDPOINT": _endpoint,
    "HF_TOKEN": _secret,
    **dict.fromkeys(KNOWN, _own),
    "TRITON_INTERPRET": _effect("Triton kernels are interpreted, for tests: very slow", "unset it"),
}
_NO_FLAGS = {"GH_TOKEN"}  # near to one of them, and something else


def _flags(facts: Facts) -> Iterator[Finding]:
    """Say what each variable that is set does, and which look like one that was meant."""
    for name, judge in FLAGS.items():
        if facts.environment.get(name):
            yield judge(name, facts.environment[name])
    for name, cure in unread(facts.environment):
        yield Finding(name=name, severity="warn", found="is set, and kerncfg does not read it", cure=cure)
    others = {name for name in facts.environment if not name.upper().startswith(PREFIX)}
    for name in sorted(others - {*FLAGS} - _NO_FLAGS):
        near = difflib.get_close_matches(name.upper(), FLAGS, n=1, cutoff=0.82)
        if near:
            found = "is set, and nothing reads it"
            yield Finding(name=name, severity="warn", found=found, expected=near[0], cure=f"did you mean {near[0]}?")


def _hub(facts: Facts) -> Iterator[Finding]:
    """Say whether the Hub is asked for kernels, and as whom."""
    hub = facts.hub
    if hub.fault:
        found, _, expected = hub.fault.partition(", needed ")
        cure = "mend HF_ENDPOINT, or unset it for the Hub itself"
        yield Finding(name="Hub", severity="error", found=found, expected=expected, cure=cure)
        return
    if not hub.offline:
        asked = f"would be asked {'with' if hub.token else 'without'} a token; not tried"
        yield Finding(name="Hub", severity="ok", found=f"{hub.shown}: {asked}")
        return
    found = f"{hub.shown}: not asked, only the cache is used"
    if facts.cache.kernels:
        yield Finding(name="Hub", severity="ok", found=found)
    else:
        cure = "unset HF_HUB_OFFLINE and TRANSFORMERS_OFFLINE, and bring kernels here: kerncfg fetch PLAN"
        yield Finding(name="Hub", severity="warn", found=f"{found}, and it holds no kernels", cure=cure)


def _cache(facts: Facts) -> Iterator[Finding]:
    cache = facts.cache
    found = f"{cache.path}: {cache.kernels} kernel repositories, {cache.size / 1e6:.1f} MB"
    if not cache.exists:
        found = f"{cache.path}: not there yet"
    if cache.writable:
        yield Finding(name="cache", severity="ok", found=found)
    else:
        cure = "give yourself the right to write there, or set KERNELS_CACHE to another folder"
        yield Finding(name="cache", severity="warn", found=found, expected="a folder you may write to", cure=cure)


def _packaged(facts: Facts) -> Iterator[Finding]:
    cure = "install kerncfg again"
    for fault in facts.faults:
        yield Finding(name="packaged files", severity="error", found=fault, expected="files as shipped", cure=cure)
    if not facts.presets:
        found, expected = f"no presets in {conf()}", "the groups that are shipped"
        yield Finding(name="packaged files", severity="error", found=found, expected=expected, cure=cure)
    elif not facts.faults:
        yield Finding(name="packaged files", severity="ok", found=f"{facts.presets} presets, all valid")


def _plugin(facts: Facts) -> Iterator[Finding]:
    if facts.plugin:
        yield Finding(name="Hydra plugin", severity="ok", found="hydra_plugins.kerncfg")
    else:
        expected = "hydra_plugins.kerncfg, so that other Hydra applications find the packaged groups"
        cure = "install kerncfg from a wheel: pip install kerncfg"
        yield Finding(name="Hydra plugin", severity="warn", found="not installed", expected=expected, cure=cure)


PROBES: tuple[Probe, ...] = (
    _requirements,
    _kernels,
    _device,
    _support,
    _compilers,
    _flags,
    _hub,
    _cache,
    _packaged,
    _plugin,
)
