from __future__ import annotations

import importlib
import os
import subprocess
import sys
import textwrap
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch
from torch import nn

from kerncfg.applier.adapters import adapter_for
from kerncfg.applier.adapters.transformers import TransformersAdapter
from kerncfg.applier.apply import apply
from kerncfg.errors import KerncfgWarning
from tests.planning import plan, step
from tests.snapshot import snapshot

TINY = {
    "vocab_size": 32,
    "hidden_size": 16,
    "intermediate_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "num_key_value_heads": 1,
    "head_dim": 8,
    "max_position_embeddings": 64,
}


def build(name: str) -> Any:
    import transformers

    torch.manual_seed(0)
    config = getattr(transformers, f"{name}Config")(**TINY)
    return getattr(transformers, f"{name}ForCausalLM")(config).eval()


def registered(model: nn.Module) -> dict[str, int]:
    found: dict[str, int] = {}
    for site in TransformersAdapter().sites(model):
        if site.layer.name:
            found[site.layer.name] = found.get(site.layer.name, 0) + 1
    return found


@pytest.fixture
def written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[..., ModuleType]]:
    """Write a modelling module and import it."""
    monkeypatch.syspath_prepend(tmp_path)
    made: list[str] = []

    def write(source: str, name: str = "modelling_nobody_knows") -> ModuleType:
        importlib.import_module("transformers.integrations.hub_kernels")
        (tmp_path / f"{name}.py").write_text(textwrap.dedent(source), encoding="utf-8")
        importlib.invalidate_caches()
        sys.modules.pop(name, None)
        made.append(name)
        return importlib.import_module(name)

    yield write
    for name in made:
        sys.modules.pop(name, None)


LAYER = """
    from torch import nn
    {imports}

    class Base(nn.Module):
        def forward(self, x):
            return x

    {decorator}
    class Unheard(Base):
        pass
"""


@pytest.mark.parametrize(
    ("imports", "decorator"),
    [
        ("from transformers.integrations import use_kernel_forward_from_hub", '@use_kernel_forward_from_hub("Odd")'),
        ("from transformers.integrations import use_kernel_forward_from_hub as hub", '@hub("Odd")'),
        ("from transformers.integrations import hub_kernels as hk", '@hk.use_kernel_forward_from_hub("Odd")'),
        ("import transformers.integrations", '@transformers.integrations.use_kernel_forward_from_hub("Odd")'),
        (
            "from transformers.integrations.hub_kernels import use_kernel_func_from_hub",
            '@use_kernel_func_from_hub("Odd")',
        ),
        ("from transformers.integrations.hub_kernels import *", '@use_kernel_forward_from_hub("Odd")'),
        (
            'from transformers.integrations import use_kernel_forward_from_hub\n    NAME = "Odd"',
            "@use_kernel_forward_from_hub(NAME)",
        ),
        (
            "from transformers.integrations import use_kernel_forward_from_hub",
            '@use_kernel_forward_from_hub(layer_name="Odd")',
        ),
        (
            "import functools\n    from transformers.integrations import use_kernel_forward_from_hub",
            '@functools.total_ordering\n    @use_kernel_forward_from_hub("Odd")',
        ),
    ],
    ids=["plain", "alias", "module", "dotted", "function", "star", "constant", "keyword", "among others"],
)
def test_a_class_nobody_knows_is_found_by_its_decorator(written: Any, imports: str, decorator: str) -> None:
    if "total_ordering" in decorator:
        decorator = decorator.replace("@functools.total_ordering", "@(lambda cls: cls)")
    module = written(LAYER.format(imports=imports, decorator=decorator))
    assert registered(nn.ModuleDict({"a": module.Unheard(), "b": module.Base()})) == {"Odd": 1}


@pytest.mark.parametrize(
    ("imports", "decorator"),
    [
        ("def use_kernel_forward_from_hub(name): return lambda cls: cls", '@use_kernel_forward_from_hub("Odd")'),
        ("from transformers.integrations import use_kernelized_func", "@use_kernelized_func(print)"),
        ("from transformers.integrations import use_kernel_forward_from_hub", "# @use_kernel_forward_from_hub('Odd')"),
    ],
    ids=["another of that name", "another decorator", "a comment"],
)
def test_only_the_decorator_itself_counts(written: Any, imports: str, decorator: str) -> None:
    module = written(LAYER.format(imports=imports, decorator=decorator))
    assert registered(module.Unheard()) == {}


