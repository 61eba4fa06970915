"""The main job as a Hydra application: model, plan, apply, verify, bench, and their files in the run's folder.

Everything that can be refused is refused before Hydra starts a job: each combination of a sweep is composed and
validated first. Hydra then makes the folders, the records of config and overrides, and the launches.
"""

from __future__ import annotations

import json
import sys
import time
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import hydra
from hydra.core.hydra_config import HydraConfig

from kerncfg.api import document, plan_document
from kerncfg.compiler.compose import hydra_folder, job_overrides, version_base
from kerncfg.compiler.interpolate import with_environment
from kerncfg.compiler.overrides import combinations, rewrite
from kerncfg.compiler.schema import validate
from kerncfg.compiler.writing import document_lines
from kerncfg.errors import KerncfgError, KerncfgWarning
from kerncfg.machine import detect

if TYPE_CHECKING:
    from kerncfg.applier.report import Report
    from kerncfg.documents.plan import Plan
    from kerncfg.evidence.bench import Measurement
    from kerncfg.evidence.verify import Verification

__all__ = ["Outcome", "perform", "run"]


@dataclass(slots=True, kw_only=True)
class Outcome:
    """What one job did, as far as it came; `error` is why it came no further."""

    folder: Path
    overrides: list[str]
    plan: Plan | None = None
    report: Report | None = None
    verification: Verification | None = None
    measurement: Measurement | None = None
    seconds: dict[str, float] = field(default_factory=dict)
    error: KerncfgError | None = None

    @property
    def passed(self) -> bool:
        """Whether the job ran to its end and every kernel passed verification."""
        return self.error is None and (self.verification is None or self.verification.passed)

    def to_dict(self) -> dict[str, Any]:
        """Return everything the job produced as plain data."""
        parts = {name: getattr(self, name) for name in ("plan", "report", "verification", "measurement", "error")}
        return {
            "folder": str(self.folder),
            "overrides": self.overrides,
            "passed": self.passed,
            "seconds": self.seconds,
            **{name: part.to_dict() if part is not None else None for name, part in parts.items()},
        }


def run(
    overrides: Sequence[str],
    *,
    config_dir: Path | None = None,
    multirun: bool = False,
    trust: Sequence[str] = (),
    show: Callable[[Outcome, str], None] = lambda outcome, stage: None,
) -> list[Outcome]:
    """Run the main job once, or once for each combination of a sweep, and return what each did.

    `show` is called after each stage with the outcome so far and the stage's name.

    Raises:
        ConfigError: What was asked is not valid; no job was started and no folder made.
    """
    for words in combinations(overrides) if multirun else [list(overrides)]:
        data, origins = document(*words, config_dir=config_dir)
        validate(data, origins=origins)
    outcomes: list[Outcome] = []

    def job(_: Any) -> None:
        settings = HydraConfig.get()
        words = _as_typed(job_overrides(settings), overrides)
        outcome = Outcome(folder=Path(settings.runtime.output_dir), overrides=words)
        outcomes.append(outcome)
        try:
            perform(outcome, config_dir=config_dir, trust=trust, show=show)
        except KerncfgError as error:
            outcome.error = error
            show(outcome, "error")

    # Hydra takes its arguments from the command line only, and writes its own log lines where our output goes.
    quiet = ["hydra/job_logging=disabled", "hydra/hydra_logging=disabled"]
    words = [*rewrite(overrides), *quiet, *(["--multirun"] if multirun else [])]
    with _arguments(words), hydra_folder(config_dir) as folder:
        hydra.main(config_path=str(folder), config_name="config", **version_base())(job)()
    return outcomes


def perform(
    outcome: Outcome,
    *,
    config_dir: Path | None,
    trust: Sequence[str],
    show: Callable[[Outcome, str], None],
) -> None:
    """Carry out one job and fill its outcome; each document is written as soon as it is there."""
    from kerncfg.applier.apply import apply
    from kerncfg.evidence.bench import bench
    from kerncfg.evidence.verify import verify
    from kerncfg.models import build

    def keep(stage: str, result: Any) -> Any:
        setattr(outcome, stage, result)
        outcome.seconds[stage] = round(time.perf_counter() - started, 3)
        _write(outcome.folder / f"{stage}.json", result)
        show(outcome, stage)
        return result

    started = time.perf_counter()
    data, origins = document(*outcome.overrides, config_dir=config_dir)
    validate(data, origins=origins)
    text = "\n".join(document_lines(data, origins)) + "\n"
    (outcome.folder / "config.yaml").write_text(text, encoding="utf-8")
    target = detect(data["target"])
    plan = keep("plan", plan_document(data, origins, target, trust=trust))
    started = time.perf_counter()
    node, secrets = with_environment(data, "model")
    try:
        loaded = build(node, target)
    except KerncfgError as error:
        raise _in_words(error, secrets) from (None if secrets else error.__cause__)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", KerncfgWarning)  # the report that follows says the same
        bindings = apply(plan, loaded.model)
    with bindings:
        keep("report", bindings.report)
        thresholds = data["policy"]["verify"]
        started = time.perf_counter()
        verification = keep("verification", verify(bindings, loaded.inputs, thresholds))
        started = time.perf_counter()
        keep("measurement", bench(bindings, loaded.inputs))
    if not verification.passed and thresholds["on_fail"] == "error":
        raise KerncfgError("verification failed", hint="see the rows above; policy.verify.on_fail is error")


def _in_words(error: KerncfgError, secrets: Mapping[str, str]) -> KerncfgError:
    """Return an error in which no value of the environment is shown."""
    message, hint = error.message, error.hint
    for value in sorted(secrets, key=len, reverse=True):
        message = message.replace(value, secrets[value])
        hint = hint and hint.replace(value, secrets[value])
    return error if message == error.message else type(error)(message, hint=hint)


def _as_typed(task: list[str], overrides: Sequence[str]) -> list[str]:
    """Return a job's overrides as the user wrote them; what a sweep chose for this job, as it chose it."""
    words: list[str] = []
    left = list(task)
    for argument in overrides:
        lines = rewrite([argument])
        chosen, left = left[: len(lines)], left[len(lines) :]
        words += [argument] if chosen == lines else chosen
    return words + left


def _write(file: Path, result: Any) -> None:
    text = json.dumps(result.to_dict(), indent=2, sort_keys=True, ensure_ascii=False, allow_nan=False)
    file.write_text(text + "\n", encoding="utf-8")


@contextmanager
def _arguments(words: Sequence[str]) -> Iterator[None]:
    before = sys.argv
    sys.argv = ["kerncfg", *words]
    try:
        yield
    finally:
        sys.argv = before
