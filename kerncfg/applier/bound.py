"""What is bound to a module: its entries, how they follow its mode, and how its copies and files keep them.

A module that runs kernels carries up to four entries in its `__dict__`: `forward`, a plain bound method of the
kernel's forward in the present mode; `train`, which changes it with the mode; `__getstate__`, for copies and files; and
one of ours, which holds every edit made to the module, the latest last. A class with its own `eval`, `__reduce__` or
`__deepcopy__` would pass these by: its modules carry an entry more for each.
"""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from copy import deepcopy
from types import MappingProxyType, MethodType
from typing import TYPE_CHECKING, Any
from weakref import ref

from torch import nn

from kerncfg.applier.wrapping import Inside, inside
from kerncfg.errors import ApplyError, KerncfgWarning

if TYPE_CHECKING:
    from kerncfg.applier.edits import Edit

__all__ = ["ENTRY", "Bound", "bound", "is_plain", "reachable"]

ENTRY = "_kerncfg"
_TRAIN = nn.Module.train
_EVAL = nn.Module.eval
_METHODS = ("train", "eval", "__getstate__", "__reduce_ex__", "__deepcopy__", "__setstate__")
_NONE: Mapping[str, Any] = MappingProxyType({})


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
        module, entries, cls = self.module, self.module.__dict__, type(self.module)
        self.put(self.training if entries["training"] else self.idle)
        if all(edit.forwards[0] is edit.forwards[1] for edit in self.edits):
            self._release("train")
            self._release("eval")
        else:
            plain = cls.train is _TRAIN and "train" not in self.prior
            plain = plain and ("train" not in entries or _is_ours(entries["train"]))
            self._take("train", MethodType(_train if plain else _train_through, module))
            if cls.eval is not _EVAL or "eval" in entries:
                self._take("eval", MethodType(_eval_through, module))
        self._take("__getstate__", MethodType(_getstate, module))
        if _reduces(cls):
            self._take("__reduce_ex__", MethodType(_reduce_ex, module))
        if _copies(cls):
            self._take("__deepcopy__", MethodType(_deepcopy, module))

    def tell(self) -> None:
        """Let the edits know that this copy has all its entries."""
        for edit in self.edits:
            edit.arrived(self.module)

    def start(self) -> None:
        """Do what `settle` comes to for a module of a plain class without such entries, in a third of the time."""
        entries = self.module.__dict__
        self.current = entries["forward"] = self.training if entries["training"] else self.idle
        if self.idle is not self.training:
            entries["train"] = MethodType(_train, self.module)
        entries["__getstate__"] = MethodType(_getstate, self.module)

    def change(self, edits: tuple[Edit, ...]) -> None:
        """Make the module run what other edits say."""
        *below, edit = edits
        new = Bound(self.module, edit, tuple(below))
        # In one line, between whose parts no Ctrl-C can come: half of this could not be taken back.
        self.edit, self.below, self.idle, self.training = new.edit, new.below, new.idle, new.training
        self.settle()

    def drop(self, edit: Edit) -> None:
        """Take one of the edits back."""
        if self.below:
            self.change(tuple(other for other in self.edits if other is not edit))
        else:
            self.clear()

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
            # In this order: a forward that is not the current one would be taken for somebody's wrapper.
            self.current = method
            entries["forward"] = method
            return
        if (place := self.inside()) is not None:
            if self.current is None and self.found is None:
                own = type(self.module).forward
                self.found = place.found if place.found.__func__ is own else MethodType(own, self.module)
            place.put(method)
        else:
            warnings.warn(
                f"the forward of a {type(self.module).__qualname__} was wrapped after its kernel was applied, by "
                "something whose inside cannot be reached: the wrapper keeps the kernel it has, whatever the mode, and "
                "also when it is reverted; take the wrapper off, or `del module.forward` for the class's own",
                KerncfgWarning,
                stacklevel=3,
            )
        self.current = method

    def inside(self) -> Inside | None:
        """Find where the forward of one of the edits stands; `None` if it is out of reach, or gone."""
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
        for key in _METHODS:
            if key in entries:
                self._release(key)
        del entries[ENTRY]

    def __deepcopy__(self, memo: dict[int, Any]) -> Bound:
        """Bind the copy, whether its entries come by `_setstate` or, by a `__deepcopy__` of its class, directly."""
        made = _awaiting(deepcopy(self.module, memo), self.edit, self.below)
        made.current = deepcopy(self.current, memo)
        made.found = deepcopy(self.found, memo)
        made.prior = {key: deepcopy(value, memo) for key, value in self.prior.items()}
        return made

    def __reduce__(self) -> tuple[Any, ...]:
        return _awaiting, (self.module, self.edit, self.below)


