"""Overrides on their way through Hydra's own composition and back, and the command line that Hydra reads."""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from kerncfg.compiler.brackets import BLANKS, pieces, quoted
from kerncfg.compiler.overrides import listed, read, rewrite
from kerncfg.errors import ConfigError
from kerncfg.locations import searches

__all__ = ["arguments", "as_typed", "for_hydra"]

_FULL_ERROR = "HYDRA_FULL_ERROR"

_ROWS = ("kernels", "inherited", "fusions", "attention")


def for_hydra(lines: Sequence[str]) -> list[str]:
    """Return overrides for Hydra's own composition: a row's lists and maps are text there, which replaces anything.

    OmegaConf refuses a list over a map, and of two overrides of one key, which a map that replaces has, a sweep
    forgets one.
    """
    found: list[str] = []
    for line in lines:
        key, _, value = line.partition("=")
        parts = pieces(value)
        if key.partition(".")[0].removeprefix("++") in _ROWS and any(_inside(part) for part in parts):
            if emptied := found[-1:] == [f"{key}=null"]:
                found.pop()
            if emptied or not any(_inside(part) == "{" for part in parts):  # a map by itself is laid over what is there
                line = f"{key}={','.join(quoted(part.strip()) if _inside(part) else part for part in parts)}"
        found.append(line)
    return found


def _from_hydra(line: str) -> str:
    """Return an override as it was before `for_hydra`."""
    override = read(line)
    value = override.value()
    key = override.key_or_group
    text = isinstance(value, str) and key.partition(".")[0] in _ROWS and _inside(value)
    return f"{key}={value}" if text else line


def _inside(text: str) -> str:
    """Return the bracket with which a list or a map begins, or nothing."""
    first = text.lstrip()[:1]
    return first if first in ("[", "{") else ""


def as_typed(task: list[str], overrides: Sequence[str]) -> list[str]:
    """Return a job's overrides as the user wrote them; what a sweep chose for this job, as it chose it.

    Of those for Hydra itself, which are no part of the task's, the one stays that says where files are looked for.
    """
    words: list[str] = []
    left = [re.sub(r"^(~[^=]+)=null$", r"\1", line) for line in task]  # a sweep spells removals so
    for argument in overrides:
        if re.match(r"[+~]*hydra[./]", argument):
            words += [argument] if searches(argument) else []
            continue
        lines = for_hydra(rewrite([argument]))
        chosen, left = left[: len(lines)], left[len(lines) :]
        words += [argument] if [*map(_bare, chosen)] == [*map(_bare, lines)] else _chosen(argument, chosen)
    return words + [word for line in left for word in _chosen("", [line])]


def _chosen(argument: str, lines: Sequence[str]) -> list[str]:
    """Return what a sweep chose for a job as one would type it: the piece of the argument that means the same."""
    key, _, value = argument.partition("=")
    for piece in pieces(listed(value)):
        if piece.strip(BLANKS) and _means(word := f"{key}={piece.strip(BLANKS)}", lines):
            return [word]
    return [_plain(_from_hydra(line), line) for line in lines]


def _plain(word: str, line: str) -> str:
    """Return a word without the signs and escapes that only Hydra needs, if kerncfg reads the same in it."""
    override = read(line)
    value, key = override.value(), override.get_key_element().lstrip("+")
    texts = [f"{key}={value}"] if isinstance(value, str) else []
    return next((typed for typed in (*texts, word.lstrip("+")) if _means(typed, [line])), word)


def _means(word: str, lines: Sequence[str]) -> bool:
    """Say whether an override, as it is typed, is these lines of Hydra's grammar."""
    try:
        return _meanings(for_hydra(rewrite([word]))) == _meanings(lines)
    except ConfigError:
        return False


def _meanings(lines: Sequence[str]) -> list[tuple[str, str]]:
    return [(override.get_key_element(), repr(override.value())) for override in map(read, lines)]


def _bare(line: str) -> str:
    """Return an override without the quotes and escapes that a sweep writes in its own way."""
    return re.sub(r"[\\'\"]", "", line).lstrip("+")


@contextmanager
def arguments(words: Sequence[str]) -> Iterator[None]:
    """Give Hydra its command line, and ask it for exceptions instead of its own words and exit."""
    before, full = sys.argv, os.environ.get(_FULL_ERROR)
    sys.argv, os.environ[_FULL_ERROR] = ["kerncfg", *words], "1"
    try:
        yield
    finally:
        sys.argv = before
        if full is None:
            del os.environ[_FULL_ERROR]
        else:
            os.environ[_FULL_ERROR] = full
