"""What one name may run: candidates by device and mode, and what they are for."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, ClassVar, Self

from kerncfg.documents.target import Mode

if TYPE_CHECKING:
    from kerncfg.documents.reference import KernelRef

__all__ = [
    "ANY",
    "AttentionRow",
    "Candidate",
    "Cells",
    "Conditions",
    "Fusion",
    "Match",
    "Member",
    "Origin",
    "Row",
    "row_dict",
]

ANY = "any"  # the device key that stands for every device without a key of its own


@dataclass(frozen=True, slots=True, kw_only=True)
class Origin:
    """Where a value was said: a file's line, an override, a packaged preset, a file on the Hub, or an argument."""

    kind: str  # file | override | preset | hub | argument
    place: str = ""
    line: int | None = None
    column: int | None = None
    text: str | None = None  # the characters in the source, before YAML gave them a type

    def __str__(self) -> str:
        if self.kind == "argument":
            return "argument"
        place = self.place if self.line is None else f"{self.place}:{self.line}"
        return place if self.kind in ("file", "hub") else f"{self.kind}: {place}"

    @property
    def names_local_code(self) -> bool:
        """Whether a folder or module named here may run: the person running kerncfg wrote it."""
        return self.kind not in ("preset", "hub")

    @property
    def grants_trust(self) -> bool:
        """Whether trust said here counts: a local file or an override, never a document passed as data."""
        return self.kind in ("file", "override")


@dataclass(frozen=True, slots=True, kw_only=True)
class Conditions:
    """What must hold for a candidate; the target decides the first two, each module the others.

    `asked` is where each attribute of `when` was said, which may be elsewhere than the kernel.
    """

    capability: str | None = None
    torch: str | None = None
    dtype: tuple[str, ...] = ()
    when: tuple[tuple[str, tuple[Any, ...]], ...] = ()
    asked: Mapping[str, Origin] = field(default_factory=dict, compare=False)

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
    """One kernel that a row offers for one device and mode; `original` written by the user means off.

    `note` is what is to be said of it wherever it is chosen.
    """

    ref: KernelRef
    conditions: Conditions = Conditions()
    trust_remote_code: bool = False
    inherited: bool = False
    note: str | None = field(default=None, compare=False)
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

    node: ClassVar[str] = "kernels"
    name: str
    cells: Cells
    below: Cells = field(default_factory=dict, compare=False)
    match: Match | None = None
    exclude: tuple[str, ...] = ()
    fallback: str
    own: bool
    origin: Origin | None = field(default=None, compare=False)

    @property
    def key(self) -> str:
        """The row as it is typed: `kernels.RMSNorm`."""
        return f"{self.node}.{self.name}"

    @property
    def title(self) -> str:
        """The row as it is called among all others: a kernel's by its name alone, any other with its node."""
        return self.name if self.node == "kernels" else self.key

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
class Member:
    """One of the modules that a fusion makes one: a registered name or class, and a pattern of its paths."""

    name: str
    path: str

    def __str__(self) -> str:
        return f"{self.name} at {self.path}"

    @property
    def parent(self) -> str:
        """The pattern of the module that holds it."""
        return self.path.rpartition(".")[0]


@dataclass(frozen=True, slots=True, kw_only=True)
class Fusion(Row):
    """A group of modules beside each other that become one kernel; `members` is the order of its layout."""

    node: ClassVar[str] = "fusions"
    members: tuple[Member, ...] = ()

    def to_dict(self) -> dict[str, Any] | None:
        """Return the row as it stands under `fusions`, longhand; one that is only off is `None`."""
        if not self.members:
            return None
        members = [[member.name, member.path] for member in self.members]
        return {"members": members, **row_dict(self, inherited=False)}


@dataclass(frozen=True, slots=True, kw_only=True)
class AttentionRow(Row):
    """The attention of a model, or of the parts of it whose paths `path` matches, with the kind of mask it gets."""

    node: ClassVar[str] = "attention"
    path: str | None = None
    mask: str = "auto"

    def to_dict(self) -> dict[str, Any]:
        """Return the row as it stands under `attention`, longhand."""
        path = {"path": self.path} if self.path is not None else {}
        return {**path, "mask": self.mask, **row_dict(self, inherited=False)}


def _at(cells: Cells, device: str) -> Mapping[Mode, tuple[Candidate, ...]]:
    return cells.get(device) or cells.get(ANY) or {}


def row_dict(row: Row, *, inherited: bool) -> dict[str, Any]:
    """Return a row's own cells, or the inherited ones, longhand; with what else it says where it is not split."""
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
