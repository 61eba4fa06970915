from __future__ import annotations

import threading
from collections import deque, namedtuple
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
import torch

from kerncfg.evidence.contents import (
    Opaque,
    Shell,
    cloned,
    contents,
    copied,
    dense,
    equal,
    one_line,
    same,
    settled,
    shape_of,
    tensors_of,
)

Point = namedtuple("Point", ["x", "y"])


@dataclass
class Result:
    logits: torch.Tensor
    count: int = 1


def iter_nothing() -> Iterator[None]:
    yield from ()


class Cache:
    def __init__(self) -> None:
        self.items: list[torch.Tensor] = []
        self.length = 0


class Slotted:
    __slots__ = ("key", "unset")

    def __init__(self) -> None:
        self.key = torch.ones(2)


def test_everything_stands_by_its_place() -> None:
    found = contents({"a": [torch.ones(1), 3], 5: "text", "b": Point(None, 2.0)}, "output")
    assert list(found) == [
        "output",
        "output.a",
        "output.a[0]",
        "output.a[1]",
        "output[5]",
        "output.b",
        "output.b.x",
        "output.b.y",
    ]
    assert found["output.a"] == Shell(list, ("[0]", "[1]"))
    assert (found["output.a[1]"], found["output[5]"], found["output.b.y"]) == (3, "text", 2.0)


@pytest.mark.parametrize("value", [Result(torch.ones(2)), Slotted(), deque([torch.ones(2)]), (torch.ones(2),)])
def test_tensors_are_found_wherever_they_are(value: Any) -> None:
    assert [tensor.tolist() for tensor in tensors_of(value)] == [[1, 1]]


def test_caches_are_looked_into() -> None:
    cache = Cache()
    cache.items.append(torch.ones(1))
    assert {"cache.items[0]", "cache.length"} <= set(contents(cache, "cache"))
    assert contents(cache, "cache", objects=False) == {"cache": Opaque(Cache)}


def test_the_order_of_keys_makes_no_difference_and_other_keys_do() -> None:
    assert contents({"a": 1, "b": 2}) == contents({"b": 2, "a": 1})
    assert contents({"a": 1, "b": 2})[""] != contents({"a": 1, "z": 2})[""]


def test_what_holds_itself_ends() -> None:
    value: list[Any] = [1]
    value.append(value)
    assert contents(value)["[1]"] == Opaque(list)


def test_arrays_are_tensors_and_generators_are_opaque() -> None:
    found = contents([np.arange(3), iter_nothing()])
    assert torch.equal(found["[0]"], torch.arange(3))
    assert str(found["[1]"]) == "a generator"


def test_containers_are_described() -> None:
    found = contents([{"b": 1, "a": 2}, 3])
    assert (str(found[""]), str(found["[0]"])) == ("a list of 2", "a dict of a, b")
    assert str(contents(1j)[""]) == "1j"
    assert str(Opaque(threading.Event)) == "an Event"


def test_copies_are_deep_and_keep_what_is_one_one() -> None:
    tensor = torch.ones(2, requires_grad=True) * 2
    cache = Cache()
    cache.items.append(tensor)
    made, also, copy = cloned([tensor, tensor, cache])
    assert made is also and copy.items[0] is made and made is not tensor
    assert made.is_leaf and made.requires_grad
    copy.items.append(made)
    assert len(cache.items) == 1


def test_modules_are_shared() -> None:
    module = torch.nn.Linear(1, 1)
    assert cloned([module])[0] is module


def test_what_refuses_to_be_copied_is_shared_and_named_and_the_rest_is_copied() -> None:
    generator, tensor = iter_nothing(), torch.ones(1)
    made, shared = copied({"a": [generator], "b": tensor})
    assert made["a"][0] is generator and made["b"] is not tensor
    assert shared == ((".a[0]", "a generator"),)


def test_what_is_settled_does_not_change_later() -> None:
    tensor = torch.ones(1)
    parts = settled(contents([tensor, 2]))
    tensor.zero_()
    assert (parts["[0]"].item(), parts["[1]"]) == (1, 2)


@pytest.mark.parametrize(
    ("one", "other", "verdict"),
    [
        (torch.ones(2), torch.ones(2), True),
        (torch.ones(2), torch.ones(2).double(), False),
        (torch.tensor([torch.nan]), torch.tensor([torch.nan]), True),
        (float("nan"), float("nan"), True),
        (1, True, False),
        (1, 1.0, False),
        (None, torch.ones(1), False),
    ],
)
def test_equal_is_equal_in_type_and_value(one: Any, other: Any, verdict: bool) -> None:
    assert equal(one, other) is verdict


def test_sparse_nested_and_meta_tensors_are_compared_as_far_as_they_have_values() -> None:
    eye = torch.eye(2)
    assert same(eye.to_sparse(), eye.to_sparse()) and not same(eye.to_sparse(), (eye * 2).to_sparse())
    assert same(torch.ones(1, device="meta"), torch.ones(1, device="meta"))
    assert not same(torch.ones(1, device="meta"), torch.ones(1))
    assert dense(torch.ones(1, device="meta")) is None


def test_shapes_are_text() -> None:
    assert [shape_of(tensor) for tensor in (torch.ones(2, 3), torch.tensor(1))] == ["2x3", "scalar"]


def test_an_error_is_one_line_of_bounded_length() -> None:
    assert one_line(ValueError("\n first \nsecond")) == "ValueError: first"
    assert one_line(ValueError()) == "ValueError"
    assert len(one_line(ValueError("x" * 100_000))) == 300
