"""The options and words that commands share."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

if TYPE_CHECKING:
    from kerncfg.cli.completing import Complete
    from kerncfg.errors import KerncfgError

__all__ = ["as_data", "asking", "code", "data", "is_override", "overrides_in", "trusting"]

Command = Callable[..., Any]

as_data = click.option("--json", "as_json", is_flag=True, help="Print data instead of tables.")


def asking(complete: Complete, metavar: str = "[OVERRIDES]...") -> Callable[[Command], Command]:
    """Give a command the words and options with which a configuration is asked for."""

    def decorated(function: Command) -> Command:
        for decorate in (
            click.argument("words", nargs=-1, metavar=metavar, shell_complete=complete),
            click.option(
                "--config-dir",
                type=click.Path(path_type=Path),
                help="A folder of your own groups; its files go before the packaged ones.",
            ),
            as_data,
        ):
            function = decorate(function)
        return function

    return decorated


trusting = click.option(
    "--trust",
    multiple=True,
    metavar="NAME",
    help="Whose code may run: ORG, ORG/REPO, a folder or python:MODULE. Repeat for more.",
)


def overrides_in(words: tuple[str, ...]) -> list[str]:
    """Return the words if each is an override.

    Raises:
        ConfigError: A word is neither `key=value` nor `~key`.
    """
    from kerncfg.errors import ConfigError, Issue

    strange = [word for word in words if not is_override(word)]
    if strange:
        hint = "an override has the form key=value or ~key"
        raise ConfigError([Issue(message=f"{word!r} is no override", hint=hint) for word in strange])
    return list(words)


def is_override(word: str) -> bool:
    """Say whether a word is an override; anything else is a file."""
    return "=" in word or word.startswith("~")


def code(error: KerncfgError) -> int:
    """Return the exit code of an error: 3 where a place could not be read, 1 where what was found is wrong."""
    from kerncfg.errors import IntegrityError, SourceError

    return 3 if isinstance(error, SourceError) and not isinstance(error, IntegrityError) else 1


def data(value: Any) -> None:
    """Print data as JSON on standard output."""
    click.echo(json.dumps(value, indent=2, sort_keys=True, ensure_ascii=False, default=str))
