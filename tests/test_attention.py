"""Another attention for one model: what it computes, whom it leaves alone, and the way back."""

from __future__ import annotations

import copy
import gc
import io
import pickle
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import Qwen3ForCausalLM
from transformers.masking_utils import ALL_MASK_ATTENTION_FUNCTIONS
from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

from kerncfg.applier import attention
from kerncfg.applier.adapters import attention_config
from kerncfg.applier.attention import Wanted, attend, attend_parts, chosen, fault, parts, revert
from kerncfg.documents.config import KernelRef
from kerncfg.documents.plan import Kernel
from kerncfg.errors import ApplyError, ConflictError
from kerncfg.sources import KernelCode, reload
from tests import attending, attention_kernels
from tests.architectures import build
from tests.attending import LENGTH, TOLERANCE, WINDOW, call, implementations, padding, tokens
from tests.attention_kernels import FLASH, blind, interface, plain
from tests.snapshot import snapshot

FORMS = {"flash": FLASH, "varlen": attention_kernels.VARLEN, "interface": interface, "plain": plain}
each_form = pytest.mark.parametrize("form", FORMS)
each_decoder = pytest.mark.parametrize("name", attending.DECODERS)


@pytest.fixture(autouse=True)
def registries_as_before() -> Iterator[None]:
    before = list(ALL_ATTENTION_FUNCTIONS), list(ALL_MASK_ATTENTION_FUNCTIONS)
    yield
    gc.collect()  # a model that is not reverted holds its names for as long as it lives
    assert (list(ALL_ATTENTION_FUNCTIONS), list(ALL_MASK_ATTENTION_FUNCTIONS)) == before


def planned(name: str) -> KernelCode:
    """A kernel as a plan has it, which a file can name."""
    return reload(Kernel(reference=KernelRef.parse(f"python:tests.attention_kernels:{name}")))


def ran() -> int:
    return sum(attention_kernels.seen.values())


def _gradient(model: Any, ids: torch.Tensor) -> torch.Tensor:
    weight = model.model.layers[0].self_attn.q_proj.weight
    loss: torch.Tensor = model(ids, labels=ids).loss
    found: torch.Tensor = torch.autograd.grad(loss, weight)[0]
    return found


# What it computes


@each_form
@pytest.mark.parametrize(
    "name", ["qwen3", "llama", "gpt2", "mistral", "gemma2", "gemma3", "bert", "t5", "bart", "clip"]
)
def test_a_kernel_gives_what_eager_gives_with_and_without_padding(name: str, form: str) -> None:
    model, ids = attending.model(name), tokens()
    wanted = [Wanted.of(part, FORMS[form]) for part in parts(model)]
    if (name, form) in {("gemma2", "plain"), ("t5", "flash"), ("t5", "varlen")}:
        assert all("passes" in str(fault(one)) for one in wanted)
        return
    with torch.no_grad():
        eager = attend(model, None, "eager")
        expected = call(model, name, ids), call(model, name, ids, padding())
        eager.revert()
        before = ran()
        attended = attend_parts(model, wanted)
        found = call(model, name, ids), call(model, name, ids, padding())
    assert ran() > before
    kept = padding().bool() if name not in ("t5", "bart") else torch.ones(2, 6, dtype=torch.bool)
    torch.testing.assert_close(found[0], expected[0], **TOLERANCE)
    torch.testing.assert_close(found[1][kept], expected[1][kept], **TOLERANCE)
    attended.revert()


@each_form
@each_decoder
def test_a_changed_future_token_leaves_earlier_outputs_alone(name: str, form: str) -> None:
    model, ids = attending.model(name), tokens()
    attend(model, None, FORMS[form])
    changed = ids.clone()
    changed[:, -1] = 5
    with torch.no_grad():
        first, second = call(model, name, ids), call(model, name, changed)
    torch.testing.assert_close(first[:, :-1], second[:, :-1], **TOLERANCE)
    assert not torch.allclose(first[:, -1], second[:, -1], **TOLERANCE)


