"""The two questions put to a place kernels come from: what is there (`pin`), and give me the code (`load`).

A source is a class with these two methods, named as `module:Class` under its scheme in `SOURCES`, or by a
package in the entry-point group `kerncfg.sources`. It is imported when its scheme is first met.
"""

from __future__ import annotations

import importlib
import importlib.metadata
import threading
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Protocol

from kerncfg.compiler.policy import moved, trusted
from kerncfg.documents.config import Trust
from kerncfg.documents.lock import Lock, Pin
from kerncfg.errors import SourceError, TrustError
from kerncfg.together import together

if TYPE_CHECKING:
    from kerncfg.documents.config import KernelRef
    from kerncfg.documents.plan import Kernel
    from kerncfg.documents.target import Target

__all__ = ["SOURCES", "KernelCode", "Question", "Source", "consent", "fetch", "load", "pin", "reload", "untrusted"]

_AT_ONCE = 8  # places that are asked at the same time


@dataclass(frozen=True, slots=True, kw_only=True)
class Question:
    """What a source is asked for: the builds for one target, or all of them; and whose code may be looked at."""

    target: Target | None
    trust: Trust


@dataclass(frozen=True, slots=True, kw_only=True)
class KernelCode:
    """A kernel's code in this process: the class or function that the reference names."""

    kernel: Kernel
    code: Any


class Source(Protocol):
    """A place kernels come from; one object is asked for all references of one run, from several threads."""

    def pin(self, ref: KernelRef, question: Question) -> Pin:
        """Say which builds are there, or why none, without running any of them."""

    def load(self, kernel: Kernel) -> KernelCode:
        """Return the code of a kernel, imported once; its digest is checked before that."""


SOURCES: Mapping[str, str] = {
    "builtin": "kerncfg.sources.local:ModuleSource",
    "python": "kerncfg.sources.local:ModuleSource",
    "path": "kerncfg.sources.local:PathSource",
    "hub": "kerncfg.sources.hub:HubSource",
}

_loaded: dict[Kernel, KernelCode] = {}
_lock = threading.RLock()


def pin(
    references: Iterable[KernelRef],
    *,
    target: Target | None = None,
    trust: Trust | None = None,
    known: Lock | None = None,
    locked: bool = False,
    sources: Mapping[str, str] = SOURCES,
) -> Lock:
    """Ask each reference's source once what is there; what cannot be pinned becomes a pin with its reason.

    What is `known` is not asked again, and if it is `locked`, the Hub is asked about nothing else. The kernels that a
    kernel imports are asked about too, if they are trusted.
    """
    question = Question(target=target, trust=trust or Trust())
    known = known or Lock()
    made: dict[str, Source] = {}

    def one(ref: KernelRef) -> Pin | None:
        if found := known.pin(ref):
            return found
        if commit := known.commits.get(ref):
            found = _pin(replace(ref, revision=commit, version=None), question, sources, made)
            named = [
                each if each.revision != commit else replace(each, revision=ref.revision) for each in found.releases
            ]
            return replace(found, ref=ref, releases=tuple(named))
        return None if locked and ref.scheme == "hub" else _pin(ref, question, sources, made)

    pins: dict[KernelRef, Pin | None] = {}
    asked = [ref.everything for ref in references if not ref.framework]
    while new := [ref for ref in dict.fromkeys(asked) if ref not in pins]:
        pins |= zip(new, together(one, new, most=_AT_ONCE), strict=True)
        builds = [build for ref in new if (found := pins[ref]) for build in found.builds]
        needed = [dependency for build in builds for dependency in build.dependencies]
        asked = [ref for ref in needed if trusted(ref, question.trust) is None]
    return Lock(pins={ref: found for ref, found in pins.items() if found is not None})


def load(
    kernel: Kernel, trust: Trust, *, sources: Mapping[str, str] = SOURCES, made: dict[str, Source] | None = None
) -> KernelCode:
    """Return the code of a planned kernel; the same kernel is imported once, whoever asks.

    Raises:
        TrustError: Nobody consented to run it, or what it imports.
        IntegrityError: The code there is not the code that was planned.
        SourceError: It is not there, or cannot be imported.
    """
    for needed in kernel.with_dependencies():
        if reason := untrusted(needed, trust):
            raise TrustError(f"{needed.reference}: {reason}", hint=consent(needed, trust))
    made = {} if made is None else made
    for needed in () if kernel in _loaded else kernel.with_dependencies():
        try:
            reason = _unreleased(needed, trust, sources, made)
        except TrustError as error:
            raise TrustError(f"{needed.reference}: {error.message}", hint=error.hint) from error
        if reason:
            raise TrustError(f"{needed.reference}: {reason}", hint=f"say --trust {needed.place}@{needed.commit}")
    return reload(kernel, sources=sources, made=made)


def untrusted(kernel: Kernel, trust: Trust) -> str | None:
    """Return why a kernel may not run: nobody consented to its publisher, or to the one that a redirect led to."""
    reason = trusted(kernel.reference, trust)
    return reason or (moved(kernel.reference, kernel.repository, trust) if kernel.repository else None)


