from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
import torch
from torch import nn

import kerncfg.evidence.whole as module
from kerncfg.documents.target import Mode
from kerncfg.evidence.verify import verify
from kerncfg.evidence.whole import whole
from tests.subjects import POLICY, DropNorm, Norm, applied, fault, matched, qwen3, stack

if TYPE_CHECKING:
    from kerncfg.evidence.rows import Whole

MODES = (Mode.INFERENCE, Mode.TRAINING)


class Twice(nn.Module):
    """Calls one norm twice, the second time far out."""

    def __init__(self, norm: type[Norm] = Norm) -> None:
        super().__init__()
        self.norm = norm(16)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        first, second = self.norm(x), self.norm(1000 * x.roll(1))
        return torch.cat([first, second * 3])


class Steep(Twice):
    """Turns a difference of one rounding into thousands, and one number."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        result = self.norm(x).double().sum() * 1e4
        return torch.sin(result).to(x.dtype)


def found(model: nn.Module, kernel: str, inputs: dict[str, Any], norm: type[Norm] = Norm) -> Whole:
    with applied(model, matched(kernel, norm)) as bindings:
        return whole(bindings, inputs, MODES, POLICY["thresholds"])


def inputs() -> dict[str, Any]:
    return {"x": torch.randn(4, 16, generator=torch.Generator().manual_seed(0))}


def test_a_kernel_that_reuses_its_buffer_is_found() -> None:
    row = found(Twice(), "ReusesBuffer", inputs())
    assert (row.mode, row.passed, row.reason) == ("inference", False, "output: 4 of 8 rows are out of tolerance")


def test_a_kernel_that_is_wrong_for_a_later_call_is_found() -> None:
    row = found(Twice(), "WrongFarOut", inputs())
    assert (row.passed, row.reason) == (False, "output: 4 of 8 rows are out of tolerance")
    with applied(Twice(), matched("WrongFarOut")) as bindings:
        document = verify(bindings, inputs(), POLICY)
    assert [each.passed for each in document.rows] == [True]
    assert not document.passed


def test_a_mode_that_fails_is_the_one_shown() -> None:
    assert found(Twice(), "OnlyInTraining", inputs()).mode == "training"
    assert found(Twice(), "Faithful", inputs()).mode == "inference"


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float16"])
@pytest.mark.parametrize("name", ["Faithful", "Reordered", "Fused"])
def test_honest_kernels_pass_through_many_layers(name: str, dtype: str) -> None:
    loaded = qwen3(dtype, num_hidden_layers=4)
    with applied(loaded.model, fault(name)) as bindings:
        row = whole(bindings, loaded.inputs, MODES, POLICY["thresholds"])
    assert (row.passed, row.reason, row.reference) == (True, None, "float64")


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_wrong_kernels_do_not(dtype: str) -> None:
    loaded = qwen3(dtype)
    for name in ("NoWeight", "WeightOffset") if dtype == "float32" else ("NoWeight",):
        with applied(loaded.model, fault(name)) as bindings:
            assert not whole(bindings, loaded.inputs, MODES, POLICY["thresholds"]).passed


@pytest.mark.parametrize("seed", range(6))
def test_a_model_that_amplifies_roundings_blames_no_kernel(seed: int) -> None:
    torch.manual_seed(seed)
    assert found(Steep(), "Reordered", {"x": torch.randn(4, 16)}).passed


def test_without_memory_for_float64_the_original_is_the_yardstick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_lack_of_memory", lambda _: "float64 would take 64.0 GB, and 2.0 GB are free")
    good, bad = (found(Twice(), name, inputs()) for name in ("Reordered", "WrongFarOut"))
    assert good.reference == "none, float64 would take 64.0 GB, and 2.0 GB are free"
    assert (good.passed, bad.passed) == (True, False)


def test_a_model_that_draws_random_numbers_is_shown_and_not_judged() -> None:
    model, given = stack(DropNorm)
    with applied(model, matched("Dropping", DropNorm), mode="training") as bindings:
        row = whole(bindings, given, (Mode.TRAINING,), POLICY["thresholds"])
    assert row.passed and row.reference.startswith("none, the model draws random numbers")


def test_the_structure_of_the_result_has_to_be_the_same() -> None:
    class Counting(Twice):
        def forward(self, x: torch.Tensor) -> Any:
            result = self.norm(x)
            return {"result": result} if isinstance(result, torch.Tensor) else {"results": result}

    row = found(Counting(), "ReturnsTuple", inputs())
    assert row.reason == "returns a dict of results, the original a dict of result"


def test_a_kernel_that_ends_the_process_does_not() -> None:
    assert found(Twice(), "Exits", inputs()).reason == "raised SystemExit: 3"
    assert str(found(Twice(), "GivesUp", inputs()).reason).startswith("raised _Speechless")


def test_a_model_that_differentiates_in_its_forward_is_compared() -> None:
    class Force(Twice):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            x = x.detach().requires_grad_()
            return torch.autograd.grad(self.norm(x).square().sum(), x)[0]

    good, bad = (found(Force(), name, inputs()) for name in ("Faithful", "NoWeight"))
    assert (good.passed, good.reason, bad.passed) == (True, None, False)


def test_buffers_are_the_same_for_both_runs() -> None:
    class Counting(Twice):
        def __init__(self) -> None:
            super().__init__()
            self.register_buffer("count", torch.ones(()))

        count: torch.Tensor

        def forward(self, x: torch.Tensor) -> Any:
            self.count += 1
            return self.norm(x) * self.count

    assert found(Counting(), "Faithful", inputs()).identical == 1
