"""What Hydra finds of kerncfg by itself: the packaged groups on every application's search path, and `hf://` addresses.

Shipped as `hydra_plugins/kerncfg`, the namespace that Hydra scans.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from hydra.plugins.search_path_plugin import SearchPathPlugin

from kerncfg.compiler.compose import add_packaged
from kerncfg.compiler.shared import HubGroups

if TYPE_CHECKING:
    from hydra.core.config_search_path import ConfigSearchPath

__all__ = ["HubGroups", "PackagedGroups"]


class PackagedGroups(SearchPathPlugin):
    """Puts the packaged `conf/` behind the application's own folders."""

    def manipulate_search_path(self, search_path: ConfigSearchPath) -> None:
        """Append the packaged folder unless it is there already."""
        add_packaged(search_path)
