from __future__ import annotations

from typing import Any

import pytest

from kerncfg.applier.attributes import attributes


def _registers(self: Any, x: Any) -> Any:
    self.register_buffer("table", x)


def _hooks(self: Any, x: Any) -> Any:
    self.register_forward_hook(x)


def _sets_by_name(self: Any, x: Any) -> Any:
    setattr(self, "cached", x)  # noqa: B010


def _sets_some_name(self: Any, x: Any) -> Any:
    setattr(self, x, x)


def _sets_past_the_class(self: Any, x: Any) -> Any:
    object.__setattr__(self, "cached", x)


def _counts(self: Any, x: Any) -> Any:
    self.calls += 1


def _unpacks(self: Any, x: Any) -> Any:
    self.first, self.second = x


def _deletes(self: Any, x: Any) -> Any:
    del self.cached


def _in_a_closure(self: Any, x: Any) -> Any:
    def inner() -> None:
        self.cached = x

    return inner


def _writes_entries(self: Any, x: Any) -> Any:
    self.__dict__["cached"] = x


@pytest.mark.parametrize(
    ("forward", "names"),
    [
        (_registers, {"register_buffer"}),
        (_hooks, {"register_forward_hook"}),
        (_sets_by_name, {"cached"}),
        (_sets_some_name, {"setattr"}),
        (_sets_past_the_class, {"cached"}),
        (_counts, {"calls"}),
        (_unpacks, {"first", "second"}),
        (_deletes, {"cached"}),
        (_in_a_closure, {"cached"}),
        (_writes_entries, {"__dict__"}),
    ],
)
def test_what_a_forward_changes_of_its_module_shows(forward: Any, names: set[str]) -> None:
    assert attributes(forward).sets == names


def _sets_others(self: Any, x: Any) -> Any:
    x.cached = self.weight
    x.calls += self.calls
    setattr(x, "weight", self.weight)  # noqa: B010
    setattr(self.config, "seen", x)  # noqa: B010
    return getattr(self, "optional", None)


def test_what_a_forward_sets_elsewhere_does_not_count() -> None:
    found = attributes(_sets_others)
    assert found.sets == set()
    assert found.reads == {"calls", "config"}  # `weight` stands there as text


def _takes_apart(self: Any, x: Any) -> Any:
    found = self.norm(x) @ self.mlp.up.weight + self.mlp.down(x).bias + x.mlp.gate
    return found + self.head.proj, self.bias


def test_parts_are_what_is_taken_apart_with_what_is_taken_of_them() -> None:
    assert attributes(_takes_apart).parts == {"mlp", "mlp.up", "mlp.up.weight", "head", "head.proj", "bias"}


def test_what_is_no_python_function_shows_nothing() -> None:
    assert attributes(len).reads == attributes(len).sets == set()
