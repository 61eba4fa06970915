"""The rows of a report: what each settled site runs now, and why."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import TYPE_CHECKING

from kerncfg.applier.bind import Edit, running
from kerncfg.applier.passing import passed_by
from kerncfg.applier.report import ReportRow

if TYPE_CHECKING:
    from kerncfg.applier.adapters import Site
    from kerncfg.applier.attending import AttentionSite
    from kerncfg.applier.decide import Decided, Verdict
    from kerncfg.applier.fusing import FusionSite
    from kerncfg.applier.settle import Settled
    from kerncfg.documents.plan import Step
    from kerncfg.documents.target import Mode

__all__ = ["rows_of"]


def rows_of(settled: Settled) -> list[ReportRow]:
    """Return a row for each site, as it is now, in the model's order."""
    modes = settled.modes
    rows = [
        _row(settled.sites[place], claim[0], decided, decided.edit, modes, "layer")
        for place, (claim, decided) in enumerate(zip(settled.claims, settled.decided, strict=True))
        if claim is not None and decided is not None
    ]
    others = [_row(one.site, one.step, one.decided, one.edit, modes, "function") for one in settled.functions]
    others += [_fused(one, modes) for one in settled.fusions]
    others += _attention(settled)
    if not others:
        return rows
    places = {path: place for place, path in enumerate(settled.sites.paths)}
    return sorted([*rows, *others], key=lambda row: places.get(row.path, -1))


def _row(site: Site, step: Step, decided: Decided, edit: Edit | None, modes: tuple[Mode, Mode], kind: str) -> ReportRow:
    training = site.module.training
    runs, changed = running(site.module, edit) if decided.swaps and edit is not None else (training, None)
    verdict = decided.verdicts[training if runs is None else runs]
    if runs is not None and (past := passed_by(site.module, verdict.forward)):
        runs, changed = None, past
    return _told(site.path, step, kind, verdict, decided.verdicts, modes, training, runs is None, changed)


def _fused(one: FusionSite, modes: tuple[Mode, Mode]) -> ReportRow:
    first = one.group.modules[0]
    training = first.training
    runs, changed = (training, None) if one.fusion is None else running(first, one.fusion.edits[0])
    if changed is None and one.fusion is not None:
        changed = one.fusion.changed()
    verdict = one.verdicts[training if runs is None else runs]
    kind = "fusion" if one.step.node == "fusions" else "layer"
    return _told(one.group.path, one.step, kind, verdict, one.verdicts, modes, training, runs is None, changed)


def _attention(settled: Settled) -> Iterator[ReportRow]:
    live = iter(settled.attended.rows if settled.attended is not None else ())
    for one in settled.attention:
        if one.wanted is None or settled.attended is None:
            yield _kept(one, settled.modes)
            continue
        row, verdict = next(live), one.verdicts[one.part.module.training]
        as_settled = row.reason == verdict.reason  # else it says what came between
        yield replace(row, status=verdict.status) if as_settled else row


def _kept(one: AttentionSite, modes: tuple[Mode, Mode]) -> ReportRow:
    training = one.part.module.training
    verdict = one.verdicts[training]
    return _told(one.part.path, one.step, "attention", verdict, one.verdicts, modes, training, False, None)


def _told(
    path: str,
    step: Step,
    kind: str,
    verdict: Verdict,
    verdicts: tuple[Verdict, Verdict],
    modes: tuple[Mode, Mode],
    training: bool,
    gone: bool,
    changed: str | None,
) -> ReportRow:
    """Return a row; a kernel that is `gone` runs no more, whatever was decided."""
    kernel = None if gone else verdict.kernel
    return ReportRow(
        path=path,
        name=step.name,
        kind=kind,
        status="kept" if gone else verdict.status,
        kernel=str(kernel.reference) if kernel is not None else None,
        mode=modes[training].value,
        reason=changed or verdict.reason,
        modes={
            mode.value: str(found.kernel.reference) if found.kernel else "original"
            for mode, found in zip(modes, verdicts, strict=True)
        },
    )
