"""Every architecture of transformers that can be built tiny: its sites are found, and kernels go on and off again."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest
from torch import nn

from kerncfg.applier.adapters import Sites, adapter_for
from kerncfg.applier.apply import apply
from kerncfg.applier.attention import parts
from kerncfg.documents.config import ORIGINAL, KernelRef
from kerncfg.documents.plan import Attend, Choice, Kernel, ModePlan, Step
from kerncfg.documents.target import Mode
from tests import originals
from tests.architectures import FAMILIES, LEFT_OUT, architectures, build
from tests.planning import TRUST, plan, step
from tests.snapshot import snapshot

CONSENT = TRUST.plus("python:tests.originals")


def rows(sites: Sites) -> list[Step]:
    """A row for every registered name, with a kernel for each of the forwards and functions that have it."""
    codes: dict[str, dict[Any, Any]] = {}
    for layer in {layer for layer in sites.layers if layer is not None}:
        if layer.name:
            codes.setdefault(layer.name, {})[layer.forward] = originals.layer(layer.forward)
        for one in layer.functions:
            if one.name:
                codes.setdefault(one.name, {})[one.function] = originals.function(one.function)
    return [step(name, originals.place(name, found.values())) for name, found in codes.items()]


def attention_row() -> Step:
    """Another attention for all parts, but for those that can have none of these."""
    choices = tuple(
        Choice(kernel=Kernel(reference=ref), conditions={}, origin="attention.yaml:1", reason="chosen")
        for ref in (KernelRef(scheme="attention", name="eager"), KernelRef(scheme="attention", name="sdpa"), ORIGINAL)
    )
    modes = {mode: ModePlan(choices=choices, rejected=()) for mode in Mode}
    return Attend(node="attention", name="attention", members=(), path=None, mask="auto", modes=modes, match=None,
                  exclude=(), fallback="original", own=True, reason="")  # fmt: skip


def check(model: nn.Module) -> Counter[tuple[str, str, str]]:
    """Apply all of it, and take it back; count the rows by kind, name and status."""
    sites = adapter_for(model).sites(model)
    steps = rows(sites) + ([attention_row()] if parts(model) else [])
    if not steps:
        return Counter()
    before = snapshot(model)
    bindings = apply(plan(*steps, trust=CONSENT), model)
    found = Counter((row.kind, row.name, row.status) for row in bindings.report.rows)
    for row in bindings.report.rows:
        if row.status != "swapped": print(row.kind, row.name, row.path, row.reason)
    bindings.revert()
    assert snapshot(model) == before
    return found
