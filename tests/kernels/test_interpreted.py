"""The Triton path passes the tests of its kernel, under Triton's interpreter: by hand TRITON_INTERPRET=1 pytest FILE.

Several files share a process: to import torch, transformers and the compiler costs as much as to run one of them.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections import Counter
from pathlib import Path
from xml.etree import ElementTree

import pytest

from kerncfg.kernels._path import INTERPRETED

HERE = Path(__file__).parent
# The files of a process, each with the number of its tests that have to pass at least.
SHARED = (
    {"cross_entropy": 65, "in_models": 10, "rotary": 40},
    {"geglu": 79, "gemma_rms_norm": 75, "layer_norm": 85, "rms_norm": 59, "rms_norm_mlp": 32, "swiglu": 39},
)


def file_of(name: str) -> Path:
    return HERE / f"test_{name}.py"


def passed(report: Path) -> Counter[str]:
    """How many tests of each file passed, by a report in JUnit's form."""
    cases = [case for case in ElementTree.parse(report).iter("testcase") if not len(case)]
    return Counter(case.get("classname", "").rpartition(".test_")[2] for case in cases)


if not INTERPRETED:

    @pytest.mark.timeout(600)
    @pytest.mark.parametrize("files", SHARED, ids=" ".join)
    def test_the_triton_path_passes_its_files(files: dict[str, int], tmp_path: Path) -> None:
        report = tmp_path / "report.xml"
        # none of this process's options: neither its workers nor its selection
        options = ["-o", "addopts=", "--import-mode=importlib", "-p", "no:cacheprovider", "-q", f"--junitxml={report}"]
        environment = os.environ | {"TRITON_INTERPRET": "1"}
        environment.pop("PYTEST_ADDOPTS", None)
        command = [sys.executable, "-m", "pytest", *options, *map(str, map(file_of, files))]
        done = subprocess.run(command, env=environment, capture_output=True, text=True)
        said = done.stdout + done.stderr
        assert done.returncode == 0, said
        found = passed(report)
        assert set(found) == set(files), said
        assert all(found[name] >= least for name, least in files.items()), (found, said)


def test_every_file_of_a_kernel_is_run_so() -> None:
    told = [file_of(name) for files in SHARED for name in files]
    others = [HERE / "test_layers.py", Path(__file__)]
    assert sorted(told + others) == sorted(HERE.glob("test_*.py"))
