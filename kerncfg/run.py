"""The main job as a Hydra application: model, plan, apply, verify, bench, and their files in the run's folder.

Everything that can be refused is refused before Hydra starts a job: each combination of a sweep is composed and
validated first. Hydra then makes the folders, the records of config and overrides, and the launches.
"""

from __future__ import annotations

import json
import os
import re
import sys
import time
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import hydra
from hydra.core.hydra_config import HydraConfig

from kerncfg.api import document, plan_document
from kerncfg.compiler.compose import Origins, hydra_folder, job_overrides, version_base
from kerncfg.compiler.interpolate import with_environment
from kerncfg.compiler.overrides import combinations, rewrite
from kerncfg.compiler.schema import validate
from kerncfg.compiler.writing import document_lines
from kerncfg.errors import ConfigError, KerncfgError, KerncfgWarning, SourceError
from kerncfg.locking import usual
from kerncfg.machine import detect

if TYPE_CHECKING:
    from kerncfg.applier.report import Report
    from kerncfg.documents.lock import Lock
    from kerncfg.documents.plan import Plan
    from kerncfg.evidence.bench import Measurement
    from kerncfg.evidence.verify import Verification

__all__ = ["STAGES", "Outcome", "check", "perform", "run"]

STAGES = ("verification", "measurement")

_FULL_ERROR = "HYDRA_FULL_ERROR"

_BUILT = ("model", "target")  # the nodes that a model is built from


@dataclass(slots=True, kw_only=True)
class Outcome:
    """What one job did, as far as it came; `error` is why it came no further."""

    folder: Path | None  # `None` where nothing is written
    overrides: list[str]
    swept: list[str] = field(default_factory=list)  # those of the overrides that a sweep chose for this job
    number: int = 1
    total: int | None = 1  # `None` where only Hydra can tell how many a sweep has
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
            "folder": str(self.folder) if self.folder else None,
            "overrides": self.overrides,
            "swept": self.swept,
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
    lock: str | Path | None = None,
    show: Callable[[Outcome, str], None] = lambda outcome, stage: None,
) -> list[Outcome]:
    """Run the main job once, or once for each combination of a sweep, and return what each did.

    `show` is called with the outcome so far: when a job starts (`start`), after each stage with the stage's name, and
    when it ends (`end`).

    Raises:
        ConfigError: What was asked is not valid; no job was started and no folder made.
        LockError: The lock cannot be read.
    """
    found = usual(lock)  # now, for a launcher may start jobs in other folders
    asked = list(combinations(overrides)) if multirun else [list(overrides)]
    for words in asked:
        data, origins = document(*words, config_dir=config_dir)
        validate(data, origins=origins)
    known = not multirun or all(len(words) == len(rewrite(overrides)) for words in asked)
    outcomes: list[Outcome] = []

    def job(_: Any) -> None:
        settings = HydraConfig.get()
        words = _as_typed(job_overrides(settings), overrides)
        outcome = Outcome(
            folder=Path(settings.runtime.output_dir),
            overrides=words,
            swept=[word.lstrip("+") for word in words if word not in overrides],
            number=len(outcomes) + 1,
            total=len(asked) if known else None,
        )
        outcomes.append(outcome)
        show(outcome, "start")
        try:
            perform(outcome, config_dir=config_dir, trust=trust, lock=found, show=show)
        except KerncfgError as error:
            outcome.error = error
        show(outcome, "end")

    # Hydra takes its arguments from the command line only, and writes its own log lines where our output goes.
    quiet = ["hydra/job_logging=disabled", "hydra/hydra_logging=disabled"]
    words = [*rewrite(overrides), *quiet, *(["--multirun"] if multirun else [])]
    with _arguments(words), hydra_folder(config_dir) as folder:
        try:
            hydra.main(config_path=str(folder), config_name="config", **version_base())(job)()
        except OSError as error:
            message = f"the run's folder cannot be written: {error.strerror}: {error.filename}"
            raise SourceError(message, hint="choose another with hydra.run.dir=FOLDER") from error
    return outcomes


