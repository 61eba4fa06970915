"""Which groups of modules fusions take, what each will run, and what that leaves to the rows of their members."""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NamedTuple

from kerncfg.applier.choices import condition_fault, joined, said
from kerncfg.applier.connecting import randomness
from kerncfg.applier.contract import MissingAttribute, conditions_fault
from kerncfg.applier.decide import Decisions, Verdict, is_off
from kerncfg.applier.edits import FUSION
from kerncfg.applier.fuse import Fusion, Prepared, Survey, fusion_of, prepare, survey
from kerncfg.applier.groups import Group, check_conflicts, groups, inner
from kerncfg.applier.layouts import companion
from kerncfg.applier.match import placed, row
from kerncfg.documents.plan import ModePlan
from kerncfg.errors import ApplyError, ContractError

if TYPE_CHECKING:
    from torch import nn

    from kerncfg.applier.adapters import Sites
    from kerncfg.applier.functions import FunctionClaim
    from kerncfg.applier.match import Claim
    from kerncfg.documents.plan import Choice, Step
    from kerncfg.documents.target import Mode

__all__ = ["FusionSite", "alone", "decide_fusions", "fusion_groups", "release"]

Groups = Mapping[str, tuple["Step", tuple[Group, ...]]]
_Option = tuple["Choice", Any] | None  # a choice and its code; `None` is the original


class _Known(NamedTuple):
    """What a group got by the first choice of each mode, which have no conditions: another is asked for it at once."""

    options: tuple[_Option, _Option]
    verdicts: tuple[Verdict, Verdict]


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


def alone(root: nn.Module, sites: Sites, claims: list[Claim | None], decisions: Decisions) -> list[FusionSite]:
    """Return what sites run whose row's kernel has a layout of its own, each a group by itself, and take their claims.

    A kernel whose parameters have other names or shapes than the layer's is the same as a fusion of one member. Where
    none of that kind fits and another is left, the site stays claimed, for what needs no layout.

    Raises:
        ContractError: No kernel is left for a mode, and the row may not fall back.
        ApplyError: A condition asks for an attribute that the module has not.
    """
    steps = {id(claim[0]): claim[0] for claim in claims if claim is not None and claim[0].kind == "bind"}
    rows = {key: step for key, step in steps.items() if any(_with_layouts(step, decisions))}
    if not rows:
        return []
    places = [place for place, claim in enumerate(claims) if claim and claim[1] is None and id(claim[0]) in rows]
    own = {place: Group.of(sites[place]) for place in places}
    within = {part for group in own.values() for part in inner(group)}
    looked, found = survey(root, sites.modules), []
    for place, group in own.items():
        step = rows[id(claims[place][0])]  # type: ignore[index]
        if id(group.modules[0]) in within:
            continue
        choosing = _Choosing(looked, group, step, decisions)
        one = choosing.fused()
        if one is None and not all(_with_layouts(step, decisions)):
            continue
        found.append(one or choosing.kept())
        claims[place] = None
    return found


def _with_layouts(step: Step, decisions: Decisions) -> Iterator[bool]:
    """Yield of each kernel that a step may run here whether it has a layout."""
    for mode in dict.fromkeys(decisions.modes):
        for choice in _in(step, mode).choices:
            code = None if choice.original else decisions.code_of(choice.kernel)
            if code is not None and not isinstance(code, str):
                yield companion(code) is not None


def _in(step: Step, mode: Mode) -> ModePlan:
    return step.modes.get(mode) or ModePlan(choices=())


def decide_fusions(root: nn.Module, sites: Sites, found: Groups, decisions: Decisions) -> list[FusionSite]:
    """Return what each group will run; nothing of the model changes.

    Raises:
        ContractError: No kernel is left for a mode, and the row may not fall back.
        ApplyError: A condition asks for an attribute that a member has not.
    """
    if not found:
        return []
    looked = survey(root, sites.modules, still=True)
    known: dict[int, _Known] = {}
    with randomness([root]):
        return [
            _Choosing(looked, group, step, decisions, known=known).site()
            for step, own in found.values()
            for group in own
        ]


def release(
    sites: Sites, claims: list[Claim | None], functions: Sequence[FunctionClaim], fused: Sequence[FusionSite]
) -> tuple[list[FunctionClaim], dict[str, str]]:
    """Take what fusions run out of the rows that took it by name: return the functions left, and by row who has it.

    Parts of fusions that were applied before count as well; their members themselves say so when they are decided.
    """
    taken = {id(module): row(one.step) for one in fused if one.swaps for module in one.group.modules}
    taken |= {part: row(one.step) for one in fused if one.swaps for part in one.group.inside if part not in taken}
    taken |= {part: to for module in sites.modules if FUSION in module.__dict__ for part, to in _earlier(module)}
    if not taken:
        return list(functions), {}
    left: Counter[tuple[str, str]] = Counter()
    for place, module in enumerate(sites.modules):
        claim = claims[place]
        if claim is not None and (to := taken.get(id(module))):
            claims[place] = None
            left[row(claim[0]), to] += 1
    others = []
    for claimed in functions:
        if to := taken.get(id(claimed.site.module)):
            left[row(claimed.claim[0]), to] += 1
        else:
            others.append(claimed)
    told: dict[str, list[str]] = {}
    for (name, to), count in left.items():
        told.setdefault(name, []).append(f"left to {to}, in {count} {'place' if count == 1 else 'places'}")
    return others, {name: "; ".join(words) for name, words in told.items()}


