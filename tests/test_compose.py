"""Files and overrides to one document, with the origin of every value."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest
from hydra import compose as hydra_compose
from hydra import initialize_config_dir
from omegaconf import OmegaConf

from kerncfg.compiler.compose import Origins, compose, job_overrides, read_document
from kerncfg.compiler.overrides import rewrite
from kerncfg.errors import ConfigError, Issue
from kerncfg.locations import conf


@pytest.fixture
def mine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A config folder of the user's own, below the working directory."""
    monkeypatch.chdir(tmp_path)
    folder = tmp_path / "mine"
    folder.mkdir()
    return folder


def write(folder: Path, name: str, text: str) -> None:
    file = folder / f"{name}.yaml"
    file.parent.mkdir(exist_ok=True, parents=True)
    file.write_text(text, encoding="utf-8")


def kernels(*overrides: str, config_dir: Path | None = None) -> Any:
    return compose(overrides, config_dir=config_dir)[0]["kernels"]


def origin(origins: Origins, *path: str | int) -> str:
    return str(origins.at(path))


def refused(*overrides: str, config_dir: Path | None = None) -> Issue:
    with pytest.raises(ConfigError) as caught:
        compose(overrides, config_dir=config_dir)
    (issue,) = caught.value.issues
    return issue


def test_nothing_said_gives_every_node_as_plain_data() -> None:
    document, _ = compose()
    assert list(document) == [
        "enabled", "inherited", "kernels", "fusions", "attention", "trust", "policy", "target", "model",
    ]  # fmt: skip
    assert document["kernels"] == {}
    assert document["enabled"] is True
    assert "RMSNorm" in document["inherited"]
    assert types_in(document) <= {dict, list, str, int, float, bool, type(None)}


def types_in(value: Any) -> set[type]:
    children = value.values() if isinstance(value, dict) else value if isinstance(value, list) else ()
    return {type(value)}.union(*(types_in(child) for child in children))


SAID: dict[str, tuple[str, Any]] = {
    "kernels=bundled": ("kernels.RMSNorm.cuda", "builtin:RMSNorm"),
    "target=h100": ("target.capability", "9.0"),
    "model=llama": ("model.architecture", "LlamaForCausalLM"),
    "policy=strict": ("policy.strict", True),
    "experiment=cpu_bundled": ("target.device", "cpu"),
    "inherited=none": ("inherited", {}),
    "enabled=false": ("enabled", False),
    "target.device=cuda": ("target.device", "cuda"),
    "kernels.RMSNorm.cpu=builtin:RMSNorm": ("kernels.RMSNorm.cpu", "builtin:RMSNorm"),
    "kernels.RMSNorm={cuda: a/b:C}": ("kernels.RMSNorm", {"cuda": "a/b:C"}),
    "kernels.X=a/b@>=2.0,<3.0:C": ("kernels.X", "a/b@>=2.0,<3.0:C"),
    "model.config.num_hidden_layers=2": ("model.config.num_hidden_layers", 2),
    "trust.publishers.acme=true": ("trust.publishers", {"kernels-community": True, "acme": True}),
    "trust.repositories.acme/norms=true": ("trust.repositories", {"acme/norms": True}),
    "kernels={A: a/b:C}": ("kernels", {"A": "a/b:C"}),
    "~kernels.RMSNorm": ("kernels.RMSNorm", "inherited"),
    "kernels.X=null": ("kernels.X", None),
    "hydra.run.dir=elsewhere": ("kernels", {}),
}


@pytest.mark.parametrize("typed", SAID)
def test_an_override_says_its_value(typed: str) -> None:
    path, expected = SAID[typed]
    value: Any = compose([typed])[0]
    for part in path.split("."):
        value = value[part]
    assert value == expected


