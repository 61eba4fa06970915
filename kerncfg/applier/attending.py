"""Which row takes the attention of which part of a model, and what each part will use."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING, Any

from kerncfg.applier.adapters.attention_forms import form
from kerncfg.applier.attention import Part, Wanted, chosen, fault
from kerncfg.applier.choices import condition_fault, joined, said
from kerncfg.applier.decide import Decisions, Verdict, is_off
from kerncfg.applier.match import placed, row
from kerncfg.errors import ApplyError, ConflictError
from kerncfg.sources import KernelCode

if TYPE_CHECKING:
    from kerncfg.documents.plan import Choice, Step
    from kerncfg.documents.target import Mode

__all__ = ["AttentionClaim", "AttentionSite", "attention_claims", "decide_attention"]

AttentionClaim = tuple[Part, "Step"]


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class AttentionSite:
    """A part of a model that a row takes, with what it uses when not training and when training."""

    part: Part
    step: Step
    verdicts: tuple[Verdict, Verdict]
    wanted: Wanted | None  # nothing is wanted of a part that keeps what it has in both modes

    @property
    def swaps(self) -> bool:
        """Whether some mode uses another attention."""
        return self.wanted is not None


def attention_claims(found: Sequence[Part], steps: Iterable[Step]) -> list[AttentionClaim]:
    """Return which row takes each part, in the model's order; a row with a path goes before one for the whole model.

    Raises:
        ApplyError: A row that chooses something names no part.
        ConflictError: Two rows take one part, both by their paths, or both without one.
    """
    taken: dict[int, Step] = {}
    rows = [step for step in steps if step.node == "attention"]
    for step in sorted(rows, key=lambda step: step.path is None):
        if step.kind != "attend" and not found:
            continue  # what is off in a model without attention is as the row says
        try:
            parts = chosen(found, step.path)
        except ApplyError as error:
            raise ApplyError(f"{placed(step)}: {error.message}", hint=error.hint) from error
        for part in parts:
            other = taken.setdefault(id(part), step)
            if other is not step and (other.path is None) == (step.path is None):
                raise ConflictError(
                    f"the attention of {part.path or 'the model itself'} is taken by {placed(other)} "
                    f"and {placed(step)}",
                    hint="narrow one of the two paths, or take one row out",
                )
    return [(part, taken[id(part)]) for part in found if id(part) in taken]


def decide_attention(claims: Iterable[AttentionClaim], decisions: Decisions) -> list[AttentionSite]:
    """Return what each claimed part will use.

    Raises:
        ApplyError: A part can use none of what its row chooses for it: what is asked for is never left out in silence.
    """
    return [_site(part, step, decisions) for part, step in claims]


def _site(part: Part, step: Step, decisions: Decisions) -> AttentionSite:
    modes = decisions.modes
    away = cache(lambda: _away(part, decisions))  # of hundreds of modules, for both modes
    idle = _choose(part, step, modes[0], decisions, away)
    training = idle if modes[0] is modes[1] else _choose(part, step, modes[1], decisions, away)
    wanted = None
    if idle[1] is not None or training[1] is not None:
        wanted = Wanted(
            part=part,
            name=step.name,
            codes=(idle[1], training[1]),
            mask=step.mask or "auto",
            reason=(idle[0].reason, training[0].reason),
            modes=(modes[0].value, modes[1].value),
        )
        if reason := fault(wanted):
            raise _refused(part, step, f"the two modes together: {reason}")
    return AttentionSite(part=part, step=step, verdicts=(idle[0], training[0]), wanted=wanted)


def _choose(
    part: Part, step: Step, mode: Mode, decisions: Decisions, away: Callable[[], str | None]
) -> tuple[Verdict, Any]:
    """Return the verdict and the code of the first choice that a part can use; `None` for what it has."""
    found = step.modes[mode]
    if is_off(found):
        first = found.choices[0]
        return Verdict(status="off", reason=f"{first.reason} ({first.origin})"), None
    if found.choices and not found.choices[0].original and (elsewhere := away()):
        return decisions.keep(elsewhere), None
    reasons: list[str] = []
    refused = False
    for choice in found.choices:
        if choice.original:
            if refused and choice.origin is None:
                break  # the policy's fallback is no answer to an explicit choice that a part cannot take
            return decisions.keep(joined(found, reasons) or choice.reason), None
        code = _code(choice, decisions)
        filtered = None if isinstance(code, _Reason) else _filtered(choice, part, code, step, mode)
        reason = code if isinstance(code, _Reason) else filtered or fault(_wanted(part, code, step))
        refused = refused or filtered is None
        if reason is None:
            where = f" ({choice.origin})" if choice.origin else ""
            passed = f"; passed over: {'; '.join(reasons)}" if reasons else ""
            return Verdict(status="swapped", reason=f"{choice.reason}{where}{passed}", kernel=choice.kernel), code
        reasons.append(f"{said(choice)}: {reason}")
    if not reasons:
        return decisions.keep(joined(found, []) or f"the plan has no attention for {mode}"), None
    raise _refused(part, step, joined(found, reasons))


class _Reason(str):
    """Why a kernel cannot be had, where a text would be the name of one of the framework's own."""


def _code(choice: Choice, decisions: Decisions) -> Any:
    ref = choice.kernel.reference
    if ref.scheme == "attention":
        return ref.name
    code = decisions.code_of(choice.kernel)
    return _Reason(code) if isinstance(code, str) else KernelCode(kernel=choice.kernel, code=code)


def _away(part: Part, decisions: Decisions) -> str | None:
    """Say which module of a part is on another device than the plan's: there is one choice for all of them."""
    for place in part.places:
        if reason := decisions.elsewhere(place.module):
            return reason if place.module is part.module else f"{place.path}: {reason}"
    return None


def _flag(code: Any, mode: Mode) -> str | None:
    """Say which of a kernel's own flags keeps it out of a mode; unlike a layer's, one that says nothing is let in."""
    own = code.code if isinstance(code, KernelCode) else None
    if mode.training and getattr(own, "has_backward", True) is False:
        return f"has_backward is false, and {mode} needs gradients"
    if mode.compiled and getattr(own, "can_torch_compile", True) is False:
        return f"can_torch_compile is not true, and {mode} runs under torch.compile"
    return None


def _filtered(choice: Choice, part: Part, code: Any, step: Step, mode: Mode) -> str | None:
    """Say what of a row's own conditions, or of a kernel's flags, leaves a choice out, which is no refusal."""
    reason = condition_fault(choice, part.module, part.path, step) if choice.conditions else None
    own = code.code if isinstance(code, KernelCode) else code
    dropout = form(own, step.mask or "auto").undropped(part) if mode.training else None
    return reason or _flag(code, mode) or dropout


def _wanted(part: Part, code: Any, step: Step) -> Wanted:
    return Wanted.of(part, code, step.mask or "auto", step.name)


def _refused(part: Part, step: Step, reasons: str) -> ApplyError:
    return ApplyError(
        f"{row(step)}: the attention of {part.path or 'the model itself'} ({type(part.module).__qualname__}) can be "
        f"none of what is chosen: {reasons}",
        hint=f"leave the part out with a path, as in {row(step)}.path=PATH, or list original as the last choice",
    )
