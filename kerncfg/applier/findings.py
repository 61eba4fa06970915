"""What an apply has to say beside its sites: rows without effect, and names that were probably meant."""

from __future__ import annotations

import sys
import warnings
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from typing import TYPE_CHECKING, NamedTuple

from kerncfg.applier.decide import Decided, Verdict, is_off
from kerncfg.applier.functions import function_names
from kerncfg.applier.match import Claim, offered, origin, row
from kerncfg.errors import ApplyError, KerncfgWarning

if TYPE_CHECKING:
    from kerncfg.applier.adapters import Sites
    from kerncfg.documents.plan import Plan, Step
    from kerncfg.documents.target import Mode

__all__ = ["Findings", "Outcome", "check"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Findings:
    """What a report has beside its rows; the fields are those of `report.Report`."""

    notes: tuple[str, ...]
    idle: Mapping[str, str]
    absent: tuple[str, ...]


class Outcome(NamedTuple):
    """What became of one site that a row takes: whether some mode swaps it, and why or why not in each."""

    step: Step
    swaps: bool
    verdicts: tuple[Verdict, Verdict]


def check(
    plan: Plan,
    sites: Sites,
    claims: Sequence[Claim | None],
    decided: Sequence[Decided | None],
    others: Iterable[Outcome],
    hints: Mapping[str, str],
    left: Mapping[str, str],
    modes: tuple[Mode, Mode],
) -> Findings:
    """Return what is to be said of rows without effect; warn if a plan that names kernels swaps nothing.

    `others` are the sites that are no layers. `hints` is the cure for a row whose kernel does not fit, by row, `left`
    to which fusions a row left sites of its own.

    Raises:
        ApplyError: The plan is strict, and a row of the user's that names a kernel swaps nothing.
    """
    shared = {(claim[0].key, one): claim[0] for claim, one in zip(claims, decided, strict=True) if claim and one}
    outcomes = [Outcome(step, one.swaps, one.verdicts) for (_, one), step in shared.items()]
    outcomes += others
    taking = {one.step.key for one in outcomes}
    swapping = {one.step.key for one in outcomes if one.swaps}
    own = [step for step in plan.steps if step.own]
    without = [step for step in own if step.node == "kernels" and step.key not in taking and step.key not in left]
    missing = {step.key: _missing(step, sites) for step in without}
    wanted = [step for step in own if _names_kernels(step) and step.key not in swapping]
    absent_or_left = {**left, **missing}
    idle = {row(step): _reason(step, outcomes) or absent_or_left.get(step.key) or step.reason for step in wanted}
    if idle and (plan.strict or not swapping):
        _refuse(plan, idle)
    notes = [*(f"{name}: {reason}" for name, reason in absent_or_left.items())]
    notes += [f"{name}: {hint}" for name, hint in hints.items()]
    notes += _halves(outcomes, modes)
    absent = tuple(step.name for step in plan.steps if not step.own and step.key not in taking and step.key not in left)
    if absent:
        notes.append(f"{len(absent)} inherited {'row has' if len(absent) == 1 else 'rows have'} no layer in this model")
    return Findings(notes=tuple(notes), idle=idle, absent=absent)


def _halves(outcomes: Iterable[Outcome], modes: tuple[Mode, Mode]) -> Iterator[str]:
    """Say why a row that swaps in one mode runs the original in the other, where a kernel was tried there."""
    told: set[tuple[str, Mode]] = set()
    for step, swaps, verdicts in outcomes:
        for mode, verdict in zip(modes, verdicts, strict=True) if swaps else ():
            tried = mode in step.modes and [choice for choice in step.modes[mode].choices[:1] if not choice.original]
            if verdict.status == "kept" and tried and (step.key, mode) not in told:
                told.add((step.key, mode))
                yield f"{row(step)}: {mode} runs the original: {verdict.reason}"


def _refuse(plan: Plan, idle: Mapping[str, str]) -> None:
    text = "; ".join(f"{name}: {reason}" for name, reason in idle.items())
    if plan.strict:
        raise ApplyError(
            f"policy.strict: rows that swap nothing: {text}", hint="mend or remove them, or set policy.strict=false"
        )
    warnings.warn(f"the plan names kernels, and no module runs one: {text}", KerncfgWarning, stacklevel=_outside())


def _outside() -> int:
    """Return the `stacklevel`, for the function that asks, of the first caller that is none of ours."""
    level, frame = 1, sys._getframe(1)
    while frame.f_back is not None and frame.f_globals.get("__name__", "").partition(".")[0] == "kerncfg":
        level, frame = level + 1, frame.f_back
    return level


def _names_kernels(step: Step) -> bool:
    """Whether a row asks for a kernel in some mode; rows that are off, and plans switched off, do not."""
    return step.kind != "keep" or any(found.rejected for found in step.modes.values()) or _no_device(step)


def _no_device(step: Step) -> bool:
    return not all(is_off(found) for found in step.modes.values()) and step.reason.startswith("no row for ")


def _reason(step: Step, outcomes: Iterable[Outcome]) -> str:
    """Return why the sites of a row were kept."""
    return "; ".join(
        sorted({verdict.reason for one in outcomes if one.step.key == step.key for verdict in one.verdicts})
    )


def _missing(step: Step, sites: Sites) -> str:
    """Say that a row has no sites, and what of the model comes near to what it says."""
    said = f", said at {found}" if (found := origin(step)) else ""
    if step.match is None:
        names = Counter(site.layer.name for site in sites if site.layer.name)
        names.update(function_names(sites, registered=True))
        near = _near(step.name, names) if names else "; the model registers no names: add match: {class: …}"
        return f"no layer {step.name}{said}{near}"
    if step.match.function is not None:
        near = _near(step.match.function, Counter(function_names(sites, registered=False)))
        others = {key: value for key, value in step.match.to_dict().items() if key != "function"}
        where = " of " + ", ".join(f"{key} {value}" for key, value in others.items()) if others else ""
        return f"no forward{where} calls {step.match.function}{said}{near}"
    wanted = ", ".join(f"{key} {value}" for key, value in step.match.to_dict().items())
    if step.match.class_ is None and step.match.type is not None:
        near = _near(step.match.type, Counter(offered(site.layer.cls) for site in sites))
    else:
        near = _near((step.match.class_ or "").strip("*"), Counter(site.layer.cls.__name__ for site in sites))
    return f"no module matches {wanted}{said}{near}"


def _near(word: str, found: Counter[str]) -> str:
    """Name what is like a word, by the last part of each, or else the first of all."""
    ends = {name.rpartition(".")[2]: name for name in found}
    close = [ends[end] for end in get_close_matches(word.rpartition(".")[2], ends, n=3, cutoff=0.5)]
    near = close or sorted(found)[:8]
    if not word or not near:
        return ""
    return "; the model has " + ", ".join(f"{name} ({found[name]})" for name in near)
