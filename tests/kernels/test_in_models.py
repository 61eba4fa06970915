"""The bundled kernels in models of transformers, applied and verified by kerncfg; under both paths (see conftest)."""

from __future__ import annotations

from typing import Any

import pytest
import torch

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
