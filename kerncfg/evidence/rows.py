"""What evidence says, as rows: the documents of `verify` and `bench`, and their tables."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, fields
from typing import TYPE_CHECKING, Any, Self

from kerncfg.evidence.timed import Generation, Measurement, Spoken, TimedModel, TimedRow, Timing
from kerncfg.evidence.wording import SCHEMA, UNSTEADY, path_of, plain, share, short, table, told, values, word
from kerncfg.terminal import printed

if TYPE_CHECKING:
    from kerncfg.evidence.judge import Difference

__all__ = [
    "SCHEMA",
    "Alone",
    "Check",
    "Generation",
    "Measurement",
    "Row",
    "Spoken",
    "TimedModel",
    "TimedRow",
    "Timing",
    "Verification",
    "Whole",
]

_WITHIN = "within: the share of values that differ from the original by no more than the policy allows"


@dataclass(frozen=True, slots=True, kw_only=True)
class Check:
    """One comparison: the verdict and the measures of `judge.Difference`; shares run from 0 to 1."""

    passed: bool
    reason: str | None
    max_abs: float | None
    max_rel: float | None
    error: float | None
    original_error: float | None
    gain: float | None
    identical: float | None
    within: float | None
    repeatable: bool | None

    @classmethod
    def of(cls, difference: Difference, *, repeatable: bool | None, **more: Any) -> Self:
        """Build a check from what was measured."""
        names = ("max_abs", "max_rel", "error", "original_error", "gain", "identical", "within")
        measures = {name: getattr(difference, name) for name in names}
        said = {"reason": difference.reasons[0] if difference.reasons else None, "repeatable": repeatable}
        return cls(**{**measures, **said, **more})

    def to_dict(self) -> dict[str, Any]:
        """Return the check as plain data."""
        return {item.name: plain(getattr(self, item.name)) for item in fields(self)}

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> Self:
        """Build the check from the plain data of `to_dict`."""
        return cls(**_values(data))


@dataclass(frozen=True, slots=True, kw_only=True)
class Row(Check):
    """One kernel at one kind of site: its forward in the modes it serves, its backward if it serves training.

    `sites` is how many sites are called alike, `path` the first of them, `shape` what the inputs' shapes are,
    `reference` is `float64` or why the original alone was the yardstick, `backward_reason` why there is no backward.
    """

    name: str
    path: str
    sites: int
    kernel: str
    modes: tuple[str, ...]
    device: str
    dtype: str
    shape: str
    reference: str
    hazards: tuple[str, ...]
    backward: Check | None
    backward_reason: str | None

    @property
    def steady(self) -> bool | None:
        """Whether it gave the same bits when it was run again; `None` where the original does not do so either."""
        if any(hazard in UNSTEADY for hazard in self.hazards):
            return False
        known = [part.repeatable for part in (self, self.backward) if part and part.repeatable is not None]
        return True if known and all(known) else None

    @property
    def chancy(self) -> bool:
        """Whether it gave other bits when it was run again, as the original does, too."""
        parts = (self, self.backward)
        return self.steady is None and any(part.repeatable is False for part in parts if part)


@dataclass(frozen=True, slots=True, kw_only=True)
class Alone:
    """The model's output with one kernel of one row against that with none: how far this one moves it."""

    name: str
    kernel: str
    passed: bool
    reason: str | None
    max_abs: float | None
    max_rel: float | None
    identical: float | None
    within: float | None

    def to_dict(self) -> dict[str, Any]:
        """Return the comparison as plain data."""
        return {item.name: plain(getattr(self, item.name)) for item in fields(self)}


@dataclass(frozen=True, slots=True, kw_only=True)
class Whole:
    """The model's output with all kernels against that with none, in the first mode that fails, or else the first.

    `reference` is `float64`, or begins with `none` and says why the original alone was the yardstick, or why nothing
    was judged. Rows are judged, not values: `within` may be less than 1 where a model amplifies differences. `alone`
    has the same for each kernel by itself, the one that moves the output most first; it is empty where the model was
    not run.
    """

    mode: str
    passed: bool
    reason: str | None
    reference: str
    max_abs: float | None
    max_rel: float | None
    identical: float | None
    within: float | None
    alone: tuple[Alone, ...] = ()

    def to_dict(self) -> dict[str, Any]:
        """Return the comparison as plain data."""
        found = {item.name: plain(getattr(self, item.name)) for item in fields(self)}
        return {**found, "alone": [one.to_dict() for one in self.alone]}

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> Self:
        """Build the comparison from the plain data of `to_dict`."""
        return cls(**_values(data))