@each_form
@pytest.mark.parametrize("name", ["qwen3", "bert"])
def test_padding_does_not_leak(name: str, form: str) -> None:
    model, ids, mask = attending.model(name), tokens(), padding()
    attend(model, None, FORMS[form])
    changed = torch.where(mask.bool(), ids, torch.full_like(ids, 7))
    assert not torch.equal(ids, changed)
    with torch.no_grad():
        first, second = call(model, name, ids, mask), call(model, name, changed, mask)
        blind_to_it = call(model, name, ids), call(model, name, changed)
    torch.testing.assert_close(first[mask.bool()], second[mask.bool()], **TOLERANCE)
    assert not torch.allclose(blind_to_it[0][:1, 3:], blind_to_it[1][:1, 3:], **TOLERANCE)


@each_form
@pytest.mark.parametrize("name", attending.WINDOWED)
def test_a_token_outside_of_every_window_leaves_the_last_output_alone(name: str, form: str) -> None:
    model, ids = attending.model(name), tokens()
    attend(model, None, FORMS[form])
    reach = 2 * (WINDOW - 1)  # two layers, each of which sees itself and so many before
    outside, inside = ids.clone(), ids.clone()
    outside[:, LENGTH - 2 - reach] = 5
    inside[:, LENGTH - 1 - reach] = 5
    with torch.no_grad():
        first, second, third = (call(model, name, given)[:, -1] for given in (ids, outside, inside))
    torch.testing.assert_close(first, second, **TOLERANCE)
    assert not torch.allclose(first, third, **TOLERANCE)


@each_form
def test_generation_with_a_cache_gives_the_same_tokens(form: str) -> None:
    model, ids, mask = attending.model("qwen3"), tokens(), padding()
    said: dict[str, Any] = {"attention_mask": mask, "max_new_tokens": 6, "do_sample": False, "pad_token_id": 0}
    expected = model.generate(ids, **said)
    attend(model, None, FORMS[form])
    before = ran()
    assert torch.equal(model.generate(ids, **said), expected)
    assert ran() - before == 2 * 6


def test_generation_with_a_static_cache_gives_the_same_tokens() -> None:
    model, ids = attending.model("qwen3"), tokens()
    said: dict[str, Any] = {"max_new_tokens": 4, "do_sample": False, "pad_token_id": 0, "disable_compile": True}
    expected = model.generate(ids, cache_implementation="static", **said)
    for code in (interface, plain):
        attended = attend(model, None, code)
        assert torch.equal(model.generate(ids, cache_implementation="static", **said), expected)
        attended.revert()


def test_several_sequences_in_one_row_do_not_see_each_other() -> None:
    model, ids = attending.model("qwen3"), tokens()[:1]
    positions = torch.tensor([[0, 1, 2, 3, 0, 1, 2, 3, 4, 5]])
    with torch.no_grad():
        alone = model(ids[:, 4:], use_cache=False).logits
        for code in FORMS.values():
            attended = attend(model, None, code)
            packed = model(ids, position_ids=positions, use_cache=False).logits
            torch.testing.assert_close(packed[:, 4:], alone, **TOLERANCE)
            attended.revert()


def test_gradients_flow_and_are_those_of_eager() -> None:
    model, ids = attending.model("qwen3").train(), tokens()
    expected = _gradient(model, ids)
    for code in FORMS.values():
        attended = attend(model, None, code)
        found = _gradient(model, ids)
        torch.testing.assert_close(found, expected, rtol=1e-3, atol=1e-5)
        attended.revert()


@pytest.mark.parametrize("code", [interface, plain, FLASH], ids=["interface", "plain", "flash"])
def test_a_model_compiles_after_its_attention_was_chosen(code: Any) -> None:
    model, ids = attending.model("qwen3"), tokens()
    attended = attend(model, None, code)
    with torch.no_grad():
        expected = model(ids, use_cache=False).logits
        torch.compiler.reset()
        compiled: Any = torch.compile(model, backend="aot_eager")
        torch.testing.assert_close(compiled(ids, use_cache=False).logits, expected, **TOLERANCE)
        attended.revert()
        torch.testing.assert_close(compiled(ids, use_cache=False).logits, expected, **TOLERANCE)


