"""The bundled kernels against what they replace: `python tests/bench/bench_kernels.py [--quick] [--compile] [NAME…]`.

On the CPU: the median time of interleaved runs, and its ratio to eager; with `--compile` also that to torch.compile,
which needs a C++ compiler there. With a CUDA device always the ratio to torch.compile. GB/s are of the bytes that the
formula needs, not of those that were moved; the head has those of a plain copy on the CPU beside the processor's name.
Names choose among the kernels. Liger's need Triton, and so a GPU.
"""

from __future__ import annotations

import platform
import statistics
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from transformers.activations import ACT2FN
from transformers.loss import loss_utils
from transformers.models.gemma.modeling_gemma import GemmaRMSNorm as GemmaOriginal
from transformers.models.llama.modeling_llama import LlamaRMSNorm, apply_rotary_pos_emb

sys.path.insert(0, str(Path(__file__).parent.parent.parent))

from kerncfg.kernels.geglu import gelu_and_mul
from kerncfg.kernels.layers import ForCausalLMLoss, GemmaRMSNorm, LayerNorm, RMSNorm, RotaryPosEmb
from kerncfg.kernels.swiglu import silu_and_mul

if TYPE_CHECKING:
    from collections.abc import Callable

CPU_SHAPES = [(64, 32), (4, 64, 512), (2, 512, 1024), (8, 512, 1024)]
CPU_LOGITS = [(1, 64, 1024), (2, 128, 32000)]
CPU_HEADS = [(1, 4, 1, 64), (2, 4, 64, 64), (2, 8, 512, 64)]
GPU_HEADS = [(1, 32, 1, 128), (4, 32, 2048, 128)]
GPU_LOGITS = [(1, 64, 1024), (4, 2048, 32000), (2, 4096, 151936)]
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


def geglu_case(shape: tuple[int, ...], device: str, dtype: torch.dtype) -> Case:
    """The line between the projections, with Gemma's activation."""
    activation = ACT2FN["gelu_pytorch_tanh"]
    providers = {"eager": lambda gate, up: activation(gate) * up, "kerncfg": gelu_and_mul}
    inputs = [torch.randn(shape, device=device, dtype=dtype) for _ in range(2)]
    return Case("GeGLU", providers, inputs, {"inference": 3, "training": 8})


def gemma_rms_norm_case(shape: tuple[int, ...], device: str, dtype: torch.dtype) -> Case:
    """The norm alone."""
    forward: Callable[..., torch.Tensor] = GemmaRMSNorm.forward
    original: Callable[..., torch.Tensor] = GemmaOriginal.forward
    module = GemmaOriginal(shape[-1]).to(device, dtype)
    providers = {
        "eager": lambda x: original(module, x),
        "kerncfg": lambda x: forward(module, x),
    }
    inputs = [torch.randn(shape, device=device, dtype=dtype)]
    return Case("GemmaRMSNorm", providers, inputs, {"inference": 2, "training": 5})


def layer_norm_case(shape: tuple[int, ...], device: str, dtype: torch.dtype) -> Case:
    """The norm alone; the original is fused on every device."""
    forward: Callable[..., torch.Tensor] = LayerNorm.forward
    module = torch.nn.LayerNorm(shape[-1], device=device, dtype=dtype)
    providers = {
        "eager": lambda x: torch.nn.LayerNorm.forward(module, x),
        "kerncfg": lambda x: forward(module, x),
    }
    inputs = [torch.randn(shape, device=device, dtype=dtype)]
    return Case("LayerNorm", providers, inputs, {"inference": 2, "training": 5})


def loss_case(shape: tuple[int, ...], device: str, dtype: torch.dtype) -> Case:
    """The loss of logits of this shape."""
    forward: Callable[..., torch.Tensor] = ForCausalLMLoss.forward
    labels = torch.randint(shape[-1], shape[:-1], device=device)
    providers = {
        "eager": lambda x: loss_utils.ForCausalLMLoss(x, labels, shape[-1]),
        "kerncfg": lambda x: forward(None, x, labels, shape[-1]),
    }
    inputs = [torch.randn(shape, device=device, dtype=dtype)]
    return Case("ForCausalLMLoss", providers, inputs, {"inference": 1, "training": 3})


def rotary_case(shape: tuple[int, ...], device: str, dtype: torch.dtype) -> Case:
    """The embedding of as many key heads as query heads."""
    forward: Callable[..., Any] = RotaryPosEmb.forward
    original: Callable[..., Any] = apply_rotary_pos_emb
    cos, sin = (torch.randn(shape[0], *shape[2:], device=device, dtype=dtype) for _ in range(2))
    providers = {
        "eager": lambda q, k: original(q, k, cos, sin),
        "kerncfg": lambda q, k: forward(None, q, k, cos, sin),
    }
    inputs = [torch.randn(shape, device=device, dtype=dtype) for _ in range(2)]
    return Case("RotaryPosEmb", providers, inputs, {"inference": 4, "training": 8})


