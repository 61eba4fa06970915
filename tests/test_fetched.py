"""What fetched text may not say: each form of it is refused where it stands, and nothing composed launders it."""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

import kerncfg
from kerncfg.compiler.fetched import forbidden
from kerncfg.compiler.reading import Place, parse
from kerncfg.compiler.shared import HubGroups, NotShared
from kerncfg.errors import ConfigError
from tests.hub.repos import Repository

if TYPE_CHECKING:
    from tests.hub.fixtures import TestHub

GLOBAL = "# @package _global_\n"
SEARCH = "hydra.searchpath=[hf://evil/conf@main]"


def refused(hub: TestHub, text: str, *words: str, path: str = "experiment/theirs.yaml", **files: str) -> ConfigError:
    made = Repository("evil/conf", "model").describe()
    others = {name.replace("__", "/") + ".yaml": content for name, content in files.items()}
    made.commit({path: text, **others})
    hub.add(made)
    with pytest.raises(ConfigError) as caught:
        kerncfg.plan(SEARCH, *(words or ("experiment=theirs",)), "target=cpu", "inherited=none")
    return caught.value


@pytest.mark.parametrize(
    ("text", "where", "message"),
    [
        ("trust: {publishers: {evil: true}}", "2:1: trust", "cannot grant trust"),
        ("trust: {allow_all_kernels: true}", "2:1: trust", "cannot grant trust"),
        ("hydra: {run: {dir: /tmp/x}}", "2:1: hydra", "cannot steer Hydra"),
        ("hydra: {job: {env_set: {HF_ENDPOINT: evil}}}", "2:1: hydra", "cannot steer Hydra"),
        ("kernels: {X: 'python:os:system'}", "2:11: kernels.X", "cannot name 'python:os:system'"),
        ("kernels: {X: ' python:os:system'}", "2:11: kernels.X", "cannot name ' python:os:system'"),
        ("kernels: {X: {cpu: [./dir:K]}}", "2:21: kernels.X.cpu.0", "cannot name './dir:K'"),
        ("kernels: {X: /opt/k:K}", "2:11: kernels.X", "cannot name '/opt/k:K'"),
        ("kernels: {X: ~/k:K}", "2:11: kernels.X", "cannot name '~/k:K'"),
        ("kernels: {X: 'C:\\k:K'}", "2:11: kernels.X", "cannot name"),
        ("attention: {default: ../fa}", "2:13: attention.default", "cannot name '../fa'"),
        ("fusions: {f: {kernel: 'python:a:B'}}", "2:15: fusions.f.kernel", "cannot name 'python:a:B'"),
        ("kernels: {X: 'kernels-community/a@refs/pr/1:K'}", "2:11: kernels.X", "which anybody may propose"),
        ("kernels: {X: {kernel: 'a/b:K', revision: refs/pr/1}}", "2:32: kernels.X.revision", "anybody may propose"),
        ("model: {factory: 'python:os:getcwd'}", "2:9: model.factory", "cannot name 'python:os:getcwd'"),
        ("model: {pretrained: '${oc.env:HOME}'}", "2:9: model.pretrained", "cannot look up"),
        ("model: {pretrained: '${oc.decode:x}'}", "2:9: model.pretrained", "cannot look up"),
        ("model: {pretrained: '\\${oc.env:HOME}'}", "2:9: model.pretrained", "cannot look up"),
        ("model: {pretrained: '${${a}}'}", "2:9: model.pretrained", "cannot look up"),
        ("model: {pretrained: 'a${kernels.X}b'}", "2:9: model.pretrained", "cannot look up"),
        ("model: {pretrained: '$'}", "2:9: model.pretrained", "cannot look up"),
        ('kernels: {X: {when: {config.a: "\\e[2J"}}}', "2:22: kernels.X.when", "cannot hold '\\x1b'"),
        ('kernels: {X: {when: {config.a: "\\u202e"}}}', "2:22: kernels.X.when", "cannot hold '\\u202e'"),
        ('kernels: {X: {"\\e[2J": a/b:C}}', "2:11: kernels.X", "cannot have a key with '\\x1b' in it"),
        ("kernels: {X: {_target_: os.system}}", "2:15: kernels.X._target_", "cannot hold `_target_`"),
        ("model: {config: {a: [{_target_: os.system}]}}", "2:23: model.config.a.0._target_", "cannot hold `_target_`"),
        ("defaults: [{override /trust: default}]", "2:30: defaults.0.override /trust", "cannot grant trust"),
        ("defaults: [{/kernels@trust: none}]", "defaults.0./kernels@trust", "cannot grant trust"),
        ("defaults: [/trust/default]", "2:12: defaults.0", "cannot grant trust"),
        ("defaults: [/kernels/none@trust.publishers]", "2:12: defaults.0", "cannot grant trust"),
        ("defaults: [{override hydra/launcher: joblib}]", "defaults.0.override hydra/launcher", "steer Hydra"),
        ("defaults: [{override /kernels: '${oc.env:HOME}'}]", "defaults.0.override /kernels", "cannot choose"),
        ("defaults: ['../../../etc/x']", "2:12: defaults.0", "cannot choose"),
    ],
)
def test_each_form_is_refused_where_it_stands(text: str, where: str, message: str) -> None:
    (issue,) = forbidden(parse(f"{GLOBAL}{text}\n", Place("hub", "hf://evil/conf@main/x.yaml")))
    assert message in issue.message
    assert where in issue.where and str(issue.file) == "hf://evil/conf@main/x.yaml"
    assert issue.hint
    assert os.environ["HOME"] not in str(issue)


