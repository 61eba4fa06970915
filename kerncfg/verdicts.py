"""What verification found out on this machine, kept for later runs: one file for each question it was asked.

The files lie in `verdicts/` of `$KERNCFG_CACHE`, else of `kerncfg/` in `$XDG_CACHE_HOME` or `~/.cache`. A verdict holds
for one plan, one environment and one model: its file's name stands for all three, and the file says them in full.
"""

from __future__ import annotations

import hashlib
import json
import os
import tempfile
import warnings
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

from kerncfg.documents.plain import loads
from kerncfg.errors import KerncfgWarning
from kerncfg.machine import here
from kerncfg.variables import CACHE

if TYPE_CHECKING:
    from kerncfg.documents.plan import Kernel

__all__ = ["SCHEMA", "Judged", "Verdicts", "environment", "identity"]

SCHEMA = 1


def environment(device: str) -> dict[str, Any]:
    """Return what the results of a kernel depend on beside its code and its inputs: this machine, and the versions."""
    return here(device).to_dict()


def identity(kernel: Kernel) -> str:
    """Return the SHA-256 of a kernel's commit, build and code, and of the kernels that it imports."""
    return _digest(kernel.identity())


@dataclass(frozen=True, slots=True, kw_only=True)
class Judged:
    """What was found of one kernel of one row; `reason` is why it did not pass, `identity` stands for its code."""

    name: str
    kernel: str
    identity: str
    passed: bool
    reason: str | None
    repeatable: bool | None


class Verdicts:
    """The verdicts of one machine, in a folder that need not exist."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    @classmethod
    def usual(cls, surroundings: Mapping[str, str] | None = None) -> Self:
        """Return those where they lie by default."""
        said = os.environ if surroundings is None else surroundings
        cache = said.get(CACHE) or Path(said.get("XDG_CACHE_HOME") or "~/.cache") / "kerncfg"
        return cls(Path(cache).expanduser().absolute() / "verdicts")

    def find(self, question: Mapping[str, Any]) -> tuple[Judged, ...] | None:
        """Return what was answered to this very question, or `None`."""
        found = _read(self._place(question))
        return found[1] if found is not None and found[0] == _plain(question) else None

    def keep(self, question: Mapping[str, Any], judged: Sequence[Judged]) -> None:
        """Write an answer down; a folder that cannot be written is warned about, and the next run asks again."""
        data = {"schema": SCHEMA, "question": _plain(question), "kernels": [asdict(one) for one in judged]}
        place = self._place(question)
        try:
            place.parent.mkdir(parents=True, exist_ok=True)
            with tempfile.NamedTemporaryFile("w", dir=place.parent, delete=False, encoding="utf-8") as file:
                json.dump(data, file, indent=1, sort_keys=True)
            Path(file.name).replace(place)
        except OSError as error:
            text = f"the verdict cannot be kept: {error.strerror}: {place}; set {CACHE} to a folder of yours"
            warnings.warn(text, KerncfgWarning, stacklevel=2)

    def repeatable(self, kernel: Kernel, surroundings: Mapping[str, Any]) -> bool | None:
        """Say whether a kernel gave the same bits each time in such surroundings; `None` if nobody looked.

        It did not if it differed once.
        """
        wanted, then = identity(kernel), _plain(surroundings)
        said = [
            one.repeatable
            for question, judged in self._everything()
            if question.get("environment") == then
            for one in judged
            if one.identity == wanted and one.repeatable is not None
        ]
        return all(said) if said else None

    def _everything(self) -> Iterator[tuple[dict[str, Any], tuple[Judged, ...]]]:
        for file in sorted(self._folder.glob("*.json")):
            if (found := _read(file)) is not None:
                yield found

    def _place(self, question: Mapping[str, Any]) -> Path:
        return self._folder / f"{str(question['plan'])[:12]}-{_digest(question)[:20]}.json"


def _read(file: Path) -> tuple[dict[str, Any], tuple[Judged, ...]] | None:
    """Return a question and its answer; what is not there, or broken, was never asked."""
    try:
        data = loads(file.read_text("utf-8"))
        if data["schema"] != SCHEMA:
            return None
        return dict(data["question"]), tuple(Judged(**one) for one in data["kernels"])
    except (OSError, ValueError, KeyError, TypeError):
        return None


def _plain(question: Mapping[str, Any]) -> Any:
    return json.loads(json.dumps(question, default=str))


def _digest(value: Any) -> str:
    return hashlib.sha256(json.dumps(value, sort_keys=True, default=str).encode()).hexdigest()
