"""Configurations shared on the Hub: which commit an address means, how often it is asked, and what is told instead."""

from __future__ import annotations

import json
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

import kerncfg
from kerncfg.errors import ConfigError, SourceError
from kerncfg.sources.hub import configs
from kerncfg.sources.hub.configs import place_of
from tests.hub.git import File
from tests.hub.repos import Kind, Repository

if TYPE_CHECKING:
    from tests.hub.fixtures import TestHub

FILES = {
    "kernels/theirs.yaml": "RMSNorm: {cpu: builtin:RMSNorm}\n",
    "experiment/fast.yaml": "# @package _global_\ndefaults:\n  - override /kernels: theirs\n"
    "  - override /kernels@inherited: none\n",
}
ADDRESS = "hf://acme/shared@main"
SEARCH = f"hydra.searchpath=[{ADDRESS}]"


def shared(hub: TestHub, name: str = "acme/shared", kind: Kind = "model", **more: str) -> Repository:
    made = Repository(name, kind).describe()
    made.commit({**FILES, **{path.replace("__", "/") + ".yaml": text for path, text in more.items()}})
    hub.add(made)
    return made


def planned(*words: str, search: str = SEARCH, **said: Any) -> kerncfg.Plan:
    return kerncfg.plan(search, "target=cpu", *words, **said)


def forget() -> None:
    """What another process would know."""
    configs._opened.clear()


@pytest.mark.parametrize(
    ("address", "repository", "revision", "folder"),
    [
        ("hf://org/repo", "models/org/repo", "main", ""),
        ("hf://org/repo@v1", "models/org/repo", "v1", ""),
        ("hf://models/org/repo@v1/conf", "models/org/repo", "v1", "conf"),
        ("hf://datasets/org/repo@feature%2Fx/a/b/", "datasets/org/repo", "feature/x", "a/b"),
        ("hf://kernels/org/repo@refs/pr/1", "org/repo", "refs/pr/1", ""),
    ],
)
def test_an_address_says_repository_revision_and_folder(
    address: str, repository: str, revision: str, folder: str
) -> None:
    found = place_of(address)
    assert (found.repository, found.revision, found.folder) == (repository, revision, folder)
    assert place_of(found.at(revision)) == found


@pytest.mark.parametrize(
    "address", ["hf://", "hf://org", "hf://spaces/org/repo", "hf://buckets/org/repo", "hf://a b/c"]
)
def test_what_is_no_address_is_told_how_one_looks(address: str) -> None:
    with pytest.raises(ConfigError, match="is no address on the Hub") as caught:
        place_of(address)
    assert caught.value.issues[0].hint == f"write {configs.SHAPE}"


@pytest.mark.parametrize(("kind", "prefix"), [("model", ""), ("dataset", "datasets/"), ("kernel", "kernels/")])
@pytest.mark.parametrize("revision", ["main", "feature/x", "v1.0", "commit", "short"])
def test_repositories_of_each_type_are_read_at_branch_tag_and_commit(
    hub: TestHub, kind: Kind, prefix: str, revision: str
) -> None:
    made = shared(hub, kind=kind)
    made.branch("feature/x")
    made.tag("v1.0")
    commit = made.branches["main"]
    said = {"commit": commit, "short": commit[:8]}.get(revision, revision.replace("/", "%2F"))
    found = configs.opened(f"hf://{prefix}acme/shared@{said}")
    assert found.commit == commit and found.pinned == f"hf://{prefix}acme/shared@{commit}"
    assert found.read("kernels/theirs.yaml").decode() == FILES["kernels/theirs.yaml"]


def test_a_folder_of_a_repository_is_a_search_path_too(hub: TestHub) -> None:
    shared(hub, conf__kernels__inside="SiLU: {cpu: builtin:RMSNorm}\n")
    found = planned("kernels=inside", "inherited=none", search="hydra.searchpath=[hf://acme/shared@main/conf]")
    assert str(found.step("SiLU").modes[kerncfg.Mode.INFERENCE].choices[0].origin) == (
        "hf://acme/shared@main/conf/kernels/inside.yaml:1"
    )


