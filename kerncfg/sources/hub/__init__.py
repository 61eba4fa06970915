"""Kernels from the Hub: which commit a reference means, which builds it holds, and their code.

The protocol is that of the `kernels` library: repositories of type kernel, version branches `vN`, one folder below
`build` for each build, `metadata.json` in each, `kernel-status.toml` where a repository has moved.
"""

from __future__ import annotations

import hashlib
import tomllib
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

from kerncfg.compiler.policy import trusted
from kerncfg.documents.lock import Build, File, Pin, Release, digest_of
from kerncfg.documents.metadata import Metadata
from kerncfg.documents.variant import Variant
from kerncfg.errors import ConfigError, IntegrityError, SourceError
from kerncfg.sources import KernelCode
from kerncfg.sources.environment import Settings
from kerncfg.sources.hub.asking import Hub, HubFault, Moved
from kerncfg.sources.hub.files import bring, single
from kerncfg.sources.hub.memory import Found, Memory, builds_of, checked, listed
from kerncfg.sources.hub.revisions import is_commit, matching, versions
from kerncfg.sources.importing import PREFIX, import_folder, named
from kerncfg.sources.standin import offering

if TYPE_CHECKING:
    from kerncfg.documents.plan import Kernel
    from kerncfg.documents.reference import KernelRef
    from kerncfg.documents.target import Target
    from kerncfg.sources import Question

__all__ = ["HubSource"]

_STATUS = "kernel-status.toml"
_STRANGE = "metadata.json: found a kernel-depends that is no repository, needed organisation/name"
_OTHER_TYPES = {"models": "model", "datasets": "dataset", "spaces": "Space"}


