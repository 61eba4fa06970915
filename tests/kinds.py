"""One plan with all four kinds of site, said in each way that there is, and models it fits."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch

import kerncfg
from tests import attending
from tests.snapshot import snapshot

torch.set_num_threads(1)

LAYERS = 2
INTERFACE = "python:tests.attention_kernels:interface"
MEMBERS = [["RMSNorm", "model.layers.*.post_attention_layernorm"], ["MLP", "model.layers.*.mlp"]]
PAIR = "[[RMSNorm, model.layers.*.post_attention_layernorm], [MLP, model.layers.*.mlp]]"
NORM = "kernels.RMSNorm.cpu=builtin:RMSNorm"
ROTARY = "kernels.rotary_pos_emb.cpu={kernel: 'builtin:RotaryPosEmb'}"
FUSED = f"fusions.norm_mlp={{members: {PAIR}, kernel: 'builtin:RMSNormMLP'}}"
ATTENTION = f"attention.default={INTERFACE}"
ROWS = ("inherited=none", NORM, ROTARY, FUSED, ATTENTION)
# How many sites each row has in a model of two layers, and how many are left to others.
SITES = {"layer": 2 * 3 + 1, "function": 2, "fusion": 2, "attention": 1}

DOCUMENT: dict[str, Any] = {
    "inherited": {},
    "kernels": {
        "RMSNorm": {"cpu": "builtin:RMSNorm"},
        "rotary_pos_emb": {"cpu": {"kernel": "builtin:RotaryPosEmb"}},
    },
    "fusions": {"norm_mlp": {"members": MEMBERS, "kernel": "builtin:RMSNormMLP"}},
    "attention": {"default": INTERFACE},
}

EXPERIMENT = f"""# @package _global_
kernels:
  RMSNorm:
    cpu: builtin:RMSNorm
  rotary_pos_emb:
    cpu: {{kernel: "builtin:RotaryPosEmb"}}
fusions:
  norm_mlp:
    members: {PAIR}
    kernel: builtin:RMSNormMLP
attention:
  default: {INTERFACE}
"""


def qwen() -> Any:
    """A Qwen3 of two layers, always the same, in eval mode, that has run once."""
    model = attending.model("qwen3")
    model(attending.tokens())
    return model


def plan(*more: str) -> kerncfg.Plan:
    """The plan of all four kinds, and what else is said."""
    return kerncfg.plan(*ROWS, *more)


def plan_of(way: str, folder: Path) -> kerncfg.Plan:
    """The same plan said in a file, by overrides, or as data."""
    if way == "file":
        (folder / "experiment").mkdir()
        (folder / "experiment" / "four.yaml").write_text(EXPERIMENT)
        return kerncfg.plan("inherited=none", "experiment=four", config_dir=folder)
    return plan() if way == "override" else kerncfg.plan(config=DOCUMENT)


def kinds(report: kerncfg.Report, status: str = "swapped") -> dict[str, int]:
    """How many sites of each kind have a status."""
    found: dict[str, int] = {}
    for row in report.rows:
        if row.status == status:
            found[row.kind] = found.get(row.kind, 0) + 1
    return found


def state(model: Any) -> dict[str, Any]:
    """A snapshot without the modules of the process, which kernels add to for good."""
    found = snapshot(model)
    del found["imports"]
    return found


def logits(model: Any) -> torch.Tensor:
    with torch.no_grad():
        return attending.call(model, "qwen3", attending.tokens())


def gradients(model: Any) -> dict[str, torch.Tensor]:
    model.zero_grad()
    loss: Any = attending.call(model, "qwen3", attending.tokens()).square().mean()
    loss.backward()
    return {name: parameter.grad.clone() for name, parameter in model.named_parameters() if parameter.grad is not None}
