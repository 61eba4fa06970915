"""What both kernel tests share: the devices, and a run of one file under Triton's interpreter.

The interpreter must be asked for before triton is imported, so it gets a process of its own: each file has
one test that runs the same file again under TRITON_INTERPRET=1, where CPU tensors take the Triton path. On a
machine with a GPU the `gpu` cases of the first process run the compiled kernels.
"""

from __future__ import annotations

import os
import subprocess
import sys
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any
from xml.etree import ElementTree

import pytest
import torch

from kerncfg.kernels._path import INTERPRETED

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

NEEDS_CUDA = pytest.mark.skipif(
    INTERPRETED or not torch.cuda.is_available(), reason="needs a CUDA device (and no interpreter)"
)


@pytest.fixture(params=["cpu", pytest.param("cuda", marks=[pytest.mark.gpu, NEEDS_CUDA])])
def device(request: pytest.FixtureRequest) -> str:
    """Name the device that a test runs on; "cpu" is the Triton path in the interpreter's process."""
    return str(request.param)


@dataclass(frozen=True)
class Outcome:
    """What a pytest process reported."""

    code: int
    passed: int
    failed: int
    text: str


@pytest.fixture
def run_interpreted(tmp_path: Path) -> Callable[[str], Outcome]:
    """Give a function that runs one test file in a process with Triton's interpreter."""

    def run(file: str) -> Outcome:
        report = tmp_path / "report.xml"
        # none of this process's options: neither its workers nor its selection
        options = [
            "-o",
            "addopts=",
            "--import-mode=importlib",
            "-p",
            "no:cacheprovider",
            "-q",
            f"--junitxml={report}",
        ]
        environment = os.environ | {"TRITON_INTERPRET": "1"}
        environment.pop("PYTEST_ADDOPTS", None)
        command = [sys.executable, "-m", "pytest", *options, file]
        done = subprocess.run(command, env=environment, capture_output=True, text=True)
        suite = next(ElementTree.parse(report).iter("testsuite"))
        failed = int(suite.get("failures", 0)) + int(suite.get("errors", 0))
        passed = int(suite.get("tests", 0)) - int(suite.get("skipped", 0)) - failed
        return Outcome(done.returncode, passed, failed, done.stdout + done.stderr)

    return run


def pytest_configure(config: pytest.Config) -> None:
    """Make the interpreter round float32 to bfloat16 as a GPU does; triton 3.9's cuts the bits off."""
    if not INTERPRETED:
        return
    from triton import language as tl
    from triton.runtime import interpreter

    def cast(self: Any, source: Any, target: Any, plain: Any = interpreter.InterpreterBuilder.cast_impl) -> Any:
        if source.dtype.scalar != tl.float32 or target.scalar != tl.bfloat16:
            return plain(self, source, target)
        rounded = torch.tensor(source.data).to(torch.bfloat16).view(torch.uint16).numpy()
        return interpreter.TensorHandle(rounded, target.scalar)

    interpreter.InterpreterBuilder.cast_impl = cast
