"""Small documents for tests: what a case does not say is the same everywhere."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from kerncfg.compiler.normalise import normalise
from kerncfg.compiler.policy import Request
from kerncfg.compiler.resolve import resolve
from kerncfg.compiler.tree import KeyPath, Node, Origins
from kerncfg.documents.config import Candidate, Config, KernelRef, Origin, Trust
from kerncfg.documents.lock import Build, Lock, Pin
from kerncfg.documents.target import Mode, Target

if TYPE_CHECKING:
    from kerncfg.documents.plan import Plan, Step

A = "kernels-community/a@v1:A"
B = "kernels-community/b@v1:B"
C = "kernels-community/c@v1:C"
D = "kernels-community/d@v1:D"

INFERENCE, TRAINING, INFERENCE_COMPILE, TRAINING_COMPILE = Mode

POLICY = {"fallback": "original", "strict": False, "require_pin": False, "verify": {"on_fail": "report"}}
TRUST = {"publishers": {"kernels-community": True}, "repositories": {}, "allow_all_kernels": False}

ARGUMENT = Origin(kind="argument")


def target(device: str = "cuda", **said: Any) -> Target:
    """Give a target: a Hopper card, unless said otherwise."""
    cuda = {"capability": "9.0", "backend_version": "12.8"} if device == "cuda" else {}
    left: dict[str, Any] = {
        "capability": None,
        "torch": "2.13.0",
        "backend_version": None,
        "cxx11_abi": True,
        "cpu": "x86_64",
        "os": "linux",
        "macos": None,
        "python": "3.11.9",
        "free_threaded": False,
        "packages": {},
    }
    return Target(device=device, **{**left, **cuda, **said})


def document(
    kernels: Mapping[str, Any] | None = None, inherited: Mapping[str, Any] | None = None, **nodes: Any
) -> dict[str, Any]:
    """Give a whole document; what stands in `policy` and `trust` is laid over the usual."""
    return {
        "enabled": nodes.get("enabled", True),
        "kernels": kernels or {},
        "inherited": inherited or {},
        "policy": {**POLICY, **nodes.get("policy", {})},
        "trust": {**TRUST, **nodes.get("trust", {})},
        **{node: nodes[node] for node in ("fusions", "attention") if node in nodes},
    }


def config(
    kernels: Mapping[str, Any] | None = None, inherited: Mapping[str, Any] | None = None, **nodes: Any
) -> Config:
    """Normalise a document without origins."""
    return normalise(document(kernels, inherited, **nodes))


def file(place: str = "conf/kernels/mine.yaml", line: int | None = None) -> Origin:
    return Origin(kind="file", place=place, line=line)


def preset(place: str = "kernels/bundled.yaml", line: int | None = None) -> Origin:
    return Origin(kind="preset", place=place, line=line)


def override(place: str) -> Origin:
    return Origin(kind="override", place=place)


def origins(
    data: Mapping[str, Any],
    everywhere: Origin = ARGUMENT,
    at: Mapping[str, Origin] | None = None,
    lost: tuple[tuple[KeyPath, Origin], ...] = (),
) -> Origins:
    """Give a document's origins: `at` says that of a dotted path and of all below it."""
    said = at or {}

    def node(value: Any, path: KeyPath, origin: Origin) -> Node:
        origin = said.get(".".join(map(str, path)), origin)
        if isinstance(value, Mapping):
            return Node({key: node(child, (*path, key), origin) for key, child in value.items()}, origin)
        if isinstance(value, list):
            return Node([node(child, (*path, index), origin) for index, child in enumerate(value)], origin)
        return Node(value, origin)

    return Origins(node(data, (), everywhere), lost)


def names(candidates: tuple[Candidate, ...]) -> list[str]:
    """Give candidates as text, those inherited in round brackets."""
    return [f"({each.ref})" if each.inherited else str(each.ref) for each in candidates]


def cells(found: Config, name: str, device: str = "cuda") -> dict[str, list[str]]:
    """Give what a row says for a device, by mode."""
    return {mode.value: names(candidates) for mode, candidates in found.rows[name].at(device).items()}


def locked(found: Config, **refused: str) -> Lock:
    """Answer for every reference that it runs anywhere; `A="reason"` that the kernel named A does not."""
    refs = {candidate.ref for row in found.every() for candidate in row.candidates()}
    return Lock(pins={ref: _pin(ref, refused.get(ref.name or "")) for ref in refs if not ref.framework})


def _pin(ref: KernelRef, reason: str | None) -> Pin:
    if reason:
        return Pin(ref=ref, reason=reason)
    return Pin.of(ref, Build(variant=None, digest=f"digest of {ref.name}"))


def request(device: str = "cuda", trust: Trust | None = None, hub: bool = True, **said: Any) -> Request:
    """Ask for a device, trusting `kernels-community`."""
    publishers = Trust(publishers=frozenset({"kernels-community"}))
    return Request(target=target(device, **said), trust=trust or publishers, hub=hub)


def plan(
    kernels: Mapping[str, Any] | None = None,
    inherited: Mapping[str, Any] | None = None,
    *,
    device: str = "cuda",
    refused: Mapping[str, str] | None = None,
    **nodes: Any,
) -> Plan:
    """Resolve a document for a device; `refused` says by kernel name why its source does not have it."""
    found = config(kernels, inherited, **nodes)
    return resolve(found, locked(found, **refused or {}), request(device, trust=found.trust))


def step(made: Plan, name: str = "N") -> Step:
    """Give the step of a name that has one."""
    return made.step(name)


def chosen(made: Plan, name: str = "N", mode: Mode = INFERENCE) -> list[str]:
    """Give what a mode may run, in order."""
    return [str(choice.kernel.reference) for choice in step(made, name).modes[mode].choices]


KERNEL = """
from torch import nn

class Norm(nn.Module):
    def forward(self, x):
        return x
"""


def kernel_folder(folder: Path, source: str = KERNEL) -> Path:
    """Write a Python package with one file, and give it."""
    folder.mkdir(parents=True)
    (folder / "__init__.py").write_text(source, encoding="utf-8")
    return folder
