"""One small transformer, and for each kind of site a plan whose kernels change what it computes by known amounts.

Every kernel is safe for `torch.compile`, and training has another one than inference: a result tells which ran.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import FunctionType
from typing import TYPE_CHECKING, Any

import torch
from torch import nn
from torch.nn import functional

from kerncfg.documents.config import Trust
from kerncfg.documents.target import Mode
from tests.fusing import MEMBERS, transformer
from tests.planning import plan, step

if TYPE_CHECKING:
    from kerncfg.documents.plan import Plan, Step

INFERENCE, TRAINING, INFERENCE_COMPILE, TRAINING_COMPILE = Mode

TOKENS = torch.tensor([[5, 17, 33, 2, 96, 0, 41, 8], [7, 7, 60, 12, 3, 88, 21, 90]])
_TRUST = Trust().plus("python:tests.lifecycle")

# Two float32 runs of one computation in another order, as compilers make them: fixed before anything was measured.
ROOM: dict[str, Any] = {"rtol": 1e-4, "atol": 1e-5}

Pair = tuple[torch.Tensor, torch.Tensor]


def _norm(x: torch.Tensor, weight: torch.Tensor, eps: float) -> torch.Tensor:
    wide = x.float()
    return weight * (wide * torch.rsqrt(wide.pow(2).mean(-1, keepdim=True) + eps)).to(x.dtype)


class LayerIdle(nn.Module):
    """A norm, and half as much again."""

    can_torch_compile = True
    weight: torch.Tensor
    variance_epsilon: float

    def forward(self, hidden_states: torch.Tensor) -> torch.Tensor:
        return _norm(hidden_states, self.weight, self.variance_epsilon) * 1.5


class LayerTraining(LayerIdle):
    def forward(self, hidden_states: torch.Tensor) -> torch.Tensor:
        return _norm(hidden_states, self.weight, self.variance_epsilon) * 0.5


class FunctionIdle(nn.Module):
    """No rotation, and larger queries."""

    can_torch_compile = True

    def forward(
        self, q: torch.Tensor, k: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor, unsqueeze_dim: int = 1
    ) -> Pair:
        return q * 1.5, k


class FunctionTraining(FunctionIdle):
    def forward(
        self, q: torch.Tensor, k: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor, unsqueeze_dim: int = 1
    ) -> Pair:
        return q * 0.5, k


def _attention(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    mask: torch.Tensor | None,
    dropout: float,
    causal: bool,
    scale: float | None,
) -> torch.Tensor:
    return functional.scaled_dot_product_attention(
        query, key, value, mask, dropout, causal, scale=scale, enable_gqa=True
    )


def attention_idle(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attn_mask: torch.Tensor | None = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    scale: float | None = None,
) -> torch.Tensor:
    """Attention as it should be, and half as much again."""
    return _attention(query, key, value, attn_mask, dropout_p, is_causal, scale) * 1.5


def attention_training(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attn_mask: torch.Tensor | None = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    scale: float | None = None,
) -> torch.Tensor:
    return _attention(query, key, value, attn_mask, dropout_p, is_causal, scale) * 0.5


class FusionIdle(nn.Module):
    """A norm and a gated MLP whose two first weights are one, four times."""

    can_torch_compile = True
    scale: torch.Tensor
    variance_epsilon: float
    gate_up_proj: nn.Module
    down_proj: nn.Module

    def forward(self, hidden_states: torch.Tensor) -> torch.Tensor:
        gate, up = self.gate_up_proj(_norm(hidden_states, self.scale, self.variance_epsilon)).chunk(2, -1)
        result: torch.Tensor = self.down_proj(functional.silu(gate) * up) * 4
        return result


class FusionIdleLayout(nn.Module):
    conversion: Mapping[str, Any] = {"gate_up_proj.weight": ["gate_proj.weight", "up_proj.weight"]}

    def __init__(self, norm: Any, mlp: Any) -> None:
        super().__init__()
        self.variance_epsilon = norm.variance_epsilon
        self.scale = norm.weight
        rows = mlp.gate_proj.out_features + mlp.up_proj.out_features
        form = {"device": mlp.gate_proj.weight.device, "dtype": mlp.gate_proj.weight.dtype}
        self.gate_up_proj = nn.Linear(mlp.gate_proj.in_features, rows, bias=False, **form)
        self.down_proj = mlp.down_proj


class FusionTraining(FusionIdle):
    def forward(self, hidden_states: torch.Tensor) -> torch.Tensor:
        gate, up = self.gate_up_proj(_norm(hidden_states, self.scale, self.variance_epsilon)).chunk(2, -1)
        result: torch.Tensor = self.down_proj(functional.silu(gate) * up) * -4
        return result


class FusionTrainingLayout(FusionIdleLayout):
    pass


KINDS = ("layer", "function", "attention", "fusion")
EVERY = (*KINDS, "all")
SITES = {"layer": 9, "function": 2, "attention": 1, "fusion": 2, "all": 12}  # two norms are part of fusions


def _names(idle: str, training: str) -> dict[Mode, str]:
    idle, training = f"python:tests.lifecycle:{idle}", f"python:tests.lifecycle:{training}"
    return {INFERENCE: idle, TRAINING: training, INFERENCE_COMPILE: idle, TRAINING_COMPILE: training}


def steps(members: list[tuple[str, str]] = MEMBERS, **said: Any) -> dict[str, Step]:
    """One row for each kind; `said` is laid over every one of them."""
    return {
        "layer": step("RMSNorm", _names("LayerIdle", "LayerTraining"), **said),
        "function": step("rotary_pos_emb", _names("FunctionIdle", "FunctionTraining"), **said),
        "attention": step("default", _names("attention_idle", "attention_training"), node="attention", **said),
        "fusion": step("norm_mlp", _names("FusionIdle", "FusionTraining"), node="fusions", members=members, **said),
    }


def plan_of(kind: str, **said: Any) -> Plan:
    """A plan with a row of one kind, or of all."""
    found = steps(**said)
    return plan(*found.values() if kind == "all" else (found[kind],), trust=_TRUST)


def model(**config: Any) -> Any:
    """A Qwen3 of two layers that a graph takes as one, always the same."""
    return transformer(**{"use_cache": False, **config})


def logits(model: Any, training: bool | None = None) -> torch.Tensor:
    if training is not None:
        model.train(training)
    found: torch.Tensor = model(TOKENS).logits
    return found.detach()


def close(first: torch.Tensor, second: torch.Tensor) -> bool:
    return torch.allclose(first, second, **ROOM)


class Doubled(nn.Module):
    """A linear layer, twice."""

    weight: torch.Tensor
    bias: torch.Tensor | None

    def forward(self, input: torch.Tensor) -> torch.Tensor:
        return functional.linear(input, self.weight, self.bias) * 2


class Gated(nn.Module):
    """A gated MLP with its activation hard-coded, four times."""

    gate_proj: nn.Module
    up_proj: nn.Module
    down_proj: nn.Module

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        result: torch.Tensor = self.down_proj(functional.silu(self.gate_proj(x)) * self.up_proj(x)) * 4
        return result


class Inside(nn.Module):
    """A gated MLP that reads the weights of its projections rather than call them, four times."""

    can_torch_compile = True
    gate_proj: Any
    up_proj: Any
    down_proj: Any

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        gate, up = functional.linear(x, self.gate_proj.weight), functional.linear(x, self.up_proj.weight)
        return functional.linear(functional.silu(gate) * up, self.down_proj.weight) * 4


class DeepInside(nn.Module):
    """An MLP and what is around it, four times: it reads the weights of its children's children."""

    can_torch_compile = True
    mlp: Any

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        gate = functional.silu(functional.linear(x, self.mlp.gate_proj.weight))
        return self.mlp.down_proj(gate * self.mlp.up_proj(x)) * 4  # type: ignore[no-any-return]


class LayerForward(LayerIdle):
    has_backward = False


class LayerEager(LayerIdle):
    can_torch_compile = False


class FunctionForward(FunctionIdle):
    has_backward = False


class FunctionEager(FunctionIdle):
    can_torch_compile = False


class FusionForward(FusionIdle):
    has_backward = False


class FusionForwardLayout(FusionIdleLayout):
    pass


class FusionEager(FusionIdle):
    can_torch_compile = False


class FusionEagerLayout(FusionIdleLayout):
    pass


def _flagged(flag: str) -> Any:
    made = FunctionType(attention_idle.__code__, globals(), f"attention_{flag}", attention_idle.__defaults__)
    setattr(made, flag, False)
    return made


attention_forward = _flagged("has_backward")
attention_eager = _flagged("can_torch_compile")
