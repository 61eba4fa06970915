"""Which kernels of a test's Hub ran: they say so here themselves, since a result that is right does not tell."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

ran: list[str] = []


def during(call: Callable[[], Any]) -> tuple[Any, list[str]]:
    """Call, and give the result with the kernels that ran meanwhile, each once."""
    ran.clear()
    result = call()
    return result, sorted(set(ran))
