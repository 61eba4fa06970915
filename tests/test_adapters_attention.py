"""The parts of a model that have attention, as their classes' sources tell."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn
from transformers import LlamaConfig, PreTrainedConfig, Qwen2VLConfig
from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS, PreTrainedModel
from transformers.models.bert.modeling_bert import eager_attention_forward
from transformers.models.qwen2_vl.modeling_qwen2_vl import Qwen2VisionTransformerPretrainedModel

from kerncfg.applier.adapters.attention import Registries, is_config, parts
from kerncfg.applier.adapters.attention_source import Reading, reading
from kerncfg.applier.attention import attend
from tests import attending, attention_kernels
from tests.attending import TOLERANCE


def _reading(cls: type) -> Reading | None:
    registries = Registries.find()
    assert registries is not None
    return reading(cls, registries.functions)


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("qwen3", {"model": 2}),
        ("gpt2", {"transformer": 2}),
        ("bert", {"": 2}),
        ("t5", {"encoder": 2, "decoder": 4}),
        ("bart", {"model.encoder": 1, "model.decoder": 2}),
        ("llava", {"model.vision_tower": 2, "model.language_model": 2}),
        ("clip", {"text_model": 2, "vision_model": 2}),
        ("gpt_neo", {"transformer": 2}),
        ("xlnet", {"": 0}),
    ],
)
def test_parts_are_what_makes_the_masks(name: str, expected: dict[str, int]) -> None:
    found = parts(attending.model(name))
    assert {part.path: len(part.places) for part in found} == expected
    assert [part.mute for part in found] == [name == "xlnet"] * len(found)


def test_a_plain_model_has_no_parts() -> None:
    assert parts(nn.Linear(2, 2)) == ()


def test_a_part_without_a_model_around_it_is_the_outermost_with_its_configuration() -> None:
    model = attending.model("qwen3")
    assert [part.path for part in parts(nn.Sequential(model.model.layers))] == ["0.0.self_attn", "0.1.self_attn"]


def test_parts_of_a_compiled_model_have_the_paths_of_the_model() -> None:
    model: Any = torch.compile(attending.model("qwen3"), backend="eager")
    assert [part.path for part in parts(model)] == ["model"]


def test_configurations_are_told_from_other_things() -> None:
    registries = Registries.find()
    assert registries is not None
    assert is_config(LlamaConfig(), registries)
    assert is_config(PreTrainedConfig(), registries)
    assert not is_config({"_attn_implementation": "sdpa"}, registries)


class _Late(nn.Module):
    def __init__(self, config: Any) -> None:
        super().__init__()
        self.settings = config

    def forward(self, query: torch.Tensor, bias: torch.Tensor) -> torch.Tensor:
        attention_interface: Any = eager_attention_forward
        if self.settings._attn_implementation != "eager":
            attention_interface = ALL_ATTENTION_FUNCTIONS[self.settings._attn_implementation]
        found: torch.Tensor = attention_interface(
            self, query, query, query, None, softcap=self.cap, bias=bias, window=getattr(self.settings, "window", 0)
        )[0]
        return found


class _Named(_Late):
    def forward(self, query: torch.Tensor, bias: torch.Tensor) -> torch.Tensor:
        attention = ALL_ATTENTION_FUNCTIONS.get_interface(self.settings._attn_implementation, eager_attention_forward)
        masked = self.settings._attn_implementation in ("eager", "sdpa")
        found: torch.Tensor = attention(self, query, query, query, bias if masked else None)[0]
        return found


class _Chosen(nn.Module):
    def __init__(self, config: Any) -> None:
        super().__init__()
        self.attention = {"eager": nn.Linear, "sdpa": nn.Linear}[config._attn_implementation](2, 2)


class _Warned(nn.Module):
    def __init__(self, config: Any) -> None:
        super().__init__()
        self.said = f"attention is {config._attn_implementation}"
        self.kept = config._attn_implementation  # and never read
        config.other._attn_implementation = config._attn_implementation


class _Copied(_Warned):
    def forward(self) -> Any:
        return self.kept


class _Base(PreTrainedModel):  # type: ignore[no-untyped-call]
    pass


class _Inner(_Late):
    pass


class _Over(_Late):
    def forward(self, query: torch.Tensor, bias: torch.Tensor) -> torch.Tensor:
        return query


def test_a_class_that_looks_at_every_call_says_where_and_what_it_passes() -> None:
    found = _reading(_Late)
    assert found is not None
    assert (found.chains, found.calls, found.fixed, found.copied) == ((("settings",),), True, False, ())
    assert found.passes == {"softcap": ("cap",), "bias": None, "window": ("settings", "window")}
    assert (found.names, found.asks) == ((), False)
    assert found.eager is eager_attention_forward
    assert _reading(_Inner) == found


def test_a_class_that_asks_by_name_is_known() -> None:
    found = _reading(_Named)
    assert found is not None
    assert (found.names, found.asks, found.calls) == (("sdpa",), True, True)


def test_a_class_that_chose_when_it_was_built_is_known() -> None:
    found = _reading(_Chosen)
    assert found is not None
    assert (found.fixed, found.calls) == (True, False)


def test_a_class_that_copied_its_choice_is_known_if_it_uses_the_copy() -> None:
    found = _reading(_Copied)
    assert found is not None
    assert (found.copied, found.fixed) == (("kept",), False)
    assert _reading(_Warned) is None


def test_methods_that_do_not_run_and_those_of_transformers_do_not_count() -> None:
    assert _reading(_Over) is None
    assert _reading(_Base) is None


@pytest.mark.parametrize("name", ["flash", "plain", "interface"])
def test_a_tower_that_packs_images_for_flash_attention_sees_it_in_the_name(name: str) -> None:
    """Qwen2-VL gives flash attention all images at once, with their lengths, and any other one image at a time."""
    code = {
        "flash": attention_kernels.FLASH,
        "plain": attention_kernels.plain,
        "interface": attention_kernels.interface,
    }
    config: Any = Qwen2VLConfig().vision_config
    config.depth, config.embed_dim, config.hidden_size, config.num_heads = 2, 32, 32, 2
    torch.manual_seed(0)
    tower: Any = Qwen2VisionTransformerPretrainedModel(config)
    tower.eval()
    grid = torch.tensor([[1, 4, 4], [1, 2, 4]])
    pixels = torch.randn(24, 3 * config.temporal_patch_size * config.patch_size**2)
    seen = attention_kernels.seen
    with torch.no_grad():
        expected = tower(pixels, grid_thw=grid).pooler_output
        attend(tower, None, code[name])
        seen.update(dict.fromkeys(seen, 0))
        found = tower(pixels, grid_thw=grid).pooler_output
    torch.testing.assert_close(found, expected, **TOLERANCE)
    ran = {key: count for key, count in seen.items() if count}
    assert ran == ({"flash_attn_varlen_func": 2} if name == "flash" else {name: 4})
