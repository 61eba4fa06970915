from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
import torch
from torch import nn

from kerncfg.errors import ConfigError, KerncfgWarning, SourceError
from kerncfg.machine import detect
from kerncfg.models import build
from tests.hub import kernels

if TYPE_CHECKING:
    from kerncfg.documents.target import Target
    from tests.hub.fixtures import TestHub

CONFIG = {
    "vocab_size": 97,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "num_key_value_heads": 1,
    "head_dim": 16,
    "max_position_embeddings": 64,
}
CPU = detect({"device": "cpu"})


def node(**said: Any) -> dict[str, Any]:
    usual = {"architecture": "Qwen3ForCausalLM", "config": CONFIG, "dtype": "float32", "seed": 0, "batch": 2}
    return {**usual, "sequence": 8, **said}


def factory(path: Path, body: str, name: str = "mine") -> dict[str, Any]:
    """Write a module with a function `make` and give the node that names it."""
    text = f"import torch\nfrom torch import nn\n\n\nclass Double(nn.Linear):\n    pass\n\n\ndef make():\n    {body}\n"
    (path / f"{name}.py").write_text(text, encoding="utf-8")
    return {"factory": f"python:{name}:make", "seed": 0}


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "modules", sys.modules.copy())
    return tmp_path


def refusal(said: dict[str, Any], target: Target = CPU) -> ConfigError:
    with pytest.raises(ConfigError) as caught:
        build(said, target)
    return caught.value


def test_an_architecture_has_the_sizes_and_the_dtype_that_were_said() -> None:
    loaded = build(node(dtype="bfloat16"), CPU)
    assert type(loaded.model).__name__ == "Qwen3ForCausalLM"
    assert {parameter.dtype for parameter in loaded.model.parameters()} == {torch.bfloat16}
    assert loaded.model.get_submodule("model.layers.1.mlp.gate_proj").weight.shape == (48, 32)


def test_the_model_is_in_eval_mode_and_runs_on_its_inputs() -> None:
    loaded = build(node(), CPU)
    assert not any(module.training for module in loaded.model.modules())
    assert loaded.model(**loaded.inputs).logits.shape == (2, 8, 97)


def test_token_ids_are_drawn_from_the_vocabulary_and_nothing_is_padded() -> None:
    inputs = build(node(batch=4, sequence=16), CPU).inputs
    assert inputs["input_ids"].shape == (4, 16)
    assert int(inputs["input_ids"].min()) >= 0 and 64 < int(inputs["input_ids"].max()) < 97
    assert inputs["attention_mask"].eq(1).all()


def test_one_seed_gives_one_model() -> None:
    one, same, other = (build(node(seed=seed), CPU) for seed in (3, 3, 4))
    for name, value in one.model.state_dict().items():
        assert torch.equal(value, same.model.state_dict()[name])
    assert torch.equal(one.inputs["input_ids"], same.inputs["input_ids"])
    assert not torch.equal(one.inputs["input_ids"], other.inputs["input_ids"])


def test_the_callers_random_state_is_left_alone() -> None:
    torch.manual_seed(5)
    before = torch.get_rng_state()
    build(node(), CPU)
    assert torch.equal(torch.get_rng_state(), before)


def test_norm_weights_are_not_the_ones_they_start_at() -> None:
    weight = build(node(), CPU).model.get_submodule("model.norm").weight
    assert isinstance(weight, torch.Tensor)
    assert 0.02 < float(weight.detach().std()) < 0.3


def test_a_misspelt_architecture_is_told_the_nearest() -> None:
    error = refusal(node(architecture="Qwen3ForCausalLMM"))
    assert error.issues[0].path == "model.architecture"
    assert "Qwen3ForCausalLM?" in str(error)


def test_a_class_that_is_no_model_is_refused() -> None:
    assert "no model class 'Trainer'" in str(refusal(node(architecture="Trainer")))


@pytest.mark.parametrize("said", ["acme/attention", {"": "sdpa", "text_config": "acme/attention@main:f"}])
def test_a_config_cannot_choose_attention_of_the_hub(said: Any) -> None:
    (issue,) = refusal(node(config={**CONFIG, "attn_implementation": said})).issues
    assert issue.path == "model.config.attn_implementation"
    assert "is code of the Hub, which a model cannot choose" in issue.message
    assert (issue.hint or "").startswith("write attention.default=acme/attention")


def test_all_unknown_config_keys_are_named_with_the_nearest() -> None:
    error = refusal(node(config={**CONFIG, "hidden_sizes": 3, "num_layerz": 2}))
    assert [issue.path for issue in error.issues] == ["model.config.hidden_sizes", "model.config.num_layerz"]
    assert error.issues[0].hint == "did you mean hidden_size?"


