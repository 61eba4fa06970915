"""What attention is called with, and which of its rows count."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Any

import pytest
import torch
from transformers.masking_utils import ALL_MASK_ATTENTION_FUNCTIONS
from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

from kerncfg.applier.adapters.attention_calls import intercepted
from kerncfg.evidence.bench import bench
from kerncfg.evidence.capture import Captured, capture
from kerncfg.evidence.listening import blanked, given, live_rows, moved, nothing_of_padding, padded
from kerncfg.evidence.verify import verify
from tests import attending
from tests.subjects import POLICY, applied

if TYPE_CHECKING:
    from kerncfg.applier.apply import Bindings

LEFT = torch.tensor([[0, 0, 1, 1], [1, 1, 1, 1]])


def heard(kernel: str, name: str = "qwen3", mask: torch.Tensor | None = None, padding: bool = False) -> Captured:
    ids = attending.tokens()
    inputs = {"input_ids": ids, "attention_mask": torch.ones_like(ids) if mask is None else mask}
    with bound(name, kernel) as bindings:
        return capture(bindings, inputs, padding=padding)


def bound(name: str, kernel: str) -> Bindings:
    return applied(attending.model(name), "inherited=none", f"attention.x={kernel}", mode="inference")


def test_both_masks_of_one_call_are_heard() -> None:
    (sample,) = heard("eager").samples
    assert sample.paths == ("model.layers.0.self_attn", "model.layers.1.self_attn")
    assert sample.masked is not None
    assert sample.args[3] is None  # sdpa: it knows of causality
    assert sample.masked[0][3].dtype == torch.float32
    assert sample.masked[0][:3] == sample.args[:3]
    assert all(tensor.requires_grad for tensor in sample.args[:3])
    assert (sample.live, sample.fault, sample.padded) == (None, None, None)


def test_a_mask_of_lengths_says_which_rows_count() -> None:
    (sample,) = heard("python:tests.attention_kernels:FLASH", mask=attending.padding()).samples
    assert sample.live is not None
    assert torch.equal(sample.live, attending.padding().bool())


def test_padding_is_tried_beside() -> None:
    (sample,) = heard("python:tests.attention_kernels:interface", padding=True).samples
    assert sample.padded is not None and sample.padded.live is not None
    assert (~sample.padded.live).sum() == attending.LENGTH // 4
    assert sample.padded.paths == sample.paths


def test_attention_that_the_run_does_not_reach_is_named() -> None:
    found = heard("eager", "llava")
    assert {path.split(".")[1] for sample in found.samples for path in sample.paths} == {"language_model"}
    assert found.unreached == tuple(f"model.vision_tower.encoder.layers.{n}.self_attn" for n in (0, 1))


def test_calls_of_causal_and_other_attention_stay_apart() -> None:
    ids = attending.tokens()
    with bound("bart", "eager") as bindings:
        samples = capture(bindings, {"input_ids": ids, "decoder_input_ids": ids}).samples
    assert [len(sample.paths) for sample in samples] == [1, 1, 1]  # encoder, decoder, and from one to the other


def test_other_threads_and_other_models_run_what_they_would() -> None:
    models = [attending.model("qwen3"), attending.model("qwen3")]
    ids, expected = attending.tokens(), attending.call(attending.model("qwen3"), "qwen3", attending.tokens())
    calls: list[Any] = []
    found: list[torch.Tensor] = []

    def run(function: Any, module: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        calls.append(module)
        return function(module, *args, **kwargs)

    before = dict(ALL_ATTENTION_FUNCTIONS)
    models[1].set_attn_implementation("eager")
    with intercepted(["sdpa", "eager"], run), torch.no_grad():
        other = threading.Thread(target=lambda: found.extend(attending.call(one, "qwen3", ids) for one in models))
        other.start()
        other.join()
        assert calls == []
        attending.call(models[0], "qwen3", ids)
    assert len(calls) == 2
    assert dict(ALL_ATTENTION_FUNCTIONS) == before
    for one in found:
        torch.testing.assert_close(one.detach(), expected.detach(), **attending.TOLERANCE)


def test_an_error_leaves_the_registry_as_it_was() -> None:
    before = dict(ALL_ATTENTION_FUNCTIONS)
    with pytest.raises(ZeroDivisionError), intercepted(["sdpa", "eager"], lambda *_: None):
        raise ZeroDivisionError
    assert dict(ALL_ATTENTION_FUNCTIONS) == before


# Which rows count


def call(mask: torch.Tensor | None, length: int = 4) -> tuple[tuple[Any, ...], dict[str, Any]]:
    query = torch.randn(2, 3, length, 8)
    return (query, query, query, mask), {}


@pytest.mark.parametrize("kind", ["lengths", "boolean", "added"])
def test_rows_without_a_key_do_not_count(kind: str) -> None:
    allowed = LEFT.bool()[:, None, None, :] & torch.ones(4, 4, dtype=torch.bool).tril()
    added = torch.zeros(allowed.shape).masked_fill(~allowed, torch.finfo(torch.float32).min)
    mask = {"lengths": LEFT, "boolean": allowed, "added": added}[kind]
    for own, masked in ((None, mask), (mask, None), (mask, mask)):
        found = live_rows(call(own), call(masked))
        assert found is not None and torch.equal(found, LEFT.bool())
    assert live_rows(call(None), call(None)) is None


def test_a_mask_of_keys_that_are_fewer_than_queries_says_nothing_of_these() -> None:
    assert live_rows(call(LEFT, 6), call(None, 6)) is None
    found = live_rows(call(LEFT, 3), call(None, 3))
    assert found is not None and torch.equal(found, LEFT[:, 1:].bool())


def test_rows_that_do_not_count_are_zero_and_pass_no_gradient_on() -> None:
    x = torch.randn(2, 4, 3, 8).requires_grad_()
    result = blanked(lambda one: one * 2, LEFT.bool())(x)
    assert torch.equal(result[0, :2], torch.zeros(2, 3, 8))
    assert torch.equal(result[0, 2:], x[0, 2:] * 2)
    result.sum().backward()
    assert x.grad is not None and x.grad[0, :2].abs().sum() == 0 and (x.grad[1] == 2).all()
    other = torch.randn(2, 3, 4, 8)  # heads first, which is a fault of its own
    assert blanked(lambda one: one, LEFT.bool())(other) is other


def test_what_a_model_returns_for_padding_is_nobodys() -> None:
    parts = {"logits": torch.ones(2, 4, 5), "keys": torch.ones(2, 3, 4, 8), "loss": torch.ones(()), "name": "x"}
    found = nothing_of_padding(parts, {"attention_mask": LEFT})
    assert torch.equal(found["logits"][..., 0], LEFT.float())
    assert torch.equal(found["keys"][:, 0, :, 0], LEFT.float())
    assert found["loss"] is parts["loss"] and found["name"] == "x"
    assert nothing_of_padding(parts, {"attention_mask": torch.ones_like(LEFT)}) == parts
    assert nothing_of_padding(parts, {}) == parts


def test_only_inputs_without_padding_get_some() -> None:
    model, ids = attending.model("qwen3"), attending.tokens()
    for inputs in ({"input_ids": ids}, {"input_ids": ids, "attention_mask": torch.ones_like(ids)}):
        made = padded(model, inputs)
        assert made is not None and made["attention_mask"].sum() == ids.numel() - attending.LENGTH // 4
    assert padded(model, {"input_ids": ids, "attention_mask": attending.padding()}) is None
    assert padded(model, {"input_ids": ids, "attention_mask": torch.ones(2, 1, 4, 4)}) is None
    assert padded(torch.nn.Linear(2, 2), {"input": torch.ones(2)}) is None


def test_a_kernel_gets_the_tensors_of_the_own_call_and_its_own_mask() -> None:
    own, masked = call(None), call(LEFT)
    bias = torch.ones(2).requires_grad_()
    args, kwargs = given((own[0], {"bias": bias}), (masked[0], {"bias": torch.ones(2)}))
    assert args[:3] == own[0][:3] and args[3] is LEFT
    assert kwargs["bias"].requires_grad
    named = {"query": own[0][0], "key": own[0][1], "value": own[0][2]}
    assert given(((), named), ((), {**dict.fromkeys(named), "attention_mask": LEFT})) == (
        (),
        {**named, "attention_mask": LEFT},
    )


def test_moved_inputs_are_off_by_no_more_than_one_eps() -> None:
    own = call(LEFT)
    (query, _, _, mask), _ = moved(own, 0)
    assert mask is LEFT and not torch.equal(query, own[0][0])
    torch.testing.assert_close(query, own[0][0], rtol=2e-7, atol=0)
    assert torch.equal(moved(own, 0)[0][0], query) and not torch.equal(moved(own, 1)[0][0], query)


def test_looking_on_is_not_compiled_with_the_model() -> None:
    graphs: list[Any] = []

    def backend(graph: Any, _: Any) -> Any:
        graphs.append(graph)
        return graph

    compiled: Any = torch.compile(attending.model("qwen3"), backend=backend)
    with applied(compiled, "inherited=none", "attention.x=eager", mode="inference_compile") as bindings:
        (sample,) = capture(bindings, {"input_ids": attending.tokens()}).samples
    assert sample.masked is not None
    assert graphs == []


def test_masks_that_cannot_be_made_fail_the_row_and_not_the_run(monkeypatch: pytest.MonkeyPatch) -> None:
    with bound("qwen3", "python:tests.attention_kernels:interface") as bindings:
        model: Any = bindings.model
        name = model.config._attn_implementation

        def raising(*_: Any, **__: Any) -> Any:
            raise RuntimeError("no room for a mask")

        registry: dict[str, Any] = ALL_MASK_ATTENTION_FUNCTIONS._global_mapping
        inputs = {"input_ids": attending.tokens()}
        with monkeypatch.context() as patch:  # taken back before the names are
            patch.setitem(registry, name, raising)
            (row,) = verify(bindings, inputs, POLICY).rows
            (timed,) = bench(bindings, inputs, seconds=0.001).rows
    assert name not in registry
    said = "the model raised with the masks of its kernel: RuntimeError: no room for a mask"
    assert (row.passed, row.reason) == (False, said)
    assert timed.kernel_s is None and said in str(timed)
