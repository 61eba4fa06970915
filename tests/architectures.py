"""Every architecture of transformers, tiny: built from its configuration's own defaults with fewer layers and widths.

An architecture is a model type that an auto class knows; of several classes the bare model is taken. Weights are left
as memory is found: nobody runs these models.
"""

from __future__ import annotations

import dataclasses
import inspect
import re
from collections import Counter
from collections.abc import Mapping
from functools import cache
from importlib import import_module
from typing import Any

import torch
import transformers
from torch import nn
from transformers import PretrainedConfig
from transformers.initialization import no_init_weights
from transformers.models.auto import modeling_auto
from transformers.models.auto.configuration_auto import CONFIG_MAPPING

from kerncfg.applier.adapters import adapter_for
from kerncfg.applier.attention import parts

__all__ = ["FAMILIES", "LEFT_OUT", "architectures", "build", "page", "row"]

# A dozen families, for every run: decoders, encoders, both, vision, speech, states, experts, and several parts.
FAMILIES = (
    "llama", "qwen3", "gemma3_text", "gpt2", "gpt_oss", "qwen3_5_text", "mamba2",
    "bert", "t5", "vit", "whisper", "llava", "clip",
)  # fmt: skip

PAGE = """# Architectures

What kerncfg finds in the architectures of transformers {version}: the names that rows can use, with the number of their
sites in a tiny model, which has {layers} layers of a kind where its configuration lets it. A layer's name takes the
modules of a class, a function's the callers of a function; attention is the number of parts that can have one of their
own. Where no name stands, a row needs a [`match`](config.md). Of {all} architectures {built} were built, given other
kernels, and taken back to what they were.

`python docs/_architectures.py` writes this page.

| architecture | class | layers | functions | attention |
|---|---|---|---|---|
"""

LAYERS = 2
SIZES: Mapping[str, int] = {
    "hidden_size": 64,
    "d_model": 64,
    "n_embd": 64,
    "intermediate_size": 64,
    "moe_intermediate_size": 32,
    "encoder_ffn_dim": 64,
    "decoder_ffn_dim": 64,
    "ffn_dim": 64,
    "d_ff": 64,
    "mlp_dim": 64,
    "num_attention_heads": 4,
    "encoder_attention_heads": 4,
    "decoder_attention_heads": 4,
    "n_head": 4,
    "n_heads": 4,
    "num_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 16,
    "d_kv": 16,
    "num_experts_per_tok": 2,
    "num_local_experts": 4,
    "num_experts": 4,
    "n_routed_experts": 8,
}
_DEPTH = re.compile(
    r"(^|_)(num_hidden_layers|n_layers?|num_layers|num_(de|en)coder_layers|(de|en)coder_layers|decoder_num_layers|depth"
    r"|layers|num_blocks|num_hidden_groups|[lxr]_layers)$"
)


def _backbone(name: str, **said: Any) -> PretrainedConfig:
    config: PretrainedConfig = getattr(transformers, name)(**said)
    return config


AS_IT_IS = object()  # a field that keeps its default, since others have been computed for it

