"""Attention kernels with one fault each, in the form of the attention interface or of flash attention."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from functools import wraps
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


def _changed(function: Callable[..., Any], change: Callable[[dict[str, Any]], dict[str, Any]]) -> Callable[..., Any]:
    """Give a function with the same signature that takes other arguments than it was given."""

    @wraps(function)
    def changed(*args: Any, **kwargs: Any) -> Any:
        given = inspect.signature(function).bind(*args, **kwargs).arguments
        return function(**{**given, **change(given)})

    return changed


def _one_sequence(given: dict[str, Any]) -> dict[str, Any]:
    """Take all sequences for one."""
    queries, keys = given["q"].shape[0], given["k"].shape[0]
    assert [*pairwise(given["cu_seqlens_q"].tolist())]
    ends = torch.tensor([0, queries])
    return {"cu_seqlens_q": ends, "cu_seqlens_k": ends, "max_seqlen_q": queries, "max_seqlen_k": keys}


_future = _changed(flash_attn_func, lambda given: {"causal": False})
_windowless = _changed(flash_attn_func, lambda given: {"window_size": (-1, -1)})
_eyeless = _changed(flash_attn_varlen_func, _one_sequence)

FutureVarlen = SimpleNamespace(flash_attn_func=_future, flash_attn_varlen_func=flash_attn_varlen_func)
Windowless = SimpleNamespace(flash_attn_func=_windowless, flash_attn_varlen_func=flash_attn_varlen_func)
Eyeless = SimpleNamespace(flash_attn_func=flash_attn_func, flash_attn_varlen_func=_eyeless)
