from __future__ import annotations

import functools
import inspect
from typing import Any

import pytest
import torch
from torch import nn

from kerncfg.applier.adapters.torch import TorchAdapter
from kerncfg.applier.contract import _device, device_fault, fit, module_fault
from kerncfg.documents.target import Mode
from tests import fakes


class Layer(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(2))
        self.register_buffer("table", torch.ones(2))
        self.child = nn.Linear(2, 2)
        self.eps = 1e-6

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x


class Scaled(Layer):
    def forward(self, x: torch.Tensor, scale: float = 1.0, *, keep: bool = False) -> torch.Tensor:
        return x


class Odd(Layer):
    def __getattr__(self, name: str) -> Any:
        return 3 if name == "scale_that_is_not_there" else super().__getattr__(name)


def fault(code: Any, cls: type[nn.Module] = Layer, mode: Mode = Mode.INFERENCE) -> str | None:
    layer = TorchAdapter().layer(cls)
    assert layer is not None
    return fit(code, layer, mode).fault


def kernel(forward: Any, **members: Any) -> type[nn.Module]:
    return type("Kernel", (nn.Module,), {"forward": forward, **members})


@pytest.mark.parametrize("code", [fakes.Ten, fakes.Free, fakes.OnlyForward, fakes.AsksFirst])
def test_a_stateless_layer_with_the_same_forward_fits(code: Any) -> None:
    assert fault(code) is None


@pytest.mark.parametrize(
    ("code", "reason"),
    [
        (fakes.function, "a layer kernel is a subclass of torch.nn.Module, this is a function"),
        (int, "a layer kernel is a subclass of torch.nn.Module, this is a class that is not one"),
        (fakes.WithInit, "a layer kernel is stateless, this has an __init__ of its own"),
        (
            fakes.WithMember,
            "a layer kernel has no members but forward, has_backward, can_torch_compile and deterministic, "
            "this has table",
        ),
        (fakes.Static, "a layer kernel's forward is a method, this is a staticmethod"),
        (fakes.NoForward, "this has no forward"),
        (fakes.CallsSuper, "its forward calls super(), which means nothing in the layer that borrows it"),
        (
            fakes.OtherName,
            "its forward is forward(hidden_states, eps=1e-06), that of Layer is forward(x)",
        ),
        (fakes.OtherDefault, "its forward is forward(x, scale=2.0), that of Layer is forward(x)"),
    ],
)
def test_what_does_not_fit_says_why(code: Any, reason: str) -> None:
    assert fault(code) == reason


def test_state_that_a_base_brings_counts() -> None:
    assert "an __init__ of its own" in (fault(type("Sub", (fakes.WithInit,), {})) or "")
    assert "this has table" in (fault(type("Sub", (fakes.WithMember,), {})) or "")


@pytest.mark.parametrize(
    ("forward", "fits"),
    [
        (lambda self, x, scale=1.0, *, keep=False: x, True),
        (lambda self, x, scale=2.0, *, keep=False: x, False),
        (lambda self, x, scale=1, *, keep=False: x, False),
        (lambda self, x, scale, *, keep=False: x, False),
        (lambda self, x, scale=1.0, keep=False: x, False),
        (lambda self, scale=1.0, x=None, *, keep=False: x, False),
        (lambda self, x, scale=1.0, *, other=False: x, False),
        (lambda self, x, *args, **kwargs: x, False),
        (lambda this, x, scale=1.0, *, keep=False: x, True),
    ],
    ids=["same", "default", "type", "no default", "kind", "order", "name", "star", "name of self"],
)
def test_names_order_kinds_and_defaults_are_compared(forward: Any, fits: bool) -> None:
    assert (fault(kernel(forward), Scaled) is None) is fits


def test_the_signature_behind_a_decorator_counts() -> None:
    def decorated(function: Any) -> Any:
        @functools.wraps(function)
        def inner(*args: Any, **kwargs: Any) -> Any:
            return function(*args, **kwargs)

        return inner

    assert fault(kernel(decorated(lambda self, x: x * self.weight))) is None


@pytest.mark.parametrize("mode", Mode)
def test_the_flags_agree_with_the_mode(mode: Mode) -> None:
    plain = kernel(lambda self, x: x)
    inference = kernel(lambda self, x: x, has_backward=False, can_torch_compile=True)
    training = kernel(lambda self, x: x, has_backward=True, can_torch_compile=True)
    assert (fault(plain, mode=mode) is None) is not mode.compiled
    assert (fault(inference, mode=mode) is None) is not mode.training
    assert fault(training, mode=mode) is None


@pytest.mark.parametrize("value", ["no", None, 1, torch.ones(3), property(lambda self: 1 / 0)])
@pytest.mark.parametrize("name", ["has_backward", "can_torch_compile"])
def test_a_flag_is_true_or_false(name: str, value: Any) -> None:
    expected = f"{name} is a {type(value).__name__}, which is neither true nor false"
    assert fault(kernel(lambda self, x: x, **{name: value})) == expected


@pytest.mark.parametrize("name", ["__call__", "__getattr__", "train", "_K__x", "__table__", "parameters"])
def test_what_a_layer_would_not_borrow_is_refused(name: str) -> None:
    assert f"this has {name}" in (fault(kernel(lambda self, x: x, **{name: lambda self: None})) or "")