LIKE_HYDRA = [
    (),
    ("kernels=bundled", "target=h100", "model=llama", "policy=strict"),
    ("experiment=cpu_bundled",),
    ("experiment=h100_bundled", "kernels=none"),
    ("kernels=bundled", "kernels.RMSNorm={cuda: a/b:C}"),
    ("kernels=bundled", "+kernels.RMSNorm={cuda: a/b:C}"),
    ("kernels=bundled", "~kernels.RMSNorm.cuda"),
    ("kernels=[bundled,liger]",),
    ("kernels.X.cuda=[a/b:C,d/e:F]", "kernels.X.cuda={inference: a/b:C}"),
    ("kernels.X=a/b:C", "kernels.X.cuda=d/e:F"),
    ("inherited={A: a/b:C}",),
    ("model={factory: 'python:a.b:c'}",),
    ("trust.repositories.acme/norms=true", "target={device: cuda, capability: '9.0'}"),
    ("kernels.X=${kernels.Y}", "kernels.Y={cuda: a/b:C}"),
    ("~experiment", "~kernels", "enabled=false"),
]


@pytest.mark.parametrize("typed", LIKE_HYDRA, ids=" ".join)
def test_the_document_is_what_hydra_composes_from_the_rewritten_overrides(typed: tuple[str, ...]) -> None:
    with initialize_config_dir(str(conf()), version_base="1.3"):
        theirs: Any = OmegaConf.to_container(hydra_compose("config", rewrite(typed)), resolve=True)
    for name in ("kernels", "inherited"):
        theirs[name] = theirs.get(name) or {}
    assert compose(typed)[0] == theirs


def test_a_preset_an_own_file_and_an_override_are_told_apart(mine: Path) -> None:
    write(mine, "kernels/fast", "# mine\nRMSNorm:\n  cuda: ./dir:Norm\n")
    _, origins = compose(["kernels=fast", "kernels.X.cuda=[a/b:C]"], config_dir=mine)
    assert origin(origins, "kernels", "RMSNorm", "cuda") == "mine/kernels/fast.yaml:3"
    assert origin(origins, "trust", "allow_all_kernels").startswith("preset: trust/default.yaml:")
    assert origin(origins, "kernels", "X", "cuda", 0) == "override: kernels.X.cuda=[a/b:C]"


