from __future__ import annotations

import importlib
import json
import os
import subprocess
import sys
import textwrap
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any

import pytest
import torch
from torch import nn

from kerncfg.applier.adapters import adapter_for
from kerncfg.applier.adapters.transformers import TransformersAdapter
from kerncfg.applier.apply import apply
from kerncfg.errors import KerncfgWarning
from tests.planning import TRUST, plan, step
from tests.snapshot import snapshot

if TYPE_CHECKING:
    from kerncfg.applier.adapters.torch import TorchAdapter

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


CONSENT = TRUST.plus("python:tests.fakes_functions")


def ref(name: str) -> str:
    return f"python:tests.fakes_functions:{name}"


def said(*steps: Any) -> Any:
    return plan(*steps, trust=CONSENT)


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


def called(model: nn.Module, adapter: TorchAdapter | None = None) -> set[tuple[str, str, str]]:
    """Which functions the model's classes declare and call: class, name there, registered name."""
    layers = [layer for layer in set((adapter or TransformersAdapter()).sites(model).layers) if layer is not None]
    functions = [(layer.cls.__name__, function) for layer in layers for function in layer.functions]
    return {(name, function.called, function.name) for name, function in functions if function.name}


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


FUNCTIONS = """
    import functools
    from torch import nn
    from transformers.integrations import use_kernel_forward_from_hub as hub, use_kernelized_func
    from transformers.integrations.hub_kernels import use_kernel_func_from_hub_with_fallback
    from transformers.integrations import hub_kernels
    from transformers.models.llama.modeling_llama import apply_rotary_pos_emb as turn

    @hub("plain")
    def plain(x):
        return x

    @use_kernel_func_from_hub_with_fallback("backed", "package_of_nobody")
    def in_torch(x):
        return x

    @use_kernel_func_from_hub_with_fallback(func_name="keyword", package="package_of_nobody")
    def by_keyword(x):
        return x

    def unregistered(x):
        return x

    MANY = [plain, in_torch]

    {decorator}
    class Base(nn.Module):
        def forward(self, x):
            return {calls}
"""


@pytest.mark.parametrize(
    ("decorator", "calls", "expected"),
    [
        ("@use_kernelized_func(plain)", "plain(x)", {"plain": "plain"}),
        ("@use_kernelized_func([plain])", "plain(x)", {"plain": "plain"}),
        ("@use_kernelized_func(module_names=[plain])", "plain(x)", {"plain": "plain"}),
        ("@use_kernelized_func([in_torch, by_keyword])", "in_torch(x) + by_keyword(x)", None),
        ("@use_kernelized_func(MANY)", "in_torch(plain(x))", {"plain": "plain", "in_torch": "backed"}),
        ("@use_kernelized_func(plain)\n    @use_kernelized_func([in_torch])", "in_torch(plain(x))", ...),
        ("@hub_kernels.use_kernelized_func(plain)", "plain(x)", {"plain": "plain"}),
        ("@use_kernelized_func(turn)", "turn(x, x, x, x)[0]", {"turn": "rotary_pos_emb"}),
        ("@use_kernelized_func(plain)", "in_torch(x)", {}),
        ("@use_kernelized_func(unregistered)", "unregistered(x)", {}),
        ("@use_kernelized_func(plain)", "next(map(plain, [x]))", {}),
        ("", "plain(x)", {}),
    ],
    ids=[
        "one", "a list", "by keyword", "with a fallback", "a list by name", "two decorators", "dotted", "imported",
        "not called", "not registered", "passed on", "not declared",
    ],
)  # fmt: skip
def test_functions_are_found_by_what_is_declared_and_called(
    written: Any, decorator: str, calls: str, expected: Any
) -> None:
    module = written(FUNCTIONS.format(decorator=decorator, calls=calls))
    if expected is None:
        expected = {"in_torch": "backed", "by_keyword": "keyword"}
    if expected is ...:
        expected = {"plain": "plain", "in_torch": "backed"}
    assert {name: text for _, name, text in called(module.Base())} == expected


