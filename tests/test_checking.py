"""Every fault in one run: of all passes, by every door, and none that only another fault brought about."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

import kerncfg
from kerncfg.cli import main
from kerncfg.compiler import checking
from kerncfg.compiler.checking import check, check_file
from kerncfg.compiler.compose import compose
from kerncfg.compiler.tree import Origins
from kerncfg.errors import ConfigError
from kerncfg.run import run

ROWS = """\
RMSNorm: https://huggingface.co/acme/norms
SiLU: {kernle: acme/act:Silu, version: 3}
GELU:
  cuda: {kernel: acme/act@v2:Gelu, version: 3}
  rocm: 7
  cpu: builtin
"""
FAULTY = [
    "kernels.RMSNorm",
    "kernels.SiLU.kernle",
    "kernels.GELU.cuda.version",
    "kernels.GELU.rocm",
    "kernels.GELU.cpu",
]


@pytest.fixture
def mine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return write(tmp_path / "my", kernels=ROWS)


def write(folder: Path, **groups: str) -> Path:
    """Write a file `mine` into each group."""
    for group, text in groups.items():
        (folder / group).mkdir(parents=True, exist_ok=True)
        (folder / group / "mine.yaml").write_text(text, encoding="utf-8")
    return folder


def told(*words: str, config_dir: Path | None = None, **more: Any) -> list[str]:
    """Return the paths of the faults of a plan."""
    with pytest.raises(ConfigError) as caught:
        kerncfg.plan(*words, config_dir=config_dir, target="cpu", **more)
    return [issue.path for issue in caught.value.issues]


def of_data(**nodes: Any) -> list[tuple[str, str]]:
    """Return the faults of a document given as data: their paths and messages."""
    document, _ = compose(["inherited=none", "target=cpu"])
    with pytest.raises(ConfigError) as caught:
        check({**document, **nodes}, origins=Origins.argument())
    return [(issue.path, issue.message) for issue in caught.value.issues]


def by_command(words: list[str], capsys: pytest.CaptureFixture[str]) -> str:
    assert main(words) == 1
    lines = capsys.readouterr().err.splitlines()
    return "\n".join(line.removeprefix("error: ") for line in lines if not line.startswith("  see: "))


def test_every_door_tells_the_same_faults(mine: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words, folder = ["kernels=mine", "target=cpu"], ["--config-dir", "my"]
    with pytest.raises(ConfigError) as caught:
        kerncfg.plan(*words, config_dir=mine)
    assert [issue.path for issue in caught.value.issues] == FAULTY
    whole = str(caught.value)
    for command in (["plan"], ["explain", "RMSNorm"], ["lock"], ["run"], ["validate"], ["verify"], ["bench"]):
        assert by_command([*command, *words, *folder], capsys) == whole, command
    assert by_command(["validate", "my/kernels/mine.yaml"], capsys) == whole
    for verb in (kerncfg.lock, lambda *words, **more: run(words, **more)):
        with pytest.raises(ConfigError) as also:
            verb(*words, config_dir=mine)
        assert str(also.value) == whole
    assert not Path("kerncfg.lock").exists()


def test_faults_of_one_row_are_told_together_wherever_they_are_found() -> None:
    row = {"match": {"clas": "X"}, "cuda": "a/b:", "cpu": ["inherited", 3, {"kernel": "c/d:", "dtype": "int3"}]}
    paths = [
        "kernels.N.match.clas",
        "kernels.N.cuda",
        "kernels.N.cpu.1",
        "kernels.N.cpu.2.kernel",
        "kernels.N.cpu.2.dtype",
    ]
    assert [path for path, _ in of_data(kernels={"N": row})] == paths


@pytest.mark.parametrize(
    "row",
    [
        {"kernle": "a/b:C", "version": 3},
        {"kernel": 3, "version": 2},
        {"cuda": {"kernle": "a/b:C", "revision": "main"}},
        {"cuda": {"version": 2}},
        {"cuda": {"kernel": "a/b:C", "version": 1, "revision": "main"}},
        {"cuda": []},
        {"cuda": {"kernel": "a/b:C", "inference": "d/e:F"}},
        {"cuda": {"inference": {"kernel": "a/b:C", "when": 3}}},
        {"match": {}},
        {"exclude": [3]},
    ],
)
@pytest.mark.parametrize("node", ["kernels", "fusions", "attention"])
def test_a_fault_brings_no_other_about(node: str, row: dict[str, Any]) -> None:
    members = {"members": [["N", "a.n"], ["M", "a.m"]]} if node == "fusions" else {}
    found = of_data(**{node: {"N": {**members, **row}}})
    alone = {"match", "exclude"} & {*row} and node != "kernels"  # which no row there has, nor a kernel
    assert len(found) <= len(row) if not alone else found
    assert not [message for _, message in found if "no kernel is named" in message or "stands beside" in message]


def test_what_is_wrong_with_members_hides_no_kernel() -> None:
    found = of_data(fusions={"f": {"members": [["N"], ["M", 3]], "kernel": "a/b:"}, "g": {"cuda": "c/d:"}})
    assert [path for path, _ in found] == [
        "fusions.f.members.0", "fusions.f.members.1.1", "fusions.f.kernel", "fusions.g", "fusions.g.cuda",
    ]  # fmt: skip


@pytest.mark.parametrize(
    "said", [{"torch": "1.x.b"}, {"python": "3.12+"}, {"macos": "26..0"}, {"packages": {"triton": "new"}}]
)
def test_a_version_of_the_target_that_is_none_is_told_with_the_rest(said: dict[str, Any]) -> None:
    found = of_data(kernels={"N": "a/b:"}, target={"device": "cpu", **said})
    assert [path.partition(".")[0] for path, _ in found] == ["kernels", "target"]


def test_a_node_that_is_no_map_hides_no_other() -> None:
    found = of_data(kernels=[3], attention={"default": "sdpo"}, policy={"strict": 1})
    paths = [path for path, _ in found]
    assert {"kernels", "attention.default", "policy.strict"} <= {*paths}


def test_composing_goes_on_without_what_cannot_be_read(mine: Path) -> None:
    write(mine, trust="publishers: [\n")
    words = ["kernels=mine", "trust=mine", "policy=strcit", "model=qwne3", "attention.default=[a", "~target.nmae"]
    found = told(*words, config_dir=mine)
    assert [path for path in found if path not in FAULTY] == [
        "", "attention.default", "policy", "target.nmae", "model",
    ]  # fmt: skip
    assert {*FAULTY} < {*found}


def test_what_an_unread_override_may_have_changed_is_not_judged() -> None:
    words = ["kernels.X={cuda: [a", "kernels.X.cuda.version=3", "kernels.X.cuda.capability='>'", "kernels.Y=a/b:"]
    assert told(*words) == ["kernels.X", "kernels.Y"]


def test_a_bound_that_is_endless_is_none_by_file_and_by_override(mine: Path) -> None:
    for text in (".inf", ".nan", "1e999"):
        write(mine, policy=f"defaults: [default]\nverify: {{thresholds: {{float32: {{floor: {text}}}}}}}\n")
        assert told("policy=mine", config_dir=mine) == ["policy.verify.thresholds.float32.floor"]
    for text in ("inf", "nan", ".inf", "1e999"):
        with pytest.raises(ConfigError, match=r"expected a finite number\n  hint: write policy.*floor=1$"):
            kerncfg.plan(f"policy.verify.thresholds.float32.floor={text}", target="cpu")
    kerncfg.plan("policy.verify.thresholds.float32.floor=1", target="cpu")


def test_what_a_file_lacks_is_no_fault_of_an_override_of_something_else(mine: Path) -> None:
    write(mine, policy="# mine\nfallback: error\nstrict: true\nrequire_pin: true\n")
    with pytest.raises(ConfigError) as caught:
        kerncfg.plan("policy=mine", "policy.seed=1", config_dir=mine, target="cpu")
    (issue,) = caught.value.issues
    assert (issue.file, issue.line, issue.message) == ("my/policy/mine.yaml", 2, "`verify` is missing")


def test_an_interpolation_that_leads_nowhere_hides_nothing_beside_it(mine: Path) -> None:
    write(
        mine, kernels="X: {cuda: '${kernels.Y}', cpu: builtin, rocm: {kernel: '${kernels.Z}', version: 3}, cpuu: 1}\n"
    )
    assert told("kernels=mine", config_dir=mine) == [
        "kernels.X.cuda", "kernels.X.cpu", "kernels.X.rocm.kernel", "kernels.X.cpuu",
    ]  # fmt: skip


WORDS = ["kernels=mine", "policy.strct=1", "kernels.A=a/b:", "~policy.gone", "kernels.B=${kernels.gone}"]
MORE = ["kernels.C.cuda.1.version=3", "kernels.D.version=3", "attention.e.mask=sdpa", "fusions.f.kernel=a/b:C"]
TOLD = {*FAULTY, "policy.strct", "kernels.A"}


@pytest.mark.parametrize("words", [["experiment=mine"], ["experiment=gone"], ["experiment="]])
def test_a_broken_experiment_hides_no_fault_and_brings_none_about(mine: Path, words: list[str]) -> None:
    write(mine, experiment="# @package _global_\nkernels: {X: [\n")
    found = told(*words, *WORDS, *MORE, config_dir=mine)
    assert {*found} - {"", "experiment"} == TOLD and len(found) == len(TOLD) + 1


def test_a_broken_primary_config_hides_no_fault_and_brings_none_about(mine: Path) -> None:
    (mine / "config.yaml").write_text("defaults:\n- colours: red\n x: [\n")
    found = told(*WORDS, *MORE, config_dir=mine)
    assert {*found} == {"", *TOLD} and len(found) == len(TOLD) + 1


def test_a_wrong_entry_or_place_hides_no_fault_of_the_same_file(mine: Path) -> None:
    write(mine, kernels=f"defaults: [nope, liger, mine]\n{ROWS}", policy="strct: 1\ndefaults: [default, defualt]\n")
    found = told("kernels=mine", "policy=mine", "hydra.searchpath=[/gone]", "trust=elsewhere", config_dir=mine)
    assert sorted({*found} - {*FAULTY}) == ["defaults.2", "hydra.searchpath.0", "policy.strct"]
    found = told("kernels=mine", "policy=mine", config_dir=mine)
    assert sorted({*found} - {*FAULTY}) == ["defaults", "defaults.2", "policy.strct"]
    assert found.count("defaults") == 2


def test_a_file_of_an_experiment_is_asked_for_its_package(mine: Path) -> None:
    write(mine, experiment="kernels: {X: a/b:C}\n")
    assert [issue.line for issue in check_file(mine / "experiment/mine.yaml")] == [1]


def test_every_run_of_a_sweep_is_looked_at_before_the_first(mine: Path) -> None:
    with pytest.raises(ConfigError) as caught:
        run(["kernels.X=a/b:,c/d:", "policy.strct=1"], multirun=True)
    assert len(caught.value.issues) == 3
    assert not Path("multirun").exists()


def test_a_file_alone_is_read_to_its_references(mine: Path) -> None:
    text = f"# @package _global_\nkernels:\n{''.join(f'  {line}' for line in ROWS.splitlines(keepends=True))}"
    write(mine, experiment=text)
    assert [issue.path for issue in check_file(mine / "experiment/mine.yaml")] == FAULTY


@pytest.mark.parametrize(
    ("group", "text"),
    [
        ("kernels", "X: {version: 3}\n"),
        ("kernels", "X: ${kernels.Y}\nZ: {kernel: a/b:C, version: '${kernels.v}'}\n"),
        ("attention", "defaults: [flash_attention_2, _self_]\ndefault: {mask: eager}\n"),
        ("fusions", "f: {members: [[N, a.n], [M, a.m]]}\n"),
    ],
)
def test_what_another_file_may_say_is_not_missed_in_one(group: str, text: str, mine: Path) -> None:
    assert check_file(write(mine, **{group: text}) / group / "mine.yaml") == []


def test_a_file_is_told_its_faults_of_interpolation(mine: Path) -> None:
    write(mine, kernels='A: ${oc.env:HOME}\nB: "${a"\nC: a/b:C:D\n')
    messages = [issue.message for issue in check_file(mine / "kernels/mine.yaml")]
    assert [message.partition(" ")[0] for message in messages] == ["${oc.env:HOME}", "${a", "'a/b:C:D':"]


def test_a_file_that_is_not_there_and_one_that_is_no_text_are_told(mine: Path) -> None:
    (mine / "kernels/bad.yaml").write_bytes(b"\xff\xfeX")
    assert [issue.message for issue in check_file(mine / "kernels/bad.yaml")] == ["is UTF-16, expected UTF-8"]
    (issue,) = check_file(mine / "kernels/none.yaml")
    assert issue.message.startswith("cannot be read")


def test_json_holds_every_fault_once(mine: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["validate", "--json", "--config-dir", "my", "kernels=[mine]", "my/kernels/mine.yaml"]) == 1
    found = json.loads(capsys.readouterr().out)["issues"]
    assert [issue["path"] for issue in found] == FAULTY


def test_a_file_of_no_known_kind_is_told_so_beside_its_faults(tmp_path: Path) -> None:
    file = tmp_path / "of-no-group.yaml"
    file.write_text("a: 1\na: 2\n", encoding="utf-8")
    assert [issue.message for issue in check_file(file)] == [
        "the key 'a' stands twice: lines 1 and 2",
        "cannot tell which schema it follows",
    ]
    assert [issue.message for issue in check_file(tmp_path / "nowhere.yaml")] == [
        "cannot be read: No such file or directory"
    ]


def test_of_a_document_that_is_at_fault_as_a_whole_no_row_is_judged() -> None:
    assert checking._judged([], []) == {}
    assert checking._judged({"kernels": {}}, [((), "type")]) == {}


def test_taking_out_what_has_a_fault_comes_to_an_end(monkeypatch: pytest.MonkeyPatch) -> None:
    rows, faults = {"A": {"cpu": "builtin:RMSNorm", "cdua": "x"}}, [(("A", "cdua"), "unknown")]
    assert checking._without(rows, "kernels", faults) == {"A": {"cpu": "builtin:RMSNorm"}}
    monkeypatch.setattr(checking, "_ROUNDS", 1)  # then nothing is judged, since nobody knows that the rest is valid
    assert checking._without(rows, "kernels", faults) == {}
