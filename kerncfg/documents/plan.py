"""What will be done, and why nothing else: one step for every configured name."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Self

from kerncfg.documents import table
from kerncfg.documents.config import Trust
from kerncfg.documents.difference import Difference, compare
from kerncfg.documents.explanation import Explanation, explain, named
from kerncfg.documents.lock import File, digest_of
from kerncfg.documents.plain import half
from kerncfg.documents.step import Attend, Bind, Choice, Fuse, Keep, Kernel, ModePlan, Rejection, Step
from kerncfg.documents.target import Target
from kerncfg.errors import ConfigError, IntegrityError, LockError
from kerncfg.terminal import one_line

__all__ = [
    "SCHEMA",
    "Attend",
    "Bind",
    "Choice",
    "Fuse",
    "Keep",
    "Kernel",
    "ModePlan",
    "Plan",
    "Rejection",
    "Step",
]

SCHEMA = 1

_EDITED = "the file was edited; make the plan again with `kerncfg plan -o FILE`"


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """A decision that can be printed, compared, saved and sent.

    `trust` is the consent of whoever made the plan here; it is never written to a file, so a plan from a file
    carries none. `strict`, `deterministic` and `seed` are the policy's, `notes` says what was ignored on the way, and
    `searchpath` which places on the Hub were read for it, each with its commit. `endpoint` is the Hub that was to be
    asked and `cache` the folder of its files on the machine that planned, for information: no digest has them, and a
    plan is fetched from the Hub, into the cache, of whoever fetches.
    """

    target: Target
    steps: tuple[Step, ...]
    strict: bool
    deterministic: bool = False
    seed: int | None = None
    endpoint: str | None = field(default=None, compare=False)
    cache: str | None = field(default=None, compare=False)
    notes: tuple[str, ...] = ()
    searchpath: Mapping[str, str] = field(default_factory=dict, compare=False)
    trust: Trust = field(default_factory=Trust, compare=False, repr=False)

    @property
    def digest(self) -> str:
        """SHA-256 over target, choices and code; not over origins, reasons or where a folder lies."""
        steps = [
            {
                "node": step.node,
                "name": step.name,
                **step.taken(),
                "fallback": step.fallback,
                "modes": {
                    mode.value: [[*choice.kernel.identity(), dict(choice.conditions)] for choice in found.choices]
                    for mode, found in step.modes.items()
                },
            }
            for step in self.steps
        ]
        data = {"schema": SCHEMA, "target": self.target.to_dict(), "strict": self.strict, "steps": steps}
        # Only where they say something, so that plans of before these keys keep their digests.
        data |= {"deterministic": True} if self.deterministic else {}
        data |= {"seed": self.seed} if self.seed is not None else {}
        return _digest(data)

    def __repr__(self) -> str:
        swapped = sum(step.kind != "keep" for step in self.steps)
        names = f"{swapped} of {len(self.steps)} names swapped"
        return one_line(f"<Plan {self.digest[:12]} for {self.target.device}: {names}>")

    def __str__(self) -> str:
        return table.text(self.digest, self.target, self.steps, self.told())

    def _repr_html_(self) -> str:
        return table.markup(self.digest, self.target, self.steps, self.told())

    def told(self) -> tuple[str, ...]:
        """Return the notes, a line for each place on the Hub that was read, and where its kernels were looked up."""
        places = (f"{address} is at commit {commit[:12]}" for address, commit in sorted(self.searchpath.items()))
        return tuple(map(one_line, (*self.notes, *places, *self._looked_up(self.steps))))

    def _looked_up(self, steps: Iterable[Step]) -> Iterator[str]:
        """Yield the Hub and the cache that kernels of these steps are of, if some are."""
        of_hub = any(kernel.reference.scheme == "hub" for step in steps for kernel in step.kernels())
        if of_hub and self.endpoint and self.cache:
            yield f"kernels of the Hub were looked up at {self.endpoint}, with the cache {self.cache}"

    def explain(self, name: str) -> Explanation:
        """Return what one name runs in every mode, and why none of the others.

        Raises:
            ConfigError: No row has that name, and the hint holds the nearest ones; or rows of several nodes have it.
        """
        found = explain(name, self.steps, self.target, self.notes)
        return replace(found, notes=(*found.notes, *self._looked_up([found.step])))

    def diff(self, other: Plan) -> Difference:
        """Return how another plan differs from this one in what it does; it is false if the digests are the same."""
        return compare(self, other)

    def step(self, name: str) -> Step:
        """Return the step of one name.

        Raises:
            ConfigError: No row has that name, and the hint holds the nearest ones; or rows of several nodes have it.
        """
        return named(name, self.steps)

    def to_dict(self) -> dict[str, Any]:
        """Return the plan as plain data, in the form of `schemas/plan.schema.json`.

        `sealed` is the SHA-256 of all the rest: data that has it is as it was written.
        """
        data = {
            "schema": SCHEMA,
            "digest": self.digest,
            "target": self.target.to_dict(),
            "strict": self.strict,
            "deterministic": self.deterministic,
            "seed": self.seed,
            "endpoint": self.endpoint,
            "cache": self.cache,
            "notes": list(self.notes),
            "searchpath": dict(self.searchpath),
            "steps": [step.to_dict() for step in self.steps],
            "files": {
                digest: {file.path: {"size": file.size, "digest": file.digest} for file in files}
                for digest, files in sorted(self._files().items())
            },
        }
        return {**data, "sealed": seal(data)}

    def kernels(self) -> set[Kernel]:
        """Return every distinct kernel that some mode may run, and those that they import."""
        named = {kernel for step in self.steps for kernel in step.kernels()}
        return {needed for kernel in named for needed in kernel.with_dependencies()}

    def _files(self) -> dict[str, tuple[File, ...]]:
        return {kernel.digest: kernel.files for kernel in self.kernels() if kernel.digest and kernel.files}

    def to_json(self) -> str:
        """Return the plan as JSON: the same plan gives the same bytes."""
        return json.dumps(self.to_dict(), indent=2, sort_keys=True, ensure_ascii=False, default=str) + "\n"

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
        files = {
            digest: tuple(File(path=path, **said) for path, said in sorted(found.items()))
            for digest, found in data["files"].items()
        }
        for digest, found in files.items():
            if digest_of(found) != digest:
                raise IntegrityError(
                    f"the files of a build have digest {digest_of(found)[:12]}, the plan says {digest[:12]}",
                    hint=_EDITED,
                )
        plan = cls(
            target=Target.from_dict(data["target"]),
            steps=tuple(Step.from_dict(step, files) for step in data["steps"]),
            strict=data["strict"],
            deterministic=data.get("deterministic", False),
            seed=data.get("seed"),
            endpoint=data.get("endpoint"),
            cache=data.get("cache"),
            notes=tuple(data["notes"]),
            searchpath=data.get("searchpath", {}),
        )
        if plan.digest != data["digest"]:
            raise IntegrityError(
                f"the plan's content has digest {plan.digest[:12]}, the file says {str(data['digest'])[:12]}",
                hint=_EDITED,
            )
        return plan

    def save(self, path: str | Path) -> None:
        """Write the plan as JSON; `kerncfg.load_plan` reads it back."""
        Path(path).write_text(self.to_json(), encoding="utf-8", newline="\n")


def seal(data: Mapping[str, Any]) -> str:
    """Return the SHA-256 of a plan's plain data but for its seal."""
    return _digest({**data, "sealed": None})


def _digest(data: Mapping[str, Any]) -> str:
    text = json.dumps(data, separators=(",", ":"), sort_keys=True, ensure_ascii=False, default=str)
    try:
        return hashlib.sha256(text.encode()).hexdigest()
    except UnicodeEncodeError as error:
        found = half(data)
        raise ConfigError(f"the plan holds half of a character: {found}, expected text in UTF-8") from error
