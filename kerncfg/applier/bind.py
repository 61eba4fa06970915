"""Single edits to a module, each with its undo: a forward for each mode, in the instance and nowhere else.

A module that runs kernels carries up to four entries in its `__dict__`: `forward`, a plain bound method of the
kernel's forward in the present mode; `train`, which changes it with the mode; `__getstate__`, for copies and files; and
one of ours, which holds every edit made to the module, the latest last.
"""

from __future__ import annotations

import copy
import itertools
import warnings
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import MappingProxyType, MethodType
from typing import TYPE_CHECKING, Any

from torch import nn

from kerncfg.applier.wrapping import Inside, inside
from kerncfg.errors import ApplyError, KerncfgWarning
from kerncfg.sources import reload

if TYPE_CHECKING:
    from kerncfg.documents.plan import Kernel

__all__ = ["Edit", "Owner", "bind", "bound", "reachable", "unbind", "unbind_all"]

_ENTRY = "_kerncfg"
_TRAIN = nn.Module.train
_NONE: Mapping[str, Any] = MappingProxyType({})
_numbers = itertools.count(1)

Forward = Callable[..., Any]


@dataclass(frozen=True, slots=True)
class Owner:
    """Who made an edit: one apply, by its place in the order of all, and the rows it swapped."""

    number: int
    name: str

    def __str__(self) -> str:
        return f"apply {self.number} ({self.name})"

    @classmethod
    def of(cls, name: str) -> Owner:
        """Return a new owner, later than all before."""
        return cls(next(_numbers), name)

    def __deepcopy__(self, memo: dict[int, Any]) -> Owner:
        return self

    def __reduce__(self) -> tuple[Any, ...]:
        # Numbers order the applies of one process: whatever comes from a file is older than what is done to it here.
        return Owner.of, (self.name,)


@dataclass(frozen=True, slots=True, eq=False)
class Edit:
    """What one apply does to a module: a forward and its kernel when not training, and when training.

    `None` is the module's own forward. The two are the same where the mode is fixed. Modules that get the same share
    one edit.
    """

    owner: Owner
    forwards: tuple[Forward | None, Forward | None]
    kernels: tuple[Kernel | None, Kernel | None]

    def __deepcopy__(self, memo: dict[int, Any]) -> Edit:
        return self

    def __reduce__(self) -> tuple[Any, ...]:
        return _reloaded, (self.owner, self.kernels)


def _reloaded(owner: Owner, kernels: tuple[Kernel | None, Kernel | None]) -> Edit:
    first, second = (None if kernel is None else reload(kernel).code.forward for kernel in kernels)
    return Edit(owner, (first, second), kernels)


