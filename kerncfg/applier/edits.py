"""What one apply does to a module, and who did it: values that copies share and that files hold by reference."""

from __future__ import annotations

import inspect
import itertools
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from kerncfg.applier.called import as_function, rebuilt
from kerncfg.applier.passing import guarded
from kerncfg.errors import ApplyError
from kerncfg.sources import reload

if TYPE_CHECKING:
    from torch import nn

    from kerncfg.documents.plan import Kernel

__all__ = ["FUSION", "Edit", "Forward", "FunctionEdit", "Owner", "Replaced", "with_functions"]

FUSION = "_kerncfg_fusion"  # the entry of a module that is part of a fusion
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
        return _reloaded, (self.owner, self.kernels, tuple(getattr(one, "inside", ()) for one in self.forwards))


@dataclass(frozen=True, slots=True, eq=False)
class Replaced:
    """What a forward calls under one of its names, and the kernels behind it, when not training and when training."""

    called: str
    functions: tuple[Forward | None, Forward | None]
    kernels: tuple[Kernel | None, Kernel | None]


@dataclass(frozen=True, slots=True, eq=False)
class FunctionEdit(Edit):
    """An edit whose forwards are the class's own, calling other functions; `cls` is the class that has the forward."""

    cls: type
    replaced: tuple[Replaced, ...]

    def __reduce__(self) -> tuple[Any, ...]:
        found = tuple((one.called, one.kernels) for one in self.replaced)
        return _rebuilt, (self.owner, self.cls, found)


def with_functions(owner: Owner, cls: type, replaced: tuple[Replaced, ...]) -> FunctionEdit:
    """Return an edit that makes a class's forward call other functions.

    Raises:
        LookupError: The forward does not call by one of the names.
    """
    own: Any = inspect.getattr_static(cls, "forward")
    forwards: list[Forward | None] = []
    for mode in (0, 1):
        functions = {one.called: function for one in replaced if (function := one.functions[mode]) is not None}
        same = mode and all(one.functions[0] is one.functions[1] for one in replaced)
        forwards.append(forwards[0] if same else rebuilt(own, functions) if functions else None)
    return FunctionEdit(owner, (forwards[0], forwards[1]), (None, None), cls, replaced)


def _rebuilt(
    owner: Owner, cls: type, found: tuple[tuple[str, tuple[Kernel | None, Kernel | None]], ...]
) -> FunctionEdit:
    replaced = []
    for called, kernels in found:
        first, second = (None if kernel is None else as_function(reload(kernel).code) for kernel in kernels)
        replaced.append(Replaced(called, (first, second), kernels))
    try:
        return with_functions(owner, cls, tuple(replaced))
    except LookupError as error:
        raise ApplyError(
            f"a {cls.__qualname__} was saved with kernels that it cannot run here: {error.args[0]}",
            hint="save the model without kernels, after kerncfg.revert(model), and apply again where it is read",
        ) from error


def _reloaded(
    owner: Owner, kernels: tuple[Kernel | None, Kernel | None], inside: Sequence[tuple[str, ...]] = ((), ())
) -> Edit:
    first, second = (None if kernel is None else reload(kernel).code.forward for kernel in kernels)
    first, second = (
        guarded(one, names) if one and names else one for one, names in zip((first, second), inside, strict=True)
    )
    return Edit(owner, (first, second), kernels)