def test_a_process_asks_once_however_many_plans_and_threads_there_are(hub: TestHub) -> None:
    made = shared(hub)
    with ThreadPoolExecutor(4) as pool:
        first, *others = pool.map(lambda _: planned("experiment=fast"), range(4))
    made.commit({"kernels/theirs.yaml": "RMSNorm: null\n"})
    others.append(planned("experiment=fast"))
    assert {each.digest for each in others} == {first.digest}
    assert hub.log.kinds() == {"revision": 1, "tree": 1, "resolve": 2}


def test_the_next_process_sees_what_moved(hub: TestHub) -> None:
    made = shared(hub)
    before = planned("experiment=fast")
    made.commit({"kernels/theirs.yaml": "RMSNorm: null\n"})
    forget()
    after = planned("experiment=fast")
    assert after.digest != before.digest
    assert after.searchpath[ADDRESS] == made.branches["main"] != before.searchpath[ADDRESS]


def test_a_plan_keeps_the_commit_beside_its_digest(hub: TestHub, tmp_path: Path) -> None:
    made = shared(hub)
    plan = planned("experiment=fast")
    local = kerncfg.plan("kernels.RMSNorm.cpu=builtin:RMSNorm", "inherited=none", "target=cpu")
    assert plan.digest == local.digest
    plan.save(tmp_path / "plan.json")
    assert json.loads((tmp_path / "plan.json").read_text())["searchpath"] == {ADDRESS: made.branches["main"]}
    assert kerncfg.load_plan(tmp_path / "plan.json").searchpath == plan.searchpath
    assert f"note: {ADDRESS} is at commit {made.branches['main'][:12]}" in str(plan)


def test_by_commit_and_from_the_cache_nothing_is_asked(hub: TestHub) -> None:
    commit = shared(hub).branches["main"]
    search = f"hydra.searchpath=[hf://acme/shared@{commit}]"
    before = planned("experiment=fast", search=search)
    forget()
    hub.log.clear()
    with hub.unreachable():
        assert planned("experiment=fast", search=search) == before
    assert hub.log.count() == 0


def test_offline_an_address_means_what_it_meant_last_and_the_plan_says_so(
    hub: TestHub, monkeypatch: pytest.MonkeyPatch
) -> None:
    shared(hub)
    before = planned("experiment=fast")
    forget()
    hub.log.clear()
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    found = planned("experiment=fast")
    assert found.digest == before.digest and found.searchpath == before.searchpath
    assert f"{ADDRESS} is as last resolved, for HF_HUB_OFFLINE is set" in found.notes
    assert hub.log.count() == 0


def test_a_hub_that_cannot_be_reached_is_an_error_even_where_the_cache_knows(hub: TestHub) -> None:
    commit = shared(hub).branches["main"]
    planned("experiment=fast")
    forget()
    with hub.unreachable(), pytest.raises(SourceError, match="gave no answer about models/acme/shared") as caught:
        planned("experiment=fast")
    assert caught.value.hint == f"name the commit that it was last, hf://acme/shared@{commit}, or set HF_HUB_OFFLINE=1"
    assert planned("experiment=fast").searchpath == {ADDRESS: commit}  # the next try asks again


def test_offline_and_never_asked_is_an_error(hub: TestHub, monkeypatch: pytest.MonkeyPatch) -> None:
    shared(hub)
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    with pytest.raises(SourceError, match="HF_HUB_OFFLINE is set, and models/acme/shared is not in the cache"):
        planned("experiment=fast")


@pytest.mark.parametrize(
    ("address", "message", "hint"),
    [
        ("hf://acme/none@main", "HTTP 404: there is no model repository acme/none at", None),
        ("hf://acme/shared@v9", "models/acme/shared has no such revision, needed revision v9", "it has main"),
        ("hf://datasets/acme/shared@main", "there is no dataset repository acme/shared", f"write {ADDRESS}"),
        ("hf://acme/shared@main/nowhere", "there is no .yaml file in it, at commit", "name the folder"),
    ],
)
def test_a_place_that_is_not_there_is_an_error_with_its_cure(
    hub: TestHub, address: str, message: str, hint: str | None
) -> None:
    shared(hub)
    with pytest.raises(SourceError, match=message) as caught:
        planned("experiment=fast", search=f"hydra.searchpath=[{address}]")
    assert caught.value.message.startswith(address)
    assert hint is None or str(caught.value.hint).startswith(hint)


