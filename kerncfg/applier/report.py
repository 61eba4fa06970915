"""What an apply did, module by module, for people and programs."""

from __future__ import annotations

import html
import re
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field
from typing import Any, Self

from kerncfg.terminal import one_line, printed

__all__ = ["STATUSES", "Report", "ReportRow"]

STATUSES = ("swapped", "kept", "off")

_COLUMNS = ("name", "status", "kernel", "sites", "where", "reason")


@dataclass(frozen=True, slots=True, kw_only=True)
class ReportRow:
    """One site: what it runs in the present `mode`, why, and what each mode of this apply runs."""

    path: str
    name: str
    kind: str
    status: str  # swapped | kept | off
    kernel: str | None
    mode: str
    reason: str
    modes: Mapping[str, str]


@dataclass(frozen=True, slots=True, kw_only=True)
class Report:
    """Every site of an apply, in the model's order, and what was noticed beside them.

    `idle` says of each row of the user's that names a kernel and swaps nothing why; `absent` holds the inherited names
    that no layer of this model has.
    """

    rows: tuple[ReportRow, ...]
    notes: tuple[str, ...] = ()
    idle: Mapping[str, str] = field(default_factory=dict)
    absent: tuple[str, ...] = ()

    @property
    def counts(self) -> dict[str, int]:
        """How many sites have each status."""
        counts = dict.fromkeys(STATUSES, 0)
        for row in self.rows:
            counts[row.status] += 1
        return counts

    def to_dict(self) -> dict[str, Any]:
        """Return the report as plain data, in the form of `schemas/report.schema.json`."""
        return {
            "rows": [asdict(row) for row in self.rows],
            "counts": self.counts,
            "notes": list(self.notes),
            "idle": dict(self.idle),
            "absent": list(self.absent),
        }

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> Self:
        """Build a report from the plain data of `to_dict`."""
        rows = tuple(ReportRow(**row) for row in data["rows"])
        return cls(rows=rows, notes=tuple(data["notes"]), idle=dict(data["idle"]), absent=tuple(data["absent"]))

    def __str__(self) -> str:
        lines = [_COLUMNS, *self._groups()]
        widths = [max(len(line[column]) for line in lines) for column in range(len(_COLUMNS))]
        table = ["  ".join(map(str.ljust, line, widths)).rstrip() for line in lines]
        return printed([*table, self._summary(), *(f"note: {note}" for note in self.notes)])

    def _repr_html_(self) -> str:
        def line(tag: str, cells: Iterable[str]) -> str:
            return "<tr>" + "".join(f"<{tag}>{html.escape(one_line(cell))}</{tag}>" for cell in cells) + "</tr>"

        body = "".join(line("td", group) for group in self._groups())
        notes = "".join(f"<li>{html.escape(one_line(note))}</li>" for note in self.notes)
        below = f"<p>{html.escape(one_line(self._summary()))}</p>" + (f"<ul>{notes}</ul>" if notes else "")
        return f"<table><thead>{line('th', _COLUMNS)}</thead><tbody>{body}</tbody></table>{below}"

    def _summary(self) -> str:
        modes = ", ".join(dict.fromkeys(row.mode for row in self.rows))
        counts = ", ".join(f"{count} {status}" for status, count in self.counts.items())
        return f"{counts} ({modes})" if modes else counts

    def _groups(self) -> list[tuple[str, ...]]:
        """Gather rows that differ in their path only: a model of a hundred layers is one line."""
        groups: dict[tuple[str, ...], list[str]] = {}
        for row in self.rows:
            key = row.name, row.status, row.kernel or "original", row.reason
            groups.setdefault(key, []).append(row.path)
        return [
            (name, status, kernel, str(len(paths)), _where(paths), reason)
            for (name, status, kernel, reason), paths in groups.items()
        ]


def _where(paths: list[str]) -> str:
    """Return the paths with their numbers left out, the first few of them."""
    if len(paths) == 1:
        return paths[0] or "(model)"
    shapes = list(dict.fromkeys(re.sub(r"(?<![^.])\d+(?![^.])", "*", path) or "(model)" for path in paths))
    return ", ".join(shapes[:3]) + (f" and {len(shapes) - 3} more" if len(shapes) > 3 else "")