def test_a_renamed_config_key_is_known() -> None:
    sizes = {"vocab_size": 97, "hidden_size": 32, "num_hidden_layers": 1, "num_attention_heads": 2}
    loaded = build(node(architecture="GPT2LMHeadModel", config=sizes), CPU)
    assert loaded.model(**loaded.inputs).logits.shape == (2, 8, 97)


def test_an_encoder_decoder_gets_inputs_for_both() -> None:
    sizes = {"vocab_size": 97, "d_model": 32, "d_kv": 16, "d_ff": 48, "num_layers": 1, "num_heads": 2}
    loaded = build(node(architecture="T5ForConditionalGeneration", config=sizes), CPU)
    assert loaded.model(**loaded.inputs).logits.shape == (2, 8, 97)


def test_a_dtype_in_the_config_is_sent_to_its_place() -> None:
    assert refusal(node(config={**CONFIG, "dtype": "float16"})).issues[0].hint == "write model.dtype"


def test_a_config_value_that_transformers_refuses_is_one_sentence() -> None:
    error = refusal(node(config={**CONFIG, "hidden_size": "wide"}))
    assert error.issues[0].path == "model.config"
    assert "hidden_size" in error.issues[0].message
    assert "\n" not in error.issues[0].message


def test_a_sequence_longer_than_the_model_is_refused() -> None:
    assert "65 is more than the model's max_position_embeddings, 64" in str(refusal(node(sequence=65)))


def test_a_dtype_that_is_none_is_refused() -> None:
    assert refusal(node(dtype="int8")).issues[0].path == "model.dtype"


@pytest.mark.parametrize("said", [{}, {"factory": "python:a:b", "pretrained": "./c"}])
def test_exactly_one_form_is_said(said: dict[str, Any]) -> None:
    assert "expected one of architecture, factory, pretrained" in str(refusal(said))


def test_a_device_that_is_not_here_is_refused() -> None:
    with pytest.raises(SourceError, match="target: this machine cannot hold a model on tpu") as caught:
        build(node(), detect({"device": "tpu"}))
    assert caught.value.hint == "write target=auto"


def test_without_transformers_the_extra_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "transformers", None)
    with pytest.raises(SourceError) as caught:
        build(node(), CPU)
    assert caught.value.hint == "pip install 'kerncfg[transformers]'"


def test_a_factory_may_give_keyword_inputs(here: Path) -> None:
    said = factory(here, 'return nn.Linear(3, 2), {"input": torch.ones(1, 3)}')
    loaded = build(said, CPU)
    assert loaded.model(**loaded.inputs).shape == (1, 2)


@pytest.mark.parametrize("inputs", ["(torch.ones(1, 3),)", "torch.ones(1, 3)"])
def test_a_factorys_positional_inputs_get_their_names(here: Path, inputs: str) -> None:
    assert build(factory(here, f"return nn.Linear(3, 2), {inputs}"), CPU).inputs.keys() == {"input"}


def test_a_factorys_weights_follow_the_seed(here: Path) -> None:
    said = factory(here, 'return nn.Linear(3, 2), {"input": torch.rand(1, 3)}')
    one, same, other = (build({**said, "seed": seed}, CPU) for seed in (1, 1, 2))
    assert torch.equal(one.inputs["input"], same.inputs["input"])
    assert not torch.equal(one.inputs["input"], other.inputs["input"])


def test_a_factorys_floating_inputs_get_the_models_dtype(here: Path) -> None:
    said = factory(here, 'return nn.Linear(3, 2), {"input": torch.ones(1, 3)}')
    assert build({**said, "dtype": "bfloat16"}, CPU).inputs["input"].dtype == torch.bfloat16


def test_a_factorys_model_with_a_vocabulary_gets_token_ids(here: Path) -> None:
    body = "model = nn.Embedding(7, 2); model.config = type('C', (), {'vocab_size': 7})(); return model"
    assert build(factory(here, body), CPU).inputs["input_ids"].shape == (1, 1)


def test_a_factorys_model_without_inputs_is_told_what_to_return(here: Path) -> None:
    error = refusal(factory(here, "return nn.Linear(3, 2)"))
    assert error.issues[0].hint is not None and error.issues[0].hint.startswith("return (model, inputs)")


def test_a_factorys_inputs_that_do_not_fit_are_refused(here: Path) -> None:
    assert "do not fit" in str(refusal(factory(here, "return nn.Linear(3, 2), (1, 2, 3)")))


def test_a_factory_that_returns_no_module_is_refused(here: Path) -> None:
    assert "returned int, expected a module" in str(refusal(factory(here, "return 3")))


def test_the_working_directory_is_on_the_path_only_for_the_import(here: Path) -> None:
    before = list(sys.path)
    build(factory(here, 'return nn.Linear(3, 2), {"input": torch.ones(1, 3)}'), CPU)
    assert sys.path == before


