"""`kernels.lock` and `LOCAL_KERNELS`: other places for repositories that rows name already.

Neither names a layer. What they say is written into the rows that name a repository, and into new rows for the names
that the inherited mapping takes from it.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

from kerncfg.compiler.compose import compose
from kerncfg.documents.reference import KernelRef, is_folder
from kerncfg.errors import ConfigError, Issue

__all__ = ["Move", "folders", "moved", "pins"]

_OTHER = {"match", "exclude", "fallback", "inherit_mapping", "when", "dtype", "members", "path", "mask", "capability"}
_COMMIT = re.compile(r"[0-9a-f]{40}([0-9a-f]{24})?")


@dataclass(frozen=True, slots=True, kw_only=True)
class Move:
    """Where the code of one repository is to come from: a commit of it, or a folder.

    `revision` is the branch, tag or commit that a commit was found for; a folder serves them all.
    """

    repository: str
    revision: str | None = None
    commit: str | None = None
    folder: str | None = None

    def new(self, ref: KernelRef) -> KernelRef | None:
        """Return where a reference leads after the move; `None` if the move is not about it."""
        if ref.scheme != "hub" or ref.location != self.repository:
            return None
        if self.folder:
            return KernelRef(scheme="path", location=self.folder, name=ref.name)
        if ref.version or ref.revision not in (None, self.revision, self.commit):
            return None
        return replace(ref, revision=self.commit)

    def __str__(self) -> str:
        return f"{self.repository} in {self.folder}" if self.folder else f"{self.repository} at {self.commit}"


def pins(data: Any) -> list[Move]:
    """Return what a `kernels.lock` pins.

    Raises:
        ConfigError: The data is no such list.
    """
    if data == []:
        message = "holds an empty list, expected an entry for each repository"
        raise ConfigError(message, hint="a kernels.lock is written by `kernels lock`")
    found = []
    for index, entry in enumerate(data if isinstance(data, list) else [data]):
        wanted, lock = (entry.get(key) or {} if isinstance(entry, Mapping) else {} for key in ("dependency", "lock"))
        repository, commit = wanted.get("repo-id"), lock.get("commit")
        if not isinstance(repository, str) or not isinstance(commit, str) or not _COMMIT.fullmatch(commit):
            hint = "a kernels.lock is a list of {dependency: {repo-id, version}, lock: {commit}}"
            raise ConfigError(f"entry {index} names no repository and commit", hint=hint)
        version = wanted.get("version")
        revision = wanted.get("revision") if version is None else f"v{version}"
        found.append(Move(repository=repository, revision=revision, commit=commit))
    return found


def folders(text: str) -> list[Move]:
    """Return what a value of `LOCAL_KERNELS` says: `org/repo=/path:org/other=/path`.

    Raises:
        ConfigError: A part of it is no repository with a folder.
    """
    found = []
    for part in filter(None, re.split(r":(?=[\w.-]+/[\w.-]+=)", text)):
        repository, _, folder = part.partition("=")
        if not folder or "/" not in repository:
            hint = "write LOCAL_KERNELS=org/repo=/path, and more of these with ':' between them"
            raise ConfigError(f"{part!r} is no repository with a folder", hint=hint)
        found.append(Move(repository=repository, folder=folder if is_folder(folder) else f"./{folder}"))
    return found


def moved(document: Mapping[str, Any], moves: list[Move]) -> tuple[dict[str, Any], list[Issue]]:
    """Return a document whose rows take their code from where the moves say, and the moves that change nothing."""
    inherited = compose()[0]["inherited"] if moves else {}
    remarks = []
    for move in moves:
        rows = {name: _changed(row, move) for name, row in inherited.items() if name not in document.get("kernels", {})}
        below = {name: row for name, row in rows.items() if row is not None}
        if document.get("kernels", {}).get("inherit_mapping") is False:
            below = {}
        whole = {node: _rewritten(value, move) for node, value in document.items()}
        if whole == dict(document) and not below:
            remarks.append(_idle(move, document))
        document = {**whole, "kernels": {**below, **whole.get("kernels", {})}}
    return dict(document), remarks


def _idle(move: Move, document: Mapping[str, Any]) -> Issue:
    others = sorted({str(ref) for ref in _references(document) if ref.location == move.repository})
    if others:
        message = f"{move.repository} at {move.revision} has no equivalent: the rows name {', '.join(others)}"
        return Issue(message=message, hint=f"write {move.repository}@{move.commit}:Name to run the pinned commit")
    place = f"{move.folder}:Name" if move.folder else f"{move.repository}@{move.commit}:Name"
    message = f"{move} has no equivalent: nothing here names a layer that runs it"
    return Issue(message=message, hint=f"write kernels.NAME={place} for each layer")


def _references(value: Any) -> Iterator[KernelRef]:
    found: list[KernelRef] = []

    def note(ref: KernelRef) -> None:
        found.append(ref)

    _walk(value, note)
    yield from (ref for ref in found if ref.scheme == "hub")


def _rewritten(value: Any, move: Move) -> Any:
    return _walk(value, move.new)


def _changed(row: Any, move: Move) -> Any:
    """Return the part of a row that a move changes, changed; `None` if there is none."""
    if isinstance(row, Mapping) and "kernel" not in row:
        cells = {key: _changed(value, move) for key, value in row.items() if key not in _OTHER}
        kept = {key: value for key, value in cells.items() if value is not None}
        stays = {key: value for key, value in row.items() if key in ("match", "exclude")}
        return {**stays, **kept} if kept else None
    new = _rewritten(row, move)
    return new if new != row else None


def _walk(value: Any, change: Callable[[KernelRef], KernelRef | None]) -> Any:
    """Return a node with every reference in it changed that `change` has another one for."""
    if isinstance(value, list):
        return [_walk(one, change) for one in value]
    if isinstance(value, Mapping) and isinstance(value.get("kernel"), str):
        new = change(_at(value["kernel"], value))
        others = {key: one if key in _OTHER or key == "kernel" else _walk(one, change) for key, one in value.items()}
        plain = {key: one for key, one in others.items() if key not in ("version", "revision")}
        return others if new is None else {**plain, "kernel": str(new)}
    if isinstance(value, Mapping):
        return {key: one if key in _OTHER else _walk(one, change) for key, one in value.items()}
    if isinstance(value, str) and "/" in value:
        new = change(_at(value, {}))
        return value if new is None else str(new)
    return value


def _at(text: str, said: Mapping[str, Any]) -> KernelRef:
    ref = KernelRef.parse(text)
    versions = {key: said[key] for key in ("version", "revision") if said.get(key) is not None}
    return ref.at(**versions) if versions else ref