def test_gradient_checkpointing_and_hooks_go_on() -> None:
    model, ids, called = attending.model("qwen3").train(), tokens(), []
    model.model.layers[0].self_attn.register_forward_hook(lambda *_: called.append(1))
    expected = model(ids, labels=ids).loss
    model.activation_checkpointing_enable()
    attend(model, None, interface)
    loss = model(ids, labels=ids).loss
    loss.backward()
    torch.testing.assert_close(loss, expected, **TOLERANCE)
    assert len(called) == 3  # before, and twice with checkpoints


# B38: attention registered without a mask


@each_decoder
@pytest.mark.parametrize("mask", ["auto", "sdpa", "eager"])
def test_a_function_that_knows_nothing_of_causality_does_not_look_ahead(name: str, mask: str) -> None:
    """Where transformers leaves the mask out and trusts the kernel, ours is made: `blind` attends to all without."""
    code = blind if mask == "sdpa" else interface
    model, ids = attending.model(name), tokens()
    attend(model, None, code, mask)
    changed = ids.clone()
    changed[:, -1] = 5
    with torch.no_grad():
        first, second = call(model, name, ids), call(model, name, changed)
        padded, other = call(model, name, ids, padding()), call(model, name, changed, padding())
    torch.testing.assert_close(first[:, :-1], second[:, :-1], **TOLERANCE)
    torch.testing.assert_close(padded[:, 3:-1], other[:, 3:-1], **TOLERANCE)


def test_the_blind_kernel_does_look_ahead_without_a_mask() -> None:
    """Or the test above could not fail."""
    model, ids = attending.model("qwen3"), tokens()
    ALL_ATTENTION_FUNCTIONS.register("without_a_mask", blind)
    try:
        model.config._attn_implementation = "without_a_mask"
        changed = ids.clone()
        changed[:, -1] = 5
        with torch.no_grad():
            first, second = call(model, "qwen3", ids), call(model, "qwen3", changed)
    finally:
        del type(ALL_ATTENTION_FUNCTIONS)._global_mapping["without_a_mask"]
    assert not torch.allclose(first[:, :-1], second[:, :-1], **TOLERANCE)


@pytest.mark.parametrize("form", FORMS)
def test_attention_and_masks_stand_under_one_name(form: str) -> None:
    model = attending.model("qwen3")
    attended = attend(model, None, FORMS[form])
    name = model.config._attn_implementation
    assert name in ALL_ATTENTION_FUNCTIONS
    assert name in ALL_MASK_ATTENTION_FUNCTIONS
    assert ("flash" in name) == (form in ("flash", "varlen"))
    attended.revert()
    assert name not in ALL_ATTENTION_FUNCTIONS
    assert name not in ALL_MASK_ATTENTION_FUNCTIONS


# Parts


def test_a_vision_tower_and_a_language_model_have_attention_of_their_own() -> None:
    model = attending.model("llava")
    text, vision = (chosen(parts(model), path)[0] for path in ("model.language_model", "**.vision_tower"))
    attended = attend_parts(model, [Wanted.of(text, FLASH), Wanted.of(vision, plain)])
    found = implementations(model)
    assert found["model.language_model"].endswith("_flash_attention")
    assert found["model.vision_tower"] != found["model.language_model"]
    assert model.config.text_config is model.model.language_model.config
    assert model.config.vision_config is model.model.vision_tower.config
    assert found[""] == "sdpa"
    with torch.no_grad():
        before = dict(attention_kernels.seen)
        model.model.vision_tower(attending.images())
        call(model, "llava", tokens())
    assert attention_kernels.seen["plain"] == before["plain"] + 2
    assert attention_kernels.seen["flash_attn_func"] == before["flash_attn_func"] + 2
    attended.revert()
    assert set(implementations(model).values()) == {"sdpa"}


