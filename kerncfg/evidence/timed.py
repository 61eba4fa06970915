"""What `bench` says, as rows: its document, and its table."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any, Self

from kerncfg.evidence.wording import SCHEMA, path_of, plain, table, told, values
from kerncfg.terminal import printed

__all__ = ["Generation", "Measurement", "Spoken", "TimedModel", "TimedRow", "Timing"]

_SPREAD = (
    "spread: how far the speedup varies from reading to reading and from block to block, 0.10 being a factor of 1.10;"
    " same: the speedup is within that factor of 1, or not every block of readings shows it"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Timing:
    """Seconds for one call, medians of `runs` interleaved pairs; `None` where something raised: see `reason`.

    `spread` is how far the pairs' ratios vary, relative to their median: their interquartile range, or the range of the
    medians of blocks that were taken at other times, or what that median and `speedup` disagree by, whatever is most.
    `verdict` is `faster` or `slower` only where `speedup` and that median are both beyond a factor of 1 + `spread` and
    the median of every block is on the same side of 1, else `none`. `original_bytes` and `kernel_bytes` are the peak
    memory of one call on a CUDA device beyond what was held before.
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
        return {item.name: plain(getattr(self, item.name)) for item in fields(self)}

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> Self:
        """Build the timing from the plain data of `to_dict`."""
        return cls(**values(data, {"training": Timing.from_dict}))


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
class Spoken(Timing):
    """The same in tokens for each second, all of a batch counted."""

    original_tokens_s: float | None = None
    kernel_tokens_s: float | None = None

    @classmethod
    def of(cls, timing: Timing, tokens: int) -> Self:
        """Build it from the time that so many tokens took."""
        rates = [None if seconds is None else tokens / seconds for seconds in (timing.original_s, timing.kernel_s)]
        found = {item.name: getattr(timing, item.name) for item in fields(Timing)}
        return cls(**found, original_tokens_s=rates[0], kernel_tokens_s=rates[1])


@dataclass(frozen=True, slots=True, kw_only=True)
class Generation:
    """A language model at work: `prefill` reads `batch` prompts of `prompt` tokens, `decode` adds `tokens` to each."""

    batch: int
    prompt: int
    tokens: int
    prefill: Spoken
    decode: Spoken

    def to_dict(self) -> dict[str, Any]:
        """Return the generation as plain data."""
        return {item.name: plain(getattr(self, item.name)) for item in fields(self)}

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> Self:
        """Build the generation from the plain data of `to_dict`."""
        return cls(**values(data, {"prefill": Spoken.from_dict, "decode": Spoken.from_dict}))


@dataclass(frozen=True, slots=True, kw_only=True)
class Measurement:
    """What `bench` measured. `model` is `None` where nothing is swapped, `generation` where no text can be made."""

    rows: tuple[TimedRow, ...]
    model: TimedModel | None
    generation: Generation | None = None
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
            "generation": self.generation.to_dict() if self.generation else None,
            "notes": list(self.notes),
        }

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> Self:
        """Build it from the plain data of `to_dict`."""
        model, generation = data["model"], data["generation"]
        return cls(
            rows=tuple(map(TimedRow.from_dict, data["rows"])),
            model=TimedModel.from_dict(model) if model else None,
            generation=Generation.from_dict(generation) if generation else None,
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
        lines = [(row.name, path_of(row), row.shape, row.kernel, row.mode, *_times(row)) for row in self.rows]
        if self.model:
            lines.append(("model", "", "", "", self.model.mode, *_times(self.model)))
            if self.model.training:
                lines.append(("model", "", "", "", "training", *_times(self.model.training)))
        reasons = told((row.path, row.kernel, row.reason) for row in self.rows if row.reason)
        reasons += [f"model: {self.model.reason}"] if self.model and self.model.reason else []
        reasons += _rates(self.generation) if self.generation else []
        return printed([*table(heads, lines), *([_SPREAD] if lines else []), *reasons, *self.notes])


def _times(timing: Timing) -> tuple[str, ...]:
    if timing.original_s is None or timing.kernel_s is None or timing.speedup is None or timing.spread is None:
        return ("-",) * 5
    seconds = [f"{value * 1e6:,.0f} us" for value in (timing.original_s, timing.kernel_s)]
    verdict = "same" if timing.verdict == "none" else timing.verdict or "-"
    return (*seconds, f"{timing.speedup:.2f}", f"{timing.spread:.2f}", verdict)


def _rates(generation: Generation) -> list[str]:
    prompts = f"{generation.batch} x {generation.prompt} tokens"
    parts = (("prefill", f"of {prompts}", generation.prefill), ("decode", f"after {prompts}", generation.decode))
    return [
        f"{name} {what}: {one.original_tokens_s:,.0f} tokens/s, with kernels {one.kernel_tokens_s:,.0f}"
        f" ({one.speedup:.2f}, spread {one.spread:.2f}, {'same' if one.verdict == 'none' else one.verdict})"
        for name, what, one in parts
    ]
