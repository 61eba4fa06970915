"""The rows of a report say what each site runs now."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

import kerncfg
from kerncfg.applier.apply import Bindings, apply
from tests import kinds

if TYPE_CHECKING:
    from kerncfg.applier.report import ReportRow


@pytest.fixture(scope="module")
def four() -> kerncfg.Plan:
    return kinds.plan()


def rows(bindings: Bindings, kind: str) -> list[ReportRow]:
    return [row for row in bindings.report.rows if row.kind == kind]


def test_every_kind_says_mode_kernel_and_where_it_was_said(four: kerncfg.Plan) -> None:
    with apply(four, kinds.qwen()) as bindings:
        for kind, count in kinds.SITES.items():
            found = rows(bindings, kind)
            assert len(found) == count
            for row in found:
                assert (row.status, row.mode) == ("swapped", "inference")
                assert row.kernel is not None and set(row.modes) == {"inference", "training"}
                assert "(override: " in row.reason


def test_the_part_that_trains_is_told_in_its_own_mode(four: kerncfg.Plan) -> None:
    model = kinds.qwen()
    with apply(four, model) as bindings:
        model.model.layers[1].train()
        modes = {row.path: row.mode for row in bindings.report.rows}
        assert modes["model.layers.1.input_layernorm"] == modes["model.layers.1.self_attn"] == "training"
        assert modes["model.layers.0.input_layernorm"] == modes["model"] == "inference"


def test_what_was_reverted_runs_no_kernel_and_says_so(four: kerncfg.Plan) -> None:
    bindings = apply(four, kinds.qwen())
    bindings.revert()
    for row in bindings.report.rows:
        assert (row.status, row.kernel, row.reason) == ("kept", None, "reverted")


def test_a_part_that_is_reverted_alone_is_told_and_the_rest_is_not(four: kerncfg.Plan) -> None:
    model = kinds.qwen()
    with apply(four, model) as bindings:
        kerncfg.revert(model.model.layers[0])
        gone = {row.path for row in bindings.report.rows if row.reason == "reverted"}
        assert gone and all(path.startswith("model.layers.0") for path in gone)
        assert any(row.status == "swapped" and row.path.startswith("model.layers.1") for row in bindings.report.rows)


def test_attention_that_somebody_else_chose_since_is_told(four: kerncfg.Plan) -> None:
    model = kinds.qwen()
    with apply(four, model) as bindings:
        model.model.config._attn_implementation = "eager"
        (row,) = rows(bindings, "attention")
        assert (row.status, row.kernel) == ("kept", None)
        assert row.reason.startswith("changed since: ") and row.reason.endswith("finds the attention 'eager' now")


def test_a_later_apply_is_told_by_the_earlier_report(four: kerncfg.Plan) -> None:
    model = kinds.qwen()
    with apply(four, model) as outer:
        before = {row.path: row.reason for row in rows(outer, "layer")}
        plan = kerncfg.plan("inherited=none", "kernels.RMSNorm=null", target="cpu")
        inner = apply(plan, model)
        after: dict[str, Any] = {row.path: row.reason for row in rows(outer, "layer")}
        assert all(after[path] != reason for path, reason in before.items())
        inner.revert()
        assert {row.path: row.reason for row in rows(outer, "layer")} == before
