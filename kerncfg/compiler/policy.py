"""The reasons a candidate may be refused, each a function with its sentence; they are asked in order."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from packaging.specifiers import SpecifierSet

from kerncfg.documents.config import Candidate, KernelRef, Trust
from kerncfg.documents.lock import Pin
from kerncfg.documents.reference import ATTENTION
from kerncfg.documents.variant import Variant

if TYPE_CHECKING:
    from kerncfg.documents.step import Choice, Rejection
    from kerncfg.documents.target import Target

__all__ = [
    "CHECKS",
    "HUB_OFF",
    "Check",
    "Request",
    "alone",
    "consent",
    "consented",
    "moved",
    "no_fit",
    "refused",
    "singled_out",
    "trusted",
    "unconsented",
    "unfit",
]

HUB_OFF = "Hub kernels are switched off by USE_HUB_KERNELS, needed 1, ON, YES or TRUE"


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """What `resolve` is asked: a target, whose code may run, and whether Hub kernels are on at all.

    `locked` says that the answers came from a lock, which pins what the rows leave open.
    """

    target: Target
    trust: Trust
    require_pin: bool = False
    hub: bool = True
    locked: bool = False


_DIGITS = re.compile(r"[0-9a-f]{7,40}")  # what the Hub takes for a commit
_BY_ITS_ROW = "trust_remote_code of its row"

Check = Callable[[Candidate, Pin, Request], str | None]


def trusted(ref: KernelRef, trust: Trust) -> str | None:
    """Return why nobody consented to run this code, naming the key that would, or `None`.

    The same question is asked when a kernel is chosen and again when it is loaded.
    """
    if ref.framework or ref.scheme == "builtin" or consent(ref, trust):
        return None
    if ref.scheme in ("path", "python"):
        cure = f"name it in a local file or an override, or pass trust=[{ref.place!r}]"
        return f"{ref.place} was not named by you: {cure}"
    if ref.proposed:
        named = f"{ref.location}@{ref.revision}"
        cure = f"--trust {named}, or trust_remote_code: true in its row"
        return f"{named} is what anybody may propose there, needed consent to it alone: {cure}"
    publisher = ref.location.partition("/")[0]
    return (
        f"publisher {publisher} is not trusted: set trust.publishers.{publisher}=true, "
        f"or trust.repositories.{ref.location}=true for this repository alone"
    )


def consent(ref: KernelRef, trust: Trust) -> str | None:
    """Return what the user said that lets this code run, or `None`; what comes with kerncfg or torch needs nothing."""
    if ref.scheme in ("path", "python"):
        return f"{ref.place} was named by you" if ref.place in trust.local else None
    publisher = ref.location.partition("/")[0]
    if ref.framework or ref.scheme == "builtin":
        return None
    if not ref.proposed:  # what anybody may propose there is covered by its own name alone
        if publisher in trust.publishers:
            return f"trust.publishers.{publisher}"
        if ref.location in trust.repositories:
            return f"trust.repositories.{ref.location}"
    if ref.revision is not None and (named := f"{ref.location}@{ref.revision}") in trust.repositories:
        return f"trust.repositories.{named}"
    if str(ref) in trust.references:
        return _BY_ITS_ROW
    return "trust.allow_all_kernels" if trust.allow_all_kernels else None


def singled_out(ref: KernelRef, place: str, commit: str, trust: Trust, *, claimed: bool = False) -> bool:
    """Say whether the user consented to a commit itself, or to a proposal by its name, and not to its publisher alone.

    `place` is where the reference led to. Its branch or tag stands for what its owner released, so naming one is none.
    With `claimed` only a file says that the reference led to the commit, so consent to a name is none to the commit.
    """
    if trust.allow_all_kernels or any(f"{where}@{commit}" in trust.repositories for where in (ref.location, place)):
        return True
    led = ref.revision == commit or (not claimed and (ref.proposed or commit.startswith(str(ref.revision))))
    return led and alone(ref, trust)


def alone(ref: KernelRef, trust: Trust) -> bool:
    """Say whether the user consented by name to what is no branch and no tag: a proposal, or the digits of a commit.

    Digits may be the name of a branch all the same, so whoever was not told what they mean has to ask for it.
    """
    if not ref.proposed and not _DIGITS.fullmatch(ref.revision or ""):
        return False
    named = f"{ref.location}@{ref.revision}" in trust.repositories
    return named or not trust.references.isdisjoint({str(ref), str(ref.everything)})


def consented(candidate: Candidate, request: Request) -> str | None:
    """Return the same of a candidate, whose row may say it for itself."""
    return consent(candidate.ref, request.trust) or (_BY_ITS_ROW if candidate.trust_remote_code else None)


def moved(ref: KernelRef, place: str, trust: Trust) -> str | None:
    """Return why code may not run that a redirect led to; a lock may be older than the consent, or edited."""
    reason = trusted(replace(ref, location=place), trust)
    return f"{ref.location} moved to {place}, and {reason}" if reason else None


def unconsented(rejection: Rejection, trust: Trust) -> str | None:
    """Return the place of the code that a row of a fetched file was refused for want of consent, or `None`."""
    if not (rejection.origin or "").startswith("hf://"):
        return None
    ref = KernelRef.parse(rejection.reference, attention=True)
    return ref.place if trusted(ref, trust) else None


def _untrusted(candidate: Candidate, pin: Pin, request: Request) -> str | None:
    return None if candidate.trust_remote_code else trusted(candidate.ref, request.trust)


def _hub_off(candidate: Candidate, pin: Pin, request: Request) -> str | None:
    if candidate.ref.scheme == "hub" and not request.hub:
        return HUB_OFF
    return None


def _unpinned(candidate: Candidate, pin: Pin, request: Request) -> str | None:
    if request.require_pin and not candidate.ref.pinned and not request.locked:
        at = candidate.ref.revision or candidate.ref.version or "nothing"
        return f"policy.require_pin needs a commit of 40 digits, found {at}"
    return None


def _uncompiled(candidate: Candidate, pin: Pin, request: Request) -> str | None:
    return _lacks(candidate.ref, request.target)


def _lacks(ref: KernelRef, target: Target) -> str | None:
    """Return which compiled package the framework's attention would need, or `None`."""
    package = ATTENTION[ref.name or ""] if ref.scheme == "attention" else None
    if package is None:
        return None
    if target.device != "cuda":
        return f"the compiled package {package} is for cuda, the target is {target.device}"
    return None if package in target.packages else f"needs the compiled package {package}, the target has none"