class HubSource:
    """The Hub as the environment has it, asked once for each repository and revision."""

    def __init__(self, settings: Settings | None = None) -> None:
        self._hub = Hub(settings or Settings.read())
        self._memory = Memory(self._hub.settings)

    def pin(self, ref: KernelRef, question: Question) -> Pin:
        """Find the commits that a reference means, and the builds there: those for the target, or all of them."""
        try:
            found, note = self._found(ref, question)
            releases: list[Release] = []
            for revision, commit in found.commits:
                releases.append(self._release(ref, found.repository, revision, commit, question))
                answer = Pin(ref=ref, releases=tuple(releases), note=note)
                if question.target and answer.choose(question.target):
                    return answer
            lacking = question.target is not None or len(releases) == 1
            return replace(answer, versions=self._versions(found.repository) if lacking else {})
        except HubFault as fault:
            return Pin(ref=ref, reason=f"{fault.message}{self._advice(ref, fault)}")

    def load(self, kernel: Kernel) -> KernelCode:
        """Import a build, after those that it imports, from files that were hashed just now."""
        modules: dict[str, Any] = {}
        for needed in kernel.with_dependencies():
            module = self._module(needed, modules)
            modules[needed.reference.location] = module
        return KernelCode(kernel=kernel, code=named(module, kernel.reference))

    def has(self, kernel: Kernel) -> bool:
        """Say whether a build's files are on this machine, whatever is in them."""
        assert kernel.commit is not None
        folder = self._hub.settings.snapshot(kernel.place, kernel.commit) / "build" / str(kernel.variant)
        return all((folder / file.path).is_file() for file in kernel.files)

    def fetch(self, kernel: Kernel, progress: Callable[[int], None]) -> None:
        """Bring a build's files to this machine."""
        bring(self._hub, kernel, progress)

    def _module(self, kernel: Kernel, modules: dict[str, Any]) -> Any:
        if not kernel.files:
            raise SourceError(f"{kernel.reference}: the plan has no files of build {kernel.variant}, needed to load it")
        folder = bring(self._hub, kernel)
        packages = sorted({file.path for file in kernel.files if file.path.endswith("__init__.py")}, key=len)
        if not packages:
            raise SourceError(f"{kernel.reference}: build {kernel.variant} has no __init__.py, needed to import it")
        identity = f"{kernel.place} {kernel.commit} {kernel.variant} {kernel.digest}"
        name = f"{PREFIX}{hashlib.sha256(identity.encode()).hexdigest()[:16]}"
        with offering(modules):
            return import_folder(name, (folder / packages[0]).parent, kernel.reference)

    def _found(self, ref: KernelRef, question: Question) -> tuple[Found, str | None]:
        """Return what a reference means now, or what it meant when the Hub last could be asked, which is noted."""
        if ref.revision and is_commit(ref.revision):
            return Found(repository=ref.location, commits=((ref.revision, ref.revision),)), None
        known = self._memory.found(ref)
        try:
            found = self._asked(ref, question)
        except HubFault as fault:
            if known is None or not fault.away:
                raise
            if self._hub.settings.offline:
                return known, "as last resolved, for HF_HUB_OFFLINE is set"
            return known, f"as last resolved, for {fault.message}"
        if found != known:
            self._memory.keep_found(ref, found)
        return found, None

    def _asked(self, ref: KernelRef, question: Question, repository: str | None = None) -> Found:
        place = repository or ref.location
        try:
            commits = self._commits(ref, place)
        except Moved as moved:
            if repository:
                raise HubFault(f"{ref.location} moved to {repository}, and that to {moved.repository}") from moved
            self._check_trust(ref, moved.repository, question)
            return self._asked(ref, question, moved.repository)
        if odd := [sha for _, sha in commits if not is_commit(sha)]:
            raise HubFault(f"the Hub named {odd[0]!r} for {ref}, needed a commit of 40 digits", status=200)
        return Found(repository=place, commits=tuple(commits))

    def _commits(self, ref: KernelRef, place: str) -> list[tuple[str, str]]:
        """Return the names and commits that answer a reference: one question tells all branches and tags."""
        branches, tags = self._refs(place)
        if ref.revision is not None:
            if sha := branches.get(ref.revision) or tags.get(ref.revision):
                return [(ref.revision, sha)]
            api = f"/api/kernels/{quote(place)}/revision/{quote(ref.revision, safe='')}"
            return [(ref.revision, str(self._hub.json(api, place)["sha"]))]
        if found := matching(ref, branches, tags):
            return found
        have = ", ".join([*versions(branches), *sorted(tags)]) or "neither versions nor tags"
        raise HubFault(f"{place} has {have}, needed {ref.version or 'a version'}", status=200)

    def _refs(self, place: str) -> tuple[dict[str, str], dict[str, str]]:
        refs = self._hub.json(f"/api/kernels/{quote(place)}/refs", place)
        branches, tags = (
            {each["name"]: each["targetCommit"] for each in refs.get(kind, ())} for kind in ("branches", "tags")
        )
        return branches, tags

    def _check_trust(self, ref: KernelRef, destination: str, question: Question) -> None:
        if reason := trusted(replace(ref, location=destination), question.trust):
            raise HubFault(f"{ref.location} moved to {destination}, and {reason}", status=200)

    def _release(self, ref: KernelRef, place: str, revision: str, commit: str, question: Question) -> Release:
        """Return what a commit holds, or what the place holds that it says it moved to."""
        listing = self._listing(place, commit)
        status = next((file for file in listing if file.path == _STATUS), None)
        if status is not None and (to := self._redirect(place, commit, status)):
            place, revision = to
            self._check_trust(ref, place, question)
            moved = replace(ref, location=place, revision=revision, version=None)
            found, _ = self._found(moved, question)
            place, commit = found.repository, found.commits[0][1]
            listing = self._listing(place, commit)
        builds = self._builds(place, commit, listing, question.target)
        elsewhere = place if place != ref.location else None
        return Release(commit=commit, revision=revision, repository=elsewhere, builds=tuple(builds))

    def _redirect(self, place: str, commit: str, status: File) -> tuple[str, str] | None:
        """Return the repository and revision that a moved repository names; one hop is followed, never two."""
        file = single(self._hub, place, commit, _STATUS, status)
        try:
            said = tomllib.loads(file.read_text("utf-8"))
        except ValueError as error:
            raise HubFault(f"{_STATUS} of {place} cannot be read: {error}", status=200) from error
        if said.get("kind") != "redirect":
            return None
        destination = said.get("destination")
        if not isinstance(destination, str) or destination.count("/") != 1:
            raise HubFault(f"{_STATUS} of {place} leads to {destination!r}, needed organisation/name", status=200)
        return destination, str(said.get("revision", "main"))

    def _listing(self, place: str, commit: str) -> list[File]:
        return self._hub.once(f"tree {place} {commit}", lambda: self._listed(place, commit))

    def _listed(self, place: str, commit: str) -> list[File]:
        known = self._memory.listing(place, commit)
        if known is not None:
            return known
        address = f"/api/kernels/{quote(place)}/tree/{commit}?recursive=true"
        entries = [entry for entry in self._hub.pages(address, place) if entry["type"] == "file"]
        for entry in entries:
            checked(entry["path"], place)
        self._memory.keep_listing(place, commit, entries)
        return [listed(entry) for entry in entries]

    def _builds(self, place: str, commit: str, listing: list[File], target: Target | None) -> Iterator[Build]:
        """Describe the builds of a commit; only those whose name suits the target are asked what they need."""
        builds = []
        for name, files in sorted(builds_of(listing).items()):
            if variant := Variant.parse(name):
                builds.append(Build(variant=variant, digest=digest_of(files), files=tuple(sorted(files))))
        asked = [build for build in builds if target is None or build.refusal(target) is None]
        with ThreadPoolExecutor(4, thread_name_prefix="kerncfg-metadata") as pool:
            told = dict(zip(asked, pool.map(lambda build: self._told(place, commit, build), asked), strict=True))
        return (told.get(build, build) for build in builds)

    def _told(self, place: str, commit: str, build: Build) -> Build:
        file = next((file for file in build.files if file.path == "metadata.json"), None)
        if file is None:
            return replace(build, fault="found no metadata.json, needed for what the build requires")
        try:
            path = f"build/{build.name}/metadata.json"
            said = self._hub.once(f"file {place} {commit} {path}", lambda: single(self._hub, place, commit, path, file))
            found = replace(build, metadata=Metadata.parse(said.read_bytes()))
            return found if all(ref.scheme == "hub" for ref in found.dependencies) else replace(build, fault=_STRANGE)
        except (HubFault, IntegrityError):
            raise
        except (SourceError, ConfigError) as error:
            return replace(build, fault=error.message)

    def _versions(self, place: str) -> dict[str, tuple[str, ...]]:
        """Return the names of the builds of every version branch, for advice; without an answer there is none."""
        try:
            branches, _ = self._refs(place)
            return {name: tuple(sorted(builds_of(self._listing(place, branches[name])))) for name in versions(branches)}
        except (HubFault, Moved):
            return {}

    def _advice(self, ref: KernelRef, fault: HubFault) -> str:
        """Say what there is instead of a repository or revision that the Hub has not."""
        if fault.status not in (401, 404):
            return ""
        try:
            if fault.code == "RevisionNotFound":
                branches, tags = self._refs(ref.location)
                return f" as {ref.revision}; it has {', '.join([*branches, *tags])}"
        except (HubFault, Moved):
            return ""
        for kind, word in _OTHER_TYPES.items():
            try:
                self._hub.json(f"/api/{kind}/{quote(ref.location)}", ref.location)
            except (HubFault, Moved):
                continue
            return f"; there is a {word} of that name, and kernels are in repositories of type kernel"
        return ""
