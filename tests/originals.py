"""Kernels that do what the model does anyway: each runs the code of the class or function in whose place it is put."""

from __future__ import annotations

from collections.abc import Iterable
from types import FunctionType, SimpleNamespace
from typing import Any

from torch import nn

__all__ = ["layers", "place"]

layers = SimpleNamespace()  # where a reference to this module looks for its kernels


def place(name: str, codes: Iterable[Any]) -> list[str]:
    """Put a kernel for each forward or function under the name, and return the references of all."""
    references = []
    for number, code in enumerate(codes):
        setattr(layers, f"{name}_{number}", code)
        references.append(f"python:{__name__}:{name}_{number}")
    return references


def layer(forward: Any) -> type[nn.Module]:
    return type("Original", (nn.Module,), {"forward": forward, "__module__": __name__})


def function(called: Any) -> Any:
    """A copy, which is no part of the model's module; what is no plain function is taken as it is."""
    if not isinstance(called, FunctionType):
        return called
    made = FunctionType(called.__code__, called.__globals__, called.__name__, called.__defaults__, called.__closure__)
    made.__kwdefaults__ = called.__kwdefaults__
    made.__dict__.update(called.__dict__)
    return made
