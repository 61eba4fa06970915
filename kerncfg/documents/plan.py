"""What will be done, and why nothing else: one step for every configured name."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, ClassVar, Self

from kerncfg.documents.config import KernelRef, Match, Trust
from kerncfg.documents.target import Mode, Target
from kerncfg.errors import IntegrityError, LockError

__all__ = ["SCHEMA", "Bind", "Choice", "Keep", "Kernel", "ModePlan", "Plan", "Rejection", "Step"]

SCHEMA = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Kernel:
    """One kernel exactly: the reference, and the commit, build and digest of the code behind it."""

    reference: KernelRef
    commit: str | None = None
    variant: str | None = None
    digest: str | None = None

    def identity(self) -> list[str | None]:
        """Return what is the same for all who run this code: a folder by its content, a tag by its commit."""
        ref = self.reference
        place = replace(ref, location="") if ref.scheme == "path" else ref
        if self.commit:
            place = replace(ref, revision=None, version=None)
        return [f"{ref.scheme} {place}", self.commit, self.variant, self.digest]


@dataclass(frozen=True, slots=True, kw_only=True)
class Choice:
    """A kernel that was accepted, with the conditions that only a module can answer."""

    kernel: Kernel
    conditions: Mapping[str, Any] = field(default_factory=dict)
    origin: str | None
    reason: str

    @property
    def original(self) -> bool:
        """Whether this is the model's own forward."""
        return self.kernel.reference.scheme == "original"

    @property
    def final(self) -> bool:
        """Whether nothing after this choice can be reached: the original, whatever the module."""
        return self.original and not self.conditions

    def to_dict(self) -> dict[str, Any]:
        """Return the choice as plain data."""
        return {
            "reference": str(self.kernel.reference),
            "commit": self.kernel.commit,
            "variant": self.kernel.variant,
            "digest": self.kernel.digest,
            "conditions": dict(self.conditions),
            "origin": self.origin,
            "reason": self.reason,
        }

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> Self:
        """Build a choice from plain data."""
        kernel = Kernel(
            reference=KernelRef.parse(data["reference"]),
            commit=data["commit"],
            variant=data["variant"],
            digest=data["digest"],
        )
        return cls(kernel=kernel, conditions=data["conditions"], origin=data["origin"], reason=data["reason"])


@dataclass(frozen=True, slots=True, kw_only=True)
class Rejection:
    """A candidate that was passed over, and why."""

    reference: str
    reason: str
    origin: str | None

    def to_dict(self) -> dict[str, Any]:
        """Return the rejection as plain data."""
        return {"reference": self.reference, "reason": self.reason, "origin": self.origin}


