"""Liger's kernels from its package, under Triton's interpreter: verified on Qwen3 and Llama, forward and backward.

In a process of its own: the interpreter is chosen when triton is imported, and what it lacks is mended there.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

CHECKOUT = Path(__file__).parent.parent

# Two of Liger's operations ask for a device's library, and the interpreter takes constants for doubles.
SHIM = """
import numpy as np, triton.language as tl, triton.runtime.interpreter as ti

_own = ti._implicit_cvt


def _convert(value):
    if type(value) is float:
        return tl.tensor(ti.TensorHandle(np.array([value], dtype=np.float32), tl.float32), tl.float32)
    return _own(value)


ti._implicit_cvt = _convert
import triton.language.extra.cuda.libdevice as second, triton.language.extra.libdevice as first
import triton.language.math as third

first.rsqrt = second.rsqrt = lambda x: 1.0 / tl.sqrt(x)
first.tanh = second.tanh = third.tanh = lambda x: 2 * tl.sigmoid(2 * x) - 1
"""

FOLDER = """
import torch
from torch import nn
from liger_kernel.ops.rms_norm import LigerRMSNormFunction
from liger_kernel.ops.swiglu import LigerSiLUMulFunction
from liger_kernel.transformers.functional import liger_cross_entropy


class RMSNorm(nn.Module):
    can_torch_compile = False
    has_backward = True

    def forward(self, hidden_states):
        return LigerRMSNormFunction.apply(hidden_states, self.weight, self.variance_epsilon, 0.0, "llama", False)


class SwiGLUMLP(nn.Module):
    can_torch_compile = False
    has_backward = True

    def forward(self, x):
        return self.down_proj(LigerSiLUMulFunction.apply(self.gate_proj(x), self.up_proj(x)))


class CrossEntropy(nn.Module):
    can_torch_compile = False
    has_backward = True

    def forward(self, logits, labels):
        return liger_cross_entropy(logits, labels)
"""

SCRIPT = """
import json, sys
sys.path.insert(0, {checkout!r})
exec({shim!r})
import torch, kerncfg
from torch import nn
from torch.nn import functional
from tests.subjects import POLICY, TINY
from kerncfg.evidence.verify import verify
from kerncfg.machine import detect
from kerncfg.models import build

torch.set_num_threads(1)


class Loss(nn.Module):
    def forward(self, logits, labels):
        return functional.cross_entropy(logits, labels)


class WithLoss(nn.Module):
    def __init__(self, model):
        super().__init__()
        self.model, self.loss = model, Loss()

    def forward(self, input_ids, attention_mask):
        logits = self.model(input_ids=input_ids, attention_mask=attention_mask, use_cache=False).logits
        return self.loss(logits[:, :-1].flatten(0, 1), input_ids[:, 1:].flatten())


node = {{"architecture": {name!r}, "config": TINY, "dtype": "float32", "seed": 0, "batch": 2, "sequence": 8}}
loaded = build(node, detect({{"device": "cpu"}}))
rows = [
    "kernels.Norm={{match: {{class: '*RMSNorm'}}, cpu: {folder}:RMSNorm}}",
    "kernels.MLP={{match: {{class: '*MLP'}}, cpu: {folder}:SwiGLUMLP}}",
    "kernels.Loss={{match: {{class: Loss}}, cpu: {folder}:CrossEntropy}}",
]
with kerncfg.apply(kerncfg.plan("inherited=none", *rows, target="cpu"), WithLoss(loaded.model).eval()) as bindings:
    found = verify(bindings, loaded.inputs, POLICY)
print(json.dumps(found.to_dict()))
"""


def verified(name: str, tmp_path: Path) -> dict[str, Any]:
    folder = tmp_path / "liger"
    folder.mkdir()
    (folder / "__init__.py").write_text("from . import layers\n")
    (folder / "layers.py").write_text(FOLDER)
    script = SCRIPT.format(checkout=str(CHECKOUT), shim=SHIM, name=name, folder=folder)
    environment = {**os.environ, "TRITON_INTERPRET": "1", "OMP_NUM_THREADS": "1"}
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, env=environment, check=False, timeout=600
    )
    assert done.returncode == 0, done.stderr
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return found


@pytest.mark.parametrize("name", ["Qwen3ForCausalLM", "LlamaForCausalLM"])
def test_ligers_kernels_pass_forward_and_backward_but_for_the_loss_that_overwrites_the_logits(
    name: str, tmp_path: Path
) -> None:
    rows = verified(name, tmp_path)["rows"]
    passed = {row["name"]: row["passed"] for row in rows}
    assert passed == {"Norm": True, "MLP": True, "Loss": False}, [(row["name"], row["reason"]) for row in rows]
    assert all(row["backward"]["passed"] for row in rows if row["name"] != "Loss")
    (loss,) = {row["reason"] for row in rows if row["name"] == "Loss"}
    assert "the forward writes to its input 0" in loss
