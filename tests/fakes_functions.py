"""Kernels for functions: each changes its input by a known factor, so that a test sees which ran; some have a fault."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

Pair = tuple[torch.Tensor, torch.Tensor]


class HalfQ(nn.Module):
    can_torch_compile = True

    def forward(
        self, q: torch.Tensor, k: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor, unsqueeze_dim: int = 1
    ) -> Pair:
        return q * 0.5, k


def triple_q(q: torch.Tensor, k: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor, unsqueeze_dim: int = 1) -> Pair:
    return q * 3, k


triple_q.can_torch_compile = True  # type: ignore[attr-defined]


class OnlyInference(HalfQ):
    has_backward = False


class OtherDefault(nn.Module):
    def forward(
        self, q: torch.Tensor, k: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor, unsqueeze_dim: int = 2
    ) -> Pair:
        return q, k


class Keyword(nn.Module):
    def forward(
        self, q: torch.Tensor, k: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor, *, unsqueeze_dim: int = 1
    ) -> Pair:
        return q, k


class ReadsSelf(nn.Module):
    weight: torch.Tensor

    def forward(
        self, q: torch.Tensor, k: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor, unsqueeze_dim: int = 1
    ) -> Pair:
        return q * self.weight, k


class SetsSelf(nn.Module):
    seen: Any

    def forward(
        self, q: torch.Tensor, k: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor, unsqueeze_dim: int = 1
    ) -> Pair:
        self.seen = q
        return q, k


def swapped_names(
    k: torch.Tensor, q: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor, unsqueeze_dim: int = 1
) -> Pair:
    return q, k


def generator(q: Any, k: Any, cos: Any, sin: Any, unsqueeze_dim: int = 1) -> Any:
    yield q


table = {"q": 1}
instance = HalfQ()


class Ten(nn.Module):
    """For the functions of `tests.test_functions`, which take one tensor."""

    can_torch_compile = True

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x * 10


def twenty(x: torch.Tensor) -> torch.Tensor:
    return x * 20


def _decorated(factor: int) -> Any:
    def thousand(x: torch.Tensor) -> torch.Tensor:
        return x * factor

    thousand.can_torch_compile = True  # type: ignore[attr-defined]
    return thousand


thousand = _decorated(1000)


class WholeTen(nn.Module):
    """A layer kernel for their callers."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x * -1
