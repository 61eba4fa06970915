"""Every architecture of transformers that can be built tiny: its sites are found, and kernels go on and off again."""

from __future__ import annotations

import gc
from collections import Counter
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from importlib import import_module
from itertools import chain
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from kerncfg.applier.adapters import Sites, adapter_for
from kerncfg.applier.apply import apply
from kerncfg.applier.attention import parts
from kerncfg.applier.report import STATUSES
from kerncfg.documents.config import ORIGINAL, KernelRef
from kerncfg.documents.plan import Attend, Choice, Kernel, ModePlan, Step
from kerncfg.documents.target import Mode
from tests import originals
from tests.architectures import FAMILIES, LEFT_OUT, architectures, build, row
from tests.planning import TRUST, plan, step
from tests.snapshot import snapshot

CHECKOUT = Path(__file__).parent.parent
CONSENT = TRUST.plus("python:tests.originals")


import_module("kerncfg.sources.local")  # the first apply would, and it stays


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
    return Attend(
        node="attention",
        name="attention",
        members=(),
        path=None,
        mask="auto",
        modes=modes,
        match=None,
        exclude=(),
        fallback="original",
        own=True,
        reason="",
    )


def check(model: nn.Module) -> Counter[tuple[str, str]]:
    """Apply all of it, and take it back; count the sites by kind and status."""
    sites = adapter_for(model).sites(model)
    steps = rows(sites) + ([attention_row()] if parts(model) else [])
    before = snapshot(model)
    bindings = apply(plan(*steps, trust=CONSENT), model)
    found = Counter((row.kind, row.status) for row in bindings.report.rows)
    assert all(row.reason for row in bindings.report.rows)
    bindings.revert()
    assert snapshot(model) == before, "not as it was before"
    return found


def page() -> dict[str, str]:
    """The rows of the page on architectures, by architecture."""
    text = (CHECKOUT / "docs/architectures.md").read_text("utf-8")
    return {line.split("`")[1]: line for line in text.splitlines() if line.startswith("| `")}


@pytest.mark.parametrize("model_type", FAMILIES)
def test_a_familys_sites_are_found_swapped_and_given_back(model_type: str) -> None:
    model = build(model_type)
    found = check(model)
    assert sum(count for (kind, status), count in found.items() if status == "swapped") > 0
    assert page()[model_type] == row(model_type, model)


def begin() -> None:
    """Let a process look at hundreds of models without the collector, which takes a third of the time, between them."""
    torch.set_num_threads(1)
    gc.collect()
    gc.freeze()
    gc.disable()


def look(model_types: Sequence[str]) -> list[tuple[str, Counter[tuple[str, str]] | str]]:
    """Return the row of each architecture, and its counted sites or what went wrong."""
    found: list[tuple[str, Counter[tuple[str, str]] | str]] = []
    for model_type in model_types:
        try:
            model = build(model_type)
            found.append((row(model_type, model), check(model)))
        except Exception as error:
            found.append(("", f"{type(error).__name__}: {str(error)[:300]}"))
    gc.collect()
    return found


@pytest.mark.slow
def test_every_architectures_sites_are_found_swapped_and_given_back() -> None:
    names = sorted(set(architectures()) - set(LEFT_OUT))
    chunks = [names[start : start + 8] for start in range(0, len(names), 8)]
    with ProcessPoolExecutor(2, mp_context=get_context("spawn"), initializer=begin) as processes:
        found = dict(zip(names, chain.from_iterable(processes.map(look, chunks)), strict=True))
    assert {name: result for name, (_, result) in found.items() if isinstance(result, str)} == {}
    told = page()
    assert [name for name, (line, _) in found.items() if told[name] != line] == [], "run: python docs/_architectures.py"
    total: Counter[tuple[str, str]] = Counter()
    for _, result in found.values():
        assert not isinstance(result, str)
        total += result
    every = {kind: sum(total[kind, status] for status in STATUSES) for kind in ("layer", "function")}
    # Kept are layers whose kernel another class's fits but for what the module has, and functions whose caller got one.
    assert total["layer", "kept"] / every["layer"] < 0.02
    assert total["function", "kept"] / every["function"] < 0.15


def test_few_architectures_are_left_out_and_each_says_why() -> None:
    assert set(LEFT_OUT) <= set(architectures())
    assert all(LEFT_OUT.values())
    assert len(LEFT_OUT) <= 40
    assert len(FAMILIES) >= 12


def test_the_page_has_every_architecture() -> None:
    assert set(page()) == set(architectures())
    for model_type, reason in LEFT_OUT.items():
        assert reason in page()[model_type]


def test_what_is_tiny_is_tiny() -> None:
    for model_type in FAMILIES:
        assert sum(parameter.numel() for parameter in build(model_type).parameters()) < 60e6
