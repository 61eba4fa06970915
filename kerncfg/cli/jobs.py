"""`kerncfg run`, and its sweeps; `verify` and `bench`: one half of it; `report` and `compare`: pages about runs."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping
from contextlib import nullcontext, redirect_stdout
from functools import partial
from typing import TYPE_CHECKING

import click

from kerncfg.cli import completing
from kerncfg.cli.words import PLACE, as_data, asking, code, data, locking, overrides_in, told, trusting
from kerncfg.terminal import one_line

if TYPE_CHECKING:
    from pathlib import Path

    from kerncfg.run import Outcome

__all__ = ["bench", "compare", "report", "run", "verify"]

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
    from kerncfg.cli.tables import print_stage, print_sweep, shown
    from kerncfg.run import run as main_job

    def show(outcome: Outcome, stage: str) -> None:
        if stage == "start":
            if multirun:
                click.echo(_heading(outcome), err=as_json)
        elif stage == "end":
            if outcome.error is not None:
                click.echo(f"error: {told(outcome.error)}", err=True)
            page = (f"page: {outcome.page}",) if outcome.page else ()
            warnings = _nothing(outcome.unswapped, "passed, but " if outcome.passed else "")
            warned = [click.style(line, fg="yellow") if outcome.passed else line for line in warnings]
            end = f"{'passed' if outcome.passed else 'failed'}: {outcome.folder}"
            for line in (*page, *warned, *_nothing(_idle(outcome)), end):
                click.echo(line, err=as_json)
        else:
            if not as_json:
                print_stage(outcome, stage)
            _ahead(outcome, stage)

    # What a kernel or a model prints is no part of the data.
    with redirect_stdout(sys.stderr) if as_json else nullcontext():
        outcomes = main_job(
            overrides_in(words), config_dir=config_dir, multirun=multirun, trust=trust, lock=lock, show=show
        )
    if as_json:
        data({"runs": [outcome.to_dict() for outcome in outcomes]})
    elif multirun:
        print_sweep(outcomes)
        if len({outcome.home.parent for outcome in outcomes}) == 1:
            click.echo(f"next to each other: kerncfg compare {shown(outcomes[0].home.parent)}", err=True)
    codes = [0 if outcome.passed else 1 if outcome.error is None else code(outcome.error) for outcome in outcomes]
    return max(codes, default=0)


@click.command()
@asking(completing.words())
@trusting
@locking
def verify(
    words: tuple[str, ...], config_dir: Path | None, as_json: bool, trust: tuple[str, ...], lock: Path | None
) -> int:
    """Compare each swapped kernel with what it replaces.

    Builds the model, applies the plan, and compares the whole model too. Exits with 1 where a kernel does not pass, or
    a row of yours that names one for this device swaps nothing.
    """
    return _checked("verification", words, config_dir, as_json, trust, lock)


@click.command()
@asking(completing.words())
@trusting
@locking
def bench(
    words: tuple[str, ...], config_dir: Path | None, as_json: bool, trust: tuple[str, ...], lock: Path | None
) -> int:
    """Measure each swapped kernel against what it replaces.

    Builds the model, applies the plan, and measures the whole model too. Exits with 1 where something cannot be, or a
    row of yours that names a kernel for this device swaps nothing.
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
    from kerncfg.job import check

    with redirect_stdout(sys.stderr) if as_json else nullcontext():
        show = partial(_ahead, stages=(stage,))
        outcome = check(overrides_in(words), stage, config_dir=config_dir, trust=trust, lock=lock, show=show)
    found, passed = getattr(outcome, stage), _passed(outcome, stage)
    lines = [*_nothing(outcome.unswapped, "failed: "), *_nothing(_idle(outcome))]
    if as_json:
        said = found.to_dict()
        data({**said, "passed": passed, "notes": [*said["notes"], *lines]})
    else:
        click.echo(str(found))
        for line in (*_halves(outcome), *lines):
            click.echo(line, err=True)
    if outcome.error is not None:
        click.echo(f"error: {told(outcome.error)}", err=True)
    return 0 if passed else 1


def _halves(outcome: Outcome) -> Iterator[str]:
    """Yield the notes of the report on modes in which a row runs the original, so that nothing there was looked at."""
    from kerncfg.documents.target import Mode

    for note in outcome.report.notes if outcome.report else ():
        if any(f": {mode} runs the original: " in note for mode in Mode):
            yield f"note: {note}"


def _passed(outcome: Outcome, stage: str) -> bool:
    """Whether all was well that was asked for: of a row that swaps nothing nothing was looked at."""
    return bool(getattr(outcome, stage).passed) and not outcome.unswapped


def _made(output: Path, as_json: bool) -> None:
    click.echo(f"page: {output}", err=as_json)


@click.command()
@click.argument("folder", type=PLACE, metavar="DIR")
@click.option("-o", "--output", type=PLACE, help="Where the page goes; by default DIR/report.html.")
def report(folder: Path, output: Path | None) -> None:
    """Make one HTML page of a run's folder.

    The page holds what the run did, why, what it verified and how fast it was. It needs no network and no other file.
    """
    from kerncfg.page.report import report as made

    _made(made(folder, output), False)


@click.command()
@click.argument("folders", nargs=-1, type=PLACE, metavar="DIR...")
@click.option(
    "-o",
    "--output",
    type=PLACE,
    help="Where the page goes; by default compare.html in the one DIR.",
)
@as_data
def compare(folders: tuple[Path, ...], output: Path | None, as_json: bool) -> int:
    """Compare the runs of a sweep, or of several folders.

    Prints one line for each run, and makes one HTML page of all. The exit code is 1 if one of them failed.
    """
    from pathlib import Path

    from kerncfg.page.sweep import compare as made

    place = output or (folders[0] if len(folders) == 1 else Path()) / "compare.html"
    found = made(*folders, output=place)
    if as_json:
        data(found.to_dict())
    else:
        click.echo(str(found))
    _made(place, as_json)
    return 0 if found.passed else 1


def _ahead(outcome: Outcome, stage: str, stages: tuple[str, ...] = ("verification", "measurement")) -> None:
    """Say on a terminal what comes after a stage, since each takes its time."""
    swapped = outcome.report.counts["swapped"] if outcome.report else 0
    ahead = {"verification": f"verifying {swapped} swapped sites", "measurement": f"measuring {swapped} swapped sites"}
    if not sys.stderr.isatty() or (stage == "report" and outcome.verification):
        return  # a second report is of what gave way, told already
    if stage == "plan":
        click.echo("building the model …", err=True)
    elif swapped and (after := next((each for each in stages if getattr(outcome, each) is None), None)):
        click.echo(f"{ahead[after]} …", err=True)


def _heading(outcome: Outcome) -> str:
    lead = "\n" if outcome.number > 1 else ""
    of = f" of {outcome.total}" if outcome.total else ""
    return lead + one_line(f"run {outcome.number}{of}: {' '.join(outcome.swept)}")


def _idle(outcome: Outcome) -> dict[str, str]:
    """Return why rows swapped nothing that nobody could have expected to."""
    idle = outcome.report.idle if outcome.report else {}
    return {row: why for row, why in idle.items() if row not in outcome.unswapped}


def _nothing(reasons: Mapping[str, str], lead: str = "") -> Iterator[str]:
    """Yield a line for each reason why rows swapped nothing."""
    for reason in dict.fromkeys(reasons.values()):
        rows = [row for row, why in reasons.items() if why == reason]
        more = f" and {len(rows) - _FEW} more" if len(rows) > _FEW else ""
        yield one_line(f"{lead}nothing swapped: {', '.join(rows[:_FEW])}{more}: {reason}")
