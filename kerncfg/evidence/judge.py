"""How far a result is from the original's and from the truth, and whether that is too far.

A kernel is judged by the original's own error. With o the original's result, k the kernel's and r the same
computed in float64, an element of k is within tolerance if

    |k - r|  <=  slack · max(|o - r|, rms(o - r))  +  floor · max(|r|, rms(r))

where rms is taken over the element's row (the last dimension), so that neither an element that the original
happened to hit exactly nor one where large terms cancel asks for more than the arithmetic can give. Besides,
the systematic factor between k and r, g = <k, r> / <r, r>, must satisfy

    |g - 1|  <=  |g_o - 1|  +  slack · e_o / √n  +  max(gain, floor / √n)

with g_o and e_o the original's factor and relative error, n the number of elements. Rounding averages out of
g, so it shows what hides below one rounding of each element: an epsilon outside the root moves activations of
size 0.02 by 0.1 %, a quarter of a bfloat16 step.

The numbers in `conf/policy` were derived, not fitted. eps is the distance from 1 to the next number. `slack`
8: results of equally good arithmetic differ in error by small factors (another order of a sum, one rounding
more), and 8 standard deviations are never reached by chance. `floor` is for originals without any error: in
float32 16 eps, the drift of a running sum of 1,000 terms (√1000 half-eps steps); in float64 64 eps, since
there the reference itself is rounded; in the half types 2 eps, since sums are kept in float32 and only stores
round: more would hide a wrong weight of 3 %. `gain` is the floor in float32 and float64, where it needs no
help, and eps/16 in the half types. `share` 1: one wrong element is a wrong kernel. A dtype without thresholds, such as
float8, is judged by equality.

What this cannot see: where all of a result is what cancellation leaves over (a sum of terms that should be zero), r is
no measure of the terms, and few values give no typical error either. Another order of such a sum may fail.

Whole models are judged row by row instead (`judge_rows`), since they amplify what single kernels differ in: a row
passes if

    rms(k - r)  <=  slack · max(rms_row(o - r), rms_all(o - r))  +  floor · rms_row(r)

over the original o and, if that is not enough, over originals whose swapped layers' results were each moved by up to
one eps at random: what the model makes of one rounding there, it may make of a kernel's.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Self

import torch

from kerncfg.evidence.contents import dense, foreign, one_line

__all__ = ["Difference", "Limits", "judge", "judge_rows", "number", "relative_error"]

_SHORTEST_ROW = 16  # below this a row says nothing about typical sizes, and the whole tensor stands for it
# An original further than this from its float64 reference computes something else, and is no yardstick.
_NO_YARDSTICK = 0.25
_HALF_THE_DIGITS = torch.finfo(torch.float64).eps ** 0.5
_TINY = torch.finfo(torch.float64).tiny


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """The thresholds for one dtype; see the module's docstring for what they mean."""

    slack: float
    floor: float
    gain: float
    share: float

    @classmethod
    def of(cls, thresholds: Mapping[str, Mapping[str, float]], dtype: torch.dtype) -> Self | None:
        """Return the limits for a dtype, or `None` if the policy has none."""
        found = thresholds.get(str(dtype).removeprefix("torch."))
        return cls(**{key: float(found[key]) for key in cls.__slots__}) if found else None


