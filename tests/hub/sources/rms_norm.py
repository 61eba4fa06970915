from __future__ import annotations

import torch
from torch import nn


class RMSNorm(nn.Module):
    can_torch_compile = True

    weight: torch.Tensor
    variance_epsilon: float

    def forward(self, hidden_states: torch.Tensor) -> torch.Tensor:
        wide = hidden_states.float()
        scale = torch.rsqrt(wide.square().mean(-1, keepdim=True) + self.variance_epsilon)
        return self.weight * (wide * scale).to(hidden_states.dtype)