def perform(
    outcome: Outcome,
    *,
    config_dir: Path | None,
    trust: Sequence[str],
    lock: Lock | None,
    show: Callable[[Outcome, str], None] = lambda outcome, stage: None,
    stages: Sequence[str] = STAGES,
) -> None:
    """Carry out one job and fill its outcome; each document is written as soon as it is there.

    `stages` says which of `verification` and `measurement` it goes through.
    """
    from kerncfg.applier.apply import apply
    from kerncfg.evidence.bench import bench
    from kerncfg.evidence.gate import fall_back, keep_verdicts, unverified
    from kerncfg.evidence.verify import verify
    from kerncfg.models import build

    def keep(stage: str, result: Any) -> Any:
        setattr(outcome, stage, result)
        outcome.seconds[stage] = round(time.perf_counter() - started, 3)
        if outcome.folder is not None:
            _write(outcome.folder / f"{stage}.json", result)
        show(outcome, stage)
        return result

    started = time.perf_counter()
    data, origins = document(*outcome.overrides, config_dir=config_dir)
    validate(data, origins=origins)
    if outcome.folder is not None:
        text = "\n".join(document_lines(data, origins)) + "\n"
        (outcome.folder / "config.yaml").write_text(text, encoding="utf-8")
    target = detect(data["target"])
    plan = keep("plan", plan_document(data, origins, target, trust=trust, lock=lock))
    started = time.perf_counter()
    node, secrets = with_environment(data, "model")
    try:
        loaded = build(node, target)
    except KerncfgError as error:
        raise _in_words(_located(error, origins), secrets) from (None if secrets else error.__cause__)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", KerncfgWarning)  # the report that follows says the same
        bindings = apply(plan, loaded.model)
    policy = data["policy"]["verify"]
    gives_way = policy["on_fail"] == "fallback" or (policy.get("gate") and policy["on_fail"] == "report")
    with ExitStack() as applied:
        applied.enter_context(bindings)
        keep("report", bindings.report)
        if "verification" in stages:
            started = time.perf_counter()
            found = verify(bindings, loaded.inputs, policy)
            keep_verdicts(bindings, found, loaded.inputs, policy)
            now, found = fall_back(bindings, found, loaded.inputs, policy) if gives_way else (bindings, found)
            keep("verification", found)
            if now is not bindings:
                bindings = applied.enter_context(now)
                keep("report", bindings.report)
        if "measurement" in stages:
            started = time.perf_counter()
            keep("measurement", bench(bindings, loaded.inputs))
    verified = outcome.verification
    if verified is not None and not verified.passed and policy["on_fail"] == "error":
        raise unverified(verified)


def check(
    overrides: Sequence[str],
    stage: str,
    *,
    config_dir: Path | None = None,
    trust: Sequence[str] = (),
    lock: str | Path | None = None,
) -> Outcome:
    """Carry out the main job as far as `verification` or `measurement`, the only one of the two; nothing is written.

    Raises:
        KerncfgError: What the job raised; the outcome of a verification that `on_fail: error` refuses is in its error.
    """
    outcome = Outcome(folder=None, overrides=list(overrides))
    try:
        perform(outcome, config_dir=config_dir, trust=trust, lock=usual(lock), stages=(stage,))
    except KerncfgError as error:
        if getattr(outcome, stage) is None:
            raise
        outcome.error = error
    return outcome


def _located(error: KerncfgError, origins: Origins) -> KerncfgError:
    """Return an error of the `model` or `target` node with the place where the value was said."""
    if isinstance(error, ConfigError):
        return ConfigError([origins.issue(_path(issue.path), issue.message, hint=issue.hint) for issue in error.issues])
    name, _, rest = error.message.partition(": ")
    if rest and name.partition(".")[0] in _BUILT:
        return type(error)(str(origins.issue(_path(name), rest)), hint=error.hint)
    return error


def _path(name: str) -> tuple[str, ...]:
    return tuple(name.split("."))


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
    left = [re.sub(r"^(~[^=]+)=null$", r"\1", line) for line in task]  # a sweep spells removals so
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
    """Give Hydra its command line, and ask it for exceptions instead of its own words and exit."""
    before, full = sys.argv, os.environ.get(_FULL_ERROR)
    sys.argv, os.environ[_FULL_ERROR] = ["kerncfg", *words], "1"
    try:
        yield
    finally:
        sys.argv = before
        if full is None:
            del os.environ[_FULL_ERROR]
        else:
            os.environ[_FULL_ERROR] = full
