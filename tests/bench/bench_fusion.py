"""RMSNorm and MLP of a Qwen3 layer, fused and not: `python tests/bench/bench_fusion.py [--quick]`.

The median time of interleaved runs and its ratio to eager, then what fusing and reverting cost for each layer.
"""

from __future__ import annotations

import copy
import statistics
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import nn
from transformers import Qwen3Config
from transformers.models.qwen3 import modeling_qwen3 as qwen3

sys.path.insert(0, str(Path(__file__).parent.parent.parent))

from kerncfg.applier.edits import Owner
from kerncfg.applier.fuse import Fusion, Prepared, fuse, prepare, survey
from kerncfg.applier.groups import groups
from kerncfg.documents.config import KernelRef
from kerncfg.documents.step import Kernel
from kerncfg.documents.target import Mode
from kerncfg.kernels.layers import RMSNormMLP

if TYPE_CHECKING:
    from collections.abc import Callable

SHAPES = [((1, 1), 256), ((2, 32), 256), ((1, 1), 1024), ((2, 128), 1024)]
LAYERS = 96
MEMBERS = [("RMSNorm", "*.norm"), ("MLP", "*.mlp")]


class Pair(nn.Module):
    """The two modules as a layer calls them."""

    def __init__(self, hidden: int) -> None:
        super().__init__()
        config = Qwen3Config(hidden_size=hidden, intermediate_size=3 * hidden)
        make: Any = qwen3
        self.norm, self.mlp = make.Qwen3RMSNorm(hidden), make.Qwen3MLP(config)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Map (..., hidden) to (..., hidden)."""
        result: torch.Tensor = self.mlp(self.norm(x))
        return result


def fused(model: nn.Module) -> tuple[Fusion, ...]:
    """Fuse every pair of a model."""
    kernel = Kernel(reference=KernelRef.parse("builtin:RMSNormMLP"))
    known = survey(model)
    ready = [
        prepare(known, group, (RMSNormMLP,) * 2, (kernel,) * 2, (Mode.INFERENCE, Mode.TRAINING))
        for group in groups(model, MEMBERS)
    ]
    return fuse([one for one in ready if isinstance(one, Prepared)], Owner.of("bench"))


def medians(providers: dict[str, Callable[[], object]], repeats: int) -> dict[str, float]:
    """Time the providers in turn, so that what disturbs one disturbs all."""
    times: dict[str, list[float]] = {name: [] for name in providers}
    for turn in range(repeats + 3):
        for name, function in providers.items():
            start = time.perf_counter()
            function()
            if turn >= 3:
                times[name].append(time.perf_counter() - start)
    return {name: statistics.median(values) for name, values in times.items()}


def step(model: nn.Module, x: torch.Tensor, mode: str) -> None:
    """One call as inference or training makes it."""
    if mode == "inference":
        with torch.no_grad():
            model(x)
        return
    model.zero_grad()
    model(x.detach().requires_grad_()).sum().backward()


def main(quick: bool) -> None:
    """Print one line a case."""
    sys.stdout.write(f"torch {torch.__version__}, {torch.get_num_threads()} threads\n")
    for dtype in (torch.float32, torch.bfloat16):
        for shape, hidden in SHAPES:
            plain = nn.Sequential(Pair(hidden)).to(dtype)
            other = copy.deepcopy(plain)
            fused(other)
            x = torch.randn(*shape, hidden, dtype=dtype)
            for mode in ("inference", "training"):
                repeats = max(11, min(300, 20_000_000 // (x.numel() * hidden // 64 + 20_000))) // (10 if quick else 1)
                found = medians(
                    {"eager": lambda: step(plain, x, mode), "fused": lambda: step(other, x, mode)},  # noqa: B023
                    repeats,
                )
                ratio = found["eager"] / found["fused"]
                tokens = shape[0] * shape[1]
                sys.stdout.write(
                    f"{str(dtype)[6:]:9} {tokens:5} tokens  hidden {hidden:5}  {mode:10} "
                    f"{found['fused'] * 1e6:9.0f} µs {ratio:5.2f}x eager\n"
                )
                sys.stdout.flush()
    model = nn.Sequential(*(Pair(64) for _ in range(LAYERS)))
    start = time.perf_counter()
    made = fused(model)
    middle = time.perf_counter()
    for fusion in made:
        fusion.revert()
    end = time.perf_counter()
    each = [1e6 * seconds / LAYERS for seconds in (middle - start, end - middle)]
    sys.stdout.write(f"{LAYERS} layers of hidden 64: fuse {each[0]:.0f} µs, revert {each[1]:.0f} µs a layer\n")


if __name__ == "__main__":
    main("--quick" in sys.argv[1:])
