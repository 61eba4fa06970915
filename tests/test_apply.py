from __future__ import annotations

import copy
import functools
import gc
import pickle
import subprocess
import sys
import threading
import warnings
from dataclasses import replace
from pathlib import Path
from types import MethodType
from typing import Any

import numpy
import pytest
import torch
from torch import nn
from torch.nn.utils import parametrize

from kerncfg.applier.adapters.torch import kernel_layer
from kerncfg.applier.apply import apply, revert
from kerncfg.compiler.normalise import normalise
from kerncfg.compiler.policy import Request
from kerncfg.compiler.resolve import resolve
from kerncfg.documents.config import KernelRef, Trust
from kerncfg.documents.plan import Choice, Kernel, Plan, Rejection
from kerncfg.documents.target import Mode
from kerncfg.errors import ApplyError, ConflictError, ContractError, KerncfgWarning, TrustError
from kerncfg.sources import pin
from tests.builders import document, origins
from tests.planning import HERE, TRUST, choice, plan, step
from tests.snapshot import snapshot

INFERENCE, TRAINING, INFERENCE_COMPILE, TRAINING_COMPILE = Mode


@kernel_layer("Norm")
class Norm(nn.Module):
    def __init__(self, factor: float = 1.0) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.full((4,), factor))
        self.bias_config = {"kind": "none", "deep": {"eps": 1e-6}}

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x * self.weight


