"""The main job as a Hydra application: model, plan, apply, verify, bench, and their files in the run's folder.

Everything that can be refused is refused before Hydra starts a job: each combination of a sweep is composed and
validated first. Hydra then makes the folders, the records of config and overrides, and the launches.
"""

from __future__ import annotations

import os
import shlex
import sys
import time
import traceback
import warnings
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack, redirect_stdout
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any
from uuid import uuid4

import hydra
from hydra.core.hydra_config import HydraConfig
from hydra.experimental.callback import Callback

from kerncfg.api import checked, plan_of
from kerncfg.compiler.compose import Origins, hydra_folder, job_overrides, version_base
from kerncfg.compiler.interpolate import with_environment
from kerncfg.compiler.loading import lists_replace
from kerncfg.compiler.overrides import combinations, rewrite
from kerncfg.compiler.policy import unconsented
from kerncfg.compiler.shared import from_file, pinned, remember
from kerncfg.compiler.writing import document_lines
from kerncfg.errors import ConfigError, Issue, KerncfgError, KerncfgWarning, SourceError, TrustError
from kerncfg.launching import arguments, as_typed, for_hydra
from kerncfg.locking import usual
from kerncfg.machine import detect
from kerncfg.outcome import STAGES, Environment, Outcome, command, folders, read, write_json
from kerncfg.page.drawing import draw
from kerncfg.page.report import page, write

if TYPE_CHECKING:
    from kerncfg.documents.lock import Lock
    from kerncfg.documents.plan import Plan

__all__ = ["STAGES", "Outcome", "check", "perform", "run"]

_BUILT = ("model", "target")  # the nodes that a model is built from


# Where the folder of the sweep that is starting is noted: Hydra's own call to tell it, made by name.
_SWEEPS: list[Path] = []


class SweepNoted(Callback):
    """Notes the folder of a sweep, below which jobs of other processes leave what they did."""

    def on_multirun_start(self, config: Any, **_: Any) -> None:
        """Note the folder."""
        _SWEEPS.append(Path(config.hydra.sweep.dir).absolute())


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
    shared = _check_each(asked, config_dir)
    known = not multirun or all(len(words) == len(rewrite(overrides)) for words in asked)
    outcomes: list[Outcome] = []
    total, sweep, home = len(asked) if known else None, uuid4().hex if multirun else None, os.getpid()
    again = partial(command, config_dir=config_dir, trust=trust, lock=lock)
    carry_out = partial(perform, config_dir=config_dir, trust=trust, lock=found, shared=shared)

    def job(_: Any) -> None:
        settings = HydraConfig.get()
        words = as_typed(job_overrides(settings), overrides)
        bare = [word if word in overrides else word.lstrip("+") for word in words]
        outcome = Outcome(
            folder=Path(settings.runtime.output_dir),
            overrides=words,
            swept=[word.lstrip("+") for word in words if word not in overrides],
            number=settings.job.num + 1 if multirun else 1,
            total=total,
            command=again([*from_file(settings, words, shared), *(pinned(word, shared) for word in bare)]),
            sweep=sweep,
        )
        if os.getpid() == home:
            outcomes.append(outcome)
            _carried_out(outcome, carry_out, show)
        else:  # a launcher's process: what it prints would run into what others print
            with redirect_stdout(sys.stderr):
                _carried_out(outcome, carry_out, lambda outcome, stage: None)

    try:
        _launch(job, for_hydra(rewrite(overrides)), config_dir, multirun=multirun)
    except Exception as error:
        if isinstance(error, KerncfgError) or sweep is None or not _SWEEPS:
            raise
        raise _stopped(error, outcomes or _elsewhere(sweep, show), total) from error
    return outcomes or (_elsewhere(sweep, show) if sweep else [])


def _check_each(asked: Sequence[Sequence[str]], config_dir: Path | None) -> dict[str, str]:
    """Return the commits of what the runs take from the Hub; refuse what is not valid in any, each fault once."""
    issues: list[Issue] = []
    shared: dict[str, str] = {}
    for words in asked:
        try:
            shared |= dict(checked(*words, config_dir=config_dir)[2].shared)
        except ConfigError as error:
            issues += error.issues
    if issues:
        raise ConfigError(dict.fromkeys(issues))
    return shared


def _launch(job: Callable[[Any], None], words: Sequence[str], config_dir: Path | None, *, multirun: bool) -> None:
    """Let Hydra run a job; it takes its arguments from the command line only, and would print among our output."""
    quiet = ["hydra/job_logging=none", "hydra/hydra_logging=none"]
    noted = [f"+hydra.callbacks.kerncfg._target_={__name__}.{SweepNoted.__name__}", "--multirun"]
    _SWEEPS.clear()
    words = [*words, *quiet, *(noted if multirun else [])]
    with arguments(words), hydra_folder(config_dir) as folder, lists_replace():
        try:
            hydra.main(config_path=str(folder), config_name="config", **version_base())(job)()
        except OSError as error:
            message = f"the run's folder cannot be written: {error.strerror}: {error.filename}"
            raise SourceError(message, hint="choose another with hydra.run.dir=FOLDER") from error


