"""The door to click's shell completion: words that are overrides, names or files, and how bash cuts them."""

from __future__ import annotations

import os
import re
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import click
from click.shell_completion import (
    BashComplete,
    CompletionItem,
    add_completion_class,
    get_completion_class,
    split_arg_string,
)

if TYPE_CHECKING:
    from pathlib import Path

__all__ = ["SHELLS", "VARIABLE", "Complete", "joined", "prepare", "script", "words"]

Complete = Callable[[click.Context, click.Parameter, str], "list[CompletionItem[Any]]"]

SHELLS = ("bash", "zsh", "fish")
VARIABLE = "_KERNCFG_COMPLETE"

_CUT = re.compile(r"[@><=;|&(:]+")  # bash's COMP_WORDBREAKS, but for blanks and quotes


def words(*, names: bool = False, files: bool = False, experiments: bool = False) -> Complete:
    """Complete overrides; with `names` also a row's name, with `files` also a file, with `experiments` one of those."""

    def complete(ctx: click.Context, param: click.Parameter, incomplete: str) -> list[CompletionItem[Any]]:
        from kerncfg.cli import offers

        folder: Path | None = ctx.params.get("config_dir")
        found = [name for name in offers.names(folder) if name.startswith(incomplete)] if names else []
        found += [name for name in offers.experiments(folder) if name.startswith(incomplete)] if experiments else []
        found += offers.offers(incomplete, folder, offers.searched(ctx.params.get("words") or ()))
        items = [CompletionItem(value) for value in found]
        return items or ([CompletionItem(incomplete, type="file")] if files else [])

    return complete


class _Bash(BashComplete):
    """Bash cuts words at `=`, `:` and `@`, and replaces only what is after the last cut."""

    kept = ""

    def get_completion_args(self) -> tuple[list[str], str]:
        cut, index = split_arg_string(os.environ["COMP_WORDS"]), int(os.environ["COMP_CWORD"])
        if index >= len(cut):
            return joined(cut)[1:], ""
        *before, word = joined(cut[: index + 1])
        self.kept = word if _CUT.fullmatch(cut[index]) else word.removesuffix(cut[index])
        return before[1:], word

    def format_completion(self, item: CompletionItem[str]) -> str:
        return f"{item.type},{item.value.removeprefix(self.kept)}"


def joined(cut: list[str]) -> list[str]:
    """Put together what bash cut."""
    found: list[str] = []
    for index, word in enumerate(cut):
        belongs = _CUT.fullmatch(word) or _CUT.fullmatch(cut[index - 1])
        if belongs and index > 1:
            found[-1] += word
        else:
            found.append(word)
    return found


def prepare() -> None:
    """Let click complete with what knows how bash cuts words; only where a shell asks for completions."""
    if VARIABLE in os.environ:
        add_completion_class(_Bash)


def script(program: click.Command, shell: str) -> str:
    """Return the script that a shell is to run."""
    found = get_completion_class(shell)
    assert found is not None
    return found(program, {}, "kerncfg", VARIABLE).source()
