"""Attention kernels of plain PyTorch, in the three forms, and some that are wrong."""

from __future__ import annotations

from itertools import pairwise
from types import SimpleNamespace
from typing import Any

import torch

__all__ = ["FLASH", "VARLEN", "blind", "interface", "plain", "seen", "window"]

# How often each kernel ran: a test that a kernel has no effect must know that it ran.
seen: dict[str, int] = dict.fromkeys(("flash_attn_func", "flash_attn_varlen_func", "interface", "plain", "blind"), 0)


def _attend(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    scale: float | None,
    allowed: torch.Tensor | None,
    softcap: float | None = None,
) -> torch.Tensor:
    """Attend over tensors of (…, heads, length, width); `allowed` is boolean."""
    groups = query.shape[-3] // key.shape[-3]
    key, value = key.repeat_interleave(groups, -3), value.repeat_interleave(groups, -3)
    scores = query @ key.transpose(-1, -2) * (scale if scale is not None else query.shape[-1] ** -0.5)
    if softcap:
        scores = torch.tanh(scores / softcap) * softcap
    if allowed is not None:
        scores = scores.masked_fill(~allowed, torch.finfo(scores.dtype).min)
    return scores.softmax(-1) @ value


def window(queries: int, keys: int, causal: bool, size: tuple[int, int]) -> torch.Tensor:
    """Return which keys each query may see, the last of both being at one place, as flash attention counts."""
    row = torch.arange(queries)[:, None] + keys - queries
    column = torch.arange(keys)
    left, right = size
    allowed = torch.ones(queries, keys, dtype=torch.bool)
    if causal:
        allowed &= column <= row
    if left >= 0:
        allowed &= column >= row - left
    if right >= 0 and not causal:
        allowed &= column <= row + right
    return allowed


def flash_attn_func(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    dropout_p: float = 0.0,
    softmax_scale: float | None = None,
    causal: bool = False,
    window_size: tuple[int, int] = (-1, -1),
    softcap: float = 0.0,
) -> torch.Tensor:
    """Attend over (batch, length, heads, width)."""
    seen["flash_attn_func"] += 1
    q, k, v = (tensor.transpose(1, 2) for tensor in (q, k, v))
    return _attend(q, k, v, softmax_scale, window(q.shape[2], k.shape[2], causal, window_size), softcap).transpose(1, 2)


def flash_attn_varlen_func(
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
    """Attend over (total, heads, width), sequence by sequence."""
    seen["flash_attn_varlen_func"] += 1
    rows = []
    queries, keys = pairwise(cu_seqlens_q.tolist()), pairwise(cu_seqlens_k.tolist())
    for (first, last), (start, end) in zip(queries, keys, strict=True):
        one = (q[first:last].transpose(0, 1), k[start:end].transpose(0, 1), v[start:end].transpose(0, 1))
        allowed = window(last - first, end - start, causal, window_size)
        rows.append(_attend(*one, softmax_scale, allowed, softcap).transpose(0, 1))
    return torch.cat(rows)


FLASH = SimpleNamespace(flash_attn_func=flash_attn_func, flash_attn_varlen_func=flash_attn_varlen_func)
VARLEN = SimpleNamespace(flash_attn_varlen_func=flash_attn_varlen_func)


def interface(
    module: Any,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attention_mask: torch.Tensor | None,
    scaling: float | None = None,
    softcap: float | None = None,
    position_bias: torch.Tensor | None = None,
    **kwargs: Any,
) -> tuple[torch.Tensor, torch.Tensor | None]:
    """Attend in the form of the attention interface, with a mask that is added."""
    seen["interface"] += 1
    groups = query.shape[1] // key.shape[1]
    key, value = key.repeat_interleave(groups, 1), value.repeat_interleave(groups, 1)
    scores = query @ key.transpose(-1, -2) * (scaling if scaling is not None else query.shape[-1] ** -0.5)
    if softcap:
        scores = torch.tanh(scores / softcap) * softcap
    if position_bias is not None:
        scores = scores + position_bias
    if attention_mask is not None:
        scores = scores + attention_mask
    weights = scores.softmax(-1)
    return (weights @ value).transpose(1, 2).contiguous(), weights


def plain(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attn_mask: torch.Tensor | None = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    scale: float | None = None,
) -> torch.Tensor:
    """Attend as PyTorch's function does, over (batch, heads, length, width)."""
    seen["plain"] += 1
    allowed = attn_mask
    if is_causal:
        assert attn_mask is None
        allowed = window(query.shape[2], key.shape[2], True, (-1, -1))
    if allowed is not None and allowed.dtype != torch.bool:
        scores = query @ key.transpose(-1, -2) * (scale if scale is not None else query.shape[-1] ** -0.5)
        return (scores + allowed).softmax(-1) @ value
    return _attend(query, key, value, scale, allowed)


def blind(
    module: Any,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attention_mask: torch.Tensor | None,
    scaling: float | None = None,
    **kwargs: Any,
) -> tuple[torch.Tensor, None]:
    """Attend with a boolean mask, and to everything where there is none: it does not know of causality."""
    seen["blind"] += 1
    return _attend(query, key, value, scaling, attention_mask).transpose(1, 2).contiguous(), None