class Bound:
    """All that is done to one module: the edits, the methods of the two modes, and the one that runs now."""

    __slots__ = ("below", "current", "edit", "found", "idle", "module", "prior", "training")

    def __init__(self, module: nn.Module, edit: Edit, below: tuple[Edit, ...] = ()) -> None:
        self.module = module
        self.edit = edit  # the last one, which is in force
        self.below = below
        self.prior = _NONE  # entries that were there and are ours now
        self.found: MethodType | None = None  # what held the place of the module's own forward in a wrapper
        self.current: MethodType | None = None
        idle, training = edit.forwards
        self.idle = self.training = MethodType(idle or type(module).forward, module)
        if idle is not training:
            self.training = MethodType(training or type(module).forward, module)

    @property
    def edits(self) -> tuple[Edit, ...]:
        """Every edit, in the order in which they were made."""
        return (*self.below, self.edit)

    def has(self, edit: Edit) -> bool:
        """Whether an edit was made here, and is not taken back."""
        return self.edit is edit or edit in self.below

    def settle(self) -> None:
        """Make the module run what the last edit says."""
        entries = self.module.__dict__
        self.put(self.training if entries["training"] else self.idle)
        if all(edit.forwards[0] is edit.forwards[1] for edit in self.edits):
            self._release("train")
        else:
            plain = _plain_train(self) and ("train" not in entries or _is_ours(entries["train"]))
            self._take("train", MethodType(_train if plain else _train_through, self.module))
        self._take("__getstate__", MethodType(_getstate, self.module))

    def change(self, edits: tuple[Edit, ...]) -> None:
        """Make the module run what other edits say."""
        *below, self.edit = edits
        self.below = tuple(below)
        fresh = Bound(self.module, self.edit)
        self.idle, self.training = fresh.idle, fresh.training
        self.settle()

    def _take(self, key: str, method: MethodType) -> None:
        entries = self.module.__dict__
        present = entries.get(key)
        if not _is_ours(present):
            if present is not None:
                self.prior = {**self.prior, key: present}
            entries[key] = method

    def _release(self, key: str) -> None:
        entries = self.module.__dict__
        if not _is_ours(entries.get(key)):
            return
        if key in self.prior:
            entries[key] = self.prior[key]
        else:
            del entries[key]

    def put(self, method: MethodType) -> None:
        """Let `method` run where the present one does: in the instance, or inside what was wrapped around it."""
        entries = self.module.__dict__
        present = entries.get("forward")
        if present is None or present is self.current:
            entries["forward"] = method
        elif (place := self._inside()) is not None:
            if self.current is None and self.found is None:
                own = type(self.module).forward
                self.found = place.found if place.found.__func__ is own else MethodType(own, self.module)
            place.put(method)
        else:
            warnings.warn(
                f"the forward of a {type(self.module).__qualname__} was wrapped after its kernel was applied, by "
                "something whose inside cannot be reached: the wrapper keeps the kernel it has, whatever the mode",
                KerncfgWarning,
                stacklevel=3,
            )
        self.current = method

    def _inside(self) -> Inside | None:
        functions: list[Any] = [type(self.module).forward]
        if self.current is not None:
            functions.append(self.current.__func__)
        for edit in self.edits:
            functions += filter(None, edit.forwards)
        return inside(self.module, functions)

    def clear(self) -> None:
        """Take every entry out again; what is wrapped around the forward stays, around the module's own."""
        entries = self.module.__dict__
        present = entries.get("forward")
        if present is not None and present is self.current and self.found is None:
            del entries["forward"]
        elif present is not None and (self.current is not None or self.found is not None):
            self.put(self.found or MethodType(type(self.module).forward, self.module))
        self._release("train")
        self._release("__getstate__")
        del entries[_ENTRY]

    def __deepcopy__(self, memo: dict[int, Any]) -> Bound:
        """Bind the copy, whether its entries come by `_setstate` or, by a `__deepcopy__` of its class, directly."""
        made = _awaiting(copy.deepcopy(self.module, memo), self.edit, self.below)
        made.current = copy.deepcopy(self.current, memo)
        made.found = copy.deepcopy(self.found, memo)
        made.prior = {key: copy.deepcopy(value, memo) for key, value in self.prior.items()}
        return made

    def __reduce__(self) -> tuple[Any, ...]:
        return _awaiting, (self.module, self.edit, self.below)


def bound(module: nn.Module) -> Bound | None:
    """Return what is done to a module; the entry of a shallow copy is its original's and counts for nothing."""
    found = module.__dict__.get(_ENTRY)
    return found if isinstance(found, Bound) and found.module is module else None


def reachable(module: nn.Module) -> bool:
    """Whether a kernel can take the place of the module's own forward: nothing, or nothing opaque, is around it."""
    entries = module.__dict__
    if "forward" not in entries:
        return True
    made = bound(module)
    if made is not None:
        return entries["forward"] is made.current or made._inside() is not None
    return inside(module, [type(module).forward]) is not None


def bind(module: nn.Module, edit: Edit) -> None:
    """Make a module run an edit's kernels, on top of the edits made before."""
    entries = module.__dict__
    if _ENTRY in entries and (made := bound(module)) is not None:
        made.change((*made.edits, edit))
        return
    made = entries[_ENTRY] = Bound(module, edit)
    if "forward" in entries or "train" in entries or "__getstate__" in entries or type(module).train is not _TRAIN:
        made.settle()
        return
    # What `settle` comes to for a module that has none of these entries, in a third of the time.
    entries["forward"] = made.current = made.training if entries["training"] else made.idle
    if made.idle is not made.training:
        entries["train"] = MethodType(_train, module)
    entries["__getstate__"] = MethodType(_getstate, module)