def test_a_folder_elsewhere_is_named_in_full(mine: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write(mine, "kernels/fast", "X: a/b:C\n")
    (mine.parent / "elsewhere").mkdir()
    monkeypatch.chdir(mine.parent / "elsewhere")
    _, origins = compose(["kernels=fast"], config_dir=mine)
    assert origin(origins, "kernels", "X") == f"{mine}/kernels/fast.yaml:1"


def test_ones_own_option_goes_before_the_packaged_one_of_its_name(mine: Path) -> None:
    write(mine, "kernels/bundled", "RMSNorm: null\n")
    assert kernels("kernels=bundled", config_dir=mine) == {"RMSNorm": None}


def test_ones_own_option_may_build_on_packaged_ones(mine: Path) -> None:
    write(mine, "kernels/more", "defaults: [bundled]\nRMSNorm: {cuda: a/b:C}\n")
    found = kernels("kernels=more", config_dir=mine)
    assert found["RMSNorm"]["cuda"] == "a/b:C"
    assert found["RMSNorm"]["rocm"] == "builtin:RMSNorm"


def test_ones_own_experiment_pins_packaged_and_own_options(mine: Path) -> None:
    write(mine, "kernels/fast", "X: a/b:C\n")
    text = "# @package _global_\ndefaults:\n  - override /kernels: fast\n  - override /kernels@inherited: none\n"
    write(mine, "experiment/try", f"{text}  - override /model: llama\nkernels: {{Y: d/e:F}}\n")
    document, _ = compose(["experiment=try"], config_dir=mine)
    assert document["kernels"] == {"X": "a/b:C", "Y": "d/e:F"}
    assert document["inherited"] == {}
    assert document["model"]["architecture"] == "LlamaForCausalLM"


def test_an_override_wins_over_an_experiment() -> None:
    assert kernels("experiment=cpu_bundled", "kernels=none") == {}


def test_ones_own_primary_config_is_used_and_reaches_packaged_groups(mine: Path) -> None:
    write(mine, "config", "defaults:\n  - kernels: bundled\n  - target: h100\n  - _self_\nkernels: {X: a/b:C}\n")
    document, _ = compose(config_dir=mine)
    assert set(document["kernels"]) == {"RMSNorm", "SwiGLUMLP", "rotary_pos_emb", "X"}
    assert document["target"]["name"] == "h100"
    assert document["inherited"] == {}


def test_further_folders_come_from_the_search_path_of_an_override(mine: Path, tmp_path: Path) -> None:
    write(tmp_path / "team", "kernels/team", "X: a/b:C\n")
    assert kernels("kernels=team", f"hydra.searchpath=[file://{tmp_path}/team]", config_dir=mine) == {"X": "a/b:C"}


def test_further_folders_come_from_the_search_path_of_the_primary_config(mine: Path, tmp_path: Path) -> None:
    write(tmp_path / "team", "kernels/team", "X: a/b:C\n")
    hydra = f"hydra:\n  searchpath: [file://{tmp_path}/team]\n"
    write(mine, "config", f"defaults:\n  - kernels: team\n  - _self_\n{hydra}")
    assert kernels(config_dir=mine) == {"X": "a/b:C"}


@pytest.mark.parametrize(
    ("said", "message"),
    [
        ("[file:///nowhere]", "there is no folder /nowhere"),
        ("3", "found 3, expected a list of addresses"),
        ("[3]", "found 3, expected a list of addresses"),
        ("[ftp://a]", "found 'ftp://a', expected an address with file://, hf://, pkg://"),
    ],
)
def test_a_search_path_that_cannot_be_used_is_refused(said: str, message: str) -> None:
    assert message in refused(f"hydra.searchpath={said}").message


def test_a_version_beside_a_kernel_said_as_text_keeps_the_kernel() -> None:
    found = kernels("kernels=liger", "kernels.RMSNorm.cuda.version=2")["RMSNorm"]["cuda"]
    assert found == {"kernel": "kernels-community/liger-kernels@v3:LigerRMSNorm", "version": 2}


def test_a_condition_deeper_down_keeps_the_kernel_too() -> None:
    found = kernels("kernels.X.cuda=[a/b:C,d/e:F]", "kernels.X.cuda.1.when.config.act=silu")["X"]["cuda"]
    assert found == ["a/b:C", {"kernel": "d/e:F", "when": {"config": {"act": "silu"}}}]


def test_a_device_below_a_row_said_as_text_takes_its_place_and_what_was_lost_is_told(mine: Path) -> None:
    write(mine, "kernels/fast", "X: a/b:C\n")
    document, origins = compose(["kernels=fast", "kernels.X.cuda=d/e:F"], config_dir=mine)
    assert document["kernels"]["X"] == {"cuda": "d/e:F"}
    ((path, lost),) = origins.lost
    assert (path, lost.text, str(lost)) == (("kernels", "X"), "a/b:C", "mine/kernels/fast.yaml:1")


def test_a_map_in_a_file_over_a_list_in_another_is_told_as_lost(mine: Path) -> None:
    write(mine, "kernels/one", "X: {cuda: [a/b:C]}\n")
    write(mine, "kernels/two", "defaults: [one, _self_]\nX: {cuda: {kernel: d/e:F}}\n")
    document, origins = compose(["kernels=two"], config_dir=mine)
    assert document["kernels"]["X"]["cuda"] == {"kernel": "d/e:F"}
    assert [path for path, _ in origins.lost] == [("kernels", "X", "cuda")]


@pytest.mark.parametrize("key", ["version=2", "inference=a/b:C", "7=a/b:C"])
def test_a_key_below_a_list_that_says_no_item_is_refused_with_the_line_to_type(key: str) -> None:
    issue = refused("kernels.X.cuda=[a/b:C,d/e:F]", f"kernels.X.cuda.{key}")
    assert issue.message == "kernels.X.cuda is a list of 2"
    assert "say which item, as in kernels.X.cuda.1" in str(issue.hint)


def test_a_key_below_an_empty_list_is_refused() -> None:
    assert refused("kernels.X.cuda=[]", "kernels.X.cuda.0=a/b:C").hint == "write kernels.X.cuda=[…]"


@pytest.mark.parametrize("typed", ["kernels.X=[a/b:C, 61e9540, %x]", "++kernels.X={rocm:a/b:C,cuda:61e9540}"])
def test_where_yaml_reads_no_such_value_the_characters_are_not_told(typed: str) -> None:
    document, origins = compose([typed])
    key = "cuda" if isinstance(document["kernels"]["X"], dict) else 1
    found = origins.at(("kernels", "X", key))
    assert document["kernels"]["X"][key] == float("inf")
    assert found is not None and found.text is None


def test_the_last_of_equal_overrides_wins() -> None:
    assert kernels("kernels.X=a/b:C", "kernels.X=d/e:F", "kernels.X=a/b:C") == {"X": "a/b:C"}


def test_the_characters_of_an_override_are_kept_beside_its_value() -> None:
    document, origins = compose(["kernels.X={cuda: {kernel: a/b:C, revision: 61e9540}}", "kernels.Y=1.10"])
    assert document["kernels"]["X"]["cuda"]["revision"] == float("inf")
    found = [origins.at(path) for path in (("kernels", "X", "cuda", "revision"), ("kernels", "Y"))]
    assert [origin and origin.text for origin in found] == ["61e9540", "1.10"]


@pytest.mark.parametrize(
    ("typed", "path", "message", "hint"),
    [
        (
            "kernels=ligre",
            "kernels",
            "no option 'ligre' in the group kernels; looked in",
            "did you mean liger? there are bundled,",
        ),
        ("kernels='li ger'", "kernels", "no option 'li ger' in the group kernels", "did you mean liger?"),
        ("inherited=dfault", "inherited", "no option 'dfault' in the group kernels", "did you mean default?"),
        ("kernels=a/b:C", "kernels", "no option 'a/b:C' in the group kernels", "for one row write kernels.NAME=a/b:C"),
        ("experiment=fast", "experiment", "no option 'fast' in the group experiment", "there are cpu_bundled"),
        ("kernel.X=a", "kernel.X", "there is no 'kernel'", "did you mean kernels?"),
        ("kernelz=liger", "kernelz", "there is no 'kernelz'", "did you mean kernels?"),
        ("a@b=c", "a@b", "there is no 'a'", None),
        (
            "kernels@other=liger",
            "kernels@other",
            "the config's defaults list has no such entry",
            "add `- kernels@other",
        ),
        ("kernels.X@y=z", "kernels.X@y", "'kernels.X' is no group", "leave the @ out"),
        ("~kernels.X.cuda", "kernels.X.cuda", "there is no kernels.X to take out", None),
        ("~policy.strit", "policy.strit", "there is no policy.strit to take out", "did you mean strict?"),
        ("~policy.strict.x", "policy.strict.x", "there is no policy.strict.x to take out", None),
        ("kernels=none,liger", "kernels", "has several values", "write `kerncfg run -m kernels=none,liger`"),
        ("kernels.X=a/b:C,d/e:F", "kernels.X", "has several values", "for one list write kernels.X=[a/b:C,d/e:F]"),
        ("kernels=glob(*)", "kernels", "has several values", "for several runs write"),
        ("word", "word", "is no override", "write key=value"),
        ("lr='", "lr", "is no override", "write key=value"),
        ("++hydra/launcher=basic", "hydra/launcher", "force-add of config groups is not supported", None),
        ("hydra=x", "hydra", "the config's defaults list has no such entry", None),
        ("hydra/launcher=none", "hydra/launcher", "no option 'none' in the group hydra/launcher", "there are basic"),
    ],
)
def test_a_wrong_override_is_refused_in_a_sentence(typed: str, path: str, message: str, hint: str | None) -> None:
    issue = refused(typed)
    assert (issue.file, issue.path) == (f"override: {typed}", path)
    assert message in issue.message
    assert hint is None or hint in str(issue.hint)
    assert str(issue).count("\n") < 3


def test_an_option_that_a_file_asks_for_in_vain_is_named_with_its_line(mine: Path) -> None:
    write(mine, "experiment/try", "# @package _global_\ndefaults:\n  - override /kernels: bundeld\n")
    issue = refused("experiment=try", config_dir=mine)
    assert (issue.file, issue.line, issue.column) == ("mine/experiment/try.yaml", 3, 24)
    assert "did you mean bundled?" in str(issue.hint)


def test_a_group_that_nobody_has_is_refused(mine: Path) -> None:
    write(mine, "config", "defaults:\n  - colours: red\n")
    issue = refused(config_dir=mine)
    assert (issue.file, issue.line) == ("mine/config.yaml", 2)
    assert issue.message.startswith("no option 'red' in the group colours; looked in ")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("defaults: x\n", "found 'x', expected a list"),
        ("defaults: [3]\n", "is no entry of a defaults list"),
        ("defaults: [{a: b, c: d}]\n", "is no entry of a defaults list"),
        ("defaults: [{kernels: 3}]\n", "is no entry of a defaults list"),
        ("defaults: [fast]\n", "leads back to itself"),
        ("defaults: [none, _self_, _self_]\n", "`_self_` stands twice in one list, expected once"),
        ("# @package a b\nX: y\n", "the header cannot be read"),
        ("X: [\n", "is not YAML"),
    ],
)
def test_a_broken_file_is_refused_in_a_sentence(mine: Path, text: str, message: str) -> None:
    write(mine, "kernels/fast", text)
    assert message in refused("kernels=fast", config_dir=mine).message


