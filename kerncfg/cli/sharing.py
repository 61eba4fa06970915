"""`kerncfg push` and `pull`: experiments to the Hub, and from it."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

import click

from kerncfg.cli import completing
from kerncfg.cli.words import PLACE, as_data, asking, data, locking, overrides_in, trusting
from kerncfg.terminal import one_line

if TYPE_CHECKING:
    from pathlib import Path

    from kerncfg.sharing.push import Parcel

__all__ = ["pull", "push"]


@click.command()
@asking(completing.words(files=True, experiments=True), "DIR|EXPERIMENT ORG/REPO [OVERRIDES]...")
@trusting
@locking
@click.option("--name", help="What others call the experiment; by default its name, or the repository's.")
@click.option("--private", is_flag=True, help="Make the repository, if it is not there, a private one.")
@click.option("--dry-run", is_flag=True, help="Only say what would leave this machine.")
@click.option("--yes", is_flag=True, help="Send without asking.")
def push(
    words: tuple[str, ...],
    config_dir: Path | None,
    as_json: bool,
    trust: tuple[str, ...],
    lock: Path | None,
    name: str | None,
    private: bool,
    dry_run: bool,
    yes: bool,
) -> int:
    """Publish a run's folder, or an experiment, on the Hub.

    Sends the configuration, the lock, the plan, what was verified and measured, and a card. Says first what leaves this
    machine, and asks.
    """
    from kerncfg.errors import ConfigError
    from kerncfg.sharing.push import STAYS, packed, sent

    if len(words) < 2 or any("=" in word for word in words[:2]):
        found = " ".join(words) or "nothing"
        message = f"push needs a run's folder or an experiment, and a repository; found {found}"
        raise ConfigError(message, hint="write kerncfg push outputs/DAY/TIME org/repo")
    what, repository, *overrides = words
    said = overrides_in(tuple(overrides))
    parcel = packed(what, repository, *said, config_dir=config_dir, name=name, trust=trust, lock=lock)
    click.echo(f"to {parcel.address}{', private if it is new' if private else ''}:", err=as_json)
    for path, content in parcel.files.items():
        click.echo(one_line(f"  {path}  {len(content)} bytes"), err=as_json)
    click.echo(f"stays here: {STAYS}", err=as_json)
    if not dry_run:
        _ask(yes)
        parcel = sent(parcel, private=private)
    if as_json:
        data({"dry_run": dry_run, **parcel.to_dict()})
    else:
        _tell(parcel)
    return 0


def _ask(yes: bool) -> None:
    """Ask for consent on a terminal; elsewhere only `--yes` is one."""
    from kerncfg.errors import ConfigError

    if yes:
        return
    if sys.stdin.isatty() and sys.stderr.isatty():
        if click.confirm("Send these files?", err=True):
            return
        raise ConfigError("nothing was sent: you said no", hint="nothing of it left this machine")
    raise ConfigError("nothing was sent: nobody said yes", hint="read the list, and type it again with --yes")


def _tell(parcel: Parcel) -> None:
    if parcel.commit is None:
        click.echo("nothing was sent: --dry-run", err=True)
        return
    click.echo(f"sent: commit {parcel.commit}")
    click.echo(f"run it: {parcel.command}", err=True)


@click.command()
@click.argument("repository", metavar="ORG/REPO[@REVISION]")
@click.argument("folder", required=False, type=PLACE, metavar="[DIR]")
@click.option("--force", is_flag=True, help="Write over files that are there.")
@click.option("--dry-run", is_flag=True, help="Only say what would be written.")
@as_data
def pull(repository: str, folder: Path | None, force: bool, dry_run: bool, as_json: bool) -> int:
    """Fetch a shared experiment from the Hub into a folder.

    Nothing of it is run, and nothing of it grants trust.
    """
    from kerncfg.sharing.pull import pull as fetched

    found = fetched(repository, folder, force=force, dry_run=dry_run)
    if as_json:
        data({"dry_run": dry_run, **found.to_dict()})
        return 0
    word = "would write" if dry_run else "wrote"
    for path, size in found.files.items():
        click.echo(one_line(f"{word} {found.folder / path}  {size} bytes"))
    click.echo(f"from {found.address} at commit {found.commit}")
    lock = f" --lock {found.folder / 'kerncfg.lock'}" if "kerncfg.lock" in found.files else ""
    for name in found.experiments:
        click.echo(f"run it: kerncfg run --config-dir {found.folder}{lock} experiment={name}", err=True)
    return 0
