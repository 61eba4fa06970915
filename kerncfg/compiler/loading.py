"""Hydra's config loader, started and put away without a trace, inside a running Hydra job and in threads."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

import hydra
from hydra.core.global_hydra import GlobalHydra
from hydra.core.plugins import Plugins
from hydra.core.singleton import Singleton
from hydra.errors import HydraException
from hydra.plugins.search_path_plugin import SearchPathPlugin
from hydra.version import VersionBase
from packaging.version import Version

from kerncfg.compiler.shared import HubGroups
from kerncfg.errors import ConfigError
from kerncfg.locations import conf

if TYPE_CHECKING:
    from hydra.core.config_loader import ConfigLoader
    from hydra.core.config_search_path import ConfigSearchPath

__all__ = ["add_packaged", "hydra_folder", "loader", "version_base"]

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
            search_path.append("hydra.searchpath", address)


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


def _start(folder: Path) -> None:
    try:
        hydra.initialize_config_dir(str(folder), **version_base())
    except (HydraException, ValueError) as error:
        raise ConfigError(f"hydra.searchpath cannot be used: {error}") from error


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
            yield GlobalHydra.instance().config_loader()
        finally:
            _PackagedGroups.further = ()
            for kind in (GlobalHydra, VersionBase):
                states.pop(kind, None)
            states.update(before)
