from __future__ import annotations

import torch
from torch import nn


def _turned(x: torch.Tensor) -> torch.Tensor:
    first, second = x.chunk(2, dim=-1)
    return torch.cat((-second, first), dim=-1)


def apply_rotary_transformers(
    q: torch.Tensor, k: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor, unsqueeze_dim: int = 1
) -> tuple[torch.Tensor, torch.Tensor]:
    cos, sin = cos.unsqueeze(unsqueeze_dim), sin.unsqueeze(unsqueeze_dim)
    return q * cos + _turned(q) * sin, k * cos + _turned(k) * sin


class layers:  # noqa: N801 - a kernel's layers are found under this name; a class does as well as a module
    class apply_rotary_transformers(nn.Module):  # noqa: N801
        can_torch_compile = True

        def forward(
            self, q: torch.Tensor, k: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor, unsqueeze_dim: int = 1
        ) -> tuple[torch.Tensor, torch.Tensor]:
            return apply_rotary_transformers(q, k, cos, sin, unsqueeze_dim)