@dataclass(frozen=True, slots=True, kw_only=True)
class ModePlan:
    """What one mode runs: the accepted kernels in order, and those passed over."""

    choices: tuple[Choice, ...]
    rejected: tuple[Rejection, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """What happens to one name, in every mode. `own` tells the user's rows from inherited ones."""

    kind: ClassVar[str]
    name: str
    modes: Mapping[Mode, ModePlan]
    match: Match | None = None
    exclude: tuple[str, ...] = ()
    fallback: str
    own: bool
    reason: str

    def kernels(self) -> set[Kernel]:
        """Return every distinct kernel that some mode may run."""
        choices = (choice for mode in self.modes.values() for choice in mode.choices)
        return {choice.kernel for choice in choices if not choice.original}

    def to_dict(self) -> dict[str, Any]:
        """Return the step as plain data."""
        return {
            "name": self.name,
            "kind": self.kind,
            "own": self.own,
            "reason": self.reason,
            "fallback": self.fallback,
            "match": self.match.to_dict() if self.match else None,
            "exclude": list(self.exclude),
            "modes": {
                mode.value: {
                    "choices": [choice.to_dict() for choice in found.choices],
                    "rejected": [rejection.to_dict() for rejection in found.rejected],
                }
                for mode, found in self.modes.items()
            },
        }

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> Step:
        """Build a step of the right kind from plain data."""
        modes = {
            Mode(mode): ModePlan(
                choices=tuple(Choice.from_dict(choice) for choice in found["choices"]),
                rejected=tuple(Rejection(**rejection) for rejection in found["rejected"]),
            )
            for mode, found in data["modes"].items()
        }
        return _KINDS[data["kind"]](
            name=data["name"],
            modes=modes,
            match=Match.from_dict(data["match"]) if data["match"] else None,
            exclude=tuple(data["exclude"]),
            fallback=data["fallback"],
            own=data["own"],
            reason=data["reason"],
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Bind(Step):
    """Some mode of this name runs a kernel."""

    kind: ClassVar[str] = "bind"


@dataclass(frozen=True, slots=True, kw_only=True)
class Keep(Step):
    """Every mode of this name runs the original."""

    kind: ClassVar[str] = "keep"


_KINDS: dict[str, type[Step]] = {cls.kind: cls for cls in (Bind, Keep)}


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """A decision that can be printed, compared, saved and sent.

    `trust` is the consent of whoever made the plan here; it is never written to a file, so a plan from a file
    carries none. `strict` is the policy's, `notes` says what was ignored on the way.
    """

    target: Target
    steps: tuple[Step, ...]
    strict: bool
    notes: tuple[str, ...] = ()
    trust: Trust = field(default_factory=Trust, compare=False, repr=False)

    @property
    def digest(self) -> str:
        """SHA-256 over target, choices and code; not over origins, reasons or where a folder lies."""
        steps = [
            {
                "name": step.name,
                "match": step.match.to_dict() if step.match else None,
                "exclude": list(step.exclude),
                "fallback": step.fallback,
                "modes": {
                    mode.value: [
                        [*choice.kernel.identity(), dict(choice.conditions)] for choice in found.choices
                    ]
                    for mode, found in step.modes.items()
                },
            }
            for step in self.steps
        ]
        data = {"schema": SCHEMA, "target": self.target.to_dict(), "strict": self.strict, "steps": steps}
        return hashlib.sha256(_dump(data, indent=None).encode()).hexdigest()

    def __repr__(self) -> str:
        swapped = sum(step.kind == "bind" for step in self.steps)
        names = f"{swapped} of {len(self.steps)} names swapped"
        return f"<Plan {self.digest[:12]} for {self.target.device}: {names}>"

    def step(self, name: str) -> Step | None:
        """Return the step of one name, or `None`."""
        return next((step for step in self.steps if step.name == name), None)

    def to_dict(self) -> dict[str, Any]:
        """Return the plan as plain data, in the form of `schemas/plan.schema.json`."""
        return {
            "schema": SCHEMA,
            "digest": self.digest,
            "target": self.target.to_dict(),
            "strict": self.strict,
            "notes": list(self.notes),
            "steps": [step.to_dict() for step in self.steps],
        }

    def to_json(self) -> str:
        """Return the plan as JSON: the same plan gives the same bytes."""
        return _dump(self.to_dict(), indent=2) + "\n"

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> Self:
        """Build a plan from the plain data of `to_dict`; it carries no consent.

        Raises:
            LockError: The data has another format number than this version of kerncfg reads.
            IntegrityError: The digest written there is not that of the content.
        """
        if data.get("schema") != SCHEMA:
            found = data.get("schema")
            raise LockError(
                f"the plan has format {found!r}, this kerncfg reads {SCHEMA}",
                hint="make the plan again with `kerncfg plan`",
            )
        plan = cls(
            target=Target.from_dict(data["target"]),
            steps=tuple(Step.from_dict(step) for step in data["steps"]),
            strict=data["strict"],
            notes=tuple(data["notes"]),
        )
        if plan.digest != data["digest"]:
            raise IntegrityError(
                f"the plan's content has digest {plan.digest[:12]}, the file says {str(data['digest'])[:12]}",
                hint="the file was edited; make the plan again with `kerncfg plan -o FILE`",
            )
        return plan

    def save(self, path: str | Path) -> None:
        """Write the plan as JSON; `kerncfg.load_plan` reads it back."""
        Path(path).write_text(self.to_json(), encoding="utf-8", newline="\n")


def _dump(data: Any, *, indent: int | None) -> str:
    separators = (",", ":") if indent is None else None
    return json.dumps(
        data, indent=indent, separators=separators, sort_keys=True, ensure_ascii=False, default=str
    )