@dataclass(frozen=True, slots=True, kw_only=True)
class Difference:
    """What was measured, over all tensors and runs of a result; `None` where nothing could be compared.

    `max_abs` and `max_rel` are kernel against original, the latter with a row's root mean square as least
    denominator; `error` and `original_error` are against the reference, relative in the root mean square;
    `gain` is the systematic factor minus 1; `identical` and `within` are shares of `count` values.
    """

    max_abs: float | None = None
    max_rel: float | None = None
    error: float | None = None
    original_error: float | None = None
    gain: float | None = None
    identical: float | None = None
    within: float | None = None
    count: int = 0
    reasons: tuple[str, ...] = ()

    @property
    def passed(self) -> bool:
        """Whether nothing speaks against it."""
        return not self.reasons

    @classmethod
    def merged(cls, parts: Iterable[Difference]) -> Difference:
        """Return the worst of several differences, and their shares over all values."""
        found = list(parts)
        count = sum(part.count for part in found)

        def share(name: str) -> float | None:
            known = [(getattr(part, name), part.count) for part in found if getattr(part, name) is not None]
            total = sum(size for _, size in known)
            return sum(value * size for value, size in known) / total if total else (1.0 if known else None)

        def worst(name: str) -> float | None:
            return max(
                (value for part in found if (value := getattr(part, name)) is not None),
                key=_size,
                default=None,
            )

        worsts = {name: worst(name) for name in ("max_abs", "max_rel", "error", "original_error", "gain")}
        shares = {name: share(name) for name in ("identical", "within")}
        reasons = tuple(dict.fromkeys(reason for part in found for reason in part.reasons))
        return cls(**worsts, **shares, count=count, reasons=reasons)

    def to_dict(self) -> dict[str, Any]:
        """Return the measures as plain data; numbers that JSON lacks become text."""
        names = ("max_abs", "max_rel", "error", "original_error", "gain", "identical", "within")
        return {name: number(getattr(self, name)) for name in names}


def number(value: float | None) -> float | str | None:
    """Return a number that JSON can hold: infinite ones and NaN become text."""
    return value if value is None or math.isfinite(value) else str(value)


def judge(
    what: str,
    original: torch.Tensor,
    kernel: torch.Tensor,
    reference: torch.Tensor | None,
    thresholds: Mapping[str, Mapping[str, float]],
    dtype: torch.dtype | None = None,
) -> Difference:
    """Compare one tensor of a kernel's result with the original's and with the float64 reference.

    Without a reference, or with one that the original does not follow, the original takes its place and
    `slack` multiplies `floor`. Equal values pass, NaN with NaN too. Sparse, nested and quantized tensors are compared
    by their values. `what` names the tensor in the reasons. `dtype` is the one whose thresholds count, if not the
    original's own.
    """
    if fault := _unlike(original, kernel):
        return Difference(within=0.0, identical=0.0, count=original.numel(), reasons=(f"{what}: {fault}",))
    try:
        o, k = dense(original.detach()), dense(kernel.detach())
        r = None if reference is None else dense(reference.detach())
        if o is None or k is None:
            return Difference(reasons=(f"{what}: the original's is on the meta device, and cannot be compared",))
        return _judged(what, o, k, r, thresholds, dtype or original.dtype)
    except BaseException as error:  # types of tensors that we know nothing of
        foreign(error)
        return Difference(reasons=(f"{what}: cannot be compared: {one_line(error)}",))


def _judged(
    what: str,
    original: torch.Tensor,
    kernel: torch.Tensor,
    reference: torch.Tensor | None,
    thresholds: Mapping[str, Mapping[str, float]],
    dtype: torch.dtype,
) -> Difference:
    if original.shape != kernel.shape:
        return Difference(within=0.0, identical=0.0, reasons=(f"{what}: its values differ in shape",))
    if original.is_complex():
        exact = None if reference is None else torch.view_as_real(reference)
        parts = torch.view_as_real(original), torch.view_as_real(kernel)
        return _judged(what, *parts, exact, thresholds, parts[0].dtype if dtype.is_complex else dtype)
    if original.numel() == 0:
        return Difference(identical=1.0, within=1.0)
    same = (original == kernel) | (original.isnan() & kernel.isnan())
    if not original.is_floating_point():
        return _exact(what, same)
    limits = Limits.of(thresholds, dtype)
    if limits is None:
        name = str(dtype).removeprefix("torch.")
        return _exact(what, same, f", and policy.verify.thresholds says nothing about {name}")
    o, k = _wide(original), _wide(kernel)
    r = None if reference is None or reference.shape != original.shape else _wide(reference)
    own = math.inf if r is None else relative_error(o, r)
    if not own <= _NO_YARDSTICK:
        r = None
    elif own > _HALF_THE_DIGITS and dtype == torch.float64:  # it computes in float32, as norms do
        limits = Limits.of(thresholds, torch.float32) or limits
    return _measured(what, o, k, r, same.to(o.device), limits)


