"""What the user asked for, in canonical form: no shorthand, no merging left to do."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Self

from kerncfg.documents.reference import INHERITED, ORIGINAL, KernelRef, absolute, is_folder, parse_range
from kerncfg.documents.target import Mode

__all__ = [
    "ANY",
    "INHERITED",
    "ORIGINAL",
    "Candidate",
    "Conditions",
    "Config",
    "KernelRef",
    "Match",
    "Origin",
    "Policy",
    "Row",
    "Trust",
    "parse_range",
]

ANY = "any"  # the device key that stands for every device without a key of its own


@dataclass(frozen=True, slots=True, kw_only=True)
class Origin:
    """Where a value was said: a file's line, an override, a packaged preset, or an argument."""

    kind: str  # file | override | preset | argument
    place: str = ""
    line: int | None = None
    column: int | None = None
    text: str | None = None  # the characters in the source, before YAML gave them a type

    def __str__(self) -> str:
        if self.kind == "argument":
            return "argument"
        place = self.place if self.line is None else f"{self.place}:{self.line}"
        return place if self.kind == "file" else f"{self.kind}: {place}"

    @property
    def names_local_code(self) -> bool:
        """Whether a folder or module named here may run: the person running kerncfg wrote it."""
        return self.kind != "preset"

    @property
    def grants_trust(self) -> bool:
        """Whether trust said here counts: a local file or an override, never a document passed as data."""
        return self.kind in ("file", "override")


@dataclass(frozen=True, slots=True, kw_only=True)
class Conditions:
    """What must hold for a candidate; the target decides the first two, each module the others."""

    capability: str | None = None
    torch: str | None = None
    dtype: tuple[str, ...] = ()
    when: tuple[tuple[str, tuple[Any, ...]], ...] = ()

    def to_dict(self) -> dict[str, Any]:
        """Return what is set, as it stands in a candidate."""
        return {**self.needs(), **self.residual()}

    def needs(self) -> dict[str, str]:
        """Return what the target answers."""
        said = {"capability": self.capability, "torch": self.torch}
        return {key: value for key, value in said.items() if value}

    def residual(self) -> dict[str, Any]:
        """Return what only a module can answer."""
        data: dict[str, Any] = {}
        if self.dtype:
            data["dtype"] = list(self.dtype)
        if self.when:
            data["when"] = {key: list(values) for key, values in self.when}
        return data


@dataclass(frozen=True, slots=True, kw_only=True)
class Candidate:
    """One kernel that a row offers for one device and mode; `original` written by the user means off."""

    ref: KernelRef
    conditions: Conditions = Conditions()
    trust_remote_code: bool = False
    inherited: bool = False
    origin: Origin | None = field(default=None, compare=False)

    def to_dict(self) -> dict[str, Any]:
        """Return the candidate as it stands in a document, longhand."""
        data: dict[str, Any] = {"kernel": str(self.ref), **self.conditions.to_dict()}
        return {**data, "trust_remote_code": True} if self.trust_remote_code else data


@dataclass(frozen=True, slots=True, kw_only=True)
class Match:
    """Which modules a row takes besides, or instead of, those registered under its name."""

    class_: str | None = None
    path: str | None = None
    type: str | None = None
    name: str | None = None
    function: str | None = None

    def to_dict(self) -> dict[str, str]:
        """Return what is set, as it stands in a row."""
        keys = {"class": self.class_, "path": self.path, "type": self.type, "name": self.name}
        return {key: value for key, value in {**keys, "function": self.function}.items() if value is not None}

    @classmethod
    def from_dict(cls, data: Mapping[str, str]) -> Self:
        """Build a match from a row's `match`."""
        return cls(**{"class_" if key == "class" else key: value for key, value in data.items()})


