"""Asks the `kernels` library questions, in a process of its own."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any


def ask(folder: Path | None, script: str, question: Any) -> Any:
    """Run a script beside the library, with a question as JSON on its standard input, and read its answer."""
    environment = {**os.environ, "HF_HUB_OFFLINE": "1", **({"PYTHONPATH": str(folder)} if folder else {})}
    command = [sys.executable, "-W", "ignore", "-c", script]
    done = subprocess.run(
        command, input=json.dumps(question), capture_output=True, text=True, env=environment, timeout=240
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)
