"""Kernels as attention functions: the three forms, and what keeps code from being one."""

from __future__ import annotations

from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
import torch
from torch.nn import functional

from kerncfg.applier.adapters.attention import parts
from kerncfg.applier.adapters.attention_forms import by_mode, form, materialised
from kerncfg.applier.attention import attend
from tests import attending, attention_kernels
from tests.attending import TOLERANCE, call, padding, tokens


def _plain(query: Any, key: Any, value: Any, attn_mask: Any = None, scale: Any = None) -> Any:
    return functional.scaled_dot_product_attention(query, key, value, attn_mask, scale=scale)


def _declared(module: Any, query: Any, key: Any, value: Any, attention_mask: Any, **kwargs: Any) -> Any:
    causal = attention_mask is None and module.is_causal
    return functional.scaled_dot_product_attention(query, key, value, attention_mask, is_causal=causal), None


_declared.attention_mask_kind = "sdpa"  # type: ignore[attr-defined]


def _asks(module: Any, query: Any, key: Any, value: Any, attention_mask: Any, **kwargs: Any) -> Any:
    return kwargs["softcap"]


def _no_kwargs(module: Any, query: Any, key: Any, value: Any, attention_mask: Any) -> Any: ...


def _other_order(module: Any, key: Any, query: Any, value: Any, attention_mask: Any, **kwargs: Any) -> Any: ...


def _no_mask(query: Any, key: Any, value: Any) -> Any: ...


def _other(hidden_states: Any) -> Any: ...


def _bare(q: Any, k: Any, v: Any, cu_seqlens_q: Any, cu_seqlens_k: Any) -> Any: ...


class _Layer(torch.nn.Module):
    pass


@pytest.mark.parametrize(
    ("code", "kind", "masks", "skips"),
    [
        (attention_kernels.FLASH, "flash", ("flash_attention_2",), True),
        (attention_kernels.flash_attn_varlen_func, "flash", ("flash_attention_2",), True),
        (attention_kernels.interface, "interface", ("eager",), False),
        (_declared, "interface", ("sdpa",), True),
        (attention_kernels.plain, "function", ("sdpa", "eager"), True),
        (_plain, "function", ("sdpa", "eager"), False),
        (functional.scaled_dot_product_attention, "function", ("sdpa", "eager"), True),
        (SimpleNamespace(flash_attn_forward=_declared, supports_flash_attn=True), "interface", ("sdpa",), True),
        ("sdpa", "built-in", ("sdpa", "eager"), True),
        ("eager", "built-in", ("eager",), False),
    ],
    ids=["flash", "varlen alone", "interface", "declared", "plain", "unread", "torch", "paged", "sdpa", "eager"],
)
def test_the_form_decides_the_masks(code: Any, kind: str, masks: tuple[str, ...], skips: bool) -> None:
    found = form(code, "auto")
    assert (found.fault, found.kind, found.masks, found.skips) == (None, kind, masks, skips)


@pytest.mark.parametrize(
    ("code", "mask", "words"),
    [
        (attention_kernels.FLASH, "sdpa", "the row's mask is sdpa, and this kernel works with flash_attention_2"),
        (attention_kernels.plain, "flash_attention_2", "and this kernel works with sdpa or eager"),
        (attention_kernels.plain, "causal", "no mask is called 'causal', expected auto or one of eager, sdpa"),
        ("flash", "auto", "no attention is called 'flash', expected sdpa, eager"),
        (_Layer, "auto", "an attention kernel is no class, expected a function"),
        (ModuleType("empty"), "auto", "an attention kernel is no module, expected a function"),
        (3, "auto", "an attention kernel is no int, expected a function"),
        (_no_kwargs, "auto", "(module, query, key, value, attention_mask) is not called as (module, query, key"),
        (_other_order, "auto", "(module, key, query, value, attention_mask, **kwargs) is not called as"),
        (_no_mask, "auto", "_no_mask(query, key, value) has no attn_mask and no scale, and models need both"),
        (_other, "auto", "_other(hidden_states) is no attention function, expected (module, query"),
        (SimpleNamespace(flash_attn_func=_plain), "auto", "offers flash_attn_func, and no flash_attn_varlen_func"),
        (attention_kernels.flash_attn_func, "auto", "flash_attn_func offers flash_attn_func, and no flash_attn_varlen"),
        (SimpleNamespace(flash_attn_varlen_func=_bare), "auto", "has no causal and no softmax_scale, and transformers"),
        (torch.add, "auto", "the signature of _VariableFunctionsClass.add cannot be read"),
    ],
    ids=lambda value: value if isinstance(value, str) else None,
)
def test_what_is_no_attention_says_so(code: Any, mask: str, words: str) -> None:
    assert words in str(form(code, mask).fault)


