"""The verbs composed for a shell; every command is the call you would write in Python, and a table."""

from __future__ import annotations

import sys
from collections.abc import Sequence

import click

from kerncfg.cli.configs import schema, show, validate
from kerncfg.cli.jobs import run
from kerncfg.cli.plans import plan

__all__ = ["main", "program"]


@click.group(context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(package_name="kerncfg")
def program() -> None:
    """Decide from YAML which kernel each layer of a PyTorch model runs.

    Commands take Hydra overrides: groups (kernels=bundled target=h100), values
    (kernels.RMSNorm.cpu=builtin:RMSNorm) and removals (~kernels.RMSNorm). Options and overrides come in any order.

    Exit codes: 0 fine, 1 findings, 2 unknown option or command, 3 environment or network.
    """


for command in (plan, run, show, validate, schema):
    program.add_command(command)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line and return its exit code; a user's mistake never ends in a traceback."""
    from kerncfg.errors import KerncfgError, SourceError

    try:
        result = program.main(arguments, prog_name="kerncfg", standalone_mode=False)
    except click.exceptions.Exit as done:
        return done.exit_code
    except click.Abort:
        print("interrupted", file=sys.stderr)  # noqa: T201 - the command line's own output
        return 130
    except click.ClickException as error:
        error.show()
        return error.exit_code
    except KerncfgError as error:
        print(f"error: {error}", file=sys.stderr)  # noqa: T201
        return 3 if isinstance(error, SourceError) else 1
    except BrokenPipeError:
        return 0
    return result if isinstance(result, int) else 0
