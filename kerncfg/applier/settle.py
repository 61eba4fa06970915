"""Settles what every row of a plan does to a model before the first edit, and then does all of it or nothing."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from kerncfg.applier.adapters import Sites, adapter_for
from kerncfg.applier.attending import AttentionSite, attention_claims, decide_attention
from kerncfg.applier.attention import Attended, Part, attend_parts, parts
from kerncfg.applier.bind import Edit, Owner, bind, bound, is_plain, unbind
from kerncfg.applier.decide import Decided, Decisions
from kerncfg.applier.edits import FUSION
from kerncfg.applier.findings import Findings, Outcome, check
from kerncfg.applier.functions import FunctionDecisions, FunctionSite, function_claims
from kerncfg.applier.fuse import fuse
from kerncfg.applier.fusing import FusionSite, alone, decide_fusions, fusion_groups, release
from kerncfg.applier.match import Claim, claims

if TYPE_CHECKING:
    from torch import nn

    from kerncfg.documents.plan import Plan
    from kerncfg.documents.target import Mode

__all__ = ["Settled", "settle"]


@dataclass(slots=True, kw_only=True)
class Settled:
    """What each site of a model will run; the lists of layers go by the places of `sites`."""

    owner: Owner
    modes: tuple[Mode, Mode]
    sites: Sites
    claims: list[Claim | None]
    decided: list[Decided | None]
    functions: list[FunctionSite]
    fusions: list[FusionSite]
    attention: list[AttentionSite]
    findings: Findings
    parts: Sequence[Part] = ()  # those of the model that have attention, if a row is about that
    attended: Attended | None = field(default=None)

    def do(self, root: nn.Module) -> None:
        """Make every edit; on an error the model is as it was before."""
        with ExitStack() as undo:
            prepared = [one for one in self.fusions if one.prepared is not None]
            made = fuse([one.prepared for one in prepared if one.prepared is not None], self.owner) if prepared else ()
            for one, fusion in zip(prepared, made, strict=True):
                one.fusion = fusion
                undo.callback(fusion.revert)
            _bind(self.sites.modules, self.decided, self.function_edits(), undo.callback)
            if wanted := [one.wanted for one in self.attention if one.wanted is not None]:
                walked = self.sites.paths, self.sites.modules
                self.attended = attend_parts(root, wanted, self.parts, owner=self.owner, walked=walked)
            undo.pop_all()

    def function_edits(self) -> list[tuple[nn.Module, Edit]]:
        """Return the modules whose forward calls other functions, each once, with its edit."""
        edits = ((one.site.module, one.edit) for one in self.functions if one.edit is not None)
        return list({id(module): (module, edit) for module, edit in edits}.values())

    def edits(self) -> Iterator[tuple[nn.Module, Edit]]:
        """Yield every edit of a forward, with its module, in the order in which they were made."""
        for one in self.fusions:
            if one.fusion is not None:
                yield from zip(one.fusion.members, one.fusion.edits, strict=True)
        for module, decided in zip(self.sites.modules, self.decided, strict=True):
            if decided is not None:
                yield module, decided.edit
        yield from self.function_edits()


def settle(plan: Plan, root: nn.Module, modes: tuple[Mode, Mode], owner: Owner) -> Settled:
    """Return what every row of a plan will do to a model; nothing of it changes.

    Raises:
        ApplyError: A row cannot be carried out on this model, or is without effect under a strict policy.
        ConflictError: Two rows take one site.
        ContractError: A kernel does not fit, and its row may not fall back.
        TrustError: Nobody consented to a kernel's code.
    """
    sites = adapter_for(root).sites(root)
    taken = claims(sites, plan.steps)
    called = function_claims(sites, plan.steps)
    grouped = fusion_groups(root, sites, plan.steps, taken)
    wants_attention = any(step.node == "attention" for step in plan.steps)
    attentive = parts(root, (sites.paths, sites.modules)) if wants_attention else ()
    attending = attention_claims(attentive, plan.steps)
    decisions = Decisions(plan, modes, owner)
    steps = {id(claim[0]): claim[0] for claim in taken if claim is not None}
    steps |= {id(one.claim[0]): one.claim[0] for one in called}
    steps |= {id(step): step for step, own in grouped.values() if own} | {id(step): step for _, step in attending}
    decisions.admit([*steps.values()], root)
    fusions = decide_fusions(root, sites, grouped, decisions)
    called, left = release(sites, taken, called, fusions)
    lone = alone(root, sites, taken, decisions)
    called, inside = release(sites, taken, called, lone) if lone else (called, {})
    fusions += lone
    left = {name: "; ".join(filter(None, (left.get(name), inside.get(name)))) for name in {**left, **inside}}
    decided = decisions.decide(sites, taken)
    functions = FunctionDecisions(decisions).decide_functions(called, decided, taken) if called else []
    attention = decide_attention(attending, decisions)
    outcomes = [
        *(Outcome(one.step, one.decided.swaps, one.decided.verdicts) for one in functions),
        *(Outcome(one.step, one.swaps, one.verdicts) for one in fusions),
        *(Outcome(one.step, one.swaps, one.verdicts) for one in attention),
    ]
    findings = check(plan, sites, taken, decided, outcomes, decisions.hints, left, modes)
    return Settled(
        owner=owner,
        modes=modes,
        sites=sites,
        claims=taken,
        decided=decided,
        functions=functions,
        fusions=fusions,
        attention=attention,
        findings=findings,
        parts=attentive,
    )


def _bind(
    modules: Sequence[nn.Module],
    outcomes: Sequence[Decided | None],
    functions: Sequence[tuple[nn.Module, Edit]],
    undo: Callable[[Callable[[], None]], object],
) -> None:
    """Edit every module that gets a kernel, or whose kernel of an earlier apply is not this one's."""
    count = 0

    def back() -> None:
        for module, edit in reversed(functions):
            unbind(module, edit)
        for module, decided in zip(reversed(modules[:count]), reversed(outcomes[:count]), strict=True):
            if decided is not None:
                unbind(module, decided.edit)

    undo(back)
    plain: dict[type, bool] = {}
    for module, decided in zip(modules, outcomes, strict=True):
        count += 1
        # An earlier fusion's member stays: its own forward, beside another that hands on, would be half of the two.
        if decided is not None and (decided.swaps or (bound(module) is not None and FUSION not in module.__dict__)):
            if (cls := type(module)) not in plain:
                plain[cls] = is_plain(cls)
            bind(module, decided.edit, plain[cls])
    for module, edit in functions:
        bind(module, edit)
