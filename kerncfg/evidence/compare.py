"""Two results against each other, whatever they are made of: structure, plain values, tensors."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any

import torch

from kerncfg.evidence.contents import Opaque, Shell, a_kind, equal
from kerncfg.evidence.judge import Difference, judge

__all__ = ["Judge", "Thresholds", "changed", "compare", "opaque", "structure"]

Thresholds = Mapping[str, Mapping[str, float]]

# What compares two tensors, given what they are called, and the third if there is one.
Judge = Callable[[str, torch.Tensor, torch.Tensor, torch.Tensor | None], Difference]


def compare(
    own: Mapping[str, Any],
    kernel: Mapping[str, Any],
    truth: Mapping[str, Any] | None,
    thresholds: Thresholds,
    dtype: str,
    *,
    by: Judge | None = None,
) -> list[Difference]:
    """Compare two `contents`, and fail them where nothing in them can be compared.

    Tensors go to `judge`, or to `by`; numbers with a fraction are judged as a tensor of no dimensions and of `dtype`
    would be; everything else has to be equal.
    """
    if unlike := structure(own, kernel):
        return [Difference(within=0.0, identical=0.0, reasons=(unlike,))]
    found = []
    for place, mine in own.items():
        exact = truth.get(place) if truth else None
        if isinstance(mine, torch.Tensor):
            usual: Judge = by or (lambda what, o, k, r: judge(what, o, k, r, thresholds))
            found.append(usual(place, mine, kernel[place], exact if isinstance(exact, torch.Tensor) else None))
        elif isinstance(mine, (float, complex)):
            found.append(_number(place, mine, kernel[place], exact, thresholds, dtype))
        elif not isinstance(mine, (Shell, Opaque)):
            alike = equal(mine, kernel[place])
            reason = f"{place} is {_shown(kernel[place])}, the original's {_shown(mine)}"
            found.append(Difference() if alike else Difference(reasons=(reason,)))
    if not found and (hidden := opaque(own)):
        return [Difference(reasons=(f"nothing could be compared: {hidden[0]}, which cannot be looked into",))]
    return found


def structure(own: Mapping[str, Any], kernel: Mapping[str, Any]) -> str | None:
    """Return the first place where two `contents` are of another kind, in words."""
    for place, mine in own.items():
        theirs = kernel.get(place)
        if _kind(mine) != _kind(theirs):
            if place == "output":
                return f"returns {_words(theirs)}, the original {_words(mine)}"
            return f"{place} is {_words(theirs)}, the original's {_words(mine)}"
    return None


def changed(before: Mapping[str, Any], after: Mapping[str, Any]) -> Iterator[str]:
    """Yield the places where two `contents` differ."""
    for place in dict.fromkeys((*before, *after)):
        if place not in before or place not in after or not equal(before[place], after[place]):
            yield place


def opaque(parts: Mapping[str, Any]) -> list[str]:
    """Name what only its type is known of."""
    return [f"{place} is {part}" for place, part in parts.items() if isinstance(part, Opaque)]


def _number(place: str, own: Any, kernel: Any, exact: Any, thresholds: Thresholds, dtype: str) -> Difference:
    kind = getattr(torch, dtype, torch.float32)
    if not (isinstance(kind, torch.dtype) and kind.is_floating_point):
        kind = torch.float32
    wide = torch.complex128 if isinstance(own, complex) else torch.float64
    mine, theirs = (torch.tensor(value, dtype=wide) for value in (own, kernel))
    reference = torch.tensor(exact, dtype=wide) if isinstance(exact, (float, complex)) else None
    return judge(place, mine, theirs, reference, thresholds, kind)


def _kind(part: Any) -> Any:
    if isinstance(part, (Shell, Opaque)):
        return part
    return torch.Tensor if isinstance(part, torch.Tensor) else type(part)


def _words(part: Any) -> str:
    if isinstance(part, (Shell, Opaque)):
        return str(part)
    if part is None:
        return "None"
    return "a tensor" if isinstance(part, torch.Tensor) else a_kind(type(part))


def _shown(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 40 else f"{text[:39]}…"
