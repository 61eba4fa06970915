"""What holds for every test: no network but loopback, and no skip but for want of a device or a peer."""

from __future__ import annotations

import ipaddress
import socket
from collections.abc import Callable, Generator, Iterator
from importlib.util import find_spec
from typing import Any

import pytest

_MAY_SKIP = ("gpu", "peers")


def _loopback(address: Any) -> bool:
    """Whether a socket address stays on this machine; a path is a Unix socket."""
    host = address[0] if isinstance(address, tuple) else address
    if not isinstance(address, tuple) or host in ("", "localhost"):
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


@pytest.fixture(scope="session", autouse=True)
def loopback_only() -> Iterator[None]:
    """Refuse every connection that would leave this machine, for as long as tests run."""

    def guarded(name: str) -> Callable[..., Any]:
        real = getattr(socket.socket, name)

        def call(self: socket.socket, *arguments: Any) -> Any:
            address = arguments[-1]
            if not _loopback(address):
                raise OSError(f"a test wanted to reach {address}; tests reach loopback only")
            return real(self, *arguments)

        return call

    with pytest.MonkeyPatch.context() as patch:
        for name in ("connect", "connect_ex", "sendto"):
            patch.setattr(socket.socket, name, guarded(name))
        yield


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    lacking = {"gpu": _lacks_gpu, "peers": _lacks_peers}
    for name, lacks in lacking.items():
        marked = [item for item in items if item.get_closest_marker(name) and not _brings_its_peer(item)]
        if marked and (reason := lacks()):
            for item in marked:
                item.add_marker(pytest.mark.skip(reason=reason))


def _brings_its_peer(item: pytest.Item) -> bool:
    """Whether the test installs the library for itself, and skips where it cannot."""
    return "peer_overlay" in getattr(item, "fixturenames", ())


def _lacks_gpu() -> str | None:
    import torch

    return None if torch.cuda.is_available() else "no CUDA or ROCm device"


def _lacks_peers() -> str | None:
    return None if find_spec("kernels") else "the `kernels` library is not installed"


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """A skip for any other reason is a test that silently does not run: it fails."""
    report = yield
    allowed = any(item.get_closest_marker(name) for name in _MAY_SKIP) or hasattr(report, "wasxfail")
    if report.skipped and not allowed:
        report.outcome = "failed"
        report.longrepr = f"skipped: {report.longrepr}; only tests marked gpu or peers may skip"
    return report


@pytest.hookimpl(wrapper=True)
def pytest_make_collect_report(
    collector: pytest.Collector,
) -> Generator[None, pytest.CollectReport, pytest.CollectReport]:
    """The same for a file that skips itself, by `importorskip` for one."""
    report = yield
    if report.skipped:
        report.outcome = "failed"
        report.longrepr = f"skipped: {report.longrepr}; only tests marked gpu or peers may skip"
    return report
