"""What came into a model after an apply: the sites that its plan has kernels for, and that run none yet."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import TYPE_CHECKING

from kerncfg.applier.adapters import adapter_for
from kerncfg.applier.adapters.torch import walk
from kerncfg.applier.attending import attention_claims
from kerncfg.applier.attention import Part, parts
from kerncfg.applier.functions import function_claims
from kerncfg.applier.fusing import fusion_groups
from kerncfg.applier.groups import inner
from kerncfg.applier.match import claims
from kerncfg.applier.report import ReportRow

if TYPE_CHECKING:
    from torch import nn

    from kerncfg.applier.settle import Settled
    from kerncfg.documents.plan import Plan, Step

__all__ = ["added"]

Found = tuple[str, "Step", str, "nn.Module"]  # path, row, kind, and a module whose mode counts


def added(settled: Settled, plan: Plan, root: nn.Module) -> Iterator[ReportRow]:
    """Yield a row for each site that an apply of the same plan would take now, and that it did not know.

    Raises:
        ApplyError: The plan cannot be carried out on what was added; a `ConflictError` if two rows take it.
    """
    known = set(map(id, settled.sites.modules))
    if all(id(module) in known for module in walk(root)[1]):
        return
    # A fused member is not fused again, so a plan with fusions is refused while it is on.
    cure = "revert, and apply again" if any(step.kind == "fuse" for step in plan.steps) else "apply again"
    for path, step, kind, module in _sites(plan, root, known):
        mode = settled.modes[module.training]
        yield ReportRow(
            path=path,
            name=step.name,
            kind=kind,
            status="kept",
            kernel=None,
            mode=mode.value,
            reason=f"added after apply; {cure} to cover it",
            modes={one.value: "original" for one in settled.modes},
        )


def _sites(plan: Plan, root: nn.Module, known: set[int]) -> list[Found]:
    """Return the sites with a module that is not known, in the model's order; members of fusions are the fusion's."""
    sites = adapter_for(root).sites(root)
    taken = claims(sites, plan.steps)
    found: list[tuple[int, Found]] = []
    places = {path: place for place, path in enumerate(sites.paths)}
    covered: set[int] = set()
    for step, own in fusion_groups(root, sites, plan.steps, taken).values():
        for group in own if step.kind == "fuse" else ():
            if any(id(module) not in known for module in group.modules):
                covered |= set(map(id, group.modules)) | inner(group)
                found.append((places[group.path], (group.path, step, "fusion", group.modules[0])))
    others = [(place, claim, "layer") for place, claim in enumerate(taken) if claim]
    others += [(one.place, one.claim, "function") for one in function_claims(sites, plan.steps)]
    for place, (step, excluding), kind in others:
        module = sites.modules[place]
        if excluding is None and step.kind == "bind" and id(module) not in known | covered:
            found.append((place, (sites.paths[place], step, kind, module)))
    found += [(places[one[0]], one) for one in _attention(plan, root, known)]
    return [one for _, one in sorted(found, key=lambda pair: pair[0])]


def _attention(plan: Plan, root: nn.Module, known: set[int]) -> Iterator[Found]:
    """Yield new parts, and what is new in a known part and does not look where that has its choice."""
    if not any(step.node == "attention" for step in plan.steps):
        return
    for part, step in attention_claims(parts(root), plan.steps):
        if step.kind != "attend":
            continue
        if id(part.module) not in known:
            yield part.path, step, "attention", part.module
            continue
        for place in part.places:
            if id(place.module) not in known and not _follows(replace(part, places=(place,), readers=())):
                yield place.path, step, "attention", place.module


def _follows(part: Part) -> bool:
    return set(part.used().values()) <= {part.current}
