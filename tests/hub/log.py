"""What was asked of the loopback Hub, in the order of arrival."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from threading import Lock

# Asked by huggingface_hub itself once a day and cache, unless telemetry is off; no test counts it.
UNASKED = "harnesses"


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """One request and how it was answered; `status` is `None` where the connection was reset instead.

    `kind` is the route: overview, refs, info, revision, tree, paths, resolve, cdn, whoami, create, validate-yaml,
    preupload, commit, harnesses, other.
    `path` is as it was sent, percent-encoded and with the query; `range` is the header.
    """

    method: str
    path: str
    kind: str
    repository: str | None
    status: int | None
    range: str | None = None
    authorized: bool = False
    agent: str = ""

    def __str__(self) -> str:
        marks = f"{' ' + self.range if self.range else ''}{' with a token' if self.authorized else ''}"
        return f"{self.method} {self.path}{marks} -> {self.status or 'reset'}"


class Log:
    """The requests so far; safe to read while the Hub answers."""

    def __init__(self) -> None:
        self._requests: list[Request] = []
        self._lock = Lock()
        self._now = 0
        self.most_at_once = 0

    def add(self, request: Request) -> None:
        with self._lock:
            self._requests.append(request)

    @contextmanager
    def open(self) -> Iterator[None]:
        """Count a request as being answered."""
        with self._lock:
            self._now += 1
            self.most_at_once = max(self.most_at_once, self._now)
        try:
            yield
        finally:
            with self._lock:
                self._now -= 1

    @property
    def everything(self) -> list[Request]:
        """Every request, telemetry included."""
        with self._lock:
            return list(self._requests)

    def find(
        self,
        pattern: str = "",
        *,
        method: str | None = None,
        kind: str | None = None,
        repository: str | None = None,
        status: int | None = None,
    ) -> list[Request]:
        """Give the requests, telemetry left out, whose `METHOD PATH` the regular expression finds, and so on."""
        said = {"method": method, "kind": kind, "repository": repository, "status": status}
        wanted = {key: value for key, value in said.items() if value is not None}
        return [
            each
            for each in self.everything
            if each.kind != UNASKED
            and re.search(pattern, f"{each.method} {each.path}")
            and all(getattr(each, key) == value for key, value in wanted.items())
        ]

    def count(
        self,
        pattern: str = "",
        *,
        method: str | None = None,
        kind: str | None = None,
        repository: str | None = None,
        status: int | None = None,
    ) -> int:
        return len(self.find(pattern, method=method, kind=kind, repository=repository, status=status))

    def kinds(self) -> dict[str, int]:
        """Count the requests by route, a HEAD as `HEAD resolve`."""
        return dict(Counter(f"{'HEAD ' * (each.method == 'HEAD')}{each.kind}" for each in self.find()))

    def clear(self) -> None:
        with self._lock:
            self._requests.clear()
            self.most_at_once = self._now

    @contextmanager
    def expect(self, count: int, pattern: str = "") -> Iterator[None]:
        """Fail unless the block makes exactly so many requests that the pattern finds; the message lists them."""
        before = len(self.everything)
        yield
        with self._lock:
            later = self._requests[before:]
        made = [each for each in later if each.kind != UNASKED and re.search(pattern, f"{each.method} {each.path}")]
        listed = "".join(f"\n  {each}" for each in made)
        assert len(made) == count, f"{len(made)} requests, expected {count}:{listed}"

    def __str__(self) -> str:
        return "\n".join(map(str, self.everything))
