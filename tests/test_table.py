"""A plan's rows, as every front shows them."""

from __future__ import annotations

import pytest

import kerncfg
from kerncfg.documents import table
from kerncfg.documents.plan import Rejection
from kerncfg.documents.target import Mode
from tests.planning import choice, plan, step

REFUSED = Rejection(reference="org/a@v1:A", reason="no build fits", origin="mine.yaml:4")


def test_each_thing_a_name_may_run_is_one_line_and_the_first_shows_the_name() -> None:
    lines = table.lines([step("Norm", [choice("A", dtype=["bfloat16"])], rejected=[REFUSED])])
    assert [line.cells() for line in lines] == [
        ("Norm", "python:tests.fakes:A", "all modes", "chosen for cpu, if dtype is bfloat16", "kernels.yaml:3"),
        ("", "else original", "all modes", "fallback: the original", ""),
        ("", "not org/a@v1:A", "all modes", "no build fits", "mine.yaml:4"),
    ]
    assert [line.tone for line in lines] == ["kernel", "else", "refused"]


def test_modes_that_run_the_same_share_a_line() -> None:
    lines = table.lines([step("Norm", {Mode.INFERENCE: "A", Mode.TRAINING: "A"})])
    assert [(line.runs, line.modes) for line in lines] == [
        ("python:tests.fakes:A", "inference, training"),
        ("else original", "inference, training"),
        ("original", "inference_compile, training_compile"),
    ]
    assert lines[2].tone == "original"


def test_modes_without_a_kernel_share_a_line_whose_reason_names_them() -> None:
    made = kerncfg.plan("inherited=none", "target=cpu", "kernels.N.cpu={inference: builtin:RMSNorm}")
    last = table.lines(made.steps)[-1]
    modes = "training, inference_compile, training_compile"
    assert last.cells() == ("", "original", modes, f"the row names no kernel for {modes} on cpu", "")


def test_what_is_switched_off_says_why() -> None:
    made = kerncfg.plan("inherited=none", "target=cpu", "kernels.N=builtin:RMSNorm", "enabled=false")
    assert [line.cells()[1:4] for line in table.lines(made.steps)] == [
        ("original", "all modes", "kernels are switched off: enabled is false, needed true")
    ]


def test_inherited_names_that_keep_the_original_are_counted_by_reason() -> None:
    steps = [step(name, "original", own=False, reason="no row for cpu") for name in ("A", "B")]
    assert table.kept(steps[:1]) == ["inherited: 1 name keeps the original (1 no row for cpu)"]
    steps += [step(name, "original", own=False, reason=f"{name} is odd") for name in ("C", "D", "E")]
    told = "2 no row for cpu, 1 C is odd, 2 for other reasons"
    assert table.kept(steps) == [f"inherited: 5 names keep the original ({told})"]
    assert table.kept([]) == []


def test_inherited_names_that_keep_the_original_share_a_sentence_for_each_reason_if_all_are_wanted() -> None:
    steps = [step(name, "original", own=False, reason="no row for cpu") for name in ("A", "B")]
    steps.append(step("C", "original", own=False, rejected=[REFUSED]))
    assert table.lines(steps) == []
    assert table.kept(steps, names=True) == [
        "inherited, original kept (no build fits): C",
        "inherited, original kept (no row for cpu): A, B",
    ]


@pytest.mark.parametrize(
    ("said", "words"),
    [
        ({}, ""),
        ({"dtype": ["float16", "bfloat16"]}, "dtype is float16 or bfloat16"),
        ({"dtype": ["float16"], "when": {"config.act": ["silu"], "bias": [False]}},
         "dtype is float16 and config.act is silu and bias is False"),
    ],
)  # fmt: skip
def test_conditions_in_words(said: dict[str, object], words: str) -> None:
    assert table.conditions(said) == words


def test_a_line_names_the_first_values_of_a_condition_and_explain_names_all() -> None:
    many = [f"m{number}" for number in range(23)]
    assert table.conditions({"when": {"a": many}}, most=3) == "a is m0 or m1 or m2 or … 20 more"
    assert table.conditions({"when": {"a": many[:4]}}, most=3) == "a is m0 or m1 or m2 or m3"
    plan = kerncfg.plan("kernels=bundled", target="cpu")
    line = next(line for line in table.lines(plan.steps) if line.name == "rotary_pos_emb")
    assert "more" in line.why and "starcoder2" not in line.why
    assert "or starcoder2" in str(plan.explain("rotary_pos_emb"))


def test_a_plan_prints_as_a_plain_table() -> None:
    made = plan(step("Norm", "A"), step("SiLU", "original", own=False, reason="no row for cpu"))
    assert str(made) == (
        f"plan {made.digest[:12]} for cpu, torch None, x86_64 linux\n"
        "name  runs                  in         why                     said at\n"
        "Norm  python:tests.fakes:A  all modes  chosen for cpu          kernels.yaml:3\n"
        "      else original         all modes  fallback: the original\n"
        "inherited: 1 name keeps the original (1 no row for cpu)"
    )


def test_a_plan_without_rows_prints_its_heading() -> None:
    assert str(plan()) == f"plan {plan().digest[:12]} for cpu, torch None, x86_64 linux"
    assert plan()._repr_html_() == f"<p>{plan()}</p>"


def test_a_plan_is_a_table_in_a_notebook_with_everything_escaped() -> None:
    row = "kernels.N={cpu: 'builtin:RMSNorm', when: {act: '<b>'}}"
    html = kerncfg.plan("inherited=none", "target=cpu", row)._repr_html_()
    assert "<th>runs</th>" in html and "<td>builtin:RMSNorm</td>" in html
    assert "act is &lt;b&gt;" in html and "<b>" not in html


def test_notes_stand_below_the_table_in_both_forms() -> None:
    made = kerncfg.plan("inherited=none", "target=cpu", config={"trust": {
        "publishers": {"acme": True}, "repositories": {}, "allow_all_kernels": False,
    }})  # fmt: skip
    assert str(made).splitlines()[-1].startswith("note: trust.publishers.acme is ignored")
    assert "<li>note: trust.publishers.acme is ignored" in made._repr_html_()


def test_the_first_line_of_a_fusion_or_of_attention_says_what_it_takes() -> None:
    members = [("Norm", "a.norm"), ("MLP", "a.mlp")]
    lines = table.lines([
        step("f", "A", node="fusions", members=members), step("a", "A", node="attention", mask="auto"), step("N", "A"),
    ])  # fmt: skip
    assert [(line.name, line.why) for line in lines] == [
        ("fusions.f", "chosen for cpu; Norm at a.norm + MLP at a.mlp"),
        ("fusions.f", "fallback: the original"),
        ("attention.a", "chosen for cpu; attention of the whole model, mask auto"),
        ("attention.a", "fallback: the original"),
        ("N", "chosen for cpu"),
        ("N", "fallback: the original"),
    ]


def test_a_fusion_that_is_only_off_says_nothing_more() -> None:
    (line,) = table.lines([step("f", "original", node="fusions")])
    assert line.cells()[:4] == ("fusions.f", "original", "all modes", "off, as the row says")