def lists(folder: Path, text: str, *words: str) -> list[tuple[str, int | None, str, str]]:
    """Return the faults of an experiment with these entries in its defaults list: path, line, message and cure."""
    write(folder, "experiment/mine", f"# @package _global_\ndefaults:\n{text}")
    with pytest.raises(ConfigError) as caught:
        compose(["experiment=mine", *words], config_dir=folder)
    assert {issue.file for issue in caught.value.issues} <= {"mine/experiment/mine.yaml", "mine/kernels/b.yaml"}
    issues = sorted(caught.value.issues, key=lambda issue: issue.line or 0)
    return [(issue.path, issue.line, issue.message.partition(";")[0], str(issue.hint)) for issue in issues]


def test_an_entry_behind_an_override_is_told_where_one_of_them_is_a_list(mine: Path) -> None:
    early = (
        "- override /policy: [strict, default]\n- _self_\n- /kernels@inherited: bundled\n- override /kernels: liger\n"
    )
    ((path, line, message, hint),) = lists(mine, early)
    assert (path, line, message) == ("defaults.2", 5, "stands after an override, expected before it")
    assert hint == "move it before the first `- override` of the list"
    ((_, line, message, _),) = lists(mine, "- override /policy: strict\n- /kernels@inherited: [bundled]\n")
    assert (line, message) == (4, "stands after an override, expected before it")


