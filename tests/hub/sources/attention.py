"""Attention in the form of flash-attention: sequences are `(batch, length, heads, size)`, or laid end to end."""

from __future__ import annotations

import torch


def flash_attn_func(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    dropout_p: float = 0.0,
    softmax_scale: float | None = None,
    causal: bool = False,
    window_size: tuple[int, int] = (-1, -1),
    softcap: float = 0.0,
    alibi_slopes: torch.Tensor | None = None,
    deterministic: bool = False,
    return_attn_probs: bool = False,
) -> torch.Tensor:
    groups = q.shape[2] // k.shape[2]
    k, v = k.repeat_interleave(groups, dim=2), v.repeat_interleave(groups, dim=2)
    scale = q.shape[-1] ** -0.5 if softmax_scale is None else softmax_scale
    scores = torch.einsum("bqhd,bkhd->bhqk", q.float(), k.float()) * scale
    if softcap:
        scores = softcap * torch.tanh(scores / softcap)
    # The last query sees the last key.
    row = torch.arange(q.shape[1], device=q.device)[:, None] + k.shape[1] - q.shape[1]
    column = torch.arange(k.shape[1], device=q.device)[None, :]
    left, right = window_size[0], 0 if causal else window_size[1]
    hidden = torch.zeros(row.shape[0], column.shape[1], dtype=torch.bool, device=q.device)
    if left >= 0:
        hidden |= column < row - left
    if right >= 0:
        hidden |= column > row + right
    weights = scores.masked_fill(hidden, float("-inf")).softmax(-1).nan_to_num()
    weights = torch.nn.functional.dropout(weights, dropout_p)
    return torch.einsum("bhqk,bkhd->bqhd", weights, v.float()).to(q.dtype)


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
    alibi_slopes: torch.Tensor | None = None,
    deterministic: bool = False,
    return_attn_probs: bool = False,
) -> torch.Tensor:
    starts, ends = cu_seqlens_q.tolist(), cu_seqlens_k.tolist()
    parts = [
        flash_attn_func(
            q[starts[i] : starts[i + 1]][None],
            k[ends[i] : ends[i + 1]][None],
            v[ends[i] : ends[i + 1]][None],
            dropout_p,
            softmax_scale,
            causal,
            window_size,
            softcap,
        )[0]
        for i in range(len(starts) - 1)
    ]
    return torch.cat(parts)
