"""Every way kerncfg can say no.

An error is one sentence (where, what was found, what was expected) and a hint, which is the cure.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from kerncfg.terminal import one_line, shown

__all__ = [
    "ApplyError",
    "ConfigError",
    "ConflictError",
    "ContractError",
    "IntegrityError",
    "Issue",
    "KerncfgError",
    "KerncfgWarning",
    "LockError",
    "ResolutionError",
    "SourceError",
    "TrustError",
]


class KerncfgError(Exception):
    """The root of all errors that kerncfg raises on purpose."""

    def __init__(self, message: str, *, hint: str | None = None) -> None:
        super().__init__(message)
        self.message = message
        self.hint = hint

    def __str__(self) -> str:
        return shown(f"{self.message}\n  hint: {self.hint}" if self.hint else self.message)

    def to_dict(self) -> dict[str, Any]:
        """Return the error as plain data for `--json` and logs."""
        return {"error": type(self).__name__, "message": self.message, "hint": self.hint}


@dataclass(frozen=True, slots=True, kw_only=True)
class Issue:
    """One fault in a document: where it is, what is wrong, how to mend it."""

    message: str
    path: str = ""
    file: str | None = None
    line: int | None = None
    column: int | None = None
    hint: str | None = None

    @property
    def where(self) -> str:
        """The place as `file:line:column: key path`, as far as it is known."""
        position = ":".join(str(part) for part in (self.file, self.line, self.column) if part is not None)
        return ": ".join(part for part in (position, self.path) if part)

    def __str__(self) -> str:
        text = one_line(f"{self.where}: {self.message}" if self.where else self.message)
        return f"{text}\n  hint: {one_line(self.hint)}" if self.hint else text

    def to_dict(self) -> dict[str, Any]:
        """Return the fault as plain data."""
        return {name: getattr(self, name) for name in ("file", "line", "column", "path", "message", "hint")}


class ConfigError(KerncfgError):
    """What the user wrote is not valid; `issues` holds every fault, not only the first."""

    def __init__(self, issues: Iterable[Issue] | str, *, hint: str | None = None) -> None:
        self.issues = [Issue(message=issues, hint=hint)] if isinstance(issues, str) else list(issues)
        super().__init__("\n".join(str(issue) for issue in self.issues))

    def to_dict(self) -> dict[str, Any]:
        """Return all faults as plain data."""
        return {**super().to_dict(), "issues": [issue.to_dict() for issue in self.issues]}


class LockError(KerncfgError):
    """A lock or plan file cannot be used: another format, or not what it says it is."""


class ResolutionError(KerncfgError):
    """Names that may not fall back were left without a kernel; `reasons` holds every one."""

    def __init__(self, message: str, *, reasons: dict[str, list[str]] | None = None, hint: str | None = None) -> None:
        super().__init__(message, hint=hint)
        self.reasons = reasons or {}


class SourceError(KerncfgError):
    """A place that kernels come from could not be read, or its code could not be imported."""


class TrustError(KerncfgError):
    """Code would have run that nobody consented to."""


class IntegrityError(SourceError):
    """The code found is not the code that was planned."""


class ApplyError(KerncfgError):
    """A plan could not be carried out on this model; the model is as it was before."""


class ConflictError(ApplyError):
    """Two rows claim one module, or two handles are undone in the wrong order."""


class ContractError(ApplyError):
    """A kernel does not fit the layer it was chosen for."""


class KerncfgWarning(UserWarning):
    """Something that was asked for has no effect."""