@pytest.mark.parametrize("path", ["model.vision_tower", "model.vision_tower.**", "**.vision_tower.**.self_attn"])
def test_a_path_names_a_part_by_its_module_or_by_all_in_it(path: str) -> None:
    model = attending.model("llava")
    attend(model, path, "eager")
    found = implementations(model)
    assert {path for path, name in found.items() if name == "eager"} == {
        path for path in found if path.startswith("model.vision_tower")
    }


def test_all_parts_are_chosen_where_no_path_is_said() -> None:
    model = attending.model("llava")
    attended = attend(model, None, interface)
    assert len(set(implementations(model).values())) == 1
    assert [row.path for row in attended.rows] == ["model.vision_tower", "model.language_model"]


def test_half_of_a_part_cannot_be_chosen() -> None:
    with pytest.raises(ApplyError, match=r"model.layers.0.\*\* names .*, and not model.layers.1.self_attn") as error:
        attend(attending.model("qwen3"), "model.layers.0.**", interface)
    assert error.value.hint == "attention is chosen for a whole part: write 'model'"


def test_a_path_that_names_no_part_is_an_error_with_those_there_are() -> None:
    with pytest.raises(ApplyError, match=r"no part of the model is at model\.visual") as error:
        attend(attending.model("llava"), "model.visual.**", interface)
    assert error.value.hint == "the parts that have attention: model.language_model, model.vision_tower"


def test_a_model_without_attention_is_an_error() -> None:
    with pytest.raises(ApplyError, match="no part whose attention can be chosen"):
        attend(torch.nn.Linear(2, 2), None, interface)


def test_a_part_that_shares_its_configuration_may_have_attention_with_the_same_masks() -> None:
    model, ids = attending.model("bart"), tokens()
    expected = call(model, "bart", ids, padding())
    attended = attend(model, "model.decoder.**", plain)
    found = implementations(model)
    assert {name for path, name in found.items() if not path.startswith("model.decoder")} == {"sdpa"}
    assert "sdpa" not in {name for path, name in found.items() if path.startswith("model.decoder")}
    before = attention_kernels.seen["plain"]
    torch.testing.assert_close(call(model, "bart", ids, padding()), expected, **TOLERANCE)
    assert attention_kernels.seen["plain"] == before + 2
    attended.revert()
    assert model.model.decoder.config is model.config


def test_a_part_that_shares_its_configuration_may_not_have_attention_with_other_masks() -> None:
    model = attending.model("bart")
    before = snapshot(model)
    with pytest.raises(
        ApplyError, match=r"cannot have different masks: model\.encoder with sdpa, model\.decoder with flash"
    ):
        attend(model, "model.decoder.**", FLASH)
    assert snapshot(model) == before


# B69: a choice that does not reach a part


def test_a_part_that_copied_its_setting_is_an_error_and_nothing_is_done() -> None:
    model = attending.two_parts()
    before = snapshot(model)
    with pytest.raises(ApplyError, match=r"vision: plain: vision \(Copying\) chose its attention when it was built"):
        attend(model, None, plain)
    assert snapshot(model) == before
    attend(model, "text.**", plain)
    assert model.text.config._attn_implementation != "sdpa"
    assert model.vision.implementation == "sdpa"


@pytest.mark.parametrize(
    ("name", "words"),
    [("gpt_neo", r"transformer.h.0.attn \(GPTNeoAttention\) chose its attention"), ("xlnet", "knows no choice")],
)
def test_a_model_that_takes_no_choice_says_so(name: str, words: str) -> None:
    with pytest.raises(ApplyError, match=words):
        attend(attending.model(name), None, interface)


def test_what_is_read_back_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    """A configuration whose class answers something else is found out, and all is undone."""
    model = attending.model("llava")
    cls = type(model.config.vision_config)
    monkeypatch.setattr(cls, "_attn_implementation", property(lambda _: "sdpa", lambda *_: None))
    before = snapshot(model)
    with pytest.raises(ApplyError, match="did not take the attention plain: it finds 'sdpa' there") as error:
        attend(model, None, plain)
    assert error.value.hint == "leave model.vision_tower out of the row attention"
    assert snapshot(model) == before


