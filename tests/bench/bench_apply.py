"""What apply, revert, a change of mode and a call cost, as ratios of what they cost without kerncfg.

    python tests/bench/bench_apply.py

Each ratio is the median over interleaved runs in one process, so that a busy machine slows both sides alike.
"""

from __future__ import annotations

import gc
import statistics
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch
from torch import nn

sys.path.insert(0, str(Path(__file__).parent.parent.parent))

from kerncfg.applier.adapters.torch import kernel_layer
from kerncfg.applier.apply import apply, revert
from kerncfg.documents.target import Mode
from tests.planning import plan, step

BOTH = {Mode.INFERENCE: "Ten", Mode.TRAINING: "Twenty"}

# What the figures must not pass: the script then exits with 1.
LIMITS = {
    "apply / walk": 5.0,
    "apply / walk, flat": 5.0,
    "revert / apply": 1.0,
    "revert(model) / apply": 1.0,
    "switch": 1.3,
    "call": 1.1,
}


@kernel_layer("Norm")
class Norm(nn.Module):
    """A small layer."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(4), requires_grad=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Multiply, and multiply: as much work as the kernel does."""
        return x * self.weight * 1


class Block(nn.Module):
    """Ten layers."""

    def __init__(self, count: int) -> None:
        super().__init__()
        self.norms = nn.ModuleList(Norm() for _ in range(count))


def build(blocks: int, each: int = 10) -> nn.Module:
    """Return a model of many small layers."""
    return nn.ModuleList(Block(each) for _ in range(blocks))


def seconds(call: Callable[[], Any], times: int = 1) -> float:
    """Return what one call takes, with the collector started clean."""
    start = time.perf_counter()
    for _ in range(times):
        call()
    return (time.perf_counter() - start) / times


def applying(model: nn.Module, runs: int = 15) -> dict[str, float]:
    """Return what apply takes next to a bare walk over `named_modules()`, and revert next to apply."""
    said = plan(step("Norm", BOTH))
    apply(said, model).revert()
    found: dict[str, list[float]] = {"apply / walk": [], "revert / apply": [], "revert(model) / apply": []}
    for _ in range(runs):
        gc.collect()
        walk = seconds(lambda: [None for _ in model.named_modules()])
        start = time.perf_counter()
        bindings = apply(said, model)
        applied = time.perf_counter() - start
        reverted = seconds(bindings.revert)
        bindings = apply(said, model)
        all_reverted = seconds(lambda: revert(model))
        found["apply / walk"].append(applied / walk)
        found["revert / apply"].append(reverted / applied)
        found["revert(model) / apply"].append(all_reverted / applied)
    return {name: statistics.median(ratios) for name, ratios in found.items()}


def switching(sites: int = 1_000, runs: int = 60) -> dict[str, float]:
    """Return what `train()` and `eval()` take with all sites swapped, next to the same model without."""
    plain, swapped = build(sites // 10), build(sites // 10)
    apply(plan(step("Norm", BOTH)), swapped)
    ratios = []
    for _ in range(runs):
        both = [seconds(lambda model=model: (model.train(), model.eval()), 3) for model in (plain, swapped)]  # type: ignore[misc]
        ratios.append(both[1] / both[0])
    return {"switch": statistics.median(ratios)}


def calling(runs: int = 60) -> dict[str, float]:
    """Return what one call of a swapped layer takes, next to the original's: the same two multiplications."""
    plain, swapped = Norm().eval(), Norm().eval()
    apply(plan(step("Norm", BOTH)), swapped)
    x = torch.ones(1)
    ratios = []
    for _ in range(runs):
        both = [seconds(lambda layer=layer: layer(x), 500) for layer in (plain, swapped)]  # type: ignore[misc]
        ratios.append(both[1] / both[0])
    return {"call": statistics.median(ratios)}


def measure() -> Iterator[tuple[str, float]]:
    """Yield every figure by its name."""
    yield from applying(build(1_000)).items()
    # All in one list: the walk is at its cheapest there, since it passes each module through two generators only.
    yield "apply / walk, flat", applying(build(1, 10_000))["apply / walk"]
    yield from switching().items()
    yield from calling().items()


if __name__ == "__main__":
    figures = dict(measure())
    for name, ratio in figures.items():
        print(f"{name:24} {ratio:6.2f}   limit {LIMITS[name]}")  # noqa: T201 (a script's result)
    sys.exit(any(ratio > LIMITS[name] for name, ratio in figures.items()))
