"""What people tripped over elsewhere with a mapping of kernels in YAML, and what happens here."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
import yaml

import kerncfg
from kerncfg.compiler.checking import check_file
from kerncfg.compiler.compose import compose
from kerncfg.compiler.schema import validate
from kerncfg.documents.target import Mode
from kerncfg.errors import ConfigError
from tests.builders import kernel_folder

if TYPE_CHECKING:
    from kerncfg.documents.plan import Plan, Step

INFERENCE = Mode.INFERENCE
BOOLEANS = [
    spelling
    for word in ("yes", "no", "true", "false", "on", "off")
    for spelling in (word, word.title(), word.upper())
]  # fmt: skip


@pytest.fixture
def mine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder of one's own groups in the working directory."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "mine/kernels").mkdir(parents=True)
    return tmp_path / "mine"


def written(folder: Path, text: str) -> Path:
    (folder / "kernels/own.yaml").write_text(text, encoding="utf-8")
    return folder


def plan(text: str, folder: Path, *words: str, target: str = "cpu") -> Plan:
    return kerncfg.plan("kernels=own", *words, f"target={target}", config_dir=written(folder, text))


def step(made: Plan, name: str) -> Step:
    found = made.step(name)
    assert found is not None
    return found


def refusal(text: str, folder: Path, *words: str) -> list[str]:
    with pytest.raises(ConfigError) as caught:
        plan(text, folder, *words)
    return str(caught.value).splitlines()


# ------------------------------------------------------------------------------------------ local kernels and origins


@pytest.mark.parametrize("start", ["", "mine", "elsewhere"])
def test_a_relative_folder_starts_at_the_file_that_says_it_wherever_one_stands(
    start: str, mine: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    kernel_folder(mine / "norms/torch-universal/norms")
    (mine.parent / "elsewhere").mkdir()
    monkeypatch.chdir(mine.parent / start)
    made = plan("RMSNorm: ../norms:Norm\nSiLU: org/act@v1:Silu\nGELU: 'C:\\k\\act:Gelu'\n", mine)
    choice = step(made, "RMSNorm").modes[INFERENCE].choices[0]
    assert str(choice.kernel.reference) == f"{mine}/norms:Norm"
    named = {name: step(made, name).modes[INFERENCE].rejected[0].reference for name in ("SiLU", "GELU")}
    assert named == {"SiLU": "org/act@v1:Silu", "GELU": "C:\\k\\act:Gelu"}


def test_a_folder_that_is_not_there_is_told_with_the_place_looked_at(mine: Path) -> None:
    (rejected,) = step(plan("RMSNorm: ./nowhere:Norm\n", mine), "RMSNorm").modes[INFERENCE].rejected
    assert f"{mine}/kernels/nowhere" in rejected.reason


@pytest.mark.parametrize("way", ["file", "override"])
@pytest.mark.parametrize("text", ["./norms:Norm", "../norms:Norm"])
def test_a_relative_folder_that_came_by_interpolation_is_refused(way: str, text: str, mine: Path) -> None:
    said = f"RMSNorm: {text}\n" + ("SiLU: ${kernels.RMSNorm}\n" if way == "file" else "")
    words = [] if way == "file" else ["kernels.SiLU=${kernels.RMSNorm}"]
    first = refusal(said, mine, *words)[0]
    assert first.endswith(
        f"kernels.SiLU: {text!r} is a relative folder that came by ${{kernels.RMSNorm}}, "
        "so no file says what it is relative to"
    )


@pytest.mark.parametrize("text", ["/norms:Norm", "~/norms:Norm", "org/a@v1:A", "python:a.b:C"])
def test_any_other_reference_may_come_by_interpolation(text: str, mine: Path) -> None:
    made = plan(f"RMSNorm: {text}\nSiLU: ${{kernels.RMSNorm}}\n", mine)
    found = {name: step(made, name).modes[INFERENCE].rejected[0].reference for name in ("RMSNorm", "SiLU")}
    assert found["RMSNorm"] == found["SiLU"] == str(Path(text).expanduser() if text.startswith("~") else text)


def test_an_aliased_value_was_said_where_its_characters_stand(mine: Path) -> None:
    made = plan("RMSNorm:\n  cuda: &norm org/a@v1:A\n  cpu: *norm\n", mine)
    assert step(made, "RMSNorm").modes[INFERENCE].rejected[0].origin == "mine/kernels/own.yaml:2"


@pytest.mark.parametrize(
    ("first", "word", "lost"),
    [
        ("org/a@v1:A", "kernels.RMSNorm.rocm=org/b@v1:B", "'org/a@v1:A'"),
        ("[org/a@v1:A, inherited]", "kernels.RMSNorm={rocm: org/b@v1:B}", None),
        ("\n  cuda: org/a@v1:A", "kernels.RMSNorm.cuda={inference: org/b@v1:B}", None),
        ("\n  cuda: org/a@v1:A", "kernels.RMSNorm.cuda.inference=org/b@v1:B", "'org/a@v1:A'"),
    ],
)
def test_text_that_a_map_took_the_place_of_is_told_in_the_plan(
    first: str, word: str, lost: str | None, mine: Path
) -> None:
    notes = [note for note in plan(f"RMSNorm: {first}\n", mine, word).notes if "takes the place" in note]
    if lost is not None:
        assert len(notes) == 1 and lost in notes[0] and "said at mine/kernels/own.yaml:" in notes[0]


def test_a_file_that_replaces_a_list_by_a_map_is_told_in_the_plan(mine: Path) -> None:
    (mine / "kernels/base.yaml").write_text("RMSNorm: [org/a@v1:A, inherited]\n", encoding="utf-8")
    made = plan("defaults: [base, _self_]\nRMSNorm:\n  rocm: org/b@v1:B\n", mine)
    (note,) = made.notes
    assert note == "kernels.RMSNorm: a map takes the place of a list, said at mine/kernels/base.yaml:1"


def test_an_installed_package_of_the_same_name_never_takes_a_rows_place(
    mine: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (mine.parent / "attn.py").write_text("def fn(): raise SystemExit\n", encoding="utf-8")
    monkeypatch.syspath_prepend(str(mine.parent))
    made = plan("fn: kernels-community/attn@v1:fn\n", mine)
    found = step(made, "fn").modes[INFERENCE]
    said = [each.origin for each in found.rejected] + [each.origin for each in found.choices if each.origin]
    assert set(said) == {"mine/kernels/own.yaml:1"}


# ------------------------------------------------------------------------------- devices, conditions, any, lists, match


def test_every_device_is_a_full_member_and_one_row_may_be_for_another(mine: Path) -> None:
    text = "RMSNorm: {cpu: builtin:RMSNorm}\nNorm: {cuda: org/a@v1:A}\n"
    on_cuda, on_cpu = plan(text, mine, "inherited=none", target="h100"), plan(text, mine, "inherited=none")
    assert step(on_cuda, "RMSNorm").reason == "no row for cuda"
    assert str(step(on_cpu, "RMSNorm").modes[INFERENCE].choices[0].kernel.reference) == "builtin:RMSNorm"
    assert step(on_cpu, "Norm").reason == "no row for cpu"


def test_a_candidate_for_any_device_stands_beside_devices_and_conditions_hold_for_each(mine: Path) -> None:
    text = """