def test_a_declaration_goes_with_the_forward(written: Any) -> None:
    text = FUNCTIONS.format(decorator="@use_kernelized_func(plain)", calls="plain(x)")
    text += """
    class Heir(Base):
        pass

    class Own(Base):
        def forward(self, x):
            return plain(x)

    class Further(Own):
        pass
"""
    module = written(text)
    classes = {cls.__name__: cls for cls in (module.Heir, module.Own, module.Further)}
    found = {}
    for name, cls in classes.items():
        (function,) = (one for layer in TransformersAdapter().sites(cls()).layers if layer for one in layer.functions)
        found[name] = (function.name, function.inherited)
    assert found == {"Heir": ("plain", None), "Own": (None, "plain"), "Further": (None, "plain")}
    model = nn.ModuleDict({name: cls() for name, cls in classes.items()})
    rows = apply(said(step("plain", ref("Ten"))), model).report.rows
    assert {row.path for row in rows} == {"Heir"}
    matched = step("r", ref("Ten"), match={"name": "plain", "class": "Own"})
    assert {row.path for row in apply(said(matched), model).report.rows} == {"Own", "Further"}


def test_a_class_renamed_as_fsdp2_does_keeps_its_functions() -> None:
    model = build("Qwen3")
    attention = model.model.layers[0].self_attn
    attention.__class__ = type("FSDPQwen3Attention", (type("Shard", (), {}), type(attention)), {})
    bindings = apply(said(step("rotary_pos_emb", ref("HalfQ"))), model)
    assert bindings.report.counts == {"swapped": 2, "kept": 0, "off": 0}


def test_a_function_patched_in_its_module_keeps_its_name(monkeypatch: pytest.MonkeyPatch) -> None:
    """As other libraries do, for the whole process; what they put there is the original then."""
    from transformers.models.llama import modeling_llama

    def patch(q: Any, k: Any, cos: Any, sin: Any, unsqueeze_dim: int = 1) -> Any:
        return q * 7, k

    monkeypatch.setattr(modeling_llama, "apply_rotary_pos_emb", patch)
    model = build("Llama")
    assert called(model) == {("LlamaAttention", "apply_rotary_pos_emb", "rotary_pos_emb")}
    tokens = torch.arange(8).reshape(1, 8)
    own = model(tokens).logits
    apply(said(step("rotary_pos_emb", ref("HalfQ"))), model).revert()
    assert torch.equal(model(tokens).logits, own)


REMOTE = """
import torch
from torch import nn
from transformers import PretrainedConfig, PreTrainedModel
from transformers.integrations import use_kernel_forward_from_hub, use_kernelized_func


class FarConfig(PretrainedConfig):
    model_type = "far"


@use_kernel_forward_from_hub("FarNorm")
class Norm(nn.Module):
    def forward(self, x):
        return x


@use_kernel_forward_from_hub("far_double")
def double(x):
    return x * 2


@use_kernelized_func(double)
class Far(PreTrainedModel):
    config_class = FarConfig

    def __init__(self, config):
        super().__init__(config)
        self.norm = Norm()
        self.weight = nn.Parameter(torch.ones(1))
        self.post_init()

    def forward(self, x):
        return double(self.norm(x)) * self.weight
"""


def test_classes_of_a_models_own_repository_are_read_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import transformers

    monkeypatch.setattr("transformers.dynamic_module_utils.HF_MODULES_CACHE", str(tmp_path / "modules"))
    folder = tmp_path / "far"
    folder.mkdir()
    (folder / "modeling_far.py").write_text(REMOTE, encoding="utf-8")
    places = {"AutoConfig": "modeling_far.FarConfig", "AutoModel": "modeling_far.Far"}
    (folder / "config.json").write_text(json.dumps({"model_type": "far", "auto_map": places}), encoding="utf-8")
    path = list(sys.path)
    config = transformers.AutoConfig.from_pretrained(folder, trust_remote_code=True)
    auto: Any = transformers.AutoModel
    model = auto.from_config(config, trust_remote_code=True)
    assert type(model).__module__.startswith("transformers_modules.")
    try:
        assert registered(model) == {"FarNorm": 1}
        assert called(model) == {("Far", "double", "far_double")}
        apply(said(step("far_double", ref("Ten"))), model)
        assert model(torch.ones(1)).item() == 10
    finally:
        sys.path[:] = path
        for name in [name for name in sys.modules if name.startswith("transformers_modules")]:
            del sys.modules[name]


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
import inspect

