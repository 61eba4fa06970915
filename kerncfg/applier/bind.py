"""Single edits to a module, each with its undo, and what the module makes of them."""

from __future__ import annotations

from typing import TYPE_CHECKING

from kerncfg.applier.bound import ENTRY, Bound, bound, is_plain, reachable
from kerncfg.applier.edits import Edit, FunctionEdit, Owner, Replaced, with_functions

if TYPE_CHECKING:
    from torch import nn

__all__ = [
    "Edit",
    "FunctionEdit",
    "Owner",
    "Replaced",
    "bind",
    "bound",
    "is_plain",
    "reachable",
    "running",
    "unbind",
    "unbind_all",
    "with_functions",
]


def bind(module: nn.Module, edit: Edit, plain: bool | None = None) -> None:
    """Make a module run an edit's kernels, on top of the edits made before; `plain` is `is_plain` of its class."""
    entries = module.__dict__
    if ENTRY in entries and (made := bound(module)) is not None:
        made.change((*made.edits, edit))
        return
    made = entries[ENTRY] = Bound(module, edit)
    if "forward" in entries or "train" in entries or "eval" in entries or "__getstate__" in entries:
        plain = False
    if is_plain(type(module)) if plain is None else plain:
        made.start()
    else:
        made.settle()


def unbind(module: nn.Module, edit: Edit) -> None:
    """Take one edit back; harmless if it was never made, or is gone."""
    made = bound(module)
    if made is not None and made.has(edit):
        made.drop(edit)


def unbind_all(module: nn.Module) -> None:
    """Take every edit of a module back."""
    made = bound(module)
    if made is not None:
        made.clear()
    else:
        module.__dict__.pop(ENTRY, None)


def running(module: nn.Module, edit: Edit) -> tuple[bool | None, str | None]:
    """Return which of an edit's forwards a module runs, the one for training or not, and what changed since if so.

    `None` is neither of them, or nobody can see which.
    """
    made, entries = bound(module), module.__dict__
    if made is None or not made.has(edit):
        hidden = "not reverted: a forward set after apply is still there, and may hold the kernel; `del module.forward`"
        return None, "reverted" if reachable(module) else hidden
    if made.edit is not edit:
        return None, f"{made.edit.owner} decides here"
    if "forward" not in entries:
        return None, "changed since: its forward was deleted, so that the class's own runs"
    if entries["forward"] is not made.current:
        place = made.inside()
        if place is None:
            return None, "changed since: another forward was set, and whether the kernel runs in it cannot be seen"
        if made.current is None or place.found.__func__ is not made.current.__func__:
            return None, "changed since: another forward was set, without the kernel"
    training = bool(entries["training"])
    if made.current is (made.training if training else made.idle):
        return training, None
    return not training, "changed since: `training` was set by hand, which train() and eval() would have followed"