class _Carried:
    """What is bound to a module, in its state: a shallow copy gets this as it is, and must not keep the first alive."""

    __slots__ = ("module",)

    def __init__(self, module: nn.Module) -> None:
        self.module = ref(module)

    def __deepcopy__(self, memo: dict[int, Any]) -> Any:
        module = self.module()
        # A module whose state is being copied is in the memo by then; a shallow copy's first is not.
        return deepcopy(bound(module), memo) if module is not None and id(module) in memo else self

    def __reduce__(self) -> tuple[Any, ...]:
        module = self.module()
        made = None if module is None else bound(module)
        return (type(None), ()) if made is None else made.__reduce__()


def bound(module: nn.Module) -> Bound | None:
    """Return what is done to a module; the entry of a shallow copy is its original's and counts for nothing."""
    found = module.__dict__.get(ENTRY)
    return found if isinstance(found, Bound) and found.module is module else None


def reachable(module: nn.Module) -> bool:
    """Whether a kernel can take the place of the module's own forward: nothing, or nothing opaque, is around it."""
    entries = module.__dict__
    if "forward" not in entries:
        return True
    made = bound(module)
    if made is not None:
        return entries["forward"] is made.current or made.inside() is not None
    return inside(module, [type(module).forward]) is not None


def is_plain(cls: type[nn.Module]) -> bool:
    """Whether a class leaves to PyTorch all that a kernel goes along with: its mode, its copies and its files."""
    return cls.train is _TRAIN and cls.eval is _EVAL and not _reduces(cls) and not _copies(cls)


def _is_ours(value: Any) -> bool:
    return type(value) is MethodType and value.__func__ in _OURS


def _reduces(cls: type[nn.Module]) -> bool:
    return cls.__reduce_ex__ is not object.__reduce_ex__ or cls.__reduce__ is not object.__reduce__


def _copies(cls: type[nn.Module]) -> bool:
    return getattr(cls, "__deepcopy__", None) is not None


def _train(module: nn.Module, mode: bool = True) -> nn.Module:
    """As `nn.Module.train`, and one entry more; the entries are written past `__setattr__`, which checks each."""
    entries = module.__dict__
    made = entries.get(ENTRY)
    if made is None or not isinstance(mode, bool):
        return type(module).train(module, mode)
    entries["training"] = mode
    method = made.training if mode else made.idle
    if entries.get("forward") is made.current:
        made.current = entries["forward"] = method
    else:
        made.put(method)
    for child in entries["_modules"].values():
        if child is not None:
            child.train(mode)
    return module


def _train_through(module: nn.Module, mode: bool = True) -> Any:
    return _through(module, "train", mode)


def _eval_through(module: nn.Module) -> Any:
    return _through(module, "eval")


def _through(module: nn.Module, name: str, *arguments: Any) -> Any:
    """Call the method that the class or the instance has of its own, and follow where that leads."""
    made = bound(module)
    own = made.prior.get(name) if made is not None else None
    result = own(*arguments) if own is not None else getattr(type(module), name)(module, *arguments)
    made = bound(module)
    if made is not None:
        made.put(made.training if module.training else made.idle)
    return result


def _getstate(module: nn.Module) -> Any:
    made = bound(module)
    own = made.prior.get("__getstate__") if made is not None else None
    state: Any = own() if own is not None else type(module).__getstate__(module)  # type: ignore[no-untyped-call]
    if made is None:
        return state
    if not isinstance(state, dict):
        raise _no_room(module, f"its own __getstate__ returns a {type(state).__name__}, which has no room")
    return _bare(made, state)


