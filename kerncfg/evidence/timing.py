"""Two calls against each other on a clock that other programs share.

A reading is some calls in a row; readings of the two alternate, and so does their order, so that a machine that warms
up or is shared slows both. They come in blocks, apart in time and each with inputs of its own: what varies within a
block is what one sees in half a second, what varies from block to block is what another process, another frequency or
another place in memory does. The spread is the larger of the two, and a difference inside it is none. Where a machine
stalls every second reading, the ratio of the medians says nothing and the pairs' ratios do: the spread is then as large
as what the two disagree by.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Iterable, Sequence
from contextlib import AbstractContextManager
from typing import Any, Protocol

import torch

from kerncfg.evidence.contents import foreign, one_line
from kerncfg.evidence.rows import Timing

__all__ = ["BLOCKS", "Call", "Contest", "rounds"]

BLOCKS = 3
_WARM_UPS = 3
_READING = 2e-3  # seconds of repeated calls: a thousand times what looking at the clock costs
_PAIRS = 15  # wanted at least in all blocks, if the budget allows: quartiles of fewer say little
_MOST_PAIRS = 150  # in one block
_FEWEST_PAIRS = 2  # in one block
_FOR_QUARTILES = 8


class Call(Protocol):
    """What is timed: `refresh` makes it ready and is not, `around` is where it runs.

    A call that is `used_up` has to be refreshed for each time it is called.
    """

    @property
    def used_up(self) -> bool:
        """Whether it can be called once only."""

    @property
    def around(self) -> Callable[[], AbstractContextManager[Any]]:
        """What it is called in."""

    def refresh(self) -> None:
        """Make it ready."""

    def __call__(self) -> None:
        """Do what is timed."""


class Contest:
    """Two calls, and every reading of them so far. What one of them raises becomes the reason why there are none."""

    def __init__(
        self, original: Callable[[], Call], kernel: Callable[[], Call], device: torch.device, seconds: float
    ) -> None:
        self._makers, self._device, self._seconds = (original, kernel), device, seconds
        self._blocks: list[list[tuple[float, float]]] = []
        self._memory: tuple[int | None, int | None] = (None, None)
        self.reason: str | None = None

    def block(self) -> None:
        """Make both calls anew, warm them up, and read them in turn for a share of the time."""
        if self.reason is not None:
            return
        seconds = self._seconds / BLOCKS
        try:
            pair = (self._makers[0](), self._makers[1]())
            costs = [_warm(call, self._device, seconds) for call in pair]
            if not self._blocks:
                self._memory = (peak(pair[0], self._device), peak(pair[1], self._device))
            once = any(call.used_up for call in pair)
            repeats = 1 if once else max(1, int(min(_READING / max(costs), self._seconds / _PAIRS / sum(costs))))
            self._blocks.append(_readings(pair, repeats, self._device, seconds))
        except BaseException as error:  # a kernel that raises fails its row, not the run
            foreign(error)
            self.reason = f"raised {one_line(error)}"

    def timing(self) -> Timing:
        """Return what all blocks came to."""
        if self.reason is not None:
            return Timing(reason=self.reason)
        readings = [reading for block in self._blocks for reading in block]
        first, second = (statistics.median(side) for side in zip(*readings, strict=True))
        blocks = [[one / other for one, other in block] for block in self._blocks]
        ratios = [ratio for block in blocks for ratio in block]
        speedup, paired = first / second, statistics.median(ratios)
        spread = max(spread_of(blocks), speedup / paired - 1, paired / speedup - 1)
        return Timing(
            original_s=first,
            kernel_s=second,
            speedup=speedup,
            spread=spread,
            verdict=verdict_of(speedup, paired, spread, [statistics.median(one) for one in blocks]),
            runs=len(readings),
            original_bytes=self._memory[0],
            kernel_bytes=self._memory[1],
        )


def rounds(contests: Iterable[Callable[[], None]]) -> None:
    """Give every contest its blocks, one after the other each time, so that one's blocks are apart."""
    found = list(contests)
    for _ in range(BLOCKS):
        for block in found:
            block()


def verdict_of(speedup: float, paired: float, spread: float, blocks: Sequence[float] = ()) -> str:
    """Say what is faster where the ratio of the medians and the median of the pairs' ratios both show it.

    `blocks` are the medians of the blocks, each of which has to lie on the same side.
    """
    if min(speedup, paired) > 1 + spread and all(one > 1 for one in blocks):
        return "faster"
    return "slower" if min(1 / speedup, 1 / paired) > 1 + spread and all(one < 1 for one in blocks) else "none"


def spread_of(blocks: Sequence[Sequence[float]]) -> float:
    """Return how far ratios vary, relative to their median: within the blocks or from block to block.

    Within them that is the interquartile range, or of too few for quartiles twice the range; from block to block it is
    the range of their medians.
    """
    ratios = [ratio for block in blocks for ratio in block]
    middle = statistics.median(ratios)
    if len(ratios) < _FOR_QUARTILES:
        return 2 * (max(ratios) - min(ratios)) / middle
    low, _, high = statistics.quantiles(ratios, n=4)
    medians = [statistics.median(block) for block in blocks]
    return max(high - low, max(medians) - min(medians)) / middle


def _readings(pair: tuple[Call, Call], repeats: int, device: torch.device, seconds: float) -> list[tuple[float, float]]:
    readings: list[tuple[float, float]] = []
    end = time.perf_counter() + seconds
    while len(readings) < _FEWEST_PAIRS or (time.perf_counter() < end and len(readings) < _MOST_PAIRS):
        if len(readings) % 2:
            second, first = _reading(pair[1], repeats, device), _reading(pair[0], repeats, device)
        else:
            first, second = _reading(pair[0], repeats, device), _reading(pair[1], repeats, device)
        readings.append((first, second))
    return readings


def _warm(call: Call, device: torch.device, seconds: float) -> float:
    """Run a few times, so that compilers and caches have done their work, and return seconds a call."""
    costs = [_reading(call, 1, device)]
    while len(costs) < _WARM_UPS and sum(costs) < seconds / 4:
        costs.append(_reading(call, 1, device))
    return min(costs)


def _reading(call: Call, repeats: int, device: torch.device) -> float:
    call.refresh()
    with call.around():
        if device.type == "cpu":
            start = time.perf_counter()
            for _ in range(repeats):
                call()
            return (time.perf_counter() - start) / repeats
        first, last = (torch.Event(device, enable_timing=True) for _ in range(2))
        first.record()
        for _ in range(repeats):
            call()
        last.record()
        last.synchronize()
        return float(first.elapsed_time(last)) / 1e3 / repeats


def peak(call: Call, device: torch.device, counters: Any = torch.cuda) -> int | None:
    """Return the most bytes that one call holds beyond what was held before it, on CUDA and ROCm devices.

    `counters` is what counts them: `torch.cuda`.
    """
    if device.type != "cuda":
        return None
    call.refresh()
    counters.synchronize(device)
    held = counters.memory_allocated(device)
    counters.reset_peak_memory_stats(device)
    with call.around():
        call()
    counters.synchronize(device)
    return int(counters.max_memory_allocated(device)) - int(held)
