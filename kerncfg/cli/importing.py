"""`kerncfg import`: files of other tools as YAML."""

from __future__ import annotations

import click

from kerncfg.cli.words import as_data, data, told

__all__ = ["import_"]


@click.command("import")
@click.argument("files", nargs=-1, metavar="FILE...", type=click.Path())
@as_data
def import_(files: tuple[str, ...], as_json: bool) -> None:
    """Turn files of other tools into one experiment file.

    Reads Python sources with a KernelConfig, a mapping of `kernels` or calls of Liger (train.py, or train.py:12 for one
    place of several; nothing of it is run), kernels.lock, training arguments in YAML or JSON, and LOCAL_KERNELS=VALUE.
    The file goes to standard output, what has no equivalent to standard error.
    """
    from kerncfg.dialects.files import translate

    found = translate(*files)
    if as_json:
        data(found.to_dict())
    else:
        click.echo("\n".join(found.lines()))
    for remark in found.remarks:
        click.echo(f"note: {told(remark)}", err=True)
