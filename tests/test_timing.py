from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import pytest
import torch

from kerncfg.evidence.timing import BLOCKS, Contest, peak, rounds, spread_of, verdict_of

CPU = torch.device("cpu")


@pytest.mark.parametrize(
    ("speedup", "paired", "spread", "verdict"),
    [
        (1.3, 1.25, 0.2, "faster"),
        (1.3, 1.1, 0.2, "none"),
        (1.1, 1.1, 0.2, "none"),
        (0.95, 0.95, 0.1, "none"),
        (0.8, 0.8, 0.2, "slower"),
        (0.8, 1.2, 0.1, "none"),
    ],
)
def test_a_difference_inside_the_spread_is_none(speedup: float, paired: float, spread: float, verdict: str) -> None:
    assert verdict_of(speedup, paired, spread) == verdict
    assert verdict_of(speedup, paired, spread, [speedup] * 3) == verdict
    assert verdict_of(speedup, paired, spread, [speedup, 1 / speedup, speedup]) == "none"


def test_the_spread_is_the_middle_half_of_many_pairs_and_twice_all_of_few() -> None:
    assert spread_of([[1.0], [1.1], [1.2]]) == pytest.approx(0.4 / 1.1)
    assert spread_of([[1.0] * 7 + [50.0]] * 3) == 0


def test_the_spread_knows_what_varies_from_block_to_block_alone() -> None:
    # within each block nothing varies, and two blocks of three agree
    blocks = [[1.5] * 20, [1.5] * 20, [1.0] * 5]
    assert spread_of(blocks[:2]) == 0
    assert spread_of(blocks) == pytest.approx(0.5 / 1.5)


def test_a_speedup_that_only_the_stalls_of_the_machine_make_is_inside_its_spread() -> None:
    # Both stall in the same readings, a few more of which are those of the kernel's worse half.
    made = Contest(nothing, nothing, CPU, 0.1)
    made._blocks = [[(580e-6, 560e-6), (12_900e-6, 12_800e-6), (579e-6, 12_892e-6)] * 3] * BLOCKS
    made._blocks = [[*block, (570e-6, 575e-6), (12_000e-6, 12_900e-6)] for block in made._blocks]
    found = made.timing()
    assert found.speedup is not None and found.spread is not None
    assert found.speedup < 0.2 and found.verdict == "none"
    assert 1 / found.speedup <= 1 + found.spread  # what is printed shows the verdict


def nothing() -> Any:
    raise AssertionError


class Sleeping:
    """Sleeps as long as it is told for each block, the last for all that follow."""

    used_up = False
    around: Callable[[], AbstractContextManager[Any]] = nullcontext

    def __init__(self, seconds: float) -> None:
        self.seconds = seconds
        self.refreshed = 0

    def refresh(self) -> None:
        self.refreshed += 1

    def __call__(self) -> None:
        assert self.refreshed
        time.sleep(self.seconds)


def contest(*kernel: float, original: float = 4e-3) -> Contest:
    times = iter(kernel)
    made = Contest(lambda: Sleeping(original), lambda: Sleeping(next(times)), CPU, 0.15)
    rounds([made.block])
    return made


def test_what_is_faster_in_every_block_is_faster() -> None:
    found = contest(*[4e-4] * BLOCKS).timing()
    assert found.speedup is not None and found.speedup > 2
    assert found.runs >= 2 * BLOCKS


def test_what_is_faster_at_one_time_and_slower_at_another_is_the_same() -> None:
    found = contest(2e-3, 8e-3, 2e-3).timing()
    assert found.spread is not None and found.spread > 0.5
    assert found.verdict == "none"


def test_blocks_of_several_contests_take_turns() -> None:
    order: list[str] = []
    rounds([lambda: order.append("a"), lambda: order.append("b")])
    assert order == ["a", "b"] * BLOCKS


def test_what_raises_in_a_later_block_is_the_reason() -> None:
    class Failing(Sleeping):
        def __call__(self) -> None:
            raise OSError("gone")

    kinds = iter([Sleeping, Failing, Sleeping])
    made = Contest(lambda: Sleeping(1e-3), lambda: next(kinds)(1e-3), CPU, 0.03)
    rounds([made.block])
    assert made.timing().reason == "raised OSError: gone"
    assert made.timing().speedup is None


class Counters:
    """Stands for `torch.cuda`, which is not here: a call allocates, frees, and leaves something behind."""

    def __init__(self) -> None:
        self.allocated, self.most = 1000, 5000
        self.waits = 0

    def synchronize(self, device: torch.device) -> None:
        self.waits += 1

    def memory_allocated(self, device: torch.device) -> int:
        return self.allocated

    def reset_peak_memory_stats(self, device: torch.device) -> None:
        self.most = self.allocated

    def max_memory_allocated(self, device: torch.device) -> int:
        return self.most


def test_peak_memory_is_counted_from_what_was_held_before_the_call() -> None:
    counters = Counters()

    class Allocating(Sleeping):
        def refresh(self) -> None:
            super().refresh()
            counters.allocated += 50  # inputs, which are not the call's

        def __call__(self) -> None:
            counters.most = max(counters.most, counters.allocated + 300)
            counters.allocated += 100

    assert peak(Allocating(0), torch.device("cuda"), counters) == 300
    assert counters.waits == 2


def test_there_is_no_peak_on_a_cpu() -> None:
    assert peak(Sleeping(0), CPU) is None
