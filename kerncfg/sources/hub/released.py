"""Whether a commit is one that its repository's owner released, or one that somebody may only have proposed there.

The Hub gives the commits of pull requests, which anybody may open, under the repository's own name. So what trust in a
publisher covers has to be on a branch or a tag.
"""

from __future__ import annotations

from typing import TYPE_CHECKING
from urllib.parse import quote

from kerncfg.sources.hub.asking import HubFault
from kerncfg.sources.hub.revisions import is_commit, versions

if TYPE_CHECKING:
    from kerncfg.sources.hub.asking import Hub
    from kerncfg.sources.hub.memory import Memory

__all__ = ["refs", "unreleased"]


def refs(hub: Hub, place: str) -> tuple[dict[str, str], dict[str, str]]:
    """Return the branches and the tags of a repository with their commits, which are asked for once in a run.

    Raises:
        HubFault: The Hub gives no answer, or none as the Hub gives it.
        Moved: The repository has another name now.
    """
    found = hub.json(f"/api/kernels/{quote(place)}/refs", place, "its branches and tags")
    try:
        branches, tags = (
            {str(each["name"]): str(each["targetCommit"]) for each in found[kind]} for kind in ("branches", "tags")
        )
    except (KeyError, TypeError) as error:
        message = f"HTTP 200: the branches of {place} came as {str(found)[:40]!r}, needed names with commits"
        raise HubFault(message) from error
    return branches, tags


def unreleased(
    hub: Hub, memory: Memory, place: str, commit: str, first: str | None = None, *, alone: bool = False
) -> str | None:
    """Return why a commit is not known to be on a branch or tag of a repository, or `None` if it is.

    One question tells where branches and tags are now; their histories are asked for only where none is there, one
    after the other, that of `first` before the rest. What was found out once is remembered, and serves where nothing
    can be asked. Where there is consent to `first` `alone`, a proposal or the digits of a commit, that may lead to it.

    Raises:
        HubFault: The Hub gives no answer, or none as the Hub gives it.
        Moved: The repository has another name now.
    """
    if not is_commit(commit) or memory.is_released(place, commit):
        return None  # of what is no commit nothing ever comes in
    if first and alone and memory.commit(place, first) == commit:
        return None
    if hub.settings.offline:
        found = f"nothing in the cache says that commit {commit[:12]} of {place} was released (HF_HUB_OFFLINE is set)"
        return f"{found}, needed that or --trust {place}@{commit}"
    key = f"released {place} {commit} {first if alone else ''}"
    return hub.once(key, lambda: _looked_for(hub, memory, place, commit, first, alone))


def _looked_for(hub: Hub, memory: Memory, place: str, commit: str, first: str | None, alone: bool) -> str | None:
    branches, tags = refs(hub, place)
    heads = [*((name, branches[name]) for name in versions(branches)), *branches.items(), *tags.items()]
    if first and alone and first not in branches and first not in tags and _leads(hub, place, first, commit):
        return None  # for whoever consented to it, so this is not remembered
    heads.sort(key=lambda pair: pair[0] != first)
    seen: set[str] = set()
    if commit not in {head for _, head in heads} and not any(
        head not in seen and _is_before(hub, place, name, commit, seen) for name, head in heads
    ):
        there = f"commit {commit[:12]} is on no branch and no tag of {place}, where anybody may propose one"
        return f"{there}, needed consent to it alone: --trust {place}@{commit}"
    memory.keep_released(place, commit)
    return None


def _leads(hub: Hub, place: str, first: str, commit: str) -> bool:
    """Say whether a proposal has a commit, or the Hub takes digits for it."""
    if first.startswith("refs/"):
        return _is_before(hub, place, first, commit, set())
    if not commit.startswith(first):
        return False
    address = f"/api/kernels/{quote(place)}/revision/{quote(first, safe='')}"
    return hub.json(address, place, f"revision {first}").get("sha") == commit


def _is_before(hub: Hub, place: str, name: str, commit: str, seen: set[str]) -> bool:
    """Say whether a commit is in the history of a branch or tag, and note what is."""
    address = f"/api/kernels/{quote(place)}/commits/{quote(name, safe='')}"
    try:
        for entry in hub.pages(address, place, f"the commits of {name}"):
            if entry["id"] == commit:
                return True
            seen.add(entry["id"])
    except KeyError as error:
        message = f"HTTP 200: the commits of {name} of {place} came without {error}, needed the id of each"
        raise HubFault(message) from error
    except HubFault as fault:
        told = f"{fault.message}: so nobody says that commit {commit[:12]} was released"
        message = f"{told}, needed that or --trust {place}@{commit}"
        raise HubFault(message, status=fault.status, code=fault.code) from fault
    return False
