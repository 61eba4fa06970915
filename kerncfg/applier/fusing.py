"""Which groups of modules fusions take, what each will run, and what that leaves to the rows of their members."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import product
from typing import TYPE_CHECKING, Any

from kerncfg.applier.contract import MissingAttribute, conditions_fault, device_fault
from kerncfg.applier.decide import Decisions, Verdict, condition_fault, is_off, joined, said
from kerncfg.applier.fuse import Fusion, Prepared, Survey, prepare, survey
from kerncfg.applier.groups import Group, check_conflicts, groups, inner
from kerncfg.applier.layouts import companion
from kerncfg.applier.match import placed, row
from kerncfg.errors import ApplyError, ContractError

if TYPE_CHECKING:
    from torch import nn

    from kerncfg.applier.adapters import Sites
    from kerncfg.applier.functions import FunctionClaim
    from kerncfg.applier.match import Claim
    from kerncfg.documents.plan import Choice, ModePlan, Step
    from kerncfg.documents.target import Mode

__all__ = ["FusionSite", "alone", "decide_fusions", "fusion_groups", "release"]

Groups = Mapping[str, tuple["Step", tuple[Group, ...]]]


@dataclass(slots=True, kw_only=True, eq=False)
class FusionSite:
    """A group of modules that a row fuses, or keeps as it is, and the fusion once it is made."""

    group: Group
    step: Step
    verdicts: tuple[Verdict, Verdict]
    prepared: Prepared | None
    fusion: Fusion | None = None

    @property
    def swaps(self) -> bool:
        """Whether some mode runs a kernel."""
        return self.prepared is not None


def fusion_groups(root: nn.Module, sites: Sites, steps: Sequence[Step], claims: Sequence[Claim | None]) -> Groups:
    """Return the groups of each row of fusions, by row.

    Raises:
        ApplyError: A fusion matches nothing, or a matched parent lacks a member.
        ConflictError: Two fusions, or a fusion and a row's `match`, want one module.
    """
    found: dict[str, tuple[Step, tuple[Group, ...]]] = {}
    for step in steps:
        if step.node != "fusions":
            continue
        try:
            members = [(member.name, member.path) for member in step.members]
            found[row(step)] = step, groups(root, members, sites)
        except ApplyError as error:
            if step.kind == "fuse":
                raise ApplyError(f"{placed(step)}: {error.message}", hint=error.hint) from error
            found[row(step)] = step, ()  # what is off in a model without such modules is as the row says
    matched = {
        id(module): placed(claim[0])
        for module, claim in zip(sites.modules, claims, strict=True)
        if claim is not None and claim[1] is None and claim[0].match is not None and claim[0].kind == "bind"
    }
    check_conflicts({name: own for name, (step, own) in found.items() if step.kind == "fuse"}, matched)
    return found


def alone(sites: Sites, claims: list[Claim | None], decisions: Decisions) -> Groups:
    """Return the sites of rows whose kernel has a layout of its own, each a group by itself, and take their claims.

    A kernel whose parameters have other names or shapes than the layer's is the same as a fusion of one member.
    """
    steps = {id(claim[0]): claim[0] for claim in claims if claim is not None and claim[0].kind == "bind"}
    found: dict[str, tuple[Step, tuple[Group, ...]]] = {}
    for step in steps.values():
        firsts = {
            choice.kernel for mode in decisions.modes for choice in step.modes[mode].choices[:1] if not choice.original
        }
        if not any(companion(decisions.code_of(kernel)) for kernel in firsts):
            continue
        places = [place for place, claim in enumerate(claims) if claim == (step, None)]
        found[row(step)] = step, tuple(Group.of(sites[place]) for place in places)
        for place in places:
            claims[place] = None
    return found


def decide_fusions(root: nn.Module, found: Groups, decisions: Decisions) -> list[FusionSite]:
    """Return what each group will run; nothing of the model changes.

    Raises:
        ContractError: No kernel is left for a mode, and the row may not fall back.
        ApplyError: A condition asks for an attribute that a member has not.
    """
    if not found:
        return []
    looked = survey(root)
    return [_Choosing(looked, group, step, decisions).site() for step, own in found.values() for group in own]


def release(
    sites: Sites, claims: list[Claim | None], functions: Sequence[FunctionClaim], fused: Sequence[FusionSite]
) -> tuple[list[FunctionClaim], list[str]]:
    """Take the members of fusions out of the rows that took them by name; return what is left, and notes of it."""
    taken = {id(member): one for one in fused if one.swaps for member in one.group.modules}
    taken |= {part: one for one in fused if one.swaps for part in inner(one.group) if part not in taken}
    if not taken:
        return list(functions), []
    left: Counter[tuple[str, str]] = Counter()
    for place, module in enumerate(sites.modules):
        claim = claims[place]
        if claim is not None and (one := taken.get(id(module))):
            claims[place] = None
            left[row(claim[0]), row(one.step)] += 1
    others = []
    for claimed in functions:
        if one := taken.get(id(claimed.site.module)):
            left[row(claimed.claim[0]), row(one.step)] += 1
        else:
            others.append(claimed)
    return others, [f"{name}: left to {to}, in {count} places" for (name, to), count in left.items()]


@dataclass(slots=True)
class _Choosing:
    """Looks for the kernels that one group can run, the better ones first in both modes."""

    survey: Survey
    group: Group
    step: Step
    decisions: Decisions
    reasons: dict[str, None] = field(default_factory=dict)

    def site(self) -> FusionSite:
        device = self.decisions.plan.target.device
        faults = (device_fault(module, device) for module in self.group.modules)
        if fault := next(filter(None, faults), None):
            kept = self.decisions.keep(fault)
            return FusionSite(group=self.group, step=self.step, verdicts=(kept, kept), prepared=None)
        idle, training = self.decisions.modes
        first = list(self._options(self.step.modes[idle]))
        second = first if idle is training else list(self._options(self.step.modes[training]))
        pairs = sorted(product(range(len(first)), range(len(second))), key=lambda pair: (max(pair), sum(pair)))
        for left, right in pairs:
            if first is second and left != right:
                continue
            chosen = first[left], second[right]
            if chosen[0] is None and chosen[1] is None:
                break
            found = self._prepared(chosen)
            if found is not None:
                verdicts = self._verdict(first[left], idle), self._verdict(second[right], training)
                return FusionSite(group=self.group, step=self.step, verdicts=verdicts, prepared=found)
        verdicts = self._kept(self.step.modes[idle]), self._kept(self.step.modes[training])
        return FusionSite(group=self.group, step=self.step, verdicts=verdicts, prepared=None)

    def _options(self, found: ModePlan) -> Iterator[tuple[Choice, Any] | None]:
        """Yield the choices whose code is there and whose conditions hold, `None` for the original."""
        for choice in found.choices:
            if choice.original:
                yield None
                continue
            code = self.decisions.code_of(choice.kernel)
            reason = code if isinstance(code, str) else self._condition(choice)
            if reason is None:
                yield choice, code
            else:
                self.reasons[f"{said(choice)}: {reason}"] = None

    def _condition(self, choice: Choice) -> str | None:
        """Say which condition does not hold: one on an attribute is for those members that have it."""
        if not choice.conditions:
            return None
        when = choice.conditions.get("when", {})
        others = {key: value for key, value in choice.conditions.items() if key != "when"}
        for one in (others, *({"when": {path: values}} for path, values in when.items())):
            answers = [self._answer(one, module) for module in self.group.modules]
            if fault := next((answer for answer in answers if isinstance(answer, str)), None):
                return fault
            if all(answer is MissingAttribute for answer in answers):
                return condition_fault(choice, self.group.modules[0], self.group.path, self.step)
        return None

    def _answer(self, conditions: Mapping[str, Any], module: nn.Module) -> str | type[MissingAttribute] | None:
        try:
            return conditions_fault(module, conditions)
        except MissingAttribute:
            return MissingAttribute

    def _prepared(self, chosen: tuple[tuple[Choice, Any] | None, tuple[Choice, Any] | None]) -> Prepared | None:
        idle, training = (None if one is None else one for one in chosen)
        codes = None if idle is None else idle[1], None if training is None else training[1]
        kernels = None if idle is None else idle[0].kernel, None if training is None else training[0].kernel
        found = prepare(self.survey, self.group, codes, kernels, self.decisions.modes)
        if isinstance(found, Prepared):
            return found
        named = dict.fromkeys(said(one[0]) for one in chosen if one is not None)
        self.reasons[f"{' and '.join(named)}: {found}"] = None
        return None

    def _verdict(self, chosen: tuple[Choice, Any] | None, mode: Mode) -> Verdict:
        if chosen is None:
            return self._kept(self.step.modes[mode])
        choice = chosen[0]
        passed = f"; passed over: {'; '.join(self.reasons)}" if self.reasons else ""
        where = f" ({choice.origin})" if choice.origin else ""
        return Verdict(status="swapped", reason=f"{choice.reason}{where}{passed}", kernel=choice.kernel)

    def _kept(self, found: ModePlan) -> Verdict:
        if is_off(found):
            return Verdict(status="off", reason=f"{found.choices[0].reason} ({found.choices[0].origin})")
        reasons = joined(found, list(self.reasons))
        if not any(choice.original for choice in found.choices):
            raise ContractError(
                f"{self.group.path}: no kernel of {row(self.step)} is left: {reasons}",
                hint=f"mend the kernel or the row, or let it fall back: {row(self.step)}.fallback=original",
            )
        return self.decisions.keep(reasons or found.choices[0].reason)
