"""The two questions put to a place kernels come from: what is there (`pin`), and give me the code (`load`).

A source is a class with these two methods, named as `module:Class` under its scheme in `SOURCES`, or by a
package in the entry-point group `kerncfg.sources`. It is imported when its scheme is first met.
"""

from __future__ import annotations

import importlib
import importlib.metadata
import threading
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

from kerncfg.compiler.policy import trusted
from kerncfg.documents.lock import Lock, Pin
from kerncfg.errors import SourceError, TrustError

if TYPE_CHECKING:
    from kerncfg.documents.config import KernelRef, Trust
    from kerncfg.documents.plan import Kernel

__all__ = ["SOURCES", "KernelCode", "Source", "load", "pin"]


@dataclass(frozen=True, slots=True, kw_only=True)
class KernelCode:
    """A kernel's code in this process: the class or function that the reference names."""

    kernel: Kernel
    code: Any


class Source(Protocol):
    """A place kernels come from."""

    def pin(self, ref: KernelRef) -> Pin:
        """Say which builds are there, or why none, without running any of them."""

    def load(self, kernel: Kernel) -> KernelCode:
        """Return the code of a kernel, imported once; its digest is checked before that."""


SOURCES: Mapping[str, str] = {
    "builtin": "kerncfg.sources.local:ModuleSource",
    "python": "kerncfg.sources.local:ModuleSource",
    "path": "kerncfg.sources.local:PathSource",
}

_loaded: dict[Kernel, KernelCode] = {}
_lock = threading.RLock()


def pin(references: Iterable[KernelRef], *, sources: Mapping[str, str] = SOURCES) -> Lock:
    """Ask each reference's source once what is there; what cannot be pinned becomes a pin with its reason."""
    asked = [ref for ref in dict.fromkeys(references) if not ref.framework]
    return Lock(pins={ref: _pin(ref, sources) for ref in asked})


def load(kernel: Kernel, trust: Trust, *, sources: Mapping[str, str] = SOURCES) -> KernelCode:
    """Return the code of a planned kernel; the same kernel is imported once, whoever asks.

    Raises:
        TrustError: Nobody consented to run it.
        IntegrityError: The code there is not the code that was planned.
        SourceError: It is not there, or cannot be imported.
    """
    if reason := trusted(kernel.reference, trust):
        raise TrustError(f"{kernel.reference}: {reason}")
    return reload(kernel, sources=sources)


def reload(kernel: Kernel, *, sources: Mapping[str, str] = SOURCES) -> KernelCode:
    """Return the code of a kernel that a copied or unpickled module runs; binding it took the consent.

    Raises:
        IntegrityError: The code there is not the code that was bound.
        SourceError: It is not there, or cannot be imported.
    """
    with _lock:
        if kernel not in _loaded:
            try:
                _loaded[kernel] = _source(kernel.reference.scheme, sources).load(kernel)
            except _NoSource as error:
                raise SourceError(f"{kernel.reference}: {error.message}") from error
        return _loaded[kernel]


class _NoSource(SourceError):
    """There is no source for a scheme, or it cannot be used."""


def _pin(ref: KernelRef, sources: Mapping[str, str]) -> Pin:
    try:
        return _source(ref.scheme, sources).pin(ref)
    except SourceError as error:
        return Pin(ref=ref, reason=error.message)
    except OSError as error:
        return Pin(ref=ref, reason=f"{error.filename} cannot be read: {error.strerror}")


def _source(scheme: str, sources: Mapping[str, str]) -> Source:
    place = sources.get(scheme)
    if place is None:
        points = importlib.metadata.entry_points(group="kerncfg.sources", name=scheme)
        place = next((point.value for point in points), None)
    if place is None and scheme == "hub":
        raise _NoSource("fetching kernels from the Hub is not there yet in this version of kerncfg")
    if place is None:
        raise _NoSource(f"no source for {scheme!r} kernels is installed")
    module, _, name = place.partition(":")
    try:
        source: Source = getattr(importlib.import_module(module), name)()
    except Exception as error:
        what = f"{type(error).__name__}: {error}"
        raise _NoSource(f"the source for {scheme!r} kernels, {place}, cannot be used: {what}") from error
    return source