Cells = Mapping[str, Mapping[Mode, tuple[Candidate, ...]]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """What one name may run: for each device (or `any`) and mode, the candidates in order.

    `own` says that the user's `kernels` wrote some of it; devices and modes that are off hold `original`.
    `below` is what the row would be without those, so that a plan can tell what they replaced.
    """

    name: str
    cells: Cells
    below: Cells = field(default_factory=dict, compare=False)
    match: Match | None = None
    exclude: tuple[str, ...] = ()
    fallback: str
    own: bool
    origin: Origin | None = field(default=None, compare=False)

    def at(self, device: str) -> Mapping[Mode, tuple[Candidate, ...]]:
        """Return the candidates of one device, by mode."""
        return _at(self.cells, device)

    def below_at(self, device: str) -> Mapping[Mode, tuple[Candidate, ...]]:
        """Return the candidates that one device would have without the user's own rows, by mode."""
        return _at(self.below, device)

    def candidates(self) -> Iterator[Candidate]:
        """Yield every candidate of every device and mode."""
        for modes in self.cells.values():
            for candidates in modes.values():
                yield from candidates

    def references(self, device: str) -> set[KernelRef]:
        """Return every reference that the row names for one device."""
        return {candidate.ref for candidates in self.at(device).values() for candidate in candidates}


@dataclass(frozen=True, slots=True, kw_only=True)
class Trust:
    """Whose code the person running kerncfg allows.

    `local` holds the folders and modules named in a local file, an override or an argument: that is consent.
    """

    publishers: frozenset[str] = frozenset()
    repositories: frozenset[str] = frozenset()
    allow_all_kernels: bool = False
    local: frozenset[str] = frozenset()
    references: frozenset[str] = frozenset()

    def plus(self, *names: str) -> Self:
        """Return this trust and more: `org`, `org/repo`, a folder, or `python:package.module`."""
        modules = {name for name in names if name.startswith("python:")}
        folders = {name for name in names if is_folder(name)}
        repositories = {name for name in names if "/" in name} - modules - folders
        return replace(
            self,
            publishers=self.publishers | (set(names) - modules - folders - repositories),
            repositories=self.repositories | repositories,
            local=self.local | modules | {absolute(name, Path.cwd()) for name in folders},
        )

    def to_dict(self) -> dict[str, Any]:
        """Return the `trust` node; `local` is not a document's to say."""
        return {
            "publishers": dict.fromkeys(sorted(self.publishers), True),
            "repositories": dict.fromkeys(sorted(self.repositories), True),
            "allow_all_kernels": self.allow_all_kernels,
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class Policy:
    """What may fall back, what must be exact, and the thresholds of verification."""

    fallback: str
    strict: bool
    require_pin: bool
    verify: Mapping[str, Any]

    def to_dict(self) -> dict[str, Any]:
        """Return the `policy` node."""
        data = {"fallback": self.fallback, "strict": self.strict, "require_pin": self.require_pin}
        return {**data, "verify": dict(self.verify)}


@dataclass(frozen=True, slots=True, kw_only=True)
class Config:
    """All that a plan is made from, but for the target; `notes` says what was ignored on the way, and why."""

    enabled: bool
    rows: Mapping[str, Row]
    trust: Trust
    policy: Policy
    notes: tuple[str, ...] = field(default=(), compare=False)

    def to_dict(self) -> dict[str, Any]:
        """Return the config as a document that normalises to this very config.

        Own cells stand under `kernels`, inherited ones under `inherited`.
        """
        own = {name: _row_dict(row, inherited=False) for name, row in self.rows.items() if row.own}
        inherited = {name: _row_dict(row, inherited=True) for name, row in self.rows.items()}
        return {
            "enabled": self.enabled,
            "inherited": {name: row for name, row in inherited.items() if row},
            "kernels": own,
            "trust": self.trust.to_dict(),
            "policy": self.policy.to_dict(),
        }


def _at(cells: Cells, device: str) -> Mapping[Mode, tuple[Candidate, ...]]:
    return cells.get(device) or cells.get(ANY) or {}


def _row_dict(row: Row, *, inherited: bool) -> dict[str, Any]:
    data: dict[str, Any] = {}
    for device, modes in row.cells.items():
        said = {mode.value: cell for mode, found in modes.items() if (cell := _cell(found, inherited=inherited))}
        if said:
            cells = list(said.values())
            same = len(cells) == len(Mode) and all(cell == cells[0] for cell in cells)
            data[device] = cells[0] if same else said
    if not inherited or (data and not row.own):
        data |= {"match": row.match.to_dict()} if row.match else {}
        data |= {"exclude": list(row.exclude)} if row.exclude else {}
        data |= {"fallback": row.fallback}
    return data


def _cell(candidates: tuple[Candidate, ...], *, inherited: bool) -> list[Any]:
    """Return the inherited part of a cell, or the own part with `inherited` where the other stood."""
    if inherited:
        return [candidate.to_dict() for candidate in candidates if candidate.inherited]
    if all(candidate.inherited for candidate in candidates):
        return []
    cell: list[Any] = []
    for candidate in candidates:
        entry = "inherited" if candidate.inherited else candidate.to_dict()
        if entry != "inherited" or cell[-1:] != ["inherited"]:
            cell.append(entry)
    return cell