def _carried_out(outcome: Outcome, carry_out: Callable[..., None], show: Callable[[Outcome, str], None]) -> None:
    """Carry out a job; in a sweep whatever goes wrong is this job's own error, so that the others are not lost."""
    outcome.started = datetime.now(UTC).isoformat(timespec="seconds")
    outcome.environment = Environment.here()
    outcome.save()
    show(outcome, "start")
    try:
        carry_out(outcome, show=show)
    except KerncfgError as error:
        outcome.error = error
    except Exception as error:
        if outcome.sweep is None:
            raise
        file = outcome.home / "traceback.txt"
        file.write_text(traceback.format_exc(), encoding="utf-8")
        said = " ".join(str(error).split())
        outcome.error = KerncfgError(f"the job raised {type(error).__name__}: {said}", hint=f"all of it is in {file}")
    outcome.finished = True
    outcome.save()
    write(page(outcome), outcome.home / "report.html")
    show(outcome, "end")


def _stopped(error: Exception, outcomes: Sequence[Outcome], total: int | None) -> SourceError:
    """Return the error of a sweep that its launcher could not end, as where one of its processes is killed."""
    ended = sum(outcome.finished for outcome in outcomes)
    said = " ".join(str(error).split())
    of = f" of {total}" if total else ""
    hint = f"what ended is kept: kerncfg compare {outcomes[0].home.parent}" if outcomes else None
    return SourceError(f"the launcher raised {type(error).__name__}: {said}; {ended}{of} jobs had ended", hint=hint)


def _elsewhere(sweep: str, show: Callable[[Outcome, str], None]) -> list[Outcome]:
    """Return what the jobs of a sweep did that ran in other processes, from their folders, and show it in order."""
    place = _SWEEPS.pop()
    if not any(place.rglob("outcome.json")):
        return []
    found = [outcome for outcome in map(read, folders(place)) if outcome.sweep == sweep]
    for outcome in sorted(found, key=lambda outcome: outcome.number):
        show(outcome, "start")
        for stage in STAGES:
            if getattr(outcome, stage) is not None:
                show(outcome, stage)
        show(outcome, "end")
    return sorted(found, key=lambda outcome: outcome.number)


def perform(
    outcome: Outcome,
    *,
    config_dir: Path | None,
    trust: Sequence[str],
    lock: Lock | None,
    show: Callable[[Outcome, str], None] = lambda outcome, stage: None,
    stages: Sequence[str] = STAGES,
    shared: Mapping[str, str] | None = None,
) -> None:
    """Carry out one job and fill its outcome; each document is written as soon as it is there.

    `stages` says which of `verification` and `measurement` it goes through, `shared` at which commits the places on the
    Hub are that its files come from.

    Raises:
        TrustError: A fetched row names code that nobody here consented to; nothing of it was run.
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
            write_json(outcome.folder / f"{stage}.json", result.to_dict())
        show(outcome, stage)
        return result

    started = time.perf_counter()
    remember(shared or {})
    asked, data, origins = checked(*outcome.overrides, config_dir=config_dir)
    if outcome.folder is not None:
        text = "\n".join(document_lines(data, origins)) + "\n"
        (outcome.folder / "config.yaml").write_text(text, encoding="utf-8")
    target = detect(data["target"])
    plan = keep("plan", plan_of(asked, target, origins=origins, trust=trust, lock=lock))
    _check_consent(plan, outcome)
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
            measured = keep("measurement", bench(bindings, loaded.inputs))
            if outcome.folder is not None:
                draw(measured, outcome.folder)
    verified = outcome.verification
    if verified is not None and not verified.passed and policy["on_fail"] == "error":
        raise unverified(verified)


def _check_consent(plan: Plan, outcome: Outcome) -> None:
    """Ask, by refusing, whether code may run that a fetched row names."""
    places = {
        row: place
        for step in plan.steps
        for found in step.modes.values()
        for rejection in found.rejected
        if step.own and (place := unconsented(rejection, plan.trust))
        for row in [f"{step.title}, said at {rejection.origin}"]
    }
    if not places:
        return
    options = [word for place in dict.fromkeys(places.values()) for word in ("--trust", place)]
    typed = shlex.join([*outcome.command[:2], *options, *outcome.command[2:]]) if outcome.command else None
    code = ", ".join(dict.fromkeys(places.values()))
    message = f"{'; '.join(places)}: would run code of {code}, and a fetched file is no consent to that"
    raise TrustError(message, hint=f"if you trust it, type {typed or ' '.join(options)}")


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
