"""A repository with one of everything, and the client's calls that several tests make."""

from __future__ import annotations

import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import huggingface_hub

from tests.hub.git import File
from tests.hub.repos import Build, Repository

if TYPE_CHECKING:
    import pytest

    from tests.hub.fixtures import TestHub

NAME = "acme/norms"


def sample() -> Repository:
    """Branches main, v1 and feature/x, a tag, two builds, one large file of 10,240 bytes."""
    made = Repository(NAME).describe()
    large = File(data=bytes(range(256)) * 40, lfs=True)
    builds = [Build(name="norms", modules={"__init__.py": "ONE = 1\n", "part/large.so": large})]
    builds += [Build(name="norms", modules={"__init__.py": "ONE = 2\n"}, variant="torch-cuda")]
    made.release(builds, tag="v1.0.0")
    made.branch("feature/x", "v1")
    return made


def download(hub: TestHub, path: str, revision: str = "v1", *, token: str | bool = False) -> Path:
    """Download a file of the sample into the Hub's own cache."""
    found: Any = huggingface_hub.hf_hub_download(
        NAME, path, repo_type="kernel", revision=revision, endpoint=hub.url, cache_dir=hub.cache, token=token
    )
    return Path(found)


def quick(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """Let the client's retries come at once, and give how long each would have waited."""
    waits: list[float] = []
    monkeypatch.setattr(time, "sleep", waits.append)
    return waits
