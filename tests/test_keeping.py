from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

from kerncfg.evidence.keeping import described, state_kept, undisturbed
from tests.snapshot import snapshot


class Box:
    def __init__(self) -> None:
        self.items: list[Any] = []


class Layer(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(3))
        self.register_buffer("count", torch.zeros(()))
        self.inner = nn.Linear(2, 2)
        self.log: list[int] = [1]
        self.box = Box()
        self.table = torch.ones(2)


def _write(layer: Layer) -> None:
    with torch.no_grad():
        layer.weight.mul_(2)


CHANGES: dict[str, Callable[[Layer], Any]] = {
    "writes to weight": _write,
    "writes to inner.weight": lambda layer: layer.inner.weight.data.zero_(),
    "writes to count": lambda layer: layer.count.add_(1),  # type: ignore[operator]
    "writes to table": lambda layer: layer.table.add_(1),
    "changes the module: sets parameter weight": lambda layer: setattr(layer, "weight", nn.Parameter(torch.ones(3))),
    "changes the module: adds buffer scale": lambda layer: layer.register_buffer("scale", torch.ones(())),
    "changes the module: removes buffer count": lambda layer: delattr(layer, "count"),
    "changes the module: adds attribute cache": lambda layer: setattr(layer, "cache", torch.ones(1)),
    "changes the module: sets attribute table": lambda layer: setattr(layer, "table", torch.ones(1)),
    "changes the module: removes attribute log": lambda layer: delattr(layer, "log"),
    "changes the module: changes attribute log": lambda layer: layer.log.append(2),
    "changes the module: changes attribute box.items": lambda layer: layer.box.items.append(2),
    "changes the module: changes _forward_hooks": lambda layer: layer.register_forward_hook(print),
    "changes the module: adds submodule more": lambda layer: setattr(layer, "more", nn.Identity()),
    "changes the module: sets attribute inner.training": lambda layer: layer.inner.eval(),
    "writes to the gradient of weight": lambda layer: torch.autograd.backward(layer.weight.sum()),
    "changes the module: sets requires_grad of weight": lambda layer: layer.weight.requires_grad_(False),
}


@pytest.mark.parametrize("words", CHANGES)
def test_what_is_done_to_a_module_is_told_and_undone(words: str) -> None:
    layer = Layer()
    before = snapshot(layer)["modules"]
    pointer = layer.weight.data_ptr()
    with state_kept(layer) as changes:
        CHANGES[words](layer)
    assert described(changes) == words
    assert snapshot(layer)["modules"] == before
    assert layer.weight.data_ptr() == pointer
    assert (layer.log, layer.box.items, layer.weight.grad) == ([1], [], None)


def test_nothing_done_is_nothing_told() -> None:
    layer = Layer()
    with state_kept(layer) as changes:
        layer.inner(torch.ones(2))
    assert changes == {}


def test_new_memory_for_a_weight_is_taken_away_again() -> None:
    layer = Layer()
    pointer = layer.weight.data_ptr()
    with state_kept(layer) as changes:
        layer.weight.data = layer.weight.data + 1
    assert list(changes) == ["weight"]
    assert layer.weight.data_ptr() == pointer and layer.weight.eq(1).all()


def test_a_gradient_that_was_there_keeps_its_value() -> None:
    layer = Layer()
    layer.weight.grad = gradient = torch.ones(3)
    with state_kept(layer):
        torch.autograd.backward(layer.weight.sum())
    assert layer.weight.grad is gradient and gradient.eq(1).all()


def test_many_changes_are_shortened() -> None:
    layer = Layer()
    with state_kept(layer) as changes:
        for name in "abcde":
            setattr(layer, name, 1)
    assert described(changes) == (
        "changes the module: adds attribute a, adds attribute b, adds attribute c, and 2 more"
    )


def test_of_a_whole_model_values_are_kept_where_kernels_reach() -> None:
    model = nn.Sequential(Layer(), Layer())
    first, second = model
    assert isinstance(first, Layer) and isinstance(second, Layer)
    with undisturbed(model, [first]):
        _write(first)
        _write(second)
        second.count.add_(1)  # type: ignore[operator]
    assert first.weight.eq(1).all() and second.weight.eq(2).all()
    assert second.count == 0
