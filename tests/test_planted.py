"""Every planted fault is found and blamed on its own row, beside a kernel that is right; and what is right passes."""

from __future__ import annotations

import shutil

import pytest
import torch
from torch import nn
from torch.nn import functional

from kerncfg.evidence.verify import Verification, verify
from kerncfg.machine import detect
from kerncfg.models import build
from tests.subjects import FAULTS, POLICY, TINY, Norm, applied

DTYPES = ["float32", "bfloat16", "float16"]


def judged(found: Verification) -> dict[str, bool]:
    """Give for every row of the user's whether all its kernels passed."""
    return {name: all(row.passed for row in found.rows if row.name == name) for name in {r.name for r in found.rows}}


def beside(name: str, sequence: int = 8, dtype: str = "float32", scale: float = 1.0) -> Verification:
    """Verify a kernel on the first norm of every layer of a Qwen3, with a right one on the second."""
    node = {"architecture": "Qwen3ForCausalLM", "config": TINY, "dtype": dtype, "seed": 0}
    loaded = build({**node, "batch": 2, "sequence": sequence}, detect({"device": "cpu"}))
    with torch.no_grad():
        loaded.model.get_input_embeddings().weight.mul_(scale)  # type: ignore[operator]
    rows = [
        f"kernels.{row}={{match: {{path: model.layers.*.{path}}}, cpu: {FAULTS}:{kernel}}}"
        for row, path, kernel in (
            ("Planted", "input_layernorm", name),
            ("Right", "post_attention_layernorm", "Faithful"),
        )
    ]
    with applied(loaded.model, "inherited=none", *rows) as bindings:
        return verify(bindings, loaded.inputs, POLICY)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(
    "name",
    ["WeightOffset", "EpsilonOutside", "NarrowSum", "WeakGradient", "WritesToInput", "OnlyInTraining"],
)
def test_a_planted_fault_is_blamed_on_its_row_alone(name: str, dtype: str) -> None:
    # small inputs for epsilon: at 0.02, as embeddings are made, it changes less than bfloat16 can hold
    found = beside(name, dtype=dtype, scale=0.1 if name == "EpsilonOutside" else 1.0)
    assert judged(found) == {"Planted": False, "Right": True}
    assert not found.passed


@pytest.mark.parametrize("name", ["Faithful", "Reordered", "Fused"])
def test_what_is_right_is_blamed_for_nothing(name: str) -> None:
    found = beside(name)
    assert judged(found) == {"Planted": True, "Right": True}
    assert found.passed


@pytest.mark.skipif(shutil.which("g++") is None, reason="the compiler of PyTorch needs one for C++")
@pytest.mark.slow
@pytest.mark.filterwarnings(  # torch, of its own tracing
    "ignore::DeprecationWarning", "ignore:.*should not be instantiated", "ignore:The .grad attribute"
)
@pytest.mark.parametrize("dtype", DTYPES)
def test_what_inductor_writes_is_blamed_for_nothing(dtype: str) -> None:
    found = beside("Inductor", dtype=dtype)
    assert [row.reason for row in found.rows if row.reason] == []
    assert found.passed


def test_results_that_differ_from_run_to_run_are_told_of_their_row() -> None:
    repeatable = {row.name: row.repeatable for row in beside("Unsteady").rows}
    assert repeatable == {"Planted": False, "Right": True}


def test_a_fault_of_odd_lengths_shows_on_inputs_of_odd_length() -> None:
    # verification judges on the inputs a run gives: a fault that these do not reach is not found
    assert judged(beside("WrongOddly", sequence=9)) == {"Planted": False, "Right": True}
    assert judged(beside("WrongOddly", sequence=8)) == {"Planted": True, "Right": True}


def test_no_number_on_large_values_shows_where_the_model_has_them() -> None:
    found = beside("OverflowsFarOut", scale=1e5)
    assert judged(found) == {"Planted": False, "Right": True}
    assert any("nan" in str(row.to_dict()["max_abs"]) for row in found.rows if row.name == "Planted")
    assert judged(beside("OverflowsFarOut")) == {"Planted": True, "Right": True}


def test_a_missing_offset_is_blamed_on_gemmas_norm() -> None:
    node = {"architecture": "GemmaForCausalLM", "config": TINY, "dtype": "float32", "seed": 0}
    verdicts = {}
    for name in ("OffsetMissing", "ZeroCentered"):
        loaded = build({**node, "batch": 2, "sequence": 8}, detect({"device": "cpu"}))
        row = f"kernels.Planted={{match: {{class: GemmaRMSNorm}}, cpu: {FAULTS}:{name}}}"
        with applied(loaded.model, "inherited=none", row) as bindings:
            verdicts[name] = judged(verify(bindings, loaded.inputs, POLICY))
    assert verdicts == {"OffsetMissing": {"Planted": False}, "ZeroCentered": {"Planted": True}}


class Attend(nn.Module):
    def forward(self, x: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
        return functional.scaled_dot_product_attention(x, x, x, attn_mask=mask)


class Attending(nn.Module):
    """A norm and attention under a causal mask."""

    def __init__(self) -> None:
        super().__init__()
        self.norm, self.attend = Norm(16), Attend()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        mask = torch.ones(x.shape[-2], x.shape[-2], dtype=torch.bool).tril()
        result: torch.Tensor = self.attend(self.norm(x), mask)
        return result


@pytest.mark.parametrize(("name", "passed"), [("IgnoresMask", False), ("Attends", True)])
def test_a_mask_that_is_ignored_is_blamed_on_the_attention(name: str, passed: bool) -> None:
    rows = [
        f"kernels.{row}={{match: {{class: {cls}}}, cpu: {FAULTS}:{kernel}}}"
        for row, cls, kernel in (("Planted", "Attend", name), ("Right", "Norm", "Faithful"))
    ]
    x = torch.randn(1, 6, 16, generator=torch.Generator().manual_seed(0))
    with applied(Attending(), "inherited=none", *rows) as bindings:
        found = verify(bindings, {"x": x}, POLICY)
    assert judged(found) == {"Planted": passed, "Right": True}
