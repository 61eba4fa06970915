"""The bundled kernels in models of transformers, applied and verified by kerncfg; under both paths (see conftest)."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn
from transformers.loss.loss_utils import ForCausalLMLoss

from kerncfg.evidence.verify import verify
from kerncfg.machine import detect
from kerncfg.models import build
from tests.subjects import POLICY, TINY, applied

# The packaged rows with the kernels on the CPU too; the condition on the activation is for machines with a GPU.
GEMMA = [
    "kernels=bundled_gemma",
    "kernels.GemmaRMSNorm.cpu=builtin:GemmaRMSNorm",
    "kernels.GatedMLP.cpu=builtin:GeGLUMLP",
]
LAYER_NORM = "kernels.LayerNorm={match: {type: torch.nn.LayerNorm}, cpu: builtin:LayerNorm}"
ZERO_CENTERED = "kernels.RMSNormZeroCentered.cpu=builtin:GemmaRMSNorm"

GPT2 = {"vocab_size": 97, "n_embd": 32, "n_layer": 2, "n_head": 2, "n_positions": 32}
BERT = {name: TINY[name] for name in ("vocab_size", "hidden_size", "intermediate_size", "num_attention_heads")}
QWEN = {**TINY, "layer_types": ["full_attention"] * 2}

# The model, what its rows are, and how many of its layers each kernel takes.
MODELS: dict[str, tuple[str, dict[str, Any], list[str], dict[str, int]]] = {
    "gemma": ("GemmaForCausalLM", TINY, GEMMA, {"GemmaRMSNorm": 5, "GatedMLP": 2}),
    "gemma2": ("Gemma2ForCausalLM", TINY, GEMMA, {"GemmaRMSNorm": 9, "GatedMLP": 2}),
    "qwen3_5": ("Qwen3_5ForCausalLM", QWEN, [ZERO_CENTERED], {"RMSNormZeroCentered": 9}),
    "gpt2": ("GPT2LMHeadModel", GPT2, [LAYER_NORM], {"LayerNorm": 5}),
    "bert": ("BertForMaskedLM", {**BERT, "num_hidden_layers": 1}, [LAYER_NORM], {"LayerNorm": 4}),
}


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize(("architecture", "config", "rows", "expected"), MODELS.values(), ids=MODELS)
def test_a_kernel_passes_verification_forward_and_backward(
    architecture: str, config: dict[str, Any], rows: list[str], expected: dict[str, int], dtype: str
) -> None:
    node = {"architecture": architecture, "config": config, "dtype": dtype, "seed": 0, "batch": 2, "sequence": 8}
    loaded = build(node, detect({"device": "cpu"}))
    with torch.no_grad():  # weights as they are made are exactly zero or one, and hide what they should show
        for name, parameter in loaded.model.named_parameters():
            if parameter.dim() == 1:
                parameter.add_(0.1 * torch.randn(parameter.shape, generator=torch.Generator().manual_seed(len(name))))
    with applied(loaded.model, "inherited=none", *rows) as bindings:
        swapped = [row.name for row in bindings.report.rows if row.status == "swapped"]
        found = verify(bindings, loaded.inputs, POLICY)
    assert {name: swapped.count(name) for name in expected} == expected
    assert [row.reason for row in found.rows if row.reason] == []
    assert {row.name for row in found.rows} == set(expected)
    assert all(row.backward is not None and row.backward.passed for row in found.rows)
    assert found.passed


class Training(nn.Module):
    """A language model with its loss, which transformers' own models reach by an attribute and not by its name."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, input_ids: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        logits = self.model(input_ids=input_ids).logits
        loss: torch.Tensor = ForCausalLMLoss(logits, labels, logits.shape[-1])
        return loss


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_the_loss_passes_verification_where_a_forward_calls_it(dtype: str) -> None:
    node = {"architecture": "LlamaForCausalLM", "config": TINY, "dtype": dtype, "seed": 0, "batch": 2, "sequence": 9}
    loaded = build(node, detect({"device": "cpu"}))
    ids = loaded.inputs["input_ids"]
    labels = ids.masked_fill(ids % 5 == 0, -100)
    row = "kernels.Loss={match: {function: ForCausalLMLoss}, cpu: builtin:ForCausalLMLoss}"
    with applied(Training(loaded.model), "inherited=none", row) as bindings:
        found = verify(bindings, {"input_ids": ids, "labels": labels}, POLICY)
    assert [(one.name, one.reason, one.hazards) for one in found.rows] == [("Loss", None, ())]
    assert found.rows[0].backward is not None and found.rows[0].backward.passed
    assert found.passed
