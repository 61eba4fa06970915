"""Attention kernels with one fault each, in the form of the attention interface or of flash attention."""

from __future__ import annotations

from itertools import pairwise
from types import SimpleNamespace
from typing import Any

import torch

from tests import attention_kernels
from tests.attention_kernels import flash_attn_func, flash_attn_varlen_func, interface, window

__all__ = [
    "Eyeless",
    "FutureVarlen",
    "Windowless",
    "forgets_scaling",
    "forgets_training",
    "ignores_mask",
    "ignores_padding",
    "loses_gradient",
    "returns_heads_first",
    "writes_to_queries",
]


def ignores_mask(module: Any, query: Any, key: Any, value: Any, attention_mask: Any, **kwargs: Any) -> Any:
    """Attend to everything, the future too."""
    return interface(module, query, key, value, None, **kwargs)


def ignores_padding(
    module: Any, query: Any, key: Any, value: Any, attention_mask: Any, is_causal: Any = None, **kwargs: Any
) -> Any:
    """Attend to all that came before, padding too."""
    allowed = window(query.shape[2], key.shape[2], True, (-1, -1))
    return attention_kernels.blind(module, query, key, value, allowed, **kwargs)


def forgets_scaling(
    module: Any, query: Any, key: Any, value: Any, attention_mask: Any, scaling: Any = None, **kwargs: Any
) -> Any:
    """Take the scores as they are."""
    return interface(module, query, key, value, attention_mask, scaling=1.0, **kwargs)


def forgets_training(module: Any, query: Any, key: Any, value: Any, attention_mask: Any, **kwargs: Any) -> Any:
    """Be off by a percent in training."""
    found, weights = interface(module, query, key, value, attention_mask, **kwargs)
    return (found * 1.01 if module.training else found), weights


def loses_gradient(module: Any, query: Any, key: Any, value: Any, attention_mask: Any, **kwargs: Any) -> Any:
    """Pass nothing on to the keys."""
    return interface(module, query, key.detach(), value, attention_mask, **kwargs)


def writes_to_queries(module: Any, query: Any, key: Any, value: Any, attention_mask: Any, **kwargs: Any) -> Any:
    """Compute what is right, and leave the queries changed."""
    found = interface(module, query, key, value, attention_mask, **kwargs)
    query.mul_(2)
    return found


def returns_heads_first(module: Any, query: Any, key: Any, value: Any, attention_mask: Any, **kwargs: Any) -> Any:
    """Return what a kernel of PyTorch's form does."""
    found, weights = interface(module, query, key, value, attention_mask, **kwargs)
    return found.transpose(1, 2), weights


def _future(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    dropout_p: float = 0.0,
    softmax_scale: float | None = None,
    causal: bool = False,
    window_size: tuple[int, int] = (-1, -1),
    softcap: float = 0.0,
) -> torch.Tensor:
    return flash_attn_func(q, k, v, softmax_scale=softmax_scale, causal=False, window_size=window_size)


def _windowless(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    dropout_p: float = 0.0,
    softmax_scale: float | None = None,
    causal: bool = False,
    window_size: tuple[int, int] = (-1, -1),
    softcap: float = 0.0,
) -> torch.Tensor:
    return flash_attn_func(q, k, v, softmax_scale=softmax_scale, causal=causal)


def _eyeless(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    cu_seqlens_q: torch.Tensor,
    cu_seqlens_k: torch.Tensor,
    max_seqlen_q: int,
    max_seqlen_k: int,
    dropout_p: float = 0.0,
    softmax_scale: float | None = None,
    causal: bool = False,
    window_size: tuple[int, int] = (-1, -1),
    softcap: float = 0.0,
) -> torch.Tensor:
    """Take all sequences for one."""
    ends = torch.tensor([0, q.shape[0]])
    assert [*pairwise(cu_seqlens_q.tolist())]
    return flash_attn_varlen_func(
        q, k, v, ends, ends, q.shape[0], k.shape[0], softmax_scale=softmax_scale, causal=causal, window_size=window_size
    )


FutureVarlen = SimpleNamespace(flash_attn_func=_future, flash_attn_varlen_func=flash_attn_varlen_func)
Windowless = SimpleNamespace(flash_attn_func=_windowless, flash_attn_varlen_func=flash_attn_varlen_func)
Eyeless = SimpleNamespace(flash_attn_func=flash_attn_func, flash_attn_varlen_func=_eyeless)
