"""The process left as it was, and what was done to it in between."""

from __future__ import annotations

import os
import random
import re
import signal
import sys
import threading
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import thread as pools
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from kerncfg.ending import never_ended

__all__ = ["Process", "process_kept"]

_SOON = 0.1  # seconds that a thread may end later than the call that began it


def _folder() -> str | None:
    """Return the working directory, or `None` where it was removed."""
    try:
        return str(Path.cwd())
    except OSError:
        return None


def _products() -> str | None:
    """Return how precise products in float32 are, or `None` where newer switches say so for each kind of product."""
    try:
        return torch.get_float32_matmul_precision()
    except RuntimeError:
        return None


def _if_known(write: Callable[[Any], Any]) -> Callable[[Any], Any]:
    return lambda value: None if value is None else write(value)


def _autocast() -> dict[str, bool]:
    return {kind: torch.is_autocast_enabled(kind) for kind in ("cpu", "cuda")}


def _set_autocast(value: Mapping[str, bool]) -> None:
    for kind, enabled in value.items():
        torch.set_autocast_enabled(kind, enabled)


def _handlers() -> dict[int, Any]:
    return {number: signal.getsignal(number) for number in signal.valid_signals()}


def _handle(handlers: Mapping[int, Any]) -> None:
    """Put handlers back, which only the main thread may; what was set in C (`None`) cannot be had to be set again."""
    if threading.current_thread() is threading.main_thread():
        for number, handler in handlers.items():
            if handler is not None and signal.getsignal(number) != handler:
                signal.signal(number, handler)


# Read and written by these names: what one call switches for the whole process.
_FLAGS: Mapping[str, tuple[Callable[[], Any], Callable[[Any], Any]]] = {
    "the default dtype": (torch.get_default_dtype, torch.set_default_dtype),
    "the default device": (
        torch.get_default_device,
        lambda value: torch.set_default_device(None if value.type == "cpu" else value),
    ),
    "gradient mode": (torch.is_grad_enabled, torch.set_grad_enabled),
    "deterministic algorithms": (torch.get_deterministic_debug_mode, torch.set_deterministic_debug_mode),
    "the number of threads": (torch.get_num_threads, torch.set_num_threads),
    "the working directory": (_folder, _if_known(os.chdir)),
    "the handlers of signals": (_handlers, _handle),
    "sys.stdout": (lambda: sys.stdout, lambda value: setattr(sys, "stdout", value)),
    "sys.stderr": (lambda: sys.stderr, lambda value: setattr(sys, "stderr", value)),
    "the precision of float32 products": (_products, _if_known(torch.set_float32_matmul_precision)),
    "autocast": (_autocast, _set_autocast),
    "cudnn.benchmark": (
        lambda: torch.backends.cudnn.benchmark,
        lambda value: setattr(torch.backends.cudnn, "benchmark", value),
    ),
    "cudnn.deterministic": (
        lambda: torch.backends.cudnn.deterministic,
        lambda value: setattr(torch.backends.cudnn, "deterministic", value),
    ),
}


@dataclass(slots=True)
class Process:
    """The switches and the threads of the process as they were, and the random state since the last `seed`."""

    flags: dict[str, Any]
    threads: frozenset[threading.Thread]
    seeded: int = 0
    states: tuple[Any, ...] = ()

    def seed(self, seed: int) -> None:
        """Seed every source of random numbers that PyTorch, Python and NumPy have."""
        torch.manual_seed(seed)
        random.seed(seed)
        if (numpy := sys.modules.get("numpy")) is not None:
            numpy.random.seed(seed)
        self.seeded, self.states = seed, _random_states()

    def changes(self) -> list[str]:
        """Return the switches that are not as they were."""
        return [name for name, (read, _) in _FLAGS.items() if read() != self.flags[name]]

    def left(self) -> list[str]:
        """Return which threads began since and do not end, in words; those of pools and daemons hold nobody up."""
        begun = [one for one in threading.enumerate() if one not in self.threads and not one.daemon]
        names = []
        for thread in begun:
            if thread not in getattr(pools, "_threads_queues", ()):
                thread.join(_SOON)
                if thread.is_alive():
                    names.append(re.sub(r"^Thread-\d+", "Thread", thread.name))  # one name for all runs of a kernel
        return [f"leaves the thread {name} running" for name in dict.fromkeys(names)]

    def draws(self) -> list[str]:
        """Return what was done to the random state since the seed, in words."""
        if torch.initial_seed() != self.seeded:
            return ["sets the seed of the global random state"]
        if any(not equal for equal in map(_equal_state, self.states, _random_states())):
            return ["draws from the global random state"]
        return []


@contextmanager
def process_kept() -> Iterator[Process]:
    """Put the process's switches and the random state of Python and NumPy back on the way out.

    What would end the process meanwhile raises `ending.Ended`.
    """
    before, state = {name: read() for name, (read, _) in _FLAGS.items()}, random.getstate()
    numpy = sys.modules.get("numpy")
    drawn = numpy and numpy.random.get_state()
    try:
        with never_ended():
            yield Process(before, frozenset(threading.enumerate()))
    finally:
        random.setstate(state)
        if numpy is not None:
            numpy.random.set_state(drawn)
        for name, (read, write) in _FLAGS.items():
            if read() != before[name]:
                write(before[name])


def _random_states() -> tuple[Any, ...]:
    found: list[Any] = [random.getstate(), torch.get_rng_state()]
    if (numpy := sys.modules.get("numpy")) is not None:
        _, keys, *rest = numpy.random.get_state()
        found += [keys.tobytes(), rest]
    if torch.cuda.is_initialized():  # type: ignore[no-untyped-call]
        found.append(torch.cuda.get_rng_state())
    return tuple(found)


def _equal_state(one: Any, other: Any) -> bool:
    return torch.equal(one, other) if isinstance(one, torch.Tensor) else bool(one == other)