def test_a_name_that_no_file_can_have_is_told_of_who_says_it(mine: Path) -> None:
    name, message = "a/" * 3000 + "x", "the name of an option is too long for a file, expected 240 bytes at most"
    issue = refused(f"kernels=[bundled,{name}]", config_dir=mine)
    assert (issue.message, issue.path) == (message, "kernels")
    ((_, line, said, _),) = lists(mine, f"- override /kernels: {name}\n")
    assert (line, said) == (3, f"cannot be followed: {message}")


def test_an_interpolation_without_end_is_an_error_of_its_line(mine: Path) -> None:
    write(mine, "kernels/fast", "X: " + "${a:" * 500 + "b" + "}" * 500 + "\n")
    issue = refused("kernels=fast", config_dir=mine)
    assert (issue.message, issue.path, issue.line) == ("is nested too deeply", "kernels.X", 1)


def test_every_entry_that_leads_nowhere_is_told_with_its_line_and_cure(mine: Path) -> None:
    text = "- override /kernels: ligr\n- override /target: h10O\n- override /polcy: strict\n- /model: llama\n"
    first, second, third, fourth = lists(mine, text)
    assert first[:3] == ("defaults", 3, "no option 'ligr' in the group kernels")
    assert second[:3] == ("defaults", 4, "no option 'h10O' in the group target")
    assert first[3].startswith("did you mean liger? there are ") and second[3].startswith("did you mean h100? ")
    assert third == ("defaults.2", 5, "there is no polcy to override", "did you mean policy?")
    assert fourth[:3] == ("defaults.3", 6, "stands after an override, expected before it")
    assert fourth[3] == "move it before the first `- override` of the list"


