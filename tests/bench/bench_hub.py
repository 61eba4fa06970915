"""From a saved plan, with a warm cache, to a model that runs its kernels; and eight repositories fetched at once.

The peer is transformers 5.22.2 with kernels 0.17.2 (a folder with both, named in KERNCFG_PEERS; without it only our own
figures are printed). Its `set_use_kernels` is compared with loading a plan from its file and applying it, each in a
process of its own, in turns: Qwen3 with 28 layers, eight rows over three repositories. "cpu" is added to the peer's
list of devices, which refuses it; nothing else is changed. Where the time begins both have their modules imported, and
all of it is told again with that import. Modules are compiled once, as an installation leaves them.

It exits with 1 where a limit does not hold: `KERNCFG_PEERS=/folder python tests/bench/bench_hub.py`
"""

from __future__ import annotations

import compileall
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from itertools import chain
from pathlib import Path

from tests.hub.fixtures import TestHub
from tests.hub.kernels import package, repository, silu, source

ROOT = Path(__file__).parents[2]
ROUNDS = 7
LIMITS = {"saved plan": 1 / 3, "saved plan, 50 ms an answer": 1 / 3, "eight repositories": 2.0}

LINEAR = """
import torch
from torch import nn
class {name}(nn.Module):
    def forward(self, input: torch.Tensor) -> torch.Tensor:
        return nn.functional.linear(input, self.weight, self.bias)
"""
OTHERS = """
import torch
from torch import nn
class Emb(nn.Module):
    def forward(self, input: torch.Tensor) -> torch.Tensor:
        return nn.functional.embedding(input, self.weight)
class Mlp(nn.Module):
    def forward(self, x):
        return self.down_proj(self.act_fn(self.gate_proj(x)) * self.up_proj(x))
"""
ROWS = {
    "RMSNorm": "kernels-community/norms", "SiLU": "kernels-community/activation", "Emb": "kernels-community/norms",
    "Mlp": "kernels-community/norms", "QProj": "kernels-community/linear", "KProj": "kernels-community/linear",
    "VProj": "kernels-community/linear", "OProj": "kernels-community/linear",
}  # fmt: skip

# A model with eight names: the classes of some layers get one of their own, as a decorator would give it.
MODEL = """
import json, sys, time
import torch
from torch import nn
from transformers import Qwen3Config, Qwen3ForCausalLM
from transformers.models.qwen3 import modeling_qwen3 as qwen3
torch.manual_seed(0)
sizes = dict(hidden_size=64, intermediate_size=128, num_attention_heads=4, num_key_value_heads=2, head_dim=16)
model = Qwen3ForCausalLM(Qwen3Config(num_hidden_layers=28, vocab_size=256, **sizes)).eval()
made = {name: type(name, (nn.Linear,), {"kernel_layer_name": name}) for name in ("QProj", "KProj", "VProj", "OProj")}
made["Emb"] = type("Emb", (nn.Embedding,), {"kernel_layer_name": "Emb"})
qwen3.Qwen3MLP.kernel_layer_name = "Mlp"
model.model.embed_tokens.__class__ = made["Emb"]
for layer in model.model.layers:
    for name in ("q", "k", "v", "o"):
        getattr(layer.self_attn, name + "_proj").__class__ = made[name.upper() + "Proj"]
"""
OURS = (
    MODEL
    + """
before = time.perf_counter()
import kerncfg
kerncfg.load_plan, kerncfg.apply
started = time.perf_counter()
bindings = kerncfg.apply(kerncfg.load_plan("plan.json"), model)
ended = time.perf_counter()
print(json.dumps([ended - started, ended - before, bindings.report.counts["swapped"]]))
"""
)
PEER = (
    MODEL
    + """
before = time.perf_counter()
import kernels, transformers.utils.kernel_config as configs
from transformers import KernelConfig
configs.KERNELS_SUPPORTED_DEVICE_TYPES = [*configs.KERNELS_SUPPORTED_DEVICE_TYPES, "cpu"]
rows = {name: f"{place}:{name}" for name, place in json.loads(sys.argv[1]).items()}
started = time.perf_counter()
model.set_use_kernels(True, KernelConfig(rows))
ended = time.perf_counter()
placed = sum("forward" in module.__dict__ for module in model.modules())
print(json.dumps([ended - started, ended - before, placed]))
"""
)


Times = list[tuple[float, float, int]]


def timed(code: str, folder: Path, env: dict[str, str]) -> tuple[float, float, int]:
    """Run one process; return the seconds that it measured, those with its imports, and how many kernels it placed."""
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", code, json.dumps(ROWS)],
        cwd=folder, env=env, capture_output=True, text=True,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-2000:]
    spent, whole, placed = json.loads(done.stdout.splitlines()[-1])
    return spent, whole, placed


def cli(hub: TestHub, folder: Path, *words: str) -> float:
    """Run our command line, and return the seconds it took."""
    started = time.perf_counter()
    command = [sys.executable, "-m", "kerncfg", *words]
    subprocess.run(command, cwd=folder, env=hub.environment(), check=True, capture_output=True)
    return time.perf_counter() - started


