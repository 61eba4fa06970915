"""Overrides with several values, each of which is a run of its own."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from typing import Any

from kerncfg.compiler.brackets import BLANKS, pieces
from kerncfg.compiler.overrides import read, rewrite

__all__ = ["combinations", "sweeping"]


def sweeping(line: str) -> bool:
    """Say whether a rewritten override has several values, to be run one after the other."""
    return bool(read(line).is_sweep_override())


def combinations(arguments: Sequence[str]) -> Iterator[list[str]]:
    """Yield the overrides of every run of a sweep, in the order in which Hydra's own sweeper starts them.

    A sweep that only Hydra can spell out (`glob`, `interval`) is left out of them.

    Raises:
        ConfigError: As `rewrite`.
    """
    choices: list[list[str]] = []
    for line in rewrite(arguments):
        override = read(line)
        value: Any = override.value()
        if not override.is_sweep_override():
            choices.append([line])
        elif getattr(value, "simple_form", False):  # Hydra would spell 1.10 as 1.1
            key, _, text = line.partition("=")
            choices.append([f"{key}={piece.strip(BLANKS)}" for piece in pieces(text)])
        elif override.is_discrete_sweep() and "glob(" not in line:
            key = override.get_key_element()
            choices.append([f"{key}={value}" for value in override.sweep_string_iterator()])
        else:
            choices.append([])
    for words in itertools.product(*(choice or [""] for choice in choices)):
        yield [word for word in words if word]
