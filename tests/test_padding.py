"""What of a model's result is computed from padding, and is no kernel's fault."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn

import kerncfg.evidence.whole as module
from kerncfg.evidence.padding import Padding, may_pad, moved_rows, told, without
from kerncfg.evidence.verify import verify
from tests import attending
from tests.subjects import POLICY, applied

FLASH, RIGHT, WRONG = (
    f"python:tests.{name}"
    for name in ("attention_kernels:FLASH", "attention_kernels:interface", "attention_planted:forgets_scaling")
)
NOTE = "the whole model: what is computed from padding is not compared: "


class Pooled(nn.Module):
    """An encoder of text, and one of the ways in which such models come to one row for each text."""

    def __init__(self, how: str) -> None:
        super().__init__()
        self.inner = attending.model("bert")
        self.config = self.inner.config
        self.how = how

    def forward(self, input_ids: torch.Tensor, attention_mask: torch.Tensor) -> Any:
        found = self.inner(input_ids, attention_mask).last_hidden_state
        if self.how == "first":
            return found[:, 0]
        if self.how == "last":
            return found[:, -1]
        if self.how == "all":
            return found.mean(1)
        return (found * attention_mask[..., None]).sum(1)


def verified(model: nn.Module, kernel: str, mask: torch.Tensor) -> Any:
    with applied(model, "inherited=none", f"attention.x={kernel}", mode="inference") as bindings:
        return verify(bindings, {"input_ids": attending.tokens(), "attention_mask": mask}, POLICY)


def test_a_right_kernel_is_not_blamed_for_what_a_model_pools_from_padding() -> None:
    """Queries of padding get nothing from flash attention, and something from PyTorch's own."""
    found = verified(attending.model("bert"), FLASH, attending.padding())
    assert (found.passed, found.model.passed, found.model.reference) == (True, True, "float64")
    rows = "3 of 20 rows of output.last_hidden_state, 1 of 2 rows of output.pooler_output"
    assert found.notes == (NOTE + rows,)


@pytest.mark.parametrize(("how", "note"), [("first", 1), ("all", 1), ("last", 0), ("weighted", 0)])
def test_only_what_padding_moves_is_left_out_and_a_wrong_kernel_still_fails(how: str, note: int) -> None:
    right = verified(Pooled(how), FLASH, attending.padding())
    assert right.model.passed and right.notes == ((f"{NOTE}1 of 2 rows of output",) if note else ())
    wrong = verified(Pooled(how), WRONG, attending.padding())
    assert not wrong.model.passed and "output: " in wrong.model.reason
    assert wrong.notes == ()  # its masks leave every query something to see


def test_a_model_whose_whole_output_comes_from_padding_is_shown_and_not_judged() -> None:
    mask = torch.ones(2, attending.LENGTH, dtype=torch.long)
    mask[:, :2] = 0
    found = verified(Pooled("first"), FLASH, mask).model
    assert found.passed and found.reference.startswith("none, all of the output is computed from padding")


def test_where_the_model_cannot_run_without_attention_only_its_places_of_padding_are_left_out(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    class Refusing(Padding):
        def masks(self) -> Any:
            raise ValueError("no")

    monkeypatch.setattr(module, "Padding", Refusing)
    assert verified(Pooled("last"), FLASH, attending.padding()).model.passed
    assert not verified(Pooled("first"), FLASH, attending.padding()).model.passed


def test_inputs_say_by_a_mask_or_a_token_that_a_place_is_none() -> None:
    model, ids = attending.model("qwen3"), attending.tokens()
    assert may_pad({"input_ids": ids, "attention_mask": attending.padding()}, model)
    assert may_pad({"input_ids": ids, "decoder_attention_mask": attending.padding()}, model)
    assert not may_pad({"input_ids": ids, "attention_mask": torch.ones_like(ids)}, model)
    assert not may_pad({"input_ids": ids}, model)
    ids[0, 0] = model.config.pad_token_id
    assert may_pad({"input_ids": ids}, model)
    assert not may_pad({"input_ids": ids, "attention_mask": torch.ones_like(ids)}, model)


def test_rows_that_move_by_half_of_their_digits_do_not_count() -> None:
    own = {"long": torch.ones(2, 3, 32), "short": torch.ones(4, 2), "ids": torch.arange(4), "loss": torch.ones(())}
    other = {name: tensor.clone() for name, tensor in own.items()}
    other["long"][0, 1, 5] += 1e-2
    other["long"][1, 2, 5] += 1e-5  # a rounding, as experts make it that get other tokens beside
    other["short"][3, 1] = torch.nan
    other["ids"][2] += 1
    rows = moved_rows({**own, "name": "x", "shape": torch.ones(2)}, {**other, "name": "y", "shape": torch.ones(3)})
    assert {name: int(found.sum()) for name, found in rows.items()} == {"long": 1, "short": 1, "ids": 1}
    left = without({**other, "loss": 1.0}, rows)
    assert left["long"][0, 1].abs().sum() == 0 and left["short"][3].tolist() == [1, 0]
    assert left["ids"].tolist() == [0, 1, 0, 3] and left["loss"] == 1.0
    odd = torch.ones(3, 3, 32)
    assert without({"long": odd}, rows)["long"] is odd
    assert told(rows) == f"{NOTE}1 of 6 rows of long, 1 of 8 rows of short, 1 of 4 rows of ids"
