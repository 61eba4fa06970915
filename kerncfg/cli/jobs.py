"""`kerncfg run`: the main job, and sweeps of it; `verify` and `bench`: one half of it, without a folder."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import nullcontext, redirect_stdout
from pathlib import Path
from typing import TYPE_CHECKING

import click

from kerncfg.cli import completing
from kerncfg.cli.words import asking, code, data, locking, overrides_in, told, trusting

if TYPE_CHECKING:
    from kerncfg.run import Outcome

__all__ = ["bench", "run", "verify"]

_FEW = 3  # rows with one reason that a line names


@click.command()
@asking(completing.words())
@trusting
@locking
@click.option("-m", "--multirun", is_flag=True, help="Sweep: run once for each combination of a=1,2 b=3,4.")
def run(
    words: tuple[str, ...],
    config_dir: Path | None,
    as_json: bool,
    trust: tuple[str, ...],
    lock: Path | None,
    multirun: bool,
) -> int:
    """Build a model, apply the plan, verify and measure.

    Prints the plan, what happened at each site of the model, how each kernel compares with the original, and how fast
    both are. All of it is kept in a folder of the run.
    """
    from kerncfg import run as job
    from kerncfg.cli.tables import print_stage, print_sweep

    def show(outcome: Outcome, stage: str) -> None:
        if stage == "start":
            if multirun:
                click.echo(_heading(outcome), err=as_json)
        elif stage == "end":
            if outcome.error is not None:
                click.echo(f"error: {told(outcome.error)}", err=True)
            for line in (*_idle(outcome), f"{'passed' if outcome.passed else 'failed'}: {outcome.folder}"):
                click.echo(line, err=as_json)
        elif not as_json:
            print_stage(outcome, stage)

    # What a kernel or a model prints is no part of the data.
    with redirect_stdout(sys.stderr) if as_json else nullcontext():
        outcomes = job.run(
            overrides_in(words), config_dir=config_dir, multirun=multirun, trust=trust, lock=lock, show=show
        )
    if as_json:
        data({"runs": [outcome.to_dict() for outcome in outcomes]})
    elif multirun:
        print_sweep(outcomes)
    codes = [0 if outcome.passed else 1 if outcome.error is None else code(outcome.error) for outcome in outcomes]
    return max(codes, default=0)


@click.command()
@asking(completing.words())
@trusting
@locking
def verify(
    words: tuple[str, ...], config_dir: Path | None, as_json: bool, trust: tuple[str, ...], lock: Path | None
) -> int:
    """Compare each swapped kernel, and the whole model, with the original.

    Builds the model and applies the plan. Exits with 1 where a kernel computes something else.
    """
    return _checked("verification", words, config_dir, as_json, trust, lock)


@click.command()
@asking(completing.words())
@trusting
@locking
def bench(
    words: tuple[str, ...], config_dir: Path | None, as_json: bool, trust: tuple[str, ...], lock: Path | None
) -> int:
    """Measure each swapped kernel, and the whole model, against the original.

    Builds the model and applies the plan. Exits with 1 where something cannot be measured.
    """
    return _checked("measurement", words, config_dir, as_json, trust, lock)


def _checked(
    stage: str,
    words: tuple[str, ...],
    config_dir: Path | None,
    as_json: bool,
    trust: tuple[str, ...],
    lock: Path | None,
) -> int:
    from kerncfg import run as job

    with redirect_stdout(sys.stderr) if as_json else nullcontext():
        outcome = job.check(overrides_in(words), stage, config_dir=config_dir, trust=trust, lock=lock)
    found = getattr(outcome, stage)
    if as_json:
        data(found.to_dict())
    else:
        click.echo(str(found))
        for line in _idle(outcome):
            click.echo(line, err=True)
    if outcome.error is not None:
        click.echo(f"error: {told(outcome.error)}", err=True)
    return 0 if found.passed else 1


def _heading(outcome: Outcome) -> str:
    lead = "\n" if outcome.number > 1 else ""
    of = f" of {outcome.total}" if outcome.total else ""
    return f"{lead}run {outcome.number}{of}: {' '.join(outcome.swept)}"


def _idle(outcome: Outcome) -> Iterator[str]:
    """Yield a line for each reason why rows of the user's swapped nothing."""
    idle = outcome.report.idle if outcome.report else {}
    for reason in dict.fromkeys(idle.values()):
        rows = [row for row, why in idle.items() if why == reason]
        more = f" and {len(rows) - _FEW} more" if len(rows) > _FEW else ""
        yield f"nothing swapped: {', '.join(rows[:_FEW])}{more}: {reason}"
