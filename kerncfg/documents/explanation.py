"""Why one name runs what it runs: every candidate of every mode, with what decided about it."""

from __future__ import annotations

import difflib
import html
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from kerncfg.documents import table
from kerncfg.errors import ConfigError
from kerncfg.terminal import printed

if TYPE_CHECKING:
    from kerncfg.documents.step import ModePlan, Rejection, Step
    from kerncfg.documents.target import Mode, Target

__all__ = ["SCHEMA", "Explanation", "explain", "named"]

SCHEMA = 1

_LATER = "asked of each module when the plan is applied: signature, attributes, has_backward"
_LEFT = {"original": "the original", "error": "an error"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Explanation:
    """One name's step, the target it is for, and the plan's notes that speak of it."""

    step: Step
    target: Target
    notes: tuple[str, ...] = ()

    def to_dict(self) -> dict[str, Any]:
        """Return the explanation as plain data, in the form of `schemas/explanation.schema.json`."""
        target, step = self.target.to_dict(), self.step.to_dict()
        return {"schema": SCHEMA, "target": target, "step": step, "notes": list(self.notes)}

    def __str__(self) -> str:
        step = self.step
        capability = f" {self.target.capability}" if self.target.capability else ""
        said = "your rows" if step.own else "inherited"
        head = [f"{step.title} for {self.target.device}{capability} ({said}): {step.reason}", f"takes: {_taken(step)}"]
        if any(not choice.original for found in step.modes.values() for choice in found.choices):
            head.append(f"where no choice suits a module: {_LEFT[step.fallback]}")
            head += [_LATER] if step.node == "kernels" else []
        groups: list[tuple[ModePlan, list[Mode]]] = []
        for mode, found in step.modes.items():
            alike = next((modes for other, modes in groups if other == found), None)
            if alike is None:
                groups.append((found, [mode]))
            else:
                alike.append(mode)
        body = [line for found, modes in groups for line in ("", f"{table.modes(modes)}:", *_lines(found))]
        notes = ["", *(f"note: {note}" for note in self.notes)] if self.notes else []
        return printed([*head, *body, *notes])

    def _repr_html_(self) -> str:
        return f"<pre>{html.escape(str(self))}</pre>"


def explain(name: str, steps: Sequence[Step], target: Target, notes: Sequence[str]) -> Explanation:
    """Return the explanation of one name of a plan.

    Raises:
        ConfigError: As `named`.
    """
    step = named(name, steps)
    return Explanation(step=step, target=target, notes=tuple(note for note in notes if _about(note, step)))


def named(name: str, steps: Sequence[Step]) -> Step:
    """Return the step of a name, which may stand behind its node: `fusions.X`.

    Raises:
        ConfigError: No row has that name, and the hint holds the nearest ones; or rows of several nodes have it.
    """
    found = [step for step in steps if name in (step.name, step.key, f"{step.node}.{step.name}")]
    if len(found) == 1:
        return found[0]
    if found:
        keys = [step.key for step in found]
        raise ConfigError(f"{len(found)} rows are named {name!r}", hint=f"say which: {' or '.join(keys)}")
    known = {spelling.lower(): step.title for step in steps for spelling in (step.name, step.title)}
    near = dict.fromkeys(known[word] for word in difflib.get_close_matches(name.lower(), known, n=3, cutoff=0.6))
    names = ", ".join(step.title for step in steps) or "none"
    hint = f"did you mean {' or '.join(near)}?" if near else f"there are {names}"
    raise ConfigError(f"no row is named {name!r}", hint=hint)


def _about(note: str, step: Step) -> bool:
    roots = ("kernels", "inherited") if step.node == "kernels" else (step.node,)
    return note.startswith(tuple(f"{root}.{step.name}{end}" for root in roots for end in (".", ":", " ")))


def _taken(step: Step) -> str:
    """Return in words what of a model the row takes."""
    if step.node != "kernels":
        return table.parts(step)
    match = step.match.to_dict() if step.match else {}
    said = " and ".join(f"{key} is {value}" for key, value in match.items())
    taken = f"modules whose {said}" if said else f"what is registered as {step.name}"
    return taken + (f", but not {' or '.join(step.exclude)}" if step.exclude else "")


def _lines(found: ModePlan) -> Iterator[str]:
    """Yield what a mode runs, in order, and under each candidate why and where it was said."""
    for index, choice in enumerate(found.choices):
        kernel = choice.kernel
        exact = [kernel.variant, kernel.commit and f"commit {kernel.commit[:12]}"]
        exact += [kernel.digest and f"digest {kernel.digest[:12]}"]
        shown = ", ".join(part for part in exact if part)
        yield f"  {index + 1}. {kernel.reference}" + (f" ({shown})" if shown else "") + _said_at(choice.origin)
        yield f"     {choice.reason}"
        if len(choice.builds) > 1:
            yield from (f"     build {name}: {verdict}" for name, verdict in choice.builds.items())
        if choice.trusted:
            yield f"     trusted: {choice.trusted}"
        if choice.needs:
            yield f"     met by the target: {', '.join(f'{key} {wanted}' for key, wanted in choice.needs.items())}"
        if words := table.conditions(choice.conditions):
            yield f"     left to each module: {words}"
    yield from _others("not", found.rejected)
    yield from _others("not asked", found.unreached)


def _others(lead: str, entries: Sequence[Rejection]) -> Iterator[str]:
    for entry in entries:
        yield f"  {lead}: {entry.reference}{_said_at(entry.origin)}"
        yield f"     {entry.reason}"


def _said_at(origin: str | None) -> str:
    return f", said at {origin}" if origin else ""
