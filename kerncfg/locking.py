"""Lock files: found, read, made and renewed. What they hold is `documents.lock`'s; here is which file, and when to ask.

A lock of the `kernels` library is read too: it names commits, and what they hold is asked of the Hub.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, TypeVar

from kerncfg.compiler.policy import HUB_OFF, trusted
from kerncfg.compiler.resolve import OFF_SWITCH
from kerncfg.compiler.schema import validate
from kerncfg.documents.config import Candidate, Config, KernelRef, Row, Trust
from kerncfg.documents.lock import ANEW, Lock, Pin
from kerncfg.documents.plain import DEEP, loads
from kerncfg.errors import ConfigError, LockError, SourceError
from kerncfg.sources import pin
from kerncfg.sources.environment import Settings

__all__ = ["FILE", "localised", "made", "read", "usual"]

RowOfAKind = TypeVar("RowOfAKind", bound=Row)

FILE = "kerncfg.lock"  # in the working directory, if no other is named


def usual(named: str | Path | None) -> Lock | None:
    """Return the lock in a file, by default that of the working directory; `None` if there is none.

    Raises:
        LockError: It cannot be read.
    """
    if named is None and not Path(FILE).is_file():
        return None
    return read(named or FILE)


def read(path: str | Path) -> Lock:
    """Return the lock in a file of ours, or in one of the `kernels` library.

    Raises:
        LockError: It cannot be read, is no lock, or is of a format that this version does not read.
    """
    try:
        data = loads(Path(path).read_text("utf-8"))
    except (OSError, ValueError) as error:
        if isinstance(error, OSError):
            raise LockError(f"{path}: {error.strerror}", hint="a lock is written by `kerncfg lock`") from error
        raise LockError(f"{path}: not JSON ({error})", hint=ANEW) from error
    try:
        if isinstance(data, list) and data:
            return Lock(commits=dict(_foreign(data)))
        if not isinstance(data, dict):
            found = "an empty list" if data == [] else json.dumps(data)[:60]
            raise LockError(f"found {found}, needed a map with `schema` and `pins`", hint=ANEW)
        if "steps" in data:
            hint = "a plan holds its commits already: fetch and apply take it without a lock"
            raise LockError("is a plan, not a lock", hint=hint)
        if data.get("schema") == 1:
            validate(data, "lock")
        return Lock.from_dict(data)
    except ConfigError as error:
        first = error.issues[0]
        more = f", and {len(error.issues) - 1} more faults" if len(error.issues) > 1 else ""
        message = f"{path}: {first.path}: {first.message}{more}"
        raise LockError(message, hint=ANEW) from error
    except LockError as error:
        raise LockError(f"{path}: {error.message}", hint=error.hint) from error
    except RecursionError as error:
        raise LockError(f"{path}: {DEEP}", hint=ANEW) from error


def _foreign(entries: Sequence[Any]) -> Iterator[tuple[KernelRef, str]]:
    """Yield what `kernels lock` wrote: `[{"dependency": {"repo-id", "version"}, "lock": {"commit"}}]`."""
    for entry in entries:
        try:
            wanted, commit = entry["dependency"], entry["lock"]["commit"]
            ref = KernelRef.parse(wanted["repo-id"])
            version = wanted.get("version")
            if not re.fullmatch(r"[0-9a-f]{40}|[0-9a-f]{64}", commit):
                raise ValueError(commit)
            yield ref.at(revision=wanted["revision"]) if version is None else ref.at(version=int(version)), commit
        except (KeyError, TypeError, ValueError, AttributeError, OverflowError, ConfigError) as error:
            message = f"no entry of a kernels.lock: {json.dumps(entry)[:80]}"
            raise LockError(message, hint="a kernels.lock is written by `kernels lock`") from error


def made(
    config: Config, trust: Trust, *, previous: Lock | None = None, upgrade: Iterable[str] = (), hub: bool = True
) -> Lock:
    """Return the lock of a config: every reference to the Hub, for every device, with all builds.

    What `previous` holds stays as it is, but for pins without a commit and for the rows or repositories in `upgrade`.
    Nobody is asked if the config switches kernels off, or if `hub` is false, which switches those of the Hub off.

    Raises:
        ConfigError: `upgrade` names no row and no repository of the config.
        SourceError: The Hub is not or may not be asked about what was to be upgraded, or gave no answer.
    """
    before = previous or Lock()
    named = {
        row.title: [candidate for candidate in row.candidates() if candidate.ref.scheme == "hub"]
        for row in config.every()
    }
    anew = set(_upgraded(named, upgrade))
    candidates = [candidate for found in named.values() for candidate in found]
    flagged = {candidate.ref.everything for candidate in candidates if candidate.trust_remote_code}
    refs = sorted({candidate.ref.everything for candidate in candidates}, key=str)
    kept = {ref: found for ref, found in before.pins.items() if found.releases and ref not in anew}
    if off := OFF_SWITCH if not config.enabled else None if hub else HUB_OFF:
        _check_upgraded(anew, off)
        return Lock(pins={**{ref: Pin(ref=ref, reason=off, barred=True) for ref in refs}, **before.pins})
    commits = {ref: commit for ref, commit in before.commits.items() if ref not in anew}
    allowed = [ref for ref in refs if ref in flagged or trusted(ref, trust) is None]
    refused = {
        ref: Pin(ref=ref, reason=trusted(ref, trust), barred=True)
        for ref in refs
        if ref not in allowed and ref not in kept
    }
    for ref in anew & set(refused):
        _check_upgraded([ref], str(refused[ref].reason))
    if allowed:
        Settings.read().check()
    asking = replace(trust, references=frozenset(map(str, flagged)))
    asked = pin(allowed, trust=asking, known=Lock(pins=kept, commits=commits))
    for ref in anew:
        found = asked.pins.get(ref)
        if found and (found.away or not found.releases) and ref in before.pins and before.pins[ref].releases:
            _check_upgraded([ref], str(found.reason or found.note))
    return Lock(pins={**asked.pins, **{ref: found for ref, found in kept.items() if ref in refs}, **refused})


def _check_upgraded(upgraded: Iterable[KernelRef], reason: str) -> None:
    """Refuse to leave in silence what was to be upgraded."""
    if names := ", ".join(sorted(map(str, upgraded))):
        raise SourceError(f"{names} stays as it is: {reason}", hint="nothing was upgraded")


def _upgraded(named: Mapping[str, Sequence[Candidate]], upgrade: Iterable[str]) -> Iterator[KernelRef]:
    for name in upgrade:
        of_row = [candidate.ref.everything for candidate in named.get(name, ())]
        of_place = [
            candidate.ref.everything
            for found in named.values()
            for candidate in found
            if candidate.ref.location == name
        ]
        if not of_row and not of_place:
            rows = ", ".join(row for row, found in named.items() if found) or "none"
            message = f"{name!r} is neither a row with Hub kernels nor a repository"
            raise ConfigError(message, hint=f"name one of {rows}, or org/repo")
        yield from (*of_row, *of_place)


def localised(config: Config, folders: Mapping[str, str]) -> Config:
    """Return a config whose Hub kernels come from the folders that `LOCAL_KERNELS` puts in their place, with a note."""
    used: dict[str, str] = {}

    def moved(candidate: Candidate) -> Candidate:
        ref = candidate.ref
        if ref.scheme != "hub" or ref.location not in folders:
            return candidate
        used[ref.location] = folders[ref.location]
        return replace(candidate, ref=KernelRef(scheme="path", location=folders[ref.location], name=ref.name))

    def laid(rows: Mapping[str, RowOfAKind]) -> dict[str, RowOfAKind]:
        return {
            name: replace(
                row,
                cells={
                    device: {mode: tuple(map(moved, candidates)) for mode, candidates in modes.items()}
                    for device, modes in row.cells.items()
                },
            )
            for name, row in rows.items()
        }

    rows, fusions, attention = laid(config.rows), laid(config.fusions), laid(config.attention)
    if not used:
        return config
    notes = [f"{repository} comes from {folder}, as LOCAL_KERNELS says" for repository, folder in used.items()]
    trust = replace(config.trust, local=config.trust.local | set(used.values()))
    return replace(config, rows=rows, fusions=fusions, attention=attention, trust=trust, notes=(*config.notes, *notes))
