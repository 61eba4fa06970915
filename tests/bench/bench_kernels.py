"""The bundled kernels against the classes they replace: `python tests/bench/bench_kernels.py [--quick]`.

On the CPU: the median time of interleaved runs, and its ratio to eager. With a CUDA device also the ratio to
torch.compile, and the bytes that the formula needs (not those that were moved) as GB/s.
"""

from __future__ import annotations

import statistics
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import torch
from transformers.activations import ACT2FN
from transformers.models.llama.modeling_llama import LlamaRMSNorm

sys.path.insert(0, str(Path(__file__).parent.parent.parent))

from kerncfg.kernels.layers import RMSNorm
from kerncfg.kernels.swiglu import silu_and_mul

if TYPE_CHECKING:
    from collections.abc import Callable

CPU_SHAPES = [(64, 32), (4, 64, 512), (2, 512, 1024), (8, 512, 1024)]
GPU_SHAPES = [(64, 32), (32 * 4096, 128), (1, 4096), (4, 2048, 4096), (8, 4096, 8192), (64, 40000)]


class Case(NamedTuple):
    """One thing measured: what runs, on what, and how many tensors of that size each mode must move."""

    name: str
    providers: dict[str, Callable[..., torch.Tensor]]
    inputs: list[torch.Tensor]
    moved: dict[str, int]


def rms_norm_case(shape: tuple[int, ...], device: str, dtype: torch.dtype) -> Case:
    """The norm alone."""
    forward: Callable[..., torch.Tensor] = RMSNorm.forward  # its self may be any module
    module = LlamaRMSNorm(shape[-1]).to(device, dtype)
    providers = {
        "eager": lambda x: LlamaRMSNorm.forward(module, x),
        "kerncfg": lambda x: forward(module, x),
    }
    inputs = [torch.randn(shape, device=device, dtype=dtype)]
    return Case("RMSNorm", providers, inputs, {"inference": 2, "training": 5})


def swiglu_case(shape: tuple[int, ...], device: str, dtype: torch.dtype) -> Case:
    """The line between the projections: they are the same on both sides."""
    activation = ACT2FN["silu"]  # what LlamaMLP calls act_fn
    providers = {"eager": lambda gate, up: activation(gate) * up, "kerncfg": silu_and_mul}
    inputs = [torch.randn(shape, device=device, dtype=dtype) for _ in range(2)]
    return Case("SwiGLU", providers, inputs, {"inference": 3, "training": 8})


def step(function: Callable[..., torch.Tensor], inputs: list[torch.Tensor], mode: str) -> None:
    """One call as inference or training makes it."""
    if mode == "inference":
        with torch.no_grad():
            function(*inputs)
        return
    leaves = [t.detach().requires_grad_() for t in inputs]
    result = function(*leaves)
    torch.autograd.backward(result, torch.ones_like(result))


def cpu_medians(case: Case, mode: str, repeats: int) -> dict[str, float]:
    """Time the providers in turn, so that what disturbs one disturbs all."""
    times: dict[str, list[float]] = {name: [] for name in case.providers}
    for turn in range(repeats + 3):
        for name, function in case.providers.items():
            start = time.perf_counter()
            step(function, case.inputs, mode)
            if turn >= 3:
                times[name].append(time.perf_counter() - start)
    return {name: statistics.median(values) for name, values in times.items()}


def gpu_medians(case: Case, mode: str) -> dict[str, float]:
    """Time the providers on the device, the L2 cache flushed before each run."""
    from triton.testing import do_bench

    def timed(function: Callable[..., torch.Tensor]) -> float:
        milliseconds: float = do_bench(lambda: step(function, case.inputs, mode), return_mode="median")
        return milliseconds / 1e3

    providers = case.providers | {"compiled": torch.compile(case.providers["eager"], dynamic=False)}
    return {name: timed(function) for name, function in providers.items()}


def main(quick: bool) -> None:
    """Print one line a case."""
    devices = ["cpu"] + ["cuda"] * torch.cuda.is_available()
    sys.stdout.write(f"torch {torch.__version__}, {torch.get_num_threads()} threads, {devices}\n")
    for device in devices:
        for make in (rms_norm_case, swiglu_case):
            for dtype in (torch.float32, torch.bfloat16):
                for shape in CPU_SHAPES if device == "cpu" else GPU_SHAPES:
                    case = make(shape, device, dtype)
                    for mode in ("inference", "training"):
                        sys.stdout.write(line(case, mode, device, quick) + "\n")
                        sys.stdout.flush()


def line(case: Case, mode: str, device: str, quick: bool) -> str:
    """Measure one case and write it as a row of the table."""
    first = case.inputs[0]
    if device == "cpu":
        repeats = max(15, min(500, 20_000_000 // first.numel())) // (10 if quick else 1)
        seconds = cpu_medians(case, mode, repeats)
    else:
        seconds = gpu_medians(case, mode)
    shape = "x".join(map(str, first.shape))
    row = f"{case.name:8} {device} {str(first.dtype)[6:]:9} {shape:12} {mode:10}"
    row += f" {seconds['kerncfg'] * 1e6:10.0f} µs"
    row += "".join(f"  {seconds[n] / seconds['kerncfg']:5.2f}x {n}" for n in seconds if n != "kerncfg")
    if device != "cpu":
        row += f"  {case.moved[mode] * first.nbytes / seconds['kerncfg'] / 1e9:6.0f} GB/s"
    return row


if __name__ == "__main__":
    main("--quick" in sys.argv[1:])
