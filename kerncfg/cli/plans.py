"""`kerncfg plan`: what a target would run, and why."""

from __future__ import annotations

from pathlib import Path

import click

from kerncfg.cli.words import asking, data, overrides_in, trusting

__all__ = ["plan"]


@click.command()
@asking
@trusting
@click.option("-o", "--output", type=click.Path(path_type=Path), help="Also write the plan to this file.")
def plan(
    words: tuple[str, ...], config_dir: Path | None, as_json: bool, trust: tuple[str, ...], output: Path | None
) -> None:
    """Decide what each name would run on a target, and why nothing else; no model is touched."""
    from kerncfg import api
    from kerncfg.cli.tables import print_plan
    from kerncfg.errors import ConfigError

    made = api.plan(*overrides_in(words), config_dir=config_dir, trust=trust)
    if output:
        try:
            made.save(output)
        except OSError as error:
            raise ConfigError(f"{output} cannot be written: {error.strerror}") from error
    if as_json:
        data(made.to_dict())
    else:
        print_plan(made)
        if output:
            click.echo(f"written to {output}", err=True)
