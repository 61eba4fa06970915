from __future__ import annotations

import gc
from functools import partial
from typing import Any

import pytest
import torch
from torch import nn

from kerncfg.documents.target import Mode
from kerncfg.errors import ApplyError
from kerncfg.evidence.capture import capture, measured_modes, originals
from kerncfg.evidence.contents import cloned, tensors_of
from kerncfg.evidence.keeping import undisturbed
from kerncfg.evidence.verify import verify
from tests.subjects import POLICY, applied, fault, matched, qwen3, stack


def state(model: nn.Module) -> dict[str, Any]:
    """Everything that must be as before: entries, hooks, modes, values, gradients."""
    found: dict[str, Any] = {}
    for path, module in model.named_modules():
        entries = {key: value for key, value in vars(module).items() if not isinstance(value, dict)}
        hooks = {key: list(value) for key, value in vars(module).items() if key.endswith("_hooks")}
        found[path] = (entries, hooks, [id(tensor) for tensor in module.buffers(recurse=False)])
    found["buffers"] = [buffer.clone() for buffer in model.buffers()]
    found["gradients"] = [parameter.grad for parameter in model.parameters()]
    return found


def assert_as_before(model: nn.Module, before: dict[str, Any]) -> None:
    now = state(model)
    for one, other in zip(now.pop("buffers"), before["buffers"], strict=True):
        assert torch.equal(one, other)
    for one, other in zip(now.pop("gradients"), before["gradients"], strict=True):
        assert one is other
    for path, found in now.items():
        assert found == before[path], path


def test_the_inputs_are_those_that_the_layer_gets_from_the_original_model() -> None:
    loaded = qwen3()
    seen: list[torch.Tensor] = []
    norm = loaded.model.get_submodule("model.layers.0.self_attn.q_norm")
    handle = norm.register_forward_pre_hook(lambda _, args: seen.append(args[0]))
    loaded.model(**loaded.inputs)
    handle.remove()
    with applied(loaded.model, fault("WeightOffset")) as bindings:
        samples = capture(bindings, loaded.inputs).samples
    found = next(sample for sample in samples if "model.layers.0.self_attn.q_norm" in sample.paths)
    torch.testing.assert_close(found.args[0], seen[0], rtol=0, atol=0)


def test_what_is_kept_of_the_inputs_is_less_than_a_layers_activations_and_is_freed() -> None:
    kept: dict[int, int] = {}
    activations: dict[int, int] = {}
    for layers in (2, 6):
        loaded = qwen3(num_hidden_layers=layers)
        saved: dict[int, int] = {}
        with torch.autograd.graph.saved_tensors_hooks(partial(_noted, saved), lambda tensor: tensor):
            result = loaded.model(**loaded.inputs)
        weights = {weight.untyped_storage().data_ptr() for weight in loaded.model.parameters()}
        activations[layers] = sum(size for place, size in saved.items() if place not in weights)
        del result
        with applied(loaded.model, fault("Faithful")) as bindings:
            gc.collect()
            before = _alive()
            samples = capture(bindings, loaded.inputs).samples
            given = [part for sample in samples for part in tensors_of((sample.args, dict(sample.kwargs)))]
            kept[layers] = sum(part.numel() * part.element_size() for part in given)
            del samples, given
            gc.collect()
            assert _alive() == before
            verify(bindings, loaded.inputs, POLICY)
            gc.collect()
            assert _alive() == before
    assert kept[2] == kept[6] < (activations[6] - activations[2]) / 4


def _noted(saved: dict[int, int], tensor: torch.Tensor) -> torch.Tensor:
    saved[tensor.untyped_storage().data_ptr()] = tensor.untyped_storage().nbytes()
    return tensor


def _alive() -> int:
    return sum(type(each) in (torch.Tensor, nn.Parameter) for each in gc.get_objects())


def test_sites_that_are_called_alike_are_one_sample() -> None:
    loaded = qwen3(num_hidden_layers=4)
    with applied(loaded.model, fault("Faithful")) as bindings:
        captured = capture(bindings, loaded.inputs)
    assert [len(sample.paths) for sample in captured.samples] == [9, 4, 4]
    assert captured.samples[0].paths[0] == "model.layers.0.input_layernorm"
    assert captured.unreached == ()