def test_nested_and_conditional_classes_are_told_apart(written: Any) -> None:
    module = written(
        """
        from torch import nn
        from transformers.integrations import use_kernel_forward_from_hub as hub

        class Outer:
            @hub("Inner")
            class Layer(nn.Module):
                def forward(self, x): return x

        def make():
            @hub("Local")
            class Layer(nn.Module):
                def forward(self, x): return x
            return Layer

        try:
            import nothing_of_that_name
            @hub("Fast")
            class Layer(nn.Module):
                def forward(self, x): return x
        except ImportError:
            @hub("Slow")
            class Layer(nn.Module):
                def forward(self, x): return x

        if True:
            @hub("First")
            class Other(nn.Module):
                def forward(self, x): return x
        else:
            @hub("Second")
            class Other(nn.Module):
                def forward(self, x): return x
        """
    )
    model = nn.ModuleList([module.Outer.Layer(), module.make()(), module.Layer(), module.Other()])
    assert registered(model) == {"Inner": 1, "Local": 1, "Slow": 1, "First": 1}


def test_a_reloaded_module_is_read_again(written: Any) -> None:
    text = LAYER.format(
        imports="from transformers.integrations import use_kernel_forward_from_hub as hub", decorator='@hub("One")'
    )
    assert registered(written(text).Unheard()) == {"One": 1}
    assert registered(written(text.replace('"One"', '"Another"')).Unheard()) == {"Another": 1}


def test_classes_without_source_have_no_name_and_raise_nothing() -> None:
    space: dict[str, Any] = {"__name__": "typed_in"}
    importlib.import_module("transformers.integrations.hub_kernels")
    source = textwrap.dedent(
        LAYER.format(
            imports="from transformers.integrations import use_kernel_forward_from_hub as hub",
            decorator='@hub("Odd")',
        )
    )
    exec(source, space)
    assert registered(space["Unheard"]()) == {}
    module = ModuleType("typed_in")
    vars(module).update(space)
    sys.modules["typed_in"] = module
    try:
        assert registered(type("Again", (space["Unheard"],), {"__module__": "typed_in"})()) == {}
    finally:
        del sys.modules["typed_in"]


def test_a_module_whose_file_is_gone_or_broken_has_no_names(written: Any, tmp_path: Path) -> None:
    text = LAYER.format(
        imports="from transformers.integrations import use_kernel_forward_from_hub as hub", decorator='@hub("Odd")'
    )
    gone = written(text, "modelling_gone")
    (tmp_path / "modelling_gone.py").unlink()
    assert registered(gone.Unheard()) == {}
    broken = written(text, "modelling_broken")
    (tmp_path / "modelling_broken.py").write_text("class (", encoding="utf-8")
    assert registered(broken.Unheard()) == {}


