"""Liger's flags to a document: `liger_kernel_config` and the arguments of `apply_liger_kernel_to_…`."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from kerncfg.dialects.translation import Translation
from kerncfg.documents.config import Origin
from kerncfg.errors import ConfigError, Issue

__all__ = ["FLAGS", "LIGER_DEFAULTS", "check_flags", "from_liger"]

_HUB = "kernels-community/liger-kernels@v3"
_MLP = "swiglu"
_USUAL = {"rope": True, "cross_entropy": False, "fused_linear_cross_entropy": True, "rms_norm": True, "swiglu": True}
_NO_ROPE = {**_USUAL, "rope": False}
_GEGLU = {**{flag: on for flag, on in _USUAL.items() if flag != _MLP}, "geglu": True}
_LOSSES = {"cross_entropy": False, "fused_linear_cross_entropy": True}
_NORMS = {**_LOSSES, "rms_norm": True, "layer_norm": True}

# The arguments of liger-kernel 0.8.5's functions by the name each ends in; a model that is not here has `_USUAL`.
LIGER_DEFAULTS: Mapping[str, Mapping[str, bool]] = {
    "deepseek_v2": _NO_ROPE,
    "deepseek_v3": _NO_ROPE,
    "deepseek_v4": {**_NO_ROPE, "swiglu": False},
    "gemma": _GEGLU,
    "gemma2": _GEGLU,
    "gemma3": {**_GEGLU, "layer_norm": True},
    "gemma3_text": _GEGLU,
    "gemma4": {**_GEGLU, "rope": False, "layer_norm": False},
    "gemma4_text": {**_GEGLU, "rope": False},
    "glm4": _NO_ROPE,
    "glm4v": _NO_ROPE,
    "glm4v_moe": _NO_ROPE,
    "gpt_oss": {**_USUAL, "swiglu": False},
    "granite": {**_USUAL, "cross_entropy": True, "fused_linear_cross_entropy": False},
    "internvl": _NORMS,
    "llama4": {**_USUAL, "layer_norm": True},
    "llava": _LOSSES,
    "mllama": {**_USUAL, "layer_norm": True},
    "muse_glimmer": {**_USUAL, "layer_norm": True},
    "nemotron": {**_LOSSES, "relu_squared": True},
    "paligemma": {**_GEGLU, "layer_norm": True},
    "pixtral": {"rope": True, "rms_norm": True, "swiglu": True},
    "qwen2_vl": {**_USUAL, "layer_norm": True},
    "qwen3_5": _NO_ROPE,
    "qwen3_5_moe": _NO_ROPE,
    "qwen3_next": _NO_ROPE,
    "qwen3_vl": {**_USUAL, "swiglu": False},
    "smolvlm": _NORMS,
}
FLAGS = tuple(dict.fromkeys([*_USUAL, "geglu", "layer_norm", "relu_squared"]))

# Norms that add one to the weight, and MLPs whose two projections are one: the Hub's layers do not compute these.
_CENTRED = ("gemma", "paligemma", "qwen3_next", "qwen3_5", "muse_glimmer")
_MERGED = ("phi3", "glm4")
_LOSS = "the loss is no layer of the model"
_KEEP_CALL = "keep the call to Liger for it, with every other flag false"
_WHY: Mapping[str, tuple[str, str]] = {
    "rope": (
        "Liger's function takes position_ids, which transformers' does not",
        "the default mapping has a rotary_pos_emb for inference: inherited=default",
    ),
    "cross_entropy": (_LOSS, _KEEP_CALL),
    "fused_linear_cross_entropy": (_LOSS, _KEEP_CALL),
    "layer_norm": ("the Hub's LigerLayerNorm takes x where torch.nn.LayerNorm takes input", _KEEP_CALL),
    "relu_squared": ("the Hub's Liger layers have none", _KEEP_CALL),
}
_EXPERTS = ("moe", "mixtral", "qwen3_next", "deepseek")


def from_liger(
    flags: Mapping[str, bool] | None = None, *, model_type: str | None = None, origin: Origin | None = None
) -> Translation:
    """Return what Liger's flags mean, for a kind of model where it is known; flags not said have Liger's defaults.

    Liger swaps nothing that its flags do not name, so nothing is inherited.

    Raises:
        ConfigError: A flag is no flag of Liger's, or is neither true nor false.
    """
    said = dict(flags or {})
    check_flags(said)
    if odd := next((flag for flag, on in said.items() if on is None), None):
        raise _no_flag(odd, None)
    unknown = {**_USUAL, "geglu": True}
    defaults = unknown if model_type is None else LIGER_DEFAULTS.get(model_type, _USUAL)
    wanted = {flag: said.get(flag, default) for flag, default in defaults.items()}
    kernels = dict(_rows(wanted, model_type or ""))
    document = {"kernels": {**kernels, "inherit_mapping": False}}
    found = Translation(document=document, origin=origin or Origin(kind="argument"))
    ignored = [flag for flag in said if flag not in defaults]
    return found.remarked(*_remarks(wanted, model_type or ""), *(_ignored(flag, model_type) for flag in ignored))


def check_flags(flags: Mapping[str, bool | None]) -> None:
    """Refuse what is no flag of Liger's; `None` stands for a value that is not written out.

    Raises:
        ConfigError: A flag is none, or is neither true nor false.
    """
    for flag, on in flags.items():
        if flag not in FLAGS or not isinstance(on, bool | None):
            raise _no_flag(flag, on)


def _no_flag(flag: str, on: Any) -> ConfigError:
    hint = f"there are {', '.join(FLAGS)}, each true or false"
    return ConfigError([Issue(message=f"{flag}={on!r} is no flag of Liger's", hint=hint)])


def _rows(on: Mapping[str, bool], model: str) -> Iterator[tuple[str, Any]]:
    if on.get("rms_norm") and not model.startswith(_CENTRED):
        norm = f"{_HUB}:LigerRMSNorm"
        yield "RMSNorm", {"cuda": norm, "rocm": norm}
    gated = []
    if on.get("swiglu") and not model.startswith(_MERGED):
        gated.append((f"{_HUB}:LigerSwiGLUMLP", "config.hidden_act", ["silu", "swish"]))
    if on.get("geglu"):
        names = ["gelu_pytorch_tanh", "gelu_new"]
        gated += [(f"{_HUB}:LigerGEGLUMLP", f"config.{key}", names) for key in ("hidden_act", "hidden_activation")]
    if gated:
        listed = [{"kernel": kernel, "when": {key: values}} for kernel, key, values in gated]
        yield "GatedMLP", {"match": {"class": "*MLP"}, "cuda": listed, "rocm": listed}


def _remarks(on: Mapping[str, bool], model: str) -> Iterator[Issue]:
    for flag, (why, cure) in _WHY.items():
        if on.get(flag):
            yield Issue(message=f"{flag} has no equivalent: {why}", hint=cure)
    if on.get("rms_norm") and model.startswith(_CENTRED):
        why = f"the norms of {model} add one to the weight, and the Hub's LigerRMSNorm does not"
        yield Issue(message=f"rms_norm has no equivalent: {why}", hint=_KEEP_CALL)
    if on.get("swiglu") and model.startswith(_MERGED):
        why = f"the MLPs of {model} have one gate_up_proj, and the Hub's LigerSwiGLUMLP reads two projections"
        yield Issue(message=f"swiglu has no equivalent: {why}", hint=_KEEP_CALL)
    elif on.get("swiglu") and any(word in model for word in _EXPERTS):
        why = "the Hub's Liger layers have no experts; the dense MLPs have a row"
        yield Issue(message=f"swiglu of the experts has no equivalent: {why}", hint=_KEEP_CALL)


def _ignored(flag: str, model: str | None) -> Issue:
    kind = model or "a model in general"
    return Issue(message=f"{flag} has no equivalent: Liger takes no such flag for {kind}, and ignores it")
