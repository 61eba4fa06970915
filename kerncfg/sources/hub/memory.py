"""What earlier runs found out, in the cache that huggingface_hub keeps: which commit, and which files a commit has.

Listings stand where huggingface_hub writes and reads its own, `trees/COMMIT.json`, and branches where it does,
`refs/NAME`, so that each serves the other. What only kerncfg asks, such as a range, stands beside them in `kerncfg/`.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import tempfile
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

from kerncfg.documents.lock import File
from kerncfg.documents.plain import loads
from kerncfg.documents.reference import KernelRef
from kerncfg.errors import ConfigError, SourceError
from kerncfg.sources.hub.revisions import is_commit

if TYPE_CHECKING:
    from kerncfg.sources.environment import Settings

__all__ = ["Found", "Memory", "builds_of", "checked", "listed"]

_FORMAT = 1  # of huggingface_hub's listings
_PATH = re.compile(r"[^\x00-\x1f\\:]+")
_DIGEST = re.compile(r"sha256:[0-9a-f]{64}|git:[0-9a-f]{40}")


@dataclass(frozen=True, slots=True, kw_only=True)
class Found:
    """What a reference led to: the repository, and names with their commits, the preferred first."""

    repository: str
    commits: tuple[tuple[str, str], ...]


class Memory:
    """The cache of one machine; a cache that cannot be written is read all the same."""

    def __init__(self, settings: Settings) -> None:
        self._settings = settings

    def found(self, ref: KernelRef) -> Found | None:
        """Return what the last run that asked the Hub about this very reference was told."""
        try:
            data = loads(self._place(ref).read_text("utf-8"))
            commits = tuple((str(name), str(sha)) for name, sha in data["commits"])
            found = Found(repository=data["repository"], commits=commits)
            whole = KernelRef.parse(found.repository).location == found.repository
        except (OSError, ValueError, KeyError, TypeError, AttributeError, ConfigError):  # nobody asked, or it is broken
            return self._branch(ref)
        if ref.revision and is_commit(ref.revision) and any(sha != ref.revision for _, sha in commits):
            return None
        return found if whole and commits and all(is_commit(sha) for _, sha in commits) else None

    def _branch(self, ref: KernelRef) -> Found | None:
        """Return what huggingface_hub, or the `kernels` library, wrote down about a branch or tag."""
        if ref.revision is None or is_commit(ref.revision):
            return None
        commit = self.commit(ref.location, ref.revision)
        return Found(repository=ref.location, commits=((ref.revision, commit),)) if commit else None

    def commit(self, repository: str, revision: str) -> str | None:
        """Return what a branch or tag of a repository of any type meant last."""
        try:
            commit = self._ref(repository, revision).read_text("utf-8").strip()
        except OSError:
            return None
        return commit if is_commit(commit) else None

    def keep_commit(self, repository: str, revision: str, commit: str) -> None:
        """Write down what a branch or tag means."""
        _write(self._ref(repository, revision), commit)

    def keep_found(self, ref: KernelRef, found: Found) -> None:
        """Write down what a reference led to."""
        data = {"repository": found.repository, "commits": [list(pair) for pair in found.commits]}
        _write(self._place(ref), json.dumps(data, indent=1))
        if ref.revision is not None and found.repository == ref.location and not is_commit(ref.revision):
            self.keep_commit(ref.location, ref.revision, found.commits[0][1])

    def is_released(self, repository: str, commit: str) -> bool:
        """Say whether some run found a commit on a branch or tag, or huggingface_hub wrote down that one is at it.

        That its files or its listing are here says nothing: whoever only reads what somebody proposed brings them too.
        """
        if self._released(repository, commit).is_file():
            return True
        refs = self._settings.folder(repository) / "refs"
        names = (file.relative_to(refs).as_posix() for file in refs.rglob("*") if file.is_file())
        return any(_is_plain(name, commit) and self.commit(repository, name) == commit for name in names)

    def keep_released(self, repository: str, commit: str) -> None:
        """Write down that a commit is on a branch or tag."""
        _write(self._released(repository, commit), "")

    def listing(self, repository: str, commit: str) -> list[File] | None:
        """Return the files of a commit, if some run listed them.

        huggingface_hub has a call for this, which leaves out the SHA-256 of large files.
        """
        try:
            data = loads(self._tree(repository, commit).read_text("utf-8"))
            if data["format_version"] != _FORMAT:
                return None
            return [_known(checked(path, repository), said) for path, said in data["files"].items()]
        except (OSError, ValueError, KeyError, TypeError, AttributeError):  # as above
            return None

    def keep_listing(self, repository: str, commit: str, entries: Iterable[Mapping[str, Any]]) -> None:
        """Write down the whole listing of a commit, as the Hub gave it."""
        files = {entry["path"]: _entry(entry) for entry in entries}
        data = {"format_version": _FORMAT, "files": dict(sorted(files.items()))}
        _write(self._tree(repository, commit), json.dumps(data, indent=1))

    def _tree(self, repository: str, commit: str) -> Path:
        return self._settings.folder(repository) / "trees" / f"{commit}.json"

    def _ref(self, repository: str, revision: str) -> Path:
        return self._settings.folder(repository) / "refs" / checked(revision, repository)

    def _released(self, repository: str, commit: str) -> Path:
        return self._settings.folder(repository) / "kerncfg" / "released" / commit

    def _place(self, ref: KernelRef) -> Path:
        at = ref.version or ref.revision or ""
        return self._settings.folder(ref.location) / "kerncfg" / f"@{quote(at, safe='')}.json"


def _is_plain(name: str, commit: str) -> bool:
    """Say whether a name that was asked for can only be a branch or tag: no proposal, nor the commit."""
    odd = name.lower().startswith(("refs/", "pr/")) or re.search(r"[~^:]|@\{", name)
    digits = re.fullmatch(r"(?:.*-g)?([0-9a-f]{4,})", name.lower())
    return not odd and not (digits and commit.startswith(digits[1]))


def checked(path: str, repository: str) -> str:
    """Return a file's path in a repository, if it stays in the folder that it is kept in.

    Raises:
        SourceError: It climbs out, or could on some machine.
    """
    if not _PATH.fullmatch(path) or path.startswith("/") or not all(part.strip(". ") for part in path.split("/")):
        raise SourceError(f"{repository} has a file {path!r}, whose name leads out of its folder, needed a plain path")
    return path


def _known(path: str, said: Mapping[str, Any]) -> File:
    large = said.get("lfs_sha256")
    file = File(
        path=path,
        size=int(said["lfs_size"] if large else said["size"]),
        digest=f"sha256:{large}" if large else f"git:{said['blob_id']}",
    )
    if not _DIGEST.fullmatch(file.digest):  # it becomes a file's name
        raise ValueError(f"a digest, for {path} has {file.digest!r}")
    return file


def listed(entry: Mapping[str, Any], repository: str) -> File:
    """Return a file as the Hub's listing describes it.

    Raises:
        KeyError, TypeError, ValueError: It is not described as the Hub describes files.
        SourceError: Its name climbs out of the folder that it is kept in.
    """
    return _known(checked(str(entry["path"]), repository), _entry(entry))


def _entry(entry: Mapping[str, Any]) -> dict[str, Any]:
    said = {"size": entry["size"], "blob_id": entry["oid"]}
    if lfs := entry.get("lfs"):
        said |= {"lfs_sha256": lfs["oid"], "lfs_size": lfs["size"]}
    if entry.get("xetHash"):
        said["xet_hash"] = entry["xetHash"]
    return said


def _write(file: Path, text: str) -> None:
    """Write a file at once or not at all; what cannot be written is asked for again, which costs nothing else."""
    with contextlib.suppress(OSError):
        file.parent.mkdir(parents=True, exist_ok=True)
        handle, name = tempfile.mkstemp(dir=file.parent, prefix=".", suffix=".tmp")
        try:
            with os.fdopen(handle, "w", encoding="utf-8") as written:
                written.write(text)
            Path(name).replace(file)
        except BaseException:
            Path(name).unlink(missing_ok=True)
            raise


def builds_of(files: Sequence[File]) -> dict[str, list[File]]:
    """Return the files of each folder below `build`, with paths from there; bytecode is left where it is."""
    found: dict[str, list[File]] = {}
    for file in files:
        top, _, rest = file.path.partition("/")
        name, _, inside = rest.partition("/")
        if top == "build" and inside and not inside.endswith(".pyc") and "__pycache__" not in inside.split("/"):
            found.setdefault(name, []).append(File(path=inside, size=file.size, digest=file.digest))
    return found
