"""The loss of causal language models, as transformers' `ForCausalLMLoss` computes it.

A function's kernel: `forward` has that function's parameters, and `self` is nothing to it. With x the row of v logits
of a position and t the label that follows it,

    l = max(x) + log Σ e^(x - max(x)) - x[t]        in float32, for every position whose label is not `ignore_index`

and the loss is Σ l over their number, or over `num_items_in_batch` where that is given. The function it replaces passes
other keywords on to a function that ignores them; so does this one. It has no label smoothing, no class weights.

Eager makes a float32 copy of the logits, the logarithms of all probabilities, and their gradients: for bfloat16
logits, forward moves 2vb + 12v bytes a row (b = 1 read) and keeps 8v of them. The Triton path
(`triton_cross_entropy`) reads a row once forward (2v bytes), keeps two float32 of it, and reads it once more in
backward to write the gradient (4v bytes), to a tensor of its own: the logits stay as they are. The torch path is
what eager does.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import nn
from torch.nn import functional

from kerncfg.kernels._path import takes_triton


def cross_entropy_sum(logits: torch.Tensor, labels: torch.Tensor, ignore_index: int = -100) -> torch.Tensor:
    """Add up the cross entropies of the rows of `logits` with `labels`, but for those labelled `ignore_index`.

    Shapes: `logits` is (rows, v), `labels` is (rows,), the result is a scalar.
    Dtypes: float32, bfloat16 and float16 logits and int64 labels; anything else takes the torch path. The result is
    float32. On the Triton path a label that is neither below v nor `ignore_index` makes it not a number, since a look
    at the labels would have to wait for the device.

    Raises:
        IndexError: from torch, on the torch path, if a label is out of range.
        ImportError: if `logits` is on a device that needs triton, and triton is not installed.
    """
    fits = logits.dim() == 2 and labels.shape == logits.shape[:1] and labels.dtype == torch.int64
    if fits and labels.device == logits.device and takes_triton(logits):
        from kerncfg.kernels.triton_cross_entropy import CrossEntropyFunction

        result: torch.Tensor = CrossEntropyFunction.apply(logits, labels, ignore_index)  # type: ignore[no-untyped-call]
        return result
    return functional.cross_entropy(logits.float(), labels, ignore_index=ignore_index, reduction="sum")


def cross_entropy_sum_reference(logits: torch.Tensor, labels: torch.Tensor, ignore_index: int = -100) -> torch.Tensor:
    """Compute the same from the formula, one operation after the other.

    Shapes as in `cross_entropy_sum`; in float32, or in float64 for float64 logits.
    """
    wide = logits.to(torch.promote_types(logits.dtype, torch.float32))
    counted = labels != ignore_index
    hit = wide.gather(1, labels.where(counted, 0)[:, None])[:, 0]
    peak = wide.amax(1)
    losses = (wide - peak[:, None]).exp().sum(1).log() + peak - hit
    return losses.where(counted, 0).sum()


class ForCausalLMLoss(nn.Module):
    """Forward in place of transformers' function `ForCausalLMLoss`; it reads nothing of `self`."""

    can_torch_compile = True
    has_backward = True
    deterministic = True

    def forward(
        self,
        logits: torch.Tensor,
        labels: torch.Tensor,
        vocab_size: int,
        num_items_in_batch: torch.Tensor | None = None,
        ignore_index: int = -100,
        shift_labels: torch.Tensor | None = None,
        **kwargs: Any,
    ) -> torch.Tensor:
        """Return the mean cross entropy of `logits` (..., v) with the labels one position on, a float32 scalar.

        Shapes: `labels` is (...), or `shift_labels` is, which are then taken as they are. Dtypes and errors as in
        `cross_entropy_sum`; without any label to count the mean is not a number, as torch's is.
        """
        if shift_labels is None:
            shift_labels = functional.pad(labels, (0, 1), value=ignore_index)[..., 1:]
        flat = shift_labels.reshape(-1).to(logits.device)
        total = cross_entropy_sum(logits.reshape(-1, vocab_size), flat, ignore_index)
        if num_items_in_batch is None:
            return total / (flat != ignore_index).sum()
        if torch.is_tensor(num_items_in_batch):
            num_items_in_batch = num_items_in_batch.to(total.device)
        return total / num_items_in_batch
