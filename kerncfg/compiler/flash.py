"""What `flash_attention_2`, `_3` and `_4` mean: the candidates of the packaged file of that name, device by device."""

from __future__ import annotations

import functools
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from kerncfg.compiler.reading import Place, read
from kerncfg.compiler.saying import Modes, Reader, Said, laid
from kerncfg.compiler.tree import Origins
from kerncfg.documents.config import ANY, Candidate, Conditions, KernelRef, parse_range
from kerncfg.documents.reference import ATTENTION
from kerncfg.documents.target import Mode
from kerncfg.locations import conf

if TYPE_CHECKING:
    from kerncfg.documents.row import Cells

__all__ = ["expanded"]

_SDPA = KernelRef(scheme="attention", name="sdpa")
_NAMES = tuple(name for name, package in ATTENTION.items() if package)
_NOTES = {"flash_attention_4": "flash_attention_4 is beta upstream"}


def expanded(cells: Cells) -> dict[str, Modes]:
    """Return the cells of a row with the candidates that each flash attention stands for; again changes nothing.

    In a list it stands for its kernels alone: the `sdpa` at its end is for where nothing else follows.
    """
    wanted = {name for modes in cells.values() for found in modes.values() for name in map(_flash, found) if name}
    found = {device: _meant(modes, device) for device, modes in cells.items()}
    for device in sorted({device for name in wanted for device in _table(name)} - {*cells} if ANY in cells else ()):
        if (modes := _meant(cells[ANY], device)) != found[ANY]:
            found[device] = modes
    return dict(sorted(found.items()))


def _flash(candidate: Candidate) -> str | None:
    name = candidate.ref.name if candidate.ref.scheme == "attention" else None
    return name if name in _NAMES else None


def _meant(modes: Mapping[Mode, tuple[Candidate, ...]], device: str) -> Modes:
    return {mode: _candidates(candidates, device) for mode, candidates in modes.items()}


def _candidates(candidates: tuple[Candidate, ...], device: str) -> tuple[Candidate, ...]:
    written = {candidate: candidate for candidate in candidates}
    found: list[Candidate] = []
    for candidate in candidates:
        name = _flash(candidate)
        for entry in _kernels(name, device) if name else ():
            if entry.ref != _SDPA or candidate is candidates[-1]:
                meant = replace(entry, conditions=_both(candidate.conditions, entry.conditions))
                meant = replace(meant, trust_remote_code=candidate.trust_remote_code, origin=candidate.origin)
                note = None if entry.ref == _SDPA else _NOTES.get(str(name))
                found.append(replace(written.get(meant, meant), note=note))
        if not name:
            found.append(candidate)
    return tuple(dict.fromkeys(found))


def _both(said: Conditions, own: Conditions) -> Conditions:
    """Return the conditions that the row says and those of the table together."""
    torch = ",".join(filter(None, (said.torch, own.torch)))
    return replace(said, torch=parse_range(torch) if torch else None)


def _kernels(name: str, device: str) -> tuple[Candidate, ...]:
    table = _table(name)
    return table.get(device, table[ANY])[Mode.INFERENCE]


@functools.cache
def _table(name: str) -> dict[str, Modes]:
    place = f"attention/{name}.yaml"
    node = read(conf() / place, Place("preset", place))
    said = Reader(Origins(node), Path()).rows(node.plain(), "attention")["default"]
    return laid(Said(), said)
