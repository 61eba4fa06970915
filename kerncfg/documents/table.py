"""A plan's steps as rows of a table, for every front that shows them."""

from __future__ import annotations

import html
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from kerncfg.documents.target import Mode, Target
from kerncfg.terminal import one_line

if TYPE_CHECKING:
    from kerncfg.documents.step import Step

__all__ = ["COLUMNS", "Line", "conditions", "heading", "kept", "lines", "markup", "modes", "parts", "text"]

COLUMNS = ("name", "runs", "in", "why", "said at")
_FEW = 2  # reasons of inherited names that are told where the names are not
_VALUES = 3  # of a condition that a line names; `explain` and the data have all
_MODES = "{modes}"  # stands in a reason for the modes of its line


@dataclass(frozen=True, slots=True, kw_only=True)
class Line:
    """One thing that a name may run, or that was refused; `tone` is `kernel`, `original`, `else` or `refused`."""

    name: str
    runs: str
    modes: str
    why: str
    origin: str
    tone: str
    first: bool  # whether it is the first line of its name, which alone shows it

    def cells(self) -> tuple[str, ...]:
        """Return the line under `COLUMNS`."""
        return self.name if self.first else "", self.runs, self.modes, self.why, self.origin


def heading(digest: str, target: Target) -> str:
    """Return the line above the table: which plan, for what."""
    parts = [target.device, target.capability and f"capability {target.capability}", f"torch {target.torch}"]
    return one_line(f"plan {digest[:12]} for {', '.join(filter(None, parts))}, {target.cpu} {target.os}")


def lines(steps: Iterable[Step]) -> list[Line]:
    """Return the lines of all names but those in `kept`."""
    return [line for step in steps if _shown(step) for line in _lines(step)]


def kept(steps: Iterable[Step], *, names: bool = False) -> list[str]:
    """Return how many inherited names keep their original, and why; with `names` a sentence for each reason."""
    quiet = [(one_line(step.title), one_line(_why_kept(step))) for step in steps if not _shown(step)]
    reasons = Counter(reason for _, reason in quiet)
    if names:
        told = {reason: ", ".join(name for name, why in quiet if why == reason) for reason in sorted(reasons)}
        return [f"inherited, original kept ({reason}): {found}" for reason, found in told.items()]
    if not quiet:
        return []
    first = reasons.most_common(_FEW)
    counted = ", ".join(f"{count} {reason}" for reason, count in first)
    if others := len(quiet) - sum(count for _, count in first):
        counted += f", {others} for other reasons"
    verb = "name keeps" if len(quiet) == 1 else "names keep"
    return [f"inherited: {len(quiet)} {verb} the original ({counted})"]


def modes(found: Sequence[Mode]) -> str:
    """Return modes in words."""
    return "all modes" if len(found) == len(Mode) else ", ".join(found)


def conditions(said: Mapping[str, Any], *, most: int | None = None) -> str:
    """Return in words what a module must answer; empty if nothing. Of each list of values at most `most` are named."""
    pairs = {**{key: value for key, value in said.items() if key != "when"}, **said.get("when", {})}
    return " and ".join(f"{key} is {_either(list(map(str, values)), most)}" for key, values in pairs.items())


def _either(values: list[str], most: int | None) -> str:
    named = values if most is None or len(values) <= most + 1 else values[:most]  # one more is no longer than "1 more"
    return " or ".join([*named, *([f"… {len(values) - len(named)} more"] if len(named) < len(values) else [])])


def parts(step: Step) -> str:
    """Return in words what a fusion or a row of attention takes; empty for any other."""
    if step.node == "fusions":
        return " + ".join(map(str, step.members))
    if step.node == "attention":
        return f"attention of {step.path or 'the whole model'}, mask {step.mask}"
    return ""


def text(digest: str, target: Target, steps: Sequence[Step], notes: Sequence[str]) -> str:
    """Return a plan as a table in plain text."""
    rows = [line.cells() for line in lines(steps)]
    body = [COLUMNS, *rows] if rows else []
    widths = [max(map(len, column)) for column in zip(*body, strict=True)]
    shown = ["  ".join(map(str.ljust, row, widths)).rstrip() for row in body]
    return "\n".join([heading(digest, target), *shown, *kept(steps), *(f"note: {note}" for note in notes)])


def markup(digest: str, target: Target, steps: Sequence[Step], notes: Sequence[str]) -> str:
    """Return a plan as a table in HTML, for notebooks."""

    def row(tag: str, cells: Iterable[str]) -> str:
        return "<tr>" + "".join(f"<{tag}>{html.escape(cell)}</{tag}>" for cell in cells) + "</tr>"

    rows = [row("td", line.cells()) for line in lines(steps)]
    table = f"<table><thead>{row('th', COLUMNS)}</thead><tbody>{''.join(rows)}</tbody></table>" if rows else ""
    below = [*kept(steps), *(f"note: {note}" for note in notes)]
    items = "".join(f"<li>{html.escape(line)}</li>" for line in below)
    return f"<p>{html.escape(heading(digest, target))}</p>{table}" + (f"<ul>{items}</ul>" if items else "")


def _why_kept(step: Step) -> str:
    refused = (rejection.reason for found in step.modes.values() for rejection in found.rejected)
    return "; ".join(dict.fromkeys(refused)) or step.reason


def _shown(step: Step) -> bool:
    """Say whether a name has lines of its own; inherited names left alone share a sentence."""
    return step.own or step.kind != "keep"


def _lines(step: Step) -> Iterator[Line]:
    """Yield a line for each thing the name may run, with the modes in which it may, then one for each refused."""
    choices: dict[tuple[str, ...], list[Mode]] = {}
    refused: dict[tuple[str, ...], list[Mode]] = {}
    for mode, found in step.modes.items():
        for index, choice in enumerate(found.choices):
            kernel = choice.kernel
            build = f" ({kernel.variant})" if kernel.variant else ""
            # A reason that names its mode is the same one for the other modes of a line.
            reason = re.sub(rf"\b{mode}\b", _MODES, choice.reason)
            only = f", if {words}" if (words := conditions(choice.conditions, most=_VALUES)) else ""
            tone = "else" if index else "original" if choice.original else "kernel"
            prefix = "else " if index else ""
            said = (tone, f"{prefix}{kernel.reference}{build}", reason + only, choice.origin or "")
            choices.setdefault(said, []).append(mode)
        for rejection in found.rejected:
            said = ("refused", f"not {rejection.reference}", rejection.reason, rejection.origin or "")
            refused.setdefault(said, []).append(mode)
    for index, ((tone, runs, why, origin), found_modes) in enumerate([*choices.items(), *refused.items()]):
        where = modes(found_modes)
        taken = f"; {words}" if not index and (words := parts(step)) else ""
        why = why.replace(_MODES, where) + taken
        name, runs, why, origin = map(one_line, (step.title, runs, why, origin))
        yield Line(name=name, runs=runs, modes=where, why=why, origin=origin, tone=tone, first=not index)
