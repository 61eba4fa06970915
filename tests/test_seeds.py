"""Every example of the two pages that kerncfg grew from: in Python, in a source file, and in YAML.

`python` is what the page writes, `load` what it passes to `from_pretrained` beside it; `yaml` is what a person writes
here. What the newest pair of transformers and kernels does wrong with an example is said in `upstream`.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import yaml

import kerncfg
from kerncfg.compiler.schema import validate
from tests import builders

TARGETS = ("h100", "max1550")


@dataclass(frozen=True, kw_only=True)
class Example:
    name: str
    yaml: str
    python: str | None = None
    load: str = ""
    upstream: str | None = None

    def __str__(self) -> str:
        return self.name.replace(" ", "-")


EXAMPLES = (
    Example(name="use_kernels", load="use_kernels=True", yaml="kernels: {}"),
    Example(
        name="a kernel switched off for determinism",
        python='KernelConfig({"RMSNorm": ""})',
        yaml="kernels: {RMSNorm: null}",
        upstream="refused: must be a valid repo name",
    ),
    Example(
        name="attention from the Hub",
        load='use_kernels=True, attn_implementation="kernels-community/flash-attn2"',
        yaml="{kernels: {}, attention: {default: kernels-community/flash-attn2}}",
    ),
    Example(
        name="attention of another publisher",
        load='use_kernels=True, attn_implementation="random-repo/random-attention", allow_all_kernels=True',
        yaml="{kernels: {}, attention: {default: random-repo/random-attention}, trust: {allow_all_kernels: true}}",
    ),
    Example(
        name="attention at a tag",
        load='use_kernels=True, attn_implementation="kernels-community/flash-attn2@v2.1.0"',
        yaml="{kernels: {}, attention: {default: kernels-community/flash-attn2@v2.1.0}}",
    ),
    Example(
        name="attention in a range",
        load='use_kernels=True, attn_implementation="kernels-community/flash-attn2@>=2.0,<3.0"',
        yaml='{kernels: {}, attention: {default: "kernels-community/flash-attn2@>=2.0,<3.0"}}',
        upstream="404: the range is sent as a revision",
    ),
    Example(
        name="an attention function by its name",
        load='use_kernels=True, attn_implementation="kernels-community/flash-attn2:flash_attn_varlen_func"',
        yaml='{kernels: {}, attention: {default: "kernels-community/flash-attn2:flash_attn_varlen_func"}}',
        upstream="Could not find the currently requested flash attention implementation",
    ),
    *(
        Example(
            name=word,
            load=f'use_kernels=True, attn_implementation="{word}"',
            yaml=f"{{kernels: {{}}, attention: {{default: {word}}}}}",
            upstream="refused on the CPU" if word.startswith("flash") else None,
        )
        for word in ("flash_attention_2", "flash_attention_3", "flash_attention_4", "sdpa", "eager")
    ),
    Example(
        name="a layer beside attention",
        python='KernelConfig(kernel_mapping={"RMSNorm": "kernels-community/liger-kernels:LigerRMSNorm"})',
        load='attn_implementation="kernels-community/flash-attn2", use_kernels=True',
        yaml="""
            kernels: {RMSNorm: "kernels-community/liger-kernels:LigerRMSNorm"}
            attention: {default: kernels-community/flash-attn2}
        """,
    ),
    Example(
        name="a kernel for each device",
        python="""KernelConfig(kernel_mapping={
            "RMSNorm": {
                "cuda": "kernels-community/liger-kernels:LigerRMSNorm",
                "rocm": "kernels-community/liger-kernels:LigerRMSNorm",
                "xpu": "kernels-community/rmsnorm:RMSNorm",
            }
        })""",
        yaml="""
            kernels:
              RMSNorm:
                cuda: kernels-community/liger-kernels:LigerRMSNorm
                rocm: kernels-community/liger-kernels:LigerRMSNorm
                xpu: kernels-community/rmsnorm:RMSNorm
        """,
        upstream="ValueError from from_pretrained: Expected exactly one kernel repo",
    ),
    Example(
        name="a kernel for one device",
        python='KernelConfig({"RMSNorm": {"xpu": "kernels-community/rmsnorm:RMSNorm"}})',
        yaml='kernels: {RMSNorm: {xpu: "kernels-community/rmsnorm:RMSNorm"}}',
        upstream="from_pretrained drops the device and uses it everywhere",
    ),
    Example(
        name="metadata",
        python='KernelConfig({"RMSNorm": ("kernels-community/liger-kernels:LigerRMSNorm", {"version": 3})})',
        yaml='kernels: {RMSNorm: "kernels-community/liger-kernels@v3:LigerRMSNorm"}',
    ),
    Example(
        name="metadata with a tag",
        python='KernelConfig({"RMSNorm": ("kernels-community/liger-kernels:LigerRMSNorm", {"revision": "v3.1.0"})})',
        yaml='kernels: {RMSNorm: "kernels-community/liger-kernels@v3.1.0:LigerRMSNorm"}',
    ),
    Example(
        name="a tag in the text",
        python='KernelConfig({"RMSNorm": "kernels-community/liger-kernels@v2.1.0:LigerRMSNorm"})',
        yaml='kernels: {RMSNorm: "kernels-community/liger-kernels@v2.1.0:LigerRMSNorm"}',
        upstream="HFValidationError",
    ),
    Example(
        name="code of a publisher that is not trusted",
        python='KernelConfig({"RMSNorm": ("acme/norms:RMSNorm", {"version": 1, "trust_remote_code": True})})',
        yaml='kernels: {RMSNorm: {kernel: "acme/norms@v1:RMSNorm", trust_remote_code: true}}',
    ),
    Example(
        name="trust as a list",
        python='KernelConfig({"RMSNorm": ("acme/norms:RMSNorm", {"version": 1, "trust_remote_code": ["acme/norms"]})})',
        yaml='kernels: {RMSNorm: {kernel: "acme/norms@v1:RMSNorm", trust_remote_code: true}}',
        upstream="refused by transformers: Expected a bool value",
    ),
    Example(
        name="a function and nothing else",
        python="""KernelConfig(
            kernel_mapping={
                "rotary_pos_emb": ("kernels-community/rotary:apply_rotary_transformers", {"version": 2}),
            },
            inherit_mapping=False,
        )""",
        load="use_kernels=True",
        yaml="""
            kernels:
              inherit_mapping: false
              rotary_pos_emb: kernels-community/rotary@v2:apply_rotary_transformers
        """,
    ),
    Example(
        name="a fusion",
        python="""KernelConfig({
            (
                ("RMSNorm", "model.layers.*.post_attention_layernorm"),
                ("MLP",     "model.layers.*.mlp"),
            ): "owner/fused-rmsnorm-mlp:RMSNormMLP",
        })""",
        yaml="""
            kernels: {}
            fusions:
              RMSNorm_MLP:
                members:
                  - [RMSNorm, model.layers.*.post_attention_layernorm]
                  - [MLP, model.layers.*.mlp]
                kernel: owner/fused-rmsnorm-mlp:RMSNormMLP
        """,
        upstream="set_use_kernels refuses it; from_pretrained fuses the class for the whole process",
    ),
    Example(
        name="transformed parameters",
        python='KernelConfig({"RMSNorm": ("owner/scaled-rmsnorm:ScaledRMSNorm", {"version": 1})})',
        yaml='kernels: {RMSNorm: "owner/scaled-rmsnorm@v1:ScaledRMSNorm"}',
        upstream="every RMSNorm of transformers gets the layout",
    ),
    Example(
        name="a local kernel",
        python='KernelConfig({"RMSNorm": "/path/to/liger-kernels:LigerRMSNorm"}, use_local_kernel=True)',
        load="use_kernels=True",
        yaml='kernels: {RMSNorm: "/path/to/liger-kernels:LigerRMSNorm"}',
        upstream="AttributeError from from_pretrained: 'tuple' object has no attribute 'split'",
    ),
)
each_example = pytest.mark.parametrize("example", EXAMPLES, ids=str)


def written(example: Example) -> dict[str, Any]:
    """What a person writes, as a composed file has it."""
    found: dict[str, Any] = yaml.safe_load(example.yaml)
    return found


def theirs() -> Any:
    """transformers' own class."""
    from transformers import KernelConfig

    return KernelConfig