def judge_rows(
    what: str,
    original: torch.Tensor,
    kernel: torch.Tensor,
    reference: torch.Tensor | None,
    others: Sequence[torch.Tensor],
    thresholds: Mapping[str, Mapping[str, float]],
    dtypes: Iterable[torch.dtype],
) -> Difference:
    """Judge one tensor of a whole model's result by its rows; see the module's docstring.

    `others` are the results of the original model with roundings moved. `dtypes` are those it computes in, of which
    the loosest floor counts: a loss in float32 may come from bfloat16.
    """
    found = judge(what, original, kernel, reference, thresholds)
    known = [limits for dtype in (original.dtype, *dtypes) if (limits := Limits.of(thresholds, dtype))]
    if found.passed or found.max_abs is None or not known:
        # Integers and the like have no tolerance, but what one rounding changes is no kernel's fault.
        moved = any(_unlike(original, other) or not torch.equal(other, original) for other in others)
        return replace(found, reasons=()) if found.count and moved else found
    limits = max(known, key=lambda one: one.floor)
    o, k, *like = (_real(tensor) for tensor in (original, kernel, *others) if _unlike(original, tensor) is None)
    r = None if reference is None else _real(reference)
    if r is None or r.shape != o.shape or not relative_error(o, r) <= _NO_YARDSTICK:
        r, limits = None, replace(limits, floor=limits.floor * limits.slack)
    truth = o if r is None else torch.where(r.isfinite(), r, o)
    outside = _rows_outside(truth, k, [o, *like], limits)
    if not outside.any():
        return replace(found, reasons=())
    return replace(found, reasons=(f"{what}: {int(outside.sum())} of {outside.numel()} rows are out of tolerance",))


def _rows_outside(
    truth: torch.Tensor, kernel: torch.Tensor, owns: Sequence[torch.Tensor], limits: Limits
) -> torch.Tensor:
    finite = truth.isfinite()
    errors = [torch.where(finite & own.isfinite(), own - truth, 0) for own in owns]
    yard = torch.stack([torch.maximum(_row_rms(error), error.square().mean().sqrt()) for error in errors]).amax(0)
    allowed = limits.slack * yard + limits.floor * _row_rms(truth)
    equal = (kernel == owns[0]) | (kernel.isnan() & owns[0].isnan())
    # What is not a number on one side only is infinitely far off.
    error = torch.where(equal & ~finite, 0, torch.where(finite & kernel.isfinite(), kernel - truth, math.inf))
    return _row_rms(torch.where(error.isfinite(), error, 1e300)) > allowed


def _real(tensor: torch.Tensor) -> torch.Tensor:
    values = dense(tensor.detach())
    assert values is not None  # `judge` has measured it
    return _wide(torch.view_as_real(values) if values.is_complex() else values)


def relative_error(result: torch.Tensor, reference: torch.Tensor) -> float:
    """Return the difference's root mean square, relative to the reference's, over finite values."""
    result, reference = _wide(result), _wide(reference)
    found = _ratio(result - reference, reference)
    if math.isfinite(found):
        return found
    finite = result.isfinite() & reference.isfinite()
    return _ratio(torch.where(finite, result - reference, 0), torch.where(finite, reference, 0))


def _measured(
    what: str, o: torch.Tensor, k: torch.Tensor, r: torch.Tensor | None, same: torch.Tensor, limits: Limits
) -> Difference:
    if bool(same.all()):
        return _identical(o, r)
    sums = o.sum() + k.sum() + (0 if r is None else r.sum())
    truth, off, own, comparable = _plain(o, k, r) if bool(sums.isfinite()) else _finite(o, k, r)
    floor = limits.floor * (limits.slack if r is None else 1)
    tolerance = limits.slack * torch.maximum(own.abs(), _row_rms(own)) + floor * _scale(truth)
    within = same | (comparable & (off.abs() <= tolerance))
    share = float(within.double().mean())
    gain, own_gain, root = _factor(off, truth), _factor(own, truth), math.sqrt(truth.numel())
    allowed = abs(own_gain) + limits.slack * _ratio(own, truth) / root + max(limits.gain, floor / root)
    reasons = []
    if share < limits.share:
        outside = int((~within).sum())
        reasons.append(f"{what}: {outside} of {within.numel()} values are out of tolerance")
    if abs(gain) > allowed:
        reasons.append(f"{what}: off by a factor of {1 + gain:.6f} throughout, allowed 1 ± {allowed:.1e}")
    apart = torch.where(same, 0, (k - o).abs())  # where one is infinite or NaN, so is this
    return Difference(
        max_abs=float(apart.max()),
        max_rel=float((apart / _scale(o).clamp_min(_TINY)).max()),
        error=_ratio(off, truth),
        original_error=None if r is None else _ratio(own, truth),
        gain=gain,
        identical=float(same.double().mean()),
        within=share,
        count=same.numel(),
        reasons=tuple(reasons),
    )