@dataclass(frozen=True, slots=True, kw_only=True)
class Verification:
    """What `verify` found. `model` is `None` where nothing is swapped.

    `removed` holds row, kernel and reason of what was taken off the model for failing; then `model` is that without it.
    """

    rows: tuple[Row, ...]
    model: Whole | None
    notes: tuple[str, ...] = ()
    removed: tuple[tuple[str, str, str], ...] = ()

    @property
    def passed(self) -> bool:
        """Whether every kernel passed, and the model with all of them."""
        return all(row.passed for row in self.rows) and (self.model is None or self.model.passed) and not self.removed

    @property
    def failures(self) -> dict[tuple[str, str], str]:
        """Why a kernel of a row failed, by the row's name and the kernel's reference.

        Where only the model failed, that is the kernel that moves its output too far alone, or all if none does.
        """
        found = {(row.name, row.kernel): f"{row.path}: {row.reason}" for row in reversed(self.rows) if not row.passed}
        if found or self.model is None or self.model.passed:
            return found
        moving = [one for one in self.model.alone if not one.passed]
        if moving:
            return {(one.name, one.kernel): f"the model: {one.reason}" for one in moving}
        return {(row.name, row.kernel): f"the model: {self.model.reason}" for row in self.rows}

    def to_dict(self) -> dict[str, Any]:
        """Return everything as plain data, in the form of `schemas/verification.schema.json`."""
        return {
            "schema": SCHEMA,
            "passed": self.passed,
            "rows": [row.to_dict() for row in self.rows],
            "model": self.model.to_dict() if self.model else None,
            "removed": [dict(zip(("name", "kernel", "reason"), one, strict=True)) for one in self.removed],
            "notes": list(self.notes),
        }

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> Self:
        """Build it from the plain data of `to_dict`."""
        model = data["model"]
        return cls(
            rows=tuple(map(Row.from_dict, data["rows"])),
            model=Whole.from_dict(model) if model else None,
            removed=tuple((one["name"], one["kernel"], one["reason"]) for one in data["removed"]),
            notes=tuple(data["notes"]),
        )

    def __str__(self) -> str:
        heads = (
            "name",
            "path",
            "shape",
            "kernel",
            "modes",
            "passed",
            "max abs diff",
            "max rel diff",
            "within",
            "backward",
        )
        lines = [_cells(row) for row in self.rows]
        if self.model:
            model = self.model
            figures = (short(model.max_abs), short(model.max_rel), share(model.within))
            lines.append(("model", "", "", "", model.mode, word(model.passed), *figures, ""))
            for one in model.alone if len(model.alone) > 1 else ():
                figures = (short(one.max_abs), short(one.max_rel), share(one.within))
                lines.append((f"  {one.name} alone", "", "", one.kernel, model.mode, word(one.passed), *figures, ""))
        reasons = told((row.path, row.kernel, word) for row in self.rows for word in _words(row))
        if self.model:
            reasons += [f"model: {self.model.reason}"] if self.model.reason else []
            reasons += [f"model: {self.model.reference}"] if self.model.reference not in ("float64", "none") else []
        reasons += [f"removed: {name} ({kernel}): {reason}" for name, kernel, reason in self.removed]
        return printed([*table(heads, lines), *([_WITHIN] if lines else []), *reasons, *self.notes])


def _cells(row: Row) -> tuple[str, ...]:
    backward = word(row.backward.passed) if row.backward else "-"
    figures = (short(row.max_abs), short(row.max_rel), share(row.within), backward)
    return (row.name, path_of(row), row.shape, row.kernel, " ".join(row.modes), word(row.passed), *figures)


def _words(row: Row) -> Iterator[str]:
    """Yield what the columns have no place for: why a row failed, and what it did besides computing."""
    backward = row.backward.reason if row.backward and not row.backward.passed else None
    if backward and row.reason and row.reason.endswith(backward):
        backward = None
    yield from filter(None, (row.reason, backward))
    yield from (f"hazard: {hazard}" for hazard in row.hazards)
    if row.chancy:
        yield "not repeatable, as the original: two runs on the same inputs gave different bits"
    if row.reference != "float64":
        yield row.reference


def _values(data: Mapping[str, Any]) -> dict[str, Any]:
    """Return plain data as the values that it was made of."""
    parts: dict[str, Any] = {"backward": Check.from_dict, "alone": _alone}
    return values(data, parts)


def _alone(data: Sequence[Mapping[str, Any]]) -> tuple[Alone, ...]:
    return tuple(Alone(**values(one, {})) for one in data)