def unbind(module: nn.Module, edit: Edit) -> None:
    """Take one edit back; harmless if it was never made, or is gone."""
    made = bound(module)
    if made is None or not made.has(edit):
        return
    if made.below:
        made.change(tuple(other for other in made.edits if other is not edit))
    else:
        made.clear()


def unbind_all(module: nn.Module) -> None:
    """Take every edit of a module back."""
    made = bound(module)
    if made is not None:
        made.clear()
    else:
        module.__dict__.pop(_ENTRY, None)


def _is_ours(value: Any) -> bool:
    return type(value) is MethodType and value.__func__ in _OURS


def _plain_train(made: Bound) -> bool:
    """Whether a module has no `train` of its own, in its class or in the instance."""
    return type(made.module).train is _TRAIN and "train" not in made.prior


def _train(module: nn.Module, mode: bool = True) -> nn.Module:
    """As `nn.Module.train`, and one entry more; the entries are written past `__setattr__`, which checks each."""
    entries = module.__dict__
    made = entries.get(_ENTRY)
    if made is None or not isinstance(mode, bool):
        return type(module).train(module, mode)
    entries["training"] = mode
    method = made.training if mode else made.idle
    if entries.get("forward") is made.current:
        entries["forward"] = made.current = method
    else:
        made.put(method)
    for child in entries["_modules"].values():
        if child is not None:
            child.train(mode)
    return module


def _train_through(module: nn.Module, mode: bool = True) -> Any:
    """Call the `train` that the class or the instance has of its own, and follow where that leads."""
    made = bound(module)
    own = made.prior.get("train") if made is not None else None
    result = own(mode) if own is not None else type(module).train(module, mode)
    if made is not None:
        made.put(made.training if module.training else made.idle)
    return result


def _getstate(module: nn.Module) -> Any:
    """Return the module's state as if nothing were bound, with one entry that binds again."""
    made = bound(module)
    own = made.prior.get("__getstate__") if made is not None else None
    state: Any = own() if own is not None else type(module).__getstate__(module)  # type: ignore[no-untyped-call]
    if made is None:
        return state
    if not isinstance(state, dict):
        raise ApplyError(
            f"a {type(module).__qualname__} that runs a kernel cannot be copied or saved: its own __getstate__ returns "
            f"a {type(state).__name__}, which has no room for the kernel",
            hint="call kerncfg.revert(model) first, and apply again afterwards",
        )
    kept = {key: made.prior.get(key) if _is_ours(value) else value for key, value in state.items()}
    state = {key: value for key, value in kept.items() if value is not None or not _is_ours(state[key])}
    kernels = [forward for edit in made.edits for forward in edit.forwards if forward is not None]
    own_forward = MethodType(type(module).forward, module)
    for key, value in list(state.items()):
        if type(value) is MethodType and value.__self__ is module and value.__func__ in kernels:
            state[key] = made.found if key == "forward" and made.found is not None else own_forward
    if state.get("forward") == own_forward and made.found is None:
        del state["forward"]
    state[_ENTRY] = made
    return state


def _awaiting(module: nn.Module, edit: Edit, below: tuple[Edit, ...]) -> Bound:
    """Begin to bind a module that is being copied or read: its entries are not there yet, so wait until they are."""
    module.__dict__["__setstate__"] = MethodType(_setstate, module)
    return Bound(module, edit, below)


def _setstate(module: nn.Module, state: dict[str, Any]) -> None:
    entries = module.__dict__
    del entries["__setstate__"]
    made = state[_ENTRY]
    made.current, made.found, made.prior = None, None, _NONE  # the state has what was there before
    type(module).__setstate__(module, state)  # type: ignore[no-untyped-call]
    entries[_ENTRY] = made
    if reachable(module):
        made.settle()
        return
    del entries[_ENTRY]
    warnings.warn(
        f"a {type(module).__qualname__} was copied or read without its kernel: what is wrapped around its forward "
        "belongs to the module it was copied from",
        KerncfgWarning,
        stacklevel=2,
    )


_OURS = (_train, _train_through, _getstate, _setstate)