def called(example: Example) -> dict[str, Any]:
    """What `from_kernel_config` makes of transformers' own object."""
    load = eval(f"dict({example.load})")
    config = eval(example.python, {"KernelConfig": theirs()}) if example.python else None
    document = kerncfg.from_kernel_config(config, attn_implementation=load.get("attn_implementation"))
    # The consent to run everybody's code is no part of data that is passed: it is given beside it.
    return {**document, "trust": {"allow_all_kernels": True}} if "allow_all_kernels" in load else document


def imported(example: Example, folder: Path) -> dict[str, Any]:
    """What `kerncfg import` makes of the page's source."""
    config = f"kernel_config={example.python}," if example.python else ""
    source = f'model = AutoModelForCausalLM.from_pretrained("Qwen/Qwen3-0.6B", {config} {example.load})\n'
    (folder / "example.py").write_text(source, encoding="utf-8")
    return dict(kerncfg.translate(folder / "example.py").document)


def meaning(document: dict[str, Any]) -> Any:
    """What a document says, whichever way its rows are spelt."""
    rows = builders.config(document["kernels"]).rows
    return rows, document["kernels"].get("inherit_mapping"), {**document, "kernels": None}


@each_example
def test_python_and_yaml_mean_the_same(example: Example, tmp_path: Path) -> None:
    assert meaning(called(example)) == meaning(written(example))
    assert meaning(imported(example, tmp_path)) == meaning(written(example))


