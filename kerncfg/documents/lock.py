"""What the world answered: for each reference the commit and the builds found there."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from kerncfg.documents.reference import KernelRef
    from kerncfg.documents.variant import Variant

__all__ = ["Build", "Lock", "Pin"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Build:
    """One build of a kernel: `variant` is `None` where the code runs anywhere its own checks allow.

    `digest` is the SHA-256 of the build's files.
    """

    variant: Variant | None
    digest: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Pin:
    """The answer for one reference: its builds, or the `reason` why there are none."""

    ref: KernelRef
    commit: str | None = None
    builds: tuple[Build, ...] = ()
    reason: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Lock:
    """The answers for every reference of a config; a reference that nobody asked about is not in it."""

    pins: Mapping[KernelRef, Pin] = field(default_factory=dict)