def test_all_faults_of_a_file_are_told_at_once(hub: TestHub) -> None:
    found = refused(hub, f"{GLOBAL}trust: {{}}\nkernels: {{X: 'python:a:B', Y: ./d:K}}\n")
    assert [issue.line for issue in found.issues] == [2, 3, 3]
    assert {issue.file for issue in found.issues} == {"hf://evil/conf@main/experiment/theirs.yaml"}


@pytest.mark.parametrize("header", ["", "# @package trust\n", "# @package trust.publishers\n"])
def test_a_file_of_the_group_trust_is_refused_whole(hub: TestHub, header: str) -> None:
    folder = "kernels" if header else "trust"
    found = refused(hub, f"{header}evil: true\n", f"{folder}=theirs", path=f"{folder}/theirs.yaml")
    assert "cannot grant trust" in found.issues[0].message


@pytest.mark.parametrize("entry", ["/foo@_global_: theirs", "/foo/theirs@_global_", "/foo@_here_: [theirs]"])
@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("hydra: {job: {env_set: {HF_ENDPOINT: 'http://evil'}}}", "foo.hydra: a fetched file cannot steer Hydra"),
        ("trust: {publishers: {evil: true}}", "foo.trust: a fetched file cannot grant trust"),
    ],
)
def test_a_file_that_another_puts_at_the_root_is_refused_too(hub: TestHub, entry: str, text: str, message: str) -> None:
    listed = f"{GLOBAL}defaults:\n  - {entry}\n"
    assert f"foo/theirs.yaml:1:1: {message}" in str(refused(hub, listed, foo__theirs=text))


@pytest.mark.parametrize("header", ["_group_", "_global_.hydra", "_group_.job"])
def test_a_group_of_hydra_s_own_is_refused_whatever_its_header(hub: TestHub, header: str) -> None:
    text = f"# @package {header}\nenv_set: {{HF_ENDPOINT: 'http://evil'}}\n"
    made = Repository("evil/conf", "model").describe()
    made.commit({"hydra/theirs.yaml": text})
    hub.add(made)
    with pytest.raises(NotShared, match="cannot steer Hydra"):
        HubGroups("test", "hf://evil/conf@main").load_config("hydra/theirs")


