"""Decide from YAML which kernel each layer of a PyTorch model runs.

The names below are loaded when first used: importing kerncfg imports neither torch, hydra nor transformers.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from kerncfg.api import bench, fetch, kernelize, lock, plan, verify
    from kerncfg.applier.adapters.torch import kernel_layer
    from kerncfg.applier.apply import Bindings, Report, apply, revert
    from kerncfg.dialects.files import translate
    from kerncfg.dialects.kernel_config import from_kernel_config
    from kerncfg.dialects.kernel_mapping import to_kernel_config
    from kerncfg.dialects.liger import from_liger
    from kerncfg.dialects.translation import Translation
    from kerncfg.documents.lock import Lock
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
    from kerncfg.page.report import report
    from kerncfg.page.sweep import compare
    from kerncfg.saved import load_plan
    from kerncfg.sharing.pull import pull
    from kerncfg.sharing.push import push

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
    "Lock",
    "LockError",
    "Mode",
    "Plan",
    "Report",
    "ResolutionError",
    "SourceError",
    "Translation",
    "TrustError",
    "apply",
    "bench",
    "compare",
    "fetch",
    "from_kernel_config",
    "from_liger",
    "kernel_layer",
    "kernelize",
    "load_plan",
    "lock",
    "plan",
    "pull",
    "push",
    "report",
    "revert",
    "to_kernel_config",
    "translate",
    "verify",
]

_HOMES = {
    "Bindings": "kerncfg.applier.apply",
    "Lock": "kerncfg.documents.lock",
    "Mode": "kerncfg.documents.target",
    "Plan": "kerncfg.documents.plan",
    "Report": "kerncfg.applier.apply",
    "Translation": "kerncfg.dialects.translation",
    "apply": "kerncfg.applier.apply",
    "bench": "kerncfg.api",
    "compare": "kerncfg.page.sweep",
    "fetch": "kerncfg.api",
    "from_kernel_config": "kerncfg.dialects.kernel_config",
    "from_liger": "kerncfg.dialects.liger",
    "kernel_layer": "kerncfg.applier.adapters.torch",
    "kernelize": "kerncfg.api",
    "load_plan": "kerncfg.saved",
    "lock": "kerncfg.api",
    "plan": "kerncfg.api",
    "pull": "kerncfg.sharing.pull",
    "push": "kerncfg.sharing.push",
    "report": "kerncfg.page.report",
    "revert": "kerncfg.applier.apply",
    "to_kernel_config": "kerncfg.dialects.kernel_mapping",
    "translate": "kerncfg.dialects.files",
    "verify": "kerncfg.api",
}


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module 'kerncfg' has no attribute {name!r}")
    value = getattr(import_module(_HOMES.get(name, "kerncfg.errors")), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
