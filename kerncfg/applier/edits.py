"""What one apply does to a module, and who did it: values that copies share and that files hold by reference."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from kerncfg.sources import reload

if TYPE_CHECKING:
    from torch import nn

    from kerncfg.documents.plan import Kernel

__all__ = ["Edit", "Forward", "Owner"]

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

    def arrived(self, module: nn.Module) -> None:
        """Take note that a copy of a module has all its entries; what is done to it alone needs no more."""

    def __deepcopy__(self, memo: dict[int, Any]) -> Edit:
        return self

    def __reduce__(self) -> tuple[Any, ...]:
        return _reloaded, (self.owner, self.kernels)


def _reloaded(owner: Owner, kernels: tuple[Kernel | None, Kernel | None]) -> Edit:
    first, second = (None if kernel is None else reload(kernel).code.forward for kernel in kernels)
    return Edit(owner, (first, second), kernels)
