"""`kerncfg doctor` and `completion`: this machine and its shell."""

from __future__ import annotations

import click

from kerncfg.cli.completing import SHELLS, script
from kerncfg.cli.words import as_data, data

__all__ = ["completion", "doctor"]


@click.command()
@as_data
def doctor(as_json: bool) -> int:
    """Check this machine, and say how to mend what is wrong.

    Looks at versions, device, compiler, variables and caches.
    """
    from kerncfg.cli.tables import print_diagnosis
    from kerncfg.doctor import examine
    from kerncfg.signs import gather

    diagnosis = examine(gather())
    if as_json:
        data(diagnosis.to_dict())
    else:
        print_diagnosis(diagnosis)
    return 0 if diagnosis.ok else 1


@click.command()
@click.argument("shell", required=False, type=click.STRING, metavar="[bash|zsh|fish]")
@as_data
@click.pass_context
def completion(ctx: click.Context, shell: str | None, as_json: bool) -> None:
    r"""Print the script that completes words in a shell.

    \b
    bash: eval "$(kerncfg completion bash)"      in ~/.bashrc
    zsh:  eval "$(kerncfg completion zsh)"       in ~/.zshrc
    fish: kerncfg completion fish | source       in ~/.config/fish/config.fish
    """
    from kerncfg.errors import ConfigError

    if shell not in SHELLS:
        found = f"no completion for {shell!r}" if shell else "no shell is named"
        raise ConfigError(found, hint=f"write kerncfg completion {', '.join(SHELLS[:-1])} or {SHELLS[-1]}")
    text = script(ctx.find_root().command, shell)
    if as_json:
        data({"shell": shell, "script": text})
    else:
        click.echo(text)
