"""What verification costs beside the model: time in forwards and backwards, memory in one layer's activations.

    python tests/bench/bench_verify.py [--layers 28] [--sequence 128] [--hidden 256]

A Qwen3 of 28 narrow layers in float32, with the bundled norm and rotary function on every one of them. Each ratio is
the median of runs that alternate with the model's own forward and backward, in processor time of one thread, to which
other programs add nothing. Memory is what PyTorch's allocations on the CPU come to at their highest, as its profiler
counts them; what verification keeps of the sites' inputs must be less than what one more layer keeps for its backward.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

sys.path.insert(0, str(Path(__file__).parent.parent.parent))

import kerncfg
from kerncfg.evidence.capture import capture
from kerncfg.evidence.verify import verify
from kerncfg.machine import detect
from kerncfg.models import Loaded, build
from tests.subjects import POLICY

ROWS = ("inherited=none", "kernels.RMSNorm.cpu=builtin:RMSNorm", "kernels.rotary_pos_emb.cpu=builtin:RotaryPosEmb")
TIME, MEMORY = "verify / forward and backward", "inputs kept / activations of a layer"
LIMITS = {TIME: 6.0, MEMORY: 1.0}


def main() -> int:
    """Print every ratio, and return 1 if one is over its limit."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--layers", type=int, default=28)
    parser.add_argument("--sequence", type=int, default=128)
    parser.add_argument("--hidden", type=int, default=256)
    asked = parser.parse_args()
    loaded = model(asked.layers, asked.sequence, asked.hidden)
    with kerncfg.kernelize(loaded.model, *ROWS) as bindings:
        samples = capture(bindings, loaded.inputs).samples
        sites = len(bindings.sites)
        times = ratios(
            lambda: verify(bindings, loaded.inputs, POLICY),
            lambda: forward_and_backward(loaded),
        )
        extra = peak(lambda: verify(bindings, loaded.inputs, POLICY))
    own = peak(lambda: forward_and_backward(loaded))
    held, layer = sum(tensor_bytes(sample) for sample in samples), layer_activations(asked)
    copied = 2 * sum(one.numel() * one.element_size() for one in loaded.model.parameters())
    figures = {TIME: times[0], MEMORY: held / layer}
    print(f"{sites} sites, {len(samples)} distinct")  # noqa: T201
    for name, figure in figures.items():
        print(f"{name:38s} {figure:6.2f}   limit {LIMITS[name]:.1f}")  # noqa: T201
    print(f"range of the first over five runs {times[1]:.2f}")  # noqa: T201
    print(f"inputs kept {held / 2**20:.2f} MiB, activations of one layer {layer / 2**20:.1f} MiB")  # noqa: T201
    print(f"peak of verify {extra / 2**20:.1f} MiB, {copied / 2**20:.1f} of it the float64 copy")  # noqa: T201
    print(f"peak of forward and backward {own / 2**20:.1f} MiB")  # noqa: T201
    return int(any(figure > LIMITS[name] for name, figure in figures.items()))


def model(layers: int, sequence: int, hidden: int) -> Loaded:
    """Build the model and its inputs."""
    config = {
        "vocab_size": 1024,
        "hidden_size": hidden,
        "intermediate_size": 3 * hidden,
        "num_hidden_layers": layers,
        "num_attention_heads": hidden // 64,
        "num_key_value_heads": hidden // 128,
        "head_dim": 64,
        "max_position_embeddings": 2 * sequence,
    }
    node = {"architecture": "Qwen3ForCausalLM", "config": config, "dtype": "float32", "seed": 0}
    return build({**node, "batch": 2, "sequence": sequence}, detect({"device": "cpu"}))


def forward_and_backward(loaded: Loaded) -> None:
    """Run what a step of training runs."""
    found = loaded.model(**loaded.inputs).logits
    torch.autograd.grad(found.sum(), [one for one in loaded.model.parameters() if one.requires_grad])


def ratios(one: Callable[[], Any], other: Callable[[], Any], runs: int = 5) -> tuple[float, float]:
    """Return the median of the ratios of alternating runs, and their range."""
    found = []
    for _ in range(runs):
        start = time.process_time()
        other()
        middle = time.process_time()
        one()
        found.append((time.process_time() - middle) / (middle - start))
    return statistics.median(found), max(found) - min(found)


def peak(call: Callable[[], Any]) -> int:
    """Return the most bytes that PyTorch held at once on the CPU beyond what was held before."""
    activities = [torch.profiler.ProfilerActivity.CPU]
    with torch.profiler.profile(activities=activities, profile_memory=True) as profile:
        call()
    held = highest = 0
    for event in profile.profiler.kineto_results.events():
        if event.name() == "[memory]":
            held += event.nbytes()
            highest = max(highest, held)
    return highest


def layer_activations(asked: argparse.Namespace) -> int:
    """Return what one more layer keeps for its backward."""
    sizes = []
    for layers in (1, 2):
        loaded = model(layers, asked.sequence, asked.hidden)
        kept: dict[int, int] = {}

        def pack(tensor: torch.Tensor, kept: dict[int, int] = kept) -> torch.Tensor:
            kept[tensor.untyped_storage().data_ptr()] = tensor.untyped_storage().nbytes()
            return tensor

        weights = {one.untyped_storage().data_ptr() for one in loaded.model.parameters()}
        with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
            result = loaded.model(**loaded.inputs)
        sizes.append(sum(size for place, size in kept.items() if place not in weights))
        del result
    return sizes[1] - sizes[0]


def tensor_bytes(sample: Any) -> int:
    """Return what a sample's inputs take."""
    return sum(one.numel() * one.element_size() for one in sample._tensors() if not isinstance(one, torch.nn.Parameter))


if __name__ == "__main__":
    torch.set_num_threads(1)
    sys.exit(main())
