"""Kernels that read inside a child of their module, and so pass by what is around that child: an adapter, hooks.

What is there when a plan is applied keeps the kernel out. What comes later has to be seen by each call: an adapter that
a kernel reads past would never train, and nobody would know.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterable
from functools import cache, wraps
from typing import TYPE_CHECKING, Any

import torch

from kerncfg.errors import KerncfgWarning

if TYPE_CHECKING:
    from torch import nn

__all__ = ["around", "guarded", "inner_child", "names_in", "passed_by"]

_BOUND = "_kerncfg"  # what is bound to a module stands there; a kernel of its own is nothing that is passed by


def around(child: nn.Module) -> str | None:
    """Say what is around a child that its parent's kernel reads inside of."""
    entries = child.__dict__
    if "base_layer" in entries["_modules"]:
        return f"the adapter {type(child).__qualname__} there"
    if "forward" in entries:
        return "the wrapper around its forward"
    if entries["_forward_hooks"] or entries["_forward_pre_hooks"]:
        return "its forward hooks"
    return None


def names_in(module: nn.Module, parts: Iterable[str]) -> tuple[str, ...]:
    """Return those of the attributes that a kernel reads which are children of a module, or children of these."""
    return tuple(sorted(name for name in parts if inner_child(module, name) is not None)) if module._modules else ()


def inner_child(module: nn.Module, path: str) -> nn.Module | None:
    """Return the child that dotted attributes lead to; `None` if that is none."""
    found: nn.Module | None = module
    for name in path.split("."):
        found = None if found is None else found._modules.get(name)
    return found


@cache
def guarded(forward: Callable[..., Any], names: tuple[str, ...]) -> Callable[..., Any]:
    """Return a forward that gives way to the module's own where something came around one of these children."""

    @wraps(forward)
    def run(module: nn.Module, *arguments: Any, **keywords: Any) -> Any:
        for name in names:
            child = inner_child(module, name)
            if child is not None and _is_wrapped(child):
                if not torch.compiler.is_compiling():
                    warnings.warn(
                        f"a {type(module).__qualname__} runs its own forward and no kernel: {_past(name, child)}",
                        KerncfgWarning,
                        stacklevel=2,
                    )
                return type(module).forward(module, *arguments, **keywords)
        return forward(module, *arguments, **keywords)

    run.inside = names  # type: ignore[attr-defined]
    return run


def passed_by(module: nn.Module, forward: Callable[..., Any] | None) -> str | None:
    """Say for a report what a kernel's forward gives way to in a module."""
    for name in getattr(forward, "inside", ()):
        child = inner_child(module, name)
        if child is not None and _is_wrapped(child):
            return f"changed since: {_past(name, child)}, so the module runs its own"
    return None


def _past(name: str, child: nn.Module) -> str:
    return f"its forward reads inside self.{name}, past {around(child)}"


def _is_wrapped(child: nn.Module) -> bool:
    if "base_layer" in child._modules or child._forward_hooks or child._forward_pre_hooks:
        return True
    if torch.compiler.is_compiling():
        return False
    forward = child.__dict__.get("forward")
    return forward is not None and getattr(child.__dict__.get(_BOUND), "current", None) is not forward
