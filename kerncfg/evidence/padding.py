"""Which rows of a model's result are computed from padding: what changes if attention returns something else there.

A query that is padding, or may see no key at all, computes what nobody may use, and what kernels differ in. Most of it
stays in the rows of its own place; a model that pools from a place of padding, or over all places, carries it further.
So the model runs once more with its own attention, whose rows of padding are other ones: what moves by more than half
of its digits is not compared.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, Any

import torch

from kerncfg.evidence.contents import tensors_of
from kerncfg.evidence.listening import attention_mask, live_rows

if TYPE_CHECKING:
    from torch import nn

    from kerncfg.applier.apply import Bindings

__all__ = ["Padding", "is_all", "may_pad", "moved_rows", "told", "without"]

_ROW = 16  # below this, as in `judge`, a row says nothing about typical sizes
_SHOWN = 4

Parts = Mapping[str, Any]
Rows = Mapping[str, torch.Tensor]  # by place: what of a tensor does not count, with its last dimension or one for it


def may_pad(inputs: Mapping[str, Any], model: nn.Module) -> bool:
    """Whether something in the inputs of a model says that a place is none: a mask, or else the token for it."""
    masks = [tensor for name, value in inputs.items() if "mask" in name for tensor in tensors_of(value)]
    if masks:
        return any(tensor.numel() > 0 and not bool(tensor.bool().all()) for tensor in masks)
    ids, token = inputs.get("input_ids"), getattr(getattr(model, "config", None), "pad_token_id", None)
    return isinstance(ids, torch.Tensor) and isinstance(token, int) and bool((ids == token).any())


class Padding:
    """Two runs of a model: one for the masks of its kernels, one whose attention returns something else for padding."""

    def __init__(self, bindings: Bindings) -> None:
        self._bindings = bindings
        self._sites = {id(site.module) for site in bindings.sites if site.kind == "attention"}
        self._masks: dict[tuple[int, int], Any] = {}
        self.disturbs = False  # whether the second run met a row of padding

    def masks(self) -> AbstractContextManager[Any]:
        """Let the model run with nothing for its attention, and keep the masks that are made for the kernels."""
        self._masks.clear()
        numbers: Counter[int] = Counter()

        def run(function: Callable[..., Any], module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
            query, _, value = (*args, *(kwargs[name] for name in ("query", "key", "value") if name in kwargs))[:3]
            if id(module) not in self._sites or query.dim() != 4:
                return function(module, *args, **kwargs)
            self._masks[id(module), numbers[id(module)]] = attention_mask((args, kwargs))
            numbers[id(module)] += 1
            batch, heads, length, _ = query.shape
            return query.new_zeros(batch, length, heads, value.shape[-1]), None

        return self._bindings.watched(run, own=False)

    def disturbed(self) -> AbstractContextManager[Any]:
        """Let the model run with its own attention, but for the rows of padding."""
        numbers: Counter[int] = Counter()

        def run(function: Callable[..., Any], module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
            result = function(module, *args, **kwargs)
            if id(module) not in self._sites:
                return result
            mask = self._masks.get((id(module), numbers[id(module)]))
            numbers[id(module)] += 1
            live = live_rows((args, kwargs), ((), {"attention_mask": mask}))
            found, *others = result
            if live is None or found.shape[:2] != live.shape:
                return result
            self.disturbs = True
            return _another(found, live), *others

        return self._bindings.watched(run, own=True)


def _another(result: torch.Tensor, live: torch.Tensor) -> torch.Tensor:
    """Return attention with other rows where nothing is computed, of the size that the others have."""
    size = result.detach()[live].abs().nan_to_num(0.0, 0.0, 0.0).amax() if bool(live.any()) else result.new_zeros(())
    ramp = torch.linspace(-1, 1, result.shape[-1], device=result.device, dtype=result.dtype)
    return torch.where(live[:, :, None, None], result, ramp * torch.where(size > 0, size, 1))


def moved_rows(own: Parts, other: Parts) -> dict[str, torch.Tensor]:
    """Return what of a result is another in a second one, beyond half of its digits: by rows where these are long."""
    found = {}
    for place, mine in own.items():
        theirs = other.get(place)
        if isinstance(mine, torch.Tensor) and isinstance(theirs, torch.Tensor) and _comparable(mine, theirs):
            rows = _moved(mine, theirs)
            if bool(rows.any()):
                found[place] = rows
    return found


def _comparable(one: torch.Tensor, other: torch.Tensor) -> bool:
    plain = [tensor.layout == torch.strided and not tensor.is_nested and not tensor.is_meta for tensor in (one, other)]
    return all(plain) and (one.shape, one.dtype, one.device) == (other.shape, other.dtype, other.device)


def _moved(one: torch.Tensor, other: torch.Tensor) -> torch.Tensor:
    if not one.is_floating_point():
        return one != other
    room = torch.finfo(one.dtype).eps ** 0.5
    same = (one == other) | (one.isnan() & other.isnan())
    wide = one.double() if one.device.type != "mps" else one.float()
    off = torch.where(same, 0, (wide - other.to(wide.dtype)).abs().nan_to_num(torch.inf))
    size = torch.where(wide.isfinite(), wide, 0).abs()
    if one.dim() > 1 and one.shape[-1] >= _ROW:
        off, size = off.amax(-1, keepdim=True), size.amax(-1, keepdim=True)
    return torch.gt(off, room * size.clamp_min(size.square().mean().sqrt()))


def without(parts: Parts, rows: Rows) -> dict[str, Any]:
    """Return a result in which these rows are nought; what has another shape is left for others to see."""

    def fits(part: Any, mine: torch.Tensor) -> bool:
        shapes = isinstance(part, torch.Tensor) and part.layout == torch.strided and not part.is_nested
        return shapes and part.dim() == mine.dim() and part.shape[:-1] == mine.shape[:-1]

    return {
        place: part.masked_fill(rows[place].to(part.device), 0) if place in rows and fits(part, rows[place]) else part
        for place, part in parts.items()
    }


def is_all(own: Parts, rows: Rows) -> bool:
    """Whether these rows are all that a result has to compare."""
    floating = [place for place, part in own.items() if isinstance(part, torch.Tensor) and part.is_floating_point()]
    return bool(floating) and all(place in rows and bool(rows[place].all()) for place in floating)


def told(rows: Rows) -> str:
    """Say what is not compared."""
    counts = [f"{int(mine.sum())} of {mine.numel()} rows of {place}" for place, mine in rows.items()]
    more = f" and of {len(counts) - _SHOWN} more" if len(counts) > _SHOWN else ""
    return f"the whole model: what is computed from padding is not compared: {', '.join(counts[:_SHOWN])}{more}"
