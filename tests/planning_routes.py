"""What a plan says of the row X, in a form that can be compared whatever way the row was said."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from kerncfg.errors import ConfigError

if TYPE_CHECKING:
    from kerncfg.documents.plan import Plan

Said = dict[str, Any]


def said(make: Callable[[], Plan]) -> Said:
    """Return what the row takes, its reasons and references by mode, or the messages of the error."""
    try:
        plan = make()
    except ConfigError as error:
        return {"refused": [issue.message for issue in error.issues]}
    steps = [step for step in plan.to_dict()["steps"] if step["name"] == "X"]
    taken = {key: step[key] for step in steps for key in ("members", "path", "mask", "fallback")}
    modes = {mode: _without_origins(found) for step in steps for mode, found in step["modes"].items()}
    return {"modes": modes, **taken}


def _without_origins(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _without_origins(child) for key, child in value.items() if key not in ("origin", "asked")}
    return [_without_origins(child) for child in value] if isinstance(value, list) else value