# What some need besides, by the path of each field: their own defaults build nothing, or hang together otherwise.
_ALIKE: tuple[tuple[tuple[str, ...], Mapping[str, Any]], ...] = (
    (("autoformer", "informer", "time_series_transformer"), {"prediction_length": 4}),
    (("chameleon", "emu3"), {"vocabulary_map": {"<image>": 3}}),
    (
        ("conditional_detr", "dab-detr", "deformable_detr", "detr", "omdet-turbo", "table-transformer"),
        {"use_timm_backbone": False, "backbone_config": transformers.ResNetConfig(depths=[1, 1, 1, 1])},
    ),
    (("gradium_phonon_tts", "pocket_tts"), {"flow_head_config.condition_dim": 64}),
    (("hunyuan_v1_dense", "hunyuan_v1_moe", "hunyuan_vl_text", "ministral"), {"head_dim": 16}),
    (
        ("mimi", "mimi_decoder", "pocket_tts_audio_tokenizer", "pocket_tts_audio_tokenizer_decoder"),
        {"upsample_groups": 64},
    ),
    (
        ("nemo_speechlm", "nemotron3_5_transcribe_audio", "nemotron3_diarization"),
        {"head_config.audio_hidden_size": 64},
    ),
    (tuple(f"vibevoice_acoustic_tokenizer{part}" for part in ("", "_encoder", "_decoder")), {"num_filters": 8}),
    (("wavtokenizer", "wavtokenizer_encoder"), {"codebook_dim": 64}),
    (
        ("inkling2", "inkling2_loop"),
        {"vision_config.text_hidden_size": 64, "audio_config.text_hidden_size": 64},
    ),
)
SETTINGS: Mapping[str, Mapping[str, Any]] = {
    **{name: said for names, said in _ALIKE for name in names},
    "cohere_compass_text": {"rope_parameters": {"full_attention": {"rope_type": "default", "rope_theta": 10000.0}}},
    "cosmos3_edge_text": {"head_dim": AS_IT_IS},
    "d_fine": {"backbone_config": _backbone("HGNetV2Config", out_indices=[2, 3, 4])},
    "dbrx": {"attn_config.rope_theta": 10000.0},
    "deepseek_ocr2": {"text_config.mlp_layer_types": ["dense", "sparse"]},
    "diffusion_gemma": {
        "text_config.num_experts": 4,
        "text_config.top_k_experts": 2,
        "text_config.moe_intermediate_size": 32,
    },
    "dory": {"num_hidden_layers": 3, "n_input_layers": 1, "n_recurrent_layers": 1, "n_output_layers": 1},
    "dots1": {"n_routed_experts": 8, "n_shared_experts": 1, "moe_intermediate_size": 32, "num_experts_per_tok": 2},
    "efficientloftr": {"hidden_size": AS_IT_IS},
    "ernie4_5_vl_moe_text": {"hidden_size": 512},
    "esm": {"vocab_size": 33},
    "fun_asr_nano": {"adaptor_config.intermediate_size": 16, "adaptor_config.hidden_size": 64},
    "gemma3n_text": {"num_kv_shared_layers": 0},
    "gemma4_assistant": {
        "text_config": transformers.Gemma4TextConfig(hidden_size_per_layer_input=0, vocab_size_per_layer_input=0)
    },
    "gpt_neo": {"attention_types": [[["global", "local"], 1]]},
    "granite4_vision": {"deepstack_layer_map": [], "downsample_rate": "4/8"},
    "granite_docling": {"vision_config.out_hidden_size": 64},
    "lfm2_moe": {"layer_types": ["conv", "full_attention"]},
    "mamba2": {"num_heads": 8, "head_dim": 16},
    "molmo2": {"adapter_config.vision_feature_layer": [1, 0]},
    "moonshine_streaming": {"num_key_value_heads": 4},
    "muse_spark_audio": {"num_hidden_layers": AS_IT_IS},
    "muse_spark": {"audio_config.out_hidden_size": 64},
    "nemotron": {"num_key_value_heads": 2},
    "nemotron_h_omni": {"vision_config.video_temporal_patch_size": 2},
    "qwen3_omni_moe": {
        "talker_config.text_config.shared_expert_intermediate_size": 64,
        "talker_config.spatial_merge_size": 2,
    },
    "reformer": {"axial_pos_embds_dim": [32, 32]},
    "squeezebert": {"embedding_size": 64},
    "t5gemma2_encoder": {"text_config.dropout_rate": 0.0},
    "upernet": {"backbone_config": _backbone("ResNetConfig", depths=[1, 1, 1, 1], out_indices=[1, 2, 3, 4])},
    "vitmatte": {"fusion_hidden_sizes": [32, 16, 8, 4]},
    "zamba": {"num_hidden_layers": 6, "layer_types": ["mamba", "mamba", "hybrid"] * 2},
    "zamba2": {"layer_types": ["mamba", "hybrid"]},
}

# Where the bare model is not for this configuration.
CLASSES: Mapping[str, str] = {
    "musicgen": "MusicgenForConditionalGeneration",
    "musicgen_melody": "MusicgenMelodyForConditionalGeneration",
}

_WITHOUT = "its model needs the package {}, which kerncfg does not, when it is built"

# Architectures that cannot be built from a configuration here, and why.
LEFT_OUT: Mapping[str, str] = {
    **dict.fromkeys(
        (
            "edgetam", "edgetam_vision_model", "fast_vlm", "gemma3n", "gemma3n_vision", "pe_audio_video",
            "pe_audio_video_encoder", "pe_video", "pe_video_encoder", "perception_lm", "timm_backbone", "timm_wrapper",
        ),
        _WITHOUT.format("timm"),
    ),
    **dict.fromkeys(("eomt", "eomt_dinov3", "inkling_mm_model", "videomt"), _WITHOUT.format("scipy")),
    "dinat": _WITHOUT.format("natten"),
    "layoutlmv2": _WITHOUT.format("detectron2"),
    "higgs_audio_v2_tokenizer": _WITHOUT.format("torchaudio"),
    "dots3_note": "its defaults name 42 layers one by one, each with widths of its own",
    "pp_ocrv5_server_det": "its convolutions have no defaults",
    "pp_ocrv6_medium_det": "its convolutions have no defaults",
}  # fmt: skip


