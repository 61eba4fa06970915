"""What attention is called with: by the model's own choice, and with the masks that are made for a kernel.

Two runs of the model tell these apart. In the second, every call returns what the same call of the first did, so that
nothing but the masks is another. Queries that are padding, or may see no key at all, compute what nobody may use, and
what kernels differ in: their rows are not compared.
"""

from __future__ import annotations

import inspect
from collections import Counter, defaultdict
from collections.abc import Callable, Hashable, Mapping
from typing import TYPE_CHECKING, Any

import torch
from torch.utils import _pytree as pytree

from kerncfg.evidence.contents import copied

if TYPE_CHECKING:
    from torch import nn

    from kerncfg.applier.apply import Binding, Bindings

__all__ = [
    "Listening",
    "attention_mask",
    "blanked",
    "given",
    "likeness_of",
    "live_rows",
    "moved",
    "nothing_of_padding",
    "padded",
]

_TENSORS = 3  # query, key and value; the mask comes next
_NAMES: tuple[str, ...] = ("query", "key", "value")
_MASK = "attention_mask"

Call = tuple[tuple[Any, ...], dict[str, Any]]


class Listening:
    """Hears every call of the attention that bindings swap; `masks` is what the kernels get, by the calls' keys."""

    def __init__(self, bindings: Bindings) -> None:
        self._sites = {id(site.module): site for site in bindings.sites if site.kind == "attention"}
        self._heard: defaultdict[int, list[tuple[Hashable, bool, Any]]] = defaultdict(list)
        self.masks: dict[Hashable, Call] = {}

    def __bool__(self) -> bool:
        return bool(self._sites)

    def own(self, note: Callable[[Binding, Call], tuple[Hashable, bool]]) -> Callable[..., Any]:
        """Return what tells `note` of each call, which gives its key, and whether it is the first of that key."""
        self._heard.clear()

        def run(function: Callable[..., Any], module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
            site = self._sites.get(id(module))
            if site is None:
                return function(module, *args, **kwargs)
            key, first = note(site, (args, kwargs))
            result = function(module, *args, **kwargs)
            kept = pytree.tree_map_only(torch.Tensor, lambda tensor: tensor.detach().clone(), result)
            self._heard[id(module)].append((key, first, kept))
            return result

        return run

    def again(self) -> Callable[..., Any]:
        """Return what answers each call as the first run did, and keeps the masks of those that were the first."""
        numbers: Counter[int] = Counter()

        def run(function: Callable[..., Any], module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
            heard, number = self._heard.get(id(module), ()), numbers[id(module)]
            numbers[id(module)] += 1
            if number >= len(heard):
                return function(module, *args, **kwargs)
            key, first, result = heard[number]
            if first:
                self.masks[key] = copied((args, dict(kwargs)))[0]
            return result

        return run


def likeness_of(module: nn.Module) -> Hashable:
    """Return what attention functions look at in the module that calls them."""
    names = ("is_causal", "is_cross_attention", "num_key_value_groups", "scaling", "sliding_window")
    found = ((name, getattr(module, name, None)) for name in names)
    return tuple((name, value) for name, value in found if isinstance(value, int | float | str))


def given(own: Call, masked: Call) -> Call:
    """Return what a kernel is to be called with: the tensors of the own call, and the masks that are made for it."""
    args, kwargs = masked
    named = {name: own[1][name] for name in _NAMES if name in own[1] and name in kwargs}
    for name, value in kwargs.items():  # such as a bias that is trained: the run for the masks had no gradients
        mine = own[1].get(name)
        if isinstance(value, torch.Tensor) and isinstance(mine, torch.Tensor) and mine.requires_grad:
            value.requires_grad_()
    return (*own[0][:_TENSORS], *args[_TENSORS:]), {**kwargs, **named}


def moved(call: Call, number: int) -> Call:
    """Return a call whose query, key and value are moved by up to one eps, at random."""
    generator = torch.Generator().manual_seed(number)

    def move(value: Any) -> Any:
        if not isinstance(value, torch.Tensor) or not value.is_floating_point():
            return value
        noise = torch.rand(value.shape, generator=generator).mul_(2).sub_(1) * torch.finfo(value.dtype).eps
        near = (value.detach() * (1 + noise.to(value.device, torch.float32))).to(value.dtype)
        return near.requires_grad_(value.requires_grad)

    args, kwargs = call
    named = {name: move(kwargs[name]) for name in _NAMES if name in kwargs}
    return (*map(move, args[:_TENSORS]), *args[_TENSORS:]), {**kwargs, **named}


def live_rows(own: Call, masked: Call) -> torch.Tensor | None:
    """Return which queries compute something, by sequence and place; `None` where all of them do."""
    query = own[0][0] if own[0] else own[1].get("query")
    if not isinstance(query, torch.Tensor) or query.dim() != 4:
        return None
    length = query.shape[2]
    found = [rows for call in (own, masked) if (rows := _rows(attention_mask(call), length)) is not None]
    live = torch.ones(query.shape[0], length, dtype=torch.bool, device=query.device)
    for rows in found:
        live = live & rows
    return None if live.all() else live


def attention_mask(call: Call) -> Any:
    """Return the mask that a call of attention was given, of whatever kind."""
    args, kwargs = call
    return args[_TENSORS] if len(args) > _TENSORS else kwargs.get(_MASK)


def _rows(mask: Any, length: int) -> torch.Tensor | None:
    if not isinstance(mask, torch.Tensor) or mask.dim() not in (2, 4):
        return None
    if mask.dim() == 2:  # of keys; the last of them and the last query are at one place
        return mask[:, -length:].bool() if mask.shape[1] >= length else None
    allowed = mask if mask.dtype == torch.bool else mask > torch.finfo(mask.dtype).min / 2
    rows = allowed.any(-1).any(1)
    return rows if rows.shape[1] == length else None


def blanked(attention: Callable[..., Any], live: torch.Tensor) -> Callable[..., Any]:
    """Return attention whose rows that compute nothing are zero, and pass no gradient on."""

    def blank(*args: Any, **kwargs: Any) -> Any:
        result = attention(*args, **kwargs)
        if not isinstance(result, torch.Tensor) or result.shape[:2] != live.shape or result.dim() != 4:
            return result
        return torch.where(live[:, :, None, None].to(result.device), result, torch.zeros_like(result))

    return blank


def padded(model: nn.Module, inputs: Mapping[str, Any]) -> dict[str, Any] | None:
    """Return inputs whose first sequence begins with padding; `None` where there is some, or can be none."""
    mask = inputs.get(_MASK)
    if mask is None and isinstance(ids := inputs.get("input_ids"), torch.Tensor):
        taken = _MASK in inspect.signature(model.forward).parameters
        mask = torch.ones_like(ids) if taken and _MASK not in inputs else None
    if not isinstance(mask, torch.Tensor) or mask.dim() != 2 or mask.shape[1] < 2 or not mask.bool().all():
        return None
    made = mask.clone()
    made[0, : max(1, mask.shape[1] // 4)] = 0
    return {**inputs, _MASK: made}


def nothing_of_padding(parts: Mapping[str, Any], inputs: Mapping[str, Any]) -> dict[str, Any]:
    """Return results whose rows at places of padding are zero: what is computed there is nobody's."""
    mask = inputs.get(_MASK)
    if not isinstance(mask, torch.Tensor) or mask.dim() != 2 or mask.bool().all():
        return dict(parts)
    return {place: _without(part, ~mask.bool()) for place, part in parts.items()}


def _without(part: Any, padding: torch.Tensor) -> Any:
    if not isinstance(part, torch.Tensor) or part.layout != torch.strided or part.dim() < 2:
        return part
    if part.shape[:2] == padding.shape:
        rows = padding.view(*padding.shape, *(1 for _ in part.shape[2:]))
    elif part.dim() == 4 and (part.shape[0], part.shape[2]) == tuple(padding.shape):  # the keys and values of a cache
        rows = padding[:, None, :, None]
    else:
        return part
    return part.masked_fill(rows.to(part.device), 0)
