"""What kernels import from the `kernels` package while they are imported, whether that package is installed or not."""

from __future__ import annotations

import importlib
import importlib.util
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from types import ModuleType
from typing import Any

__all__ = ["offering"]

_NAME = "kernels"
_NOTHING = object()


@contextmanager
def offering(modules: Mapping[str, Any]) -> Iterator[None]:
    """Let `kernels.get_kernel_dep("org/repo")` return these modules to a kernel that is being imported.

    Without the package a module of its name stands in for it, and is gone again afterwards.
    """

    def get_kernel_dep(repo_id: str) -> Any:
        if repo_id in modules:
            return modules[repo_id]
        names = ", ".join(modules) or "none"
        raise RuntimeError(f"{repo_id} is no dependency of the kernel that is being imported; it declares {names}")

    place = sys.modules.get(_NAME)
    installed = _is_installed() if place is None else hasattr(place, "get_kernel_dep")
    if installed and not modules:
        yield  # the package's own answer, that there are none, is the right one
        return
    before = place
    if place is None:
        place = importlib.import_module(_NAME) if installed else ModuleType(_NAME)
    own = vars(place).get("get_kernel_dep", _NOTHING)
    vars(place)["get_kernel_dep"] = get_kernel_dep
    sys.modules[_NAME] = place
    try:
        yield
    finally:
        if own is _NOTHING:
            vars(place).pop("get_kernel_dep", None)
        else:
            vars(place)["get_kernel_dep"] = own
        if before is None and not installed:
            sys.modules.pop(_NAME, None)


def _is_installed() -> bool:
    """Say whether the package is there; a mere folder of its name, as many projects have, is not."""
    spec = importlib.util.find_spec(_NAME)
    return spec is not None and spec.origin is not None
