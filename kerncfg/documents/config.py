"""What the user asked for, in canonical form: no shorthand, no merging left to do."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Self

from kerncfg.documents.reference import INHERITED, ORIGINAL, KernelRef, absolute, is_folder, parse_range
from kerncfg.documents.row import (
    ANY,
    AttentionRow,
    Candidate,
    Conditions,
    Fusion,
    Match,
    Member,
    Origin,
    Row,
    row_dict,
)

__all__ = [
    "ANY",
    "INHERITED",
    "ORIGINAL",
    "AttentionRow",
    "Candidate",
    "Conditions",
    "Config",
    "Fusion",
    "KernelRef",
    "Match",
    "Member",
    "Origin",
    "Policy",
    "Row",
    "Trust",
    "parse_range",
]


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
    """What may fall back, what must be exact or repeatable, and the thresholds of verification.

    `seed` is what the random state is set to while the plan is applied; `None` leaves it alone.
    """

    fallback: str
    strict: bool
    require_pin: bool
    deterministic: bool = False
    seed: int | None = None
    verify: Mapping[str, Any]

    def to_dict(self) -> dict[str, Any]:
        """Return the `policy` node."""
        names = ("fallback", "strict", "require_pin", "deterministic", "seed")
        return {**{name: getattr(self, name) for name in names}, "verify": dict(self.verify)}


@dataclass(frozen=True, slots=True, kw_only=True)
class Config:
    """All that a plan is made from, but for the target; `notes` says what was ignored on the way, and why."""

    enabled: bool
    rows: Mapping[str, Row]
    trust: Trust
    policy: Policy
    fusions: Mapping[str, Fusion] = field(default_factory=dict)
    attention: Mapping[str, AttentionRow] = field(default_factory=dict)
    notes: tuple[str, ...] = field(default=(), compare=False)

    def every(self) -> Iterator[Row]:
        """Yield every row: those of kernels, then fusions, then attention, each by name."""
        for rows in (self.rows, self.fusions, self.attention):
            yield from (row for _, row in sorted(rows.items()))

    def to_dict(self) -> dict[str, Any]:
        """Return the config as a document that normalises to this very config.

        Own cells stand under `kernels`, inherited ones under `inherited`.
        """
        own = {name: row_dict(row, inherited=False) for name, row in self.rows.items() if row.own}
        inherited = {name: row_dict(row, inherited=True) for name, row in self.rows.items()}
        return {
            "enabled": self.enabled,
            "inherited": {name: row for name, row in inherited.items() if row},
            "kernels": own,
            "fusions": {name: row.to_dict() for name, row in self.fusions.items()},
            "attention": {name: row.to_dict() for name, row in self.attention.items()},
            "trust": self.trust.to_dict(),
            "policy": self.policy.to_dict(),
        }
