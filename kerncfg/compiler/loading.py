"""Hydra's config loader, started and put away without a trace, inside a running Hydra job and in threads."""

from __future__ import annotations

import functools
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

import hydra
from hydra._internal.core_plugins.file_config_source import FileConfigSource
from hydra._internal.sources_registry import SourcesRegistry
from hydra.core.global_hydra import GlobalHydra
from hydra.core.plugins import Plugins
from hydra.core.singleton import Singleton
from hydra.errors import HydraException
from hydra.plugins.config_source import ConfigResult
from hydra.plugins.search_path_plugin import SearchPathPlugin
from hydra.version import VersionBase
from omegaconf import DictConfig, ListConfig, OmegaConf
from packaging.version import Version

from kerncfg.compiler.shared import HubGroups
from kerncfg.errors import ConfigError
from kerncfg.locations import SEARCHED, conf

if TYPE_CHECKING:
    from hydra.core.config_loader import ConfigLoader
    from hydra.core.config_search_path import ConfigSearchPath

__all__ = ["add_packaged", "hydra_folder", "lists_replace", "loader", "schemes", "version_base"]

_ROWS = ("kernels", "inherited", "fusions", "attention")

_HYDRAS = "hydra.conf"  # the package of Hydra's own configs
_lock = threading.Lock()  # Hydra keeps its state in singletons


def version_base() -> dict[str, Any]:
    """Return the keyword that this version of Hydra wants: 1.3 warns without it, 1.4 warns with it."""
    return {"version_base": "1.3"} if Version(hydra.__version__) < Version("1.4.0.dev0") else {}


def add_packaged(search_path: ConfigSearchPath) -> None:
    """Put the packaged groups last on a Hydra search path, once."""
    folder = str(conf())
    known = {(element.path or "").removeprefix("file://") for element in search_path.get_path()}
    if folder not in known:
        search_path.append("kerncfg", f"file://{folder}")


class _PackagedGroups(SearchPathPlugin):
    """The packaged groups for compositions of our own, where the shipped plugin may not be installed.

    `further` is what `hydra.searchpath` adds in the composition that holds the lock.
    """

    further: ClassVar[Sequence[str]] = ()

    def manipulate_search_path(self, search_path: ConfigSearchPath) -> None:
        add_packaged(search_path)
        for address in self.further:
            search_path.append(SEARCHED, address)


@contextmanager
def hydra_folder(config_dir: Path | None) -> Iterator[Path]:
    """Give the folder that Hydra is to start from, with the packaged groups behind it on the search path.

    Raises:
        ConfigError: There is no such folder.
    """
    folder = conf() if config_dir is None else config_dir.expanduser().absolute()
    if not folder.is_dir():
        found = "a file" if folder.exists() else "not there"
        hint = "give the folder that holds your groups"
        raise ConfigError(f"the config folder {config_dir} is {found}", hint=hint)
    Plugins.instance().register(_PackagedGroups)
    Plugins.instance().register(HubGroups)
    yield folder


class ListsAsText(FileConfigSource):
    """Files whose lists of candidates are text: OmegaConf lays text over a map, and a list not.

    For a job's start only: what the job is about, it composes itself.
    """

    def load_config(self, config_path: str) -> ConfigResult:
        """Read one file."""
        found = super().load_config(config_path)
        config: Any = found.config
        whole = config_path.split("/")[0] in _ROWS
        for part in [config] if whole else [config[name] for name in _ROWS if name in config]:
            _texts(part)
        return found


# Hydra knows a scheme's class by its name: in another process a launcher finds its own beside this one.
ListsAsText.__name__ = FileConfigSource.__name__


def _texts(part: Any) -> None:
    for name in list(part) if isinstance(part, DictConfig) else ():
        child = part._get_node(name)
        if isinstance(child, DictConfig):
            _texts(child)
        elif isinstance(child, ListConfig) and name != "defaults":
            part[name] = str(OmegaConf.to_container(child, resolve=False))


@contextmanager
def lists_replace() -> Iterator[None]:
    """Let lists take the place of maps where Hydra itself composes files; it would raise."""
    types = SourcesRegistry.instance().types
    before = types["file"]
    types["file"] = ListsAsText
    try:
        yield
    finally:
        types["file"] = before


def schemes() -> list[str]:
    """Return the schemes of addresses that files can be looked for at."""
    return sorted(f"{name}://" for name in SourcesRegistry.instance().types)


def _start(folder: Path) -> None:
    try:
        hydra.initialize_config_dir(str(folder), **version_base())
    except (HydraException, ValueError) as error:
        raise ConfigError(f"the search path cannot be used: {error}") from error


def _spare(source: Any) -> None:
    """Keep a source of Hydra's own from doing again, for every composition, what comes out the same."""
    if source.scheme() == "structured":
        source.__deepcopy__ = lambda memo: source  # else every registered node is copied, and none of them changes
    elif source.scheme() == "pkg" and source.path == _HYDRAS:

        def load_config(config_path: str) -> ConfigResult:
            entries, header = _of_hydra(config_path)
            config = OmegaConf.create({"defaults": [*entries]} if entries else {})
            return ConfigResult(provider=source.provider, path=f"pkg://{_HYDRAS}", config=config, header={**header})

        source.load_config = load_config


@functools.cache
def _of_hydra(config_path: str) -> tuple[list[Any], dict[str, str | None]]:
    """Return the defaults list and the header of a config that comes with Hydra; what it says besides is not used."""
    found = SourcesRegistry.instance().resolve("pkg")("hydra", f"pkg://{_HYDRAS}").load_config(config_path)
    plain: Any = OmegaConf.to_container(found.config, resolve=False)
    return (plain.get("defaults") or []) if isinstance(plain, dict) else [], found.header


@contextmanager
def loader(folder: Path, further: Sequence[str]) -> Iterator[ConfigLoader]:
    """Give a config loader that starts from a folder; whatever state Hydra had is put back at the end.

    Raises:
        ConfigError: An address in `further` has a scheme that nobody registered.
    """
    states: dict[Any, Any] = Singleton._instances
    with _lock:
        before = {kind: states.pop(kind) for kind in (GlobalHydra, VersionBase) if kind in states}
        _PackagedGroups.further = further
        try:
            _start(folder)
            started = GlobalHydra.instance().config_loader()
            for source in started.get_sources():
                _spare(source)
            yield started
        finally:
            _PackagedGroups.further = ()
            for kind in (GlobalHydra, VersionBase):
                states.pop(kind, None)
            states.update(before)
