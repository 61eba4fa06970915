"""Which functions the attention of a model runs, and what one thread calls them with."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from kerncfg.applier.adapters.attention import Registries
from kerncfg.applier.adapters.attention_source import reading

if TYPE_CHECKING:
    from torch import nn

    from kerncfg.applier.adapters.attention import Place

__all__ = ["Run", "function_of", "intercepted"]

Run = Callable[[Callable[..., Any], "nn.Module", tuple[Any, ...], dict[str, Any]], Any]

_MISSING = object()
_lock = threading.RLock()  # what two threads put into the registries at once could not be taken out again


def function_of(place: Place, name: str | None) -> Callable[..., Any] | None:
    """Return the function that a module runs as its attention under a name; `None` if nobody can tell."""
    if name in (None, "eager"):
        return place.reading.eager
    registries = Registries.find()
    return registries.functions.get(name) if registries is not None and name is not None else None


@contextmanager
def intercepted(names: Iterable[str | None], run: Run) -> Iterator[None]:
    """Let `run(function, module, arguments, keywords)` stand for each attention that this thread calls by some names.

    Other threads run what they would; those that want the same wait.
    """
    registries = Registries.find()
    if registries is None:
        yield
        return
    functions: dict[Any, Any] = registries.functions
    thread = threading.get_ident()

    def around(found: Any) -> Callable[..., Any]:
        def attention(module: nn.Module, *arguments: Any, **keywords: Any) -> Any:
            function = found
            if function is _MISSING:  # eager stands in no registry: it is a function of each model's own file
                function = getattr(reading(type(module), functions), "eager", None)
            if threading.get_ident() != thread:
                return function(module, *arguments, **keywords)
            return run(function, module, arguments, keywords)

        return attention

    with _lock:
        before = {name: functions.get(name, _MISSING) for name in dict.fromkeys(names)}
        functions.update({name: around(found) for name, found in before.items()})
        try:
            yield
        finally:
            for name, found in before.items():
                if found is _MISSING:
                    del functions[name]
                else:
                    functions[name] = found
