"""Addresses of the Hub on Hydra's search path: `hydra.searchpath=[hf://org/repo@main]`, in any Hydra application.

What the repository holds is fetched by `sources.hub.configs`, which is met by its name, as sources of kernels are.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Mapping, Sequence
from importlib import import_module
from typing import TYPE_CHECKING, Any

from hydra.core.hydra_config import HydraConfig
from hydra.core.object_type import ObjectType
from hydra.errors import CompactHydraException
from hydra.plugins.config_source import ConfigResult, ConfigSource
from omegaconf import OmegaConf

from kerncfg.compiler.brackets import quoted
from kerncfg.compiler.fetched import KIND, forbidden
from kerncfg.compiler.reading import Place, parse_bytes
from kerncfg.errors import ConfigError, Issue, KerncfgError, SourceError

if TYPE_CHECKING:
    from kerncfg.compiler.tree import KeyPath, Node

__all__ = [
    "SCHEME",
    "HubGroups",
    "NotShared",
    "from_file",
    "header_of",
    "of_job",
    "opened",
    "pinned",
    "prefix_of",
    "remember",
    "unpackaged",
]

SCHEME = "hf"
_SEARCHED = "hydra.searchpath="
_OPENER = "kerncfg.sources.hub.configs"
_COMPLETING = {"-sc", "--shell-completion", "--shell_completion"}  # Hydra's own words for it


class NotShared(CompactHydraException):
    """What Hydra tells its user in one line where a place on the Hub cannot be used."""


def opened(address: str) -> Any:
    """Return what an address of the Hub holds; a shell that completes a word is answered from the cache.

    Raises:
        ConfigError: It is no address.
        SourceError: The Hub gives no answer, has no such place, or there are no configurations in it.
    """
    return import_module(_OPENER).opened(address, cached=not _COMPLETING.isdisjoint(sys.argv))


def remember(commits: Mapping[str, str]) -> None:
    """Let addresses mean here what they mean in the process that started this one."""
    for address, commit in commits.items():
        import_module(_OPENER).opened(address, commit=commit)


def pinned(text: str, commits: Mapping[str, str]) -> str:
    """Return an override in which every address of the Hub names its commit."""
    for address in sorted(commits, key=len, reverse=True):
        there = import_module(_OPENER).place_of(address).at(commits[address])
        text = re.sub(rf"{re.escape(address)}(?=[]\s,'\"]|$)", there, text)
    return text


def from_file(settings: Any, words: Sequence[str], commits: Mapping[str, str]) -> list[str]:
    """Return the override that a Hydra job needs to find the same again, where its config file names places of the Hub.

    `settings` is the job's own node of Hydra, `words` what was typed: a search path there stands for that of the file.
    """
    places: Any = OmegaConf.to_container(settings.searchpath, resolve=False)
    if any(word.startswith(_SEARCHED) for word in words) or commits.keys().isdisjoint(places):
        return []
    listed = (place if re.fullmatch(r"[\w/:@.%+-]+", place) else quoted(place) for place in places)
    return [pinned(f"{_SEARCHED}[{','.join(listed)}]", commits)]


class HubGroups(ConfigSource):
    """The groups of a repository at one commit; Hydra writes down which with the sources of a job."""

    def __init__(self, provider: str, path: str) -> None:
        super().__init__(provider, path)
        self._address, self._paths = path, frozenset[str]()
        try:
            found = opened(path)
        except KerncfgError as error:
            if _COMPLETING.isdisjoint(sys.argv):
                raise NotShared(str(error)) from error
            return
        self._paths = frozenset(found.files)
        self.path = found.pinned.removeprefix(f"{SCHEME}://")

    @staticmethod
    def scheme() -> str:
        """Return what stands before `://`."""
        return SCHEME

    def tree(self, config_path: str) -> tuple[Node, dict[str, str | None]]:
        """Return a file as a tree in which every value knows where it stands, and its header.

        Raises:
            ConfigError: It is no YAML, or says what a fetched file may not.
            SourceError: It cannot be fetched.
        """
        path = self._normalize_file_name(config_path)
        place = Place(KIND, f"{self._address}/{path}")
        text = opened(self._address).read(path)
        header = header_of(text[:512].decode("utf-8-sig", "replace"), place)
        prefix = place.prefix = prefix_of(path, header)
        node = parse_bytes(text, place)
        if issues := forbidden(node, prefix):
            raise ConfigError(issues)
        return node, header

    def load_config(self, config_path: str) -> ConfigResult:
        """Read a file for Hydra."""
        try:
            node, header = self.tree(config_path)
        except (ConfigError, SourceError) as error:
            raise NotShared(str(error)) from error
        config = OmegaConf.create(node.plain())
        return ConfigResult(provider=self.provider, path=self.full_path(), config=config, header=header)

    def is_group(self, config_path: str) -> bool:
        """Say whether a folder holds configurations."""
        inside = f"{config_path.strip('/')}/".lstrip("/")
        return any(path.startswith(inside) for path in self._paths)

    def is_config(self, config_path: str) -> bool:
        """Say whether there is such a file."""
        return self._normalize_file_name(config_path.lstrip("/")) in self._paths

    def available(self) -> bool:
        """Say yes: what is not there was refused when it was looked for."""
        return True

    def list(self, config_path: str, results_filter: ObjectType | None) -> list[str]:
        """Return the options and groups of a folder."""
        inside = f"{config_path.strip('/')}/".lstrip("/")
        found: set[str] = set()
        for path in self._paths:
            name, _, below = path.removeprefix(inside).partition("/")
            kind = ObjectType.GROUP if below else ObjectType.CONFIG
            if path.startswith(inside) and results_filter in (None, kind):
                found.add(name if below else name.removesuffix(".yaml"))
        return sorted(found)


def unpackaged(header: Mapping[str, str | None], place: Place) -> Issue | None:
    """Return the fault of an experiment whose keys would come to stand below `experiment`, where nothing reads them."""
    if header.get("package") is not None:
        return None
    message = "the keys of an experiment would stand below `experiment`, expected `# @package _global_` above them"
    return Issue(message=message, file=place.name, line=1, hint="write `# @package _global_` as the first line")


def prefix_of(path: str, header: Mapping[str, str | None]) -> KeyPath:
    """Return where the keys of a file come to stand, by its folder or by what its header says."""
    *group, name = path.removesuffix(".yaml").split("/")
    package = header.get("package")
    if package is None:
        return tuple(group)
    words = {"_global_": [], "_group_": group, "_name_": [name]}
    return tuple(part for word in package.split(".") for part in words.get(word, [word]))


def of_job() -> tuple[tuple[str, str], ...]:
    """Return the places on the Hub that the Hydra job around this was composed from, each with its commit."""
    if not HydraConfig.initialized():
        return ()
    places = [source.path for source in HydraConfig.get().runtime.config_sources if source.schema == SCHEME]
    found = ((f"{SCHEME}://{place}", re.search(r"@([0-9a-f]{40})", place)) for place in places)
    return tuple((address, commit[1]) for address, commit in found if commit)


def header_of(text: str, place: Place) -> dict[str, str | None]:
    """Return what the comments at the start of a file say of its package.

    Raises:
        ConfigError: They cannot be read.
    """
    try:
        return ConfigSource._get_header_dict(text)
    except ValueError as error:
        hint = "write `# @package NAME`, with nothing after it"
        issue = Issue(message=f"the header cannot be read: {error}", file=place.name, line=1, hint=hint)
        raise ConfigError([issue]) from error
