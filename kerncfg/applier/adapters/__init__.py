"""Where a model of some framework can be replaced: its modules, and the names their classes are registered under."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from importlib import import_module
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

if TYPE_CHECKING:
    from torch import nn

__all__ = ["ADAPTERS", "Adapter", "Function", "LayerClass", "Site", "Sites", "adapter_for"]


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Function:
    """A function that the forward of a class calls by name.

    `called` is the name that the forward has for it, `name` what the class declares it to be registered as. `inherited`
    is what a base says beyond the one whose `forward` runs, which says nothing of this forward.
    """

    called: str
    function: Callable[..., Any]
    name: str | None
    inherited: str | None


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class LayerClass:
    """What modules of one class can be taken for.

    `classes` is the class and its bases up to the one whose `forward` runs, `name` what one of these is registered
    as. `inherited` is the name of a base beyond: its forward does not run, so the name alone says nothing. `functions`
    are what this forward calls.
    """

    cls: type[nn.Module]
    classes: tuple[type, ...]
    name: str | None
    inherited: str | None
    forward: Callable[..., Any]
    condition: Callable[[nn.Module], bool] | None
    functions: tuple[Function, ...] = ()


class Site(NamedTuple):
    """A module with a forward: its path (the first, if it is shared), what its class is, and its further paths."""

    path: str
    module: nn.Module
    layer: LayerClass
    others: tuple[str, ...]


@dataclass(frozen=True, slots=True, eq=False)
class Sites:
    """Every module of a model once, in its order, as columns; where `layers` has `None` a module has no forward.

    Columns, because an object for each of 10,000 modules costs as much as walking over them.
    """

    paths: Sequence[str]
    modules: Sequence[nn.Module]
    layers: Sequence[LayerClass | None]
    shared: Mapping[int, tuple[str, ...]]  # further paths, by the place in the columns

    def __getitem__(self, index: int) -> Site:
        layer = self.layers[index]
        if layer is None:
            raise LookupError(f"{self.paths[index]} has no forward")
        return Site(self.paths[index], self.modules[index], layer, self.shared.get(index, ()))

    def __iter__(self) -> Iterator[Site]:
        return (self[index] for index, layer in enumerate(self.layers) if layer is not None)


class Adapter(Protocol):
    """How the models of one framework say what their layers are called."""

    def handles(self, model: nn.Module) -> bool:
        """Say whether this adapter knows such models; the first one that does is asked."""

    def sites(self, model: nn.Module) -> Sites:
        """Return every module once, in the model's order, with what its class is."""


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
