"""Several things at once, in threads that hold nobody up.

The threads of `concurrent.futures` are waited for, at the end of a block and at the end of the process, also when
somebody has asked for the end and a thread waits for an answer that does not come.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable
from concurrent.futures import Future
from typing import Any, TypeVar

__all__ = ["together"]

Item = TypeVar("Item")
Answer = TypeVar("Answer")


def together(ask: Callable[[Item], Answer], items: Iterable[Item], *, most: int) -> list[Answer]:
    """Return what `ask` answers about each item, in their order, with at most so many asked at once.

    The first error of one is raised when all have been asked. An interrupt is raised at once: nothing else is begun,
    and what has begun ends by itself, or with the process.
    """
    asked = [(item, Future[Any]()) for item in items]
    waiting = iter(asked)
    lock = threading.Lock()
    stopped = threading.Event()

    def work() -> None:
        while not stopped.is_set():
            with lock:
                item, answer = next(waiting, (None, None))
            if answer is None:
                return
            try:
                answer.set_result(ask(item))  # type: ignore[arg-type]
            except BaseException as error:
                answer.set_exception(error)

    for number in range(min(most, len(asked))):
        threading.Thread(target=work, name=f"kerncfg-{number}", daemon=True).start()
    try:
        for _, answer in asked:
            answer.exception()
    finally:
        stopped.set()
    return [answer.result() for _, answer in asked]
