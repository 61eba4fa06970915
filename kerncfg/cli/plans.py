"""`kerncfg plan`, `explain` and `diff`: what a target would run, why, and what another would do."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import click

from kerncfg.cli import completing
from kerncfg.cli.words import PLACE, as_data, asking, data, is_override, locking, overrides_in, see, trusting

if TYPE_CHECKING:
    from pathlib import Path

    from kerncfg.documents.step import Step

__all__ = ["diff", "explain", "plan"]


@click.command()
@asking(completing.words())
@trusting
@locking
@click.option("-o", "--output", type=PLACE, help="Also write the plan to this file.")
@click.option("--all", "every", is_flag=True, help="Also list the inherited names that keep the original.")
def plan(
    words: tuple[str, ...],
    config_dir: Path | None,
    as_json: bool,
    trust: tuple[str, ...],
    lock: Path | None,
    output: Path | None,
    every: bool,
) -> None:
    """Decide what each name runs on a target; no model is touched."""
    from kerncfg import api
    from kerncfg.cli.tables import print_plan
    from kerncfg.errors import ConfigError

    made = api.plan(*overrides_in(words), config_dir=config_dir, trust=trust, lock=lock)
    if output:
        try:
            made.save(output)
        except OSError as error:
            raise ConfigError(f"{output} cannot be written: {error.strerror}") from error
    if as_json:
        data(made.to_dict())
    else:
        print_plan(made, every=every)
        if output:
            click.echo(f"written to {output}", err=True)


@click.command()
@asking(completing.words(names=True), "NAME [OVERRIDES]...")
@trusting
@locking
def explain(
    words: tuple[str, ...], config_dir: Path | None, as_json: bool, trust: tuple[str, ...], lock: Path | None
) -> None:
    """Say what one name runs in each mode, and why nothing else."""
    from kerncfg import api
    from kerncfg.errors import ConfigError

    names = [word for word in words if not is_override(word)]
    if len(names) != 1:
        found = f"{len(names)} names: {', '.join(names)}" if names else "no name"
        raise ConfigError(f"explain needs one name, found {found}", hint="write kerncfg explain NAME key=value …")
    overrides = [word for word in words if is_override(word)]
    explanation = api.plan(*overrides, config_dir=config_dir, trust=trust, lock=lock).explain(names[0])
    if as_json:
        data(explanation.to_dict())
    else:
        sections = see(_against(explanation.step))
        click.echo("\n".join([str(explanation), *(["", *sections] if sections else [])]))


def _against(step: Step) -> Iterator[str]:
    """Yield every reason of a step but those of its kernels."""
    for found in step.modes.values():
        yield from (choice.reason for choice in found.choices if choice.original)
        yield from (entry.reason for entry in (*found.rejected, *found.unreached))


@click.command()
@click.argument("files", nargs=-1, metavar="PLAN PLAN", type=PLACE)
@as_data
def diff(files: tuple[Path, ...], as_json: bool) -> int:
    """Compare two plan files.

    Prints what the second would do differently. The exit code is 1 if it would.
    """
    from kerncfg import api
    from kerncfg.errors import ConfigError

    if len(files) != 2:
        hint = "write kerncfg diff BEFORE.json AFTER.json; plans are written by `kerncfg plan -o FILE`"
        raise ConfigError(f"diff needs two plan files, found {len(files)}", hint=hint)
    before, after = (api.load_plan(file) for file in files)
    difference = before.diff(after)
    if as_json:
        data(difference.to_dict())
    else:
        click.echo(str(difference))
    return 1 if difference else 0
