"""Fused kernels with their layouts, in each way that a layout can say where its parameters come from, and models."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import nn
from torch.nn import functional
from transformers import Concatenate, WeightConverter
from transformers.core_model_loading import Transpose, WeightRenaming

from kerncfg.applier.edits import Owner
from kerncfg.applier.fuse import Fusion, Prepared, fuse, prepare, survey
from kerncfg.applier.groups import groups
from kerncfg.documents.config import KernelRef
from kerncfg.documents.step import Kernel
from kerncfg.documents.target import Mode
from kerncfg.sources import reload

# Layers this small gain nothing from a second thread, and lose a hundredfold where the cores are shared.
torch.set_num_threads(1)

MODES = (Mode.INFERENCE, Mode.TRAINING)
MEMBERS = [("RMSNorm", "model.layers.*.post_attention_layernorm"), ("MLP", "model.layers.*.mlp")]
SIZES: dict[str, Any] = {
    "vocab_size": 97,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "num_key_value_heads": 1,
    "head_dim": 16,
    "max_position_embeddings": 64,
}


def norm(x: torch.Tensor, weight: torch.Tensor, eps: float) -> torch.Tensor:
    wide = x.float()
    return weight * (wide * torch.rsqrt(wide.pow(2).mean(-1, keepdim=True) + eps)).to(x.dtype)


class _Gated(nn.Module):
    can_torch_compile = True

    scale: torch.Tensor
    variance_epsilon: float
    gate_up_proj: nn.Module
    down_proj: nn.Module

    def forward(self, hidden_states: torch.Tensor) -> torch.Tensor:
        gate, up = self.gate_up_proj(norm(hidden_states, self.scale, self.variance_epsilon)).chunk(2, -1)
        result: torch.Tensor = self.down_proj(functional.silu(gate) * up)
        return result


class _GatedLayout(nn.Module):
    """Parameters of its own, empty as in a model that is about to be loaded."""

    def __init__(self, norm: Any, mlp: Any) -> None:
        super().__init__()
        self.variance_epsilon = norm.variance_epsilon
        self.scale = nn.Parameter(torch.empty_like(norm.weight))
        rows = mlp.gate_proj.out_features + mlp.up_proj.out_features
        form = {"device": mlp.gate_proj.weight.device, "dtype": mlp.gate_proj.weight.dtype}
        self.gate_up_proj = nn.Linear(mlp.gate_proj.in_features, rows, bias=mlp.gate_proj.bias is not None, **form)
        down = mlp.down_proj
        self.down_proj = nn.Linear(down.in_features, down.out_features, bias=down.bias is not None, **form)


class Declared(_Gated):
    """Kept and stacked, said without transformers."""


class DeclaredLayout(_GatedLayout):
    conversion: Mapping[str, str | Sequence[str]] = {
        "scale": "norm.weight",
        "gate_up_proj.weight": ["gate_proj.weight", "up_proj.weight"],
        "down_proj.weight": "mlp.down_proj.weight",
    }


class Mapped(_Gated):
    """The same in the convention of transformers, with its classes."""


_LAYER = r"model.layers.(\d+)"


class MappedLayout(_GatedLayout):
    conversion_mapping = (
        WeightRenaming(rf"{_LAYER}.post_attention_layernorm.weight", r"model.layers.\1.post_attention_layernorm.scale"),
        WeightRenaming("mlp.down_proj.weight", "post_attention_layernorm.down_proj.weight"),
        WeightConverter(
            ["mlp.gate_proj.weight", "mlp.up_proj.weight"],
            "post_attention_layernorm.gate_up_proj.weight",
            operations=[Concatenate(dim=0)],
        ),
    )


class Deaf(_Gated):
    """Right, but for the gradient of the last projection, which it forgets."""

    def forward(self, hidden_states: torch.Tensor) -> torch.Tensor:
        gate, up = self.gate_up_proj(norm(hidden_states, self.scale, self.variance_epsilon)).chunk(2, -1)
        down: Any = self.down_proj
        return functional.linear(functional.silu(gate) * up, down.weight.detach())


class DeafLayout(DeclaredLayout):
    """As that of `Declared`."""


class Turned(nn.Module):
    """Weights that the product wants the other way round: new parameters."""

    can_torch_compile = True

    norm_weight: torch.Tensor
    variance_epsilon: float
    gate: torch.Tensor
    up: torch.Tensor
    down_proj: nn.Module

    def forward(self, hidden_states: torch.Tensor) -> torch.Tensor:
        normal = norm(hidden_states, self.norm_weight, self.variance_epsilon)
        result: torch.Tensor = self.down_proj(functional.silu(normal @ self.gate) * (normal @ self.up))
        return result


class TurnedLayout(nn.Module):
    def __init__(self, norm: Any, mlp: Any) -> None:
        super().__init__()
        self.variance_epsilon = norm.variance_epsilon
        self.norm_weight = norm.weight
        self.gate = nn.Parameter(torch.empty_like(mlp.gate_proj.weight.T))
        self.up = nn.Parameter(torch.empty_like(mlp.up_proj.weight.T))
        self.down_proj = mlp.down_proj

    def from_stock(self, tensors: Mapping[str, torch.Tensor]) -> Mapping[str, torch.Tensor]:
        names = {"gate": "mlp.gate_proj.weight", "up": "mlp.up_proj.weight"}
        return {own: tensors[stock].T.contiguous() for own, stock in names.items()}

    def to_stock(self, tensors: Mapping[str, torch.Tensor]) -> Mapping[str, torch.Tensor]:
        names = {"mlp.gate_proj.weight": "gate", "mlp.up_proj.weight": "up"}
        return {stock: tensors[own].T.contiguous() for stock, own in names.items()}


class TurnedMapped(nn.Module):
    """One weight of a gated MLP stacked and turned, by an operation of transformers that no other way can say."""

    norm_weight: torch.Tensor
    variance_epsilon: float
    gate_up: torch.Tensor
    down_proj: nn.Module

    def forward(self, hidden_states: torch.Tensor) -> torch.Tensor:
        normal = norm(hidden_states, self.norm_weight, self.variance_epsilon)
        gate, up = (normal @ self.gate_up).chunk(2, -1)
        result: torch.Tensor = self.down_proj(functional.silu(gate) * up)
        return result


class TurnedMappedLayout(nn.Module):
    conversion_mapping = (
        WeightConverter(
            ["mlp.gate_proj.weight", "mlp.up_proj.weight"],
            "post_attention_layernorm.gate_up",
            operations=[Concatenate(dim=0), Transpose(0, 1)],
        ),
    )

    def __init__(self, norm: Any, mlp: Any) -> None:
        super().__init__()
        self.variance_epsilon = norm.variance_epsilon
        self.norm_weight = norm.weight
        self.gate_up = nn.Parameter(torch.empty(mlp.gate_proj.in_features, 2 * mlp.gate_proj.out_features))
        self.down_proj = mlp.down_proj


class Holding(nn.Module):
    """A layout that holds its members and a kernel that calls them: no weights move."""

    can_torch_compile = True

    first: nn.Module
    second: nn.Module

    def forward(self, hidden_states: torch.Tensor) -> torch.Tensor:
        result: torch.Tensor = self.second(self.first(hidden_states))
        return functional.dropout(result, 0.5, self.training)


class HoldingLayout(nn.Module):
    def __init__(self, first: nn.Module, second: nn.Module) -> None:
        super().__init__()
        self.first = first
        self.second = second


class Scaled(nn.Module):
    """One member, its parameter under another name."""

    scale: torch.Tensor
    variance_epsilon: float

    def forward(self, hidden_states: torch.Tensor) -> torch.Tensor:
        return norm(hidden_states, self.scale, self.variance_epsilon)


class ScaledLayout(nn.Module):
    conversion: Mapping[str, str] = {"scale": "weight"}

    def __init__(self, norm: Any) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.empty_like(norm.weight))
        self.variance_epsilon = norm.variance_epsilon


class Remade(Scaled):
    """The same in transformers' convention: the layout takes what the norm's class takes."""


class RemadeLayout(nn.Module):
    conversion_mapping = (WeightRenaming("input_layernorm.weight", "input_layernorm.scale"),)

    def __init__(self, hidden_size: int, eps: float = 1e-6) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.ones(hidden_size))
        self.variance_epsilon = eps


class Half(nn.Module):
    """Takes the gate alone into account."""

    variance_epsilon: float

    def forward(self, hidden_states: torch.Tensor) -> torch.Tensor:
        return hidden_states


class HalfLayout(nn.Module):
    def __init__(self, norm: Any, mlp: Any) -> None:
        super().__init__()
        self.variance_epsilon = norm.variance_epsilon
        self.weight = norm.weight
        self.down_proj = mlp.down_proj


class NoSource(nn.Module):
    """A parameter that comes from nowhere."""

    extra: torch.Tensor

    def forward(self, hidden_states: torch.Tensor) -> torch.Tensor:
        return hidden_states * self.extra


class NoSourceLayout(nn.Module):
    def __init__(self, norm: Any, mlp: Any) -> None:
        super().__init__()
        self.norm, self.mlp = norm, mlp
        self.extra = nn.Parameter(torch.ones(1))


class Alone(nn.Module):
    """Has no layout."""

    def forward(self, hidden_states: torch.Tensor) -> torch.Tensor:
        return hidden_states


class Block(nn.Module):
    """What a transformer's layer does with the two, without attention."""

    def __init__(self, size: int = 8, inner: int = 12, bias: bool = False) -> None:
        super().__init__()
        self.norm = Norm(size)
        self.mlp = MLP(size, inner, bias)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        result: torch.Tensor = x + self.mlp(self.norm(x))
        return result


