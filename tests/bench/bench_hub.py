"""From a saved plan, with a warm cache, to a model that runs its kernels; and eight repositories fetched at once.

The peer is transformers 5.22.2 with kernels 0.17.2 (a folder with both, named in KERNCFG_PEERS; without it only our own
figures are printed). Its `set_use_kernels` is compared with loading a plan from its file and applying it, each in a
process of its own, in turns: Qwen3 with 28 layers, eight rows over three repositories. "cpu" is added to the peer's
list of devices, which refuses it; nothing else is changed.

python tests/bench/bench_hub.py
"""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from tests.hub.fixtures import TestHub
from tests.hub.kernels import package, repository, silu, source

ROOT = Path(__file__).parents[2]
ROUNDS = 7

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
import kerncfg
kerncfg.load_plan, kerncfg.apply  # so that importing our own modules is not timed, as importing `kernels` is not
started = time.perf_counter()
bindings = kerncfg.apply(kerncfg.load_plan("plan.json"), model)
print(json.dumps([time.perf_counter() - started, bindings.report.counts["swapped"]]))
"""
)
PEER = (
    MODEL
    + """
import kernels, transformers.utils.kernel_config as configs
from transformers import KernelConfig
configs.KERNELS_SUPPORTED_DEVICE_TYPES = [*configs.KERNELS_SUPPORTED_DEVICE_TYPES, "cpu"]
rows = {name: f"{place}:{name}" for name, place in json.loads(sys.argv[1]).items()}
started = time.perf_counter()
model.set_use_kernels(True, KernelConfig(rows))
spent = time.perf_counter() - started
print(json.dumps([spent, sum("forward" in module.__dict__ for module in model.modules())]))
"""
)


def timed(code: str, folder: Path, env: dict[str, str]) -> tuple[float, int]:
    """Run one process; return the seconds that it measured, and how many kernels it placed."""
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", code, json.dumps(ROWS)],
        cwd=folder, env=env, capture_output=True, text=True,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-2000:]
    spent, placed = json.loads(done.stdout.splitlines()[-1])
    return spent, placed


def cli(hub: TestHub, folder: Path, *words: str) -> float:
    """Run our command line, and return the seconds it took."""
    started = time.perf_counter()
    command = [sys.executable, "-m", "kerncfg", *words]
    subprocess.run(command, cwd=folder, env=hub.environment(), check=True, capture_output=True)
    return time.perf_counter() - started


def saved_plan(hub: TestHub, folder: Path, peers: str | None) -> None:
    """Compare from a saved plan to applied, without and with 50 ms for each answer of the Hub."""
    norms = repository("kernels-community/norms", package(source("rms_norm.py"), OTHERS))
    linear = repository("kernels-community/linear", package(*(LINEAR.format(name=f"{x}Proj") for x in "QKVO")))
    hub.add(norms, linear, silu())
    rows = [f"kernels.{name}.cpu={place}@v1:{name}" for name, place in ROWS.items()]
    cli(hub, folder, "plan", "target=cpu", "inherited=none", *rows, "-o", "plan.json")
    cli(hub, folder, "fetch", "plan.json")
    ours = hub.environment()
    theirs = hub.environment(HF_HUB_DISABLE_TELEMETRY=None)
    theirs["PYTHONPATH"] = f"{theirs['PYTHONPATH']}{os.pathsep}{peers}"
    if peers:
        timed(PEER, folder, theirs)  # fills its cache
    for latency in (0.0, 0.05):
        hub.latency = latency
        own, other = [], []
        for _ in range(ROUNDS):
            own.append(timed(OURS, folder, ours))
            if peers:
                other.append(timed(PEER, folder, theirs))
        print(f"{latency * 1000:.0f} ms an answer: ours {told(own)}; the peer {told(other)}")  # noqa: T201
        if other:
            ratio = statistics.median(a / b for (a, _), (b, _) in zip(own, other, strict=True))
            print(f"  ours takes {ratio:.2f} of the peer's time, limit 0.33")  # noqa: T201
    hub.latency = 0.0


def told(found: list[tuple[float, int]]) -> str:
    """Give a median, its range, and how many kernels were placed."""
    if not found:
        return "not measured"
    seconds = [spent * 1000 for spent, _ in found]
    return f"{statistics.median(seconds):.0f} ms ({min(seconds):.0f} to {max(seconds):.0f}), {found[0][1]} kernels"


def eight(hub: TestHub, folder: Path) -> None:
    """Compare fetching eight repositories, cold and with 100 ms for each answer, with fetching one."""
    places = [f"kernels-community/part{number}" for number in range(9)]
    hub.add(*(repository(place, package(LINEAR.format(name="Part"))) for place in places))
    hub.latency = 0.1
    times = []
    for chosen in (places[:1], places[1:]):
        rows = [f"kernels.Part{number}.cpu={place}@v1:Part" for number, place in enumerate(chosen)]
        spent = cli(hub, folder, "plan", "target=cpu", "inherited=none", *rows, "-o", "parts.json")
        times.append(spent + cli(hub, folder, "fetch", "parts.json"))
    hub.latency = 0.0
    print(f"eight repositories take {times[1] / times[0]:.2f} times one, whole processes, limit 2")  # noqa: T201


def main() -> int:
    """Print the figures."""
    with tempfile.TemporaryDirectory() as made, TestHub(Path(made) / "hf") as hub:
        saved_plan(hub, Path(made), os.environ.get("KERNCFG_PEERS"))
        eight(hub, Path(made))
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
