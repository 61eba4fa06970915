"""`kerncfg validate`, `show` and `schema`: the configuration itself."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from kerncfg.cli import completing
from kerncfg.cli.words import as_data, asking, data, is_override, overrides_in, told

if TYPE_CHECKING:
    from pathlib import Path

__all__ = ["schema", "show", "validate"]


@click.command()
@asking(completing.words(files=True), "[FILES|OVERRIDES]...")
def validate(words: tuple[str, ...], config_dir: Path | None, as_json: bool) -> int:
    """Check the composed configuration, or files.

    Tells every fault in one run, each with its place. A word with a = or a leading ~ is an override, any other a file.
    """
    from pathlib import Path

    from kerncfg import api
    from kerncfg.compiler.checking import check_file
    from kerncfg.errors import ConfigError, Issue

    issues: list[Issue] = []
    if "" in words:
        raise ConfigError("an argument is empty, expected the name of a file or folder")
    files = [Path(word) for word in words if not is_override(word)]
    overrides = [word for word in words if is_override(word)]
    try:
        for file in files:
            issues += check_file(file)
        if overrides or not files:
            api.checked(*overrides, config_dir=config_dir)
    except ConfigError as error:
        issues += error.issues
    issues = list(dict.fromkeys(issues))
    if as_json:
        data({"valid": not issues, "issues": [issue.to_dict() for issue in issues]})
    for issue in issues:
        click.echo(f"error: {told(issue)}", err=True)
    if not issues and not as_json:
        click.echo(f"valid: {', '.join(map(str, files)) or 'the composed configuration'}")
    return 1 if issues else 0


@click.command()
@asking(completing.words())
def show(words: tuple[str, ...], config_dir: Path | None, as_json: bool) -> None:
    """Print the composed configuration, with its sources."""
    from kerncfg import api
    from kerncfg.compiler.writing import document_lines

    document, origins = api.document(*overrides_in(words), config_dir=config_dir)
    if as_json:
        data(document)
    else:
        click.echo("\n".join(document_lines(document, origins)))


@click.command()
@click.argument("name", required=False)
@as_data
def schema(name: str | None, as_json: bool) -> None:
    """Print a JSON schema, or the names of all of them."""
    from kerncfg.compiler.schema import names
    from kerncfg.compiler.schema import schema as read
    from kerncfg.errors import ConfigError

    if name is None:
        if as_json:
            data(names())
        else:
            click.echo("\n".join(names()))
    elif name in names():
        data(read(name))
    else:
        raise ConfigError(f"no schema {name!r}", hint=f"there are {', '.join(names())}")
