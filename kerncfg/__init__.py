"""Decide from YAML which kernel each layer of a PyTorch model runs.

The names below are loaded when first used: importing kerncfg imports neither torch, hydra nor transformers.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from kerncfg.api import kernelize, load_plan, plan
    from kerncfg.applier.adapters.torch import kernel_layer
    from kerncfg.applier.apply import Bindings, Report, apply, revert
    from kerncfg.documents.plan import Plan
    from kerncfg.documents.target import Mode
    from kerncfg.errors import (
        ApplyError,
        ConfigError,
        ConflictError,
        ContractError,
        IntegrityError,
        Issue,
        KerncfgError,
        KerncfgWarning,
        LockError,
        ResolutionError,
        SourceError,
        TrustError,
    )

__all__ = [
    "ApplyError",
    "Bindings",
    "ConfigError",
    "ConflictError",
    "ContractError",
    "IntegrityError",
    "Issue",
    "KerncfgError",
    "KerncfgWarning",
    "LockError",
    "Mode",
    "Plan",
    "Report",
    "ResolutionError",
    "SourceError",
    "TrustError",
    "apply",
    "kernel_layer",
    "kernelize",
    "load_plan",
    "plan",
    "revert",
]

_HOMES = {
    "Bindings": "kerncfg.applier.apply",
    "Mode": "kerncfg.documents.target",
    "Plan": "kerncfg.documents.plan",
    "Report": "kerncfg.applier.apply",
    "apply": "kerncfg.applier.apply",
    "kernel_layer": "kerncfg.applier.adapters.torch",
    "kernelize": "kerncfg.api",
    "load_plan": "kerncfg.api",
    "plan": "kerncfg.api",
    "revert": "kerncfg.applier.apply",
}


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module 'kerncfg' has no attribute {name!r}")
    value = getattr(import_module(_HOMES.get(name, "kerncfg.errors")), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
