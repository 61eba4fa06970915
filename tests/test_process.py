from __future__ import annotations

import os
import random
import signal
import sys
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy
import pytest
import torch

from kerncfg.ending import Ended
from kerncfg.evidence.process import process_kept


def test_the_switches_of_the_process_are_told_and_put_back() -> None:
    state = random.getstate()
    with process_kept() as process:
        torch.set_default_dtype(torch.float64)
        torch.set_grad_enabled(False)
        random.random()
        assert process.changes() == ["the default dtype", "gradient mode"]
    assert (torch.get_default_dtype(), torch.is_grad_enabled()) == (torch.float32, True)
    assert random.getstate() == state


def test_where_the_process_is_and_how_it_multiplies_are_told_and_put_back(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "gone").mkdir()
    drawn = numpy.random.get_state()[1].tolist()  # type: ignore[index]
    with process_kept() as process:
        os.chdir(tmp_path / "gone")
        torch.set_float32_matmul_precision("medium")
        torch.set_autocast_enabled("cpu", True)
        numpy.random.rand()
        names = ["the working directory", "the precision of float32 products", "autocast"]
        assert process.changes() == names
        (tmp_path / "gone").rmdir()
        assert process.changes() == names
    assert (Path.cwd(), torch.get_float32_matmul_precision()) == (tmp_path, "highest")
    assert not torch.is_autocast_enabled("cpu")
    assert numpy.random.get_state()[1].tolist() == drawn  # type: ignore[index]


@pytest.mark.parametrize(
    ("act", "told"),
    [
        (lambda: None, []),
        (lambda: torch.rand(1), ["draws from the global random state"]),
        (random.random, ["draws from the global random state"]),
        (numpy.random.rand, ["draws from the global random state"]),
        (lambda: torch.manual_seed(0), ["sets the seed of the global random state"]),
    ],
)
def test_what_is_done_to_the_random_state_is_told(act: Callable[[], Any], told: list[str]) -> None:
    with torch.random.fork_rng(devices=[]), process_kept() as process:
        process.seed(7)
        act()
        assert process.draws() == told


def test_handlers_of_signals_and_what_is_printed_to_are_told_and_put_back() -> None:
    handler, streams = signal.getsignal(signal.SIGINT), (sys.stdout, sys.stderr)
    with process_kept() as process:
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        sys.stdout = None
        sys.stderr = sys.__stderr__ if sys.stderr is not sys.__stderr__ else sys.__stdout__
        names = process.changes()
    assert names == ["the handlers of signals", "sys.stdout", "sys.stderr"]
    assert signal.getsignal(signal.SIGINT) is handler
    assert (sys.stdout, sys.stderr) == streams


def test_what_ends_the_process_raises_meanwhile() -> None:
    real = os._exit
    with pytest.raises(Ended, match=r"os\._exit\(0\) would have ended"), process_kept():
        os._exit(0)
    assert os._exit is real


def test_threads_that_go_on_are_told_and_others_not() -> None:
    end = threading.Event()
    with process_kept() as process, ThreadPoolExecutor(1) as pool:
        pool.submit(int).result()
        quick = threading.Thread(target=end.wait, args=(0.01,))
        quick.start()
        threading.Thread(target=end.wait, daemon=True).start()
        assert process.left() == []
        for _ in range(2):
            threading.Thread(target=end.wait).start()
        found = process.left()
        end.set()
    assert found == ["leaves the thread Thread (wait) running"]


def test_a_handler_set_by_the_main_thread_meanwhile_stays() -> None:
    begun, end, raised = threading.Event(), threading.Event(), list[BaseException]()

    def keep() -> None:
        try:
            with process_kept():
                begun.set()
                end.wait()
        except BaseException as error:
            raised.append(error)

    thread = threading.Thread(target=keep)
    thread.start()
    begun.wait()
    handler = signal.signal(signal.SIGUSR1, signal.SIG_IGN)
    try:
        end.set()
        thread.join()
        assert (signal.getsignal(signal.SIGUSR1), raised) == (signal.SIG_IGN, [])
    finally:
        signal.signal(signal.SIGUSR1, handler)
