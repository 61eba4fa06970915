"""The `kernels` library beside the Hub of the tests, in a folder of its own: it is no dependency of ours."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable, Mapping
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.peers.overlay import installed

if TYPE_CHECKING:
    from tests.hub.fixtures import TestHub

# What huggingface_hub, torch and the rest are is this environment's; tomlkit is all that it may lack.
PACKAGES = ("kernels==0.17.2", "tomlkit")
FOLDER = "KERNCFG_PEERS"  # names a folder that holds them already


@pytest.fixture(scope="session")
def peer_folder(tmp_path_factory: pytest.TempPathFactory) -> Path | None:
    """Where `kernels` lies: `None` if it is installed; else it is installed now, or the tests are skipped."""
    if find_spec("kernels"):
        return None
    if said := os.environ.get(FOLDER):
        return Path(said)
    return installed(tmp_path_factory.mktemp("peers"), PACKAGES)


@pytest.fixture
def peer(hub: TestHub, peer_folder: Path | None) -> Callable[..., subprocess.CompletedProcess[str]]:
    """Run Python code in a process that has `kernels` and knows the Hub."""

    def run(code: str, env: Mapping[str, str] | None = None) -> subprocess.CompletedProcess[str]:
        # Without telemetry it sends an empty user agent, which its own HTTP client refuses.
        given = hub.environment(HF_HUB_DISABLE_TELEMETRY=None, **(env or {}))
        if peer_folder is not None:
            given["PYTHONPATH"] += f"{os.pathsep}{peer_folder}"
        command = [sys.executable, "-c", code]
        return subprocess.run(command, env=given, capture_output=True, text=True, timeout=120)

    return run