def test_keywords_that_a_function_names_or_asks_for_are_not_dropped() -> None:
    assert "softcap" in (form(_asks, "auto").takes or ())
    assert "softcap" in (form(attention_kernels.interface, "auto").takes or ())
    assert "softcap" not in (form(_declared, "auto").takes or ())
    assert form(attention_kernels.FLASH, "auto").takes == frozenset({"sliding_window", "softcap"})


def test_a_kernel_without_windows_does_not_fit_a_model_with_them() -> None:
    def varlen(
        q: Any, k: Any, v: Any, cu_seqlens_q: Any, cu_seqlens_k: Any, causal: Any, softmax_scale: Any
    ) -> Any: ...

    found = form(SimpleNamespace(flash_attn_varlen_func=varlen), "auto")
    assert found.fault is None
    (part,) = parts(attending.model("mistral"))
    assert found.misfit(part) == "MistralAttention passes sliding_window (4) to its attention, and this takes none"
    (part,) = parts(attending.model("qwen3"))
    assert found.misfit(part) is None


def test_a_function_without_is_causal_gets_a_mask_instead() -> None:
    model, ids = attending.model("qwen3"), tokens()
    with torch.no_grad():
        expected = call(model, "qwen3", ids), call(model, "qwen3", ids, padding())
        attend(model, None, _plain)
        found = call(model, "qwen3", ids), call(model, "qwen3", ids, padding())
    torch.testing.assert_close(found[0], expected[0], **TOLERANCE)
    torch.testing.assert_close(found[1][padding().bool()], expected[1][padding().bool()], **TOLERANCE)


def test_dropout_that_a_function_has_not_is_an_error_in_training() -> None:
    model = attending.model("qwen3")
    for layer in model.model.layers:
        layer.self_attn.attention_dropout = 0.5
    attend(model, None, _plain)
    call(model, "qwen3", tokens())
    with pytest.raises(ValueError, match="has no dropout_p"):
        call(model.train(), "qwen3", tokens())


def test_one_of_two_runs_as_the_module_trains_or_not() -> None:
    both = by_mode(lambda *_: "idle", lambda *_: "training")
    module = torch.nn.Linear(1, 1)
    assert (both(module), both(module.eval())) == ("training", "idle")


def test_a_mask_is_made_where_it_could_be_left_out() -> None:
    from transformers.masking_utils import sdpa_mask

    assert sdpa_mask(batch_size=1, q_length=3, kv_length=3) is None
    made = materialised(sdpa_mask)(batch_size=1, q_length=3, kv_length=3)
    assert torch.equal(made[0, 0], torch.ones(3, 3, dtype=torch.bool).tril())


def test_a_paged_cache_shows_in_the_name() -> None:
    def flash_attn_with_kvcache(
        q: Any, k_cache: Any, v_cache: Any, k: Any, v: Any, causal: Any, softmax_scale: Any
    ) -> Any: ...

    model = attending.model("qwen3")
    code = SimpleNamespace(**vars(attention_kernels.FLASH), flash_attn_with_kvcache=flash_attn_with_kvcache)
    attended = attend(model, None, code)
    assert model.config._attn_implementation.endswith("_flash_attention_2")
    attended.revert()
    attend(model, None, attention_kernels.FLASH)
    assert model.config._attn_implementation.endswith("_flash_attention")


def test_two_kernels_of_flash_attention_do_not_share_what_they_can() -> None:
    """The wrapper of one must not ask the other which keywords it takes."""
    first, second = attending.model("gemma2"), attending.model("qwen3")
    expected = call(first, "gemma2", tokens()), call(second, "qwen3", tokens())
    attend(first, None, attention_kernels.FLASH)
    attend(second, None, attention_kernels.VARLEN)
    for _ in range(2):
        torch.testing.assert_close(call(first, "gemma2", tokens()), expected[0], **TOLERANCE)
        torch.testing.assert_close(call(second, "qwen3", tokens()), expected[1], **TOLERANCE)
