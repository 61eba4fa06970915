from __future__ import annotations

from typing import Any

import torch

from kerncfg.documents.target import Mode
from kerncfg.evidence.capture import Sample, capture
from kerncfg.evidence.trial import attempt, in_float64
from tests.subjects import Norm, Stack, applied, matched, stack


def sample_of(model: Stack, inputs: dict[str, Any], kernel: str = "Faithful") -> Sample:
    """Give the second norm's sample, whose input wants a gradient; the model is left with its kernels."""
    return capture(applied(model, matched(kernel)), inputs).samples[1]


def test_a_trial_in_training_holds_a_gradient_for_each_input_and_weight() -> None:
    sample = sample_of(*stack())
    trial = attempt(sample.binding.original(), sample.binding.module, sample, seed=1, training=True)
    assert list(trial.gradients) == ["input hidden_states", "weight"]
    assert (trial.fault, trial.hazards, list(trial.outputs)) == (None, [], ["output"])
    assert not trial.outputs["output"].requires_grad


def test_a_trial_in_inference_holds_none() -> None:
    sample = sample_of(*stack())
    trial = attempt(sample.binding.original(), sample.binding.module, sample, seed=1, training=False)
    assert (trial.gradients, trial.upstream) == ({}, {})


def test_every_trial_gets_the_same_gradient_from_above() -> None:
    sample = sample_of(*stack())
    one, other = (
        attempt(sample.binding.original(), sample.binding.module, sample, seed=seed, training=True) for seed in (1, 2)
    )
    assert torch.equal(one.upstream["output"], other.upstream["output"])


def test_a_trial_does_not_touch_the_sample() -> None:
    sample = sample_of(*stack(), kernel="WritesToInput")
    before = sample.kwargs["hidden_states"].clone()
    kernel = sample.binding.forward(Mode.INFERENCE)
    trial = attempt(kernel, sample.binding.module, sample, seed=1, training=False)
    assert list(trial.given) == ["input hidden_states"]
    assert torch.equal(sample.kwargs["hidden_states"], before)


def test_in_float64_nothing_is_rounded_to_float32_on_the_way() -> None:
    sample = sample_of(*stack())
    module = sample.binding.module
    assert isinstance(module, Norm)
    x, weight = sample.kwargs["hidden_states"].detach().double(), module.weight.detach().double()
    exact = weight * x / (x.square().mean(-1, keepdim=True) + 1e-6).sqrt()
    trial = in_float64(sample, seed=1, training=False, upstream={})
    assert trial.fault is None
    torch.testing.assert_close(trial.outputs["output"], exact, rtol=1e-14, atol=1e-15)


def test_in_float64_the_gradients_are_float64_too() -> None:
    sample = sample_of(*stack())
    upstream = {"output": torch.ones(4, 16)}
    trial = in_float64(sample, seed=1, training=True, upstream=upstream)
    assert {name: None if found is None else found.dtype for name, found in trial.gradients.items()} == {
        "input hidden_states": torch.float64,
        "weight": torch.float64,
    }


def test_in_float64_the_original_runs_and_not_the_kernel() -> None:
    sample = sample_of(*stack(), kernel="Raises")
    assert in_float64(sample, seed=1, training=False, upstream={}).fault is None