@cache
def architectures() -> dict[str, str]:
    """Return the class of every model type; the bare model if there is one, else the first for some task."""
    named = {name: found for name, found in vars(modeling_auto).items() if name.endswith("_MAPPING_NAMES")}
    classes: dict[str, str] = {}
    for name in ("MODEL_MAPPING_NAMES", *named):
        for model_type, found in named[name].items() if name != "CONFIG_MAPPING_NAMES" else ():
            classes.setdefault(model_type, found if isinstance(found, str) else found[0])
    return dict(sorted(classes.items()))


def build(model_type: str) -> nn.Module:
    """Build the tiny model of a type; its weights are whatever was in memory."""
    config = tiny(CONFIG_MAPPING[model_type])
    name = CLASSES.get(model_type, architectures()[model_type])
    cls: Any = getattr(transformers, name, None)
    if cls is None:  # what one of the auto classes knows, and the package itself does not offer
        cls = getattr(import_module(type(config).__module__.replace("configuration_", "modeling_")), name)
    with no_init_weights(), torch.device("cpu"):
        model: nn.Module = cls(config)
    return model.eval()


def tiny(cls: type[PretrainedConfig], said: Mapping[str, Any] | None = None, like: Any = None) -> PretrainedConfig:
    """Return a configuration with fewer layers and widths than one that is like it, or than its class's own.

    `said` are the settings of those around it that are meant for this one.
    """
    said = {**SETTINGS.get(cls.model_type, {}), **(said or {})}
    own = {name: value for name, value in said.items() if "." not in name}
    settings = {name: value for name, value in own.items() if value is not AS_IT_IS}
    own_class: Any = cls
    usual = _usual(own_class) or like or cls(**settings)
    for name in _fields(cls):
        value = _default(like or usual, name)
        if isinstance(value, PretrainedConfig) and name not in own:
            inner = {path.partition(".")[2]: one for path, one in said.items() if path.startswith(f"{name}.")}
            settings[name] = tiny(type(value), inner, value)
        elif name not in own and (
            isinstance(value, int | float | str) or (type(value) is list and "layer" not in name)
        ):
            size = _size(name, value, like or usual)
            settings |= {name: size} if size != _default(usual, name) else {}
    return cls(**settings)


@cache
def _usual(cls: Any) -> Any:
    try:
        return cls()
    except Exception:  # its defaults do not go together
        return None


def _fields(cls: Any) -> list[str]:
    if dataclasses.is_dataclass(cls):
        return [field.name for field in dataclasses.fields(cls)]
    return list(inspect.signature(cls).parameters)


def _default(config: PretrainedConfig, name: str) -> Any:
    try:
        return getattr(config, name, None)
    except Exception:  # it differs by layer, and has no one value
        return None


def _size(name: str, value: Any, config: PretrainedConfig) -> Any:
    if not isinstance(value, int) or isinstance(value, bool):
        return value
    if _DEPTH.search(name):
        return min(LAYERS, value)
    if name == "num_key_value_heads" and value == _default(config, "num_attention_heads"):
        name = "num_attention_heads"  # as many: its attention is not grouped
    return min(SIZES.get(name, value), value)


def row(model_type: str, model: nn.Module | None = None) -> str:
    """Return the row of the page for an architecture, with what is found in its tiny model."""
    name = CLASSES.get(model_type, architectures()[model_type])
    if model_type in LEFT_OUT:
        return f"| `{model_type}` | {name} | not looked at: {LEFT_OUT[model_type]} | | |"
    model = build(model_type) if model is None else model
    sites = adapter_for(model).sites(model)
    layers = Counter(site.layer.name for site in sites if site.layer.name)
    functions = Counter(one.name for site in sites for one in site.layer.functions if one.name)
    attention = sum(not part.mute for part in parts(model))
    return f"| `{model_type}` | {name} | {_counts(layers)} | {_counts(functions)} | {attention or ''} |"


def _counts(found: Mapping[str, int]) -> str:
    return ", ".join(f"{name} {count}" for name, count in sorted(found.items()))


def page() -> str:
    """Return the page of all architectures."""
    rows = [row(model_type) for model_type in architectures()]
    head = PAGE.format(version=transformers.__version__, layers=LAYERS, all=len(rows), built=len(rows) - len(LEFT_OUT))
    return head + "".join(f"{line}\n" for line in rows)
