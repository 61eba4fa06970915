"""Where a model of some framework can be replaced: its modules, and the names their classes are registered under."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from importlib import import_module
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

if TYPE_CHECKING:
    from torch import nn

__all__ = ["ADAPTERS", "Adapter", "LayerClass", "Site", "adapter_for"]


@dataclass(frozen=True, slots=True, kw_only=True)
class LayerClass:
    """What modules of one class can be taken for.

    `classes` is the class and its bases up to the one whose `forward` runs, `name` what one of these is registered
    as. `inherited` is the name of a base beyond: its forward does not run, so the name alone says nothing.
    """

    cls: type[nn.Module]
    classes: tuple[type, ...]
    name: str | None
    inherited: str | None
    forward: Callable[..., Any]
    condition: Callable[[nn.Module], bool] | None


class Site(NamedTuple):
    """A module with a forward: its path (the first, if it is shared), what its class is, and its further paths."""

    path: str
    module: nn.Module
    layer: LayerClass
    others: tuple[str, ...]


class Adapter(Protocol):
    """How the models of one framework say what their layers are called."""

    def handles(self, model: nn.Module) -> bool:
        """Say whether this adapter knows such models; the first one that does is asked."""

    def sites(self, model: nn.Module) -> list[Site]:
        """Return every module that has a forward, once, in the model's order."""


# In the order in which they are asked, as `module:Class`.
ADAPTERS: Mapping[str, str] = {
    "transformers": "kerncfg.applier.adapters.transformers:TransformersAdapter",
    "torch": "kerncfg.applier.adapters.torch:TorchAdapter",
}


def adapter_for(model: nn.Module, *, adapters: Mapping[str, str] = ADAPTERS) -> Adapter:
    """Return the first adapter that knows the model; the one for plain torch knows them all."""
    for place in adapters.values():
        module, _, name = place.partition(":")
        adapter: Adapter = getattr(import_module(module), name)()
        if adapter.handles(model):
            return adapter
    raise LookupError(f"no adapter knows {type(model).__qualname__}")