def _earlier(module: nn.Module) -> Iterator[tuple[int, str]]:
    fusion = fusion_of(module)
    if fusion is not None and module is fusion.members[0]:
        members = set(map(id, fusion.members))
        yield from ((part, str(fusion.edits[0].owner)) for part in fusion.parts - members)


@dataclass(slots=True)
class _Choosing:
    """Looks for the kernels that one group can run, the better ones first in both modes."""

    survey: Survey
    group: Group
    step: Step
    decisions: Decisions
    reasons: dict[str, None] = field(default_factory=dict)
    faults: set[str] = field(default_factory=set)
    known: dict[int, _Known] = field(default_factory=dict)  # of groups that got the first of both modes, by step

    def site(self) -> FusionSite:
        """Return what the group runs."""
        return self.fused() or self.kept()

    def kept(self) -> FusionSite:
        """Return a group that stays as it is."""
        idle, training = (self._kept(_in(self.step, mode)) for mode in self.decisions.modes)
        return FusionSite(group=self.group, step=self.step, verdicts=(idle, training), prepared=None)

    def fused(self) -> FusionSite | None:
        """Return the group with the first kernels that it can run in some mode; `None` where it can run none."""
        for module in self.group.modules:
            if fault := self.decisions.elsewhere(module):
                kept = self.decisions.keep(fault)
                return FusionSite(group=self.group, step=self.step, verdicts=(kept, kept), prepared=None)
        idle, training = self.decisions.modes
        if (known := self.known.get(id(self.step))) is not None:
            found = self._prepared(known.options)
            if found is not None:
                return FusionSite(group=self.group, step=self.step, verdicts=known.verdicts, prepared=found)
        first = _Options(self._options(_in(self.step, idle)))
        second = first if idle is training else _Options(self._options(_in(self.step, training)))
        for left, right in _pairs(first, second):
            if left is None and right is None:
                break
            found = self._prepared((left, right))
            if found is not None:
                verdicts = self._verdict(left, idle), self._verdict(right, training)
                if not self.reasons and not any(one is not None and one[0].conditions for one in (left, right)):
                    self.known[id(self.step)] = _Known((left, right), verdicts)
                return FusionSite(group=self.group, step=self.step, verdicts=verdicts, prepared=found)
        return None

    def _options(self, found: ModePlan) -> Iterator[_Option]:
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

    def _prepared(self, chosen: tuple[_Option, _Option]) -> Prepared | None:
        idle, training = (None if one is None else one for one in chosen)
        codes = None if idle is None else idle[1], None if training is None else training[1]
        kernels = None if idle is None else idle[0].kernel, None if training is None else training[0].kernel
        found = prepare(self.survey, self.group, codes, kernels, self.decisions.modes)
        if isinstance(found, Prepared):
            return found
        if found not in self.faults:  # of one kernel, beside each of the other mode
            self.faults.add(found)
            named = dict.fromkeys(said(one[0]) for one in chosen if one is not None)
            self.reasons[f"{' and '.join(named)}: {found}"] = None
        return None

    def _verdict(self, chosen: _Option, mode: Mode) -> Verdict:
        if chosen is None:
            return self._kept(_in(self.step, mode))
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


class _Options:
    """The options of one mode; each is looked at, and its kernel fetched, when its turn comes."""

    def __init__(self, rest: Iterator[_Option]) -> None:
        self._rest = rest
        self._known: list[_Option] = []

    def has(self, place: int) -> bool:
        """Whether there are so many."""
        while len(self._known) <= place:
            try:
                self._known.append(next(self._rest))
            except StopIteration:
                return False
        return True

    def __getitem__(self, place: int) -> _Option:
        return self._known[place]


def _pairs(first: _Options, second: _Options) -> Iterator[tuple[_Option, _Option]]:
    """Yield an option for each mode, the same one where the mode is fixed; the better ones in both modes first."""
    for last in itertools.count():
        if first is second:
            if not first.has(last):
                return
            yield first[last], first[last]
            continue
        pairs = [(left, last) for left in range(last)] + [(last, right) for right in range(last)] + [(last, last)]
        there = [(left, right) for left, right in pairs if first.has(left) and second.has(right)]
        if not there:
            return
        yield from ((first[left], second[right]) for left, right in sorted(there, key=sum))