def consent(kernel: Kernel, trust: Trust) -> str:
    """Return how whoever takes a plan from a file says that a kernel may run, which the file cannot say."""
    ref = kernel.reference
    name = f"{ref.location}@{ref.revision}" if ref.proposed else ref.place
    if kernel.repository and trusted(ref, trust) is None:
        name = kernel.repository
    return f"for a plan from a file say --trust {name}, in Python load_plan(…, trust=[{name!r}])"


def _unreleased(kernel: Kernel, trust: Trust, sources: Mapping[str, str], made: dict[str, Source]) -> str | None:
    """Return why nobody vouches for a commit, as far as its source can tell, whether its files are here or not."""
    if kernel.reference.scheme != "hub" or not kernel.files:
        return None
    ask = getattr(_source("hub", sources, made), "unreleased", None)
    return None if ask is None else ask(kernel, trust)


def fetch(
    kernels: Iterable[Kernel],
    trust: Trust | None = None,
    *,
    progress: Callable[[Kernel, int], None] = lambda kernel, size: None,
    absent: bool = False,
    sources: Mapping[str, str] = SOURCES,
    made: dict[str, Source] | None = None,
) -> dict[Kernel, str]:
    """Bring the files of kernels, and of those that they import, to this machine; return why those that failed did.

    Trust in a publisher covers what is on a branch or tag of its repositories; `trust` may name other commits.

    `progress` is told after each file how many bytes of which kernel have come. With `absent` builds whose files are
    all there are left to be hashed when they are loaded. `made` keeps the sources of one run, with what they learnt.
    """
    made = {} if made is None else made
    wanted = list(kernels)
    builds = {_build(needed): needed for kernel in wanted for needed in kernel.with_dependencies() if needed.files}
    failed: dict[tuple[str | None, ...], str] = {}

    def bring(kernel: Kernel) -> None:
        try:
            source: Any = _source(kernel.reference.scheme, sources, made)
            if reason := _unreleased(kernel, trust or Trust(), sources, made):
                failed[_build(kernel)] = reason
                return
            source.fetch(kernel, lambda size: progress(kernel, size))
        except (SourceError, TrustError) as error:
            failed[_build(kernel)] = error.message

    lacking = [kernel for kernel in builds.values() if not (absent and _has(kernel, sources, made))]
    together(bring, lacking, most=_AT_ONCE)
    needs = ((kernel, map(_build, kernel.with_dependencies())) for kernel in wanted)
    reasons = {kernel: next((failed[build] for build in each if build in failed), None) for kernel, each in needs}
    return {kernel: reason for kernel, reason in reasons.items() if reason is not None}


def _has(kernel: Kernel, sources: Mapping[str, str], made: dict[str, Source]) -> bool:
    try:
        source: Any = _source(kernel.reference.scheme, sources, made)
        return bool(source.has(kernel))
    except SourceError:  # fetching it says why
        return False


def reload(
    kernel: Kernel, *, sources: Mapping[str, str] = SOURCES, made: dict[str, Source] | None = None
) -> KernelCode:
    """Return the code of a kernel that a copied or unpickled module runs; binding it took the consent.

    Raises:
        IntegrityError: The code there is not the code that was bound.
        SourceError: It is not there, or cannot be imported.
    """
    with _lock:
        if kernel not in _loaded:
            try:
                _loaded[kernel] = _source(kernel.reference.scheme, sources, {} if made is None else made).load(kernel)
            except _NoSource as error:
                raise SourceError(f"{kernel.reference}: {error.message}") from error
        return _loaded[kernel]


def _build(kernel: Kernel) -> tuple[str | None, ...]:
    return kernel.place, kernel.commit, kernel.variant


class _NoSource(SourceError):
    """There is no source for a scheme, or it cannot be used."""


def _pin(ref: KernelRef, question: Question, sources: Mapping[str, str], made: dict[str, Source]) -> Pin:
    try:
        return _source(ref.scheme, sources, made).pin(ref, question)
    except SourceError as error:
        return Pin(ref=ref, reason=error.message)
    except OSError as error:
        return Pin(ref=ref, reason=f"{error.filename or ref} cannot be read: {error.strerror or error}")


def _source(scheme: str, sources: Mapping[str, str], made: dict[str, Source]) -> Source:
    with _lock:
        if scheme not in made:
            made[scheme] = _made(scheme, sources)
        return made[scheme]


def _made(scheme: str, sources: Mapping[str, str]) -> Source:
    place = sources.get(scheme)
    if place is None:
        points = importlib.metadata.entry_points(group="kerncfg.sources", name=scheme)
        place = next((point.value for point in points), None)
    if place is None:
        raise _NoSource(f"no source for {scheme!r} kernels is installed, needed an entry point in kerncfg.sources")
    module, _, name = place.partition(":")
    try:
        source: Source = getattr(importlib.import_module(module), name)()
    except Exception as error:
        what = f"{type(error).__name__}: {error}"
        raise _NoSource(f"the source for {scheme!r} kernels, {place}, cannot be used: {what}") from error
    return source
