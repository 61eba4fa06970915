"""The card of a shared experiment: what it swaps, how fast and how exact that was found to be, and how to run it."""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from kerncfg.documents import table
from kerncfg.locations import SEARCHED

if TYPE_CHECKING:
    from kerncfg.documents.plan import Plan
    from kerncfg.evidence.rows import Measurement, Timing, Verification

__all__ = ["card", "command"]

_HEAD = ("---", "library_name: kerncfg", "tags:", "- kerncfg", "- kernels", "---", "")


def command(address: str, name: str, consents: Sequence[str] = ()) -> str:
    """Return the one line that runs a shared experiment."""
    options = [word for place in consents for word in ("--trust", place)]
    return shlex.join(["kerncfg", "run", f"{SEARCHED}=[{address}]", f"experiment={name}", *options])


def card(
    name: str,
    address: str,
    plan: Plan,
    consents: Sequence[str],
    verification: Verification | None,
    measurement: Measurement | None,
) -> str:
    """Return the README.md of a shared experiment; `consents` are the repositories whose code it runs."""
    lines = [*_HEAD, f"# {name}", "", "Which kernel each layer of a PyTorch model runs, for kerncfg.", ""]
    lines += ["```bash", command(address, name, consents), "```", ""]
    if consents:
        where = "this" if len(consents) == 1 else "these"
        lines += [f"`--trust` is your consent to run the code of {where}. Without it nothing of it is run.", ""]
    lines += ["## What it swaps", "", *_swaps(plan), ""]
    lines += ["## Measured", "", *_measured(measurement), "", "## Verified", "", _verified(verification), ""]
    return "\n".join(lines)


def _swaps(plan: Plan) -> Iterator[str]:
    target = plan.target
    chip = f" {target.capability}" if target.capability else ""
    yield f"Planned for {target.device}{chip} with torch {target.torch}; the plan's digest is `{plan.digest}`."
    yield ""
    rows = [
        (step.title, str(first.kernel.reference), (first.kernel.commit or "-")[:12], mode)
        for step in plan.steps
        if step.kind != "keep"
        for mode, found in step.modes.items()
        for first in found.choices[:1]
        if not first.original
    ]
    yield from _table(("name", "kernel", "commit", "in"), _joined(rows))


def _joined(rows: Sequence[tuple[str, str, str, object]]) -> Iterator[tuple[str, ...]]:
    """Yield one line for each kernel of a name, with all its modes."""
    for head in dict.fromkeys(row[:3] for row in rows):
        modes = [row[3] for row in rows if row[:3] == head]
        yield (*head, table.modes(modes))  # type: ignore[arg-type]


def _measured(found: Measurement | None) -> Iterator[str]:
    if found is None or not found.rows:
        yield "Nothing was measured."
        return
    yield "Medians of interleaved readings; a difference within the spread is none."
    yield ""
    rows = [(row.name, row.kernel, row.mode, row) for row in found.rows]
    rows += [("the whole model", "", found.model.mode, found.model)] if found.model else []  # type: ignore[list-item]
    yield from _table(
        ("name", "kernel", "mode", "original", "kernel takes", "speed-up", "spread", "verdict"),
        ((name, kernel, mode, *_times(timing)) for name, kernel, mode, timing in rows),
    )


def _times(found: Timing) -> tuple[str, ...]:
    if found.original_s is None or found.kernel_s is None or found.speedup is None or found.spread is None:
        return ("-", "-", "-", "-", found.reason or "-")
    verdict = "same" if found.verdict == "none" else found.verdict or "-"
    times = (f"{seconds * 1e6:,.0f} µs" for seconds in (found.original_s, found.kernel_s))
    return (*times, f"{found.speedup:.2f}", f"{found.spread:.2f}", verdict)


def _verified(found: Verification | None) -> str:
    if found is None or not found.rows:
        return "Nothing was verified."
    passed = sum(row.passed for row in found.rows)
    whole = "" if found.model is None else f"; the whole model {'passed' if found.model.passed else 'failed'}"
    return f"{passed} of {len(found.rows)} kernels passed against the original and float64{whole}."


def _table(heads: Sequence[str], rows: Iterator[tuple[str, ...]]) -> Iterator[str]:
    yield f"| {' | '.join(heads)} |"
    yield f"|{'---|' * len(heads)}"
    for row in rows:
        yield f"| {' | '.join(cell.replace('|', chr(92) + '|') for cell in row)} |"
