"""Tiny models of several families, and what attention means for them."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import torch
from torch import nn
from transformers import (
    BartConfig,
    BartForConditionalGeneration,
    BertConfig,
    BertModel,
    CLIPConfig,
    CLIPModel,
    CLIPTextConfig,
    CLIPVisionConfig,
    Gemma2Config,
    Gemma2ForCausalLM,
    Gemma3ForCausalLM,
    Gemma3TextConfig,
    GPT2Config,
    GPT2LMHeadModel,
    GPTNeoConfig,
    GPTNeoForCausalLM,
    LlamaConfig,
    LlamaForCausalLM,
    LlavaConfig,
    LlavaForConditionalGeneration,
    MistralConfig,
    MistralForCausalLM,
    Qwen3Config,
    Qwen3ForCausalLM,
    T5Config,
    T5ForConditionalGeneration,
    XLNetConfig,
    XLNetModel,
)

torch.set_num_threads(1)

VOCABULARY = 97
LENGTH = 10
WINDOW = 4
TOLERANCE: dict[str, Any] = {"rtol": 1e-4, "atol": 1e-5}  # of float32, where only the order of the sums differs

_TEXT: dict[str, Any] = {
    "vocab_size": VOCABULARY,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "num_key_value_heads": 1,
    "head_dim": 16,
    "max_position_embeddings": 64,
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": 2,
    "initializer_range": 0.5,  # or all attention is nearly the same, and nothing shows which keys were seen
}
_TOWER: dict[str, Any] = {
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "initializer_range": 0.5,
}
_IMAGE: dict[str, Any] = {"image_size": 8, "patch_size": 4}


def _gpt2() -> nn.Module:
    return GPT2LMHeadModel(GPT2Config(n_embd=32, n_layer=2, n_head=2, vocab_size=VOCABULARY, initializer_range=0.5))


def _t5() -> nn.Module:
    return T5ForConditionalGeneration(
        T5Config(d_model=32, d_kv=16, d_ff=48, num_layers=2, num_heads=2, vocab_size=VOCABULARY)
    )


def _bart() -> nn.Module:
    ends: dict[str, Any] = {"pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2, "decoder_start_token_id": 2}
    heads: dict[str, Any] = {
        "encoder_attention_heads": 2,
        "decoder_attention_heads": 2,
        "encoder_ffn_dim": 48,
        "decoder_ffn_dim": 48,
    }
    sizes: dict[str, Any] = {
        "d_model": 32,
        "encoder_layers": 1,
        "decoder_layers": 1,
        "vocab_size": VOCABULARY,
        "init_std": 0.5,
    }
    return BartForConditionalGeneration(BartConfig(**sizes, **heads, **ends))


def _llava() -> nn.Module:
    vision, text = CLIPVisionConfig(**_TOWER, **_IMAGE), LlamaConfig(**_TEXT)
    return LlavaForConditionalGeneration(LlavaConfig(vision_config=vision, text_config=text, image_token_index=5))


def _clip() -> nn.Module:
    text = CLIPTextConfig(**_TOWER, vocab_size=VOCABULARY, eos_token_id=2)
    vision = CLIPVisionConfig(**_TOWER, **_IMAGE)
    return CLIPModel(CLIPConfig(text_config=text.to_dict(), vision_config=vision.to_dict(), projection_dim=16))


_SLIDING: dict[str, Any] = {"sliding_window": WINDOW, "layer_types": ["sliding_attention", "sliding_attention"]}
_BERT = {key: value for key, value in _TEXT.items() if key not in ("num_key_value_heads", "head_dim")}

_MODELS: dict[str, Callable[[], nn.Module]] = {
    "qwen3": lambda: Qwen3ForCausalLM(Qwen3Config(**_TEXT)),
    "llama": lambda: LlamaForCausalLM(LlamaConfig(**_TEXT)),
    "gpt2": _gpt2,
    "mistral": lambda: MistralForCausalLM(MistralConfig(**_TEXT, sliding_window=WINDOW)),
    "gemma2": lambda: Gemma2ForCausalLM(Gemma2Config(**_TEXT, **_SLIDING)),
    "gemma3": lambda: Gemma3ForCausalLM(Gemma3TextConfig(**_TEXT, **_SLIDING)),
    "bert": lambda: BertModel(BertConfig(**_BERT)),
    "t5": _t5,
    "bart": _bart,
    "llava": _llava,
    "clip": _clip,
    "gpt_neo": lambda: GPTNeoForCausalLM(
        GPTNeoConfig(
            hidden_size=32, num_layers=2, attention_types=[[["global", "local"], 1]], num_heads=2, vocab_size=9
        )
    ),
    "xlnet": lambda: XLNetModel(XLNetConfig(d_model=32, n_layer=1, n_head=2, d_inner=48, vocab_size=VOCABULARY)),
}
DECODERS = ("qwen3", "llama", "gpt2")
WINDOWED = ("mistral", "gemma3")
_TWO_SIDED = ("t5", "bart")


def model(name: str) -> Any:
    """Build a tiny model, always the same, in eval mode."""
    torch.manual_seed(0)
    return _MODELS[name]().eval()


def tokens(seed: int = 1) -> torch.Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randint(6, VOCABULARY, (2, LENGTH), generator=generator)


def padding() -> torch.Tensor:
    """A mask with three tokens of padding, on the left of the first row."""
    mask = torch.ones(2, LENGTH, dtype=torch.long)
    mask[0, :3] = 0
    return mask


def call(model: Any, name: str, ids: torch.Tensor, mask: torch.Tensor | None = None) -> torch.Tensor:
    """Run a model; the result is of (batch, length, width)."""
    said: dict[str, Any] = {"input_ids": ids, "attention_mask": mask}
    if name in _TWO_SIDED:
        said["decoder_input_ids"] = ids[:, :6]
    if name == "clip":
        found: torch.Tensor = model.text_model(**said).last_hidden_state
        return found
    result = model(**said)
    output: torch.Tensor = result.logits if hasattr(result, "logits") else result.last_hidden_state
    return output


def images() -> torch.Tensor:
    return torch.randn(2, 3, 8, 8, generator=torch.Generator().manual_seed(3))


class Copying(nn.Module):
    """A part that keeps what its configuration said when it was built, and looks at that only."""

    def __init__(self, config: Any) -> None:
        super().__init__()
        self.config = config
        self.implementation = config._attn_implementation
        self.is_causal = True

    def forward(self, query: torch.Tensor) -> torch.Tensor:
        from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

        attend = ALL_ATTENTION_FUNCTIONS[self.implementation]
        found: torch.Tensor = attend(self, query, query, query, None)[0]
        return found


class TwoParts(nn.Module):
    """A model of two parts, one of which ignores later choices."""

    def __init__(self, config: Any) -> None:
        super().__init__()
        self.text = Qwen3ForCausalLM(config)
        self.vision = Copying(config)


def two_parts() -> Any:
    torch.manual_seed(0)
    return TwoParts(Qwen3Config(**_TEXT)).eval()


def implementations(model: nn.Module) -> dict[str, Any]:
    """What every module that holds a configuration finds there."""
    return {
        path: module.config._attn_implementation
        for path, module in model.named_modules()
        if hasattr(module, "config") and not isinstance(module.config, dict | SimpleNamespace)
    }
