"""The names under which kernels stand in transformers' registries: one for each kernel and use of it, while in use.

transformers reads meaning from names: models treat one with `flash` in it as flash attention, which takes its lengths
apart from the mask, and a `2` after that says that it has a paged cache. So the part of ours that tells kernels apart
comes first, in digits and the letters a to f, and what is to be read so comes last.
"""

from __future__ import annotations

import hashlib
import threading
import weakref
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from kerncfg.applier.adapters.attention import Registries
from kerncfg.applier.adapters.attention_forms import Form, by_mode, called, form, materialised
from kerncfg.errors import ApplyError
from kerncfg.sources import KernelCode, reload

__all__ = ["Lease", "Use", "kind_of", "lease"]

_lock = threading.RLock()
_held: dict[str, _Entry] = {}


@dataclass(slots=True)
class _Entry:
    """What stands under one name, for how many holders."""

    kind: str
    function: Callable[..., Any]
    mask: Callable[..., Any]
    count: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Use:
    """What is to stand under one name: the code when not training and when training, and the masks for both.

    `always` says that causal masks may not be left out. `own` are the classes whose own attention, `eager`, is one of
    the two, each with that function.
    """

    codes: tuple[Any, Any]
    kind: str
    always: bool
    own: tuple[tuple[type, Callable[..., Any]], ...] = ()

    @property
    def name(self) -> str:
        """The name: the same for all who use the same code in the same way."""
        said = [*map(_identity, self.codes), self.kind, self.always]
        said += [f"{cls.__module__}.{cls.__qualname__}" for cls, _ in self.own]
        digest = hashlib.sha256(repr(said).encode()).hexdigest()[:12]
        words = ["kerncfg", digest]
        if self.kind == "flash_attention_2":
            words += ["flash", "attention"]
            words += ["2"] if all(self._form(code).cached for code in self.codes) else []
        return "_".join(words)

    def _form(self, code: Any) -> Form:
        return form(code.code if isinstance(code, KernelCode) else code, self.kind)

    def build(self, registries: Registries) -> Callable[..., Any]:
        """Return the one function that serves both modes."""
        idle, training = (self._function(code, registries) for code in self.codes)
        return idle if self.codes[0] is self.codes[1] else by_mode(idle, training)

    def _function(self, code: Any, registries: Registries) -> Callable[..., Any]:
        if code == "eager":
            return _own(dict(self.own))
        if isinstance(code, str):
            function: Callable[..., Any] = registries.functions[code]
            return function
        found = self._form(code)
        if found.function is None:
            raise ApplyError(f"{_said(code)}: {found.fault}")
        return found.function


class Lease:
    """A hold on one name: it stands in the registries until the last lease is closed, or nobody holds one."""

    __slots__ = ("__weakref__", "_close", "holds", "name", "use")

    def __init__(self, name: str, use: Use) -> None:
        self.name, self.use = name, use
        self.holds = 0
        _acquire(name, use)
        self._close = weakref.finalize(self, _release, name)
        self._close.atexit = False

    def close(self) -> None:
        """Give the name back; twice is harmless."""
        self._close()

    def __deepcopy__(self, memo: dict[int, Any]) -> Lease:
        return Lease(self.name, self.use)

    def __reduce__(self) -> tuple[Any, ...]:
        for code in self.use.codes:
            if not isinstance(code, str | KernelCode):
                raise _cannot_be_saved(code)
        codes = tuple(code if isinstance(code, str) else code.kernel for code in self.use.codes)
        return _again, (self.name, codes, self.use.kind, self.use.always, self.use.own)


def lease(use: Use) -> Lease:
    """Return a new hold on the name for a use.

    Raises:
        ApplyError: Somebody else has registered something under this name.
    """
    return Lease(use.name, use)


def kind_of(name: str | None) -> str | None:
    """Return the kind of masks of a name of ours; `None` if it is none."""
    entry = _held.get(name or "")
    return entry.kind if entry is not None else None


def _acquire(name: str, use: Use) -> None:
    registries = Registries.find()
    if registries is None:
        raise ApplyError(
            "the attention of a model is chosen in transformers' registries, and there are none in this process",
            hint="import transformers, of a version that has AttentionInterface and AttentionMaskInterface",
        )
    with _lock:
        entry = _held.get(name)
        if entry is None:
            if name in registries.functions or name in registries.masks:
                raise ApplyError(f"{name} stands in transformers' registries already, and kerncfg did not write it")
            mask = registries.masks[use.kind]
            entry = _Entry(use.kind, use.build(registries), materialised(mask) if use.always else mask)
            registries.masks[name] = entry.mask
            registries.functions[name] = entry.function
            _held[name] = entry
        entry.count += 1


def _release(name: str) -> None:
    with _lock:
        entry = _held.get(name)
        if entry is None:
            return
        entry.count -= 1
        if entry.count:
            return
        del _held[name]
        registries = Registries.find()
        for registry, value in (
            ((registries.functions, entry.function), (registries.masks, entry.mask)) if registries else ()
        ):
            if registry.get(name) is value:
                del registry[name]


def _again(name: str, codes: tuple[Any, Any], kind: str, always: bool, own: Any) -> Lease:
    """Take a name again in a process that reads a saved model; the kernels are fetched and checked as they were."""
    first, second = (code if isinstance(code, str) else reload(code) for code in codes)
    return Lease(name, Use(codes=(first, second), kind=kind, always=always, own=own))


def _own(functions: dict[type, Callable[..., Any]]) -> Callable[..., Any]:
    def eager(module: Any, *arguments: Any, **keywords: Any) -> Any:
        return functions[type(module)](module, *arguments, **keywords)

    return eager


def _identity(code: Any) -> Any:
    if isinstance(code, KernelCode):
        return code.kernel.identity()
    return code if isinstance(code, str) else f"{getattr(code, '__module__', '')}.{called(code)} {id(code)}"


def _said(code: Any) -> str:
    return str(code.kernel.reference) if isinstance(code, KernelCode) else called(code)


def _cannot_be_saved(code: Any) -> ApplyError:
    return ApplyError(
        f"a model whose attention is {called(code)} cannot be saved: a file could not say where that comes from",
        hint="call kerncfg.revert(model) first, or name the kernel by a reference in the configuration",
    )
