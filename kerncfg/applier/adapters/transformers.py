"""The names that transformers gives to layers, and to the functions that they call, whether or not it set a mark."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from kerncfg.applier.adapters.registrations import HOME, declarations, registration
from kerncfg.applier.adapters.torch import TorchAdapter

if TYPE_CHECKING:
    from torch import nn

__all__ = ["TransformersAdapter"]


class TransformersAdapter(TorchAdapter):
    """Knows models in a process that has imported transformers' decorators: nothing else can carry them."""

    def handles(self, model: nn.Module) -> bool:
        """Without the module of the decorators no class can have been decorated."""
        return HOME in sys.modules

    def registered(self, cls: type) -> str | None:
        """Return the name set on the class if there is one, else the one in its source."""
        return super().registered(cls) or registration(cls)

    def declared(self, cls: type, calls: Mapping[str, Callable[..., Any]]) -> Mapping[str, str]:
        """Return what the source says that the class calls, and what the `kernels` library's decorators say."""
        own = vars(sys.modules.get(cls.__module__, sys))
        found = {name: text for name, text in declarations(cls).items() if calls.get(name) is own.get(name)}
        return {**super().declared(cls, calls), **found}
