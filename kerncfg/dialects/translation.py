"""What another tool's words come to: a document, and what they say that has no equivalent."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from kerncfg.compiler.tree import Origins, grow
from kerncfg.compiler.writing import document_lines
from kerncfg.locations import schemas

if TYPE_CHECKING:
    from kerncfg.documents.config import Origin
    from kerncfg.errors import Issue

__all__ = ["Translation"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Translation:
    """A document in kerncfg's words; `origin` is where the other tool's stand.

    `remarks` are what has no equivalent and what means something else here, each with its place.
    """

    document: Mapping[str, Any]
    remarks: tuple[Issue, ...] = ()
    origin: Origin

    def lines(self) -> Iterator[str]:
        """Yield the document as an experiment file, each value with where it was said."""
        yield "# @package _global_"
        yield f"# yaml-language-server: $schema={(schemas() / 'experiment.schema.json').as_uri()}"
        yield from document_lines(self.document, Origins(grow(dict(self.document), self.origin)))

    def to_dict(self) -> dict[str, Any]:
        """Return the document and the remarks as plain data."""
        return {"document": dict(self.document), "remarks": [remark.to_dict() for remark in self.remarks]}

    def remarked(self, *remarks: Issue) -> Translation:
        """Return the translation with more remarks; one without a place stands where the whole does."""
        placed = (
            remark if remark.file else replace(remark, file=self.origin.place, line=self.origin.line)
            for remark in remarks
        )
        return replace(self, remarks=(*self.remarks, *placed))