def test_every_module_that_looks_is_read_back() -> None:
    model = attending.model("llava")
    attended = attend(model, None, plain)
    found = attended.read_back()
    assert set(found.values()) == {model.config._attn_implementation}
    assert {"model.vision_tower.config", "model.language_model.layers.1.self_attn.config"} <= set(found)


# The way back


@pytest.mark.parametrize(
    "code", [FLASH, interface, plain, "eager", (plain, "sdpa")], ids=["flash", "interface", "plain", "eager", "two"]
)
@pytest.mark.parametrize("name", ["qwen3", "gemma3", "llava", "bart", "bert"])
def test_revert_gives_everything_back(name: str, code: Any) -> None:
    model = attending.model(name)
    before, generation = snapshot(model), id(getattr(model, "generation_config", None))
    attended = attend(model, None, code)
    assert snapshot(model) != before
    attended.revert()
    assert snapshot(model) == before
    assert id(getattr(model, "generation_config", None)) == generation
    attended.revert()
    assert snapshot(model) == before
    assert {row.reason for row in attended.rows} == {"reverted"}


def test_state_and_parameters_are_the_same_while_it_is_on() -> None:
    model = attending.model("qwen3")
    before = [(name, id(value)) for name, value in model.named_parameters()], list(model.state_dict())
    attend(model, None, interface)
    assert ([(name, id(value)) for name, value in model.named_parameters()], list(model.state_dict())) == before


def test_asking_what_a_part_can_use_writes_to_no_configuration() -> None:
    """transformers' setter writes to the configurations inside, too."""
    model: Any = build("sam")  # the configuration of its first part holds those of others
    held = implementations(model)
    inner = [model.config.mask_decoder_config, model.config.vision_config]
    before = [dict(vars(config)) for config in inner]
    for part in parts(model):
        for name in ("eager", "sdpa", "flex_attention"):
            fault(Wanted.of(part, name))
    assert implementations(model) == held
    assert [dict(vars(config)) for config in inner] == before


def test_choices_are_reverted_in_reverse_order() -> None:
    model = attending.model("qwen3")
    before = snapshot(model)
    first, second = attend(model, None, interface), attend(model, None, plain)
    with pytest.raises(ConflictError, match="cannot be reverted while a later choice is on it"):
        first.revert()
    second.revert()
    assert model.config._attn_implementation == first.read_back()["model.config"]
    first.revert()
    assert snapshot(model) == before


def test_all_choices_are_reverted_at_once() -> None:
    model = attending.model("llava")
    before = snapshot(model)
    attend(model, None, interface)
    attend(model, "model.vision_tower", plain)
    revert(model)
    assert snapshot(model) == before
    revert(model)
    assert snapshot(model) == before


@pytest.mark.parametrize("count", range(7))
def test_a_failure_at_any_edit_leaves_all_as_it_was(monkeypatch: pytest.MonkeyPatch, count: int) -> None:
    model = attending.model("qwen3")
    before, put, left = snapshot(model), attention_config.Held.put, [count]

    def failing(self: Any, module: torch.nn.Module) -> None:
        put(self, module)
        if left[0] == 0:
            raise KeyboardInterrupt
        left[0] -= 1

    monkeypatch.setattr(attention_config.Held, "put", failing)
    with pytest.raises(KeyboardInterrupt):
        attend(model, None, interface)
    assert snapshot(model) == before