class _Any:
    def __init__(self, *args, **kwargs): pass

CUDAProperties = Device = KernelizeFallback = LayerRepository = LocalLayerRepository = Mode = ROCMProperties = _Any
get_kernel = kernelize = register_kernel_mapping = replace_kernel_forward_from_hub = use_kernel_mapping = None

def use_kernel_forward_from_hub(name):
    def decorate(thing):
        if isinstance(thing, type):
            thing.kernel_layer_name = name
            return thing
        return made_of(thing, name)()
    return decorate

def made_of(function, name):
    # what the library makes of a function: a class whose one instance stands where the function stood
    from torch import nn

    class Func(nn.Module):
        kernel_layer_name = name

        def forward(self, *args, **kwargs):
            return function(*args, **kwargs)

    own = inspect.Parameter("self", inspect.Parameter.POSITIONAL_OR_KEYWORD)
    Func.forward.__signature__ = inspect.Signature([own, *inspect.signature(function).parameters.values()])
    return Func

def use_kernelized_func(*functions):
    def decorate(cls):
        init = cls.__init__

        def with_functions(self, *args, **kwargs):
            init(self, *args, **kwargs)
            self.__dict__.setdefault("_kernel_funcs", {}).update((one.kernel_layer_name, one) for one in functions)

        cls.__init__ = with_functions
        return cls
    return decorate
"""

PIPES: dict[str, Any] = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}

PROBE = """
import torch
from kerncfg.applier.adapters.torch import TorchAdapter
from kerncfg.applier.apply import apply
from transformers.models.qwen3 import modeling_qwen3
from transformers.utils.import_utils import is_kernels_available
from tests.snapshot import snapshot
from tests.test_adapters_transformers import build, called, registered
from tests.test_functions import TOKENS, rotary
model = build("Qwen3")
print(is_kernels_available(), sorted(registered(model).items()), sorted(called(model)))
print(sorted(called(model, TorchAdapter())))
own = model(TOKENS).logits
before = snapshot(model), modeling_qwen3.apply_rotary_pos_emb
with apply(rotary("HalfQ"), model, compile=True), torch.no_grad():
    swapped = model(TOKENS, use_cache=False).logits
    compiled = torch.compile(model, backend="eager", fullgraph=True)
    same = torch.allclose(compiled(TOKENS, use_cache=False).logits, swapped, atol=1e-5)
    print(same, torch.equal(swapped, own), torch.equal(build("Qwen3")(TOKENS).logits, own))
print(torch.equal(model(TOKENS).logits, own), modeling_qwen3.apply_rotary_pos_emb is before[1])
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
    sites = "[('RMSNorm', 9), ('SiLU', 2)] [('Qwen3Attention', 'apply_rotary_pos_emb', 'rotary_pos_emb')]"
    marks = ["[]", "[]", "[('Qwen3Attention', 'apply_rotary_pos_emb', 'rotary_pos_emb')]"]
    expected = [
        [f"{active} {sites}", marked, "True False True", "True True"]
        for active, marked in zip((False, False, True), marks, strict=True)
    ]
    assert [out.splitlines() for out, _ in found] == expected, found


def test_a_model_that_only_holds_a_transformers_model_is_handled() -> None:
    model = nn.ModuleDict({"inner": build("Llama"), "norm": nn.RMSNorm(4)})
    assert registered(model)["RMSNorm"] == 5