CASES = {
    "RMSNorm": rms_norm_case,
    "SwiGLU": swiglu_case,
    "GemmaRMSNorm": gemma_rms_norm_case,
    "GeGLU": geglu_case,
    "LayerNorm": layer_norm_case,
    "ForCausalLMLoss": loss_case,
    "RotaryPosEmb": rotary_case,
}


def shapes(name: str, device: str) -> list[tuple[int, ...]]:
    """Give the shapes a kernel is measured at."""
    if name == "ForCausalLMLoss":
        return [*(CPU_LOGITS if device == "cpu" else GPU_LOGITS)]
    if name == "RotaryPosEmb":
        return [*(CPU_HEADS if device == "cpu" else GPU_HEADS)]
    return [*(CPU_SHAPES if device == "cpu" else GPU_SHAPES)]


def step(function: Callable[..., torch.Tensor], inputs: list[torch.Tensor], mode: str) -> None:
    """One call as inference or training makes it."""
    if mode == "inference":
        with torch.no_grad():
            function(*inputs)
        return
    leaves = [t.detach().requires_grad_() for t in inputs]
    made: torch.Tensor | tuple[torch.Tensor, ...] = function(*leaves)
    results = list(made) if isinstance(made, tuple) else [made]
    torch.autograd.backward(results, [torch.ones_like(result) for result in results])


def compiled(case: Case) -> dict[str, Callable[..., torch.Tensor]]:
    """Give the original under torch.compile, for this shape only."""
    torch.compiler.reset()
    return {"compiled": torch.compile(case.providers["eager"], dynamic=False)}


def cpu_medians(case: Case, mode: str, repeats: int, compile: bool) -> dict[str, float]:
    """Time the providers in turn, so that what disturbs one disturbs all."""
    providers = case.providers | (compiled(case) if compile else {})
    times: dict[str, list[float]] = {name: [] for name in providers}
    for turn in range(repeats + 3):
        for name, function in providers.items():
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

    providers = case.providers | compiled(case)
    return {name: timed(function) for name, function in providers.items()}


def processor() -> str:
    """Give the processor's name, as Linux has it."""
    file = Path("/proc/cpuinfo")
    lines = file.read_text("utf-8").splitlines() if file.is_file() else []
    named = (line.partition(":")[2].strip() for line in lines if line.startswith("model name"))
    return next(named, platform.processor() or platform.machine())


def copying() -> float:
    """Measure what a plain copy of 64 MiB moves on the CPU, in GB/s."""
    source = torch.ones(2**24)
    target = torch.empty_like(source)
    times = []
    for _ in range(9):
        start = time.perf_counter()
        target.copy_(source)
        times.append(time.perf_counter() - start)
    return 2 * source.nbytes / statistics.median(times) / 1e9


def main(words: list[str]) -> None:
    """Print one line a case."""
    names = [word for word in words if not word.startswith("-")] or [*CASES]
    devices = ["cpu"] + ["cuda"] * torch.cuda.is_available()
    threads = f"{torch.get_num_threads()} threads, copying {copying():.1f} GB/s"
    sys.stdout.write(f"torch {torch.__version__}, {processor()}, {threads}, {devices}\n")
    for device in devices:
        for name in names:
            for dtype in (torch.float32, torch.bfloat16):
                for shape in shapes(name, device):
                    case = CASES[name](shape, device, dtype)
                    for mode in ("inference", "training"):
                        sys.stdout.write(line(case, mode, device, "--quick" in words, "--compile" in words) + "\n")
                        sys.stdout.flush()


def line(case: Case, mode: str, device: str, quick: bool, compile: bool) -> str:
    """Measure one case and write it as a row of the table."""
    first = case.inputs[0]
    if device == "cpu":
        repeats = max(15, min(500, 20_000_000 // first.numel())) // (10 if quick else 1)
        seconds = cpu_medians(case, mode, repeats, compile)
    else:
        seconds = gpu_medians(case, mode)
    shape = "x".join(map(str, first.shape))
    row = f"{case.name:15} {device} {str(first.dtype)[6:]:9} {shape:12} {mode:10}"
    row += f" {seconds['kerncfg'] * 1e6:10.0f} µs"
    row += "".join(f"  {seconds[n] / seconds['kerncfg']:5.2f}x {n}" for n in seconds if n != "kerncfg")
    return row + f"  {case.moved[mode] * first.nbytes / seconds['kerncfg'] / 1e9:6.1f} GB/s"


if __name__ == "__main__":
    main(sys.argv[1:])
