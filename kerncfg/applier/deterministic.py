"""The same bits every time: which kernels may run under `policy.deterministic`, and the process's switches meanwhile.

Whether a kernel declares determinism is known only once its code is imported, which happens when a plan is applied. So
the question is asked there, of each kernel when its turn comes, and not when the plan is made.

The switches and the random state are the whole process's. Every apply that sets them remembers what it found; applies
may end in any order, since one that ends below another hands down what it remembers.
"""

from __future__ import annotations

import os
import random
import sys
import threading
import weakref
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING, Any

import torch

from kerncfg.applier.adapters.torch import walk
from kerncfg.applier.bind import bound
from kerncfg.verdicts import Verdicts, environment

if TYPE_CHECKING:
    from torch import nn

    from kerncfg.documents.plan import Kernel, Plan

__all__ = ["Hold", "hold", "notes", "release", "release_all", "undeclared"]

_CUBLAS = "CUBLAS_WORKSPACE_CONFIG"
_CUBLAS_FIXED = (":4096:8", ":16:8")


def undeclared(kernel: Kernel, code: Any, device: str) -> str | None:
    """Say why a kernel may not run under `policy.deterministic`, or `None`."""
    declared = getattr(code, "deterministic", None)
    if declared is True:
        return None
    asked = "policy.deterministic takes kernels that declare deterministic = True or were shown repeatable here"
    if declared is False:
        return f"{asked}, this one declares deterministic = False"
    shown = Verdicts.usual().repeatable(kernel, _environment(device))
    if shown is None:
        return f"{asked}, this one declares nothing and no verdict of it is kept"
    return None if shown else f"{asked}, this one declares nothing and gave other bits when it was run again"


@cache
def _environment(device: str) -> dict[str, Any]:
    return environment(device)


def notes(plan: Plan) -> tuple[str, ...]:
    """Say what an apply of this plan sets for the whole process, and what it cannot set."""
    said = []
    if plan.deterministic:
        said.append("policy.deterministic: PyTorch's deterministic algorithms are on until this is reverted")
        if plan.target.device == "cuda" and os.environ.get(_CUBLAS) not in _CUBLAS_FIXED:
            said.append(
                f"policy.deterministic: cuBLAS is repeatable only with {_CUBLAS}={_CUBLAS_FIXED[0]}, set before"
            )
    if plan.seed is not None:
        said.append(f"policy.seed: the random state of PyTorch, Python and NumPy was set to {plan.seed}")
    return tuple(said)


@dataclass(slots=True, eq=False)
class Hold:
    """What one apply found before it set anything; `number` is that of its owner, `model` what it was applied to."""

    number: int
    model: weakref.ref[nn.Module]
    flags: dict[str, Any]
    states: dict[str, Any]


def _cudnn(name: str) -> tuple[Callable[[], Any], Callable[[Any], None]]:
    return (lambda: getattr(torch.backends.cudnn, name)), (lambda value: setattr(torch.backends.cudnn, name, value))


# 2 raises where an operation has no deterministic form, which is what turns a claim into a fact.
_ERROR = 2
_SWITCHES: Mapping[str, tuple[Callable[[], Any], Callable[[Any], None], Any]] = {
    "algorithms": (torch.get_deterministic_debug_mode, torch.set_deterministic_debug_mode, _ERROR),
    "cudnn.deterministic": (*_cudnn("deterministic"), True),
    "cudnn.benchmark": (*_cudnn("benchmark"), False),
}
_lock = threading.RLock()
_holds: list[Hold] = []


def hold(plan: Plan, model: nn.Module, number: int) -> Hold | None:
    """Set what a plan asks of the process, and return what was there before; `None` if it asks for nothing."""
    if not plan.deterministic and plan.seed is None:
        return None
    with _lock:
        made = Hold(number, weakref.ref(model), {}, {})
        if plan.deterministic:
            made.flags = {name: read() for name, (read, _, _) in _SWITCHES.items()}
        if plan.seed is not None:
            made.states = _states()
        _holds.append(made)
        try:
            for name in made.flags:
                _SWITCHES[name][1](_SWITCHES[name][2])
            if plan.seed is not None:
                _seed(plan.seed)
        except BaseException:
            release(made)
            raise
        return made


def release(held: Hold | None) -> None:
    """Put back what a hold found, or hand it to the one that came after; twice is harmless."""
    with _lock:
        if held is None or held not in _holds:
            return
        place = _holds.index(held)
        later = _holds[place + 1 :]
        del _holds[place]
        for name, value in held.flags.items():
            above = next((other for other in later if name in other.flags), None)
            if above is not None:
                above.flags[name] = value
            else:
                _SWITCHES[name][1](value)
        if held.states:
            above = next((other for other in later if other.states), None)
            if above is not None:
                above.states = held.states
            else:
                _restore(held.states)


def release_all(reverted: set[int]) -> None:
    """Release the holds of models that have some of these modules, by id, and nothing left of the apply that held."""
    with _lock:
        for held in reversed(tuple(_holds)):
            model = held.model()
            modules = walk(model)[1] if model is not None else ()
            if any(id(module) in reverted for module in modules) and not any(_has(one, held) for one in modules):
                release(held)


def _has(module: nn.Module, held: Hold) -> bool:
    made = bound(module)
    return made is not None and any(edit.owner.number == held.number for edit in made.edits)


def _seed(seed: int) -> None:
    random.seed(seed)
    torch.manual_seed(seed)  # of every device that is there
    if (numpy := sys.modules.get("numpy")) is not None:
        numpy.random.seed(seed)


def _states() -> dict[str, Any]:
    found: dict[str, Any] = {"python": random.getstate(), "torch": torch.get_rng_state()}
    if torch.cuda.is_available() and torch.cuda.is_initialized():  # type: ignore[no-untyped-call]
        found["cuda"] = torch.cuda.get_rng_state_all()
    if (numpy := sys.modules.get("numpy")) is not None:
        found["numpy"] = numpy.random.get_state()
    return found


def _restore(states: Mapping[str, Any]) -> None:
    random.setstate(states["python"])
    torch.set_rng_state(states["torch"])
    if "cuda" in states:
        torch.cuda.set_rng_state_all(states["cuda"])
    if "numpy" in states:
        sys.modules["numpy"].random.set_state(states["numpy"])
