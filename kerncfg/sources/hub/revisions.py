"""From a reference's version to the branches and tags that answer it, the best first."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING

from packaging.specifiers import SpecifierSet
from packaging.version import InvalidVersion, Version

if TYPE_CHECKING:
    from kerncfg.documents.reference import KernelRef

__all__ = ["is_commit", "matching", "versions"]

_BRANCH = re.compile(r"v(\d+)")


def is_commit(text: str) -> bool:
    """Say whether a text is a whole commit id."""
    return re.fullmatch(r"[0-9a-f]{40}", text) is not None


def versions(branches: Iterable[str]) -> list[str]:
    """Return the branches `vN`, the highest first; `v0` is unstable and comes last."""
    found = {int(match[1]): name for name in branches if (match := _BRANCH.fullmatch(name))}
    return [found[number] for number in sorted(found, reverse=True)]


def matching(ref: KernelRef, branches: Mapping[str, str], tags: Mapping[str, str]) -> list[tuple[str, str]]:
    """Return the names and commits that answer a range, or a reference without a version, the preferred first.

    A range looks at version branches (`v3` reads as 3) and tags (`v2.1.0`) together and takes the highest, by PEP 440;
    pre-releases only if the range names one. Without a version the version branches answer, then `main`.
    """
    if ref.version is None:
        names = [*versions(branches), *(name for name in ("main",) if name in branches)]
        return [(name, branches[name]) for name in names]
    known = {name: commit for name, commit in tags.items() if _version(name)}
    known |= {name: commit for name, commit in branches.items() if _BRANCH.fullmatch(name)}
    wanted = SpecifierSet(ref.version)
    named = any(Version(clause.version.removesuffix(".*")).is_prerelease for clause in wanted)
    fitting = [name for name in known if (found := _version(name)) and wanted.contains(found, prereleases=named)]
    best = max(fitting, key=lambda name: (_version(name), name), default=None)
    return [(best, known[best])] if best is not None else []


def _version(name: str) -> Version | None:
    try:
        return Version(name)
    except InvalidVersion:
        return None
