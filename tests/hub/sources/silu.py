from __future__ import annotations

import torch
from torch import nn


class SiLU(nn.Module):
    can_torch_compile = True

    def forward(self, input: torch.Tensor) -> torch.Tensor:
        return input * torch.sigmoid(input)