Norm:
  kernel: org/any:A
  version: 2
  torch: ">=2.9"
  cuda: {kernel: org/cuda@v1:B, capability: ">=9.0"}
  rocm: [org/rocm@v1:C, inherited]
  cpu: null
"""
    named = {}
    for target in ("h100", "mi300x", "max1550", "cpu"):
        found = step(plan(text, mine, "inherited.Norm=org/low@v1:L", target=target), "Norm").modes[INFERENCE]
        named[target] = [each.reference for each in found.rejected]
    assert named == {
        "h100": ["org/cuda@v1:B"],
        "mi300x": ["org/rocm@v1:C", "org/any@v2:A"],
        "max1550": ["org/any@v2:A"],
        "cpu": [],
    }


def test_what_a_module_must_answer_stays_in_the_plan(mine: Path) -> None:
    text = "Norm: {kernel: builtin:RMSNorm, dtype: [bfloat16, float32], when: {config: {hidden_act: silu}}}\n"
    (choice, _) = step(plan(text, mine), "Norm").modes[INFERENCE].choices
    assert choice.conditions == {"dtype": ["bfloat16", "float32"], "when": {"config.hidden_act": ["silu"]}}


@pytest.mark.parametrize(
    ("condition", "reason"),
    [
        ("capability: '<9.0'", "needs capability <9.0, the target has 9.0"),
        ("torch: '>=99'", "needs torch >=99, the target has"),
    ],
)
def test_what_the_target_answers_is_a_reason_that_names_both_sides(condition: str, reason: str, mine: Path) -> None:
    text = f"Norm: {{kernel: builtin:RMSNorm, {condition}}}\n"
    (rejected,) = step(plan(text, mine, target="h100"), "Norm").modes[INFERENCE].rejected
    assert reason in rejected.reason


def test_a_row_may_take_modules_by_a_registered_name(mine: Path) -> None:
    made = step(plan("norms: {match: {name: RMSNorm, path: 'model.**'}, cpu: builtin:RMSNorm}\n", mine), "norms")
    assert made.match is not None and made.match.to_dict() == {"path": "model.**", "name": "RMSNorm"}


@pytest.mark.parametrize(
    ("text", "both"),
    [
        ("X: {metal: a/b:C, mps: d/e:F}\n", "kernels.X.mps: 'mps' is said twice in one row"),
        ("X: {kernel: a/b:C, any: d/e:F}\n", "kernels.X.any: 'any' is said twice in one row"),
        ("X: {kernel: a/b:C, when: {a.b: 1, a: {b: 2}}}\n", "kernels.X.when.a.b: 'a.b' is said twice"),
    ],
)
def test_two_keys_for_one_thing_are_a_conflict_that_is_named(text: str, both: str, mine: Path) -> None:
    assert both in refusal(text, mine)[0]


# ---------------------------------------------------------------------------------- YAML's traps, by file and override


def test_the_spellings_are_all_that_yaml_takes_for_booleans() -> None:
    assert all(isinstance(yaml.safe_load(word), bool) for word in BOOLEANS)
    rules = yaml.SafeLoader.yaml_implicit_resolvers.values()
    pattern = next(regexp for found in rules for tag, regexp in found if tag.endswith(":bool"))
    assert len(BOOLEANS) == pattern.pattern.count("|") + 1


@pytest.mark.parametrize("word", BOOLEANS)
def test_a_boolean_where_text_or_a_number_is_due_is_quoted_as_it_was_written(word: str, mine: Path) -> None:
    assert f"kernels.B.version: {word} is a boolean" in refusal(f"B: {{kernel: a/b:C, version: {word}}}\n", mine)[0]
    assert f" {word} is a" in refusal("B: {kernel: a/b:C}\n", mine, f"kernels.B.version={word}")[0]


@pytest.mark.parametrize("word", [*BOOLEANS, "null", "~", "1", "1.10", "61e9540", "0123456", "12:30:45"])
def test_a_key_that_is_no_text_is_quoted_as_it_was_written(word: str, mine: Path) -> None:
    assert f"the key {word} is " in refusal(f"{word}: a/b:C\n", mine)[0]


@pytest.mark.parametrize("word", [*BOOLEANS, "null", "1", "61e9540", "0123456"])
def test_such_a_key_is_refused_by_override_too(word: str) -> None:
    for typed in (f"kernels.{word}=a/b:C", f"kernels.X.when={{{word}: 1}}", f"model.config.{word}.x=1"):
        with pytest.raises(ConfigError, match=r"is a boolean|is a number|is null"):
            compose([typed])


def test_nothing_is_built_from_a_configuration(mine: Path) -> None:
    assert "_target_" in refusal("X: {_target_: os.system, command: touch marker}\n", mine)[0]
    for typed in ("kernels.X._target_=os.system", "model.config={_target_: os.mkdir, path: marker}"):
        with pytest.raises(ConfigError, match="never builds objects"):
            kerncfg.plan(typed, "target=cpu")
    assert not (mine.parent / "marker").exists()


# ------------------------------------------------------------------------------------- overrides of every kind of row

REACHED: dict[str, tuple[str, Any]] = {
    "kernels.Text=org/b@v2:B": ("Text", "org/b@v2:B"),
    "kernels.Text.version=2": ("Text", {"kernel": "org/a:A", "version": 2}),
    "kernels.Device.cuda=null": ("Device", {"cuda": None}),
    "kernels.Device.cuda.version=3": ("Device", {"cuda": {"kernel": "org/a:A", "version": 3}}),
    "kernels.Device.cuda.training=original": ("Device", {"cuda": {"training": "original"}}),
    "kernels.Listed.0=org/b@v1:B": ("Listed", ["org/b@v1:B", "inherited"]),
    "kernels.Mode.cpu.training=builtin:RMSNorm": (
        "Mode", {"cpu": {"inference": "org/a:A", "training": "builtin:RMSNorm"}},
    ),
    "kernels.norms.match.path='layers.*.norm'": ("norms", {"match": {"path": "layers.*.norm"}, "cpu": "org/a:A"}),
    "kernels.norms.exclude=[layers.0.*]": (
        "norms", {"match": {"path": "model.**"}, "cpu": "org/a:A", "exclude": ["layers.0.*"]},
    ),
    "kernels={only: {match: {path: 'model.layers.*.mlp'}, cpu: org/a:A}}": (
        "only", {"match": {"path": "model.layers.*.mlp"}, "cpu": "org/a:A"},
    ),
}  # fmt: skip

ROWS = """
Text: org/a:A
Device: {cuda: org/a:A}
Listed: [org/a:A, inherited]
Mode: {cpu: {inference: org/a:A}}
norms: {match: {path: "model.**"}, cpu: org/a:A}
"""


@pytest.mark.parametrize("typed", REACHED)
def test_every_kind_of_row_is_reached_by_an_override(typed: str, mine: Path) -> None:
    name, row = REACHED[typed]
    document, origins = compose(["kernels=own", typed], config_dir=written(mine, ROWS))
    assert document["kernels"][name] == row
    validate(document, origins=origins)


@pytest.mark.parametrize(
    "typed", ["kernels.model.layers.*.mlp=x", "kernels['a.b']=x", "kernels={'a.b': 1}", "kernels.a,b=x"]
)
def test_a_pattern_as_a_key_is_refused_with_a_spelling_that_works(typed: str) -> None:
    with pytest.raises(ConfigError) as caught:
        kerncfg.plan(typed)
    first, *_ = caught.value.issues
    assert first.file == f"override: {typed}" and first.hint
    assert "cannot stand" in first.message and "name the row" in first.hint


@pytest.mark.parametrize("own", ["RMSNorm: org/mine@v1:N\n", "RMSNorm: null\n", "{}\n"])
def test_taken_out_means_inherited_and_null_means_off(own: str, mine: Path) -> None:
    inherited = "inherited.RMSNorm=org/low@v1:L"
    for words, first in {
        ("~kernels.RMSNorm",): "org/low@v1:L",
        ("kernels.RMSNorm=null",): "off",
        ("kernels.RMSNorm=",): "off",
        ("kernels.RMSNorm=null", "~kernels.RMSNorm"): "org/low@v1:L",
        ("~kernels.RMSNorm", "kernels.RMSNorm=null"): "off",
    }.items():
        found = step(plan(own, mine, inherited, *words), "RMSNorm").modes[INFERENCE]
        assert [*(each.reference for each in found.rejected), found.choices[0].reason.partition(",")[0]][0] == first


def test_in_a_file_a_row_left_out_is_inherited_and_null_is_off(mine: Path) -> None:
    inherited = "inherited.RMSNorm=org/low@v1:L"
    left_out = step(plan("SiLU: null\n", mine, inherited), "RMSNorm").modes[INFERENCE]
    off = step(plan("RMSNorm: null\n", mine, inherited), "RMSNorm").modes[INFERENCE]
    assert [each.reference for each in left_out.rejected] == ["org/low@v1:L"]
    assert off.rejected == () and off.choices[0].reason.startswith("off")


def test_a_home_folder_is_that_of_the_person(mine: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", os.fspath(mine))
    (rejected,) = step(plan("X: ~/k:K\n", mine), "X").modes[INFERENCE].rejected
    assert rejected.reference == f"{mine}/k:K"


FUSION = "norm_mlp:\n  members:\n  - [RMSNorm, layers.*.norm]\n  - [MLP, layers.*.mlp]\n  cpu: builtin:RMSNorm\n"


def grouped(folder: Path, **texts: str) -> Path:
    for group, text in texts.items():
        (folder / group).mkdir(exist_ok=True)
        (folder / group / "own.yaml").write_text(text, encoding="utf-8")
    return folder


def test_fusions_and_attention_of_ones_own_files_are_steps_of_a_valid_plan(mine: Path, tmp_path: Path) -> None:
    grouped(mine, fusions=FUSION, attention="default: flash_attention_2\nvision: {path: 'visual.**', kernel: eager}\n")
    made = kerncfg.plan("inherited=none", "fusions=own", "attention=own", target="cpu", config_dir=mine)
    assert [(found.title, found.kind) for found in made.steps] == [
        ("fusions.norm_mlp", "fuse"), ("attention.default", "attend"), ("attention.vision", "attend"),
    ]  # fmt: skip
    validate(made.to_dict(), "plan")
    made.save(tmp_path / "plan.json")
    assert kerncfg.load_plan(tmp_path / "plan.json").digest == made.digest
    choices = step(made, "default").modes[INFERENCE].choices
    assert (str(choices[0].kernel.reference), choices[0].origin) == ("sdpa", "mine/attention/own.yaml:1")


@pytest.mark.parametrize("line", ["fusions.norm_mlp.members", "attention.default.path", "attention.default.mask"])
def test_what_a_row_takes_is_in_the_digest(line: str, mine: Path) -> None:
    grouped(mine, fusions=FUSION, attention="default: sdpa\n")
    words = ["inherited=none", "fusions=own", "attention=own"]
    values = {"members": "[[RMSNorm, layers.0.norm], [MLP, layers.0.mlp]]", "path": "x.**", "mask": "eager"}
    digests = {
        kerncfg.plan(*words, *more, target="cpu", config_dir=mine).digest
        for more in ([], [f"{line}={values[line.rpartition('.')[2]]}"])
    }
    assert len(digests) == 2


def test_the_compiled_package_is_chosen_for_a_described_machine_that_has_it() -> None:
    words = ["inherited=none", "attention=flash_attention_2", "target=h100"]
    without = kerncfg.plan(*words).step("default").modes[INFERENCE]
    with_it = kerncfg.plan(*words, "target.packages={flash-attn: '2.8.3'}").step("default").modes[INFERENCE]
    assert str(without.choices[0].kernel.reference) == "sdpa"
    assert str(with_it.choices[0].kernel.reference) == "flash_attention_2"


def test_switching_hub_kernels_off_leaves_sdpa(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("USE_HUB_KERNELS", "0")
    found = kerncfg.plan("inherited=none", "attention=flash_attention_3", "target=h100").step("default")
    reasons = [entry.reason for entry in found.modes[INFERENCE].rejected]
    assert reasons[1] == "Hub kernels are switched off by USE_HUB_KERNELS, needed 1, ON, YES or TRUE"
    assert str(found.modes[INFERENCE].choices[0].kernel.reference) == "sdpa"


def test_with_everything_switched_off_fusions_and_attention_are_kept_too(mine: Path) -> None:
    grouped(mine, fusions=FUSION)
    words = ["inherited=none", "fusions=own", "attention=sdpa", "enabled=false"]
    assert {found.kind for found in kerncfg.plan(*words, target="cpu", config_dir=mine).steps} == {"keep"}


@pytest.mark.parametrize("group", ["fusions", "attention"])
def test_a_file_of_these_groups_is_checked_by_itself(group: str, mine: Path) -> None:
    text = {"fusions": FUSION.replace("cpu", "cpuu"), "attention": "default: {kernel: sdpa, maks: auto}\n"}[group]
    (issue,) = check_file(grouped(mine, **{group: text}) / group / "own.yaml")
    assert issue.hint in ("did you mean cpu?", "did you mean mask?")
    assert issue.line is not None


def test_a_when_of_ones_own_on_a_presets_kernel_says_where_it_was_said() -> None:
    words = ["inherited=none", "kernels=bundled", "target=h100", "kernels.SwiGLUMLP.cuda.when.bias=false"]
    choice = kerncfg.plan(*words).step("SwiGLUMLP").modes[INFERENCE].choices[0]
    assert (choice.origin or "").startswith("preset: kernels/bundled.yaml:")
    assert choice.asked["bias"] == "override: kernels.SwiGLUMLP.cuda.when.bias=false"
    assert (choice.asked["config.hidden_act"] or "").startswith("preset: kernels/bundled.yaml:")
