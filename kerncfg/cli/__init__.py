"""The verbs composed for a shell; every command is the call you would write in Python, and a table."""

from __future__ import annotations

import errno
import io
import os
import sys
import threading
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import click

from kerncfg.cli.completing import prepare
from kerncfg.cli.configs import schema, show, validate
from kerncfg.cli.importing import import_
from kerncfg.cli.jobs import bench, compare, report, run, verify
from kerncfg.cli.locks import fetch, lock
from kerncfg.cli.machines import completion, doctor
from kerncfg.cli.plans import diff, explain, plan
from kerncfg.cli.sharing import pull, push
from kerncfg.cli.words import code, told
from kerncfg.ending import Ended, end_in_time, never_ended

__all__ = ["main", "program"]


@click.group(context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(package_name="kerncfg")
@click.pass_context
def program(ctx: click.Context) -> None:
    """Decide from YAML which kernel each layer of a PyTorch model runs.

    Commands take Hydra overrides: groups (kernels=bundled target=h100), values
    (kernels.RMSNorm.cpu=builtin:RMSNorm) and removals (~kernels.RMSNorm). Options and overrides come in any order.

    Exit codes: 0 fine, 1 findings, 2 unknown option or command, 3 environment or network.
    """
    from kerncfg.errors import KerncfgWarning
    from kerncfg.variables import unread

    if ctx.invoked_subcommand != doctor.name:  # which has it among its findings
        for name, cure in unread(os.environ):
            warnings.warn(f"{name} is set, and kerncfg does not read it: {cure}", KerncfgWarning, stacklevel=1)


for command in (
    plan,
    explain,
    diff,
    lock,
    fetch,
    run,
    verify,
    bench,
    report,
    compare,
    push,
    pull,
    show,
    validate,
    import_,
    schema,
    doctor,
    completion,
):
    program.add_command(command)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line and return its exit code; a user's mistake never ends in a traceback.

    Without `arguments` it is the process's own command line, and the process ends with it, whatever still runs.
    """
    if arguments is not None:
        return _main(arguments)
    known, result = frozenset(threading.enumerate()), 1
    try:
        result = _main(None)
        return result
    finally:
        end_in_time(result, known, lambda line: click.echo(f"warning: {line}", err=True))


def _main(arguments: Sequence[str] | None) -> int:
    from kerncfg.errors import KerncfgError

    prepare()
    if sys.stdout is None:  # closed by whoever started this
        sys.stdout = Path(os.devnull).open("w", encoding="utf-8")  # noqa: SIM115 - it lives as long as the process
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):  # a name of a file may hold what the terminal cannot show
            stream.reconfigure(errors="backslashreplace")
    try:
        with _warnings_as_lines(), never_ended():
            result = program.main(arguments, prog_name="kerncfg", standalone_mode=False)
    except click.exceptions.Exit as done:
        return done.exit_code
    except (click.Abort, KeyboardInterrupt):
        print("interrupted", file=sys.stderr)  # noqa: T201 - the command line's own output
        return 130
    except click.ClickException as error:
        _meant(error, sys.argv[1:] if arguments is None else arguments).show()
        return error.exit_code
    except KerncfgError as error:
        print(f"error: {told(error)}", file=sys.stderr)  # noqa: T201
        return code(error)
    except Ended as error:
        print(f"error: {error}", file=sys.stderr)  # noqa: T201
        return 1
    except BrokenPipeError:
        return 0
    except OSError as error:
        if not _is_around(error):
            raise
        print(f"error: {error.strerror}: {_PLACES[error.errno or 0]}", file=sys.stderr)  # noqa: T201
        return 3
    return result if isinstance(result, int) else 0


# What may be missing around a command: room for what it prints, and the folder that it was started in.
_PLACES = {errno.ENOSPC: "what was to be printed", errno.ENOENT: "the working directory was removed"}


def _is_around(error: OSError) -> bool:
    if error.errno == errno.ENOSPC:
        return error.filename is None
    try:
        Path.cwd()
    except FileNotFoundError:
        return error.errno == errno.ENOENT
    return False


def _meant(error: click.ClickException, arguments: Sequence[str]) -> click.ClickException:
    """Return the error that says how an override is written, if one was written as an option."""
    from kerncfg.compiler.overrides import NODES

    option = error.option_name if isinstance(error, click.NoSuchOption) else ""
    name = option.lstrip("-")
    at = next((place for place, word in enumerate(arguments) if word.partition("=")[0] == option), None)
    if at is None or name.partition(".")[0] not in NODES or not isinstance(error, click.NoSuchOption):
        return error
    value = arguments[at].partition("=")[2] or next(iter(arguments[at + 1 :]), "NAME")
    return click.UsageError(f"{error.message}\n  hint: {name} is an override: write {name}={value}", error.ctx)


@contextmanager
def _warnings_as_lines() -> Iterator[None]:
    """Show each of our warnings as one line on standard error, without a place in the source."""
    from kerncfg.errors import KerncfgWarning
    from kerncfg.terminal import shown

    with warnings.catch_warnings():
        others = warnings.showwarning

        def show(message: Warning | str, category: type[Warning], *place: Any, **more: Any) -> None:
            if issubclass(category, KerncfgWarning):
                click.echo(shown(f"warning: {' '.join(str(message).split())}"), err=True)
            else:
                others(message, category, *place, **more)

        warnings.simplefilter("always", KerncfgWarning)
        warnings.showwarning = show
        yield
