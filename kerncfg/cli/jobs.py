"""`kerncfg run`: the main job, and sweeps of it."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from kerncfg.cli import completing
from kerncfg.cli.words import asking, code, data, overrides_in, trusting

if TYPE_CHECKING:
    from kerncfg.run import Outcome

__all__ = ["run"]


@click.command()
@asking(completing.words())
@trusting
@click.option("-m", "--multirun", is_flag=True, help="Sweep: run once for each combination of a=1,2 b=3,4.")
def run(words: tuple[str, ...], config_dir: Path | None, as_json: bool, trust: tuple[str, ...], multirun: bool) -> int:
    """Build the model, apply the plan, verify and measure each kernel, and keep it all in a run folder."""
    from kerncfg import run as job
    from kerncfg.cli.tables import print_stage

    def show(outcome: Outcome, stage: str) -> None:
        if not as_json:
            print_stage(outcome, stage)

    outcomes = job.run(overrides_in(words), config_dir=config_dir, multirun=multirun, trust=trust, show=show)
    if as_json:
        found = [outcome.to_dict() for outcome in outcomes]
        data(found if multirun else found[0])
    for outcome in outcomes:
        if outcome.error is not None:
            click.echo(f"error: {outcome.error}", err=True)
        click.echo(f"{'passed' if outcome.passed else 'failed'}: {outcome.folder}", err=as_json)
    codes = [0 if outcome.passed else 1 if outcome.error is None else code(outcome.error) for outcome in outcomes]
    return max(codes, default=0)
