"""The rules that hold for every test do hold."""

from __future__ import annotations

import re
import shutil
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from tests.hub.guard.loopback import REFUSALS

SKIPS = """
import pytest

@pytest.mark.skip(reason="no reason")
def test_skipped(): ...

def test_skips_itself():
    pytest.importorskip("a_package_that_nobody_has")

@pytest.mark.peers
@pytest.mark.skip(reason="no peer")
def test_without_a_peer(): ...

@pytest.mark.xfail(strict=True)
def test_expected_to_fail():
    assert False
"""


def _run(folder: Path, code: str) -> str:
    shutil.copy(Path(__file__).with_name("conftest.py"), folder)
    ini = f"[pytest]\npythonpath = {Path(__file__).parents[1]}\nmarkers =\n  gpu\n  peers\n"
    (folder / "pytest.ini").write_text(ini, encoding="utf-8")
    (folder / "test_it.py").write_text(code, encoding="utf-8")
    command = [sys.executable, "-m", "pytest", "-q", "-rA", "-p", "no:cacheprovider", str(folder)]
    return subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=120).stdout


def test_only_a_missing_device_or_peer_is_a_reason_to_skip(tmp_path: Path) -> None:
    printed = _run(tmp_path, SKIPS)
    # One more word where a plugin had imported distutils before setuptools came.
    assert re.search(r"1 failed, 1 skipped, 1 xfailed,( 1 warning,)? 1 error", printed)
    assert "only tests marked gpu or peers may skip" in printed


def test_a_file_that_skips_itself_fails(tmp_path: Path) -> None:
    printed = _run(tmp_path, "import pytest\npytest.importorskip('a_package_that_nobody_has')")
    assert "1 error" in printed


@pytest.mark.parametrize("host", ["192.0.2.1", "2001:db8::1", "example.invalid"])
def test_a_connection_that_leaves_this_machine_is_refused(
    host: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(REFUSALS, str(tmp_path / "refusals"))
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    with socket.socket(family) as outward, pytest.raises(OSError, match="tests reach loopback only"):
        outward.connect((host, 80))
    assert (tmp_path / "refusals").read_text() == f"a test wanted to reach {(host, 80)}; tests reach loopback only\n"


SWALLOWS = """
import socket, subprocess, sys

def reach():
    try:
        socket.create_connection(("192.0.2.1", 80), timeout=1)
    except OSError:
        pass

def test_here():
    reach()

def test_elsewhere():
    code = "import socket\\ntry: socket.getaddrinfo('example.invalid', 80)\\nexcept OSError: pass"
    subprocess.run([sys.executable, "-c", code], env={}, check=True)

def test_last():
    pass
"""


def test_a_connection_whose_refusal_somebody_swallows_fails_the_run(tmp_path: Path) -> None:
    printed = _run(tmp_path, SWALLOWS)
    assert "3 passed, 1 error" in printed
    assert (
        "test_it.py::test_here (call): a test wanted to reach ('192.0.2.1', 80); tests reach loopback only" in printed
    )
    assert "test_it.py::test_elsewhere (call): a test wanted to reach example.invalid; tests reach" in printed


def test_a_connection_to_this_machine_is_not() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server, socket.socket() as inward:
        inward.connect(server.getsockname())