def test_a_choice_made_twice_is_told_with_the_entry_to_write(mine: Path) -> None:
    for option in ("none", "liger"):
        ((path, line, message, cure),) = lists(mine, f"- /kernels: {option}\n")
        assert (path, line, message) == ("defaults.0", 3, "kernels is chosen a second time, expected once")
        assert cure == f"write `- override /kernels: {option}`"
        write(mine, "experiment/mine", f"# @package _global_\ndefaults:\n{cure.removeprefix('write ').strip('`')}\n")
        compose(["experiment=mine"], config_dir=mine)


def test_entries_that_have_one_fault_twice_are_told_both(mine: Path) -> None:
    text = "- []\n- override /polcy: strict\n- override /polcy: default\n"
    assert [found[:3] for found in lists(mine, text)] == [
        ("defaults.0", 3, "is no entry of a defaults list"),
        ("defaults.1", 4, "there is no polcy to override"),
        ("defaults.2", 5, "there is no polcy to override"),
    ]


def test_a_circle_is_told_with_the_entry_that_closes_it(mine: Path) -> None:
    write(mine, "kernels/a", "defaults: [b]\n")
    write(mine, "kernels/b", "defaults: [none, a]\n")
    expected = "a defaults list leads back to itself: kernels/a to kernels/b to kernels/a"
    cure = "take the entry out of mine/kernels/b.yaml"
    assert lists(mine, "- override /kernels: a\n") == [("defaults.1", 1, expected, cure)]
    write(mine, "kernels/default", "defaults: [default]\n")
    assert str(refused(config_dir=mine).hint).endswith(
        "to build on the packaged kernels/default, give the file of that name another one"
    )


def test_an_option_that_is_due_is_told_and_may_be_said(mine: Path) -> None:
    base = (conf() / "config.yaml").read_text("utf-8")
    write(mine, "config", base.replace("kernels: none", "kernels: ???"))
    issue = refused(config_dir=mine)
    assert (issue.line, issue.message) == (5, "`???` stands where an option is due")
    assert str(issue.hint).startswith("say kernels=NAME, or write it here; there are bundled,")
    compose(["kernels=liger"], config_dir=mine)
    write(mine, "config", base.replace("kernels: none", "kernels: ['${a}']"))
    issue = refused(config_dir=mine)
    assert (issue.line, issue.message.partition(":")[0]) == (5, "cannot be followed")


def test_an_experiment_without_its_package_is_told_so(mine: Path) -> None:
    write(mine, "experiment/mine", "kernels: {X: a/b:C}\n")
    issue = refused("experiment=mine", config_dir=mine)
    assert (issue.file, issue.line) == ("mine/experiment/mine.yaml", 1)
    assert str(issue.hint) == "write `# @package _global_` as the first line"


def test_an_empty_defaults_list_is_none(mine: Path) -> None:
    write(mine, "kernels/fast", "defaults:\nX: a/b:C\n")
    assert kernels("kernels=fast", config_dir=mine) == {"X": "a/b:C"}


def test_every_wrong_entry_of_a_defaults_list_is_told(mine: Path) -> None:
    write(mine, "kernels/fast", "defaults:\n  - 3\n  - none\n  - null\n")
    with pytest.raises(ConfigError) as caught:
        compose(["kernels=fast"], config_dir=mine)
    assert [(issue.path, issue.line) for issue in caught.value.issues] == [("defaults.0", 2), ("defaults.2", 4)]


@pytest.mark.parametrize("name", ["nowhere", "file"])
def test_a_config_folder_that_is_none_is_refused(tmp_path: Path, name: str) -> None:
    (tmp_path / "file").write_text("", encoding="utf-8")
    assert refused(config_dir=tmp_path / name).message.startswith("the config folder")