def test_a_failure_while_reading_back_leaves_all_as_it_was(monkeypatch: pytest.MonkeyPatch) -> None:
    model = attending.model("qwen3")
    before = snapshot(model)
    monkeypatch.setattr(attention, "_check", lambda *_: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        attend(model, None, interface)
    assert snapshot(model) == before


def test_what_was_set_on_the_configuration_meanwhile_stays() -> None:
    model = attending.model("qwen3")
    config = model.config
    attended = attend(model, None, interface)
    model.config.use_cache = False
    attended.revert()
    assert model.config is config
    assert config.use_cache is False
    assert config._attn_implementation == "sdpa"


def test_a_configuration_that_somebody_set_meanwhile_stays() -> None:
    model = attending.model("qwen3")
    attended = attend(model, None, interface)
    other = copy.deepcopy(model.config)
    other._attn_implementation = "eager"
    model.model.layers[0].self_attn.config = other
    row = attended.rows[0]
    assert (row.status, row.reason) == (
        "kept",
        "changed since: model.layers.0.self_attn.config finds the attention 'eager' now",
    )
    attended.revert()
    assert model.model.layers[0].self_attn.config is other


# Whom it leaves alone


def test_another_model_of_the_same_configuration_stays_as_it_was() -> None:
    model = attending.model("qwen3")
    other: Any = Qwen3ForCausalLM(model.config)
    other.eval()
    assert other.config is model.config
    before = snapshot(other)
    attended = attend(model, None, interface)
    ours = snapshot(other)
    assert {key: ours[key] for key in ours if key != "registries"} == {
        key: before[key] for key in before if key != "registries"
    }
    runs = attention_kernels.seen["interface"]
    call(other, "qwen3", tokens())
    assert attention_kernels.seen["interface"] == runs
    attended.revert()
    assert snapshot(other) == before


def test_two_models_run_two_kernels_and_revert_in_any_order() -> None:
    first, second = attending.model("qwen3"), attending.model("llama")
    before = snapshot(first), snapshot(second)
    one, two = attend(first, None, FLASH), attend(second, None, attention_kernels.VARLEN)
    seen = attention_kernels.seen
    seen.update(dict.fromkeys(seen, 0))
    with torch.no_grad():
        for _ in range(2):
            call(first, "qwen3", tokens())
            call(second, "llama", tokens())
    assert (seen["flash_attn_func"], seen["flash_attn_varlen_func"]) == (4, 4)
    one.revert()
    call(second, "llama", tokens())
    assert seen["flash_attn_varlen_func"] == 6
    two.revert()
    assert (snapshot(first), snapshot(second)) == before


def test_transformers_own_idea_of_flash_attention_is_not_touched() -> None:
    import transformers.modeling_flash_attention_utils as utils

    names = ("_loaded_implementation", "_flash_fn", "_flash_varlen_fn", "_process_flash_kwargs_fn")
    before = [getattr(utils, name) for name in names]
    model = attending.model("qwen3")
    attend(model, None, FLASH)
    call(model, "qwen3", tokens(), padding())
    assert [getattr(utils, name) for name in names] == before


def test_a_kernel_of_two_models_stays_until_both_are_reverted() -> None:
    first, second = attending.model("qwen3"), attending.model("qwen3")
    one, two = attend(first, None, interface), attend(second, None, interface)
    name = first.config._attn_implementation
    assert second.config._attn_implementation == name
    one.revert()
    assert name in ALL_ATTENTION_FUNCTIONS
    call(second, "qwen3", tokens())
    two.revert()
    assert name not in ALL_ATTENTION_FUNCTIONS


def test_a_model_that_is_gone_holds_no_name() -> None:
    model = attending.model("qwen3")
    attended = attend(model, None, interface)
    name = model.config._attn_implementation
    del model, attended
    gc.collect()
    assert name not in ALL_ATTENTION_FUNCTIONS


def test_threads_choose_and_revert_at_once() -> None:
    models = [attending.model("qwen3") for _ in range(6)]
    before, errors, start = [snapshot(model) for model in models], [], threading.Barrier(6)

    def run(model: Any, code: Any) -> None:
        try:
            start.wait()
            for _ in range(10):
                attended = attend(model, None, code)
                call(model, "qwen3", tokens(), padding())
                attended.revert()
        except BaseException as error:
            errors.append(error)

    codes = [FLASH, interface, plain] * 2
    threads = [threading.Thread(target=run, args=pair) for pair in zip(models, codes, strict=True)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert errors == []
    assert [snapshot(model) for model in models] == before


# Modes


def test_two_kernels_follow_train_and_eval() -> None:
    model, seen = attending.model("qwen3"), attention_kernels.seen
    attended = attend(model, None, (plain, interface))
    for mode, ran_now, not_now in ((True, "interface", "plain"), (False, "plain", "interface")):
        model.train(mode)
        seen.update(dict.fromkeys(seen, 0))
        call(model, "qwen3", tokens(), padding())
        assert (seen[ran_now], seen[not_now]) == (2, 0)
        row = attended.rows[0]
        assert (row.status, row.kernel, row.mode) == ("swapped", ran_now, "training" if mode else "inference")
        assert row.modes == {"inference": "plain", "training": "interface"}


@pytest.mark.parametrize(
    "code",
    [(plain, None), (interface, "eager"), ("sdpa", "eager")],
    ids=["plain and own", "interface and eager", "sdpa and eager"],
)
def test_a_kernel_for_one_mode_leaves_the_other_as_it_was(code: Any) -> None:
    model = attending.model("qwen3")
    expected = call(model, "qwen3", tokens(), padding())
    attended = attend(model, None, code)
    kept = padding().bool()
    for mode in (False, True):
        model.train(mode)
        before = ran()
        found = call(model, "qwen3", tokens(), padding())
        torch.testing.assert_close(found[kept], expected[kept], **TOLERANCE)
        assert (ran() > before) == (not mode and code[0] != "sdpa")
    row = attended.rows[0]
    assert row.status == ("kept" if code[1] is None else "swapped")


def test_kernels_that_need_different_masks_cannot_share_a_model_by_mode() -> None:
    model = attending.model("qwen3")
    reason = fault(Wanted.of(parts(model)[0], (FLASH, plain)))
    assert reason == (
        "one mask is made for both modes, and SimpleNamespace works with flash_attention_2, plain with sdpa or eager"
    )


# Copies and files


@pytest.mark.parametrize("code", [FLASH, interface, (plain, "sdpa")], ids=["flash", "interface", "by mode"])
def test_a_deep_copy_runs_the_kernel_and_reverts_alone(code: Any) -> None:
    model = attending.model("qwen3")
    before = snapshot(model)
    attended = attend(model, None, code)
    made = copy.deepcopy(model)
    attended.revert()
    assert {key: value for key, value in snapshot(model).items() if key != "registries"} == {
        key: value for key, value in before.items() if key != "registries"
    }
    count = ran()
    call(made, "qwen3", tokens(), padding())
    assert ran() > count
    revert(made)
    assert snapshot(model) == before
    assert set(implementations(made).values()) == {"sdpa"}
    assert made.config is made.model.config is made.model.layers[0].self_attn.config
    assert made.config is not model.config


def test_a_deep_copy_of_a_part_runs_the_kernel_too() -> None:
    model = attending.model("qwen3")
    attended = attend(model, None, interface)
    made = copy.deepcopy(model.model)
    attended.revert()
    before = attention_kernels.seen["interface"]
    made(tokens())
    assert attention_kernels.seen["interface"] == before + 2
    revert(made)


@pytest.mark.parametrize("way", ["pickle", "torch.save"])
@pytest.mark.parametrize("name", ["FLASH", "interface", "plain"])
def test_a_saved_model_runs_its_kernel_again(name: str, way: str) -> None:
    model, ids = attending.model("qwen3"), tokens()
    attended = attend(model, None, planned(name))
    expected = call(model, "qwen3", ids, padding())
    file = io.BytesIO()
    if way == "pickle":
        pickle.dump(model, file)
    else:
        torch.save(model, file)
    attended.revert()
    assert not any(key.startswith("kerncfg") for key in ALL_ATTENTION_FUNCTIONS)
    file.seek(0)
    made = pickle.load(file) if way == "pickle" else torch.load(file, weights_only=False)
    before = ran()
    assert torch.equal(call(made, "qwen3", ids, padding()), expected)
    assert ran() > before
    revert(made)
    assert set(implementations(made).values()) == {"sdpa"}


def test_another_process_runs_the_kernel_of_a_saved_model(tmp_path: Path) -> None:
    model, ids = attending.model("qwen3"), tokens()
    attend(model, None, (planned("interface"), planned("plain")))
    torch.save(model, tmp_path / "model.pt")
    script = (
        "import sys, torch\nfrom tests.attention_kernels import seen\n"
        "model = torch.load(sys.argv[1], weights_only=False)\n"
        f"print(float(model(torch.tensor({ids.tolist()})).logits.detach().abs().sum()), seen['interface'])"
    )
    command = [sys.executable, "-c", script, str(tmp_path / "model.pt")]
    said = subprocess.run(command, capture_output=True, text=True, check=True, cwd=Path(__file__).parent.parent)
    total, count = said.stdout.split()
    assert count == "2"
    assert float(total) == pytest.approx(float(call(model, "qwen3", ids).detach().abs().sum()), rel=1e-5)


def test_a_model_whose_kernel_no_file_could_name_cannot_be_saved() -> None:
    model = attending.model("qwen3")
    attended = attend(model, None, interface)
    with pytest.raises(ApplyError, match="whose attention is interface cannot be saved") as error:
        pickle.dumps(model)
    assert "kerncfg.revert(model)" in str(error.value.hint)
    attended.revert()
    pickle.dumps(model)


def test_a_saved_checkpoint_knows_nothing_of_the_kernel(tmp_path: Path) -> None:
    model, ids = attending.model("llava"), tokens()
    expected = call(model, "llava", ids)
    attend(model, None, FLASH)
    assert "kerncfg" not in str(model.config.to_dict())
    model.save_pretrained(tmp_path)
    assert "kerncfg" not in (tmp_path / "config.json").read_text("utf-8")
    made = type(model).from_pretrained(tmp_path).eval()
    assert set(implementations(made).values()) == {"sdpa"}
    torch.testing.assert_close(call(made, "llava", ids), expected, **TOLERANCE)


# Reports and faults


def test_a_row_says_what_a_part_runs() -> None:
    attended = attend(attending.model("llava"), "model.vision_tower", planned("plain"), name="vision")
    (row,) = attended.rows
    assert (row.path, row.name, row.kind, row.status) == ("model.vision_tower", "vision", "attention", "swapped")
    assert row.kernel == "python:tests.attention_kernels:plain"
    assert row.modes == {"inference": row.kernel, "training": row.kernel}


def test_what_a_part_has_already_is_kept_and_nothing_is_done() -> None:
    model = attending.model("qwen3")
    before = snapshot(model)
    attended = attend(model, None, "sdpa")
    assert snapshot(model) == before
    assert [(row.status, row.reason) for row in attended.rows] == [("kept", "the part uses sdpa already")]


@pytest.mark.parametrize(
    ("name", "code", "words"),
    [
        ("qwen3", "flash_attention_2", "FlashAttention2|flash_attn"),
        ("t5", "flash_attention_2", "does not support Flash Attention"),
        ("gemma2", "sdpa", "Gemma2|sdpa|scaled_dot_product_attention"),
        ("gemma2", plain, r"Gemma2Attention passes softcap \(50.0\) to its attention, and this takes none"),
        ("t5", FLASH, "T5Attention passes position_bias to its attention, and this takes none"),
        ("qwen3", "flash_attention_9", "no attention is called 'flash_attention_9', expected sdpa, eager"),
    ],
)
def test_what_a_class_cannot_use_is_a_reason(name: str, code: Any, words: str) -> None:
    model = attending.model(name)
    before = snapshot(model)
    with pytest.raises(ApplyError, match=words):
        attend(model, None, code)
    assert snapshot(model) == before


def test_weights_of_attention_are_asked_of_eager_only() -> None:
    model = attending.model("qwen3")
    model.set_attn_implementation("eager")
    model.config.output_attentions = True
    assert fault(Wanted.of(parts(model)[0], plain)) == (
        "config.output_attentions asks for the weights of attention, which only eager gives"
    )
