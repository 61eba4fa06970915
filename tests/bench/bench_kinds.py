"""What applying all four kinds of site costs: `python tests/bench/bench_kinds.py`.

Each kind alone and all together on a Qwen3 of 96 layers, for each edit beside what a layer's costs; then a change of
mode and a call of a swapped function beside the plain ones. Medians over interleaved runs, of the processor's time of
this process, which has one thread: so a busy machine counts for neither side.
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
from transformers import Qwen3Config, Qwen3ForCausalLM

sys.path.insert(0, str(Path(__file__).parent.parent.parent))

from kerncfg.applier.apply import Bindings, apply
from tests.planning import plan, step

LAYERS = 96
MEMBERS = [("RMSNorm", "model.layers.*.post_attention_layernorm"), ("MLP", "model.layers.*.mlp")]
ROWS = {
    "layers": [step("RMSNorm", "builtin:RMSNorm")],
    "functions": [step("rotary_pos_emb", "builtin:RotaryPosEmb")],
    "fusions": [step("norm_mlp", "builtin:RMSNormMLP", node="fusions", members=MEMBERS)],
    "attention": [step("default", "python:tests.attention_kernels:interface", node="attention")],
}
ROWS["all four"] = [row for rows in list(ROWS.values()) for row in rows]

# What the figures must not pass: the script then exits with 1. The first two are of the whole apply and revert, for
# each edit, next to a plan of layers alone.
LIMITS = {"apply": 2.0, "revert": 2.0, "switch": 1.3, "function call": 1.05}


def build(layers: int = LAYERS) -> Any:
    """Return a model of many small layers."""
    sizes: dict[str, Any] = {"hidden_size": 16, "intermediate_size": 16, "num_attention_heads": 2, "head_dim": 8}
    make: Any = Qwen3ForCausalLM
    return make(Qwen3Config(num_hidden_layers=layers, num_key_value_heads=1, vocab_size=16, **sizes)).eval()


def edits(bindings: Bindings) -> int:
    """Count the modules that were changed: those of edits, and the parts whose parameters a fusion moved."""
    settled, held = bindings._settled, bindings._settled.attended
    made = [one.fusion for one in settled.fusions if one.fusion is not None]
    moved = sum(len({*map(id, one._all_owners())} - {*map(id, one.members)}) for one in made)
    return len(list(settled.edits())) + moved + (len(held._edits.done) if held is not None else 0)


def applying(runs: int) -> Iterator[tuple[str, float, float]]:
    """Yield for each kind the microseconds that a changed module takes to apply and to revert."""
    model, trust = build(), plan().trust.plus("python:tests.attention_kernels")
    plans = {name: plan(*rows, trust=trust) for name, rows in ROWS.items()}
    times: dict[str, list[tuple[float, float]]] = {name: [] for name in plans}
    counts = {}
    for turn in range(runs + 1):
        for name, said in plans.items():
            bindings = None
            gc.collect()
            start = time.process_time()
            bindings = apply(said, model)
            middle = time.process_time()
            counts[name] = edits(bindings)
            again = time.process_time()
            bindings.revert()
            if turn:
                times[name].append((middle - start, time.process_time() - again))
    for name, found in times.items():
        applied, reverted = (statistics.median(values) for values in zip(*found, strict=True))
        yield name, 1e6 * applied / counts[name], 1e6 * reverted / counts[name]


def seconds(call: Callable[[], Any], times: int) -> float:
    """Return what one call takes."""
    start = time.process_time()
    for _ in range(times):
        call()
    return (time.process_time() - start) / times


def ratio(plain: Callable[[], Any], other: Callable[[], Any], times: int, runs: int) -> float:
    """Return what the other takes next to the plain one."""
    found = []
    for _ in range(runs):
        first, second = seconds(plain, times), seconds(other, times)
        found.append(second / first)
    return statistics.median(found)


def main(runs: int = 15) -> int:
    """Print one line a figure."""
    trust = plan().trust.plus("python:tests.attention_kernels")
    costs = {name: (applied, reverted) for name, applied, reverted in applying(runs)}
    for name, (applied, reverted) in costs.items():
        sys.stdout.write(f"{name:16} apply {applied:6.1f} µs, revert {reverted:6.1f} µs an edit\n")
    whole, layers = costs["all four"], costs["layers"]
    figures = {"apply": whole[0] / layers[0], "revert": whole[1] / layers[1]}
    plain, swapped = build(), build()
    apply(plan(*ROWS["all four"], trust=trust), swapped)
    figures["switch"] = ratio(lambda: (plain.train(), plain.eval()), lambda: (swapped.train(), swapped.eval()), 1, 60)
    figures["function call"] = calling()
    for name, value in figures.items():
        sys.stdout.write(f"{name:16} {value:6.2f}   limit {LIMITS[name]}\n")
    return int(any(value > LIMITS[name] for name, value in figures.items()))


def calling() -> float:
    """Return what a forward whose function is swapped for one that does the same takes, next to the plain one."""
    plain, swapped = build(1), build(1)
    apply(plan(step("rotary_pos_emb", "python:tests.bench.bench_kinds:turned"), trust=TRUST), swapped)
    x = torch.ones(1, 4, 16)
    angles = plain.model.rotary_emb(x, torch.arange(4)[None])
    one, other = (model.model.layers[0].self_attn for model in (plain, swapped))
    with torch.no_grad():
        return ratio(lambda: one(x, angles, None), lambda: other(x, angles, None), 100, 40)


TRUST = plan().trust.plus("python:tests.bench.bench_kinds")


def turned(q: Any, k: Any, cos: Any, sin: Any, unsqueeze_dim: int = 1) -> Any:
    """Call the model's own function, through a name that is a kernel's."""
    return _OWN(q, k, cos, sin, unsqueeze_dim)


_OWN: Any = sys.modules["transformers.models.qwen3.modeling_qwen3"].apply_rotary_pos_emb

if __name__ == "__main__":
    sys.exit(main())
