from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import pytest
import torch

from kerncfg.evidence.compare import changed, compare, opaque, structure
from kerncfg.evidence.contents import contents
from kerncfg.evidence.judge import Difference
from tests.test_judge import THRESHOLDS


@dataclass
class Result:
    logits: Any
    count: int = 1


def compared(own: Any, kernel: Any, truth: Any = None, dtype: str = "float32") -> Difference:
    reference = None if truth is None else contents(truth, "output")
    return Difference.merged(compare(contents(own, "output"), contents(kernel, "output"), reference, THRESHOLDS, dtype))


@pytest.mark.parametrize(
    ("own", "kernel", "reason"),
    [
        (torch.ones(1), (torch.ones(1),), "returns a tuple of 1, the original a tensor"),
        ([1, 2], (1, 2), "returns a tuple of 2, the original a list of 2"),
        ({"a": 1}, {"b": 1}, "returns a dict of b, the original a dict of a"),
        ((1, [2, 3]), ([1, 2], 3), "output[0] is a list of 2, the original's an int"),
        (Result(1), Result(None), "output.logits is None, the original's an int"),
        (1, True, "returns a bool, the original an int"),
        (Result(1, 3), Result(1, 4), "output.count is 4, the original's 3"),
        ("a", "b", "output is 'b', the original's 'a'"),
        (object(), object(), "nothing could be compared: output is an object, which cannot be looked into"),
    ],
)
def test_structure_and_plain_values_have_to_be_equal(own: Any, kernel: Any, reason: str) -> None:
    assert compared(own, kernel).reasons == (reason,)


@pytest.mark.parametrize("value", [None, 3, "text", (), {"a": [None, 2]}, (torch.ones(1), object())])
def test_what_is_equal_passes(value: Any) -> None:
    assert compared(value, value).passed


def test_the_tensors_of_a_dataclass_are_judged() -> None:
    assert compared(Result(torch.ones(4)), Result(torch.ones(4))).identical == 1
    assert compared(Result(torch.ones(4)), Result(torch.ones(4) * 2)).reasons == (
        "output.logits: 4 of 4 values are out of tolerance",
        "output.logits: off by a factor of 2.000000 throughout, allowed 1 ± 8.0e-06",
    )


def test_numbers_with_a_fraction_are_judged_as_tensors_are() -> None:
    assert compared(1.0, 1.0 + 1e-7).passed
    assert not compared(1.0, 1.001).passed
    assert compared(1.0, 1.001, dtype="bfloat16").passed
    assert not compared(1.0 + 1j, 1.0 + 1.1j).passed
    assert compared(float("nan"), float("nan")).passed


def test_numbers_have_a_reference_too() -> None:
    assert compared(1.0, 0.9995, 1.0 - 1e-4).passed


def test_the_first_difference_in_structure_is_told() -> None:
    one, other = contents([1, {"a": 2}], "output"), contents([1, {"b": 2}], "output")
    assert structure(one, one) is None
    assert structure(one, other) == "output[1] is a dict of b, the original's a dict of a"


def test_changes_and_opaque_parts_are_named() -> None:
    one, other = contents([1, 2, object()], "x"), contents([1, 3, object()], "x")
    assert list(changed(one, other)) == ["x[1]"]
    assert opaque(one) == ["x[2] is an object"]
