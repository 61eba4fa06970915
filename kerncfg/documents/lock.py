"""What the world answered: for each reference the commits and the builds found there, with their files.

A lock serves every target: it holds all builds, whatever the machine that wrote it. As a file it holds the references
to the Hub; folders and modules are read again whenever somebody plans.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

from kerncfg.documents.metadata import Metadata
from kerncfg.documents.plain import half
from kerncfg.documents.reference import KernelRef
from kerncfg.documents.variant import Variant
from kerncfg.errors import ConfigError, LockError

if TYPE_CHECKING:
    from kerncfg.documents.target import Target

__all__ = ["ANEW", "SCHEMA", "Build", "File", "Lock", "Pin", "Release", "digest_of"]

SCHEMA = 1

ANEW = "move it away and make it again with `kerncfg lock`"  # which keeps what a lock that is there says
_EDITED = f"the file was edited; {ANEW}"


@dataclass(frozen=True, slots=True, kw_only=True, order=True)
class File:
    """One file of a build: its path there, its size in bytes, and `sha256:…` or, of small files, `git:…`.

    The Hub names the SHA-256 of files in large-file storage, and the git blob id (SHA-1 over a header and the
    content) of all others.
    """

    path: str
    size: int
    digest: str


def digest_of(files: Iterable[File]) -> str:
    """Return the one SHA-256 that stands for all files of a build."""
    lines = (f"{file.digest}  {file.path}\n" for file in sorted(files))
    return hashlib.sha256("".join(lines).encode("utf-8", "surrogateescape")).hexdigest()


@dataclass(frozen=True, slots=True, kw_only=True)
class Build:
    """One build of a kernel: `variant` is `None` where the code runs anywhere its own checks allow.

    `digest` stands for the build's files. `metadata` is what the build says of itself, where it was asked; `fault`
    is what speaks against it on any machine.
    """

    variant: Variant | None
    digest: str
    files: tuple[File, ...] = ()
    metadata: Metadata | None = None
    fault: str | None = None

    @property
    def name(self) -> str | None:
        """The folder's name, such as `torch-cuda`."""
        return self.variant.name if self.variant else None

    @property
    def dependencies(self) -> tuple[KernelRef, ...]:
        """The kernels that this one imports."""
        return tuple(ref for ref in self._named() if isinstance(ref, KernelRef))

    def _named(self) -> Iterator[KernelRef | str]:
        """Yield the kernels that the metadata names, or what is wrong with a name, which may be any text."""
        for repository, version, revision in self.metadata.kernel_depends if self.metadata else ():
            try:
                ref = KernelRef.parse(repository).at(version=version, revision=revision)
            except ConfigError as error:
                yield f"metadata.json: kernel-depends: {error.message}, needed organisation/name with a version"
            else:
                yield ref

    def refusal(self, target: Target) -> str | None:
        """Return why this build cannot run on the target, naming both sides, or `None` if it can."""
        by_name = self.variant.refusal(target) if self.variant else None
        wrong = next((name for name in self._named() if isinstance(name, str)), None)
        return by_name or self.fault or (self.metadata.refusal(target) if self.metadata else None) or wrong

    def to_dict(self) -> dict[str, Any]:
        """Return the build as plain data; its name is the key that it stands under."""
        return {
            "digest": self.digest,
            "files": {file.path: {"size": file.size, "digest": file.digest} for file in sorted(self.files)},
            "metadata": self.metadata.to_dict() if self.metadata else None,
            "fault": self.fault,
        }

    @classmethod
    def from_dict(cls, name: str, data: Mapping[str, Any]) -> Self:
        """Build from the plain data of `to_dict`.

        Raises:
            LockError: No build has that name, or the digest is not that of the files.
        """
        variant = Variant.parse(name)
        files = tuple(File(path=path, **said) for path, said in sorted(data["files"].items()))
        if variant is None:
            raise LockError(f"build {name!r} is none, needed a name such as torch-cuda", hint=_EDITED)
        if digest_of(files) != data["digest"]:
            message = f"the files of build {name} have digest {digest_of(files)[:12]}, the lock says"
            raise LockError(f"{message} {data['digest'][:12]}", hint=_EDITED)
        return cls(
            variant=variant,
            digest=data["digest"],
            files=files,
            metadata=Metadata.from_dict(data["metadata"]) if data["metadata"] else None,
            fault=data["fault"],
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Release:
    """What one commit of a repository holds; a folder or a module has no commit.

    `revision` is the branch or tag that led there. `repository` is where the code is, if a redirect led elsewhere.
    """

    commit: str | None = None
    revision: str | None = None
    repository: str | None = None
    builds: tuple[Build, ...] = ()

    def ranked(self, target: Target) -> list[Build]:
        """Return the builds that can run on the target, the best first, in whatever order they stand."""
        return sorted((build for build in self.builds if build.refusal(target) is None), key=_rank, reverse=True)

    def to_dict(self) -> dict[str, Any]:
        """Return the release as plain data."""
        return {
            "commit": self.commit,
            "revision": self.revision,
            "repository": self.repository,
            "builds": {build.name or "": build.to_dict() for build in self.builds},
        }

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> Self:
        """Build a release from the plain data of `to_dict`."""
        builds = tuple(Build.from_dict(name, said) for name, said in sorted(data["builds"].items()))
        return cls(commit=data["commit"], revision=data["revision"], repository=data["repository"], builds=builds)


@dataclass(frozen=True, slots=True, kw_only=True)
class Pin:
    """The answer for one reference: its releases, the preferred one first, or the `reason` why there are none.

    A reference without a version has one release for each version branch; any other has one. `versions` names the
    builds of other version branches, for the advice when none of these fits. `note` is what else there is to say.
    `away`: the Hub gave no answer, so that it may be another one another time; `barred`: whoever asks from here is not
    told, which says nothing about what is there. No file keeps either.
    """

    ref: KernelRef
    releases: tuple[Release, ...] = ()
    reason: str | None = None
    note: str | None = None
    versions: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    away: bool = field(default=False, compare=False)
    barred: bool = field(default=False, compare=False)

    @classmethod
    def of(cls, ref: KernelRef, *builds: Build, commit: str | None = None) -> Self:
        """Return the answer of a place that holds these builds, at one commit or none."""
        return cls(ref=ref, releases=(Release(commit=commit, builds=builds),))

    @property
    def builds(self) -> tuple[Build, ...]:
        """The builds of all releases."""
        return tuple(build for release in self.releases for build in release.builds)

    def choose(self, target: Target) -> tuple[Release, Build] | None:
        """Return the best build of the first release that has one for the target, in whatever order they stand."""
        for release in self.releases:
            if fitting := release.ranked(target):
                return release, fitting[0]
        return None

    def to_dict(self) -> dict[str, Any]:
        """Return the pin as plain data; its reference is the key that it stands under."""
        return {
            "reason": self.reason,
            "note": self.note,
            "releases": [release.to_dict() for release in self.releases],
            "versions": {version: list(names) for version, names in sorted(self.versions.items())},
        }

    @classmethod
    def from_dict(cls, ref: str, data: Mapping[str, Any]) -> Self:
        """Build a pin from the plain data of `to_dict`."""
        return cls(
            ref=KernelRef.parse(ref),
            releases=tuple(Release.from_dict(release) for release in data["releases"]),
            reason=data["reason"],
            note=data["note"],
            versions={version: tuple(names) for version, names in data["versions"].items()},
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Lock:
    """The answers for every reference of a config; a reference that nobody asked about is not in it.

    A pin of the Hub holds for every kernel of its repository, so it stands under the reference without a name.
    `commits` are those that a lock of the `kernels` library names, and says no more about.
    """

    pins: Mapping[KernelRef, Pin] = field(default_factory=dict)
    commits: Mapping[KernelRef, str] = field(default_factory=dict)

    def pin(self, ref: KernelRef) -> Pin | None:
        """Return the answer for a reference: for this very kernel, else for all that its place holds."""
        return self.pins.get(ref) or self.pins.get(ref.everything)

    def hub(self) -> Iterator[Pin]:
        """Yield the answers of the Hub, in the order of their references."""
        yield from sorted((pin for pin in self.pins.values() if pin.ref.scheme == "hub"), key=lambda pin: str(pin.ref))

    def to_dict(self) -> dict[str, Any]:
        """Return the answers of the Hub as plain data, in the form of `schemas/lock.schema.json`."""
        return {"schema": SCHEMA, "pins": {str(pin.ref): pin.to_dict() for pin in self.hub()}}

    def to_json(self) -> str:
        """Return the lock as JSON: the same answers give the same bytes."""
        return json.dumps(self.to_dict(), indent=2, sort_keys=True, ensure_ascii=False) + "\n"

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> Self:
        """Build a lock from the plain data of `to_dict`.

        Raises:
            LockError: The data has another format number than this version of kerncfg reads.
        """
        if data.get("schema") != SCHEMA:
            raise LockError(
                f"the lock has format {data.get('schema')!r}, this kerncfg reads {SCHEMA}",
                hint=f"{ANEW}, or use the version of kerncfg that wrote it",
            )
        pins = [Pin.from_dict(ref, said) for ref, said in data["pins"].items()]
        return cls(pins={pin.ref: pin for pin in pins})

    def save(self, path: str | Path) -> None:
        """Write the lock as JSON, at once or not at all.

        Raises:
            LockError: A name or a reason in it is no text that a file can hold.
        """
        part = Path(path).with_name(f".{Path(path).name}.part")
        try:
            part.write_text(self.to_json(), encoding="utf-8", newline="\n")
            part.replace(path)
        except UnicodeEncodeError as error:
            found = half(self.to_dict())
            raise LockError(f"the lock holds half of a character: {found}, expected text in UTF-8") from error
        finally:
            part.unlink(missing_ok=True)

    def unchecked(self, now: Lock) -> Iterator[Pin]:
        """Yield the answers that do not say whether something moved: there was none, or it is not for this asker."""
        for after in now.hub():
            before = self.pins.get(after.ref)
            if after.away or (after.barred and before != after and (before or after.ref in self.commits)):
                yield after

    def moved(self, now: Lock) -> Iterator[str]:
        """Yield a line for each reference whose answer is another now: `org/repo@v3: v3: 1a2b… → 9f8e…`.

        What nobody told here has not moved, as far as anybody knows; `unchecked` yields that.
        """
        unchecked = {pin.ref for pin in self.unchecked(now)}
        for ref in sorted({*self.pins, *self.commits, *now.pins}, key=str):
            before, after, commit = self.pins.get(ref), now.pins.get(ref), self.commits.get(ref)
            if ref in unchecked:
                continue
            if before is None and commit is None:
                yield f"{ref}: not locked"
            elif after is None:
                yield f"{ref}: locked, and no row names it"
            elif before is None:
                first = after.releases[0] if after.releases else None
                if first is None or first.commit != commit:
                    yield f"{ref}: {str(commit)[:12]}… → {_told(first, after)}"
            elif before != after:
                yield from (f"{ref}: {line}" for line in _differences(before, after))


def _differences(before: Pin, after: Pin) -> Iterator[str]:
    found = [{release.revision: release for release in pin.releases} for pin in (before, after)]
    if before.ref.version and all(found) and found[0].keys() != found[1].keys():  # the highest of a range is another
        told = (f"{release.revision} {_told(release, pin)}" for pin in (before, after) for release in pin.releases)
        yield " → ".join(told)
        return
    for revision in dict.fromkeys([*found[0], *found[1]]):
        was, now = found[0].get(revision), found[1].get(revision)
        if was != now:
            yield f"{revision or 'it'}: {_told(was, before, 'none')} → {_told(now, after, 'gone')}"
    if not any(found) and before.reason != after.reason:
        yield f"{before.reason} → {after.reason}"


def _told(release: Release | None, pin: Pin, nothing: str = "gone") -> str:
    if release is None or release.commit is None:
        return pin.reason or nothing
    where = f"{release.repository}@" if release.repository else ""
    return f"{where}{release.commit[:12]}…"


def _rank(build: Build) -> tuple[bool, object]:
    return (True, build.variant.rank()) if build.variant else (False, ())