def test_a_factory_that_raises_is_one_sentence(here: Path) -> None:
    with pytest.raises(SourceError, match="python:mine:make raised ValueError: no such size"):
        build(factory(here, 'raise ValueError("no such size\\nand more")'), CPU)
    (here / "script.py").write_text("raise SystemExit(2)\n", encoding="utf-8")
    with pytest.raises(SourceError, match="importing script failed: SystemExit: 2"):
        build({"factory": "python:script:make"}, CPU)


def test_a_factorys_missing_module_is_named(here: Path) -> None:
    assert "no module 'nowhere'" in str(refusal({"factory": "python:nowhere.at:make"}))


def test_a_module_that_a_factory_needs_and_has_not_is_named(here: Path) -> None:
    (here / "needy.py").write_text("import nowhere\n", encoding="utf-8")
    with pytest.raises(SourceError, match="importing needy failed: No module named 'nowhere'"):
        build({"factory": "python:needy:make"}, CPU)


def test_a_factory_file_with_a_fault_is_one_sentence(here: Path) -> None:
    (here / "broken.py").write_text("1 / 0\n", encoding="utf-8")
    with pytest.raises(SourceError, match="importing broken failed: ZeroDivisionError: division by zero"):
        build({"factory": "python:broken:make"}, CPU)


def test_a_misspelt_factory_function_is_told_the_nearest(here: Path) -> None:
    said = factory(here, "return nn.Linear(3, 2)")
    assert refusal({**said, "factory": "python:mine:made"}).issues[0].hint == "did you mean make?"


def test_a_factory_function_that_is_like_none_is_told_those_of_the_module(here: Path) -> None:
    said = factory(here, "return nn.Linear(3, 2)")
    assert refusal({**said, "factory": "python:mine:build"}).issues[0].hint == "there are make"


def test_a_factory_that_names_no_function_is_told_the_form() -> None:
    assert refusal({"factory": "mine:make"}).issues[0].hint == "write python:package.module:function"


def test_a_saved_model_is_read_back_with_its_own_weights(tmp_path: Path) -> None:
    saved = build(node(), CPU).model
    saved.save_pretrained(tmp_path)  # type: ignore[operator]
    loaded = build({"pretrained": str(tmp_path), "dtype": "float32", "seed": 9, "batch": 1, "sequence": 4}, CPU)
    for name, value in saved.state_dict().items():
        assert torch.equal(value, loaded.model.state_dict()[name])
    assert loaded.model(**loaded.inputs).logits.shape == (1, 4, 97)


@pytest.mark.parametrize("place", ["./nowhere", "/nowhere/at/all", "~/nowhere"])
def test_a_missing_folder_is_one_sentence(place: str) -> None:
    with pytest.raises(SourceError, match=r"is no folder with a config\.json"):
        build({"pretrained": place}, CPU)


def test_a_folder_without_weights_is_one_sentence(tmp_path: Path) -> None:
    model = build(node(), CPU).model
    model.config.save_pretrained(tmp_path)  # type: ignore[union-attr, operator]
    with pytest.raises(SourceError) as caught:
        build({"pretrained": str(tmp_path)}, CPU)
    assert "cannot be loaded" in caught.value.message
    assert "\n" not in caught.value.message


def test_a_checkpoint_that_cannot_be_reached_is_one_sentence(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    with pytest.raises(SourceError) as caught:
        build({"pretrained": "nobody/nothing"}, CPU)
    assert caught.value.message.startswith("model.pretrained: nobody/nothing cannot be loaded: ")
    assert "\n" not in caught.value.message


def test_a_plain_module_needs_no_transformers(here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "transformers", None)
    said = factory(here, 'return nn.Linear(3, 2), {"input": torch.ones(1, 3)}')
    assert isinstance(build(said, CPU).model, nn.Linear)


def test_b27_a_kernel_that_the_model_files_name_is_ignored_and_said(hub: TestHub, tmp_path: Path) -> None:
    hub.add(kernels.attention("stranger/attention"))
    saved = build(node(), CPU).model
    saved.save_pretrained(tmp_path / "model")  # type: ignore[operator]
    file = tmp_path / "model" / "config.json"
    file.write_text(json.dumps({**json.loads(file.read_text()), "attn_implementation": "stranger/attention"}))
    said = "attention 'stranger/attention' is ignored: it comes from model files, and only a local file"
    with hub.log.expect(0), pytest.warns(KerncfgWarning, match=said):
        loaded = build(
            {"pretrained": str(tmp_path / "model"), "dtype": "float32", "seed": 0, "batch": 1, "sequence": 4}, CPU
        )
    assert loaded.model.config._attn_implementation == "sdpa"  # type: ignore[union-attr]