def saved_plan(hub: TestHub, folder: Path, peers: str | None) -> Iterator[tuple[str, float]]:
    """Yield our part of the peer's time from a saved plan to applied, without and with 50 ms for each answer."""
    norms = repository("kernels-community/norms", package(source("rms_norm.py"), OTHERS))
    linear = repository("kernels-community/linear", package(*(LINEAR.format(name=f"{x}Proj") for x in "QKVO")))
    hub.add(norms, linear, silu())
    rows = [f"kernels.{name}.cpu={place}@v1:{name}" for name, place in ROWS.items()]
    cli(hub, folder, "plan", "target=cpu", "inherited=none", *rows, "-o", "plan.json")
    cli(hub, folder, "fetch", "plan.json")
    ours = hub.environment(PYTHONDONTWRITEBYTECODE=None)
    theirs = hub.environment(HF_HUB_DISABLE_TELEMETRY=None, PYTHONDONTWRITEBYTECODE=None)
    theirs["PYTHONPATH"] = f"{theirs['PYTHONPATH']}{os.pathsep}{peers}"
    timed(OURS, folder, ours)
    if peers:
        timed(PEER, folder, theirs)  # fills its cache
    for name, latency in zip(LIMITS, (0.0, 0.05), strict=False):
        hub.latency = latency
        own, other = [], []
        for _ in range(ROUNDS):
            with hub.log.expect(0):  # so that answers may take as long as they like
                own.append(timed(OURS, folder, ours))
            if peers:
                other.append(timed(PEER, folder, theirs))
        say(f"{latency * 1000:.0f} ms an answer: ours {told(own)}; the peer {told(other)}")
        if other:
            yield name, statistics.median(a / b for (a, *_), (b, *_) in zip(own, other, strict=True))
            yield (
                f"{name}, imports too",
                statistics.median(a / b for (_, a, _), (_, b, _) in zip(own, other, strict=True)),
            )
    hub.latency = 0.0


def say(line: str) -> None:
    """Write a line at once."""
    print(line, flush=True)  # noqa: T201


def told(found: Times) -> str:
    """Give a median, its range, what it is with imports, and how many kernels were placed."""
    if not found:
        return "not measured"
    seconds, whole = ([1000 * times[place] for times in found] for place in (0, 1))
    ranged = f"{statistics.median(seconds):.0f} ms ({min(seconds):.0f} to {max(seconds):.0f})"
    return f"{ranged}, with its imports {statistics.median(whole):.0f}, {found[0][2]} kernels"


def eight(hub: TestHub, folder: Path) -> Iterator[tuple[str, float]]:
    """Yield what fetching eight repositories takes, cold and with 100 ms for each answer, next to fetching one.

    In one process each, whose other work is the same for both and counts for neither: from the question what is there
    to the last file.
    """
    hub.latency, env = 0.1, hub.environment(PYTHONDONTWRITEBYTECODE=None)
    ratios = []
    for turn in range(3):
        places = [f"kernels-community/part{turn}-{number}" for number in range(9)]
        hub.add(*(repository(place, package(LINEAR.format(name="Part"))) for place in places))
        times = []
        for chosen in (places[:1], places[1:]):
            done = subprocess.run(
                [sys.executable, "-c", COLD, *(f"{place}@v1:Part" for place in chosen)],
                cwd=folder, env=env, check=True, capture_output=True, text=True,
            )  # fmt: skip
            times.append(float(done.stdout))
        ratios.append(times[1] / times[0])
        say(f"100 ms an answer, cold: one repository {times[0]:.2f} s, eight {times[1]:.2f} s")
    hub.latency = 0.0
    yield "eight repositories", statistics.median(ratios)


COLD = """
import sys, time
import kerncfg
from huggingface_hub.utils import get_session
rows = [f"kernels.Part{number}.cpu={reference}" for number, reference in enumerate(sys.argv[1:])]
kerncfg.plan("target=cpu", "inherited=none")
started = time.perf_counter()
failed = kerncfg.fetch(kerncfg.plan("target=cpu", "inherited=none", *rows))
spent = time.perf_counter() - started
assert not failed, failed
print(spent)
"""


def main() -> int:
    """Print the figures, and say with the exit status whether they are within the limits."""
    compileall.compile_dir(ROOT / "kerncfg", quiet=2)
    held = True
    with tempfile.TemporaryDirectory() as made, TestHub(Path(made) / "hf") as hub:
        folder = Path(made)
        for name, value in chain(saved_plan(hub, folder, os.environ.get("KERNCFG_PEERS")), eight(hub, folder)):
            limit = LIMITS.get(name)
            say(f"{name:44} {value:6.2f}" + (f"   limit {limit:.2f}" if limit else ""))
            held = held and (limit is None or value <= limit)
    return 0 if held else 1


if __name__ == "__main__":
    raise SystemExit(main())
