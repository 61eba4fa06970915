"""What one plan would do and another would not, from Python and from the command line."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import kerncfg
from kerncfg.cli import main
from kerncfg.compiler.schema import validate
from kerncfg.documents.config import KernelRef
from kerncfg.documents.plan import Choice, Kernel, Plan, Rejection, Step
from kerncfg.documents.target import Mode
from tests.planning import HERE, choice, plan, ref, step


def exact(name: str = "A", **parts: Any) -> Choice:
    """A choice with the exact code behind it."""
    made = choice(name)
    return replace(made, kernel=replace(made.kernel, **parts))


def text(before: Step | None, after: Step | None) -> str:
    return str(plan(*filter(None, [before])).diff(plan(*filter(None, [after]))))


def test_the_same_plans_differ_in_nothing() -> None:
    difference = plan(step("N", "A")).diff(plan(step("N", "A")))
    assert not difference
    assert str(difference) == "the plans do the same"


def test_origins_reasons_and_where_a_folder_lies_make_no_difference() -> None:
    mine = Choice(kernel=Kernel(reference=KernelRef.parse("/mine:N"), digest="1" * 64), origin="a.yaml:1", reason="x")
    yours = Choice(kernel=Kernel(reference=KernelRef.parse("/yours:N"), digest="1" * 64), origin=None, reason="y")
    assert not plan(step("N", mine)).diff(plan(step("N", yours)))


DIFFERENT = [
    step("N", "B"),
    step("N", ["A", "B"]),
    step("N", "original"),
    step("N", choice("A", dtype=["float16"])),
    step("N", exact(digest="1" * 64)),
    step("N", exact(commit="2" * 40)),
    step("N", exact(variant="torch-cuda")),
    step("N", {Mode.TRAINING: "A"}),
    step("N", "A", match={"class": "*N"}),
    step("N", "A", exclude=["lm.*"]),
    step("N", "A", fallback="error"),
    step("M", "A"),
    step("N", "A", node="fusions", members=[("Norm", "a.norm"), ("MLP", "a.mlp")]),
    step("N", "A", node="fusions", members=[("MLP", "a.mlp"), ("Norm", "a.norm")]),
    step("N", "A", node="attention", mask="auto"),
    step("N", "A", node="attention", mask="sdpa"),
    step("N", "A", node="attention", mask="auto", path="x.**"),
]


@pytest.mark.parametrize("other", DIFFERENT)
@pytest.mark.parametrize("base", [step("N", "A"), *DIFFERENT])
def test_plans_differ_exactly_where_their_digests_do(base: Step, other: Step) -> None:
    before, after = plan(base), plan(other)
    assert bool(before.diff(after)) == (before.digest != after.digest)
    validate(before.diff(after).to_dict(), "difference")


def test_another_kernel_is_told_with_what_the_second_plan_says_of_it() -> None:
    refused = Rejection(reference=ref("A"), reason="needs capability >=9.0, the target has 8.0", origin=None)
    assert text(step("N", "A"), step("N", "B", rejected=[refused])) == (
        "N (all modes): python:tests.fakes:A else original -> python:tests.fakes:B else original\n"
        "  not python:tests.fakes:A: needs capability >=9.0, the target has 8.0"
    )
    assert text(step("N", "A"), step("N", "B")).endswith("\n  chosen for cpu, said at kernels.yaml:3")


def test_a_kernel_lost_to_the_fallback_is_told_with_what_was_refused() -> None:
    refused = Rejection(reference="org/b@v1:B", reason="no build fits", origin=None)
    assert text(step("N", "A"), step("N", (), rejected=[refused])) == (
        "N (all modes): python:tests.fakes:A else original -> original\n  not org/b@v1:B: no build fits"
    )
    assert text(step("N", "A"), step("N", ())).endswith("\n  fallback: the original")


def test_a_mode_that_is_left_with_nothing_says_so() -> None:
    gone = text(step("N", "A", fallback="error"), step("N", {}, fallback="error"))
    assert gone == "N (all modes): python:tests.fakes:A -> nothing"


def test_modes_that_change_alike_share_a_line() -> None:
    lines = text(step("N", "A"), step("N", {Mode.INFERENCE: "A", Mode.TRAINING: "B"})).splitlines()
    assert [line.partition(":")[0] for line in lines[::2]] == [
        "N (training)",
        "N (inference_compile, training_compile)",
    ]


def test_other_code_behind_the_same_reference_shows_the_code() -> None:
    before, after = exact(commit="1" * 40, digest="a" * 64), exact(commit="2" * 40, digest="b" * 64)
    line = text(step("N", before, fallback="error"), step("N", after, fallback="error")).splitlines()[0]
    assert line == (
        "N (all modes): python:tests.fakes:A [111111111111, aaaaaaaaaaaa]"
        " -> python:tests.fakes:A [222222222222, bbbbbbbbbbbb]"
    )


def test_conditions_are_part_of_what_runs() -> None:
    line = text(step("N", "A", fallback="error"), step("N", choice("A", dtype=["float16"]), fallback="error"))
    assert line.splitlines()[0] == "N (all modes): python:tests.fakes:A -> python:tests.fakes:A if dtype is float16"


def test_a_name_in_one_plan_only() -> None:
    one = step("N", "A", fallback="error")
    assert text(None, one) == (
        "N (all modes): (not there) -> python:tests.fakes:A\n  only the second plan has this name"
    )
    assert text(one, None) == "N (all modes): python:tests.fakes:A -> (not there)\n  only the first plan has this name"


def test_which_modules_a_row_takes() -> None:
    before = step("N", "A", match={"class": "*N", "path": "m.*"}, exclude=["a.*", "b.*"])
    assert text(before, step("N", "A", fallback="error")).splitlines()[-3:] == [
        "N (match): class *N, path m.* -> none",
        "N (exclude): a.*, b.* -> none",
        "N (fallback): original -> error",
    ]


def test_a_plan_that_lacks_a_mode() -> None:
    whole = step("N", "A", fallback="error")
    part = replace(whole, modes={Mode.INFERENCE: whole.modes[Mode.INFERENCE]})
    assert text(whole, part) == (
        "N (training, inference_compile, training_compile): python:tests.fakes:A -> nothing\n"
        "  the second plan says nothing of this mode"
    )


def test_target_and_policy() -> None:
    there = replace(HERE, capability="9.0", packages={"triton": "3.6", "kernels": "0.17"})
    before = plan(target=replace(HERE, packages={"triton": "3.5", "kernels": "0.17"}))
    difference = before.diff(plan(target=there, strict=True))
    assert str(difference) == (
        "target.capability: none -> 9.0\ntarget.packages.triton: 3.5 -> 3.6\npolicy.strict: false -> true"
    )
    assert difference.target == {"capability": (None, "9.0"), "packages.triton": ("3.5", "3.6")}
    validate(difference.to_dict(), "difference")


def test_a_notebook_shows_the_text_escaped() -> None:
    html = plan().diff(plan(step("N", "A")))._repr_html_()
    assert html.startswith("<pre>N (all modes): (not there) -&gt; python:tests.fakes:A")


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    folder = tmp_path_factory.mktemp("plans")
    made = {
        "bundled": kerncfg.plan("kernels=bundled", target="h100"),
        "again": kerncfg.plan("kernels=bundled", target="h100"),
        "off": kerncfg.plan("kernels=bundled", "kernels.SwiGLUMLP=null", target="h100"),
    }
    for name, found in made.items():
        found.save(folder / f"{name}.json")
    (folder / "edited.json").write_text(made["off"].to_json().replace('"9.0"', '"8.0"'))
    (folder / "old.json").write_text(made["off"].to_json().replace('"schema": 1', '"schema": 99'))
    (folder / "report.json").write_text('{"rows": [], "counts": {}, "notes": []}')
    (folder / "half.json").write_text('{"schema": 1, "digest": "x", "steps": []}')
    return {file.stem: str(file) for file in folder.iterdir()}


def test_two_files_that_do_the_same_are_fine(files: dict[str, str], capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["diff", files["bundled"], files["again"]]) == 0
    assert capsys.readouterr().out == "the plans do the same\n"


def test_two_files_that_differ_are_a_finding(files: dict[str, str], capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["diff", files["bundled"], files["off"]]) == 1
    out = capsys.readouterr().out
    assert out == (
        "SwiGLUMLP (all modes): builtin:SwiGLUMLP if config.hidden_act is silu or swish else original -> original\n"
        "  off, as the row says, said at override: kernels.SwiGLUMLP=null\n"
        "SwiGLUMLP (match): class *MLP -> none\n"
    )


def test_json_is_in_the_form_of_its_schema(files: dict[str, str], capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["diff", "--json", files["bundled"], files["off"]]) == 1
    data = json.loads(capsys.readouterr().out)
    validate(data, "difference")
    assert (data["same"], [change["name"] for change in data["changes"]]) == (False, ["SwiGLUMLP", "SwiGLUMLP"])
    assert main(["diff", "--json", files["bundled"], files["again"]]) == 0
    assert json.loads(capsys.readouterr().out)["same"]


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("report", "is no plan, it has no schema and no digest and no steps"),
        ("half", "`target` is missing"),
        ("edited", "the plan's content has digest"),
        ("old", "the plan has format 99, this kerncfg reads 1"),
        ("missing", "No such file or directory"),
    ],
)
def test_a_file_that_is_no_plan_is_named(
    files: dict[str, str], name: str, message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    file = files.get(name, "missing.json")
    assert main(["diff", files["off"], file]) == 1
    err = capsys.readouterr().err
    assert err.startswith(f"error: {file}: ")
    assert message in err


@pytest.mark.parametrize("count", [0, 1, 3])
def test_it_takes_two_files(files: dict[str, str], count: int, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["diff", *[files["off"]] * count]) == 1
    assert capsys.readouterr().err.startswith(f"error: diff needs two plan files, found {count}\n  hint: ")


def test_a_plan_is_compared_with_one_from_a_file(files: dict[str, str]) -> None:
    here = kerncfg.plan("kernels=bundled", target="h100")
    assert not here.diff(kerncfg.load_plan(Path(files["again"])))
    assert isinstance(kerncfg.load_plan(files["off"]), Plan)


def test_what_a_fusion_or_a_row_of_attention_takes() -> None:
    one = step("f", "A", node="fusions", members=[("Norm", "a.norm"), ("MLP", "a.mlp")])
    other = step("f", "A", node="fusions", members=[("MLP", "a.mlp"), ("Norm", "a.norm")])
    assert text(one, other) == ("fusions.f (members): Norm at a.norm, MLP at a.mlp -> MLP at a.mlp, Norm at a.norm")
    before = step("a", "A", node="attention", mask="auto")
    after = step("a", "A", node="attention", mask="sdpa", path="x.**")
    assert text(before, after) == "attention.a (path): none -> x.**\nattention.a (mask): auto -> sdpa"


def test_rows_of_one_name_in_two_nodes_are_two_names() -> None:
    both = plan(step("N", "A"), step("N", "A", node="attention", mask="auto"))
    assert [change.name for change in both.diff(plan(step("N", "B"))).changes] == ["N", "attention.N"]
