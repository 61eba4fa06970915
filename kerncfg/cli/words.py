"""The options and words that commands share."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any

import click

if TYPE_CHECKING:
    from pathlib import Path

    from kerncfg.cli.completing import Complete
    from kerncfg.errors import Issue, KerncfgError

__all__ = [
    "PLACE",
    "as_data",
    "asking",
    "code",
    "data",
    "is_override",
    "locking",
    "overrides_in",
    "see",
    "told",
    "trusting",
]

Command = Callable[..., Any]


class _Place(click.Path):
    """A file or folder; a name that is empty would mean the working directory."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        from pathlib import Path  # not before a command needs it: a tenth of --help

        from kerncfg.errors import ConfigError

        if value == "":
            what = param.opts[0] if isinstance(param, click.Option) else "an argument"
            raise ConfigError(f"{what} is empty, expected the name of a file or folder")
        found = super().convert(value, param, ctx)
        return found if found is None else Path(os.fsdecode(found))


PLACE = _Place()

as_data = click.option("--json", "as_json", is_flag=True, help="Print data instead of tables.")


def asking(complete: Complete, metavar: str = "[OVERRIDES]...") -> Callable[[Command], Command]:
    """Give a command the words and options with which a configuration is asked for."""

    def decorated(function: Command) -> Command:
        for decorate in (
            click.argument("words", nargs=-1, metavar=metavar, shell_complete=complete),
            click.option(
                "--config-dir",
                multiple=True,
                callback=_only,
                type=PLACE,
                help="A folder of your own groups; its files go before the packaged ones.",
            ),
            as_data,
        ):
            function = decorate(function)
        return function

    return decorated


def _only(ctx: click.Context, option: click.Parameter, folders: tuple[Path, ...]) -> Path | None:
    from kerncfg.errors import ConfigError

    if len(folders) > 1:
        found = " and ".join(map(str, folders))
        raise ConfigError(f"--config-dir is given {len(folders)} times: {found}", hint="keep one of them")
    return next(iter(folders), None)


trusting = click.option(
    "--trust",
    multiple=True,
    metavar="NAME",
    help="Whose code may run: ORG, ORG/REPO[@REVISION], a folder or python:MODULE. Repeat for more.",
)


locking = click.option(
    "--lock",
    type=PLACE,
    help="The lock to plan from; by default kerncfg.lock here, if there is one.",
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


def told(error: KerncfgError | Issue) -> str:
    """Return an error or fault as it is printed: with its hint, and the section of the docs about it."""
    from kerncfg.terminal import shown

    parts: Iterable[KerncfgError | Issue] = getattr(error, "issues", (error,))
    return shown("\n".join("\n".join([str(part), *(f"  {line}" for line in see(_messages(part)))]) for part in parts))


def _messages(error: KerncfgError | Issue) -> list[str]:
    """Return what an error says: one that gathers reasons says each of them."""
    reasons: dict[str, list[str]] = getattr(error, "reasons", {})
    return [reason for found in reasons.values() for reason in found] or [error.message]


def see(messages: Iterable[str]) -> list[str]:
    """Return a line for each section of the docs that is about some of the messages."""
    from kerncfg.anchors import PAGE, anchor_of
    from kerncfg.locations import shipped

    page = shipped(PAGE) or PAGE
    found = dict.fromkeys(map(anchor_of, messages))
    return [f"see: {page}#{anchor}" for anchor in found if anchor]


def data(value: Any) -> None:
    """Print data as JSON on standard output."""
    import json

    from kerncfg.terminal import in_json

    click.echo(in_json(json.dumps(value, indent=2, sort_keys=True, ensure_ascii=False, default=str)))
