"""Several runs next to each other: which overrides differ, what passed, and how fast each was."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from kerncfg.errors import ConfigError, KerncfgError
from kerncfg.outcome import Outcome, blaming, folders, read
from kerncfg.terminal import printed

if TYPE_CHECKING:
    from kerncfg.evidence.rows import Spoken, Timing

__all__ = ["SCHEMA", "Compared", "Comparison", "Job", "Rate", "Speed", "compared", "gather", "said"]

SCHEMA = 1

_SPOKEN = ("prefill", "decode")  # what is measured of a language model besides


@dataclass(frozen=True, slots=True, kw_only=True)
class Speed:
    """How many times as fast as the original, how far readings spread, and the verdict; as in a measurement."""

    speedup: float | None
    spread: float | None
    verdict: str | None
    reason: str | None = None

    @classmethod
    def of(cls, timing: Timing) -> Speed:
        """Take it from a timing."""
        return cls(speedup=timing.speedup, spread=timing.spread, verdict=timing.verdict, reason=timing.reason)


@dataclass(frozen=True, slots=True, kw_only=True)
class Rate(Speed):
    """The same, with the tokens in a second of the original and of the kernels."""

    original_tokens_s: float | None
    kernel_tokens_s: float | None

    @classmethod
    def of_spoken(cls, spoken: Spoken) -> Rate:
        """Take it from what a language model read or wrote."""
        return cls(
            **asdict(Speed.of(spoken)),
            original_tokens_s=spoken.original_tokens_s,
            kernel_tokens_s=spoken.kernel_tokens_s,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Compared:
    """One kernel in one job: at how many sites it runs, whether it passed, its best and its worst speed by mode.

    `passed` is `None` where no row of the verification is about it.
    """

    kernel: str
    name: str
    sites: int
    passed: bool | None
    slowest: Mapping[str, Speed] = field(default_factory=dict)
    fastest: Mapping[str, Speed] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """One run: what sets it apart, how it ended, and what it measured.

    `differs` are its overrides that not every run has. `removed` is what was taken off the model for failing,
    `unswapped` is what `Outcome` says. `model` is the speed of the whole model by mode, `generation` that of a language
    model's `prefill` and `decode`.
    """

    folder: str
    number: int
    overrides: tuple[str, ...]
    differs: tuple[str, ...]
    passed: bool
    error: Mapping[str, Any] | None
    digest: str | None
    target: str | None
    counts: Mapping[str, int] | None
    failed: tuple[str, ...]
    removed: tuple[str, ...]
    unswapped: Mapping[str, str]
    model: Mapping[str, Speed]
    generation: Mapping[str, Rate]
    kernels: tuple[Compared, ...]

    def to_dict(self) -> dict[str, Any]:
        """Return the run as plain data."""
        return {key: list(value) if isinstance(value, tuple) else value for key, value in asdict(self).items()}


@dataclass(frozen=True, slots=True, kw_only=True)
class Comparison:
    """What several runs came to, and the overrides that they share; `outcomes` are the runs themselves."""

    jobs: tuple[Job, ...]
    shared: tuple[str, ...]
    outcomes: tuple[Outcome, ...] = field(compare=False, repr=False)

    @property
    def passed(self) -> bool:
        """Whether every run came to its end and passed."""
        return all(job.passed for job in self.jobs)

    def to_dict(self) -> dict[str, Any]:
        """Return the comparison as plain data, in the form of `schemas/comparison.schema.json`."""
        jobs = [job.to_dict() for job in self.jobs]
        return {"schema": SCHEMA, "passed": self.passed, "shared": list(self.shared), "jobs": jobs}

    def __str__(self) -> str:
        spoken = [name for name in _SPOKEN if any(name in job.generation for job in self.jobs)]
        heads = ("run", "overrides", "swapped", "passed", "model", "training", *spoken, "kernels", "folder")
        lines = [heads, *(_line(job, spoken) for job in self.jobs)]
        widths = [max(len(line[place]) for line in lines) for place in range(len(heads))]
        body = ["  ".join(map(str.ljust, line, widths)).rstrip() for line in lines]
        shared = [f"all runs: {' '.join(self.shared)}"] if self.shared else []
        told = [f"run {job.number}: {why}" for job in self.jobs for why in _whys(job)]
        return printed([*body, *shared, *told])


def gather(places: Sequence[Path]) -> list[Outcome]:
    """Return the runs at or below some places; one whose files cannot be read has that as its error.

    Raises:
        ConfigError: There is no run at a place, or no place was named.
    """
    if not places:
        raise ConfigError("compare needs a folder, found none", hint="name the folder of a sweep, or of several runs")
    return [_read(folder) for folder in dict.fromkeys(found for place in places for found in folders(place))]


def compared(outcomes: Sequence[Outcome]) -> Comparison:
    """Return the comparison of runs that were read."""
    said = [frozenset(outcome.overrides) for outcome in outcomes]
    everywhere = frozenset.intersection(*said) if len(said) > 1 else frozenset()
    shared = tuple(_label(word) for word in outcomes[0].overrides if word in everywhere) if outcomes else ()
    counted = len({outcome.sweep for outcome in outcomes}) == 1 and outcomes[0].sweep
    jobs = [
        _job(outcome, outcome.number if counted else place, everywhere) for place, outcome in enumerate(outcomes, 1)
    ]
    jobs_and_outcomes = sorted(zip(jobs, outcomes, strict=True), key=lambda both: both[0].number)
    return Comparison(
        jobs=tuple(job for job, _ in jobs_and_outcomes),
        shared=shared,
        outcomes=tuple(outcome for _, outcome in jobs_and_outcomes),
    )


def _label(word: str) -> str:
    """Return an override as it is shown: without the signs that only Hydra needs."""
    return word.lstrip("+")


def _read(folder: Path) -> Outcome:
    try:
        with blaming(folder):
            return read(folder)
    except KerncfgError as error:
        return Outcome(folder=folder, overrides=[], error=error)


def _job(outcome: Outcome, number: int, everywhere: frozenset[str]) -> Job:
    plan, report, found = outcome.plan, outcome.report, outcome.verification
    measured = outcome.measurement
    model, generation = (measured.model, measured.generation) if measured else (None, None)
    speeds = {model.mode: Speed.of(model)} if model else {}
    if model and model.training:
        speeds["training"] = Speed.of(model.training)
    return Job(
        folder=str(outcome.home),
        number=number,
        overrides=tuple(map(_label, outcome.overrides)),
        differs=tuple(_label(word) for word in outcome.overrides if word not in everywhere),
        passed=outcome.passed,
        error=outcome.error.to_dict() if outcome.error else None,
        digest=plan.digest if plan else None,
        target=plan.target.device if plan else None,
        counts=report.counts if report else None,
        failed=tuple(_failed(outcome)),
        removed=tuple(f"{name} ({kernel})" for name, kernel, _ in found.removed) if found else (),
        unswapped=outcome.unswapped,
        model=speeds,
        generation={name: Rate.of_spoken(getattr(generation, name)) for name in _SPOKEN} if generation else {},
        kernels=tuple(_kernels(outcome)),
    )


def _failed(outcome: Outcome) -> Iterator[str]:
    """Yield a line for each kernel that failed verification, and for the model."""
    found = outcome.verification
    reasons: dict[str, list[str | None]] = {}
    for row in found.rows if found else ():
        if not row.passed:
            reasons.setdefault(f"{row.name} ({row.kernel})", []).append(row.reason)
    for kernel, (first, *others) in reasons.items():
        yield f"{kernel}: {first}" + (f"; so do {len(others)} more rows" if others else "")
    if found and found.model and not found.model.passed:
        yield f"the model: {found.model.reason}"


def _kernels(outcome: Outcome) -> Iterator[Compared]:
    """Yield each kernel that runs somewhere, or that was measured."""
    sites: dict[tuple[str, str], int] = {}
    for row in outcome.report.rows if outcome.report else ():
        for kernel in {row.kernel, *row.modes.values()} - {None, "original"}:
            sites[(row.name, str(kernel))] = sites.get((row.name, str(kernel)), 0) + 1
    verified = outcome.verification.rows if outcome.verification else ()
    timed = outcome.measurement.rows if outcome.measurement else ()
    for (name, kernel), count in sites.items():
        verdicts = [row.passed for row in verified if (row.name, row.kernel) == (name, kernel)]
        speeds: dict[str, list[Speed]] = {}
        for timing in timed:
            if (timing.name, timing.kernel) == (name, kernel) and timing.speedup is not None:
                speeds.setdefault(timing.mode, []).append(Speed.of(timing))
        yield Compared(
            kernel=kernel,
            name=name,
            sites=count,
            passed=all(verdicts) if verdicts else None,
            slowest={mode: min(found, key=_ratio) for mode, found in speeds.items()},
            fastest={mode: max(found, key=_ratio) for mode, found in speeds.items()},
        )


def _ratio(speed: Speed) -> float:
    return speed.speedup or 0.0


def _line(job: Job, spoken: Sequence[str]) -> tuple[str, ...]:
    swapped = str(job.counts["swapped"]) if job.counts else "-"
    first = next((speed for mode, speed in job.model.items() if mode != "training"), None)
    words = " ".join(job.differs) or "-"
    kernels = ", ".join(dict.fromkeys(each.kernel for each in job.kernels)) or "-"
    passed = "ERROR" if job.error else "NO" if not job.passed else "yes, nothing swapped" if job.unswapped else "yes"
    rates = [said(job.generation.get(name)) for name in spoken]
    speeds = (said(first), said(job.model.get("training")), *rates)
    return (str(job.number), words, swapped, passed, *speeds, kernels, job.folder)


def said(speed: Speed | None) -> str:
    """Return a speed in two words, with the tokens in a second where there are some."""
    if speed is None or speed.speedup is None:
        return "-"
    tokens = f", {speed.kernel_tokens_s:,.0f}/s" if isinstance(speed, Rate) and speed.kernel_tokens_s else ""
    return f"{speed.speedup:.2f} {'same' if speed.verdict == 'none' else speed.verdict}{tokens}"


def _whys(job: Job) -> Iterable[str]:
    removed = [f"taken off: {name}" for name in job.removed]
    return [f"{job.error['error']}: {job.error['message']}"] if job.error else [*job.failed, *removed]
