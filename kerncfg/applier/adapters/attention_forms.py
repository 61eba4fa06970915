"""Kernels as attention functions of transformers: in which form they come, and with which masks they can work.

Three forms: a module that offers `flash_attn_varlen_func`, which transformers' own wrapper calls; a function in the
form of the attention interface; and a plain function of query, key and value, called as PyTorch's own is. The wrapper
is rebuilt around each kernel, because transformers keeps the kernel it calls in globals of the process.
"""

from __future__ import annotations

import inspect
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import FunctionType, SimpleNamespace
from typing import TYPE_CHECKING, Any

import torch
from torch import nn

from kerncfg.applier.adapters.attention import BUILT_IN

if TYPE_CHECKING:
    from kerncfg.applier.adapters.attention import Part

__all__ = ["MASKS", "Form", "by_mode", "called", "form", "materialised"]

MASKS = ("eager", "sdpa", "flash_attention_2", "flex_attention")

Attention = Callable[..., Any]

_FLASH = ("flash_attn_func", "flash_attn_varlen_func", "flash_attn_with_kvcache")
_TORCH = dict.fromkeys(("attn_mask", "dropout_p", "is_causal", "scale", "enable_gqa"))
_TENSORS = (("q", "query"), ("k", "key"), ("v", "value"))
# What models pass and a kernel may leave unread without another result: the mask says the same, or nothing needs it.
_HARMLESS = {"scaling", "dropout", "is_causal", "attention_mask", "query", "key", "value", "position_ids"}
_HARMLESS |= {"output_attentions", "deterministic", "cu_seq_lens_q", "cu_seq_lens_k", "max_length_q", "max_length_k"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Form:
    """A choice of attention as a function, or the `fault` that keeps it from being one.

    `masks` are the kinds it can work with, the best first, and `takes` the keywords beyond the usual that it acts on;
    `None` is any. `skips` says that it keeps to causality where there is no mask, as `sdpa` masks expect it.
    """

    kind: str  # built-in | flash | interface | function
    fault: str | None = None
    function: Attention | None = None
    masks: tuple[str, ...] = ()
    takes: frozenset[str] | None = None
    skips: bool = False
    cached: bool = False
    drops: bool = True  # whether it acts on dropout

    def undropped(self, part: Part) -> str | None:
        """Say that a part asks for dropout in training, which this form would leave out in silence."""
        for place in part.places if not self.drops else ():
            chain = place.reading.passes.get("dropout")
            value = _found(place.module, chain) if chain is not None else None
            if isinstance(value, int | float) and value:
                cls = type(place.module).__qualname__
                return f"{cls} passes dropout ({value}) to its attention in training, and this takes none"
        return None

    def misfit(self, part: Part) -> str | None:
        """Say what a part passes to its attention that this form would drop."""
        for place in part.places if self.takes is not None else ():
            for name, chain in place.reading.passes.items():
                if name in _HARMLESS or name in self.takes:  # type: ignore[operator]
                    continue
                value = "…" if chain is None else _found(place.module, chain)
                if value is not None:
                    said = f" ({value})" if isinstance(value, bool | int | float) else ""
                    return (
                        f"{type(place.module).__qualname__} passes {name}{said} to its attention, and this takes none"
                    )
        return None


def _found(value: Any, chain: tuple[str, ...]) -> Any:
    for name in chain:
        value = getattr(value, name, None)
    return value


def form(code: Any, mask: str) -> Form:
    """Return a kernel's code, or the name of one of transformers' own, as an attention function.

    `mask` is one of `MASKS`, or `auto`.
    """
    if mask != "auto" and mask not in MASKS:
        return Form(kind="", fault=f"no mask is called {mask!r}, expected auto or one of {', '.join(MASKS)}")
    found = _form(code, mask)
    if found.fault is None and mask != "auto" and mask not in found.masks:
        can = " or ".join(found.masks)
        return Form(kind=found.kind, fault=f"the row's mask is {mask}, and this kernel works with {can}")
    return found


def _form(code: Any, mask: str) -> Form:
    if isinstance(code, str):
        if code not in BUILT_IN:
            return Form(kind="built-in", fault=f"no attention is called {code!r}, expected {', '.join(BUILT_IN)}")
        return Form(kind="built-in", masks=BUILT_IN[code], skips=code == "sdpa")
    if any(callable(getattr(code, name, None)) for name in _FLASH):
        return _flash(code)
    if callable(getattr(code, "flash_attn_forward", None)) and hasattr(code, "supports_flash_attn"):
        return _interface(code.flash_attn_forward, "sdpa" if mask == "auto" else mask)
    if code is torch.nn.functional.scaled_dot_product_attention:
        return _function(code, _TORCH)
    if not callable(code) or isinstance(code, type | nn.Module):
        what = "module" if inspect.ismodule(code) else "class" if isinstance(code, type) else type(code).__name__
        return Form(
            kind="",
            fault=f"an attention kernel is no {what}, expected a function or what offers flash_attn_varlen_func",
        )
    if (name := getattr(code, "__name__", None)) in _FLASH:
        return _flash(SimpleNamespace(__qualname__=name, **{name: code}))  # one function of a kernel, named by itself
    parameters = _parameters(code)
    if parameters is None:
        return Form(kind="", fault=f"the signature of {called(code)} cannot be read")
    names = [name for name, found in parameters.items() if found.kind is not found.KEYWORD_ONLY]
    if names[:1] == ["module"]:
        return _interface(code, mask)
    if len(names) > 2 and all(name in known for name, known in zip(names, _TENSORS, strict=False)):
        return _function(code, parameters)
    return Form(
        kind="",
        fault=f"{called(code)}{_spelled(code)} is no attention function, expected (module, query, key, value, "
        "attention_mask, **kwargs) or (query, key, value, attn_mask, …)",
    )


def _interface(function: Any, mask: str) -> Form:
    """Take a function as it is; `eager` masks, which are never left out and can be added, suit what says nothing."""
    parameters = _parameters(function) or {}
    wanted = ["module", "query", "key", "value", "attention_mask"]
    if list(parameters)[:5] != wanted or not any(found.kind is found.VAR_KEYWORD for found in parameters.values()):
        needs = f"({', '.join(wanted)}, **kwargs)"
        return Form(kind="interface", fault=f"{called(function)}{_spelled(function)} is not called as {needs}")
    code = getattr(inspect.unwrap(function), "__code__", None)
    kind = getattr(function, "attention_mask_kind", "eager") if mask == "auto" else mask
    if kind not in MASKS:
        return Form(
            kind="interface", fault=f"{called(function)} declares the mask {kind!r}, expected {', '.join(MASKS)}"
        )
    said = (found for found in getattr(code, "co_consts", ()) if isinstance(found, str))  # kwargs["softcap"]
    takes = {*parameters, *said} | ({"sliding_window"} if kind != "flash_attention_2" else set())
    knows = "is_causal" in takes or "is_causal" in getattr(code, "co_names", ())
    drops = "dropout" in takes
    return Form(kind="interface", function=function, masks=(kind,), takes=frozenset(takes), skips=knows, drops=drops)


def _function(function: Any, parameters: Mapping[str, Any]) -> Form:
    """Wrap a function called as `scaled_dot_product_attention` is, with tensors of (batch, heads, length, width)."""
    missing = [name for name in ("attn_mask", "scale") if name not in parameters]
    if missing:
        return Form(
            kind="function",
            fault=f"{called(function)}{_spelled(function)} has no {' and no '.join(missing)}, and models need both",
        )
    takes = frozenset({"sliding_window", "position_bias"} | ({"softcap"} & set(parameters)))
    return Form(
        kind="function",
        function=_plain(function, frozenset(parameters)),
        masks=("sdpa", "eager"),
        takes=takes,
        skips="is_causal" in parameters,
        drops="dropout_p" in parameters,
    )


def _plain(function: Any, names: frozenset[str]) -> Attention:
    biased = sys.modules["transformers.integrations.sdpa_attention"].create_position_bias_mask

    def attention(
        module: nn.Module,
        query: torch.Tensor,
        key: torch.Tensor,
        value: torch.Tensor,
        attention_mask: torch.Tensor | None,
        dropout: float = 0.0,
        scaling: float | None = None,
        is_causal: bool | None = None,
        position_bias: torch.Tensor | None = None,
        softcap: float | None = None,
        **kwargs: Any,
    ) -> tuple[torch.Tensor, None]:
        length = query.shape[2]
        causal = getattr(module, "is_causal", True) if is_causal is None else is_causal
        causal = length > 1 and attention_mask is None and causal
        if causal and key.shape[2] > length:  # an empty static cache: what is behind the queries is not there yet
            key, value = key[:, :, :length], value[:, :, :length]
            position_bias = position_bias[..., :length] if position_bias is not None else None
        if position_bias is not None:
            attention_mask, causal = biased(position_bias, attention_mask, causal, query, key), False
        if causal and "is_causal" not in names:
            attention_mask = torch.ones(length, key.shape[2], dtype=torch.bool, device=query.device).tril()
        said = _said(names, is_causal=causal, dropout_p=dropout, softcap=softcap)
        groups = query.shape[1] // key.shape[1]
        if groups > 1 and "enable_gqa" in names:
            said["enable_gqa"] = True
        elif groups > 1:
            key, value = key.repeat_interleave(groups, dim=1), value.repeat_interleave(groups, dim=1)
        found = function(query, key, value, attn_mask=attention_mask, scale=scaling, **said)
        return found.transpose(1, 2).contiguous(), None

    return attention


def _said(names: frozenset[str], *, is_causal: bool, dropout_p: float, softcap: float | None) -> dict[str, Any]:
    """Return what a function of these parameters is to be told beyond its tensors, mask and scale."""
    if dropout_p and "dropout_p" not in names:
        raise ValueError("this attention kernel has no dropout_p, and the model asks for dropout in its attention")
    said: dict[str, Any] = {"is_causal": is_causal, "dropout_p": dropout_p, "softcap": softcap}
    return {name: value for name, value in said.items() if name in names and value is not None}


def _flash(kernel: Any) -> Form:
    """Let transformers' own wrapper call the kernel: a copy of it, whose globals hold this kernel and no other."""
    single, varlen, cached = (getattr(kernel, name, None) for name in _FLASH)
    if varlen is None:
        there = ", ".join(name for name in _FLASH if callable(getattr(kernel, name, None)))
        return Form(
            kind="flash", fault=f"{called(kernel)} offers {there}, and no flash_attn_varlen_func, which padding needs"
        )
    for name, function, needed in (
        (_FLASH[1], varlen, ("cu_seqlens_q", "cu_seqlens_k", "causal", "softmax_scale")),
        (_FLASH[0], single, ("causal", "softmax_scale")),
    ):
        parameters = _parameters(function) if function is not None else dict.fromkeys(needed)
        if parameters is None:
            return Form(kind="flash", fault=f"the signature of {name} cannot be read")
        if missing := [word for word in needed if word not in parameters]:
            found = f"{name}{_spelled(function)} has no {' and no '.join(missing)}"
            return Form(kind="flash", fault=f"{found}, and transformers passes {', '.join(needed)}")
    names = set(_parameters(varlen) or ())
    said = {"window_size": "sliding_window", "softcap": "softcap", "s_aux": "s_aux", "learnable_sink": "s_aux"}
    takes = frozenset(said[name] for name in names & set(said))
    wrapper = _wrapper(single or _from_varlen(varlen, names), varlen, cached)
    if isinstance(wrapper, str):
        return Form(kind="flash", fault=wrapper)
    return Form(
        kind="flash",
        function=wrapper,
        masks=("flash_attention_2",),
        takes=takes,
        skips=True,
        cached=cached is not None,
        drops="dropout_p" in names,
    )


def _wrapper(single: Attention, varlen: Attention, cached: Attention | None) -> Attention | str:
    """Return transformers' wrapper around a kernel, or why it cannot be built."""
    utils: Any = sys.modules["transformers.modeling_flash_attention_utils"]
    outer: Any = sys.modules["transformers.integrations.flash_attention"].flash_attention_forward
    inner: Any = getattr(utils, "_flash_attention_forward", None)
    names = ("_lazy_define_process_function", "_pad_input", "_unpad_input")
    if not all(callable(getattr(utils, name, None)) for name in names) or not (
        _calls(outer, "_flash_attention_forward") and _calls(inner, "lazy_import_flash_attention")
    ):
        version = sys.modules["transformers"].__version__
        return f"transformers {version} calls flash attention in another way than the 5.24 known here"
    process = utils._lazy_define_process_function(varlen)
    paged = utils._lazy_define_process_function(cached) if cached is not None else dict
    if cached is not None:  # as transformers does: the paged path cannot be compiled
        cached = torch.compiler.disable(cached)  # type: ignore[no-untyped-call]
    found = (single, varlen, cached, utils._pad_input, utils._unpad_input), (process, paged)

    def lazy_import_flash_attention(*arguments: Any, **keywords: Any) -> Any:
        return found

    inner = _with(inner, lazy_import_flash_attention=lazy_import_flash_attention)
    return _with(outer, _flash_attention_forward=inner, get_target_dtype=_target(outer))


def _target(outer: FunctionType) -> Callable[..., Any]:
    """Return what says to which type float32 goes; transformers' own stumbles over attention without a Linear."""
    own = outer.__globals__.get("get_target_dtype")

    def get_target_dtype(query: torch.Tensor, module: nn.Module) -> torch.dtype | None:
        plain = query.dtype == torch.float32 and not torch.is_autocast_enabled(query.device.type)
        if plain and not any(isinstance(layer, nn.Linear) for layer in module.modules()):
            return next((parameter.dtype for parameter in module.parameters()), None)
        found: torch.dtype | None = own(query, module) if own is not None else None
        return found

    return get_target_dtype


def _calls(function: Any, name: str) -> bool:
    return isinstance(function, FunctionType) and name in function.__code__.co_names


def _with(function: FunctionType, **names: Any) -> FunctionType:
    """Return a copy of a function for which some globals are others."""
    around = {**function.__globals__, **names}
    made = FunctionType(function.__code__, around, function.__name__, function.__defaults__, function.__closure__)
    made.__kwdefaults__ = function.__kwdefaults__
    made.__module__ = function.__module__
    return made


def _from_varlen(varlen: Attention, names: set[str]) -> Attention:
    """Return `flash_attn_func` by way of a kernel that has sequences of any length only."""

    def flash_attn_func(query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, **said: Any) -> torch.Tensor:
        lengths = {"q": query.shape[1], "k": key.shape[1]}
        for name, length in lengths.items():
            ends = torch.arange(query.shape[0] + 1, dtype=torch.int32, device=query.device) * length
            said[f"cu_seqlens_{name}"] = ends
            if f"max_seqlen_{name}" in names:
                said[f"max_seqlen_{name}"] = length
        found = varlen(query.flatten(0, 1), key.flatten(0, 1), value.flatten(0, 1), **said)
        result: torch.Tensor = found[0] if isinstance(found, tuple) else found
        return result.view(*query.shape[:2], *result.shape[1:])

    return flash_attn_func


def by_mode(idle: Attention, training: Attention) -> Attention:
    """Return a function that runs one of two, as the module that calls it is training or not."""

    def attention(module: nn.Module, *arguments: Any, **keywords: Any) -> Any:
        if module.training:
            return training(module, *arguments, **keywords)
        return idle(module, *arguments, **keywords)

    return attention


def materialised(mask: Attention) -> Attention:
    """Return a mask function that never leaves a causal mask out in the hope that the kernel knows."""

    def made(*arguments: Any, allow_is_causal_skip: bool = True, **keywords: Any) -> Any:
        return mask(*arguments, allow_is_causal_skip=False, **keywords)

    return made


def _parameters(function: Any) -> Mapping[str, inspect.Parameter] | None:
    try:
        return inspect.signature(function).parameters
    except (TypeError, ValueError):
        return None


def _spelled(function: Any) -> str:
    parameters = _parameters(function)
    if parameters is None:
        return "(…)"
    bare = [found.replace(annotation=found.empty) for found in parameters.values()]
    return str(inspect.Signature(bare))


def called(code: Any) -> str:
    """Return what code is called, for people."""
    return str(getattr(code, "__qualname__", None) or getattr(code, "__name__", None) or type(code).__name__)