def test_names_are_read_once_from_many_threads(written: Any) -> None:
    module = written(
        LAYER.format(
            imports="from transformers.integrations import use_kernel_forward_from_hub as hub", decorator='@hub("Odd")'
        )
    )
    barrier = threading.Barrier(8)
    found: list[dict[str, int]] = []

    def read() -> None:
        barrier.wait(timeout=60)
        found.append(registered(module.Unheard()))

    threads = [threading.Thread(target=read) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert found == [{"Odd": 1}] * 8


def test_where_kernels_is_active_its_marker_and_the_source_agree() -> None:
    """The decorator of a fitting `kernels` sets the name on the class; here the test does, as that would."""
    model = build("Qwen3")
    without = registered(model)
    classes = {type(module) for module in model.modules() if type(module).__name__ == "Qwen3RMSNorm"}
    for cls in classes:
        cls.kernel_layer_name = "RMSNorm"
        cls.kernel_condition = staticmethod(lambda module: True)
    try:
        assert registered(model) == without
        assert apply(plan(step("RMSNorm", "HiddenTen")), model).report.counts["swapped"] == without["RMSNorm"]
    finally:
        for cls in classes:
            del cls.kernel_layer_name, cls.kernel_condition


def test_the_kernels_librarys_own_condition_keeps_a_module() -> None:
    model = build("Qwen3")
    cls = type(model.model.norm)
    cls.kernel_condition = staticmethod(lambda module: module is model.model.norm)
    try:
        counts = apply(plan(step("RMSNorm", "HiddenTen")), model).report.counts
    finally:
        del cls.kernel_condition
    assert counts == {"swapped": 1, "kept": 8, "off": 0}


@pytest.mark.parametrize(("name", "norms"), [("Qwen3", 9), ("Llama", 5)])
def test_a_real_models_norms_are_found_without_kernels(name: str, norms: int) -> None:
    model = build(name)
    assert isinstance(adapter_for(model), TransformersAdapter)
    found = registered(model)
    assert found["RMSNorm"] == norms
    assert found["SiLU"] == 2


def test_gemmas_norm_is_not_taken_by_the_row() -> None:
    model = build("Gemma")
    assert "RMSNorm" not in registered(model)
    with pytest.warns(KerncfgWarning, match="no layer RMSNorm"):
        bindings = apply(plan(step("RMSNorm", "HiddenTen")), model)
    assert bindings.report.counts["swapped"] == 0


@pytest.mark.parametrize("name", ["Qwen3", "Llama"])
def test_a_real_model_runs_kernels_and_is_restored(name: str) -> None:
    model = build(name)
    tokens = torch.arange(8).reshape(1, 8)
    apply(plan(step("RMSNorm", "HiddenTen")), build(name))
    before, own = snapshot(model), model(tokens).logits
    said = plan(step("RMSNorm", "HiddenTen"))
    with apply(said, model) as bindings, torch.no_grad():
        for row in bindings.report.rows:
            assert (row.status, row.kernel) == ("swapped", "python:tests.fakes:HiddenTen")
        hidden = torch.ones(1, 2, 16)
        assert torch.equal(model.model.norm(hidden), hidden * 10)
        assert not torch.equal(model(tokens).logits, own)
    assert torch.equal(model(tokens).logits, own)
    assert snapshot(model) == before


def test_generating_saving_and_loading_go_on_with_kernels(tmp_path: Path) -> None:
    import transformers

    model = build("Llama")
    tokens = torch.arange(4).reshape(1, 4)
    own = model.generate(tokens, max_new_tokens=3, do_sample=False, pad_token_id=0)
    with apply(plan(step("RMSNorm", "HiddenTen")), model):
        model.generate(tokens, max_new_tokens=3, do_sample=False, pad_token_id=0)
        model.save_pretrained(tmp_path)
    loaded: Any = transformers.LlamaForCausalLM.from_pretrained(tmp_path)
    loaded.eval()
    assert torch.equal(loaded.generate(tokens, max_new_tokens=3, do_sample=False, pad_token_id=0), own)


STUB = """
class _Any:
    def __init__(self, *args, **kwargs): pass

CUDAProperties = Device = KernelizeFallback = LayerRepository = LocalLayerRepository = Mode = ROCMProperties = _Any
get_kernel = kernelize = register_kernel_mapping = replace_kernel_forward_from_hub = use_kernel_mapping = None

def use_kernel_forward_from_hub(name):
    def decorate(thing):
        thing.kernel_layer_name = name
        return thing
    return decorate

def use_kernelized_func(*functions):
    return lambda cls: cls
"""

PIPES: dict[str, Any] = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}

PROBE = """
import sys, torch
from transformers.utils.import_utils import is_kernels_available
from tests.test_adapters_transformers import build, registered
print(is_kernels_available(), sorted(registered(build("Qwen3")).items()))
"""


def install(folder: Path, version: str) -> dict[str, str]:
    """Put the stub where a process with the environment returned finds it."""
    package, about = folder / "kernels", folder / f"kernels-{version}.dist-info"
    package.mkdir(parents=True)
    about.mkdir()
    (package / "__init__.py").write_text(f"__version__ = {version!r}\n{STUB}", encoding="utf-8")
    (about / "METADATA").write_text(f"Metadata-Version: 2.1\nName: kernels\nVersion: {version}\n", encoding="utf-8")
    root = Path(__file__).parent.parent
    return {**os.environ, "PYTHONPATH": os.pathsep.join([str(folder), str(root)])}


def test_the_same_sites_are_found_whatever_version_of_kernels_is_installed(tmp_path: Path) -> None:
    """With a stub in the place of `kernels`: the version that fits this transformers is not on the package index."""
    from transformers.utils.import_utils import KERNELS_MIN_VERSION

    versions = ("0.0.1", "99.0", KERNELS_MIN_VERSION)
    environments = [install(tmp_path / version, version) for version in versions]
    probes = [subprocess.Popen([sys.executable, "-c", PROBE], env=env, **PIPES) for env in environments]
    found = [probe.communicate() for probe in probes]
    sites = "[('RMSNorm', 9), ('SiLU', 2)]"
    assert [out.strip() for out, _ in found] == [f"False {sites}", f"False {sites}", f"True {sites}"], found


def test_a_model_that_only_holds_a_transformers_model_is_handled() -> None:
    model = nn.ModuleDict({"inner": build("Llama"), "norm": nn.RMSNorm(4)})
    assert registered(model)["RMSNorm"] == 5
