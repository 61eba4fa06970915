"""Kernels from the Hub: which commit a reference means, which builds it holds, and their code.

The protocol is that of the `kernels` library: repositories of type kernel, version branches `vN`, one folder below
`build` for each build, `metadata.json` in each, `kernel-status.toml` where a repository has moved.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import TYPE_CHECKING, Any, TypeVar
from urllib.parse import quote

from kerncfg.compiler.policy import HUB_OFF, alone, moved, singled_out, trusted
from kerncfg.documents.lock import Build, File, Pin, Release, digest_of
from kerncfg.documents.metadata import Metadata
from kerncfg.documents.reference import KernelRef
from kerncfg.documents.variant import Variant
from kerncfg.errors import ConfigError, IntegrityError, SourceError, TrustError
from kerncfg.machine import hub_is_on
from kerncfg.sources import KernelCode, consent
from kerncfg.sources.environment import Settings
from kerncfg.sources.hub.asking import Hub, HubFault, Moved, words_of
from kerncfg.sources.hub.files import bring, folder_of, listing, single
from kerncfg.sources.hub.memory import Found, Memory, builds_of
from kerncfg.sources.hub.released import refs, unreleased
from kerncfg.sources.hub.revisions import is_commit, matching, versions
from kerncfg.sources.importing import PREFIX, import_folder, named
from kerncfg.sources.standin import offering
from kerncfg.together import together

if TYPE_CHECKING:
    from kerncfg.documents.config import Trust
    from kerncfg.documents.plan import Kernel
    from kerncfg.documents.target import Target
    from kerncfg.sources import Question

__all__ = ["HubSource"]

_STATUS = "kernel-status.toml"
_OTHER_TYPES = {"models": "model", "datasets": "dataset", "spaces": "Space"}

Told = TypeVar("Told")


class HubSource:
    """The Hub as the environment has it, asked once for each repository and revision."""

    def __init__(self, settings: Settings | None = None) -> None:
        self._hub = Hub(settings or Settings.read(), refuses=self._refuses)
        self._consents: dict[str, tuple[KernelRef, Trust]] = {}  # for whom each place is asked
        self._memory = Memory(self._hub.settings)
        self._imported: dict[tuple[str, ...], Any] = {}  # builds of this run, several kernels of which are loaded

    def pin(self, ref: KernelRef, question: Question) -> Pin:
        """Find the commits that a reference means, and the builds there: those for the target, or all of them."""
        notes: list[str] = []
        try:
            _check_on()
            found = self._found(ref, question, notes)
            releases: list[Release] = []
            for revision, commit in found.commits:
                releases.append(self._release(ref, found.repository, revision, commit, question, notes))
                answer = Pin(ref=ref, releases=tuple(releases), note="; ".join(notes) or None, away=bool(notes))
                if question.target and answer.choose(question.target):
                    return answer
            lacking = question.target is not None or len(releases) == 1
            return replace(answer, versions=self._versions(found.repository) if lacking else {})
        except HubFault as fault:
            reason = f"{fault.message}{self._advice(ref, fault, question)}"
            return Pin(ref=ref, reason=reason, away=fault.away, barred=fault.barred)

    def load(self, kernel: Kernel) -> KernelCode:
        """Import a build, after those that it imports, from files that were hashed just now."""
        _check_on()
        modules: dict[str, Any] = {}
        for needed in kernel.with_dependencies():
            build = needed.place, str(needed.commit), str(needed.variant), str(needed.digest)
            if build not in self._imported:
                self._imported[build] = self._module(needed, modules)
            modules[needed.reference.location] = module = self._imported[build]
        return KernelCode(kernel=kernel, code=named(module, kernel.reference))

    def has(self, kernel: Kernel) -> bool:
        """Say whether a build's files are on this machine, whatever is in them."""
        return self._lacking(kernel) is None

    def _lacking(self, kernel: Kernel) -> str | None:
        folder = folder_of(self._hub, kernel)
        lacking = (file.path for file in kernel.files if not (folder / file.path).is_file())
        path = next(lacking, None)
        return f"build/{kernel.variant}/{path}" if path else None

    def unreleased(self, kernel: Kernel, trust: Trust) -> str | None:
        """Return why trust in its publisher does not cover the commit of a kernel, or `None` where it does.

        Raises:
            TrustError: The kernel's repository moved to where there is no trust.
            HubFault: The Hub does not say, or nothing can be asked and the kernel's files are not all here.
        """
        _check_on()
        ref, commit = kernel.reference, str(kernel.commit)
        self._consents[kernel.place] = ref, trust
        if singled_out(ref, kernel.place, commit, trust, claimed=True):
            return None

        def ask(place: str) -> str | None:
            there = alone(replace(ref, location=place), trust)
            return unreleased(self._hub, self._memory, place, commit, ref.revision, alone=there)

        try:
            reason = ask(kernel.place)
        except Moved as now:
            if reason := moved(ref, now.repository, trust):
                raise TrustError(reason, hint=consent(replace(kernel, repository=now.repository), trust)) from now
            try:
                return ask(now.repository)
            except Moved as further:
                raise _moves_on(ref, now.repository, further.repository) from further
        if reason and self._hub.settings.offline and (path := self._lacking(kernel)):
            self._hub.check_reachable(kernel.place, words_of(path, commit))
        return reason

    def fetch(self, kernel: Kernel, progress: Callable[[int], None]) -> None:
        """Bring a build's files to this machine."""
        _check_on()
        bring(self._hub, kernel, progress)

    def _module(self, kernel: Kernel, modules: dict[str, Any]) -> Any:
        if not kernel.files:
            raise SourceError(f"{kernel.reference}: the plan has no files of build {kernel.variant}, needed to load it")
        folder = bring(self._hub, kernel)
        paths = {file.path for file in kernel.files}
        package = folder
        if "__init__.py" not in paths:  # as the library of 2025 had it
            name = kernel.place.partition("/")[2].replace("-", "_")
            if "metadata.json" in paths:
                name = Metadata.parse((folder / "metadata.json").read_bytes()).name.replace("-", "_")
            package = folder / name
            if f"{name}/__init__.py" not in paths:
                places = f"__init__.py or {name}/__init__.py"
                raise SourceError(f"{kernel.reference}: build {kernel.variant} has no {places}, needed to import it")
        identity = f"{kernel.place} {kernel.commit} {kernel.variant} {kernel.digest}"
        name = f"{PREFIX}{hashlib.sha256(identity.encode()).hexdigest()[:16]}"
        with offering(modules):
            return import_folder(name, package, kernel.reference)

    def _found(self, ref: KernelRef, question: Question, notes: list[str]) -> Found:
        """Return what a reference means now, or what it meant when the Hub last could be asked, which is noted."""
        known = self._memory.found(ref)
        if ref.revision and is_commit(ref.revision):
            known = known or Found(repository=ref.location, commits=((ref.revision, ref.revision),))
            return self._trusted(ref, known, question)
        try:
            found = self._asked(ref, question)
        except HubFault as fault:
            if known is None or not fault.away:
                raise
            why = "HF_HUB_OFFLINE is set" if self._hub.settings.offline else fault.message
            notes.append(f"as last resolved, for {why}")
            return self._trusted(ref, known, question)
        if found != known:
            self._memory.keep_found(ref, found)
        return found

    def _asked(self, ref: KernelRef, question: Question) -> Found:
        place, commits = self._following(ref, ref.location, question, lambda place: self._commits(ref, place))
        if odd := [sha for _, sha in commits if not is_commit(sha)]:
            raise HubFault(f"the Hub named {odd[0]!r} for {ref}, needed a commit of 40 digits", status=200)
        return Found(repository=place, commits=tuple(commits))

    def _following(
        self, ref: KernelRef, place: str, question: Question, ask: Callable[[str], Told]
    ) -> tuple[str, Told]:
        """Ask about a repository under the name that it has now; one move is followed, to where there is trust."""
        try:
            return place, ask(place)
        except Moved as now:
            self._check_trust(ref, now.repository, question)
            try:
                return now.repository, ask(now.repository)
            except Moved as further:
                raise _moves_on(ref, now.repository, further.repository) from further

    def _commits(self, ref: KernelRef, place: str) -> list[tuple[str, str]]:
        """Return the names and commits that answer a reference: one question tells all branches and tags."""
        branches, tags = refs(self._hub, place)
        if ref.revision is not None:
            if sha := branches.get(ref.revision) or tags.get(ref.revision):
                self._memory.keep_released(place, sha)
                return [(ref.revision, sha)]
            api = f"/api/kernels/{quote(place)}/revision/{quote(ref.revision, safe='')}"
            return [(ref.revision, str(self._hub.json(api, place, f"revision {ref.revision}").get("sha")))]
        if found := matching(ref, branches, tags):
            for _, sha in found:
                self._memory.keep_released(place, sha)
            return found
        have = ", ".join([*versions(branches), *sorted(tags)]) or "neither versions nor tags"
        raise HubFault(f"{place} has {have}, needed {ref.version or 'a version'}", status=200)

    def _trusted(self, ref: KernelRef, found: Found, question: Question) -> Found:
        """Return what an earlier run found out; whoever asked then may have trusted where it led."""
        if found.repository != ref.location:
            self._check_trust(ref, found.repository, question)
        return found

    def _check_trust(self, ref: KernelRef, destination: str, question: Question) -> None:
        if reason := moved(ref, destination, question.trust):
            raise HubFault(reason, status=200)

    def _refuses(self, place: str, destination: str) -> str | None:
        """Return why a file may not come from where a repository moved to."""
        ref, trust = self._consents.get(place, (None, None))
        return moved(ref, destination, trust) if ref and trust else None

    def _release(
        self, ref: KernelRef, place: str, revision: str, commit: str, question: Question, notes: list[str]
    ) -> Release:
        """Return what a commit holds, or what the place holds that it says it moved to."""
        asked = place
        place, listing = self._holding(ref, place, commit, question)
        if place != asked and ref.revision == commit:
            self._memory.keep_found(ref, Found(repository=place, commits=((revision, commit),)))
        if to := self._redirect(place, commit, listing):
            self._check_trust(ref, to.location, question)
            found = self._found(to, question, notes)
            revision, (place, commit) = str(to.revision), (found.repository, found.commits[0][1])
            place, listing = self._holding(ref, place, commit, question)
            if further := self._redirect(place, commit, listing):
                raise _moves_on(ref, place, further.location)
        builds = self._builds(place, commit, listing, question.target)
        elsewhere = place if place != ref.location else None
        return Release(commit=commit, revision=revision, repository=elsewhere, builds=tuple(builds))

    def _redirect(self, place: str, commit: str, listing: list[File]) -> KernelRef | None:
        """Return the repository and branch that a moved repository names; one hop is followed, never two."""
        status = next((file for file in listing if file.path == _STATUS), None)
        if status is None:
            return None
        import tomllib  # here, for hardly a repository has moved

        file = single(self._hub, place, commit, _STATUS, status)
        try:
            said = tomllib.loads(file.read_text("utf-8"))
        except ValueError as error:
            raise HubFault(f"{_STATUS} of {place} cannot be read: {error}", status=200) from error
        if said.get("kind") != "redirect":
            return None
        destination, branch = said.get("destination"), said.get("revision", "main")
        try:
            to = KernelRef.parse(str(destination)).at(revision=str(branch))
        except ConfigError:
            to = None
        if to is None or to.name:
            message = f"{_STATUS} of {place} leads to {destination!r} at {branch!r}"
            raise HubFault(f"{message}, needed organisation/name and a branch", status=200)
        return to

    def _holding(self, ref: KernelRef, place: str, commit: str, question: Question) -> tuple[str, list[File]]:
        """Return where a commit is and its files; it is found out whether its owner released it, if no run did that."""

        def ask(place: str) -> list[File]:
            self._consents[place] = ref, question.trust
            hidden = self._hub.settings.offline and self._memory.listing(place, commit) is None  # a reason of its own
            asked = not hidden and not singled_out(ref, place, commit, question.trust)
            if asked and (reason := unreleased(self._hub, self._memory, place, commit, ref.revision)):
                raise HubFault(reason, status=200)
            return self._listing(place, commit)

        return self._following(ref, place, question, ask)

    def _listing(self, place: str, commit: str) -> list[File]:
        return self._hub.once(f"tree {place} {commit}", lambda: listing(self._hub, self._memory, place, commit))

    def _builds(self, place: str, commit: str, listing: list[File], target: Target | None) -> Iterator[Build]:
        """Describe the builds of a commit; only those whose name suits the target are asked what they need."""
        builds = []
        for name, files in sorted(builds_of(listing).items()):
            if variant := Variant.parse(name):
                builds.append(Build(variant=variant, digest=digest_of(files), files=tuple(sorted(files))))
        asked = [build for build in builds if target is None or build.refusal(target) is None]
        answers = together(lambda build: self._told(place, commit, build), asked, most=4)
        told = dict(zip(asked, answers, strict=True))
        return (told.get(build, build) for build in builds)

    def _told(self, place: str, commit: str, build: Build) -> Build:
        file = next((file for file in build.files if file.path == "metadata.json"), None)
        if file is None:
            return replace(build, fault="found no metadata.json, needed for what the build requires")
        try:
            path = f"build/{build.name}/metadata.json"
            said = self._hub.once(f"file {place} {commit} {path}", lambda: single(self._hub, place, commit, path, file))
            return replace(build, metadata=Metadata.parse(said.read_bytes()))
        except (HubFault, IntegrityError):
            raise
        except SourceError as error:
            return replace(build, fault=error.message)

    def _versions(self, place: str) -> dict[str, tuple[str, ...]]:
        """Return the names of the builds of every version branch, for advice; without an answer there is none."""
        try:
            branches, _ = refs(self._hub, place)
            return {name: tuple(sorted(builds_of(self._listing(place, branches[name])))) for name in versions(branches)}
        except (SourceError, Moved):
            return {}

    def _advice(self, ref: KernelRef, fault: HubFault, question: Question) -> str:
        """Say what there is instead of a repository or revision that the Hub has not."""
        if fault.status not in (401, 404) or self._hub.settings.offline:
            return ""
        try:
            if fault.code == "RevisionNotFound":
                branches, tags = refs(self._hub, ref.location)
                return f"; it has {', '.join([*branches, *tags])}"
        except (HubFault, Moved):
            return ""
        for other in _spellings(ref.location):
            if trusted(replace(ref, location=other), question.trust) is None and self._is_there("kernels", other):
                return f"; there is a kernel repository {other}"
        for kind, word in _OTHER_TYPES.items():
            if self._is_there(kind, ref.location):
                return f"; there is a {word} of that name, and kernels are in repositories of type kernel"
        return ""

    def _is_there(self, kind: str, repository: str) -> bool:
        try:
            self._hub.json(f"/api/{kind}/{quote(repository)}", repository, "whether it is there")
        except HubFault:
            return False
        except Moved:
            return kind == "kernels"
        return True


def _check_on() -> None:
    if not hub_is_on(os.environ):
        raise HubFault(HUB_OFF, status=200)


def _moves_on(ref: KernelRef, place: str, further: str) -> HubFault:
    return HubFault(f"{ref.location} moved to {place}, and that to {further}, needed one move at most", status=200)


def _spellings(repository: str) -> Iterator[str]:
    """Yield the names that are written alike."""
    publisher, _, name = repository.partition("/")
    for other in (name.replace("_", "-"), name.replace("-", "_")):
        if other != name:
            yield f"{publisher}/{other}"
