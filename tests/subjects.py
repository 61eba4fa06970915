"""What evidence is tested on: small models, a policy, and plans for the kernels in `faults`."""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import nn
from torch.nn import functional

import kerncfg
from kerncfg.compiler.compose import compose
from kerncfg.machine import detect
from kerncfg.models import Loaded, build

if TYPE_CHECKING:
    from kerncfg.applier.apply import Bindings
    from kerncfg.documents.plan import Plan

FAULTS = Path(__file__).parent / "faults"

# Layers this small gain nothing from a second thread, and lose a hundredfold where the cores are shared.
torch.set_num_threads(1)

POLICY: dict[str, Any] = compose()[0]["policy"]["verify"]

TINY = {
    "vocab_size": 97,
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "num_key_value_heads": 1,
    "head_dim": 32,
    "max_position_embeddings": 64,
}


def qwen3(dtype: str = "float32", **config: Any) -> Loaded:
    """Build a Qwen3 of two small layers."""
    node = {"architecture": "Qwen3ForCausalLM", "config": {**TINY, **config}, "dtype": dtype, "seed": 0}
    return build({**node, "batch": 2, "sequence": 8}, detect({"device": "cpu"}))


def packaged(name: str, dtype: str, layers: int) -> Loaded:
    """Build one of the models that `conf/model` describes, with fewer layers."""
    node = compose([f"model={name}", f"model.dtype={dtype}", f"model.config.num_hidden_layers={layers}"])[0]["model"]
    return build(node, detect({"device": "cpu"}))


def fault(name: str, row: str = "RMSNorm", training: bool = True) -> str:
    """Give the override that puts a kernel of `faults` on a row, in both modes or for inference only."""
    kernel = f"{FAULTS}:{name}"
    return f"kernels.{row}.cpu={kernel if training else f'{{inference: {kernel}, training: original}}'}"


def applied(model: nn.Module, *overrides: str, mode: str | None = None) -> Bindings:
    """Apply a plan for this CPU."""
    return kerncfg.apply(_plan(*overrides), model, mode=mode)


@cache
def _plan(*overrides: str) -> Plan:
    return kerncfg.plan(*overrides, target="cpu")


class Norm(nn.Module):
    """A norm of one's own, with the attributes that the kernels in `faults` read."""

    def __init__(self, size: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.rand(size) + 0.5)
        self.variance_epsilon = 1e-6

    def forward(self, hidden_states: torch.Tensor) -> torch.Tensor:
        wide = hidden_states.float()
        scale = torch.rsqrt(wide.pow(2).mean(-1, keepdim=True) + self.variance_epsilon)
        return self.weight * (wide * scale).to(hidden_states.dtype)


class DropNorm(Norm):
    """The same, dropping a tenth in training."""

    def forward(self, hidden_states: torch.Tensor) -> torch.Tensor:
        return functional.dropout(super().forward(hidden_states), 0.1, self.training)


class Stack(nn.Module):
    """Two norms around layers with state of their own; `spare` is never called."""

    def __init__(self, norm: type[Norm] = Norm) -> None:
        super().__init__()
        self.first = norm(16)
        self.batch = nn.BatchNorm1d(16)
        self.dropout = nn.Dropout(0.5)
        self.second = norm(16)
        self.spare = norm(16)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        result: torch.Tensor = self.second(hidden_states=self.dropout(self.batch(self.first(x))))
        return result


def matched(name: str, cls: type[nn.Module] = Norm) -> str:
    """Give the override that puts a kernel of `faults` on every module of a class."""
    return f"kernels.Mine={{match: {{class: {cls.__name__}}}, cpu: {FAULTS}:{name}}}"


def stack(norm: type[Norm] = Norm) -> tuple[Stack, dict[str, Any]]:
    """Build a stack and its inputs, from one seed."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        return Stack(norm).eval(), {"x": torch.randn(4, 16)}


def maybe(x: torch.Tensor) -> torch.Tensor:
    """Double: what `Caller` calls by name."""
    return x * 2


class Caller(nn.Module):
    """Calls a function for even lengths only."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return maybe(x) if len(x) % 2 == 0 else x * 2


class Calling(nn.Module):
    """A model of one caller."""

    def __init__(self) -> None:
        super().__init__()
        self.caller = Caller()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        result: torch.Tensor = self.caller(x)
        return result


MAYBE = f"kernels.Maybe={{match: {{function: maybe}}, cpu: {FAULTS}:doubles}}"


def calling() -> Calling:
    """Build a model whose forward calls a function that a kernel may stand for."""
    return Calling()