def test_a_config_folder_in_the_home_folder_is_found(mine: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write(mine, "kernels/fast", "X: a/b:C\n")
    monkeypatch.setenv("HOME", str(mine.parent))
    assert kernels("kernels=fast", config_dir=Path("~/mine")) == {"X": "a/b:C"}


def test_composing_leaves_nothing_behind(mine: Path) -> None:
    before = dict(os.environ)
    compose(["kernels=bundled"], config_dir=mine)
    assert list(mine.parent.iterdir()) == [mine]
    assert dict(os.environ) == before


def test_one_file_is_read_without_its_defaults_composed(mine: Path) -> None:
    write(mine, "kernels/fast", "defaults: [bundled]\nX: a/b:C\n")
    node = read_document(mine / "kernels/fast.yaml")
    assert node.plain() == {"defaults": ["bundled"], "X": "a/b:C"}
    assert origin(Origins(node), "X") == "mine/kernels/fast.yaml:2"


@pytest.mark.parametrize(
    ("typed", "key"),
    [
        ("kernels.X.when={61e9540: 1}", "the key .inf is a number"),
        ("kernels.X.when={null: 1}", "the key null is null"),
        ("kernels.X=[{kernel: a/b:C, when: {True: 1}}]", "the key True is a boolean"),
        ("kernels.X.when={on: 1}", "the key on is a boolean"),
        ("model.config.1=2", "the key 1 is a number"),
    ],
)
def test_a_key_that_a_file_would_not_read_as_text_is_refused(typed: str, key: str) -> None:
    with pytest.raises(ConfigError, match=f"{key} in YAML, expected text"):
        compose([typed])


def test_the_overrides_of_a_job_keep_the_environment_in_words(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KERNCFG_TEST_SECRET", "hunter2")
    words = ["model.pretrained=${oc.env:KERNCFG_TEST_SECRET}", "kernels=bundled"]
    assert job_overrides(OmegaConf.create({"overrides": {"task": words}})) == words


def test_a_config_that_code_stored_counts_as_a_file_without_lines(mine: Path) -> None:
    from hydra.core.config_store import ConfigStore

    store = ConfigStore.instance()
    store.store(group="kernels", name="stored_by_a_test", node={"X": "a/b:C"})
    try:
        document, origins = compose(["kernels=stored_by_a_test"])
    finally:
        del store.repo["kernels"]["stored_by_a_test.yaml"]
    assert document["kernels"] == {"X": "a/b:C"}
    assert origin(origins, "kernels", "X") == "structured:///kernels/stored_by_a_test"


@pytest.mark.parametrize("value", ["a/b:C", "[a/b:C,d/e:F]"])
@pytest.mark.parametrize(("key", "said"), [("fallback", "error"), ("exclude", ["a.*"]), ("match", {"class": "*N"})])
def test_a_key_of_the_row_keeps_what_the_row_runs(value: str, key: str, said: Any) -> None:
    words = {"fallback": "error", "exclude": "[a.*]", "match": "{class: '*N'}"}
    document, origins = compose([f"kernels.X={value}", f"kernels.X.{key}={words[key]}"])
    run = value if value[0] != "[" else ["a/b:C", "d/e:F"]
    assert document["kernels"]["X"] == {"any": run, key: said}
    assert origins.lost == ()


def test_a_mask_keeps_the_attention_and_a_mode_takes_its_place() -> None:
    document, _ = compose(["attention.a=sdpa", "attention.a.mask=eager", "attention.a.path=x.**"])
    assert document["attention"] == {"a": {"any": "sdpa", "mask": "eager", "path": "x.**"}}
    document, origins = compose(["kernels.X.cuda=a/b:C", "kernels.X.cuda.fallback=error"])
    assert document["kernels"]["X"]["cuda"] == {"fallback": "error"}  # no key of a device: the schema says so
    assert len(origins.lost) == 1


def test_rows_of_fusions_and_attention_are_taken_out_for_good(mine: Path) -> None:
    write(mine, "fusions/mine", "f: {members: [[N, a.n]], kernel: a/b:C}\ng: null\n")
    document, _ = compose(["fusions=mine", "~fusions.f", "attention=sdpa", "~attention.default"], config_dir=mine)
    assert (document["fusions"], document["attention"]) == ({"g": None}, {})
    assert refused("~attention.b").message == "there is no attention.b to take out"


def test_an_address_that_is_none_is_told_where_it_was_said() -> None:
    issue = refused("hydra.searchpath=['hf://alone']")
    assert issue.path == "hydra.searchpath.0" and "is no address on the Hub" in issue.message


def test_an_override_of_what_cannot_be_read_is_no_further_fault(mine: Path) -> None:
    write(mine, "policy/fast", "x: [\n")
    faults: list[Any] = []
    compose(["policy=fast", "~policy.nope"], config_dir=mine, faults=faults)
    assert [issue.file for _, issue in faults] == ["mine/policy/fast.yaml"]