Parts = tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor | bool]


def _plain(o: torch.Tensor, k: torch.Tensor, r: torch.Tensor | None) -> Parts:
    """Return truth, the kernel's error, the original's, and what can be compared; everything is finite."""
    truth = o if r is None else r
    return truth, k - truth, o - truth, True


def _finite(o: torch.Tensor, k: torch.Tensor, r: torch.Tensor | None) -> Parts:
    """Return the same with nought for the errors of what is not finite."""
    truth = o if r is None else torch.where(r.isfinite(), r, o)
    comparable = k.isfinite() & truth.isfinite()
    truth = torch.where(truth.isfinite(), truth, 0)
    own = torch.where(o.isfinite(), o - truth, 0) if r is not None else torch.zeros_like(o)
    return truth, torch.where(comparable, k - truth, 0), own, comparable


def _identical(o: torch.Tensor, r: torch.Tensor | None) -> Difference:
    """Return the difference of a kernel that gives the very bits of the original."""
    truth, _, own, _ = _finite(o, o, r)
    error = _ratio(own, truth)
    own_error = None if r is None else error
    return Difference(
        max_abs=0.0,
        max_rel=0.0,
        error=error,
        original_error=own_error,
        gain=_factor(own, truth),
        identical=1.0,
        within=1.0,
        count=o.numel(),
    )


def _ratio(off: torch.Tensor, truth: torch.Tensor) -> float:
    size = float(off.norm())
    return size / max(float(truth.norm()), _TINY) if size else 0.0


def _factor(off: torch.Tensor, truth: torch.Tensor) -> float:
    """Return the share of the truth that is in the error."""
    truth = truth.flatten()
    return float(off.flatten().dot(truth)) / max(float(truth.dot(truth)), _TINY)


def _exact(what: str, same: torch.Tensor, why: str = "") -> Difference:
    share = float(same.double().mean())
    reasons = () if share == 1 else (f"{what}: {int((~same).sum())} of {same.numel()} values differ{why}",)
    return Difference(identical=share, within=share, count=same.numel(), reasons=reasons)


def _unlike(original: torch.Tensor, kernel: torch.Tensor) -> str | None:
    for name in ("is_nested", "layout", "shape", "dtype", "device"):
        if name == "shape" and original.is_nested:
            continue
        mine, theirs = getattr(kernel, name), getattr(original, name)
        if mine != theirs:
            shown = [tuple(value) if name == "shape" else str(value) for value in (mine, theirs)]
            return f"{name} is {shown[0]}, the original's {shown[1]}"
    return None


def _wide(tensor: torch.Tensor) -> torch.Tensor:
    device = "cpu" if tensor.device.type == "mps" else tensor.device  # mps has no float64
    return tensor.detach().to(device).double()


def _scale(tensor: torch.Tensor) -> torch.Tensor:
    sizes = tensor.abs()
    if not bool(sizes.amax().isfinite()):
        sizes = torch.where(tensor.isfinite(), sizes, 0)
    return torch.maximum(sizes, _row_rms(tensor))


def _row_rms(tensor: torch.Tensor) -> torch.Tensor:
    by_row = tensor.dim() > 1 and tensor.shape[-1] >= _SHORTEST_ROW
    along: dict[str, Any] = {"dim": -1, "keepdim": True} if by_row else {}
    found: torch.Tensor = torch.linalg.vector_norm(tensor, **along) / math.sqrt(
        tensor.shape[-1] if by_row else tensor.numel()
    )
    if bool(found.isfinite().all()):
        return found
    finite = torch.where(tensor.isfinite(), tensor, 0).square()
    return (finite.mean(-1, keepdim=True) if by_row else finite.mean()).sqrt()


def _size(value: float) -> float:
    return math.inf if math.isnan(value) else abs(value)
