from __future__ import annotations

import functools
import gc
import sys
import types
from typing import Any

import pytest
import torch
from torch import nn

from kerncfg.applier.adapters import Site, adapter_for
from kerncfg.applier.adapters.torch import TorchAdapter, compiled, kernel_layer, walk


@kernel_layer("Norm")
class Norm(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x


class Plain(Norm):
    """Inherits the forward."""


class Own(Norm):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + 1


def sites(model: nn.Module) -> list[Site]:
    return list(TorchAdapter().sites(model))


def names(model: nn.Module) -> dict[str, str | None]:
    return {site.path: site.layer.name for site in sites(model)}


def test_a_decorated_class_and_a_subclass_that_inherits_its_forward_have_the_name() -> None:
    assert names(nn.ModuleDict({"a": Norm(), "b": Plain()})) == {"a": "Norm", "b": "Norm"}


def test_a_class_with_its_own_forward_only_inherits_the_name() -> None:
    (site,) = sites(Own())
    assert (site.layer.name, site.layer.inherited) == (None, "Norm")
    assert site.layer.classes == (Own,)


def test_a_subclass_may_have_a_name_of_its_own() -> None:
    decorated = kernel_layer("Other")(type("Decorated", (Norm,), {}))
    assert names(decorated()) == {"": "Other"}
    assert names(Norm()) == {"": "Norm"}


def test_the_name_of_a_base_past_a_mixin_with_a_forward_does_not_count() -> None:
    class Mixin:
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return x

    mixed = type("Mixed", (Mixin, Norm), {})
    assert names(mixed()) == {"": None}


def test_a_class_renamed_at_run_time_keeps_its_name() -> None:
    """As FSDP2 does: it puts a subclass of its own in the place of the class."""
    module = Norm()
    module.__class__ = type("FSDPNorm", (Norm,), {})
    (site,) = sites(module)
    assert site.layer.name == "Norm"
    assert site.layer.forward is Norm.forward


def test_the_marker_of_the_kernels_library_is_read() -> None:
    class Marked(nn.Module):
        kernel_layer_name = "SiLU"
        kernel_condition = staticmethod(lambda module: False)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return x

    (site,) = sites(Marked())
    assert site.layer.name == "SiLU"
    assert site.layer.condition is not None
    assert not site.layer.condition(site.module)


def test_a_function_that_the_kernels_library_made_a_module_of_is_no_layer() -> None:
    function = type("Func", (nn.Module,), {"__module__": "kernels.layer.layer", "forward": lambda self, x: x})
    function.kernel_layer_name = "rotary_pos_emb"  # type: ignore[attr-defined]
    assert names(nn.ModuleDict({"rotary": function(), "norm": Norm()})) == {"norm": "Norm"}


@pytest.mark.parametrize("name", ["", "a name", 3], ids=["empty", "blank", "number"])
def test_a_layers_name_is_a_python_name(name: object) -> None:
    with pytest.raises(TypeError, match="Python name"):
        kernel_layer(name)  # type: ignore[arg-type]


def test_only_modules_are_layers() -> None:
    with pytest.raises(TypeError, match=r"torch\.nn\.Module"):
        kernel_layer("Norm")(int)  # type: ignore[type-var]


def test_modules_without_a_forward_are_no_sites() -> None:
    assert names(nn.ModuleList([Norm(), nn.ModuleDict()])) == {"0": "Norm"}


def test_paths_and_order_are_those_of_named_modules() -> None:
    model = nn.Sequential(nn.Linear(2, 2), nn.Sequential(Norm(), nn.ReLU()), Norm())
    found = [(site.path, site.module) for site in sites(model)]
    assert found == list(model.named_modules())


def test_a_module_at_several_paths_is_one_site() -> None:
    shared = nn.Sequential(Norm())
    model = nn.ModuleDict({"a": shared, "b": nn.ModuleDict({"c": shared}), "d": Norm()})
    found = {site.path: site.others for site in sites(model)}
    assert found == {"a": ("b.c",), "a.0": ("b.c.0",), "d": ()}


def test_a_module_inside_itself_is_one_site() -> None:
    model = nn.Sequential(Norm())
    model[0].owner = model
    assert [(site.path, site.others) for site in sites(model)] == [("", ("0.owner",)), ("0", ("0.owner.0",))]


def test_a_compiled_part_does_not_show() -> None:
    model = nn.ModuleDict({"a": nn.Sequential(Norm())})
    assert not compiled(model)
    model["a"] = torch.compile(model["a"], backend="eager")  # type: ignore[assignment]
    assert [site.path for site in sites(model)] == ["a", "a.0"]
    assert compiled(model)


def test_any_model_has_an_adapter() -> None:
    assert adapter_for(Norm()).handles(Norm())
    with pytest.raises(LookupError):
        adapter_for(Norm(), adapters={})


def test_an_adapter_of_someone_elses_can_be_asked_first() -> None:
    module = types.ModuleType("someone_elses_adapter")
    module.Mine = type("Mine", (TorchAdapter,), {})  # type: ignore[attr-defined]
    sys.modules[module.__name__] = module
    try:
        assert type(adapter_for(Norm(), adapters={"mine": "someone_elses_adapter:Mine"})).__name__ == "Mine"
    finally:
        del sys.modules[module.__name__]


class Compiled(nn.Module):
    @torch.compile(backend="eager")
    def forward(self, x: torch.Tensor) -> Any:
        return x


def _compiled(forward: Any) -> Any:
    return torch.compile(forward, backend="eager")


def _under_a_wrapper(forward: Any) -> Any:
    inner = _compiled(forward)
    return functools.wraps(inner)(lambda *arguments: inner(*arguments))


def _in_a_partial(forward: Any) -> Any:
    return functools.partial(_compiled(forward))


@pytest.mark.parametrize(
    ("wrap", "expected"),
    [(_compiled, True), (_under_a_wrapper, True), (_in_a_partial, True), (torch.compiler.disable, False)],
)
def test_a_forward_that_was_compiled_makes_the_model_a_compiled_one(wrap: Any, expected: bool) -> None:
    norm = Norm()
    norm.forward = wrap(norm.forward)  # type: ignore[method-assign]
    assert compiled(norm) is compiled(nn.Sequential(nn.Sequential(norm))) is expected


def test_a_class_that_compiles_its_forward_counts_if_it_has_parts_that_run_in_it() -> None:
    whole, leaf = Compiled(), Compiled()
    whole.add_module("norm", Norm())
    assert compiled(whole)
    assert not compiled(leaf)


def test_the_metaclass_of_a_model_is_not_asked() -> None:
    class Raising(type):
        def __getattribute__(cls, name: str) -> Any:
            if name in ("forward", "kernel_condition"):
                raise RuntimeError(name)
            return super().__getattribute__(name)

    class Odd(Norm, metaclass=Raising):
        pass

    layer = TorchAdapter().layer(Odd)
    assert layer is not None
    assert layer.forward is Norm.forward
    assert layer.condition is None


def test_a_walk_over_a_model_leaves_nothing_for_the_collector() -> None:
    model = nn.Sequential(nn.Sequential(Norm()))
    gc.collect()
    gc.disable()
    try:
        assert walk(model)[0] == ["", "0", "0.0"]
        assert gc.collect() == 0
    finally:
        gc.enable()
