"""Several things at once: in order, no more than are allowed, and no thread that holds up an interrupt."""

from __future__ import annotations

import signal
import subprocess
import sys
import threading
import time

import pytest

from kerncfg.together import together


def test_answers_come_in_the_order_of_the_items() -> None:
    assert together(lambda number: number * number, range(20), most=4) == [number * number for number in range(20)]
    assert together(str, [], most=4) == []


def test_no_more_are_asked_at_once_than_are_allowed() -> None:
    now, most, lock = [0], [0], threading.Lock()

    def ask(_: int) -> None:
        with lock:
            now[0] += 1
            most[0] = max(most[0], now[0])
        time.sleep(0.02)
        with lock:
            now[0] -= 1

    together(ask, range(9), most=3)
    assert most[0] == 3


def test_the_first_error_is_raised_when_all_have_been_asked() -> None:
    asked: list[int] = []

    def ask(number: int) -> int:
        time.sleep(0.01 * number)
        asked.append(number)
        if number in (1, 3):
            raise ValueError(number)
        return number

    with pytest.raises(ValueError, match="1"):
        together(ask, range(5), most=5)
    assert sorted(asked) == list(range(5))


PROGRAM = """
import time
from kerncfg.together import together

begun = []

def ask(number):
    begun.append(number)
    print("begun\\n", end="", flush=True)  # one write: the others print at the same time
    time.sleep(60)

try:
    together(ask, range(9), most=2)
except KeyboardInterrupt:
    print(len(begun), "interrupted", flush=True)
"""


def test_an_interrupt_is_heard_at_once_and_holds_no_process_up() -> None:
    process = subprocess.Popen([sys.executable, "-c", PROGRAM], stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    assert [process.stdout.readline() for _ in range(2)] == ["begun\n"] * 2
    process.send_signal(signal.SIGINT)
    start = time.monotonic()
    out, _ = process.communicate(timeout=30)
    assert time.monotonic() - start < 5
    assert out == "2 interrupted\n" and process.returncode == 0
