"""The process ends when its work is done: not before, in a kernel's hands, and not later, by a thread it left."""

from __future__ import annotations

import os
import sys
import threading
import time
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager, suppress
from typing import Any

__all__ = ["Ended", "end_in_time", "never_ended"]

_EXIT = os._exit
_ENDS = ("_exit", "execv", "execve")  # what ends a process without a word, and by what the others of `os` end it
_FEW = 3  # threads that a line names
_GRACE = 2.0  # seconds that threads get to end by themselves, as those of pools do


class Ended(SystemExit):
    """What would have ended the process at once was called."""


@contextmanager
def never_ended() -> Iterator[None]:
    """Make `os._exit` and `os.exec*` raise `Ended` meanwhile, in this thread and in those that begin in it.

    Threads that were there before, and processes forked meanwhile, end as they like. Code in C does too.
    """
    process, over = os.getpid(), threading.Event()
    others = {thread.ident for thread in threading.enumerate()} - {threading.get_ident()}
    before = {name: getattr(os, name) for name in _ENDS}

    def mine() -> bool:
        return not over.is_set() and os.getpid() == process and threading.get_ident() not in others

    for name, real in before.items():
        setattr(os, name, _raising(name, real, mine))
    try:
        yield
    finally:
        over.set()  # of two threads in here, the one that came last may leave these behind
        for name, real in before.items():
            setattr(os, name, real)


def _raising(name: str, real: Callable[..., Any], mine: Callable[[], bool]) -> Callable[..., Any]:
    def ends(*args: Any, **kwargs: Any) -> Any:
        if not mine():
            return real(*args, **kwargs)
        first = next(iter((*args, *kwargs.values())), "")
        raise Ended(f"os.{name}({first!r}) would have ended the process without a result")

    return ends


def end_in_time(code: int, known: Collection[threading.Thread], tell: Callable[[str], None]) -> None:
    """See to it that the process, which is done, ends with `code` even where threads beyond the `known` go on.

    It ends as usual where these end within 2 seconds; else `tell` gets a line, and what is written is flushed.
    """
    if not _left(known):
        return

    def end() -> None:
        time.sleep(_GRACE)
        if left := _left(known):
            with suppress(Exception):  # nothing may keep it from ending
                more = f" and {len(left) - _FEW} more" if len(left) > _FEW else ""
                tell(
                    f"threads that a kernel or a model left are ended with the process: {', '.join(left[:_FEW])}{more}"
                )
            for stream in (sys.stdout, sys.stderr):
                with suppress(Exception):
                    stream.flush()
            _EXIT(code)

    threading.Thread(target=end, name="kerncfg ends", daemon=True).start()


def _left(known: Collection[threading.Thread]) -> list[str]:
    others = (threading.main_thread(), threading.current_thread())
    return [one.name for one in threading.enumerate() if not (one.daemon or one in known or one in others)]
