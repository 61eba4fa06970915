"""Kernels that multiply by a known constant, so that a test sees which code ran, and some with one fault each."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn


class Ten(nn.Module):
    can_torch_compile = True
    weight: torch.Tensor

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x * self.weight * 10


class Twenty(nn.Module):
    can_torch_compile = True
    weight: torch.Tensor

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Takes the same attributes as `Ten`."""
        return x * self.weight * 20


class OnlyForward(nn.Module):
    has_backward = False
    weight: torch.Tensor

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x * self.weight.detach() * 30


class Free(nn.Module):
    """Reads nothing of the layer."""

    can_torch_compile = True

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x * 100


class HiddenTen(nn.Module):
    """The same for layers that call their input `hidden_states`, as transformers' do."""

    can_torch_compile = True
    weight: torch.Tensor

    def forward(self, hidden_states: torch.Tensor) -> torch.Tensor:
        return hidden_states * self.weight * 10


class HiddenTwenty(nn.Module):
    can_torch_compile = True
    weight: torch.Tensor

    def forward(self, hidden_states: torch.Tensor) -> torch.Tensor:
        return hidden_states * self.weight * 20


class WithInit(nn.Module):
    def __init__(self) -> None:
        super().__init__()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x


class WithMember(nn.Module):
    table = (1, 2)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x


class OtherName(nn.Module):
    def forward(self, hidden_states: torch.Tensor, eps: float = 1e-6) -> torch.Tensor:
        return hidden_states


class OtherDefault(nn.Module):
    def forward(self, x: torch.Tensor, scale: float = 2.0) -> torch.Tensor:
        return x


class ReadsAbsent(nn.Module):
    scale_that_is_not_there: torch.Tensor

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x * self.scale_that_is_not_there


class AsksFirst(nn.Module):
    bias: torch.Tensor

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x * self.bias if hasattr(self, "bias") else x * 7


class CallsSuper(nn.Module):
    def forward(self, x: torch.Tensor) -> Any:
        return super().extra_repr()


class Static(nn.Module):
    @staticmethod
    def forward(x: torch.Tensor) -> torch.Tensor:
        return x


class NoForward(nn.Module):
    pass


class ReadsInside(nn.Module):
    """Takes a child apart, past whatever wraps the child."""

    proj: Any

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        result: torch.Tensor = x * self.proj.weight.sum() * 5
        return result


class CallsChild(nn.Module):
    proj: Any

    def forward(self, x: torch.Tensor) -> Any:
        return self.proj(x) * 5


def function(x: torch.Tensor) -> torch.Tensor:
    return x


class _NotYet(type):
    def __getattribute__(cls, name: str) -> Any:
        if name == "forward":
            raise RuntimeError("not yet")
        return super().__getattribute__(name)


class RaisingClass(nn.Module, metaclass=_NotYet):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x


class WrapsItself(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x

    forward.__wrapped__ = forward  # type: ignore[attr-defined]
