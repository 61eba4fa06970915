"""Fixtures: a running Hub, a cache of its own, and the environment in which a process finds both."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.hub import kernels
from tests.hub.guard.loopback import REFUSALS
from tests.hub.kernels import ACME, STRANGER, TRUSTED
from tests.hub.server import Hub

if TYPE_CHECKING:
    from tests.hub.repos import Repository

_ROOT = Path(__file__).parents[2]
_GUARD = Path(__file__).with_name("guard")

# What would lead a client elsewhere, to other files or past the Hub.
_STRAY = (
    "HF_TOKEN", "HUGGING_FACE_HUB_TOKEN", "HF_TOKEN_PATH", "HF_HUB_CACHE", "HUGGINGFACE_HUB_CACHE", "HF_XET_CACHE",
    "HF_HUB_OFFLINE", "TRANSFORMERS_OFFLINE", "HF_HUB_DISABLE_IMPLICIT_TOKEN", "HF_ENDPOINT", "HF_HOME",
    "HF_HUB_DOWNLOAD_TIMEOUT", "HF_HUB_ETAG_TIMEOUT", "HF_HUB_USER_AGENT_ORIGIN", "HUGGINGFACE_CO_STAGING",
    "KERNELS_CACHE", "LOCAL_KERNELS", "USE_HUB_KERNELS", "DISABLE_KERNEL_MAPPING", "XDG_CACHE_HOME",
    "http_proxy", "https_proxy", "all_proxy", "HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY",
)  # fmt: skip


class TestHub(Hub):
    """A Hub with a home: the folder that HF_HOME names."""

    __test__ = False

    def __init__(self, home: Path) -> None:
        super().__init__()
        self.home = home
        self.publishers = {TRUSTED: True, ACME: False, STRANGER: False}
        self.refusals = home.with_name(f"{home.name}-refusals")

    @property
    def cache(self) -> Path:
        """The folder of huggingface_hub's cache."""
        return self.home / "hub"

    def settings(self) -> dict[str, str]:
        """Give the variables that lead a client here."""
        return {
            "HF_ENDPOINT": self.url,
            "HF_HOME": str(self.home),
            "HF_HUB_DISABLE_XET": "1",
            "HF_HUB_DISABLE_TELEMETRY": "1",
            "HF_HUB_DISABLE_PROGRESS_BARS": "1",
            "NO_PROXY": "127.0.0.1,localhost",
            REFUSALS: str(self.refusals),
        }

    def environment(self, **more: str | None) -> dict[str, str]:
        """Give the whole environment of a process that knows this Hub and no network; `None` takes a variable away.

        For the `kernels` library say `HF_HUB_DISABLE_TELEMETRY=None`: without telemetry it sends an empty user agent,
        which its own HTTP client refuses.
        """
        kept = {name: value for name, value in os.environ.items() if name not in _STRAY}
        paths = [str(_GUARD), str(_ROOT), *filter(None, [kept.get("PYTHONPATH")])]
        base = {**kept, **self.settings(), "PYTHONPATH": os.pathsep.join(paths), "OMP_NUM_THREADS": "1"}
        return {name: value for name, value in {**base, **more}.items() if value is not None}

    def refused(self) -> str:
        """Give what was refused for it would have left this machine, here or in a process that a test started."""
        return self.refusals.read_text("utf-8") if self.refusals.exists() else ""


@pytest.fixture
def hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[TestHub]:
    """A running Hub without repositories, a cache of its own, and the variables that lead a client to both.

    huggingface_hub reads its variables when it is imported: in-process pass `endpoint` and `cache_dir` to it.
    """
    for name in _STRAY:
        monkeypatch.delenv(name, raising=False)
    with TestHub(tmp_path / "hf") as running:
        for name, value in running.settings().items():
            monkeypatch.setenv(name, value)
        yield running
    assert not running.refused()
    assert not running.crashes


@pytest.fixture
def norms(hub: TestHub) -> Repository:
    """The kernels of most tests, at the running Hub."""
    made = kernels.norms()
    hub.add(made)
    return made
