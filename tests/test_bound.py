from __future__ import annotations

import copy
import gc
import pickle
import sys
import weakref
from types import FrameType, MethodType
from typing import Any

import pytest
import torch
from torch import nn

from kerncfg.applier.bind import bind, bound, unbind, unbind_all
from kerncfg.applier.edits import Edit, Owner
from kerncfg.documents.config import KernelRef
from kerncfg.documents.plan import Kernel
from kerncfg.errors import ApplyError
from tests.fakes import Ten, Twenty
from tests.snapshot import snapshot

X = torch.ones(2)


class Layer(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(2), requires_grad=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x * self.weight


def edit(idle: Any = Ten, training: Any = Twenty) -> Edit:
    codes = idle, training
    kernels = [Kernel(reference=KernelRef.parse(f"python:tests.fakes:{code.__name__}")) for code in codes]
    return Edit(Owner.of("rows"), (idle.forward, training.forward), (kernels[0], kernels[1]))


def factor(module: nn.Module) -> float:
    return float(module(X)[0])


def _made(cls: type[Layer], weight: nn.Parameter) -> Layer:
    module = cls()
    module.weight = weight
    return module


class Reduces(Layer):
    def __reduce__(self) -> Any:
        return _made, (type(self), self.weight)


class ReducesEx(Layer):
    def __reduce_ex__(self, protocol: Any) -> Any:
        return _made, (type(self), self.weight), None


class ReducesAsUsual(Layer):
    def __reduce_ex__(self, protocol: Any) -> Any:
        return super().__reduce_ex__(protocol)


class ReducesEntries(Layer):
    def __reduce__(self) -> Any:
        return type(self), (), self.__dict__


class ReducesState(Layer):
    def __reduce__(self) -> Any:
        return type(self), (), {"weight": 1}


class ReducesToAName(Layer):
    def __reduce__(self) -> Any:
        return "SINGLE"


SINGLE = ReducesToAName()


def _pickled(module: nn.Module) -> Any:
    return pickle.loads(pickle.dumps(module))


each_way = pytest.mark.parametrize("way", [copy.deepcopy, _pickled], ids=["deepcopy", "pickle"])


@each_way
@pytest.mark.parametrize("cls", [Reduces, ReducesEx, ReducesAsUsual, ReducesEntries])
def test_a_class_with_its_own_reduce_keeps_the_kernel(cls: Any, way: Any) -> None:
    module = cls()
    before = snapshot(module)
    bind(module, edit())
    made = way(module)
    assert made.weight is not module.weight
    assert (factor(made), factor(made.eval())) == (20, 10)
    unbind_all(made)
    assert factor(made) == 1
    assert list(vars(made)) == list(vars(cls()))
    assert (factor(module), factor(module.eval())) == (20, 10)
    unbind_all(module.train())
    assert snapshot(module)["modules"] == before["modules"]


@each_way
@pytest.mark.parametrize("cls", [ReducesState, ReducesToAName])
def test_a_reduce_without_room_for_the_kernel_is_refused_with_advice(cls: Any, way: Any) -> None:
    module = cls()
    bind(module, edit())
    with pytest.raises(ApplyError, match=r"its own __reduce__.*\n.*revert\(model\) first"):
        way(module)


class CopiesEntries(Layer):
    def __deepcopy__(self, memo: Any) -> Any:
        made = memo[id(self)] = type(self)()
        made.__dict__.update({key: copy.deepcopy(value, memo) for key, value in self.__dict__.items()})
        return made


class Rebuilds(Layer):
    def __deepcopy__(self, memo: Any) -> Any:
        made = type(self)()
        made.load_state_dict(self.state_dict())
        return made.train(self.training)


class CopiesToAnother(Layer):
    def __deepcopy__(self, memo: Any) -> Any:
        return Layer()


class CopiesToItself(Layer):
    def __deepcopy__(self, memo: Any) -> Any:
        return self


@pytest.mark.parametrize("cls", [CopiesEntries, Rebuilds])
def test_a_class_with_its_own_deepcopy_keeps_the_kernel(cls: Any) -> None:
    module = cls()
    bind(module, edit())
    for made in (copy.deepcopy(module), copy.deepcopy(copy.deepcopy(module))):
        assert made.weight is not module.weight
        assert (factor(made), factor(made.eval())) == (20, 10)
        unbind_all(made)
        assert factor(made) == 1
        assert list(vars(made)) == list(vars(cls()))
    assert factor(module) == 20


def test_a_deepcopy_that_makes_something_else_is_refused_and_one_that_makes_nothing_is_left() -> None:
    other, same = CopiesToAnother(), CopiesToItself()
    bind(other, edit())
    bind(same, edit())
    with pytest.raises(ApplyError, match="its own __deepcopy__"):
        copy.deepcopy(other)
    assert copy.deepcopy(same) is same


class OwnEval(Layer):
    def eval(self) -> Any:
        self.training = False
        return self


def test_a_class_with_its_own_eval_changes_its_kernel() -> None:
    module = OwnEval()
    before = snapshot(module)
    bind(module, edit())
    assert factor(module) == 20
    assert module.eval() is module
    assert factor(module) == 10
    assert factor(module.train()) == 20
    unbind_all(module)
    assert snapshot(module) == before


def test_an_eval_set_on_the_instance_keeps_being_called_and_comes_back() -> None:
    module = Layer()
    calls: list[int] = []
    module.eval = lambda: calls.append(1) or module.train(False)  # type: ignore[method-assign, func-returns-value]
    before = snapshot(module)
    bind(module, edit())
    assert (factor(module), factor(module.eval())) == (20, 10)
    unbind_all(module.train())
    assert calls == [1]
    assert snapshot(module)["modules"][""][2][:-1] == before["modules"][""][2][:-1]


def test_a_shallow_copy_does_not_keep_the_module_alive() -> None:
    module = Layer()
    bind(module, edit())
    copied = copy.copy(module)
    gone = weakref.ref(module)
    assert bound(copied) is None
    del module
    gc.collect()
    assert gone() is None
    assert factor(copy.deepcopy(copied)) == factor(_pickled(copied)) == factor(copied) == 1


def test_a_deep_copy_of_a_shallow_copy_is_bound_to_nothing() -> None:
    module = Layer()
    bind(module, edit())
    again = copy.deepcopy(copy.copy(module))
    assert bound(again) is None
    assert "__setstate__" not in vars(again)
    assert factor(module) == 20


class Interrupt(BaseException):
    pass


def _interrupted(call: Any, line: int) -> bool:
    """Run `call` and raise before the `line`-th line of `bind` and `bound`; return whether it came that far."""
    left = [line]

    def local(frame: FrameType, event: str, argument: Any) -> Any:
        if event == "line":
            left[0] -= 1
            if left[0] == 0:
                sys.settrace(None)
                raise Interrupt
        return local

    def trace(frame: FrameType, event: str, argument: Any) -> Any:
        name = frame.f_code.co_filename
        return local if name.endswith(("applier/bind.py", "applier/bound.py", "applier/wrapping.py")) else None

    tracing = sys.gettrace()
    sys.settrace(trace)
    try:
        call()
    except Interrupt:
        return True
    finally:
        sys.settrace(tracing)
    return False


def _plain(module: nn.Module) -> None:
    pass


def _wrapped(module: nn.Module) -> None:
    old = module.forward
    module.forward = lambda *arguments: old(*arguments)


def _trained(module: nn.Module) -> None:
    module.train = MethodType(lambda self, mode=True: nn.Module.train(self, mode), module)  # type: ignore[method-assign]


@pytest.mark.parametrize("nested", [False, True], ids=["first", "nested"])
@pytest.mark.parametrize("prepare", [_plain, _wrapped, _trained])
def test_an_interrupt_at_any_line_can_be_taken_back(prepare: Any, nested: bool) -> None:
    line = 1
    while True:
        module = Layer()
        prepare(module)
        lower, upper = edit(), edit(Twenty, Ten)
        before = snapshot(module)
        if nested:
            bind(module, lower)
        bare = snapshot(module)
        if not _interrupted(lambda: bind(module, upper), line):  # noqa: B023
            break
        unbind(module, upper)
        assert snapshot(module) == bare, line
        unbind_all(module)
        assert snapshot(module) == before, line
        line += 1
    assert line > 5
