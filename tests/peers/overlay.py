"""The `kernels` library in a folder of its own, which a subprocess puts before what is installed here."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

KERNELS = "kernels==0.17.2"
REQUIREMENTS = (KERNELS, "tomlkit")  # the rest of what it imports is installed here


def installed(folder: Path, *requirements: str) -> Path:
    """Install packages into a folder, without what they require; skip the test where pip cannot."""
    command = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--target", str(folder), *requirements]
    done = subprocess.run(command, capture_output=True, text=True, timeout=240)
    if done.returncode:
        lines = [line for line in done.stderr.splitlines() if line.startswith("ERROR")] or done.stderr.splitlines()
        pytest.skip(f"pip cannot install {' '.join(requirements)}: {lines[-1] if lines else 'no reason given'}")
    return folder


@pytest.fixture(scope="session")
def peer_overlay(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Give the folder that holds the `kernels` library; a test that asks for it may skip, and is marked `peers`."""
    return installed(tmp_path_factory.mktemp("peer"), *REQUIREMENTS)


def ask(overlay: Path, script: str, question: Any) -> Any:
    """Run a script beside the library, with a question as JSON on its standard input, and read its answer."""
    environment = {**os.environ, "PYTHONPATH": str(overlay), "HF_HUB_OFFLINE": "1"}
    command = [sys.executable, "-W", "ignore", "-c", script]
    done = subprocess.run(
        command, input=json.dumps(question), capture_output=True, text=True, env=environment, timeout=240
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)
