"""What a kernel that was chosen is called in a reason, and which of its conditions a module does not meet."""

from __future__ import annotations

from typing import TYPE_CHECKING

from kerncfg.applier.contract import MissingAttribute, conditions_fault
from kerncfg.applier.match import row
from kerncfg.errors import ApplyError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from torch import nn

    from kerncfg.documents.plan import Choice, ModePlan, Step

__all__ = ["condition_fault", "joined", "said"]


def said(choice: Choice) -> str:
    """Return a choice as it was written, with the commit behind it and where it was said."""
    kernel = choice.kernel
    commit = [f"commit {kernel.commit}"] if kernel.commit and kernel.commit not in str(kernel.reference) else []
    details = ", ".join([*commit, *([choice.origin] if choice.origin else [])])
    return f"{kernel.reference} ({details})" if details else str(kernel.reference)


def condition_fault(choice: Choice, module: nn.Module, path: str, step: Step) -> str | None:
    """Say which of a choice's conditions does not hold for a module.

    Raises:
        ApplyError: A condition that the user wrote asks for an attribute that the module has not.
    """
    try:
        return conditions_fault(module, choice.conditions)
    except MissingAttribute as missing:
        lacks = f"when.{missing} asks for what the module has not"
        asked = choice.asked.get(str(missing), choice.origin)
        if (asked or "").startswith("preset:"):
            return lacks
        where = f"{path or 'the model itself'} ({type(module).__qualname__})"
        raise ApplyError(
            f"{row(step)}: {said(choice)}: {lacks}, found at {where}",
            hint="name an attribute that every module of the row has, or narrow the row with match or exclude",
        ) from None


def joined(found: ModePlan, reasons: Sequence[str]) -> str:
    """Return what was rejected when the plan was made, and what speaks against the rest here, in one line."""
    return "; ".join([*(f"{rejection.reference}: {rejection.reason}" for rejection in found.rejected), *reasons])