def test_what_every_class_brings_is_fine() -> None:
    class Described(nn.Module):
        """With a docstring and annotations."""

        weight: torch.Tensor

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return x

        def extra_repr(self) -> str:
            return "described"

    assert fault(Described) is None


async def _async(self: Any, x: Any) -> Any:
    return x


async def _async_generator(self: Any, x: Any) -> Any:
    yield x


def _generator(self: Any, x: Any) -> Any:
    yield x


@pytest.mark.parametrize(
    ("forward", "said"), [(_async, "is async"), (_async_generator, "is async"), (_generator, "is a generator")]
)
def test_a_forward_that_does_not_return_its_result_is_refused(forward: Any, said: str) -> None:
    assert f"its forward {said}" in (fault(kernel(forward)) or "")


def _three(self: Any, a: Any, b: Any, c: Any) -> Any:
    return a


def _one(self: Any, x: Any) -> Any:
    return x


@functools.wraps(_one)
def _dressed(self: Any, a: Any, b: Any, c: Any) -> Any:
    return a


@functools.wraps(_three)
def _passes_three_on(*args: Any, **kwargs: Any) -> Any:
    return _three(*args, **kwargs)


def _signed(self: Any, a: Any, b: Any, c: Any) -> Any:
    return a


_signed.__signature__ = inspect.signature(_one)  # type: ignore[attr-defined]


@pytest.mark.parametrize("forward", [_dressed, _passes_three_on, _signed])
def test_the_code_decides_what_a_forward_takes_not_what_it_says(forward: Any) -> None:
    assert fault(kernel(forward)) == "its forward is forward(a, b, c), that of Layer is forward(x)"


def missing(forward: Any, module: nn.Module) -> str | None:
    layer = TorchAdapter().layer(type(module))
    assert layer is not None
    found = fit(kernel(forward), layer, Mode.INFERENCE)
    assert found.fault is None
    return module_fault(module, found)


def _comprehension(self: Any, x: Any) -> Any:
    return [self.absent_in_comprehension for _ in x]


def _closure(self: Any, x: Any) -> Any:
    def inner() -> Any:
        return self.absent_in_closure

    return inner()


def _method(self: Any, x: Any) -> Any:
    return self.absent_method(x)


def _stores(self: Any, x: Any) -> Any:
    self.cached = x
    return self.cached


def test_a_forward_that_sets_an_attribute_is_not_stateless() -> None:
    assert fault(kernel(_stores)) == "a layer kernel is stateless, its forward changes self: cached"


def _asks(self: Any, x: Any) -> Any:
    return getattr(self, "optional", None) or (self.optional if x is None else x)


@pytest.mark.parametrize(
    ("forward", "name"),
    [
        (lambda self, x: (self.weight, self.table, self.child, self.eps, self.training, self.extra_repr()), None),
        (lambda self, x: x * self.absent, "absent"),
        (lambda self, x: self.absent.size(), "absent"),
        (lambda this, x: this.absent_too, "absent_too"),
        (_comprehension, "absent_in_comprehension"),
        (_closure, "absent_in_closure"),
        (_method, "absent_method"),
        (_asks, None),
        (lambda self, x: x.absent, None),
    ],
    ids=[
        "all",
        "absent",
        "deeper",
        "another self",
        "comprehension",
        "closure",
        "method",
        "asked",
        "not self",
    ],
)
def test_every_attribute_that_a_forward_reads_exists(forward: Any, name: str | None) -> None:
    expected = f"its forward reads self.{name}, which the module has not" if name else None
    assert missing(forward, Layer()) == expected


def test_attributes_are_asked_of_the_instance() -> None:
    with_scale, without = Layer(), Layer()
    with_scale.scale = 2.0  # type: ignore[assignment]
    assert missing(lambda self, x: self.scale, with_scale) is None
    assert missing(lambda self, x: self.scale, without) is not None


def test_attributes_that_a_class_makes_up_exist() -> None:
    assert missing(fakes.ReadsAbsent.forward, Odd()) is None


@pytest.mark.parametrize(("device", "found"), [("cpu", None), ("cuda", "cpu"), ("rocm", "cpu"), ("mps", "cpu")])
def test_a_module_is_where_its_tensors_are(device: str, found: str | None) -> None:
    expected = f"the module is on {found}, the plan is for {device}" if found else None
    assert device_fault(Layer(), device) == expected
    assert device_fault(nn.Sequential(nn.ReLU(), nn.Linear(2, 2)), device) == expected
    assert device_fault(nn.BatchNorm1d(2, affine=False), device) == expected


def test_a_module_without_tensors_is_nowhere() -> None:
    assert device_fault(nn.ReLU(), "cuda") is None


def test_one_tensor_elsewhere_is_enough() -> None:
    module = Layer()
    module.child.to("meta")
    assert device_fault(module, "cpu") == "the module is on meta, the plan is for cpu"


def test_rocm_is_what_pytorch_calls_cuda(monkeypatch: pytest.MonkeyPatch) -> None:
    """The one thing here that this machine cannot have: a build of PyTorch for ROCm."""
    assert _device(torch.device("cuda", 0)) == "cuda"
    _device.cache_clear()
    monkeypatch.setattr(torch.version, "hip", "6.4")
    assert _device(torch.device("cuda", 1)) == "rocm"
    _device.cache_clear()
