"""The main job as a Hydra application: once, or once for each combination of a sweep.

Everything that can be refused is refused before Hydra starts a job: each combination of a sweep is composed and
validated first. Hydra then makes the folders, the records of config and overrides, and the launches.
"""

from __future__ import annotations

import os
import sys
import traceback
from collections.abc import Callable, Sequence
from contextlib import redirect_stdout
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Any
from uuid import uuid4

import hydra
from hydra.core.hydra_config import HydraConfig
from hydra.experimental.callback import Callback

from kerncfg.api import checked
from kerncfg.compiler.compose import hydra_folder, job_overrides, version_base
from kerncfg.compiler.loading import lists_replace
from kerncfg.compiler.overrides import rewrite
from kerncfg.compiler.shared import from_file, pinned
from kerncfg.compiler.sweeps import combinations
from kerncfg.errors import ConfigError, Issue, KerncfgError, SourceError
from kerncfg.launching import arguments, as_typed, for_hydra
from kerncfg.locking import usual
from kerncfg.outcome import STAGES, Environment, Outcome, command, folders, read
from kerncfg.page.report import page, write

__all__ = ["STAGES", "Outcome", "run"]

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

    def job(_: Any) -> None:
        from kerncfg.job import perform  # torch: not before what was asked is known to be valid

        carry_out = partial(perform, config_dir=config_dir, trust=trust, lock=found, shared=shared)
        settings = HydraConfig.get()
        words = as_typed(job_overrides(settings), overrides)
        outcome = Outcome(
            folder=Path(settings.runtime.output_dir),
            overrides=words,
            swept=[word for word in words if word not in overrides],
            number=settings.job.num + 1 if multirun else 1,
            total=total,
            command=again([*from_file(settings, words, shared), *(pinned(word, shared) for word in words)]),
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
    except BaseException as error:
        # The end of the process that a model or a kernel asks for is this job's, too; a person's Ctrl-C is all jobs'.
        if isinstance(error, KeyboardInterrupt) or (outcome.sweep is None and isinstance(error, Exception)):
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
