from __future__ import annotations

import os
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from kerncfg.ending import Ended, never_ended

_COMMANDS = """
import os, sys, threading, time
from kerncfg.cli import main, program

@program.command()
def stays():
    threading.Thread(target=time.sleep, args=(600,), name="stays").start()
    print("done")
    return 1

@program.command()
def ends():
    os._exit(0)

sys.exit(main())
"""


def command(name: str) -> tuple[int, str, str]:
    """Run a command of the real command line that does what a kernel in it may do."""
    env = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[1])}
    done = subprocess.run(
        [sys.executable, "-c", _COMMANDS, name], env=env, capture_output=True, text=True, check=False, timeout=60
    )
    return done.returncode, done.stdout, done.stderr


def test_a_command_ends_with_its_code_even_where_a_thread_stays() -> None:
    code, out, err = command("stays")
    assert (code, out) == (1, "done\n")
    assert err == "warning: threads that a kernel or a model left are ended with the process: stays\n"


def test_a_command_that_is_ended_from_within_did_not_pass() -> None:
    assert command("ends") == (1, "", "error: os._exit(0) would have ended the process without a result\n")


@pytest.mark.parametrize(
    ("name", "arguments"),
    [
        ("_exit", (0,)),
        ("execv", ("/bin/true", ["true"])),
        ("execvp", ("/bin/true", ["true"])),
        ("execl", ("/bin/true", "true")),
    ],
)
def test_whatever_ends_the_process_at_once_raises(name: str, arguments: tuple[object, ...]) -> None:
    before = os._exit, os.execv, os.execve
    with never_ended(), pytest.raises(Ended, match=r"^os\.\w+\(.* would have ended"):
        getattr(os, name)(*arguments)
    assert (os._exit, os.execv, os.execve) == before


def test_a_process_forked_meanwhile_ends_as_it_likes() -> None:
    with never_ended(), never_ended():
        if not (child := os.fork()):
            os._exit(7)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 7


def test_threads_that_were_there_end_the_process_and_new_ones_do_not(monkeypatch: pytest.MonkeyPatch) -> None:
    ended: list[object] = []
    monkeypatch.setattr(os, "_exit", ended.append)
    go = threading.Event()

    def old() -> None:
        go.wait()
        os._exit(1)

    def new() -> None:
        with pytest.raises(Ended):
            os._exit(2)
        ended.append("raised")

    before = threading.Thread(target=old)
    before.start()
    with never_ended():
        go.set()
        before.join()
        after = threading.Thread(target=new)
        after.start()
        after.join()
    assert ended == [1, "raised"]


def test_of_two_that_overlap_none_is_in_force_afterwards(monkeypatch: pytest.MonkeyPatch) -> None:
    ended: list[object] = []
    monkeypatch.setattr(os, "_exit", ended.append)
    first, second = never_ended(), never_ended()
    first.__enter__()
    second.__enter__()
    first.__exit__(None, None, None)
    second.__exit__(None, None, None)
    getattr(os, "_exit")(5)  # noqa: B009 - after it nothing would be reached
    assert ended == [5]
