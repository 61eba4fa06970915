"""The bindings of an apply: one for each site of each kind, with what ran before and what runs now."""

from __future__ import annotations

from collections import Counter

import pytest
import torch

import kerncfg
from kerncfg.applier.apply import Bindings, apply
from kerncfg.documents.target import Mode
from kerncfg.errors import ApplyError
from tests import attending, kinds
from tests.attention_kernels import interface


@pytest.fixture(scope="module")
def bindings() -> Bindings:
    return apply(kinds.plan(), attending.model("qwen3"))


def test_every_kind_has_its_sites_in_the_models_order(bindings: Bindings) -> None:
    assert Counter(site.kind for site in bindings.sites) == {**kinds.SITES, "attention": kinds.LAYERS}
    paths = [name for name, _ in bindings.model.named_modules()]
    assert [site.path for site in bindings.sites] == sorted((site.path for site in bindings.sites), key=paths.index)


def test_a_site_of_attention_runs_what_the_part_had_and_what_it_has(bindings: Bindings) -> None:
    site = next(site for site in bindings.sites if site.kind == "attention")
    assert (site.path, site.name, site.modules) == ("model.layers.0.self_attn", "default", (site.module,))
    query, key = torch.randn(1, 2, 3, 16), torch.randn(1, 1, 3, 16)
    mask = torch.zeros(1, 1, 3, 3).masked_fill(~torch.ones(3, 3, dtype=torch.bool).tril(), float("-inf"))
    own = site.original()(query, key, key, mask, scaling=0.25)
    now = site.forward("inference")(query, key, key, mask, scaling=0.25)
    torch.testing.assert_close(now, own, **attending.TOLERANCE)
    assert torch.equal(now, interface(site.module, query, key, key, mask, scaling=0.25)[0])
    config = site.module.config
    site.forward("training")(query, key, key, mask)
    assert site.module.config is config


def test_a_mode_without_a_kernel_runs_the_original() -> None:
    plan = kerncfg.plan("inherited=none", "attention.x.cpu={inference: eager, training: original}", target="cpu")
    with apply(plan, attending.model("qwen3")) as bindings:
        site = bindings.sites[0]
        assert site.kernels[Mode.TRAINING] is None and site.forwards[Mode.TRAINING] is None
        assert str(site.kernels[Mode.INFERENCE].reference) == "eager"  # type: ignore[union-attr]
        assert site.forward("training").__func__ is site.original().__func__  # type: ignore[attr-defined]


def test_attention_that_the_part_has_already_is_no_site() -> None:
    with apply(kerncfg.plan("inherited=none", "attention.x=sdpa", target="cpu"), attending.model("qwen3")) as bindings:
        assert bindings.sites == ()


def test_a_mode_that_was_not_applied_is_an_error(bindings: Bindings) -> None:
    with pytest.raises(ApplyError, match=r"nothing was applied for inference_compile, only for inference, training"):
        bindings.sites[0].forward("inference_compile")
    with pytest.raises(ApplyError, match="no mode 'fast'"):
        bindings.sites[0].forward("fast")


def test_the_calls_of_a_function_are_counted(bindings: Bindings) -> None:
    site = next(site for site in bindings.sites if site.kind == "function")
    assert site.calls is not None
    before = site.calls()
    rotary = torch.ones(1, 3, 16)
    site.forward("inference")(torch.randn(1, 3, 32), position_embeddings=(rotary, rotary), attention_mask=None)
    assert site.calls() == before + 1
