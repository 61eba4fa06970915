"""What an apply has to say beside its sites: rows without effect, and names that were probably meant."""

from __future__ import annotations

import warnings
from collections import Counter
from collections.abc import Sequence
from difflib import get_close_matches
from typing import TYPE_CHECKING

from kerncfg.applier.decide import Decided, is_off
from kerncfg.applier.match import Claim, row
from kerncfg.errors import ApplyError, KerncfgWarning

if TYPE_CHECKING:
    from kerncfg.applier.adapters import Sites
    from kerncfg.documents.plan import Plan, Step

__all__ = ["check"]


def check(
    plan: Plan, sites: Sites, claims: Sequence[Claim | None], decided: Sequence[Decided | None]
) -> tuple[str, ...]:
    """Return the notes on rows without sites; warn if a plan that names kernels swaps nothing.

    Raises:
        ApplyError: The plan is strict, and a row of the user's that names a kernel swaps nothing.
    """
    outcomes = {(claim[0].name, outcome) for claim, outcome in zip(claims, decided, strict=True) if claim and outcome}
    taking = {name for name, _ in outcomes}
    swapping = {name for name, outcome in outcomes if outcome.swaps}
    missing = {step.name: _missing(step, sites) for step in plan.steps if step.own and step.name not in taking}
    inherited = [step.name for step in plan.steps if not step.own and step.name not in taking]
    wanted = [step for step in plan.steps if step.own and _names_kernels(step)]
    idle = [step for step in wanted if step.name not in swapping]
    if idle and (plan.strict or not swapping):
        reasons = {step.name: missing.get(step.name) or _reason(step, outcomes) for step in idle}
        _refuse(plan, reasons)
    notes = list(missing.values())
    if inherited:
        notes.append(f"inherited rows without a layer in this model: {', '.join(inherited)}")
    return tuple(notes)


def _refuse(plan: Plan, reasons: dict[str, str]) -> None:
    text = "; ".join(f"kernels.{name}: {reason}" for name, reason in reasons.items())
    if plan.strict:
        raise ApplyError(
            f"policy.strict: rows that swap nothing: {text}", hint="mend or remove them, or set policy.strict=false"
        )
    warnings.warn(f"the plan names kernels, and no module runs one: {text}", KerncfgWarning, stacklevel=4)


def _names_kernels(step: Step) -> bool:
    """Whether a row asks for a kernel in some mode; rows that are off, and plans switched off, do not."""
    return step.kind == "bind" or any(found.rejected for found in step.modes.values()) or _no_device(step)


def _no_device(step: Step) -> bool:
    return not all(is_off(found) for found in step.modes.values()) and step.reason.startswith("no row for ")


def _reason(step: Step, outcomes: set[tuple[str, Decided]]) -> str:
    """Return why the sites of a row were kept."""
    return "; ".join(
        sorted({verdict.reason for name, found in outcomes if name == step.name for verdict in found.verdicts})
    )


def _missing(step: Step, sites: Sites) -> str:
    """Say that a row has no sites, and what of the model comes near to what it says."""
    if step.match is not None:
        wanted = ", ".join(f"{key} {value}" for key, value in step.match.to_dict().items())
        text = f"{row(step)}: no module matches {wanted}"
        classes = Counter(site.layer.cls.__name__ for site in sites)
        return text + _near((step.match.class_ or "").strip("*"), classes)
    names = Counter(site.layer.name for site in sites if site.layer.name)
    return f"{row(step)}: no layer {step.name}" + _near(step.name, names)


def _near(word: str, found: Counter[str]) -> str:
    near = get_close_matches(word, found, n=3, cutoff=0.5) or sorted(found)[:8]
    if not word or not near:
        return ""
    return "; the model has " + ", ".join(f"{name} ({found[name]})" for name in near)
