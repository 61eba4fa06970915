"""Faults that a test switches on: by pattern, for a number of requests."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from threading import Lock
from typing import Literal


@dataclass(slots=True, kw_only=True)
class Fault:
    """What goes wrong for requests whose `METHOD PATH` the regular expression finds.

    `pattern` sees the path as it was sent, percent-encoded. The first `after` such requests pass, the next `times`
    fail, all of them if `None`; `hits` counts. `delay` seconds go by before the answer, `status` is answered instead
    of it (`code` as X-Error-Code, `message` as X-Error-Message, `retry_after` seconds), `reset` drops the connection
    before a byte of the answer. Of any body, `cut` keeps a fraction and then ends the connection (with `reset` too it
    breaks it off) and `slow` seconds pass before each of ten pieces. Of a file, `wrong` changes every byte and not the
    length, `replace` puts other bytes for some, `short` answers in good order with this many bytes less. A large
    file's body comes from `/cdn/SHA256`, not from its `/resolve/` address.
    """

    pattern: str
    times: int | None = 1
    after: int = 0
    delay: float = 0.0
    status: int | None = None
    code: str | None = None
    message: str | None = None
    retry_after: float | None = None
    reset: bool = False
    cut: float | None = None
    slow: float = 0.0
    wrong: bool = False
    replace: tuple[bytes, bytes] | None = None
    short: int = 0
    hits: int = 0
    _seen: int = field(default=0, repr=False)

    def meets(self, line: str) -> bool:
        """Whether this request, `METHOD PATH`, is to fail; it is counted."""
        if not re.search(self.pattern, line):
            return False
        self._seen += 1
        if self._seen <= self.after or (self.times is not None and self.hits >= self.times):
            return False
        self.hits += 1
        return True

    @property
    def breaks(self) -> Literal["before", "inside"] | None:
        """When the connection is reset."""
        return None if not self.reset else "before" if self.cut is None else "inside"

    def spoil(self, body: bytes) -> bytes:
        """Give the body that is sent in place of the right one."""
        if self.wrong:
            body = bytes(byte ^ 1 for byte in body)
        if self.replace:
            body = body.replace(*self.replace)
        return body[: len(body) - self.short] if self.short else body


class Faults:
    """The faults of one Hub; the first that meets a request is what happens to it."""

    def __init__(self) -> None:
        self._faults: list[Fault] = []
        self._lock = Lock()

    def add(self, fault: Fault) -> Fault:
        with self._lock:
            self._faults.append(fault)
        return fault

    def clear(self) -> None:
        with self._lock:
            self._faults.clear()

    def meeting(self, line: str) -> Fault | None:
        """Give the fault for one request, and count it."""
        with self._lock:
            return next((fault for fault in self._faults if fault.meets(line)), None)