class Norm(nn.Module):
    def __init__(self, size: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.rand(size) + 0.5)
        self.variance_epsilon = 1e-6

    def forward(self, hidden_states: torch.Tensor) -> torch.Tensor:
        return norm(hidden_states, self.weight, self.variance_epsilon)


class MLP(nn.Module):
    def __init__(self, size: int, inner: int, bias: bool) -> None:
        super().__init__()
        self.gate_proj = nn.Linear(size, inner, bias=bias)
        self.up_proj = nn.Linear(size, inner, bias=bias)
        self.down_proj = nn.Linear(inner, size, bias=bias)
        self.act_fn = nn.SiLU()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        result: torch.Tensor = self.down_proj(self.act_fn(self.gate_proj(x)) * self.up_proj(x))
        return result


def blocks(count: int = 2, **options: Any) -> Any:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        return nn.Sequential(*(Block(**options) for _ in range(count)))


def transformer(name: str = "Qwen3", dtype: torch.dtype = torch.float32, **options: Any) -> Any:
    import transformers

    config = getattr(transformers, f"{name}Config")(**{**SIZES, **options})
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        model: Any = getattr(transformers, f"{name}ForCausalLM")(config)
    return model.to(dtype).eval()


def kernel(name: str) -> Kernel | None:
    if name == "original":
        return None
    builtin = name == "RMSNormMLP"
    return Kernel(reference=KernelRef.parse(f"builtin:{name}" if builtin else f"python:tests.fusing:{name}"))


def prepared(
    model: nn.Module, idle: str, training: str | None = None, members: Sequence[tuple[str, str]] = MEMBERS
) -> list[Prepared | str]:
    kernels = kernel(idle), kernel(idle if training is None else training)
    codes = tuple(None if found is None else reload(found).code for found in kernels)
    assert len(codes) == 2
    known = survey(model)
    return [prepare(known, group, codes, kernels, MODES) for group in groups(model, members)]


def fused(
    model: nn.Module, idle: str, training: str | None = None, members: Sequence[tuple[str, str]] = MEMBERS
) -> tuple[Fusion, ...]:
    ready = prepared(model, idle, training, members)
    assert not [one for one in ready if isinstance(one, str)], ready
    return fuse([one for one in ready if isinstance(one, Prepared)], Owner.of("test"))


class layers:  # noqa: N801 (as the kernels library asks for it)
    Declared = Declared
    Deaf = Deaf
    Mapped = Mapped
    Turned = Turned
    TurnedMapped = TurnedMapped
    Holding = Holding
    Scaled = Scaled
    Remade = Remade
    Half = Half
    NoSource = NoSource
    Alone = Alone