def _bare(made: Bound, state: dict[str, Any]) -> dict[str, Any]:
    """Return a module's state as if nothing were bound, with one entry that binds again."""
    module = made.module
    kept = {key: made.prior.get(key) if _is_ours(value) else value for key, value in state.items()}
    state = {key: value for key, value in kept.items() if value is not None or not _is_ours(state[key])}
    kernels = [forward for edit in made.edits for forward in edit.forwards if forward is not None]
    own_forward = MethodType(type(module).forward, module)
    for key, value in list(state.items()):
        if type(value) is MethodType and value.__self__ is module and value.__func__ in kernels:
            state[key] = made.found if key == "forward" and made.found is not None else own_forward
    if state.get("forward") == own_forward and made.found is None:
        del state["forward"]
    state[ENTRY] = _Carried(module)
    return state


def _reduce_ex(module: nn.Module, protocol: Any) -> Any:
    """Return what a class's own `__reduce__` does, and let what is made of that run the kernels."""
    made = bound(module)
    reduced = type(module).__reduce_ex__(module, protocol)
    if made is None:
        return reduced
    if isinstance(reduced, tuple):
        make, arguments, *rest = reduced
        state = rest[0] if rest else None
        if isinstance(state, dict) and ENTRY in state:
            return make, arguments, _bare(made, state), *rest[1:]
        if state is None:
            return _remade, (made.edits, make, *arguments), *rest
    raise _no_room(module, "its class has its own __reduce__, which leaves no room")


def _remade(edits: tuple[Edit, ...], make: Any, *arguments: Any) -> Any:
    return _rebound(make(*arguments), edits)


def _deepcopy(module: nn.Module, memo: dict[int, Any]) -> Any:
    """Return what a class's own `__deepcopy__` does, running the kernels."""
    made = bound(module)
    copied: Any = type(module).__deepcopy__(module, memo)  # type: ignore[attr-defined]
    if made is None or copied is module:
        return copied
    if type(copied) is not type(module) or not reachable(copied):
        raise _no_room(module, "its class has its own __deepcopy__, whose copy has no room")
    if _is_ours(copied.__dict__.get("__setstate__")):  # of a `__deepcopy__` that copies entry by entry
        del copied.__dict__["__setstate__"]
    return _rebound(copied, made.edits)


def _rebound(module: Any, edits: tuple[Edit, ...]) -> Any:
    if bound(module) is None:
        *below, edit = edits
        made = module.__dict__[ENTRY] = Bound(module, edit, tuple(below))
        made.settle()
        made.tell()
    return module


def _no_room(module: nn.Module, why: str) -> ApplyError:
    return ApplyError(
        f"a {type(module).__qualname__} that runs a kernel cannot be copied or saved: {why} for the kernel",
        hint="call kerncfg.revert(model) first, and apply again afterwards",
    )


def _awaiting(module: nn.Module, edit: Edit, below: tuple[Edit, ...]) -> Bound:
    """Begin to bind a module that is being copied or read: its entries are not there yet, so wait until they are."""
    module.__dict__["__setstate__"] = MethodType(_setstate, module)
    return Bound(module, edit, below)


def _setstate(module: nn.Module, state: dict[str, Any]) -> None:
    entries = module.__dict__
    del entries["__setstate__"]
    made = state[ENTRY]
    made.current, made.found, made.prior = None, None, _NONE  # the state has what was there before
    type(module).__setstate__(module, state)  # type: ignore[no-untyped-call]
    entries[ENTRY] = made
    if reachable(module):
        made.settle()
        made.tell()
        return
    del entries[ENTRY]
    warnings.warn(
        f"a {type(module).__qualname__} was copied or read without its kernel: what is wrapped around its forward "
        "belongs to the module it was copied from",
        KerncfgWarning,
        stacklevel=2,
    )


_OURS = (_train, _train_through, _eval_through, _getstate, _reduce_ex, _deepcopy, _setstate)