def test_a_site_that_the_run_does_not_reach_is_named() -> None:
    model, inputs = stack()
    with applied(model, matched("Faithful")) as bindings:
        captured = capture(bindings, inputs)
    assert captured.unreached == ("spare",)


def test_positional_and_keyword_arguments_are_told_apart() -> None:
    model, inputs = stack()
    with applied(model, matched("Faithful")) as bindings:
        first, second = capture(bindings, inputs).samples
    assert (len(first.args), list(first.kwargs)) == (1, [])
    assert (len(second.args), list(second.kwargs)) == (0, ["hidden_states"])


def test_a_sample_knows_where_gradients_are_wanted_and_belongs_to_no_graph() -> None:
    model, inputs = stack()
    with applied(model, matched("Faithful")) as bindings:
        first, second = (tensors_of((sample.args, sample.kwargs))[0] for sample in capture(bindings, inputs).samples)
    assert (first.requires_grad, second.requires_grad) == (False, True)
    assert second.is_leaf
    assert first is not inputs["x"]


def test_the_kernels_do_not_run() -> None:
    model, inputs = stack()
    with applied(model, matched("Raises")) as bindings:
        assert len(capture(bindings, inputs).samples) == 2


def test_a_sample_tells_device_and_dtype() -> None:
    loaded = qwen3("bfloat16")
    with applied(loaded.model, fault("Faithful")) as bindings:
        sample = capture(bindings, loaded.inputs).samples[0]
    assert (sample.device, sample.dtype) == ("cpu", "bfloat16")


@pytest.mark.parametrize("training", [False, True])
def test_the_model_is_as_before(training: bool) -> None:
    model, inputs = stack()
    model.train(training)
    model.dropout.train(not training)
    model.first.weight.grad = torch.ones(16)
    with applied(model, matched("Faithful")) as bindings:
        before, random = state(model), torch.get_rng_state()
        capture(bindings, inputs)
        assert_as_before(model, before)
        assert torch.equal(torch.get_rng_state(), random)


def test_a_model_that_raises_is_named_and_left_as_before() -> None:
    model, _ = stack()
    with applied(model, matched("Faithful")) as bindings:
        before = state(model)
        with pytest.raises(ApplyError, match="the model's own forward raised RuntimeError") as caught:
            capture(bindings, {"x": torch.randn(4, 15)})
        assert_as_before(model, before)
    assert caught.value.hint == "it was called with x; check what its inputs should be"


def test_undisturbed_puts_back_what_training_changes() -> None:
    model, inputs = stack()
    before = state(model)
    random = torch.get_rng_state()
    with undisturbed(model):
        model.train()
        model(**inputs).sum().backward()
        model.batch.running_mean = torch.zeros(16)
    assert_as_before(model, before)
    assert torch.equal(torch.get_rng_state(), random)


def test_originals_lets_the_model_run_its_own_code_and_then_the_kernels_again() -> None:
    loaded = qwen3()
    plain = loaded.model(**loaded.inputs).logits
    with applied(loaded.model, fault("WeightOffset")) as bindings:
        swapped = loaded.model(**loaded.inputs).logits
        with originals(bindings):
            assert torch.equal(loaded.model(**loaded.inputs).logits, plain)
        assert torch.equal(loaded.model(**loaded.inputs).logits, swapped)
    assert not torch.equal(plain, swapped)


def test_the_modes_are_those_that_were_applied() -> None:
    model, _ = stack()
    with applied(model, matched("Faithful")) as bindings:
        assert measured_modes(bindings) == (Mode.INFERENCE, Mode.TRAINING)
    with applied(model, matched("Faithful"), mode="training") as bindings:
        assert measured_modes(bindings) == (Mode.TRAINING,)


def test_clones_are_detached_and_keep_what_is_no_tensor() -> None:
    weight = torch.ones(2, requires_grad=True)
    copy = cloned({"a": [weight * 2, 3], "b": ("text", weight)})
    assert copy["a"][1] == 3 and copy["b"][0] == "text"
    assert copy["a"][0].is_leaf and copy["a"][0].requires_grad
    assert copy["b"][1] is not weight
