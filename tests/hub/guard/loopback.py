"""Refuses whatever would leave this machine, here and in every Python that a test starts.

A process that a test starts loads this by `sitecustomize`, so it imports little. What was refused is also written to
the file that HUB_REFUSALS names, since a client may swallow the error.
"""

from __future__ import annotations

import os
import socket
from collections.abc import Callable
from typing import Any

REFUSALS = "HUB_REFUSALS"
EVERY_REFUSAL = "HUB_EVERY_REFUSAL"  # the same for a test without a Hub of its own
_HERE = (None, "", b"", "localhost", b"localhost")


def _loopback(host: Any) -> bool:
    """Whether a host is this machine by name or number."""
    if host in _HERE:
        return True
    try:
        packed = socket.inet_pton(socket.AF_INET6 if ":" in host else socket.AF_INET, host)
    except (OSError, TypeError):
        return False
    return packed[0] == 127 if len(packed) == 4 else packed == b"\0" * 15 + b"\1"


def _refuse(address: Any, error: type[OSError]) -> OSError:
    message = f"a test wanted to reach {address}; tests reach loopback only"
    if file := os.environ.get(REFUSALS):
        with open(file, "a", encoding="utf-8") as log:  # noqa: PTH123 - pathlib would be imported by every process
            log.write(f"{message}\n")
    elif file := os.environ.get(EVERY_REFUSAL):
        with open(file, "a", encoding="utf-8") as log:  # noqa: PTH123
            log.write(f"{os.environ.get('PYTEST_CURRENT_TEST', 'no test')}: {message}\n")
    return error(message)


def _by_address(real: Callable[..., Any]) -> Callable[..., Any]:
    def call(self: socket.socket, *arguments: Any) -> Any:
        address = arguments[-1]
        # A path is a Unix socket.
        if isinstance(address, tuple) and not _loopback(address[0]):
            raise _refuse(address, OSError)
        return real(self, *arguments)

    return call


def _by_name(real: Callable[..., Any]) -> Callable[..., Any]:
    def call(host: Any, *arguments: Any, **options: Any) -> Any:
        # To look a name up is to ask another machine; a number asks nobody.
        text = host.decode() if isinstance(host, bytes) else host
        if not _loopback(host) and not _number(text) and text != socket.gethostname():
            raise _refuse(text, socket.gaierror)
        return real(host, *arguments, **options)

    return call


def _number(host: str) -> bool:
    try:
        socket.inet_pton(socket.AF_INET6 if ":" in host else socket.AF_INET, host)
    except OSError:
        return False
    return True


def guards() -> list[tuple[Any, str, Callable[..., Any]]]:
    """Give what to set where: owner, attribute, the guarded call."""
    calls = [(socket.socket, name, _by_address(getattr(socket.socket, name))) for name in ("connect", "connect_ex")]
    calls.append((socket.socket, "sendto", _by_address(socket.socket.sendto)))
    return [*calls, (socket, "getaddrinfo", _by_name(socket.getaddrinfo))]


def guarded(environment: dict[str, str], folder: str) -> dict[str, str]:
    """Give the environment of a process that a test starts, in which Python loads this."""
    paths = environment.get("PYTHONPATH", "").split(os.pathsep)
    kept = [path for path in paths if path and path != folder]
    told = {name: os.environ[name] for name in (EVERY_REFUSAL, "PYTEST_CURRENT_TEST") if name in os.environ}
    return {**told, **environment, "PYTHONPATH": os.pathsep.join([folder, *kept])}
