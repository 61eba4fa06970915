"""Brings libraries that are no dependency of ours, and asks them questions in a process of its own."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest


def ask(folder: Path | None, script: str, question: Any) -> Any:
    """Run a script beside the library, with a question as JSON on its standard input, and read its answer."""
    environment = {**os.environ, "HF_HUB_OFFLINE": "1", **({"PYTHONPATH": str(folder)} if folder else {})}
    command = [sys.executable, "-W", "ignore", "-c", script]
    done = subprocess.run(
        command, input=json.dumps(question), capture_output=True, text=True, env=environment, timeout=240
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def installed(folder: Path, packages: Sequence[str]) -> Path:
    """Install packages, without what they need, into a folder; where that cannot be done the tests are skipped."""
    options = ["--quiet", "--no-deps", "--no-input", "--disable-pip-version-check", "--retries", "0", "--timeout", "15"]
    command = [sys.executable, "-m", "pip", "install", *options, "--target", str(folder), *packages]
    done = subprocess.run(command, capture_output=True, text=True, timeout=240)
    if done.returncode:
        pytest.skip(f"cannot install {packages[0]}: {done.stderr.strip().splitlines()[-1:]}")
    return folder