def _capability(candidate: Candidate, pin: Pin, request: Request) -> str | None:
    return _outside("capability", candidate.conditions.capability, request.target.capability)


def _torch(candidate: Candidate, pin: Pin, request: Request) -> str | None:
    return _outside("torch", candidate.conditions.torch, request.target.torch)


def _unreachable(candidate: Candidate, pin: Pin, request: Request) -> str | None:
    return pin.reason


def _no_build(candidate: Candidate, pin: Pin, request: Request) -> str | None:
    if candidate.ref.framework or pin.choose(request.target) is not None:
        return None
    return no_fit(pin, request.target)


def no_fit(pin: Pin, target: Target) -> str:
    """Return why none of a pin's builds can run on a target, and the newest version that has one which can."""
    verdicts = "; ".join(f"{build.name}: {build.refusal(target)}" for build in pin.builds if build.variant)
    return f"no build fits: {verdicts or f'found none, needed one for {target.device}'}{_elsewhere(pin, target)}"


def _elsewhere(pin: Pin, target: Target) -> str:
    """Name the newest version that has a build by its name, which nobody takes without being told to."""
    own = {release.revision for release in pin.releases}
    for version, names in reversed(sorted(pin.versions.items(), key=lambda item: (len(item[0]), item[0]))):
        if version in own:
            continue
        builds = [variant for name in names if (variant := Variant.parse(name))]
        if fitting := [variant.name for variant in builds if variant.refusal(target) is None]:
            return f"; {version} has {fitting[0]}"
    return f"; no version has one, looked at {', '.join(sorted(pin.versions))}" if pin.versions else ""


def _moved(candidate: Candidate, pin: Pin, request: Request) -> str | None:
    found = pin.choose(request.target)
    place = found[0].repository if found else None
    return moved(candidate.ref, place, request.trust) if place else None


_BEFORE: Sequence[Check] = (_untrusted, _hub_off, _unpinned, _uncompiled, _capability, _torch)
CHECKS: Sequence[Check] = (*_BEFORE, _unreachable, _no_build, _moved)


def refused(candidate: Candidate, request: Request) -> bool:
    """Say whether a candidate is refused whatever its source would answer, so that nobody needs to ask it."""
    unasked = Pin(ref=candidate.ref)
    return any(check(candidate, unasked, request) for check in _BEFORE)


def unfit(choice: Choice, target: Target) -> str | None:
    """Return why a kernel that was chosen for another target cannot run on this one, or `None` if it can."""
    variant = Variant.parse(choice.kernel.variant) if choice.kernel.variant else None
    needs = (_outside(key, wanted, getattr(target, key)) for key, wanted in choice.needs.items())
    found = next(filter(None, needs), None) or _lacks(choice.kernel.reference, target)
    return found or (variant.refusal(target) if variant else None)


def _outside(what: str, wanted: str | None, found: str | None) -> str | None:
    if wanted is None:
        return None
    if found is None:
        return f"needs {what} {wanted}, the target has none"
    if SpecifierSet(wanted).contains(found, prereleases=True):
        return None
    return f"needs {what} {wanted}, the target has {found}"
