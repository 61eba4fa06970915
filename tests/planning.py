"""Plans by hand for tests of what applies them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from kerncfg.documents.config import ORIGINAL, KernelRef, Match, Member, Trust
from kerncfg.documents.plan import Attend, Bind, Choice, Fuse, Keep, Kernel, ModePlan, Plan, Rejection, Step
from kerncfg.documents.target import Mode, Target

FAKES = "tests.fakes"
TRUST = Trust().plus("python:tests.fakes", "python:tests.fakes_broken")
HERE = Target(
    device="cpu",
    capability=None,
    torch=None,
    backend_version=None,
    cxx11_abi=None,
    cpu="x86_64",
    os="linux",
    macos=None,
    python="3.11",
    free_threaded=False,
)
FALLBACK = Choice(kernel=Kernel(reference=ORIGINAL), origin=None, reason="fallback: the original")


def ref(name: str) -> str:
    """The reference of a fake by its bare name; anything else is one already."""
    return name if ":" in name or name == "original" else f"python:{FAKES}:{name}"


def choice(name: str, origin: str | None = "kernels.yaml:3", **conditions: Any) -> Choice:
    kernel = Kernel(reference=KernelRef.parse(ref(name)))
    reason = "off, as the row says" if name == "original" else "chosen for cpu"
    return Choice(kernel=kernel, conditions=conditions, origin=origin, reason=reason)


Said = str | Choice | Sequence[str | Choice]


def choices(said: Said, fallback: str = "original") -> tuple[Choice, ...]:
    entries = [said] if isinstance(said, str | Choice) else list(said)
    found = [choice(entry) if isinstance(entry, str) else entry for entry in entries]
    if fallback == "original" and not any(entry.original for entry in found):
        found.append(FALLBACK)
    return tuple(found)


def step(name: str, said: Said | Mapping[Mode, Said], *, rejected: Sequence[Rejection] = (), **others: Any) -> Step:
    """A step that runs `said`: the same in every mode, or by mode with the original in those left out."""
    fallback = others.get("fallback", "original")
    by_mode = said if isinstance(said, Mapping) else dict.fromkeys(Mode, said)
    modes = {
        mode: ModePlan(choices=choices(by_mode.get(mode, ()), fallback), rejected=tuple(rejected)) for mode in Mode
    }
    node = others.get("node", "kernels")
    swaps = any(not entry.original for plan in modes.values() for entry in plan.choices)
    kind = {"kernels": Bind, "fusions": Fuse, "attention": Attend}[node] if swaps else Keep
    match = others.get("match")
    return kind(
        node=node,
        members=tuple(Member(name=name, path=path) for name, path in others.get("members", ())),
        path=others.get("path"),
        mask=others.get("mask"),
        name=name,
        modes=modes,
        match=Match.from_dict(match) if match else None,
        exclude=tuple(others.get("exclude", ())),
        fallback=fallback,
        own=others.get("own", True),
        reason=others.get("reason", ""),
    )


def plan(*steps: Step, strict: bool = False, target: Target = HERE, trust: Trust = TRUST) -> Plan:
    return Plan(target=target, steps=steps, strict=strict, trust=trust)