def test_a_private_repository_says_whether_a_token_was_sent(hub: TestHub, monkeypatch: pytest.MonkeyPatch) -> None:
    made = shared(hub)
    made.private = True
    with pytest.raises(SourceError, match="models/acme/shared is private or does not exist, and no token was sent"):
        planned("experiment=fast")
    hub.tokens["secret"] = frozenset({"acme/shared"})
    monkeypatch.setenv("HF_TOKEN", "secret")
    assert planned("experiment=fast").searchpath


def test_a_repository_that_moved_is_followed_one_step(hub: TestHub) -> None:
    made = shared(hub)
    commit = made.branches["main"]
    hub.rename(made, "acme/renamed")
    assert planned("experiment=fast").searchpath == {ADDRESS: commit}
    hub.rename(made, "acme/again")
    forget()
    with pytest.raises(SourceError, match="needed one move at most"):
        planned("experiment=fast")


def test_an_option_that_nobody_has_names_the_address_among_the_places(hub: TestHub) -> None:
    shared(hub)
    with pytest.raises(ConfigError, match=rf"no option 'thiers' .* looked in .* and {ADDRESS}") as caught:
        planned("kernels=thiers")
    assert "did you mean theirs?" in str(caught.value)


def test_a_file_that_the_hub_lacks_or_spoils_is_an_error(hub: TestHub) -> None:
    shared(hub)
    hub.fault("resolve/.*theirs", wrong=True, times=None)
    with pytest.raises(SourceError, match="came broken from the Hub, twice"):
        planned("experiment=fast")


def test_a_large_file_is_read_where_it_lies_and_weights_are_left_there(hub: TestHub) -> None:
    made = shared(hub)
    made.commit(
        {
            "model.safetensors": File(data=b"0" * 5000, lfs=True),
            "kernels/big.yaml": File(data=b"RMSNorm: {cpu: builtin:RMSNorm}\n", lfs=True),
        }
    )
    assert planned("kernels=big", "inherited=none").step("RMSNorm").kind == "bind"
    assert hub.log.kinds() == {"revision": 1, "tree": 1, "resolve": 1, "cdn": 1}


def test_a_file_too_large_for_a_configuration_is_not_fetched(hub: TestHub, monkeypatch: pytest.MonkeyPatch) -> None:
    shared(hub)
    monkeypatch.setattr(configs, "LARGEST", 20)
    with pytest.raises(SourceError, match=r"experiment/fast\.yaml has \d+ bytes, needed 20 at most"):
        planned("experiment=fast")
    assert "resolve" not in hub.log.kinds()


def test_the_users_own_folder_and_packaged_groups_go_before_the_hub(hub: TestHub, tmp_path: Path) -> None:
    shared(hub, kernels__bundled="RMSNorm: null\n")
    (tmp_path / "my/kernels").mkdir(parents=True)
    (tmp_path / "my/kernels/theirs.yaml").write_text("RMSNorm: null\n")
    found = planned("experiment=fast", config_dir=tmp_path / "my")
    assert found.step("RMSNorm").kind == "keep"
    assert planned("kernels=bundled", "inherited=none").step("RMSNorm").kind == "bind"


def test_a_primary_config_may_say_the_search_path_too(hub: TestHub, tmp_path: Path) -> None:
    commit = shared(hub).branches["main"]
    text = "defaults:\n  - kernels: theirs\n  - policy: default\n  - trust: default\n  - target: cpu\n  - _self_\n"
    text += f"enabled: true\nhydra:\n  searchpath: ['{ADDRESS}']\n"
    (tmp_path / "config.yaml").write_text(text)
    assert kerncfg.plan(config_dir=tmp_path).searchpath == {ADDRESS: commit}
