"""What one plan would do and another would not."""

from __future__ import annotations

import html
import json
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any, Protocol

from kerncfg.documents import table
from kerncfg.documents.target import Mode, Target
from kerncfg.terminal import printed

if TYPE_CHECKING:
    from kerncfg.documents.step import Choice, Step

__all__ = ["SCHEMA", "Change", "Difference", "Run", "compare"]

SCHEMA = 1

Pair = tuple[Any, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """One kernel that a mode may run, exactly, and what a module must answer for it."""

    reference: str
    commit: str | None
    variant: str | None
    digest: str | None
    conditions: Mapping[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class Change:
    """One name that does something else, in some modes or in which modules it takes.

    `runs` holds what it may run in those modes, best first, and `row` the pairs of what the row takes and of
    `fallback` that differ. `None` on a side: that plan has no such name.
    """

    name: str
    modes: tuple[str, ...]
    runs: tuple[tuple[Run, ...] | None, tuple[Run, ...] | None] | None
    row: Mapping[str, Pair]
    reason: str

    def to_dict(self) -> dict[str, Any]:
        """Return the change as plain data."""
        sides = self.runs and [None if side is None else [asdict(run) for run in side] for side in self.runs]
        row = {key: list(pair) for key, pair in self.row.items()}
        return {"name": self.name, "modes": list(self.modes), "runs": sides, "row": row, "reason": self.reason}


@dataclass(frozen=True, slots=True, kw_only=True)
class Difference:
    """Everything in which two plans differ, false if in nothing.

    `before` and `after` are their digests; `target` and `policy` hold both values of each key that differs.
    """

    before: str
    after: str
    target: Mapping[str, Pair]
    policy: Mapping[str, Pair]
    changes: tuple[Change, ...]

    def __bool__(self) -> bool:
        return bool(self.target or self.policy or self.changes)

    def to_dict(self) -> dict[str, Any]:
        """Return the difference as plain data, in the form of `schemas/difference.schema.json`."""
        return {
            "schema": SCHEMA,
            "before": self.before,
            "after": self.after,
            "same": not self,
            "target": {key: list(pair) for key, pair in self.target.items()},
            "policy": {key: list(pair) for key, pair in self.policy.items()},
            "changes": [change.to_dict() for change in self.changes],
        }

    def __str__(self) -> str:
        if not self:
            return "the plans do the same"
        pairs = [(f"{what}.{key}", pair) for what in ("target", "policy") for key, pair in getattr(self, what).items()]
        lines = [_arrow(key, *map(_word, pair)) for key, pair in pairs]
        return printed([*lines, *(line for change in self.changes for line in _lines(change))])

    def _repr_html_(self) -> str:
        return f"<pre>{html.escape(str(self))}</pre>"


class Planned(Protocol):
    """What is compared: a plan."""

    @property
    def digest(self) -> str: ...
    @property
    def target(self) -> Target: ...
    @property
    def steps(self) -> tuple[Step, ...]: ...
    @property
    def strict(self) -> bool: ...
    @property
    def deterministic(self) -> bool: ...
    @property
    def seed(self) -> int | None: ...


def compare(before: Planned, after: Planned) -> Difference:
    """Return how the second plan differs from the first in what its digest covers: not in origins or reasons."""
    old, new = ({step.title: step for step in side.steps} for side in (before, after))
    changes = (change for name in sorted({*old, *new}) for change in _changes(name, old.get(name), new.get(name)))
    policies = {key: (getattr(before, key), getattr(after, key)) for key in ("strict", "deterministic", "seed")}
    return Difference(
        before=before.digest,
        after=after.digest,
        target=_target(before.target, after.target),
        policy={key: pair for key, pair in policies.items() if pair[0] != pair[1]},
        changes=tuple(changes),
    )


def _target(before: Target, after: Target) -> dict[str, Pair]:
    pairs = before.difference(after)
    old, new = pairs.pop("packages", ({}, {}))
    names = [name for name in sorted({*old, *new}) if old.get(name) != new.get(name)]
    return {**pairs, **{f"packages.{name}": (old.get(name), new.get(name)) for name in names}}


def _changes(name: str, before: Step | None, after: Step | None) -> Iterator[Change]:
    """Yield the changes of one name, modes that change alike together."""
    groups: dict[Any, list[Mode]] = {}
    for mode in Mode:
        old, new = (_choices(step, mode) for step in (before, after))
        if _identity(old) != _identity(new):
            groups.setdefault((_identity(old), _identity(new), _why(before, after, mode)), []).append(mode)
    for (_, _, reason), modes in groups.items():
        old, new = (_choices(step, modes[0]) for step in (before, after))
        yield Change(name=name, modes=tuple(modes), runs=(_runs(old), _runs(new)), row={}, reason=reason)
    row = _row(before, after) if before and after else {}
    if row:
        yield Change(name=name, modes=(), runs=None, row=row, reason="")


def _row(before: Step, after: Step) -> dict[str, Pair]:
    old, new = ({**step.taken(), "fallback": step.fallback} for step in (before, after))
    return {key: (old[key], new[key]) for key in old if old[key] != new[key]}


def _choices(step: Step | None, mode: Mode) -> tuple[Choice, ...] | None:
    if step is None:
        return None
    found = step.modes.get(mode)
    return found.choices if found else ()


def _identity(choices: tuple[Choice, ...] | None) -> str | None:
    """Return what is the same for two who would run the same, as in the plan's digest."""
    if choices is None:
        return None
    found = [[*choice.kernel.identity(), dict(choice.conditions)] for choice in choices]
    return json.dumps(found, sort_keys=True, default=str)


def _runs(choices: tuple[Choice, ...] | None) -> tuple[Run, ...] | None:
    if choices is None:
        return None
    return tuple(
        Run(
            reference=str(choice.kernel.reference),
            commit=choice.kernel.commit,
            variant=choice.kernel.variant,
            digest=choice.kernel.digest,
            conditions=choice.conditions,
        )
        for choice in choices
    )


def _why(before: Step | None, after: Step | None, mode: Mode) -> str:
    """Return what the second plan says of what the first one ran, or else of what it runs itself."""
    if before is None or after is None:
        return "only the first plan has this name" if before else "only the second plan has this name"
    ran = {str(choice.kernel.reference) for choice in _choices(before, mode) or ()}
    found = after.modes.get(mode)
    if found is None:
        return "the second plan says nothing of this mode"
    first = next(iter(found.choices), None)
    lost = [entry for entry in (*found.rejected, *found.unreached) if entry.reference in ran]
    if first is None or first.origin is None:
        lost = lost or list(found.rejected)  # nobody said what runs now: what was refused says more
    said = [f"not {entry.reference}: {entry.reason}" for entry in lost]
    if not said and first:
        said = [first.reason + (f", said at {first.origin}" if first.origin else "")]
    return "; ".join(dict.fromkeys(said))


def _lines(change: Change) -> Iterator[str]:
    if change.runs:
        old, new = change.runs
        # The exact code is shown only where the references alone would look the same.
        exact = old is not None and new is not None and _words(old, exact=False) == _words(new, exact=False)
        where = table.modes([Mode(mode) for mode in change.modes])
        sides = ("(not there)" if side is None else _words(side, exact=exact) for side in (old, new))
        yield _arrow(f"{change.name} ({where})", *sides)
    for key, pair in change.row.items():
        yield _arrow(f"{change.name} ({key})", *map(_word, pair))
    if change.reason:
        yield f"  {change.reason}"


def _words(runs: tuple[Run, ...], *, exact: bool) -> str:
    found = []
    for run in runs:
        parts = [run.commit and run.commit[:12], run.variant, run.digest and run.digest[:12]] if exact else []
        only = table.conditions(run.conditions)
        shown = f" [{', '.join(part for part in parts if part)}]" if any(parts) else ""
        found.append(run.reference + shown + (f" if {only}" if only else ""))
    return " else ".join(found) or "nothing"


def _word(value: Any) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, Mapping):
        return ", ".join(f"{key} {entry}" for key, entry in value.items())
    if isinstance(value, list):
        entries = (" at ".join(entry) if isinstance(entry, list) else str(entry) for entry in value)
        return ", ".join(entries) or "none"
    return "none" if value is None else str(value)


def _arrow(what: str, before: str, after: str) -> str:
    return f"{what}: {before} -> {after}"
