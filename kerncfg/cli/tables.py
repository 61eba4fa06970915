"""Documents as tables for people; on a terminal they fit it, elsewhere nothing is wrapped or cut."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from rich.console import Console
from rich.table import Table
from rich.text import Text

from kerncfg.documents.table import COLUMNS, heading, kept, lines
from kerncfg.terminal import one_line

if TYPE_CHECKING:
    from kerncfg.doctor import Diagnosis
    from kerncfg.documents.plan import Plan
    from kerncfg.run import Outcome

__all__ = ["print_diagnosis", "print_plan", "print_stage", "print_sweep", "shown"]

_STYLES = {"kernel": "green", "original": "", "else": "dim", "refused": "yellow"}
_STYLES |= {"ok": "green", "warn": "yellow", "error": "bold red"}


def console() -> Console:
    """Return a console for standard output."""
    return Console(width=None if sys.stdout.isatty() else 100_000, highlight=False, soft_wrap=False)


def print_plan(plan: Plan, *, every: bool = False) -> None:
    """Print a plan: what each name runs and what was passed over.

    Inherited names left alone are counted in one line; with `every` they are listed.
    """
    out = console()
    out.print(Text(heading(plan.digest, plan.target)))
    table = Table(box=None, pad_edge=False, header_style="bold")
    for column in COLUMNS:
        table.add_column(column, overflow="fold", no_wrap=column == "name")
    for line in lines(plan.steps):
        style = _STYLES[line.tone]
        styles = ("bold", style, "", style, "dim")
        table.add_row(*(Text(cell, style=found) for cell, found in zip(line.cells(), styles, strict=True)))
    if table.row_count:
        out.print(table)
    for sentence in kept(plan.steps, names=every):
        out.print(Text(sentence, style="dim"))
    for note in plan.told():
        out.print(Text(f"note: {note}"))


def print_diagnosis(diagnosis: Diagnosis) -> None:
    """Print what `kerncfg doctor` found: versions, the target, and each finding with its cure."""
    out = console()
    out.print(Text(", ".join(f"{name} {version or 'not installed'}" for name, version in diagnosis.versions.items())))
    table = Table(box=None, pad_edge=False, show_header=False)
    for column in ("severity", "name", "found"):
        table.add_column(column, overflow="fold", no_wrap=column != "found")
    for finding in diagnosis.findings:
        expected = f"; expected {finding.expected}" if finding.expected else ""
        style = _STYLES[finding.severity]
        table.add_row(Text(finding.severity, style=style), Text(finding.name), Text(one_line(finding.found + expected)))
        if finding.cure:
            table.add_row("", "", Text(one_line(f"cure: {finding.cure}"), style="dim"))
    out.print(table)


def print_stage(outcome: Outcome, stage: str) -> None:
    """Print what a stage of the main job produced."""
    out = console()
    if stage == "plan" and outcome.plan is not None:
        print_plan(outcome.plan)
        return
    out.print(Text(f"\n{stage}", style="bold"))
    out.print(Text(str(getattr(outcome, stage))))
    if stage == "measurement" and outcome.verification is not None:
        failed = {(row.name, row.kernel) for row in outcome.verification.rows if not row.passed}
        timed = outcome.measurement.rows if outcome.measurement else ()  # without what was taken off for failing
        for name, kernel in dict.fromkeys((row.name, row.kernel) for row in timed if (row.name, row.kernel) in failed):
            out.print(Text(one_line(f"{name} ({kernel}) failed verification: its speed means nothing"), style="yellow"))


def print_sweep(outcomes: Sequence[Outcome]) -> None:
    """Print what every run of a sweep came to, one line each."""
    from kerncfg.page.comparison import Speed, said

    table = Table(box=None, pad_edge=False, header_style="bold")
    for column in ("run", "overrides", "swapped", "passed", "model speedup", "folder"):
        table.add_column(column, overflow="fold")
    for outcome in outcomes:
        swapped = str(outcome.report.counts["swapped"]) if outcome.report else "-"
        model = outcome.measurement.model if outcome.measurement else None
        passed = "NO" if not outcome.passed else "yes, nothing swapped" if outcome.unswapped else "yes"
        speedup = said(Speed.of(model) if model else None)
        cells = (str(outcome.number), " ".join(outcome.swept), swapped, passed, speedup)
        table.add_row(*map(Text, map(one_line, (*cells, shown(outcome.home)))))
    out = console()
    out.print(Text("\nsweep", style="bold"))
    out.print(table)


def shown(folder: Path) -> str:
    """Return a folder as it is typed from here."""
    here = Path.cwd()
    return str(folder.relative_to(here)) if folder.is_relative_to(here) else str(folder)
