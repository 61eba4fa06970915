"""Plans of kernels from the loopback Hub: in this process, and as a user types them."""

from __future__ import annotations

import contextlib
import io
import json
import os
import subprocess
import sys
import warnings
from collections.abc import Iterator, Mapping
from contextlib import redirect_stderr, redirect_stdout
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import kerncfg
from kerncfg.cli import main
from kerncfg.documents.config import KernelRef, Trust
from kerncfg.machine import detect
from kerncfg.sources import Question, pin
from tests.hub.kernels import TRUSTED

if TYPE_CHECKING:
    from kerncfg.documents.lock import Pin
    from kerncfg.documents.plan import Choice, Kernel
    from tests.hub.fixtures import TestHub

TRUST = Trust(publishers=frozenset({TRUSTED}))
CPU = ("inherited=none", "target=cpu")


def asked(text: str, *, trust: Trust = TRUST, device: str | None = "cpu", **target: Any) -> Pin:
    """What a new source answers about a reference, for a target or for all."""
    machine = detect({"device": device, **target}) if device else None
    ref = KernelRef.parse(text)
    found = pin([ref], target=machine, trust=trust).pin(ref)
    assert found is not None
    return found


def question(trust: Trust = TRUST) -> Question:
    return Question(target=detect({"device": "cpu"}), trust=trust)


def planned(*words: str, **said: Any) -> kerncfg.Plan:
    """The plan of rows for a CPU, in this process."""
    return kerncfg.plan(*CPU, *words, **said)


def row(reference: str, name: str = "Scale") -> str:
    """A row of the command line; a range needs quotes there."""
    return f"kernels.{name}.cpu='{reference}:{name}'"


def first(plan: kerncfg.Plan, name: str = "Scale") -> Choice:
    return plan.step(name).modes[kerncfg.Mode.INFERENCE].choices[0]


def kernel(plan: kerncfg.Plan, name: str = "Scale") -> Kernel:
    return first(plan, name).kernel


def refusal(plan: kerncfg.Plan, name: str = "Scale") -> str:
    return plan.step(name).modes[kerncfg.Mode.INFERENCE].rejected[0].reason


@dataclass(frozen=True, slots=True, kw_only=True)
class Done:
    """A command that ended."""

    code: int
    out: str
    err: str

    @property
    def data(self) -> Any:
        return json.loads(self.out)

    def inference(self, name: str = "Scale") -> dict[str, Any]:
        """What a printed plan says of a row when not training."""
        (step,) = (step for step in self.data["steps"] if step["name"] == name)
        found: dict[str, Any] = step["modes"]["inference"]
        return found

    def commit(self, name: str = "Scale") -> str | None:
        found: str | None = self.inference(name)["choices"][0]["commit"]
        return found

    def refusal(self, name: str = "Scale") -> str:
        return str(self.inference(name)["rejected"][0]["reason"])


def started(hub: TestHub, folder: Path, *words: str, **environment: str | None) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-m", "kerncfg", *words],
        cwd=folder,
        env=hub.environment(**environment),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def ended(process: subprocess.Popen[str]) -> Done:
    out, err = process.communicate(timeout=120)
    assert "Traceback" not in err, err
    return Done(code=process.returncode, out=out, err=err)


def typed(hub: TestHub, folder: Path, *words: str, **environment: str | None) -> Done:
    """Type a command of kerncfg in a folder, where nothing but this Hub is known.

    In this process, which spares the start of one: kerncfg heeds variables that change after its import.
    """
    before, out, err = dict(os.environ), io.StringIO(), io.StringIO()
    with contextlib.chdir(folder), warnings.catch_warnings(), redirect_stdout(out), redirect_stderr(err):
        warnings.resetwarnings()
        warnings.simplefilter("ignore", DeprecationWarning)
        try:
            there = hub.environment(**environment)
            os.environ.clear()
            os.environ.update(there)
            code = main([*words])
        finally:
            os.environ.clear()
            os.environ.update(before)
    return Done(code=code, out=out.getvalue(), err=err.getvalue())


def typed_apart(hub: TestHub, folder: Path, *words: str, **environment: str | None) -> Done:
    """Type a command in a process of its own, as a user would: for faults, which may end a process."""
    return ended(started(hub, folder, *words, **environment))


def plan_apart(hub: TestHub, folder: Path, *words: str, **environment: str | None) -> Done:
    """Type `kerncfg plan --json` for a CPU, in a process of its own."""
    done = typed_apart(hub, folder, "plan", "--json", *CPU, *words, **environment)
    assert done.code == 0, done.err
    return done


def plan_of(hub: TestHub, folder: Path, *words: str, **environment: str | None) -> Done:
    """Type `kerncfg plan --json` for a CPU."""
    done = typed(hub, folder, "plan", "--json", *CPU, *words, **environment)
    assert done.code == 0, done.err
    return done


def files_of(folder: Path) -> Mapping[str, tuple[int, int]]:
    """Every path below a folder with size and time of modification, to be compared."""
    return {str(path.relative_to(folder)): _stat(path) for path in _below(folder)}


def _below(folder: Path) -> Iterator[Path]:
    yield from sorted(folder.rglob("*"))


def _stat(path: Path) -> tuple[int, int]:
    found = path.lstat()
    return found.st_size, found.st_mtime_ns
