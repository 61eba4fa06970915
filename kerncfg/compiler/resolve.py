"""Config, lock and request to a plan: for each name and mode the kernels that may run, and why no others.

Pure: the same inputs give the same bytes. Names do not depend on each other, each is looked at alone.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from kerncfg.compiler.policy import CHECKS, Check, Request, consented, moved, no_fit, trusted
from kerncfg.documents.config import ORIGINAL, AttentionRow, Candidate, Config, Fusion, KernelRef, Row
from kerncfg.documents.lock import Lock, Pin, Release
from kerncfg.documents.plan import Attend, Bind, Choice, Fuse, Keep, Kernel, ModePlan, Plan, Rejection, Step
from kerncfg.documents.target import MODE_PREFERENCE, Mode, Target
from kerncfg.errors import ResolutionError

__all__ = ["OFF_SWITCH", "resolve"]

Offered = list[tuple[Mode, Candidate]]

_MEND = "mend what is refused, or keep the original there: {}"
_FEW = 3  # rows whose line the hint writes out
_UNPINNED = re.compile(r"([^@:\s]+)(?:@[^\s:]+)?(:\w+)?: policy\.require_pin needs .*")
_PINNED = r"write \1@COMMIT\2 with the 40 digits of the commit, or policy.require_pin=false"
_KINDS: Mapping[str, type[Step]] = {"kernels": Bind, "fusions": Fuse, "attention": Attend}
_UNKNOWN = "the lock does not hold it: `kerncfg lock` asks for what it lacks"
OFF_SWITCH = "kernels are switched off: enabled is false, needed true"


def resolve(config: Config, lock: Lock, request: Request, *, checks: Sequence[Check] = CHECKS) -> Plan:
    """Return the plan of a config for one target.

    A reference that the lock does not hold is refused; `original` needs no lock.

    Raises:
        ResolutionError: Rows with `fallback: error` were left without a kernel; it carries every one of them.
    """
    steps, failures = [], {}
    for row in config.every():
        modes = {mode: _mode(row, mode, config.enabled, lock, request, checks) for mode in Mode}
        step = _step(row, modes, config.enabled, request)
        steps.append(step)
        if config.enabled and (reasons := _failure(row, modes, request)):
            failures[row.title] = reasons
    if failures:
        raise _unresolved(failures, config, request)
    return Plan(
        target=request.target,
        steps=tuple(steps),
        strict=config.policy.strict,
        deterministic=config.policy.deterministic,
        seed=config.policy.seed,
        notes=config.notes,
        trust=request.trust,
    )


def _mode(row: Row, mode: Mode, enabled: bool, lock: Lock, request: Request, checks: Sequence[Check]) -> ModePlan:
    offered = _preference(row.at(request.target.device), mode)
    if not enabled:
        return ModePlan(
            choices=(_original(OFF_SWITCH),),
            unreached=tuple(_rejection(candidate, OFF_SWITCH) for _, candidate in offered),
        )
    choices: list[Choice] = []
    rejected: list[Rejection] = []
    asked = 0
    for asked, (said, candidate) in enumerate(offered, 1):  # noqa: B007 - how far it came is used below
        pin = _pin(candidate, lock)
        reason = next((reason for check in checks if (reason := check(candidate, pin, request))), None)
        if reason:
            rejected.append(_rejection(candidate, reason))
        elif candidate.ref == ORIGINAL:
            choices.append(_written_original(candidate))
        elif isinstance(kernel := _kernel(candidate.ref, pin, lock, request), str):
            rejected.append(_rejection(candidate, kernel))
        else:
            choices.append(_choice(candidate, kernel, pin, said, mode, request))
        if choices and choices[-1].final:
            break  # nothing after an unconditional original can be reached
    if not (choices and choices[-1].final) and _may_fall_back(row, offered):
        choices.append(_original(_why_original(row, offered, mode, request)))
    unreached = tuple(_unreached(row, mode, offered, asked, request))
    return ModePlan(choices=tuple(choices), rejected=tuple(rejected), unreached=unreached)


def _unreached(row: Row, mode: Mode, offered: Offered, asked: int, request: Request) -> Iterator[Rejection]:
    """Yield what nothing was asked about: what stands behind an unconditional original, and what is replaced."""
    for _, candidate in offered[asked:]:
        yield _rejection(candidate, "the original stands before it" + _said_at(offered[asked - 1][1]))
    own = next((candidate for _, candidate in offered if not candidate.inherited), None)
    kept = {candidate for _, candidate in offered}
    for _, candidate in _preference(row.below_at(request.target.device), mode):
        if candidate not in kept:
            replaced = f"replaced by your {own.ref}{_said_at(own)}" if own else "the row takes nothing inherited"
            yield _rejection(candidate, replaced)


def _rejection(candidate: Candidate, reason: str) -> Rejection:
    return Rejection(reference=str(candidate.ref), reason=reason, origin=_text(candidate))


def _pin(candidate: Candidate, lock: Lock) -> Pin:
    if candidate.ref.framework:
        return Pin(ref=candidate.ref)
    return lock.pin(candidate.ref) or Pin(ref=candidate.ref, reason=_UNKNOWN)


def _preference(modes: Mapping[Mode, tuple[Candidate, ...]], mode: Mode) -> Offered:
    """Return the candidates for a mode, best first, each with the mode it was said for.

    After the mode's own come the kernels of the modes that may serve it, so that one more candidate never
    leaves less to run; but what the user said for a mode is not followed by what was inherited for another.
    """
    serving = [other for other in MODE_PREFERENCE[mode] if other in modes]
    offered = [(serving[0], candidate) for candidate in modes[serving[0]]] if serving else []
    own = any(not candidate.inherited for _, candidate in offered)
    for other in serving[1:]:
        skipped = {candidate for _, candidate in offered}
        for candidate in modes[other]:
            if candidate.ref != ORIGINAL and candidate not in skipped and not (own and candidate.inherited):
                offered.append((other, candidate))
    return offered


def _kernel(ref: KernelRef, pin: Pin, lock: Lock, request: Request, above: tuple[KernelRef, ...] = ()) -> Kernel | str:
    """Return the kernel of the build that suits the target with those it imports, or why one of them is missing."""
    found = pin.choose(request.target)
    release, build = found if found else (Release(), None)
    dependencies = []
    for needed in build.dependencies if build else ():
        if needed in (*above, ref.everything):
            return f"it imports itself, by way of {needed}, needed kernels without such a circle"
        answer = lock.pin(needed) or Pin(ref=needed, reason=_UNKNOWN)
        reason = trusted(needed, request.trust) or answer.reason
        kernel = _kernel(needed, answer, lock, request, (*above, ref.everything)) if reason is None else reason
        if isinstance(kernel, Kernel) and kernel.repository:
            kernel = moved(needed, kernel.repository, request.trust) or kernel
        if isinstance(kernel, Kernel) and kernel.digest is None:
            kernel = no_fit(answer, request.target)
        if isinstance(kernel, str):
            return f"it imports {needed}: {kernel}"
        dependencies.append(kernel)
    return Kernel(
        reference=ref,
        repository=release.repository,
        commit=release.commit,
        variant=build.name if build else None,
        digest=build.digest if build else None,
        dependencies=tuple(dependencies),
        files=build.files if build else (),
    )


def _choice(candidate: Candidate, kernel: Kernel, pin: Pin, said: Mode, mode: Mode, request: Request) -> Choice:
    how = "inherited" if candidate.inherited else "chosen"
    served = "" if said == mode else f", the row for {said} serves {mode}"
    return Choice(
        kernel=kernel,
        builds=_verdicts(pin, kernel, request.target),
        conditions=candidate.conditions.residual(),
        needs=candidate.conditions.needs(),
        asked=_asked(candidate),
        trusted=consented(candidate, request),
        origin=_text(candidate),
        reason=f"{how} for {request.target.device}{served}{_how_pinned(candidate.ref, pin, kernel)}"
        + (f"; {candidate.note}" if candidate.note else ""),
    )


def _how_pinned(ref: KernelRef, pin: Pin, kernel: Kernel) -> str:
    """Say by which branch or tag a commit was found, where the row leaves it open, and what else was found out."""
    release = next((release for release in pin.releases if release.commit == kernel.commit), Release())
    told = []
    if ref.scheme == "hub" and ref.version and release.revision:
        told.append(f"{release.revision} is the highest of {ref.version}")
    elif ref.scheme == "hub" and not ref.revision and release.revision:
        told.append(f"unpinned, {release.revision} is the highest version with a build that fits")
    if release.repository:
        told.append(f"moved to {release.repository}")
    if pin.note:
        told.append(pin.note)
    return "".join(f", {each}" for each in told)


def _verdicts(pin: Pin, kernel: Kernel, target: Target) -> dict[str, str]:
    """Return what there is to say of each build of the chosen release; each that fits names the next better one."""
    release = next((release for release in pin.releases if release.commit == kernel.commit), Release())
    named = {build.name: build.refusal(target) for build in release.builds if build.name}
    fitting = [build.name for build in release.ranked(target)]
    before = dict(zip(fitting[1:], fitting, strict=False))
    return {
        name: refusal or (f"fits, {before[name]} goes before" if name in before else "chosen")
        for name, refusal in sorted(named.items())
    }


def _written_original(candidate: Candidate) -> Choice:
    by = "as inherited" if candidate.inherited else "as the row says"
    return Choice(
        kernel=Kernel(reference=ORIGINAL),
        conditions=candidate.conditions.residual(),
        asked=_asked(candidate),
        origin=_text(candidate),
        reason=f"off, {by}",
    )


def _original(reason: str) -> Choice:
    return Choice(kernel=Kernel(reference=ORIGINAL), origin=None, reason=reason)


def _may_fall_back(row: Row, offered: Offered) -> bool:
    """A row that names nothing for a mode leaves it alone; one that names something must say that it may."""
    return row.fallback == "original" or not row.own or not offered


def _why_original(row: Row, offered: Offered, mode: Mode, request: Request) -> str:
    device = request.target.device
    if offered:
        return "fallback: the original where no kernel is left"
    return f"the row names no kernel for {mode} on {device}" if row.at(device) else f"no row for {device}"


def _failure(row: Row, modes: Mapping[Mode, ModePlan], request: Request) -> list[str]:
    """Return why a row that may not fall back has nothing to run; empty if it has, or if it may."""
    if row.fallback == "original" or not row.own:
        return []
    if not row.at(request.target.device):
        devices = ", ".join(row.cells) or "nothing"
        return [f"no row for {request.target.device}, found {devices}"]
    left = [mode for mode, found in modes.items() if not found.choices]
    rejected = [rejection for mode in left for rejection in modes[mode].rejected]
    return list(dict.fromkeys(f"{rejection.reference}: {rejection.reason}" for rejection in rejected))


def _step(row: Row, modes: Mapping[Mode, ModePlan], enabled: bool, request: Request) -> Step:
    swaps = any(not choice.original for found in modes.values() for choice in found.choices)
    first = modes[Mode.INFERENCE]
    if swaps:
        reason = "some mode runs a kernel"
    elif not enabled:
        reason = OFF_SWITCH
    elif any(found.rejected for found in modes.values()):
        reason = "every candidate was refused"
    else:
        reason = first.choices[0].reason
    return (_KINDS[row.node] if swaps else Keep)(
        **_taken(row),
        name=row.name,
        modes=modes,
        match=row.match,
        exclude=row.exclude,
        fallback=row.fallback,
        own=row.own,
        reason=reason,
    )


def _taken(row: Row) -> dict[str, Any]:
    """Return what only a fusion or a row of attention has, for its step."""
    if isinstance(row, Fusion):
        return {"node": row.node, "members": row.members}
    if isinstance(row, AttentionRow):
        return {"node": row.node, "path": row.path, "mask": row.mask}
    return {}


def _asked(candidate: Candidate) -> dict[str, str]:
    return {key: str(origin) for key, origin in candidate.conditions.asked.items()}


def _unresolved(failures: dict[str, list[str]], config: Config, request: Request) -> ResolutionError:
    told = (_UNPINNED.fullmatch(reason) for reasons in failures.values() for reason in reasons)
    rows = {row.title: row for row in config.every()}
    lines = [f"{rows[name].key}.fallback=original" for name in failures]
    mend = _MEND.format(" ".join([*lines[:_FEW], *(["…"] if len(lines) > _FEW else [])]))
    cures = {unpinned.expand(_PINNED) if unpinned else mend for unpinned in told}
    lines = []
    for name, reasons in failures.items():
        origin = rows[name].origin
        where = f"{origin}: " if origin else ""
        lead = f"{where}{rows[name].key}: no kernel for {request.target.device}"
        lines += [f"{lead}: {reason}" for reason in reasons]
    hint = cures.pop() if len(cures) == 1 else mend
    return ResolutionError("\n".join(lines), reasons=failures, hint=hint)


def _said_at(candidate: Candidate) -> str:
    return f", said at {candidate.origin}" if candidate.origin else ""


def _text(candidate: Candidate) -> str | None:
    return str(candidate.origin) if candidate.origin else None
