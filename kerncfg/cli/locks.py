"""`kerncfg lock` and `fetch`: what the Hub says, written down, and its files, brought here ahead of time."""

from __future__ import annotations

import shlex
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

import click

from kerncfg.cli import completing
from kerncfg.cli.words import PLACE, as_data, asking, data, overrides_in, trusting
from kerncfg.terminal import one_line

if TYPE_CHECKING:
    from pathlib import Path

    from kerncfg.documents.lock import Lock, Pin
    from kerncfg.documents.plan import Kernel

__all__ = ["fetch", "lock"]


@click.command()
@asking(completing.words())
@trusting
@click.option("--lock", "file", type=PLACE, help="The lock's file, by default kerncfg.lock.")
@click.option("--from", "foreign", type=PLACE, help="Start from this lock, or kernels.lock.")
@click.option("--check", is_flag=True, help="Only say what moved: exit 1 if something did, 3 if not all is known.")
@click.option("--upgrade", multiple=True, metavar="NAME", help="Ask anew about a row or a repository. Repeat for more.")
def lock(
    words: tuple[str, ...],
    config_dir: Path | None,
    as_json: bool,
    trust: tuple[str, ...],
    file: Path | None,
    foreign: Path | None,
    check: bool,
    upgrade: tuple[str, ...],
) -> int:
    """Write down what every Hub kernel is at, for all targets.

    That is its commit and its builds, with the digest of every file. What the lock holds already stays as it is, but
    for what --upgrade names.
    """
    from pathlib import Path

    from kerncfg import api, locking
    from kerncfg.documents.lock import Lock
    from kerncfg.errors import ConfigError, LockError

    if check and upgrade:
        hint = "leave one of them away; --check asks about everything"
        raise ConfigError(f"--check writes nothing, and --upgrade {' '.join(upgrade)} is to be written", hint=hint)
    place = file or Path(locking.FILE)
    if check and not foreign and not place.exists():
        said = [f"--{name}={value}" for name, value in (("config-dir", config_dir), ("lock", file)) if value]
        line = shlex.join(["kerncfg", "lock", *words, *said, *(f"--trust={name}" for name in trust)])
        raise LockError(f"there is no {place}, needed the lock to check", hint=f"write it first: {line}")
    before = locking.read(foreign or place) if foreign or place.exists() else Lock()
    kept = Lock() if check else before
    overrides = overrides_in(words)
    now = api.lock(*overrides, config_dir=config_dir, trust=trust, previous=kept, upgrade=upgrade)
    moved = list(before.moved(now)) if check or before.pins else []
    unchecked = list(before.unchecked(now))
    if not check:
        try:
            now.save(place)
        except OSError as error:
            raise ConfigError(f"{place} cannot be written: {error.strerror}") from error
    if as_json:
        unheard = {str(pin.ref): pin.reason or pin.note for pin in unchecked}
        data(now.to_dict() if not check else {"moved": moved, "unchecked": unheard})
    elif check:
        _print_check(moved, unchecked, place)
    else:
        _print(now, moved, place)
    if check:
        return 1 if moved else 3 if unchecked else 0
    return 3 if any(pin.away and not pin.releases for pin in now.hub()) else 0


def _print_check(moved: list[str], unchecked: list[Pin], place: Path) -> None:
    for line in moved:
        click.echo(one_line(line))
    for pin in unchecked:
        click.echo(one_line(f"not checked: {pin.ref}: {pin.reason or pin.note}"))
    more = f", {len(unchecked)} not checked" if unchecked else ""
    click.echo(f"{place}: {len(moved) if moved else 'nothing'} moved{more}", err=True)


def _print(now: Lock, moved: list[str], place: Path) -> None:
    for line in moved:
        click.echo(one_line(line))
    for pin in now.hub():
        if pin.reason or pin.note:
            click.echo(one_line(f"{'not pinned' if pin.reason else 'pinned'}: {pin.ref}: {pin.reason or pin.note}"))
    pinned = sum(1 for pin in now.hub() if pin.releases)
    unpinned = sum(1 for pin in now.hub() if not pin.releases)
    nothing = "" if pinned or unpinned else "; nothing to pin: no row names a kernel of the Hub"
    click.echo(f"written to {place}: {pinned} pinned, {unpinned} not{nothing}", err=True)


@click.command()
@click.argument("plan", type=PLACE)
@trusting
@as_data
@click.option("--dry-run", is_flag=True, help="Only say what would be fetched.")
def fetch(plan: Path, trust: tuple[str, ...], as_json: bool, dry_run: bool) -> int:
    """Bring the kernels of a plan file to this machine.

    Applying the plan then asks the Hub for nothing.
    """
    from kerncfg import api

    made = api.load_plan(plan, trust=trust)
    kernels = sorted((kernel for kernel in made.kernels() if kernel.files), key=lambda each: str(each.reference))
    total = sum(file.size for kernel in kernels for file in kernel.files)
    with _progress(total if sys.stderr.isatty() and not dry_run else 0) as told:
        failed = api.fetch(made, dry_run=dry_run, progress=told)
    kernels = list({(each.place, each.commit, each.variant): each for each in kernels}.values())
    rows = [
        {
            "reference": str(kernel.reference),
            "commit": kernel.commit,
            "variant": kernel.variant,
            "files": len(kernel.files),
            "bytes": sum(file.size for file in kernel.files),
            "reason": failed.get(kernel),
        }
        for kernel in kernels
    ]
    if as_json:
        data({"dry_run": dry_run, "kernels": rows})
    else:
        word = "would fetch" if dry_run else "fetched"
        for row in rows:
            what = f"{row['reference']} at {str(row['commit'])[:12]}, {row['variant']}"
            size = f"{row['files']} files, {row['bytes']} bytes"
            said = f"failed: {what}: {row['reason']}" if row["reason"] else f"{word} {what}: {size}"
            click.echo(one_line(said))
        if not rows:
            click.echo("the plan names no kernel that is to be fetched")
    return 3 if failed else 0


@contextmanager
def _progress(total: int) -> Iterator[Callable[[Kernel, int], None]]:
    """Show a bar on a terminal's standard error; nothing elsewhere, or where there is nothing to fetch."""
    if not total:
        yield lambda kernel, size: None
        return
    from rich.console import Console
    from rich.progress import Progress

    with Progress(console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task("fetching", total=total)
        yield lambda kernel, size: bar.advance(task, size)
