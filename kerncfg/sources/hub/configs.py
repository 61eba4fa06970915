"""Configurations shared on the Hub: the YAML files of a repository of any type, at one commit.

An address means the same commit for as long as the process lives, and a file is fetched when somebody reads it.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING
from urllib.parse import quote

from kerncfg.errors import ConfigError, SourceError
from kerncfg.sources.environment import Settings, parts
from kerncfg.sources.hub.asking import Hub, HubFault, Moved
from kerncfg.sources.hub.files import listing, single
from kerncfg.sources.hub.memory import Memory
from kerncfg.sources.hub.revisions import is_commit

if TYPE_CHECKING:
    from kerncfg.documents.lock import File

__all__ = ["Place", "Shared", "gathered", "opened", "place_of"]

SHAPE = "hf://org/repo@main, hf://datasets/org/repo@main or hf://kernels/org/repo@v1"
LARGEST = 10_000_000  # bytes of a file that is read as a configuration
_KINDS = {"model": "models", "dataset": "datasets", "kernel": "kernels"}
_ENDING = ".yaml"

_lock = threading.Lock()
_opened: dict[tuple[Settings, str], Shared] = {}


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """What an address says: the repository with its type, a branch, tag or commit, and a folder in it."""

    repository: str
    revision: str
    folder: str = ""

    def at(self, revision: str) -> str:
        """Return the address of the same place at another revision."""
        kind, name = parts(self.repository)
        inside = f"/{self.folder}" if self.folder else ""
        return f"hf://{name if kind == 'models' else f'{kind}/{name}'}@{quote(revision, safe='')}{inside}"


def place_of(address: str) -> Place:
    """Return what an address `hf://[datasets/|kernels/]org/repo[@revision][/folder]` says.

    Raises:
        ConfigError: It is none.
    """
    Settings.read().check()
    # Only now, for the client reads HF_ENDPOINT when it is imported, and raises where that is no address.
    from huggingface_hub.errors import HfUriError
    from huggingface_hub.utils import parse_hf_uri  # type: ignore[attr-defined, unused-ignore]

    try:
        found = parse_hf_uri(address)
    except HfUriError as error:
        raise ConfigError(f"{address!r} is no address on the Hub: {error.msg}", hint=f"write {SHAPE}") from error
    if found.type not in _KINDS:
        message = f"{address!r} is no address on the Hub: a {found.type} holds no configurations"
        raise ConfigError(message, hint=f"write {SHAPE}")
    repository = f"{_KINDS[found.type]}/{found.id}".removeprefix("kernels/")  # what holds kernels says no type
    return Place(repository=repository, revision=found.revision or "main", folder=found.path_in_repo.strip("/"))


@dataclass(frozen=True, slots=True, kw_only=True)
class Shared:
    """The YAML files of an address by their paths in it, each with its size and digest."""

    address: str
    place: Place
    commit: str
    files: Mapping[str, File]
    note: str | None
    settings: Settings = field(repr=False)

    @property
    def pinned(self) -> str:
        """The address with the commit in the place of the revision."""
        return self.place.at(self.commit)

    def read(self, path: str) -> bytes:
        """Return what stands in a file, fetched if need be, and the right bytes in any case.

        Raises:
            SourceError: It cannot be had.
        """
        file = self.files[path]
        if file.size > LARGEST:
            message = f"{self.address}: {path} has {file.size} bytes, needed {LARGEST} at most"
            raise SourceError(message, hint="it is no configuration; name another place")
        try:
            return single(Hub(self.settings), self.place.repository, self.commit, file.path, file).read_bytes()
        except SourceError as error:
            raise SourceError(f"{self.address}: {error.message}", hint=error.hint) from error


def opened(address: str, *, cached: bool = False, commit: str | None = None) -> Shared:
    """Return what an address holds, at the commit that it meant when this process first asked.

    With `cached` nothing is asked, as where a shell completes a word. `commit` is what another process was told, which
    stands here too unless this one knows already.

    Raises:
        ConfigError: It is no address.
        SourceError: The Hub gives no answer, has no such place, or there is no YAML file in it.
    """
    settings = Settings.read()
    place = place_of(address)
    with _lock:
        known = _opened.get((settings, address))
        if known is not None:
            return known
        at = replace(place, revision=commit) if commit else place
        asked = replace(settings, offline=settings.offline or cached)
        found = _whole(address, at, asked, lambda path: path.endswith(_ENDING))
        if not cached:
            _opened[settings, address] = found
        return found


def gathered(address: str, wanted: Callable[[str], bool]) -> Shared:
    """Return what an address holds now, of the files that are wanted; errors are those of `opened`."""
    return _whole(address, place_of(address), Settings.read(), wanted)


def _whole(address: str, place: Place, settings: Settings, wanted: Callable[[str], bool]) -> Shared:
    try:
        found = _asked(address, place, settings, wanted)
    except HubFault as fault:
        raise SourceError(f"{address}: {fault.message}", hint=_advice(place, fault, settings)) from fault
    if not any(path.endswith(_ENDING) for path in found.files):
        message = f"{address}: there is no {_ENDING} file in it, at commit {found.commit[:12]}"
        raise SourceError(message, hint="name the folder that holds the groups: hf://org/repo@main/folder")
    return found


def _asked(address: str, place: Place, settings: Settings, wanted: Callable[[str], bool]) -> Shared:
    hub = Hub(settings)
    try:
        return _listed(hub, address, place, wanted)
    except Moved as now:
        try:
            return _listed(hub, address, replace(place, repository=now.repository), wanted)
        except Moved as further:
            message = f"{place.repository} moved to {now.repository}, and that to {further.repository}"
            raise HubFault(f"{message}, needed one move at most", status=200) from further


def _listed(hub: Hub, address: str, place: Place, wanted: Callable[[str], bool]) -> Shared:
    memory = Memory(hub.settings)
    commit, note = _commit(hub, memory, place)
    inside = f"{place.folder}/" if place.folder else ""
    files = {
        file.path.removeprefix(inside): file
        for file in listing(hub, memory, place.repository, commit)
        if file.path.startswith(inside) and wanted(file.path.removeprefix(inside))
    }
    return Shared(address=address, place=place, commit=commit, files=files, note=note, settings=hub.settings)


def _commit(hub: Hub, memory: Memory, place: Place) -> tuple[str, str | None]:
    """Return the commit that a place is at; only who forbids to ask gets the one that it was last."""
    if is_commit(place.revision):
        return place.revision, None
    if hub.settings.offline and (known := memory.commit(place.repository, place.revision)):
        return known, "as last resolved, for HF_HUB_OFFLINE is set"
    kind, name = parts(place.repository)
    api = f"/api/{kind}/{quote(name)}/revision/{quote(place.revision, safe='')}"
    found = str(hub.json(api, place.repository, f"revision {place.revision}").get("sha"))
    if not is_commit(found):
        raise HubFault(f"the Hub named {found!r} for {place.at(place.revision)}, needed a commit of 40 digits")
    memory.keep_commit(place.repository, place.revision, found)
    return found, None


def _advice(place: Place, fault: HubFault, settings: Settings) -> str | None:
    """Say what to write instead, as far as this machine or the Hub knows."""
    known = Memory(settings).commit(place.repository, place.revision)
    if fault.away and known and not settings.offline:
        return f"name the commit that it was last, {place.at(known)}, or set HF_HUB_OFFLINE=1"
    if fault.away:
        return "ask for it once where the Hub can be reached; what an online run fetched serves offline ones"
    if fault.code == "RevisionNotFound":
        return f"it has {', '.join(_revisions(place, settings))}"
    if fault.status in (401, 404) and (others := list(_elsewhere(place, settings))):
        return f"write {others[0]}"
    return None


def _revisions(place: Place, settings: Settings) -> Iterator[str]:
    kind, name = parts(place.repository)
    try:
        refs = Hub(settings).json(f"/api/{kind}/{quote(name)}/refs", place.repository, "its branches and tags")
        yield from (str(each["name"]) for which in ("branches", "tags") for each in refs[which])
    except (SourceError, Moved, KeyError, TypeError):
        yield "others"


def _elsewhere(place: Place, settings: Settings) -> Iterator[str]:
    """Yield the addresses of repositories of another type with the same name."""
    own, name = parts(place.repository)
    for kind in _KINDS.values():
        if kind == own:
            continue
        other = replace(place, repository=f"{kind}/{name}".removeprefix("kernels/"))
        try:
            Hub(settings).json(f"/api/{kind}/{quote(name)}", other.repository, "whether it is there")
        except (SourceError, Moved):
            continue
        yield other.at(place.revision)
