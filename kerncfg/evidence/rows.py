"""What evidence says, as rows: the documents of `verify` and `bench`, and their tables."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields
from typing import TYPE_CHECKING, Any, Self

from kerncfg.evidence.judge import number

if TYPE_CHECKING:
    from kerncfg.evidence.judge import Difference

__all__ = ["Check", "Measurement", "Row", "TimedModel", "TimedRow", "Timing", "Verification", "Whole"]

SCHEMA = 1

_NO_NUMBERS = ("nan", "inf", "-inf")  # what JSON has no number for

_WITHIN = "within: the share of values that differ from the original by no more than the policy allows"
_SPREAD = "spread: how far the speedup varies from reading to reading; same: it is no further from 1 than that"


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
        return {item.name: _plain(getattr(self, item.name)) for item in fields(self)}

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


@dataclass(frozen=True, slots=True, kw_only=True)
class Whole:
    """The model's output with all kernels against that with none, in the first mode that fails, or else the first.

    `reference` is `float64`, or begins with `none` and says why the original alone was the yardstick, or why nothing
    was judged. Rows are judged, not values: `within` may be less than 1 where a model amplifies differences.
    """

    mode: str
    passed: bool
    reason: str | None
    reference: str
    max_abs: float | None
    max_rel: float | None
    identical: float | None
    within: float | None

    def to_dict(self) -> dict[str, Any]:
        """Return the comparison as plain data."""
        return {item.name: _plain(getattr(self, item.name)) for item in fields(self)}

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> Self:
        """Build the comparison from the plain data of `to_dict`."""
        return cls(**_values(data))


@dataclass(frozen=True, slots=True, kw_only=True)
class Verification:
    """What `verify` found. `model` is `None` where nothing is swapped."""

    rows: tuple[Row, ...]
    model: Whole | None
    notes: tuple[str, ...] = ()

    @property
    def passed(self) -> bool:
        """Whether every kernel passed, and the model with all of them."""
        return all(row.passed for row in self.rows) and (self.model is None or self.model.passed)

    def to_dict(self) -> dict[str, Any]:
        """Return everything as plain data, in the form of `schemas/verification.schema.json`."""
        return {
            "schema": SCHEMA,
            "passed": self.passed,
            "rows": [row.to_dict() for row in self.rows],
            "model": self.model.to_dict() if self.model else None,
            "notes": list(self.notes),
        }

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> Self:
        """Build it from the plain data of `to_dict`."""
        model = data["model"]
        return cls(
            rows=tuple(map(Row.from_dict, data["rows"])),
            model=Whole.from_dict(model) if model else None,
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
            figures = (_short(model.max_abs), _short(model.max_rel), _share(model.within))
            lines.append(("model", "", "", "", model.mode, _word(model.passed), *figures, ""))
        told = _told((row.path, row.kernel, word) for row in self.rows for word in _words(row))
        if self.model:
            told += [f"model: {self.model.reason}"] if self.model.reason else []
            told += [f"model: {self.model.reference}"] if self.model.reference not in ("float64", "none") else []
        return "\n".join([*_table(heads, lines), *([_WITHIN] if lines else []), *told, *self.notes])


@dataclass(frozen=True, slots=True, kw_only=True)
class Timing:
    """Seconds for one call, medians of `runs` interleaved pairs; `None` where something raised: see `reason`.

    `spread` is the interquartile range of the pairs' ratios, relative to their median. `verdict` is `faster`
    or `slower` only where `speedup` is further from 1 than that, else `none`. `original_bytes` and
    `kernel_bytes` are the peak memory of one call on a CUDA device beyond what was held before.
    """

    original_s: float | None = None
    kernel_s: float | None = None
    speedup: float | None = None
    spread: float | None = None
    verdict: str | None = None
    runs: int = 0
    original_bytes: int | None = None
    kernel_bytes: int | None = None
    reason: str | None = None

    def to_dict(self) -> dict[str, Any]:
        """Return the timing as plain data."""
        return {item.name: _plain(getattr(self, item.name)) for item in fields(self)}

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> Self:
        """Build the timing from the plain data of `to_dict`."""
        return cls(**_values(data))


@dataclass(frozen=True, slots=True, kw_only=True)
class TimedRow(Timing):
    """One kernel at one kind of site in one mode: forward in inference, forward and backward in training."""

    name: str
    path: str
    sites: int
    kernel: str
    mode: str
    device: str
    dtype: str
    shape: str


@dataclass(frozen=True, slots=True, kw_only=True)
class TimedModel(Timing):
    """The whole model in the first mode that swaps something; `training` is the second, if that swaps too."""

    mode: str
    training: Timing | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Measurement:
    """What `bench` measured. `model` is `None` where nothing is swapped."""

    rows: tuple[TimedRow, ...]
    model: TimedModel | None
    notes: tuple[str, ...] = ()

    @property
    def passed(self) -> bool:
        """Whether everything could be measured; says nothing about what is faster."""
        parts = [*self.rows, *([self.model] if self.model else [])]
        return all(part.reason is None for part in parts)

    def to_dict(self) -> dict[str, Any]:
        """Return everything as plain data, in the form of `schemas/measurement.schema.json`."""
        return {
            "schema": SCHEMA,
            "passed": self.passed,
            "rows": [row.to_dict() for row in self.rows],
            "model": self.model.to_dict() if self.model else None,
            "notes": list(self.notes),
        }

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> Self:
        """Build it from the plain data of `to_dict`."""
        model = data["model"]
        return cls(
            rows=tuple(map(TimedRow.from_dict, data["rows"])),
            model=TimedModel.from_dict(model) if model else None,
            notes=tuple(data["notes"]),
        )

    def __str__(self) -> str:
        heads = (
            "name",
            "path",
            "shape",
            "kernel",
            "mode",
            "original takes",
            "kernel takes",
            "speedup",
            "spread",
            "verdict",
        )
        lines = [(row.name, _path(row), row.shape, row.kernel, row.mode, *_times(row)) for row in self.rows]
        if self.model:
            lines.append(("model", "", "", "", self.model.mode, *_times(self.model)))
            if self.model.training:
                lines.append(("model", "", "", "", "training", *_times(self.model.training)))
        reasons = _told((row.path, row.kernel, row.reason) for row in self.rows if row.reason)
        reasons += [f"model: {self.model.reason}"] if self.model and self.model.reason else []
        return "\n".join([*_table(heads, lines), *([_SPREAD] if lines else []), *reasons, *self.notes])


def _table(heads: Sequence[str], lines: Sequence[Sequence[str]]) -> list[str]:
    if not lines:
        return []
    widths = [max(len(line[place]) for line in (heads, *lines)) for place in range(len(heads))]
    return [
        "  ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)).rstrip()
        for line in (heads, *lines)
    ]


def _cells(row: Row) -> tuple[str, ...]:
    backward = _word(row.backward.passed) if row.backward else "-"
    figures = (_short(row.max_abs), _short(row.max_rel), _share(row.within), backward)
    return (row.name, _path(row), row.shape, row.kernel, " ".join(row.modes), _word(row.passed), *figures)


def _told(words: Iterable[tuple[str, str, str]]) -> list[str]:
    """Say each thing once for each kernel, however many rows it is true of."""
    rows: dict[tuple[str, str], list[str]] = {}
    for path, kernel, word in words:
        rows.setdefault((kernel, word), []).append(path)
    return [f"{_listed(list(dict.fromkeys(paths)))}: {word}" for (_, word), paths in rows.items()]


def _listed(paths: Sequence[str]) -> str:
    return ", ".join(paths) if len(paths) <= 3 else f"{', '.join(paths[:2])} and {len(paths) - 2} more"


def _words(row: Row) -> Iterator[str]:
    """Yield what the columns have no place for: why a row failed, and what it did besides computing."""
    backward = row.backward.reason if row.backward and not row.backward.passed else None
    if backward and row.reason and row.reason.endswith(backward):
        backward = None
    yield from filter(None, (row.reason, backward))
    yield from (f"hazard: {hazard}" for hazard in row.hazards)
    if row.repeatable is False or (row.backward and row.backward.repeatable is False):
        yield "not repeatable: two runs on the same inputs gave different bits"
    if row.reference != "float64":
        yield row.reference


def _path(row: Row | TimedRow) -> str:
    return row.path if row.sites == 1 else f"{row.path} and {row.sites - 1} more"


def _times(timing: Timing) -> tuple[str, ...]:
    if timing.original_s is None or timing.kernel_s is None or timing.speedup is None or timing.spread is None:
        return ("-",) * 5
    seconds = [f"{value * 1e6:,.0f} us" for value in (timing.original_s, timing.kernel_s)]
    verdict = "same" if timing.verdict == "none" else timing.verdict or "-"
    return (*seconds, f"{timing.speedup:.2f}", f"{timing.spread:.2f}", verdict)


def _word(passed: bool) -> str:
    return "yes" if passed else "NO"


def _short(value: float | None) -> str:
    return "-" if value is None else f"{value:.1e}"


def _share(value: float | None) -> str:
    return "-" if value is None else f"{value:.2%}"


def _plain(value: Any) -> Any:
    if isinstance(value, (Check, Timing)):
        return value.to_dict()
    if isinstance(value, tuple):
        return list(value)
    return number(value) if isinstance(value, float) else value


def _values(data: Mapping[str, Any]) -> dict[str, Any]:
    """Return plain data as the values that `_plain` was given."""
    parts: dict[str, type[Check] | type[Timing]] = {"backward": Check, "training": Timing}
    found: dict[str, Any] = {}
    for key, value in data.items():
        if key in parts and value is not None:
            found[key] = parts[key].from_dict(value)
        elif isinstance(value, list):
            found[key] = tuple(value)
        else:
            found[key] = float(value) if isinstance(value, str) and value in _NO_NUMBERS else value
    return found
