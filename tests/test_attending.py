"""Which row takes the attention of which part, and what each part will use."""

from __future__ import annotations

from typing import Any

import pytest

import kerncfg
from kerncfg.applier.attending import AttentionClaim, AttentionSite, attention_claims, decide_attention
from kerncfg.applier.attention import parts
from kerncfg.applier.bind import Owner
from kerncfg.applier.decide import Decisions
from kerncfg.documents.target import Mode
from kerncfg.errors import ApplyError, ConflictError
from tests import attending
from tests.snapshot import snapshot
from tests.subjects import applied

INTERFACE = "python:tests.attention_kernels:interface"
BOTH = (Mode.INFERENCE, Mode.TRAINING)


def plan(*rows: str) -> kerncfg.Plan:
    return kerncfg.plan("inherited=none", *rows, target="cpu")


def claims(model: Any, *rows: str) -> list[AttentionClaim]:
    return attention_claims(parts(model), plan(*rows).steps)


def decided(model: Any, *rows: str, modes: tuple[Mode, Mode] = BOTH) -> list[AttentionSite]:
    made = plan(*rows)
    return decide_attention(attention_claims(parts(model), made.steps), Decisions(made, modes, Owner.of("test")))


@pytest.fixture(scope="module")
def llava() -> Any:
    return attending.model("llava")


def test_a_path_beats_a_row_for_the_whole_model_whatever_their_order(llava: Any) -> None:
    rows = ["attention.a=eager", "attention.b={path: model.vision_tower, kernel: sdpa}"]
    for order in (rows, rows[::-1]):
        found = {part.path: step.name for part, step in claims(llava, *order)}
        assert found == {"model.vision_tower": "b", "model.language_model": "a"}


def test_a_part_that_no_row_names_is_no_claim(llava: Any) -> None:
    (only,) = claims(llava, "attention.a={path: model.vision_tower, kernel: eager}")
    assert only[0].path == "model.vision_tower"


def test_two_paths_for_one_part_are_a_conflict_that_names_both(llava: Any) -> None:
    rows = [
        "attention.a={path: '**.vision_tower', kernel: eager}",
        "attention.b={path: model.vision_tower, kernel: sdpa}",
    ]
    with pytest.raises(ConflictError, match=r"of model\.vision_tower is taken by attention\.a .* and attention\.b"):
        claims(llava, *rows)


def test_deciding_changes_nothing(llava: Any) -> None:
    before = snapshot(llava)
    assert [one.swaps for one in decided(llava, "attention.a=eager")] == [True, True]
    assert snapshot(llava) == before


def test_a_row_that_keeps_a_part_in_one_mode_wants_it_in_the_other() -> None:
    (site,) = decided(attending.model("qwen3"), "attention.a.cpu={inference: eager, training: original}")
    assert [verdict.status for verdict in site.verdicts] == ["swapped", "off"]
    assert site.wanted is not None and site.wanted.codes == ("eager", None)


def test_a_fixed_mode_asks_for_one_choice() -> None:
    row = f"attention.a.cpu={{inference: eager, training: '{INTERFACE}'}}"
    (site,) = decided(attending.model("qwen3"), row, modes=(Mode.TRAINING, Mode.TRAINING))
    assert site.verdicts[0] is site.verdicts[1] and str(site.verdicts[0].kernel.reference) == INTERFACE  # type: ignore[union-attr]


def test_a_row_that_is_off_wants_nothing() -> None:
    (site,) = decided(attending.model("qwen3"), "attention.a=null")
    assert (site.swaps, {verdict.status for verdict in site.verdicts}) == (False, {"off"})


def test_a_choice_that_a_part_cannot_take_is_an_error_that_names_part_and_row() -> None:
    row = "attention.a=python:tests.attention_kernels:plain"
    with pytest.raises(ApplyError, match=r"attention\.a: the attention of model \(Gemma2Model\) can be none .*softcap"):
        decided(attending.model("gemma2"), row)


# B45: options that do not go together are told with both sides, and never left to the first step of training


@pytest.mark.parametrize(("name", "cls"), [("bert", "BertSelfAttention"), ("gpt2", "GPT2Attention")])
def test_a_kernel_without_dropout_is_kept_out_of_the_training_of_a_model_with_it(name: str, cls: str) -> None:
    with applied(attending.model(name), "inherited=none", f"attention.a={INTERFACE}") as bindings:
        (row,) = bindings.report.rows
        assert row.modes == {"inference": INTERFACE, "training": "original"}
        (note,) = bindings.report.notes
    assert note.startswith(f"attention.a: training runs the original: {INTERFACE} (")
    assert note.endswith(f": {cls} passes dropout (0.1) to its attention in training, and this takes none")


@pytest.mark.parametrize("kernel", ["FLASH", "plain", "sdpa", "eager"])
def test_attention_with_dropout_is_for_training_too(kernel: str) -> None:
    said = kernel if kernel in ("sdpa", "eager") else f"python:tests.attention_kernels:{kernel}"
    (site,) = decided(attending.model("bert"), f"attention.a={said}")
    assert [verdict.status for verdict in site.verdicts] == ["swapped", "swapped"]


def test_a_model_that_asks_for_no_dropout_may_train_without() -> None:
    (site,) = decided(attending.model("bart"), f"attention.a={{path: model.encoder, kernel: '{INTERFACE}'}}")
    assert [verdict.status for verdict in site.verdicts] == ["swapped", "swapped"]