def test_an_interpolation_that_brings_the_users_own_module_is_refused(hub: TestHub, tmp_path: Path) -> None:
    (tmp_path / "kernels").mkdir()
    (tmp_path / "kernels/mine.yaml").write_text("Mine: python:mine:K\n")
    made = Repository("evil/conf", "model").describe()
    made.commit({"experiment/theirs.yaml": f"{GLOBAL}model: {{factory: '${{kernels.Mine}}'}}\n"})
    hub.add(made)
    with pytest.raises(ConfigError, match="brings a fetched file what it cannot say") as caught:
        kerncfg.plan(SEARCH, "experiment=theirs", "kernels=mine", config_dir=tmp_path)
    assert caught.value.issues[0].path == "model.factory"


def test_an_interpolation_that_leads_to_the_environment_is_refused(hub: TestHub) -> None:
    words = ("experiment=theirs", "model.dtype='${oc.env:HOME}'")
    found = refused(hub, f"{GLOBAL}model: {{pretrained: '${{model.dtype}}'}}\n", *words)
    (fault,) = (issue for issue in found.issues if issue.path == "model.pretrained")
    assert "which a fetched file cannot read" in fault.message
    assert os.environ["HOME"] not in str(found)


def test_an_interpolation_of_a_whole_value_is_read(hub: TestHub) -> None:
    made = Repository("evil/conf", "model").describe()
    text = "kernels: {X: {cpu: 'builtin:RMSNorm'}, Y: {cpu: '${kernels.X.cpu}'}}\n"
    made.commit({"experiment/theirs.yaml": f"{GLOBAL}{text}"})
    hub.add(made)
    found = kerncfg.plan(SEARCH, "experiment=theirs", "target=cpu", "inherited=none")
    assert [step.kind for step in found.steps] == ["bind", "bind"]


def test_interpolations_that_expand_without_end_are_refused_soon(hub: TestHub) -> None:
    rows = [f"  R{row}: {[f'${{kernels.R{row + 1}}}'] * 4}\n" for row in range(14)]
    start = time.perf_counter()
    found = refused(hub, f"{GLOBAL}kernels:\n{''.join(rows)}  R14: builtin:RMSNorm\n")
    assert time.perf_counter() - start < 5
    (issue,) = found.issues
    assert "interpolations expand to" in issue.message and "theirs.yaml:3:8: kernels.R0.0" in issue.where


def test_trust_remote_code_is_ignored_and_told(hub: TestHub) -> None:
    made = Repository("evil/conf", "model").describe()
    made.commit({"kernels/theirs.yaml": "X: {kernel: evil/k@v1:K, trust_remote_code: true}\n"})
    hub.add(made)
    found = kerncfg.plan(SEARCH, "kernels=theirs", "target=cpu", "inherited=none")
    assert found.step("X").modes[kerncfg.Mode.INFERENCE].rejected[0].reason.startswith("publisher evil is not trusted")
    assert "only a local file or an override can grant trust" in found.notes[0]
    assert hub.log.count(repository="evil/k") == 0


def test_where_a_file_is_to_become_ones_own_trust_remote_code_is_refused_too() -> None:
    node = parse("X: {kernel: evil/k@v1:K, trust_remote_code: true}\n", Place("hub", "kernels/x.yaml"))
    assert forbidden(node, ("kernels",)) == []
    assert [issue.path for issue in forbidden(node, ("kernels",), consent=True)] == ["kernels.X.trust_remote_code"]


@pytest.mark.parametrize("text", ["kernels: {trust: 'a/b@v1:K'}", "match: {path: 'model.**'}", "a: 'org/repo@v1:K'"])
def test_ordinary_text_passes(text: str) -> None:
    assert forbidden(parse(text, Place("hub", "x.yaml"))) == []


def test_a_defaults_list_of_plain_options_has_no_fault() -> None:
    text = "defaults: [{policy: strict}, default]\nkernels: {X: {cpu: 'builtin:RMSNorm'}}\n"
    assert forbidden(parse(text, Place("hub", "x.yaml"))) == []