@pytest.mark.parametrize("example", [example for example in EXAMPLES if example.python], ids=str)
def test_python_and_yaml_give_one_plan(example: Example) -> None:
    for target in TARGETS:
        python, said = (
            kerncfg.plan(f"target={target}", config={"kernels": document["kernels"]})
            for document in (called(example), written(example))
        )
        assert python.to_json() == said.to_json()


@each_example
def test_the_rows_are_valid(example: Example) -> None:
    validate(called(example)["kernels"], "kernels")
    validate(written(example)["kernels"], "kernels")


@pytest.mark.parametrize("example", [example for example in EXAMPLES if example.python], ids=str)
def test_the_object_is_as_it_was_and_may_be_read_again(example: Example) -> None:
    assert example.python is not None
    config, other = (eval(example.python, {"KernelConfig": theirs()}) for _ in range(2))
    first = kerncfg.from_kernel_config(config)
    assert vars(config) == vars(other)
    assert kerncfg.from_kernel_config(config) == first


BACK = [
    example
    for example in EXAMPLES
    if example.python
    and example.name not in ("a kernel switched off for determinism",)
    and not example.load.count("attn")
]


@pytest.mark.parametrize("example", BACK, ids=str)
def test_there_and_back_is_the_same_configuration(example: Example) -> None:
    document = called(example)
    back = theirs()(**kerncfg.to_kernel_config(document))
    assert meaning(kerncfg.from_kernel_config(back)) == meaning(document)


@pytest.mark.parametrize("example", [example for example in BACK if "fusion" not in example.name], ids=str)
def test_what_goes_back_is_what_transformers_takes(example: Example) -> None:
    """Its own check of a mapping says nothing against it, once the names are registered."""
    import torch

    class Registered(torch.nn.Module):
        pass

    model = torch.nn.Module()
    config = theirs()(**kerncfg.to_kernel_config(called(example)))
    for name in config.kernel_mapping:
        layer = Registered()
        layer.kernel_layer_name = name
        model.add_module(name, layer)
    config.sanitize_kernel_mapping(model)


@pytest.mark.parametrize("said", ["kernels-community/flash-attn2@>=2.0,<3.0", "flash_attention_2"])
def test_a_source_that_asks_for_attention_alone_gets_no_kernels_beside(said: str, tmp_path: Path) -> None:
    """As the page writes it: there `use_kernels` is left out, and so no mapping is inherited."""
    example = Example(name="alone", load=f'attn_implementation="{said}", device_map="auto"', yaml="{}")
    document = imported(example, tmp_path)
    assert document == {"kernels": {"inherit_mapping": False}, "attention": {"default": said}}
    steps = kerncfg.plan("target=h100", config=document).steps
    assert [(step.node, step.name) for step in steps] == [("attention", "default")]


def test_the_switch_for_all_is_use_kernels() -> None:
    assert kerncfg.from_kernel_config(use_kernels=False)["enabled"] is False
    assert all(step.kind == "keep" for step in kerncfg.plan(config={"kernels": {}, "enabled": False}).steps)
