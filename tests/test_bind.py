from __future__ import annotations

from types import MethodType
from typing import Any

import pytest
import torch
from torch import nn

from kerncfg.applier.bind import Edit, Owner, bind, bound, reachable, running, unbind, unbind_all
from kerncfg.errors import KerncfgWarning
from tests.fakes import Ten, Twenty
from tests.snapshot import snapshot


class Layer(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(2), requires_grad=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x


X = torch.ones(2)
OWNER = Owner.of("rows")


def edit(idle: Any, training: Any, owner: Owner = OWNER) -> Edit:
    forwards = tuple(None if code is None else code.forward for code in (idle, training))
    return Edit(owner, (forwards[0], forwards[1]), (None, None))


def factor(module: nn.Module) -> float:
    return float(module(X)[0])


def test_owners_are_numbered_in_order() -> None:
    first, second = Owner.of("a"), Owner.of("b")
    assert first.number < second.number
    assert str(second) == f"apply {second.number} (b)"


def test_a_module_carries_four_entries_at_most_and_none_afterwards() -> None:
    module = Layer()
    before = snapshot(module)
    made = edit(Ten, Twenty)
    bind(module, made)
    assert set(vars(module)) - set(vars(Layer())) == {"forward", "train", "__getstate__", "_kerncfg"}
    unbind(module, made)
    assert snapshot(module) == before


def test_one_forward_for_both_modes_needs_no_switch() -> None:
    module = Layer()
    bind(module, edit(Ten, Ten))
    assert "train" not in vars(module)
    assert factor(module) == factor(module.eval()) == 10


def test_the_original_is_the_classs_own_forward() -> None:
    module = Layer().eval()
    bind(module, edit(None, Ten))
    assert vars(module)["forward"] == MethodType(Layer.forward, module)
    assert (factor(module), factor(module.train())) == (1, 10)


def test_the_same_method_comes_back_with_the_mode() -> None:
    """Dynamo looks at the method's identity: another object would be another compilation."""
    module = Layer()
    bind(module, edit(Ten, Twenty))
    first = vars(module)["forward"]
    assert vars(module.eval())["forward"] is not first
    assert vars(module.train())["forward"] is first


def test_an_edit_under_another_can_be_taken_out() -> None:
    module = Layer().eval()
    lower, upper = edit(Ten, Ten), edit(Twenty, Twenty)
    bind(module, lower)
    bind(module, upper)
    unbind(module, lower)
    assert factor(module) == 20
    unbind(module, upper)
    assert bound(module) is None


def test_taking_back_what_was_never_done_is_harmless() -> None:
    module = Layer()
    before = snapshot(module)
    unbind(module, edit(Ten, Ten))
    unbind_all(module)
    assert snapshot(module) == before


def test_a_method_kept_from_before_the_revert_goes_on_as_the_plain_one() -> None:
    module = Layer()
    made = edit(Ten, Twenty)
    bind(module, made)
    train = module.train
    unbind(module, made)
    train(False)
    assert module.training is False
    assert factor(module) == 1


def test_deleting_the_forward_is_mended_by_the_next_switch() -> None:
    module = Layer()
    bind(module, edit(Ten, Twenty))
    del module.forward
    assert factor(module.eval()) == 10


def test_reachable_says_whether_a_kernel_can_take_the_place() -> None:
    plain, replaced = Layer(), Layer()
    replaced.forward = MethodType(lambda self, x: x, replaced)  # type: ignore[method-assign]
    assert reachable(plain)
    assert not reachable(replaced)
    bind(plain, edit(Ten, Twenty))
    assert reachable(plain)


def test_a_wrapper_that_holds_the_forward_in_two_places_gets_the_kernel_in_both() -> None:
    module = Layer()
    own, turns = module.forward, [0]

    def forward(x: torch.Tensor, again: Any = own) -> torch.Tensor:
        turns[0] += 1
        found: torch.Tensor = own(x) if turns[0] % 2 else again(x)
        return found

    module.forward = forward  # type: ignore[method-assign]
    before = snapshot(module)
    made = edit(Ten, Twenty)
    bind(module.eval(), made)
    assert [factor(module) for _ in range(4)] == [10] * 4
    assert [factor(module.train()) for _ in range(4)] == [20] * 4
    unbind(module, made)
    assert [factor(module) for _ in range(4)] == [1] * 4
    turns[0] = 0
    assert snapshot(module) == before


def said(module: nn.Module, made: Edit) -> tuple[bool | None, str]:
    runs, changed = running(module, made)
    return runs, (changed or "").partition(":")[0]


def test_what_runs_is_told_by_what_is_there() -> None:
    module, made = Layer(), edit(Ten, Twenty)
    assert said(module, made) == (None, "reverted")
    bind(module, made)
    assert said(module, made) == (True, "")
    assert said(module.eval(), made) == (False, "")
    module.training = True
    assert said(module, made) == (False, "changed since")
    assert factor(module) == 10
    assert said(module.train(), made) == (True, "")


def test_a_forward_that_was_set_or_deleted_since_is_told() -> None:
    module, made = Layer(), edit(Ten, Twenty)
    bind(module, made)
    kept = module.forward
    del module.forward
    assert said(module, made) == (None, "changed since")
    module.forward = lambda x: kept(x)  # type: ignore[method-assign]
    assert said(module, made) == (True, "")  # a wrapper around the kernel
    module.forward = MethodType(Layer.forward, module)  # type: ignore[method-assign]
    assert said(module, made) == (None, "changed since")
    module.forward = lambda x: x * 777  # type: ignore[method-assign]
    assert said(module, made) == (None, "changed since")


def test_a_kernel_that_a_wrapper_hides_from_the_revert_is_told() -> None:
    module, made = Layer(), edit(Ten, Ten)
    bind(module, made)
    box = [module.forward]
    module.forward = lambda x: box[0](x)  # type: ignore[method-assign]
    with pytest.warns(KerncfgWarning, match=r"del module\.forward"):
        unbind(module, made)
    assert factor(module) == 10
    assert said(module, made) == (None, "not reverted")
    del module.forward
    assert said(module, made) == (None, "reverted")
    assert factor(module) == 1