@kernel_layer("Act")
class Act(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norm = Norm()
        self.act = Act()

    def forward(self, x: torch.Tensor) -> Any:
        return self.act(self.norm(x))


class Model(nn.Module):
    def __init__(self, blocks: int = 2) -> None:
        super().__init__()
        self.layers = nn.ModuleList(Block() for _ in range(blocks))
        self.norm = Norm()

    def forward(self, x: torch.Tensor) -> Any:
        for layer in self.layers:
            x = layer(x)
        return self.norm(x)


X = torch.ones(1, 4)

BOTH = {INFERENCE: "Ten", TRAINING: "Twenty", INFERENCE_COMPILE: "Ten", TRAINING_COMPILE: "Twenty"}


def factor(model: nn.Module, x: torch.Tensor = X) -> float:
    """What the model multiplies ones by."""
    with torch.no_grad():
        return float(model(x).flatten()[0])


def norms(said: Any = "Ten", **others: Any) -> Plan:
    return plan(step("Norm", said, **others))


# --- what runs ------------------------------------------------------------------------------------------------------


def test_every_module_of_the_name_runs_the_kernel() -> None:
    model = Model().eval()
    bindings = apply(norms(), model)
    assert factor(model) == 10**3
    assert [site.path for site in bindings.sites] == ["layers.0.norm", "layers.1.norm", "norm"]


def test_the_kernel_reads_the_weights_of_the_layer() -> None:
    model = Norm(factor=3.0).eval()
    apply(norms(), model)
    assert factor(model) == 30


def test_the_model_itself_may_be_the_layer() -> None:
    model = Norm()
    assert apply(norms(), model).report.rows[0].path == ""
    assert factor(model) == 10


def test_kernels_follow_train_and_eval() -> None:
    model = Norm()
    apply(norms(BOTH), model)
    assert factor(model) == 20
    assert factor(model.eval()) == 10
    assert factor(model.train()) == 20
    assert factor(model.train(False)) == 10


def test_kernels_follow_train_and_eval_of_a_part() -> None:
    model = Model().eval()
    apply(norms(BOTH), model)
    model.layers[0].train()
    assert factor(model) == 20 * 10 * 10
    assert model.norm.training is False


def test_a_mode_without_a_kernel_runs_the_original_and_trains() -> None:
    model = Norm()
    apply(norms({INFERENCE: "OnlyForward"}), model)
    assert factor(model) == 1
    model(X).sum().backward()
    assert model.weight.grad is not None
    assert factor(model.eval()) == 30


def test_a_kernel_without_backward_is_kept_out_of_training_and_comes_back_in_eval() -> None:
    model = Norm()
    row = apply(norms("OnlyForward"), model).report.rows[0]
    assert (row.status, row.kernel) == ("kept", None)
    assert "has_backward is false, and training needs gradients" in row.reason
    assert row.modes == {"inference": "python:tests.fakes:OnlyForward", "training": "original"}
    assert factor(model.eval()) == 30


def test_the_next_choice_serves_where_the_first_does_not_fit() -> None:
    model = Norm()
    bindings = apply(norms(["OnlyForward", "Twenty"]), model)
    assert factor(model) == 20
    assert factor(model.eval()) == 30
    assert "passed over: python:tests.fakes:OnlyForward" in bindings.report.rows[0].reason or not model.training


@pytest.mark.parametrize("mode", ["training", TRAINING], ids=["text", "mode"])
def test_a_given_mode_is_fixed(mode: Mode | str) -> None:
    model = Norm().eval()
    bindings = apply(norms(BOTH), model, mode=mode)
    assert factor(model) == factor(model.train()) == factor(model.eval()) == 20
    assert "train" not in vars(model)
    assert bindings.report.rows[0].mode == "training"


def test_a_mode_that_there_is_not_is_refused() -> None:
    with pytest.raises(ApplyError, match="no mode 'fast'"):
        apply(norms(), Norm(), mode="fast")


def test_compile_selects_the_compile_modes() -> None:
    said = {**dict.fromkeys(Mode, "OnlyForward"), INFERENCE_COMPILE: "Ten", TRAINING_COMPILE: "Twenty"}
    model = Norm()
    bindings = apply(norms(said), model, compile=True)
    assert factor(model) == 20
    assert bindings.report.rows[0].mode == "training_compile"
    assert factor(model.eval()) == 10


def test_compile_turns_a_given_mode_into_its_compiled_form() -> None:
    model = Norm().eval()
    bindings = apply(norms({TRAINING_COMPILE: "Twenty"}), model, mode="training", compile=True)
    assert bindings.report.rows[0].mode == "training_compile"
    assert factor(model) == 20


def test_a_kernel_that_is_not_safe_for_compile_is_kept_out() -> None:
    with pytest.warns(KerncfgWarning, match="no module runs one"):
        row = apply(norms("OnlyForward"), Norm().eval(), compile=True).report.rows[0]
    assert row.status == "kept"
    assert "can_torch_compile is not true" in row.reason


def test_no_frame_of_ours_stands_between_a_module_and_its_kernel() -> None:
    model = Norm()
    apply(norms(), model)
    forward = vars(model)["forward"]
    assert type(forward) is MethodType
    assert forward.__func__.__module__ == "tests.fakes"
    assert forward.__self__ is model


def test_a_class_that_overrides_train_keeps_its_own_called() -> None:
    class Frozen(Norm):
        calls = 0

        def train(self, mode: bool = True) -> Any:
            type(self).calls += 1
            return super().train(False)  # stays in eval mode, whatever is asked

    model = Frozen().eval()
    apply(norms(BOTH), model)
    model.train()
    assert Frozen.calls == 2
    assert factor(model) == 10


def test_a_train_set_on_the_instance_keeps_being_called_and_comes_back() -> None:
    model = Norm().eval()
    model.train = lambda mode=True: model  # type: ignore[method-assign]
    before = snapshot(model)
    bindings = apply(norms(BOTH), model)
    model.train()
    assert factor(model) == 10
    bindings.revert()
    assert snapshot(model) == before


def test_train_asks_for_a_boolean_as_the_plain_one_does() -> None:
    model = Norm()
    apply(norms(BOTH), model)
    with pytest.raises(ValueError, match="boolean"):
        model.train("yes")  # type: ignore[arg-type]


# --- undo -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("said", ["Ten", BOTH], ids=["one", "two"])
def test_revert_restores_everything(said: Any) -> None:
    model = Model()
    apply(norms(), Norm())  # the kernel is imported, which stays
    before = snapshot(model)
    bindings = apply(norms(said), model)
    assert snapshot(model) != before
    model.eval()
    model.train()
    bindings.revert()
    assert snapshot(model) == before
    assert factor(model) == 1


def test_apply_touches_nothing_but_entries_of_the_swapped_modules() -> None:
    model = Model()
    apply(norms(), Norm())
    before = snapshot(model)
    apply(norms(BOTH), model)
    after = snapshot(model)
    for part in ("tensors", "classes", "configs", "registries", "imports"):
        assert after[part] == before[part]
    ours = {"forward", "train", "__getstate__", "_kerncfg"}
    for path, (_, _, entries) in after["modules"].items():
        rest = [entry for entry in entries if entry[0] not in ours]
        assert rest == before["modules"][path][2]


def test_state_dict_is_unchanged() -> None:
    model = Model()
    before = {key: (id(value), value.shape) for key, value in model.state_dict(keep_vars=True).items()}
    apply(norms(), model)
    after = {key: (id(value), value.shape) for key, value in model.state_dict(keep_vars=True).items()}
    assert list(after.items()) == list(before.items())


def test_reverting_twice_is_harmless() -> None:
    model = Model()
    bindings = apply(norms(), model)
    bindings.revert()
    before = snapshot(model)
    bindings.revert()
    revert(model)
    assert snapshot(model) == before


def test_leaving_with_reverts_also_on_an_error() -> None:
    model = Model().eval()
    with pytest.raises(RuntimeError), apply(norms(), model):
        assert factor(model) == 1000
        raise RuntimeError
    assert factor(model) == 1


def test_nested_applies_revert_in_reverse_order() -> None:
    model = Model().eval()
    before = snapshot(model)
    outer = apply(norms("Ten"), model)
    inner = apply(norms("Twenty"), model)
    assert factor(model) == 20**3
    inner.revert()
    assert factor(model) == 10**3
    outer.revert()
    assert snapshot(model)["modules"] == before["modules"]


def test_nested_applies_refuse_any_other_order_and_name_both() -> None:
    model = Model().eval()
    outer = apply(norms("Ten"), model)
    inner = apply(plan(step("Act", "Free")), model)
    with pytest.raises(ConflictError, match=r"apply \d+ \(Norm\) cannot be reverted while apply \d+ \(Act\)"):
        outer.revert()
    assert factor(model) == 10**3 * 100**2
    inner.revert()
    outer.revert()
    assert factor(model) == 1


def test_an_error_in_a_with_comes_out_as_itself_though_a_later_apply_is_on() -> None:
    model = Model().eval()
    before = snapshot(model)
    with pytest.raises(RuntimeError, match="mine") as caught, apply(norms("Ten"), model):
        inner = apply(norms("Twenty"), model.norm)
        raise RuntimeError("mine")
    assert "cannot be reverted while" in caught.value.__notes__[0]
    assert factor(model) == 20
    inner.revert()
    assert snapshot(model)["modules"] == before["modules"]


def test_applies_to_different_parts_revert_in_any_order() -> None:
    model = Model().eval()
    first = apply(norms("Ten"), model.layers[0])
    second = apply(norms("Twenty"), model.layers[1])
    first.revert()
    assert factor(model) == 20
    second.revert()
    assert factor(model) == 1


@pytest.mark.parametrize("said", ["original", [choice("WithInit")]], ids=["off", "kept"])
def test_an_inner_apply_that_leaves_a_site_alone_runs_the_original_there(said: Any) -> None:
    model = Model().eval()
    outer = apply(plan(step("Norm", "Ten"), step("Act", "Free")), model)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", KerncfgWarning)
        inner = apply(norms(said), model)
    assert factor(model) == 100**2  # Act is not named by the inner plan
    assert {row.status for row in outer.report.rows if row.name == "Norm"} == {"kept"}
    inner.revert()
    assert factor(model) == 10**3 * 100**2
    outer.revert()
    assert factor(model) == 1


def test_revert_of_a_model_takes_back_every_apply_and_leaves_handles_harmless() -> None:
    model = Model().eval()
    before = snapshot(model)
    outer, inner = apply(norms("Ten"), model), apply(norms("Twenty"), model)
    revert(model)
    assert snapshot(model)["modules"] == before["modules"]
    outer.revert()
    inner.revert()
    assert {row.reason for row in outer.report.rows} == {"reverted"}


def test_a_fixed_mode_on_top_of_a_following_one_gives_it_back() -> None:
    model = Norm().eval()
    outer = apply(norms(BOTH), model)
    inner = apply(norms("Free"), model, mode="inference")
    model.train()
    assert factor(model) == 100
    inner.revert()
    assert factor(model) == 20
    outer.revert()
    assert "train" not in vars(model)


class Refusing(dict[str, Any]):
    """The entries of an instance that refuse one write after some."""

    left = -1

    def __setitem__(self, key: str, value: Any) -> None:
        Refusing.left -= 1
        if Refusing.left == -1:
            raise MemoryError(f"no room for {key}")
        super().__setitem__(key, value)


@pytest.mark.parametrize("wrapped", [False, True], ids=["plain", "wrapped"])
@pytest.mark.parametrize("nested", [False, True], ids=["first", "nested"])
def test_a_failure_at_any_edit_leaves_the_model_as_it_was(nested: bool, wrapped: bool) -> None:
    model = Model().eval()
    if wrapped:
        accelerated(model.get_submodule("layers.0.norm"))
    for module in model.modules():
        module.__dict__ = Refusing(module.__dict__)
    if nested:
        apply(norms("Ten"), model)
    apply(norms("Twenty"), Norm())
    before, edit = snapshot(model), 0
    while True:
        Refusing.left = edit
        try:
            bindings = apply(norms(BOTH), model)
        except MemoryError:
            assert snapshot(model) == before
            edit += 1
        else:
            break
    Refusing.left = -1
    assert edit >= (6 if nested else 12)
    bindings.revert()
    assert snapshot(model) == before


def test_an_error_leaves_the_collector_running() -> None:
    with pytest.raises(ContractError):
        apply(norms("WithInit", fallback="error"), Norm())
    assert gc.isenabled()


# --- isolation ------------------------------------------------------------------------------------------------------


def test_two_models_of_one_class_run_two_plans() -> None:
    first, second, third = Model().eval(), Model().eval(), Model().eval()
    before = snapshot(third)
    one, two = apply(norms("Ten"), first), apply(norms("Twenty"), second)
    assert (factor(first), factor(second), factor(third)) == (10**3, 20**3, 1)
    assert snapshot(third)["modules"] == before["modules"]
    assert snapshot(third)["classes"] == before["classes"]
    one.revert()
    assert (factor(first), factor(second)) == (1, 20**3)
    two.revert()


def test_two_threads_apply_two_plans_fifty_times() -> None:
    barrier = threading.Barrier(2)
    wrong: list[float] = []

    def work(kernel: str, constant: float) -> None:
        for _ in range(50):
            model = Model(3).eval()
            barrier.wait(timeout=60)
            with apply(norms(kernel), model):
                found = factor(model)
            if (found, factor(model)) != (constant**4, 1):
                wrong.append(found)

    threads = [threading.Thread(target=work, args=said) for said in (("Ten", 10.0), ("Twenty", 20.0))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert wrong == []
    assert gc.isenabled()


def test_a_kernel_is_the_same_code_for_every_model() -> None:
    first, second = Norm(), Norm()
    apply(norms(), first)
    apply(norms(), second)
    assert vars(first)["forward"].__func__ is vars(second)["forward"].__func__


def test_apply_after_weights_were_loaded_swaps_the_same_sites() -> None:
    weights = {key: value * 3 for key, value in Model().state_dict().items()}
    early, late = Model().eval(), Model().eval()
    one = apply(norms(), early)
    early.load_state_dict(weights)
    late.load_state_dict(weights)
    two = apply(norms(), late)
    assert one.report == two.report
    assert factor(early) == factor(late) == 30**3


def test_modules_added_later_are_swapped_when_apply_is_run_again() -> None:
    model = Model().eval()
    apply(norms(), model)
    model.layers.append(Block().eval())
    assert factor(model) == 10**3
    revert(model)
    apply(norms(), model)
    assert factor(model) == 10**4


# --- copies and files -----------------------------------------------------------------------------------------------


def test_a_deep_copy_runs_kernels_on_its_own_weights_and_reverts_alone() -> None:
    model = Model().eval()
    bindings = apply(norms(BOTH), model)
    copied = copy.deepcopy(model)
    with torch.no_grad():
        copied.norm.weight.fill_(3)
    assert (factor(model), factor(copied)) == (10**3, 3 * 10**3)
    assert factor(copied.train()) == 3 * 20**3
    revert(copied)
    assert (factor(model), factor(copied)) == (10**3, 3)
    assert [list(vars(module)) for module in copied.modules()] == [list(vars(module)) for module in Model().modules()]
    bindings.revert()


def test_a_copy_of_a_nested_apply_holds_both() -> None:
    model = Norm().eval()
    apply(norms("Ten"), model)
    inner = apply(norms("Twenty"), model)
    copied = copy.deepcopy(model)
    inner.revert()
    assert (factor(model), factor(copied)) == (10, 20)
    revert(copied)
    assert factor(copied) == 1


@pytest.mark.parametrize("training", [False, True], ids=["eval", "train"])
def test_pickle_keeps_the_kernels(training: bool) -> None:
    model = Model().train(training)
    apply(norms(BOTH), model)
    found = pickle.loads(pickle.dumps(model))
    assert factor(found) == (20 if training else 10) ** 3
    assert factor(found.train(not training)) == (10 if training else 20) ** 3
    revert(found)
    assert factor(found) == 1
    assert [list(vars(module)) for module in found.modules()] == [list(vars(module)) for module in Model().modules()]


def test_what_is_applied_to_a_model_from_a_file_reverts_before_what_it_came_with() -> None:
    model = Norm().eval()
    apply(norms("Ten"), model)
    found = pickle.loads(pickle.dumps(model))
    with apply(norms("Twenty"), found):
        assert factor(found) == 20
    assert factor(found) == 10


def test_torch_save_keeps_the_kernels_in_another_process(tmp_path: Path) -> None:
    model = Model().eval()
    apply(norms(BOTH), model)
    torch.save(model, tmp_path / "model.pt")
    (tmp_path / "pickled").write_bytes(pickle.dumps(model))
    code = f"""
import pickle, pathlib, sys, torch, kerncfg
for model in (torch.load({str(tmp_path / "model.pt")!r}, weights_only=False),
              pickle.loads(pathlib.Path({str(tmp_path / "pickled")!r}).read_bytes())):
    x = torch.ones(1, 4)
    kernels = model(x)[0, 0].item()
    trained = model.train()(x)[0, 0].item()
    kerncfg.revert(model)
    print(kernels, trained, model(x)[0, 0].item())
"""
    root = Path(__file__).parent.parent
    done = subprocess.run([sys.executable, "-c", code], cwd=root, capture_output=True, text=True, check=False)
    assert done.stdout.split() == ["1000.0", "8000.0", "1.0"] * 2, done.stderr


def test_a_class_with_its_own_state_keeps_it() -> None:
    model = Counting().eval()
    apply(norms(BOTH), model)
    found = pickle.loads(pickle.dumps(model))
    assert factor(found) == 10
    assert found.lock_was_dropped
    revert(found)
    assert factor(found) == 1


class Counting(Norm):
    lock_was_dropped = False

    def __init__(self) -> None:
        super().__init__()
        self.lock = threading.Lock()

    def __getstate__(self) -> dict[str, Any]:
        return {key: value for key, value in vars(self).items() if key != "lock"}

    def __setstate__(self, state: dict[str, Any]) -> None:
        super().__setstate__(state)  # type: ignore[no-untyped-call]
        self.lock_was_dropped = True


class Opaque(Norm):
    def __getstate__(self) -> Any:
        return "nothing to put a kernel in"


def test_a_state_without_room_for_the_kernel_is_refused_with_advice() -> None:
    model = Opaque()
    apply(norms(), model)
    with pytest.raises(ApplyError, match=r"revert\(model\) first"):
        pickle.dumps(model)


def test_a_copy_that_its_class_makes_entry_by_entry_keeps_its_kernel_and_reverts_alone() -> None:
    model = Norm().eval()
    apply(norms(BOTH), model)
    parametrize.register_parametrization(model, "weight", nn.Identity())  # brings a `__deepcopy__` of its own
    copied = copy.deepcopy(model)
    assert (factor(copied), factor(copied.train())) == (10, 20)
    revert(copied)
    assert (factor(copied), factor(model)) == (1, 10)
    assert not {"forward", "train", "__getstate__", "__setstate__", "_kerncfg"} & set(vars(copied))
    another = copy.deepcopy(model)
    revert(another)
    assert (factor(another), factor(model)) == (1, 10)


def test_a_shallow_copy_runs_the_original_and_can_be_applied_to() -> None:
    model = Norm().eval()
    apply(norms(), model)
    copied = copy.copy(model)
    assert factor(copied) == 1
    with apply(norms("Twenty"), copied):
        assert (factor(model), factor(copied)) == (10, 20)
    assert (factor(model), factor(copied)) == (10, 1)


# --- wrappers -------------------------------------------------------------------------------------------------------

CALLS: list[str] = []


def in_a_cell(module: nn.Module, name: str = "cell") -> None:
    old = module.forward

    def counted(*args: Any) -> Any:
        CALLS.append(name)
        return old(*args)

    module.forward = counted


def _counted(old: Any, *args: Any) -> Any:
    CALLS.append("partial")
    return old(*args)


def in_a_partial(module: nn.Module) -> None:
    module.forward = functools.partial(_counted, module.forward)


def _hooked(module: nn.Module, *args: Any) -> Any:
    CALLS.append("hook")
    return module._old_forward(*args)  # type: ignore[operator]


def accelerated(module: nn.Module) -> None:
    """As accelerate's `add_hook_to_module` does it."""
    old = module.forward
    module._old_forward = old  # type: ignore[assignment]
    module.forward = functools.update_wrapper(functools.partial(_hooked, module), old)


def in_a_default(module: nn.Module) -> None:
    def counted(x: torch.Tensor, old: Any = module.forward) -> Any:
        CALLS.append("default")
        return old(x)

    module.forward = counted


def in_an_object(module: nn.Module) -> None:
    module.forward = Wrapper(module.forward)


class Wrapper:
    def __init__(self, inner: Any) -> None:
        self.inner = inner

    def __call__(self, *args: Any) -> Any:
        CALLS.append("object")
        return self.inner(*args)

    def method(self, *args: Any) -> Any:
        CALLS.append("method")
        return self.inner(*args)


def in_a_method(module: nn.Module) -> None:
    module.forward = Wrapper(module.forward).method


def as_a_method(module: nn.Module) -> None:
    old = module.forward

    def counted(self: nn.Module, *args: Any) -> Any:
        CALLS.append("bound")
        return old(*args)

    module.forward = MethodType(counted, module)


def twice(module: nn.Module) -> None:
    accelerated(module)
    in_a_cell(module)


def through_wrapped(module: nn.Module) -> None:
    in_a_cell(module)
    inner = module.forward

    @functools.wraps(inner)
    def outer(*args: Any) -> Any:
        CALLS.append("outer")
        return outer.__wrapped__(*args)

    module.forward = outer


WRAPPERS = [
    in_a_cell,
    in_a_partial,
    accelerated,
    in_a_default,
    in_an_object,
    in_a_method,
    as_a_method,
    twice,
    through_wrapped,
]
each_wrapper = pytest.mark.parametrize("wrap", WRAPPERS)


@each_wrapper
def test_a_wrapper_keeps_running_around_the_kernel_in_every_mode(wrap: Any) -> None:
    model = Norm().eval()
    wrap(model)
    CALLS.clear()
    factor(model)
    calls = CALLS.copy()
    before = snapshot(model)
    bindings = apply(norms(BOTH), model)
    assert bindings.report.rows[0].status == "swapped"
    CALLS.clear()
    assert factor(model) == 10
    assert calls == CALLS
    assert factor(model.train()) == 20
    assert calls * 2 == CALLS
    model.eval()
    bindings.revert()
    assert snapshot(model) == before
    CALLS.clear()
    assert factor(model) == 1
    assert calls == CALLS


@each_wrapper
def test_a_wrapper_added_after_apply_survives_modes_and_revert(wrap: Any) -> None:
    model = Norm().eval()
    bindings = apply(norms(BOTH), model)
    wrap(model)
    wrapper = vars(model)["forward"]
    assert factor(model) == 10
    assert factor(model.train()) == 20
    CALLS.clear()
    bindings.revert()
    assert factor(model) == 1
    assert factor(model.eval()) == 1
    assert vars(model)["forward"] is wrapper
    assert CALLS
    assert "_kerncfg" not in vars(model)


@each_wrapper
def test_a_wrapper_stays_around_an_original_too(wrap: Any) -> None:
    model = Norm().eval()
    wrap(model)
    before = snapshot(model)
    with apply(norms({TRAINING: "Twenty"}), model):
        CALLS.clear()
        assert factor(model) == 1
        assert CALLS
    assert snapshot(model) == before


def test_a_wrapper_whose_inside_cannot_be_reached_keeps_the_site() -> None:
    model = Norm().eval()
    HIDDEN[model] = model.forward
    model.forward = lambda x: HIDDEN[model](x)  # type: ignore[method-assign]
    before = snapshot(model)
    with pytest.warns(KerncfgWarning, match="wrapped"):
        bindings = apply(norms(), model)
    assert bindings.report.rows[0].status == "kept"
    assert bindings.report.rows[0].reason.startswith("wrapped")
    assert snapshot(model)["modules"] == before["modules"]


def test_what_merely_remembers_the_forward_is_no_way_to_reach_it() -> None:
    model = Norm().eval()
    model.saved = model.forward  # type: ignore[assignment]
    HIDDEN[model] = model.forward

    @functools.wraps(model.forward)
    def wrapper(x: torch.Tensor) -> Any:
        return HIDDEN[model](x)

    model.forward = wrapper  # type: ignore[method-assign]
    with pytest.warns(KerncfgWarning, match="wrapped"):
        assert apply(norms(), model).report.rows[0].status == "kept"
    assert factor(model) == 1


def test_a_wrapper_gets_back_the_very_object_it_held() -> None:
    model = Norm().eval()
    accelerated(model)
    held = vars(model)["_old_forward"]
    apply(norms(BOTH), model).revert()
    assert vars(model)["_old_forward"] is held


HIDDEN: dict[nn.Module, Any] = {}


def test_another_forward_on_the_instance_is_no_wrapper() -> None:
    model = Norm().eval()
    model.forward = MethodType(lambda self, x: x * 7, model)  # type: ignore[method-assign]
    with pytest.warns(KerncfgWarning):
        bindings = apply(norms(), model)
    assert bindings.report.counts == {"swapped": 0, "kept": 1, "off": 0}
    assert factor(model) == 7


def test_an_opaque_wrapper_added_after_apply_is_told() -> None:
    model = Norm().eval()
    bindings = apply(norms(BOTH), model)
    HIDDEN[model] = model.forward
    model.forward = lambda x: HIDDEN[model](x)  # type: ignore[method-assign]
    with pytest.warns(KerncfgWarning, match="cannot be reached"):
        model.train()
    with pytest.warns(KerncfgWarning, match="cannot be reached"):
        bindings.revert()


def test_a_wrapper_taken_off_while_applied_leaves_the_kernel_and_then_the_original() -> None:
    model = Norm().eval()
    accelerated(model)
    bindings = apply(norms(BOTH), model)
    model.forward = model._old_forward  # type: ignore[method-assign, assignment]
    del model._old_forward
    assert factor(model) == 10
    assert factor(model.train()) == 20
    bindings.revert()
    assert factor(model) == 1


def test_a_wrapped_module_copies_and_pickles_with_its_kernel() -> None:
    model = Model().eval()
    accelerated(model.norm)
    apply(norms(BOTH), model)
    for found in (copy.deepcopy(model), pickle.loads(pickle.dumps(model))):
        CALLS.clear()
        with torch.no_grad():
            found.norm.weight.fill_(3)
        assert factor(found) == 3 * 10**3
        assert CALLS == ["hook"]
        revert(found)
        assert factor(found) == 3
    assert factor(model) == 10**3


def test_a_copy_whose_wrapper_belongs_to_the_first_is_told() -> None:
    model = Norm().eval()
    in_a_cell(model)
    apply(norms(), model)
    with pytest.warns(KerncfgWarning, match="without its kernel"):
        copied = copy.deepcopy(model)
    revert(copied)
    assert factor(model) == 10


def test_forward_hooks_stay() -> None:
    model = Norm().eval()
    seen: list[float] = []
    model.register_forward_hook(lambda module, args, output: seen.append(float(output.detach().flatten()[0])))
    model.register_forward_pre_hook(lambda module, args: (args[0] * 2,))
    with apply(norms(), model):
        factor(model)
    factor(model)
    assert seen == [20, 2]


class Lora(nn.Module):
    def __init__(self, base: nn.Module) -> None:
        super().__init__()
        self.base_layer = base

    def forward(self, x: torch.Tensor) -> Any:
        return self.base_layer(x)


def test_an_adapter_is_kept_and_named_while_its_base_layer_may_be_swapped() -> None:
    model = nn.Sequential(Lora(Norm())).eval()
    bindings = apply(plan(step("all", "Ten", match={"path": "**"}, exclude=[""])), model)
    rows = {row.path: row for row in bindings.report.rows}
    assert rows["0"].status == "kept"
    assert "Lora" in rows["0"].reason
    assert "base_layer" in rows["0"].reason
    assert rows["0.base_layer"].status == "swapped"


class WithChild(nn.Module):
    def __init__(self, child: nn.Module) -> None:
        super().__init__()
        self.proj = child

    def forward(self, x: torch.Tensor) -> Any:
        return self.proj(x)


def _hook(child: nn.Module) -> nn.Module:
    child.register_forward_hook(lambda *_: None)
    return child


def _wrapped(child: nn.Module) -> nn.Module:
    in_a_cell(child)
    return child


def _adapted(child: nn.Module) -> nn.Module:
    return Lora(child)


@pytest.mark.parametrize("around", [_hook, _wrapped, _adapted])
def test_a_kernel_that_reads_inside_a_child_does_not_pass_by_what_is_around_it(around: Any) -> None:
    match = {"class": "WithChild"}
    plain, wrapped = WithChild(Norm()), WithChild(around(Norm()))
    assert apply(plan(step("P", "ReadsInside", match=match)), plain).report.counts["swapped"] == 1
    with pytest.warns(KerncfgWarning, match="past"):
        assert apply(plan(step("P", "ReadsInside", match=match)), wrapped).report.counts["kept"] == 1
    assert apply(plan(step("P", "CallsChild", match=match)), wrapped).report.counts["swapped"] == 1


# --- compiled and wrapped models ------------------------------------------------------------------------------------


def counting_backend() -> tuple[Any, list[int]]:
    compiled: list[int] = []

    def backend(graph: Any, inputs: Any) -> Any:
        compiled.append(1)
        return graph

    return backend, compiled


def test_a_compiled_model_takes_the_compile_modes_and_notices() -> None:
    torch._dynamo.reset()
    model = Model().eval()
    fast: Any = torch.compile(model, backend="eager")
    assert factor(fast) == 1
    with apply(norms(BOTH), fast) as bindings:
        assert bindings.report.rows[0].mode == "inference_compile"
        assert [row.path for row in bindings.report.rows] == ["layers.0.norm", "layers.1.norm", "norm"]
        assert factor(fast) == 10**3
    assert factor(fast) == 1


def test_a_model_compiled_in_place_takes_the_compile_modes() -> None:
    torch._dynamo.reset()
    model = Model().eval()
    for layer in model.layers:
        layer.compile(backend="eager")
    bindings = apply(norms(BOTH), model)
    assert bindings.report.rows[0].mode == "inference_compile"
    assert factor(model) == 10**3
    bindings.revert()
    assert factor(model) == 1


def test_a_part_that_is_compiled_is_looked_through() -> None:
    torch._dynamo.reset()
    model = Model().eval()
    model.layers[0] = torch.compile(model.layers[0], backend="eager")  # type: ignore[assignment]
    bindings = apply(norms("Ten", match={"path": "layers.*.norm"}), model)
    assert [row.path for row in bindings.report.rows] == ["layers.0.norm", "layers.1.norm"]
    assert factor(model) == 10**2
    revert(model)
    assert factor(model) == 1


def test_a_forward_that_was_compiled_takes_the_compile_modes() -> None:
    """`model.forward = torch.compile(model.forward)`, as the guides of transformers write it."""
    torch._dynamo.reset()
    model = Model().eval()
    model.forward = torch.compile(model.forward, backend="eager")  # type: ignore[method-assign]
    before = snapshot(model)
    bindings = apply(norms(BOTH), model)
    assert {row.mode for row in bindings.report.rows} == {"inference_compile"}
    assert factor(model) == 10**3
    bindings.revert()
    assert factor(model) == 1
    assert snapshot(model)["modules"] == before["modules"]


def test_a_layer_whose_forward_was_compiled_takes_the_compile_modes() -> None:
    torch._dynamo.reset()
    model = Model().eval()
    model.norm.forward = torch.compile(model.norm.forward, backend="eager")  # type: ignore[method-assign]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", KerncfgWarning)
        report = apply(norms("OnlyForward"), model).report
    assert {(row.status, row.mode) for row in report.rows} == {("kept", "inference_compile")}
    with apply(norms(BOTH), model):
        assert factor(model) == 10**3
    assert factor(model) == 1


def test_a_plain_mode_for_a_compiled_model_is_refused_with_advice() -> None:
    fast: Any = torch.compile(Norm(), backend="eager")
    with pytest.raises(ApplyError, match="inference_compile"):
        apply(norms(), fast, mode="inference")


def test_blocks_compile_once_a_mode_and_never_on_revert() -> None:
    torch._dynamo.reset()
    backend, compiled = counting_backend()
    model = Model(6).eval()
    bindings = apply(norms(BOTH), model, compile=True)
    for layer in model.layers:
        layer.compile(backend=backend, fullgraph=True)
    factor(model)
    assert len(compiled) == 1
    factor(model.train())
    assert len(compiled) == 2
    factor(model.eval())
    assert len(compiled) == 2
    bindings.revert()
    factor(model)
    assert len(compiled) <= 3


def test_a_scripted_model_is_refused_with_advice() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        scripted = torch.jit.trace(nn.Linear(2, 2), torch.ones(1, 2))  # type: ignore[no-untyped-call]
    with pytest.raises(ApplyError, match=r"before torch\.jit"):
        apply(norms(), scripted)


def test_data_parallel_is_refused_with_advice() -> None:
    with pytest.raises(ApplyError, match=r"model\.module"):
        apply(norms(), nn.DataParallel(Norm()))


def test_something_that_is_no_module_is_refused() -> None:
    with pytest.raises(ApplyError, match="found a str"):
        apply(norms(), "model")  # type: ignore[arg-type]


def test_functional_call_and_export_see_the_kernel() -> None:
    model = Model().eval()
    apply(norms("Ten"), model)
    doubled = {name: value * 2 for name, value in model.named_parameters()}
    with torch.no_grad():
        assert float(torch.func.functional_call(model, doubled, (X,))[0, 0]) == 20**3
        assert factor(torch.export.export(model, (X,)).module()) == 10**3


# --- devices and conditions -----------------------------------------------------------------------------------------


def test_a_site_on_another_device_is_kept_and_one_without_tensors_fits() -> None:
    model = Model().to("meta").eval()
    bindings = apply(plan(step("Norm", "Ten"), step("Act", "Free")), model)
    rows = {row.path: row for row in bindings.report.rows}
    assert rows["norm"].reason == "the module is on meta, the plan is for cpu"
    assert rows["layers.0.act"].status == "swapped"


def test_each_module_of_a_class_is_looked_at() -> None:
    model = Model(4).eval()
    moved, lacking, wrapped = (model.get_submodule(f"layers.{index}.norm") for index in (1, 2, 3))
    moved.to("meta")
    del lacking.weight
    HIDDEN[wrapped] = wrapped.forward
    wrapped.forward = lambda x: HIDDEN[wrapped](x)
    rows = {row.path: row for row in apply(norms(), model).report.rows}
    assert rows["layers.0.norm"].status == rows["norm"].status == "swapped"
    assert "is on meta" in rows["layers.1.norm"].reason
    assert "reads self.weight, which the module has not" in rows["layers.2.norm"].reason
    assert "wrapped" in rows["layers.3.norm"].reason


def test_the_plans_device_decides_not_the_machine() -> None:
    target = replace(HERE, device="rocm")
    with pytest.warns(KerncfgWarning):
        bindings = apply(plan(step("Norm", "Ten"), target=target), Norm())
    assert bindings.report.rows[0].reason == "the module is on cpu, the plan is for rocm"


def test_dtype_is_asked_of_each_module() -> None:
    model = Model().eval()
    model.norm.to(torch.bfloat16)
    rows = {row.path: row for row in apply(norms(choice("Ten", dtype=["bfloat16", "float16"])), model).report.rows}
    assert rows["norm"].status == "swapped"
    assert "needs dtype bfloat16 or float16, found float32" in rows["layers.0.norm"].reason


@pytest.mark.parametrize(
    ("path", "values", "status"),
    [
        ("bias_config.kind", ["none"], "swapped"),
        ("bias_config.deep.eps", [1e-5, 1e-6], "swapped"),
        ("bias_config.kind", ["some"], "kept"),
        ("training", [False], "swapped"),
        ("training", [0], "kept"),
        ("weight.ndim", [1], "swapped"),
        ("weight.dtype", ["float32"], "swapped"),
        ("weight.shape", [[4]], "swapped"),
    ],
    ids=["text", "number in a map", "another text", "boolean", "no boolean", "number", "dtype", "shape"],
)
def test_when_reads_attributes_and_maps_of_the_module(path: str, values: list[Any], status: str) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", KerncfgWarning)
        row = apply(norms(choice("Ten", when={path: values})), Norm().eval()).report.rows[0]
    assert row.status == status
    if status == "kept":
        assert f"needs {path}" in row.reason


def test_a_missing_attribute_in_when_is_an_error_that_names_row_and_module() -> None:
    said = choice("Ten", origin="override: kernels.Norm.when", when={"config.hidden_act": ["silu"]})
    model = Model()
    before = snapshot(model)
    with pytest.raises(
        ApplyError, match=r"kernels.Norm: .*override: kernels.Norm.when.*config.hidden_act.*layers\.0\.norm"
    ):
        apply(norms(said), model)
    assert snapshot(model)["modules"] == before["modules"]


def test_a_missing_attribute_in_a_presets_when_is_a_reason() -> None:
    said = choice("Ten", origin="preset: kernels/bundled.yaml:4", when={"config.hidden_act": ["silu"]})
    with pytest.warns(KerncfgWarning):
        row = apply(norms(said), Norm()).report.rows[0]
    assert row.status == "kept"
    assert "config.hidden_act" in row.reason


@pytest.mark.parametrize(
    ("kernel", "asked"),
    [("preset: kernels/bundled.yaml:4", "override: kernels.Norm.when"), ("mine.yaml:3", "mine.yaml:4")],
)
def test_a_condition_of_ones_own_on_a_presets_kernel_is_judged_as_ones_own(kernel: str, asked: str) -> None:
    said = choice("Ten", origin=kernel, when={"config.hidden_act": ["silu"]})
    with pytest.raises(ApplyError, match=r"config.hidden_act asks for what the module has not"):
        apply(norms(replace(said, asked={"config.hidden_act": asked})), Norm())


def test_a_presets_condition_beside_a_kernel_of_ones_own_is_a_reason() -> None:
    said = choice("Ten", origin="override: kernels.Norm.cpu.kernel", when={"config.hidden_act": ["silu"]})
    said = replace(said, asked={"config.hidden_act": "preset: kernels/bundled.yaml:5"})
    with pytest.warns(KerncfgWarning):
        assert apply(norms(said), Norm()).report.rows[0].status == "kept"


class Raising(nn.Module):
    """Raises where nobody expects it."""

    kernel_layer_name = "Norm"
    weight: Any

    def __init__(self) -> None:
        super().__init__()
        self.register_parameter("weight", nn.Parameter(torch.ones(4)))
        self.table = torch.ones(3)
        self.array = numpy.ones(3)
        self.flag = numpy.bool_(True)

    def forward(self, x: torch.Tensor) -> Any:
        return x * self.weight

    @property
    def broken(self) -> Any:
        raise RuntimeError("no config yet")

    def parameters(self, recurse: bool = True) -> Any:
        raise RuntimeError("no parameters yet")

    def modules(self, remove_duplicate: bool = True) -> Any:
        raise RuntimeError("no modules yet")


@pytest.mark.parametrize(
    ("path", "value", "reason"),
    [
        ("broken", 1, "when.broken cannot be read: RuntimeError: no config yet"),
        ("table", 1, "needs table 1"),
        ("array", 1, "needs array 1"),
        ("array", [1, 1, 1], "needs array"),
        ("flag", True, None),
        ("flag", False, "needs flag False"),
        ("array.size", 3, None),
    ],
)
def test_a_condition_that_cannot_be_answered_is_a_reason(path: str, value: Any, reason: str | None) -> None:
    model = Raising().eval()
    row = apply(norms([choice("Twenty", when={path: [value]}), "Ten"]), model).report.rows[0]
    assert factor(model) == (20 if reason is None else 10)
    assert reason is None or reason in row.reason


def _no(module: nn.Module) -> bool:
    raise RuntimeError("no condition yet")


def test_a_kernel_condition_that_raises_keeps_the_site() -> None:
    cls = type("Conditional", (Norm,), {"kernel_condition": staticmethod(_no), "_kerncfg_layer": "Norm"})
    with pytest.warns(KerncfgWarning):
        row = apply(norms(), cls()).report.rows[0]
    assert row.status == "kept"
    assert "RuntimeError: no condition yet" in row.reason


def test_a_layer_whose_metaclass_raises_is_kept() -> None:
    class Meta(type):
        def __getattribute__(cls, name: str) -> Any:
            if name == "forward":
                raise RuntimeError("not of the class")
            return super().__getattribute__(name)

    model = Meta("Odd", (Norm,), {"_kerncfg_layer": "Norm"})()
    with pytest.warns(KerncfgWarning):
        row = apply(norms(), model).report.rows[0]
    assert row.status == "kept"
    assert "asking it raised RuntimeError: not of the class" in row.reason
    assert factor(model) == 1


def test_a_kernel_whose_class_raises_is_passed_over() -> None:
    model = Norm().eval()
    row = apply(norms(["RaisingClass", "WrapsItself", "Ten"]), model).report.rows[0]
    assert factor(model) == 10
    assert "RuntimeError: not yet" in row.reason
    assert "wrapper loop" in row.reason


def test_a_class_that_computes_its_forward_is_kept() -> None:
    cls = type("Computing", (Norm,), {"forward": property(lambda self: lambda x: x * 7), "_kerncfg_layer": "Norm"})
    model = cls()
    with pytest.warns(KerncfgWarning):
        row = apply(norms(), model).report.rows[0]
    assert (row.status, factor(model)) == ("kept", 7)
    assert "its class computes its forward" in row.reason


# --- loading and trust ----------------------------------------------------------------------------------------------


def test_a_kernel_that_does_not_load_is_passed_over_with_the_reason() -> None:
    model = Norm().eval()
    row = apply(norms(["python:tests.fakes_broken:Any", "Ten"]), model).report.rows[0]
    assert factor(model) == 10
    assert "passed over: python:tests.fakes_broken:Any (kernels.yaml:3): cannot be imported: ImportError" in row.reason


def test_a_kernel_that_does_not_load_keeps_the_site_if_it_was_the_last() -> None:
    with pytest.warns(KerncfgWarning):
        row = apply(norms("python:tests.fakes_broken:Any"), Norm()).report.rows[0]
    assert row.status == "kept"
    assert "libbroken.so" in row.reason


def test_consent_is_asked_for_before_anything_is_loaded() -> None:
    sys.modules.pop("tests.fakes_broken", None)
    trust = Trust().plus("python:tests.fakes_broken")
    model = Model()
    two = plan(step("Act", "python:tests.fakes_broken:Any"), step("Norm", "Ten"), trust=trust)
    with pytest.raises(TrustError, match=r"kernels.Norm: python:tests.fakes:Ten"):
        apply(two, model)
    assert "tests.fakes_broken" not in sys.modules


def test_rows_without_sites_ask_for_no_consent() -> None:
    untrusted = step("Absent", "python:somewhere.else:X")
    assert apply(plan(step("Norm", "Ten"), untrusted), Model()).report.counts["swapped"] == 3


# --- rows without effect --------------------------------------------------------------------------------------------


def test_a_row_without_sites_is_reported_with_the_nearest_names() -> None:
    with pytest.warns(KerncfgWarning, match="no module runs one"):
        report = apply(plan(step("Nrom", "Ten")), Model()).report
    assert report.counts == {"swapped": 0, "kept": 0, "off": 0}
    reason = "no layer Nrom, said at kernels.yaml:3; the model has Norm (3)"
    assert report.notes == (f"kernels.Nrom: {reason}",)
    assert report.idle == {"kernels.Nrom": reason}


def test_a_row_without_sites_in_a_model_without_names_is_sent_to_match() -> None:
    with pytest.warns(KerncfgWarning, match=r"the model registers no names: add match: \{class: …\}"):
        apply(plan(step("Linear", "Ten")), nn.Linear(2, 2))


def test_a_row_that_swaps_nothing_beside_one_that_does_is_idle_with_its_reason() -> None:
    report = apply(plan(step("Norm", "Ten"), step("Act", "WithInit"), step("Off", "original")), Model()).report
    assert list(report.idle) == ["kernels.Act"]
    assert "an __init__ of its own" in report.idle["kernels.Act"]
    assert report.to_dict()["idle"] == report.idle


def test_a_signature_that_does_not_fit_has_its_cure_among_the_notes() -> None:
    with pytest.warns(KerncfgWarning, match="its forward is"):
        report = apply(norms("OtherName"), Model()).report
    assert report.notes == ("kernels.Norm: write a kernel whose forward takes (x), or narrow the row with match",)
    with pytest.warns(KerncfgWarning, match="its forward is"):
        assert apply(norms(choice("OtherName", origin="preset: kernels/a.yaml:1")), Model()).report.notes == ()


def test_a_row_without_sites_is_an_error_under_strict() -> None:
    model = Model()
    before = snapshot(model)
    with pytest.raises(ApplyError, match=r"kernels.Nrom: no layer Nrom, .*; the model has Norm \(3\)"):
        apply(plan(step("Norm", "Ten"), step("Nrom", "Ten"), strict=True), model)
    assert snapshot(model)["modules"] == before["modules"]


def test_a_row_whose_sites_are_all_kept_is_an_error_under_strict() -> None:
    with pytest.raises(ApplyError, match="an __init__ of its own"):
        apply(plan(step("Norm", "WithInit"), strict=True), Model())


def test_off_and_inherited_rows_without_sites_are_fine_under_strict() -> None:
    steps = [step("Norm", "Ten"), step("Absent", "original"), step("Other", "Ten", own=False)]
    report = apply(plan(*steps, strict=True), Model()).report
    assert report.notes == (
        "kernels.Absent: no layer Absent, said at kernels.yaml:3; the model has Act (2), Norm (3)",
        "1 inherited row has no layer in this model",
    )
    assert report.to_dict()["absent"] == ["Other"]
    assert report.idle == {}


def test_a_plan_that_only_switches_off_does_not_warn() -> None:
    report = apply(plan(step("Norm", "original")), Model()).report
    assert report.counts == {"swapped": 0, "kept": 0, "off": 3}
    assert {row.reason for row in report.rows} == {"off, as the row says (kernels.yaml:3)"}


def resolved(*, strict: bool, kernels: dict[str, Any], enabled: bool = True) -> Plan:
    """A plan as the compiler makes it."""
    said = document(kernels, policy={"strict": strict}, enabled=enabled)
    found = normalise(said, origins=origins(said))
    lock = pin({candidate.ref for row in found.rows.values() for candidate in row.candidates()})
    return resolve(found, lock, Request(target=HERE, trust=TRUST))


def test_a_plan_that_is_switched_off_swaps_nothing_and_is_content_also_under_strict() -> None:
    said = {"Norm": "python:tests.fakes:Ten", "Absent": "python:tests.fakes:Ten"}
    report = apply(resolved(kernels=said, strict=True, enabled=False), Model()).report
    assert report.counts == {"swapped": 0, "kept": 3, "off": 0}
    assert {row.reason for row in report.rows} == {"kernels are switched off: enabled is false, needed true"}


def test_a_row_for_another_device_swaps_nothing_which_is_told() -> None:
    said = {"Norm": {"cuda": "python:tests.fakes:Ten"}}
    with pytest.warns(KerncfgWarning, match="kernels.Norm: no row for cpu"):
        report = apply(resolved(kernels=said, strict=False), Model()).report
    assert {(row.status, row.reason) for row in report.rows} == {("kept", "no row for cpu")}
    with pytest.raises(ApplyError, match="no row for cpu"):
        apply(resolved(kernels=said, strict=True), Model())


def test_a_row_switched_off_is_off_by_whoever_wrote_it() -> None:
    report = apply(resolved(kernels={"Norm": None, "Act": "python:tests.fakes:Free"}, strict=True), Model()).report
    assert report.counts == {"swapped": 2, "kept": 0, "off": 3}
    assert {row.reason for row in report.rows if row.status == "off"} == {"off, as the row says (argument)"}


def test_a_refused_candidate_is_reported_where_it_would_have_run() -> None:
    rejected = [Rejection(reference="org/a@v1:X", reason="no build fits", origin="kernels.yaml:3")]
    with pytest.warns(KerncfgWarning, match="no build fits"):
        report = apply(plan(step("Norm", (), rejected=rejected)), Model()).report
    assert {(row.status, row.reason) for row in report.rows} == {("kept", "org/a@v1:X: no build fits")}


def test_one_row_off_leaves_the_others_on() -> None:
    model = Model().eval()
    report = apply(plan(step("Norm", "Ten"), step("Act", "original")), model).report
    assert report.counts == {"swapped": 3, "kept": 0, "off": 2}
    assert factor(model) == 10**3


# --- the report -----------------------------------------------------------------------------------------------------


def test_the_report_is_in_the_models_order_and_says_what_each_mode_runs() -> None:
    report = apply(plan(step("Act", "Free"), step("Norm", BOTH)), Model().eval()).report
    assert [row.path for row in report.rows] == [
        "layers.0.norm", "layers.0.act", "layers.1.norm", "layers.1.act", "norm",
    ]  # fmt: skip
    assert report.to_dict()["rows"][0] == {
        "path": "layers.0.norm",
        "name": "Norm",
        "kind": "layer",
        "status": "swapped",
        "kernel": "python:tests.fakes:Ten",
        "mode": "inference",
        "reason": "chosen for cpu (kernels.yaml:3)",
        "modes": {"inference": "python:tests.fakes:Ten", "training": "python:tests.fakes:Twenty"},
    }
    assert report.to_dict()["counts"] == {"swapped": 5, "kept": 0, "off": 0}


def test_the_report_shows_the_present_mode() -> None:
    model = Model().eval()
    bindings = apply(norms({INFERENCE: "Ten", TRAINING: "original"}), model)
    assert {row.status for row in bindings.report.rows} == {"swapped"}
    model.train()
    assert {(row.status, row.kernel, row.mode) for row in bindings.report.rows} == {("off", None, "training")}


def test_the_report_tells_what_was_done_by_hand_since() -> None:
    model = Model()
    bindings = apply(norms(BOTH), model)
    first, second = (model.get_submodule(f"layers.{index}.norm") for index in (0, 1))
    first.training = False
    del second.forward
    rows = {row.path: row for row in bindings.report.rows}
    changed, deleted, same = rows["layers.0.norm"], rows["layers.1.norm"], rows["norm"]
    assert (changed.status, changed.mode, changed.kernel) == ("swapped", "inference", "python:tests.fakes:Twenty")
    assert (deleted.status, deleted.kernel) == ("kept", None)
    assert changed.reason.startswith("changed since: `training`")
    assert deleted.reason.startswith("changed since: its forward was deleted")
    assert same.reason == "chosen for cpu (kernels.yaml:3)"
    assert factor(model) == 20 * 20


def test_the_table_is_short_however_many_layers_there_are() -> None:
    bindings = apply(plan(step("Norm", "Ten"), step("Act", "original")), Model(200).eval())
    assert str(bindings.report) == (
        "name  status   kernel                 sites  where                reason\n"
        "Norm  swapped  python:tests.fakes:Ten  201    layers.*.norm, norm  chosen for cpu (kernels.yaml:3)\n"
        "Act   off      original                200    layers.*.act         off, as the row says (kernels.yaml:3)\n"
        "201 swapped, 0 kept, 200 off (inference)"
    ).replace("kernel                 sites", "kernel                  sites")
    assert repr(bindings).endswith("201 swapped, 0 kept, 200 off>")


def test_the_notebook_table_escapes_what_it_shows() -> None:
    said = choice("Ten", origin="<b>.yaml:1")
    shown = apply(norms(said), Model()).report._repr_html_()
    assert "&lt;b&gt;.yaml:1" in shown
    assert shown.count("<tr>") == 2


def test_a_binding_offers_both_forwards() -> None:
    model = Norm()
    binding = apply(norms({INFERENCE: "Ten"}), model).sites[0]
    with torch.no_grad():
        assert float(binding.original()(X)[0, 0]) == 1
        assert float(binding.forward("inference")(X)[0, 0]) == 10
        assert float(binding.forward(TRAINING)(X)[0, 0]) == 1
    assert binding.kernels[TRAINING] is None
    with pytest.raises(ApplyError, match="training_compile"):
        binding.forward("training_compile")


def test_a_contract_error_names_everything() -> None:
    kernel = Kernel(reference=KernelRef.parse("python:tests.fakes:OtherName"), commit="a1b2c3")
    said = Choice(kernel=kernel, origin="conf/kernels/mine.yaml:3", reason="chosen for cpu")
    model = Model()
    before = snapshot(model)
    with pytest.raises(ContractError) as caught:
        apply(norms(said, fallback="error"), model)
    assert str(caught.value) == (
        "layers.0.norm (Norm): no kernel of kernels.Norm is left for inference: "
        "python:tests.fakes:OtherName (commit a1b2c3, conf/kernels/mine.yaml:3): "
        "its forward is forward(hidden_states, eps=1e-06), that of Norm is forward(x)\n"
        "  hint: write a kernel whose forward takes (x), or narrow the row with match, or let it fall back: "
        "kernels.Norm.fallback=original"
    )
    assert snapshot(model)["modules"] == before["modules"]


# --- what came later ------------------------------------------------------------------------------------------------

ADDED = "added after apply; apply again to cover it"


def test_a_module_added_after_apply_is_reported_until_apply_is_run_again() -> None:
    model = Model()
    bindings = apply(plan(step("Norm", "Ten"), step("Act", "original")), model)
    model.layers.append(Block())
    added = [(row.path, row.status, row.kernel, row.modes["training"]) for row in bindings.report.rows[-1:]]
    assert added == [("layers.2.norm", "kept", None, "original")]
    assert [row.path for row in bindings.report.rows if row.reason == ADDED] == ["layers.2.norm"]
    again = apply(plan(step("Norm", "Ten"), step("Act", "original")), model)
    assert [row.path for row in again.report.rows if row.status == "swapped"] == [
        "layers.0.norm", "layers.1.norm", "layers.2.norm", "norm",
    ]  # fmt: skip


def test_what_the_plan_has_no_kernel_for_or_excludes_is_not_reported_when_it_is_added() -> None:
    model = Model()
    bindings = apply(plan(step("Norm", "Ten", exclude=["layers.*.norm"])), model)
    model.layers.append(Block())
    model.more = nn.ModuleList([nn.Linear(2, 2), Act()])
    assert len(bindings.report.rows) == 3


def test_two_rows_that_take_an_added_module_are_a_note() -> None:
    model = Model()
    steps = [step("a", "Ten", match={"path": "norm"}), step("b", "Ten", match={"path": "late", "class": "Norm"})]
    bindings = apply(plan(*steps, step("c", "Ten", match={"path": "l*e"})), model)
    model.late = Norm()
    (note,) = [note for note in bindings.report.notes if note.startswith("added after apply: late (Norm)")]
    assert "kernels.b (kernels.yaml:3) and kernels.c (kernels.yaml:3)" in note


@pytest.mark.parametrize(("arguments", "hint"), [("swapped", "write apply(plan, model)"), ("text", "kerncfg.plan(")])
def test_what_is_no_plan_is_refused(arguments: str, hint: str) -> None:
    given: Any = (Model(), norms()) if arguments == "swapped" else ("kernels=bundled", Model())
    with pytest.raises(ApplyError, match=r"a plan is a kerncfg.Plan, found a") as caught:
        apply(*given)
    assert hint in str(caught.value.hint)
