"""Why a name runs what it runs, from Python and from the command line."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

import kerncfg
from kerncfg.cli import main
from kerncfg.compiler.normalise import normalise
from kerncfg.compiler.resolve import resolve
from kerncfg.compiler.schema import validate
from kerncfg.documents.plan import Rejection
from kerncfg.documents.target import Mode
from kerncfg.errors import ConfigError
from tests import builders
from tests.builders import A, B, C
from tests.planning import choice, plan, step


def unreached(made: kerncfg.Plan, mode: Mode = Mode.INFERENCE) -> list[tuple[str, str]]:
    return [(entry.reference, entry.reason) for entry in builders.step(made).modes[mode].unreached]


def test_it_says_of_every_mode_what_runs_in_order_and_what_does_not() -> None:
    refused = Rejection(reference="org/a@v1:A", reason="no build fits", origin="mine.yaml:4")
    said = {Mode.INFERENCE: ["A", "B"], Mode.TRAINING: ["A", "B"]}
    made = plan(step("Norm", said, rejected=[refused], match={"class": "*Norm"}, exclude=["lm.*"], reason="it does"))
    assert str(made.explain("Norm")) == (
        "Norm for cpu (your rows): it does\n"
        "takes: modules whose class is *Norm, but not lm.*\n"
        "where no choice suits a module: the original\n"
        "asked of each module when the plan is applied: signature, attributes, has_backward\n"
        "\n"
        "inference, training:\n"
        "  1. python:tests.fakes:A, said at kernels.yaml:3\n"
        "     chosen for cpu\n"
        "  2. python:tests.fakes:B, said at kernels.yaml:3\n"
        "     chosen for cpu\n"
        "  3. original\n"
        "     fallback: the original\n"
        "  not: org/a@v1:A, said at mine.yaml:4\n"
        "     no build fits\n"
        "\n"
        "inference_compile, training_compile:\n"
        "  1. original\n"
        "     fallback: the original\n"
        "  not: org/a@v1:A, said at mine.yaml:4\n"
        "     no build fits"
    )


def test_it_names_the_build_and_the_conditions_left_to_a_module() -> None:
    text = str(kerncfg.plan("kernels=bundled", "target=h100").explain("SwiGLUMLP"))
    assert "  1. builtin:SwiGLUMLP (digest " in text
    assert "     left to each module: config.hidden_act is silu or swish" in text


def test_it_says_of_every_build_why_it_was_taken_or_not_where_there_are_several() -> None:
    verdicts = {"torch-cpu": "chosen", "torch-cuda": "built for cuda, the target is cpu"}
    several = replace(choice("A"), builds=verdicts)
    text = str(plan(step("Norm", several)).explain("Norm"))
    expected = "     build torch-cpu: chosen\n     build torch-cuda: built for cuda, the target is cpu\n  2. "
    assert f"     chosen for cpu\n{expected}" in text
    assert "build" not in str(plan(step("Norm", replace(several, builds={"torch-cpu": "chosen"}))).explain("Norm"))


def test_it_names_what_the_target_was_found_to_meet() -> None:
    row = "kernels.N={cuda: 'builtin:RMSNorm', capability: '>=8.0', torch: '>=2.9'}"
    text = str(kerncfg.plan("inherited=none", "target=h100", row).explain("N"))
    assert "     met by the target: capability >=8.0, torch >=2.9\n" in text


def test_a_name_that_only_keeps_the_original_says_nothing_of_falling_back() -> None:
    text = str(plan(step("Norm", "original", own=False, reason="no row for cpu")).explain("Norm"))
    assert text.startswith("Norm for cpu (inherited): no row for cpu\ntakes: what is registered as Norm\n\nall modes:")


def test_what_was_inherited_and_replaced_is_there_with_the_line_that_did() -> None:
    origins = {"kernels.N": builders.file(line=3), "inherited.N": builders.preset("kernels/default.yaml", 9)}
    document = builders.document({"N": {"cuda": A}}, {"N": {"cuda": [B, C]}})
    config = normalise(document, origins=builders.origins(document, at=origins))
    made = resolve(config, builders.locked(config), builders.request())
    assert unreached(made) == [
        (B, f"replaced by your {A}, said at conf/kernels/mine.yaml:3"),
        (C, f"replaced by your {A}, said at conf/kernels/mine.yaml:3"),
    ]
    assert f"  not asked: {B}, said at preset: kernels/default.yaml:9" in str(made.explain("N"))


def test_what_own_rows_kept_of_the_inherited_is_not_called_replaced() -> None:
    assert unreached(builders.plan({"N": {"cuda": [A, "inherited"]}}, {"N": {"cuda": B}})) == []


def test_what_was_inherited_for_another_mode_is_replaced_where_it_would_have_served() -> None:
    made = builders.plan({"N": {"cuda": {"inference": A}}}, {"N": {"cuda": {"training": B}}})
    assert unreached(made) == [(B, f"replaced by your {A}")]
    assert unreached(made, Mode.TRAINING) == []


def test_a_row_that_takes_nothing_inherited_says_so() -> None:
    made = builders.plan({"N": {"inherit_mapping": False, "rocm": A}}, {"N": {"cuda": B}})
    assert unreached(made) == [(B, "the row takes nothing inherited")]
    made = builders.plan({"inherit_mapping": False, "N": {"rocm": A}}, {"N": {"cuda": B}, "M": {"cuda": B}})
    assert unreached(made) == [(B, "the row takes nothing inherited")]
    assert [step.name for step in made.steps] == ["N"]


def test_what_stands_behind_a_written_original_was_never_asked() -> None:
    made = builders.plan({"N": {"cuda": {"inference": "original", "training": A}}})
    assert unreached(made) == [(A, "the original stands before it")]
    assert unreached(made, Mode.TRAINING) == []


def test_with_everything_switched_off_nothing_is_asked() -> None:
    made = builders.plan({"N": {"cuda": [A, B]}}, enabled=False)
    assert unreached(made) == [(ref, "kernels are switched off: enabled is false, needed true") for ref in (A, B)]


def test_what_nobody_asked_about_is_not_in_the_digest_but_in_the_file() -> None:
    made = builders.plan({"N": {"cuda": A}}, {"N": {"cuda": B}})
    other = builders.plan({"N": {"cuda": A}})
    assert made.digest == other.digest
    assert kerncfg.Plan.from_dict(json.loads(made.to_json())).steps == made.steps != other.steps


def test_what_a_row_lost_is_told_with_it_and_not_with_another() -> None:
    words = ("kernels.A.cuda=org/a@v1:A", "kernels.A.cuda.inference=org/b@v1:B", "kernels.AB.cuda=org/a@v1:A")
    made = kerncfg.plan("inherited=none", "target=h100", *words)
    (note,) = made.explain("A").notes
    assert note.startswith("kernels.A.cuda: a map takes the place of 'org/a@v1:A', said at override: ")
    assert str(made.explain("A")).endswith(f"\n\nnote: {note}")
    assert made.explain("AB").notes == ()


@pytest.mark.parametrize(
    ("name", "hint"),
    [
        ("RMSNrom", "did you mean RMSNorm or RMSNormGated?"),
        ("rmsnorm", "did you mean RMSNorm or RMSNormGated?"),
    ],
)
def test_an_unknown_name_is_answered_with_the_nearest(name: str, hint: str) -> None:
    with pytest.raises(ConfigError) as caught:
        kerncfg.plan(target="mi300x").explain(name)
    (issue,) = caught.value.issues
    assert (issue.message, issue.hint) == (f"no row is named {name!r}", hint)


def test_a_name_like_no_other_is_answered_with_all() -> None:
    with pytest.raises(ConfigError, match=r"there are A, B$"):
        plan(step("A", "A"), step("B", "A")).explain("Xyz")
    with pytest.raises(ConfigError, match=r"there are none$"):
        plan().explain("Xyz")


def test_a_notebook_shows_the_text_escaped() -> None:
    made = plan(step("Norm", "A", reason="<i>"))
    assert made.explain("Norm")._repr_html_().startswith("<pre>Norm for cpu (your rows): &lt;i&gt;\n")


def test_the_command_answers_for_a_machine_that_is_not_here(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["explain", "RMSNorm", "target=mi300x"]) == 0
    out = capsys.readouterr().out
    assert out.startswith("RMSNorm for rocm 9.4 (inherited): ")
    assert "  not: kernels-community/liger-kernels@v3:LigerRMSNorm, said at preset: kernels/default.yaml:" in out


def test_the_name_and_the_overrides_come_in_any_order(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["explain", "target=mi300x", "--trust", "acme", "RMSNorm", "kernels=bundled"]) == 0
    assert "  1. builtin:RMSNorm (digest " in capsys.readouterr().out


def test_json_is_in_the_form_of_its_schema(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["explain", "--json", "RMSNorm", "kernels=bundled", "target=h100"]) == 0
    data = json.loads(capsys.readouterr().out)
    validate(data, "explanation")
    assert data["step"]["name"] == "RMSNorm"
    assert data["step"]["modes"]["inference"]["unreached"][0]["reason"].startswith("replaced by your builtin:RMSNorm")


@pytest.mark.parametrize(
    ("words", "error"),
    [
        (["target=h100"], "explain needs one name, found no name"),
        (["A", "B"], "explain needs one name, found 2 names: A, B"),
    ],
)
def test_it_takes_one_name(capsys: pytest.CaptureFixture[str], words: list[str], error: str) -> None:
    assert main(["explain", *words]) == 1
    assert capsys.readouterr().err.startswith(f"error: {error}\n  hint: write kerncfg explain NAME key=value …\n")


def test_an_unknown_name_is_text_on_standard_error_also_under_json(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["explain", "--json", "RMSNrom", "target=mi300x"]) == 1
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err.startswith("error: no row is named 'RMSNrom'\n  hint: did you mean RMSNorm")


def test_it_imports_no_torch() -> None:
    program = (
        "import sys; from kerncfg.cli import main; code = main(['explain', 'RMSNorm', 'target=mi300x']); "
        "sys.exit(code or int('torch' in sys.modules))"
    )
    env = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[1])}
    done = subprocess.run([sys.executable, "-c", program], env=env, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


def test_a_row_taken_out_is_explained_as_the_inherited_one_and_one_set_to_null_as_off() -> None:
    removed = kerncfg.plan("kernels=bundled", "~kernels.RMSNorm", target="h100").explain("RMSNorm")
    assert str(removed).startswith("RMSNorm for cuda 9.0 (inherited): ")
    off = kerncfg.plan("kernels=bundled", "kernels.RMSNorm=null", target="h100").explain("RMSNorm")
    assert "  1. original, said at override: kernels.RMSNorm=null\n     off, " in str(off)
    assert "     replaced by your original, said at override: kernels.RMSNorm=null" in str(off)


F = step("N", "A", node="fusions", members=[("Norm", "a.*.norm"), ("MLP", "a.*.mlp")])


def test_it_says_which_modules_a_fusion_and_which_parts_a_row_of_attention_takes() -> None:
    made = plan(
        F, step("a", "A", node="attention", mask="sdpa", path="x.**"), step("b", "A", node="attention", mask="auto")
    )
    assert str(made.explain("N")).splitlines()[:2] == [
        "fusions.N for cpu (your rows): ", "takes: Norm at a.*.norm + MLP at a.*.mlp",
    ]  # fmt: skip
    assert str(made.explain("a")).splitlines()[1] == "takes: attention of x.**, mask sdpa"
    assert str(made.explain("attention.b")).splitlines()[1] == "takes: attention of the whole model, mask auto"


def test_a_name_in_two_nodes_is_said_with_its_node() -> None:
    made = plan(step("N", "A"), F)
    with pytest.raises(ConfigError) as caught:
        made.explain("N")
    (issue,) = caught.value.issues
    assert (issue.message, issue.hint) == ("2 rows are named 'N'", "say which: kernels.N or fusions.N")
    assert made.explain("fusions.N").step is F
    assert made.explain("kernels.N").step.node == "kernels"


def test_an_inherited_name_may_be_said_with_either_node() -> None:
    made = plan(step("N", "A", own=False))
    assert made.explain("inherited.N").step is made.explain("kernels.N").step


def test_a_misspelt_row_of_another_node_is_answered_with_its_node() -> None:
    for name in ("norm_mpl", "fusions.norm_mpl"):
        with pytest.raises(ConfigError, match=r"did you mean fusions\.norm_mlp\?"):
            plan(step("norm_mlp", "A", node="fusions")).explain(name)


def test_notes_of_another_node_are_not_told() -> None:
    notes = ("kernels.N: one", "fusions.N.kernel: two", "inherited.N: three")
    made = plan(step("N", "A"), F)
    made = type(made)(target=made.target, steps=made.steps, strict=False, notes=notes)
    assert made.explain("fusions.N").notes == ("fusions.N.kernel: two",)
    assert made.explain("kernels.N").notes == ("kernels.N: one", "inherited.N: three")
