"""The loopback Hub, asked by huggingface_hub, is a Hub."""

from __future__ import annotations

import hashlib
import socket
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING

import httpx2
import huggingface_hub
import pytest
from huggingface_hub import HfApi
from huggingface_hub.errors import (
    GatedRepoError,
    HfHubHTTPError,
    RemoteEntryNotFoundError,
    RepositoryNotFoundError,
    RevisionNotFoundError,
)

from tests.hub.asking import NAME, download, sample
from tests.hub.repos import Build, Repository
from tests.hub.server import Hub

if TYPE_CHECKING:
    from tests.hub.fixtures import TestHub

# What git itself makes of `FILES`, committed by the author and at the times of `tests.hub.git`.
FILES = {"a/x": "hello\n", "a.txt": "one", "a.b/c/y": "deep", "ab": "two"}
FIRST = "32d3a75f5f36fb325aef5d09833da6c137cb5d17"
SECOND = "a762f91fbaa4958bf139a359dd568bf21cea78f8"
TREES = {
    "": "48d5c7a76744c1ac67e0b83b75c2b5eb76326e9b",
    "a": "e31a96220fbfbe7601ecc086a36b96dc27a8867e",
    "a.b": "27703f5cbb4d0a0b89d1e45eda9a87d78ed2254d",
    "a.b/c": "9a2f97a407494407d397d51f2183ca98839e4fca",
}


@pytest.fixture
def api(hub: TestHub) -> Iterator[HfApi]:
    yield HfApi(endpoint=hub.url, token=False)
    huggingface_hub.close_session()


@pytest.fixture
def repository(hub: TestHub) -> Repository:
    made = sample()
    hub.add(made)
    return made


def test_ids_are_those_that_git_gives() -> None:
    made = Repository("any/one")
    assert made.commit(FILES, title="first") == FIRST
    assert made.commits[FIRST].trees == TREES
    assert made.commit({"ab": "three"}, title="second") == SECOND


def test_one_content_has_one_id_in_every_process() -> None:
    def made() -> Repository:
        return Repository("any/one").describe()

    assert made().branches == made().branches


def test_refs_name_branches_and_tags_with_their_commits(api: HfApi, repository: Repository) -> None:
    refs = api.list_repo_refs(NAME, repo_type="kernel")
    assert {each.name: each.target_commit for each in refs.branches} == repository.branches
    assert [(each.name, each.ref) for each in refs.tags] == [("v1.0.0", "refs/tags/v1.0.0")]
    assert set(repository.branches) == {"main", "v1", "feature/x"}


@pytest.mark.parametrize("cut", [40, 12, 7])
def test_a_revision_is_a_branch_a_tag_or_a_commit_in_full_or_short(
    api: HfApi, repository: Repository, cut: int
) -> None:
    commit = repository.branches["v1"]
    for revision in ("v1", "v1.0.0", "feature/x", "refs/heads/feature/x", "refs/tags/v1.0.0", commit[:cut]):
        assert api.repo_info(NAME, repo_type="kernel", revision=revision).sha == commit
    assert api.kernel_info(NAME).sha == repository.branches["main"]


def test_a_short_commit_that_names_two_or_is_too_short_names_none(api: HfApi, repository: Repository) -> None:
    one, other = repository.twins()
    assert one != other and one[:7] == other[:7]
    for revision in (one[:7], repository.branches["v1"][:6], "v9"):
        with pytest.raises(RevisionNotFoundError):
            api.kernel_info(NAME, revision=revision)
    assert api.kernel_info(NAME, revision=other).sha == other


def test_a_branch_moves_and_its_old_commit_stays(api: HfApi, repository: Repository) -> None:
    old = repository.branches["v1"]
    new = repository.release([Build(name="norms", modules={"__init__.py": "ONE = 3\n"})])
    assert api.kernel_info(NAME, revision="v1").sha == new != old
    paths = {each.path for each in api.list_repo_tree(NAME, repo_type="kernel", revision="v1", recursive=True)}
    assert "build/torch-cuda" not in paths and "README.md" in paths
    assert api.kernel_info(NAME, revision=old).sha == old


def test_a_listing_gives_folders_and_files_with_sizes_and_digests(api: HfApi, repository: Repository) -> None:
    listed = list(api.list_repo_tree(NAME, repo_type="kernel", revision="feature/x", recursive=True))
    files = {each.path: each for each in listed if isinstance(each, huggingface_hub.RepoFile)}
    folders = {each.path for each in listed} - set(files)
    held = repository.find("v1").files
    assert set(files) == set(held)
    assert folders == {"build", "build/torch-cpu", "build/torch-cpu/part", "build/torch-cuda"}
    assert {path: (each.size, each.blob_id) for path, each in files.items()} == {
        path: (len(file.data), file.blob) for path, file in held.items()
    }
    large = files["build/torch-cpu/part/large.so"].lfs
    assert large is not None and large.sha256 == hashlib.sha256(bytes(range(256)) * 40).hexdigest()
    assert files["README.md"].lfs is None


def test_a_listing_of_a_folder_goes_one_step_deep_unless_told_otherwise(api: HfApi, repository: Repository) -> None:
    def paths(folder: str | None, recursive: bool = False) -> list[str]:
        found = api.list_repo_tree(NAME, folder, repo_type="kernel", revision="v1", recursive=recursive)
        return [each.path for each in found]

    assert paths(None) == [".gitattributes", "README.md", "build"]
    assert paths("build") == ["build/torch-cpu", "build/torch-cuda"]
    assert "build/torch-cpu/part/large.so" in paths("build", recursive=True)
    with pytest.raises(RemoteEntryNotFoundError):
        paths("build/torch")


def test_a_long_listing_comes_in_pages(hub: TestHub, api: HfApi) -> None:
    made = Repository(NAME)
    made.commit({f"{number:03}": str(number) for number in range(25)})
    hub.add(made)
    hub.page_size = 10
    listed = [each.path for each in api.list_repo_tree(NAME, repo_type="kernel", recursive=True)]
    assert listed == [f"{number:03}" for number in range(25)]
    assert hub.log.kinds() == {"tree": 3}


def test_the_order_of_a_listing_may_be_any(hub: TestHub, api: HfApi, repository: Repository) -> None:
    def listed() -> list[str]:
        return [each.path for each in api.list_repo_tree(NAME, repo_type="kernel", revision="v1", recursive=True)]

    usual = listed()
    hub.shuffle = 1
    assert sorted(listed()) == sorted(usual) and listed() != usual


def test_expanded_listings_and_single_paths_tell_the_last_commit(api: HfApi, repository: Repository) -> None:
    (found,) = api.get_paths_info(NAME, ["README.md", "none"], repo_type="kernel", revision="v1", expand=True)
    assert isinstance(found, huggingface_hub.RepoFile)
    assert found.last_commit is not None and found.last_commit.oid == repository.branches["v1"]


def test_a_file_is_downloaded_under_its_commit(hub: TestHub, repository: Repository) -> None:
    found = download(hub, "build/torch-cpu/__init__.py", "feature/x")
    assert found.read_text("utf-8") == "ONE = 1\n"
    commit = repository.branches["v1"]
    assert found.parts[-5:] == ("snapshots", commit, "build", "torch-cpu", "__init__.py")
    assert found.resolve().name == repository.find("v1").files["build/torch-cpu/__init__.py"].blob
    assert hub.log.kinds() == {"HEAD resolve": 1, "resolve": 1}
    assert hub.log.count("feature%2Fx", method="HEAD", repository=NAME, status=200) == 1


def test_a_large_file_lies_elsewhere_and_no_token_is_sent_there(hub: TestHub, repository: Repository) -> None:
    hub.tokens["hf_reader"] = frozenset()
    found = download(hub, "build/torch-cpu/part/large.so", token="hf_reader")
    assert found.read_bytes() == bytes(range(256)) * 40
    assert found.resolve().name == hashlib.sha256(found.read_bytes()).hexdigest()
    assert [(each.kind, each.status, each.authorized) for each in hub.log.find()] == [
        ("resolve", 302, True),
        ("cdn", 200, False),
    ]


def test_a_large_file_may_be_served_in_its_place(hub: TestHub, repository: Repository) -> None:
    hub.cdn = False
    found = download(hub, "build/torch-cpu/part/large.so")
    assert found.resolve().name == hashlib.sha256(found.read_bytes()).hexdigest()
    assert hub.log.kinds() == {"HEAD resolve": 1, "resolve": 1}


def test_a_snapshot_holds_what_was_asked_for(hub: TestHub, repository: Repository) -> None:
    folder = huggingface_hub.snapshot_download(
        NAME,
        repo_type="kernel",
        revision="v1",
        allow_patterns="build/torch-cpu/*",
        endpoint=hub.url,
        cache_dir=hub.cache,
        token=False,
    )
    found = {path.relative_to(folder).as_posix() for path in Path(folder).rglob("*") if path.is_file()}
    inside = {"__init__.py", "metadata.json", "part/large.so"}
    assert found == {f"build/torch-cpu/{name}" for name in inside}


@pytest.mark.parametrize("kind", ["model", "dataset"])
def test_models_and_datasets_have_addresses_of_their_own(hub: TestHub, kind: str) -> None:
    made = Repository(NAME, kind)  # type: ignore[arg-type]
    made.commit({"conf/a.yaml": "a: 1\n"})
    hub.add(made)
    found = huggingface_hub.hf_hub_download(
        NAME, "conf/a.yaml", repo_type=kind, endpoint=hub.url, cache_dir=hub.cache, token=False
    )
    assert Path(found).read_text("utf-8") == "a: 1\n"
    api = HfApi(endpoint=hub.url, token=False)
    assert api.repo_info(NAME, repo_type=kind).sha == made.branches["main"]
    with pytest.raises(RepositoryNotFoundError):
        api.kernel_info(NAME)


def test_a_model_may_have_no_owner(hub: TestHub, api: HfApi) -> None:
    made = Repository("gpt2", "model")
    commit = made.commit({"config.json": "{}"})
    hub.add(made)
    assert api.model_info("gpt2").sha == commit
    assert [each.name for each in api.list_repo_refs("gpt2").branches] == ["main"]
    assert Path(api.hf_hub_download("gpt2", "config.json", cache_dir=hub.cache)).read_text("utf-8") == "{}"


def test_a_publisher_is_trusted_or_not_or_absent(hub: TestHub, api: HfApi) -> None:
    hub.publishers |= {"good": True, "other": False}
    said = {name: vars(api.get_organization_overview(name)) for name in ("good", "other")}
    assert {name: each["trustedKernelPublisher"] for name, each in said.items()} == {"good": True, "other": False}
    with pytest.raises(HfHubHTTPError):
        api.get_organization_overview("nobody")


def test_a_renamed_repository_is_found_by_its_old_name(hub: TestHub, api: HfApi, repository: Repository) -> None:
    hub.rename(repository, "acme/better-norms")
    assert api.kernel_info(NAME, revision="feature/x").id == "acme/better-norms"
    assert len(list(api.list_repo_tree(NAME, "build", repo_type="kernel", revision="v1"))) == 2
    assert api.list_repo_refs(NAME, repo_type="kernel").tags[0].name == "v1.0.0"
    hub.log.clear()
    assert download(hub, "build/torch-cpu/__init__.py", "feature/x").read_text("utf-8") == "ONE = 1\n"
    assert [each.status for each in hub.log.find(repository=NAME)] == [307]


def test_a_name_that_was_taken_again_is_no_redirect(hub: TestHub, api: HfApi, repository: Repository) -> None:
    hub.rename(repository, "acme/better-norms")
    hub.add(Repository(NAME).describe())
    assert api.kernel_info(NAME).id == NAME


def test_what_is_missing_is_told_apart(hub: TestHub, api: HfApi, repository: Repository) -> None:
    with pytest.raises(RepositoryNotFoundError) as absent:
        api.kernel_info("acme/none")
    with pytest.raises(RevisionNotFoundError):
        api.kernel_info(NAME, revision="v7")
    with pytest.raises(RemoteEntryNotFoundError) as entry:
        download(hub, "build/none.py")
    assert entry.value.response.headers["X-Repo-Commit"] == repository.branches["v1"]
    assert absent.value.response.status_code == 404
    hub.hides_missing = True
    with pytest.raises(RepositoryNotFoundError) as hidden:
        api.kernel_info("acme/none")
    assert hidden.value.response.status_code == 401


def test_a_private_repository_is_seen_by_those_who_may(hub: TestHub, repository: Repository) -> None:
    repository.private = True
    hub.tokens = {"hf_reader": frozenset({NAME}), "hf_other": frozenset(), "hf_all": frozenset({"*"})}

    def seen(token: str | bool) -> str:
        try:
            HfApi(endpoint=hub.url, token=token).kernel_info(NAME)
        except HfHubHTTPError as error:
            return f"{type(error).__name__} {error.response.status_code}"
        return "yes"

    assert [seen(token) for token in ("hf_reader", "hf_all")] == ["yes", "yes"]
    assert seen(False) == "RepositoryNotFoundError 401"
    assert seen("hf_other") == "RepositoryNotFoundError 404"
    assert seen("hf_expired") == "HfHubHTTPError 401"
    repository.private = False
    assert (seen(False), seen("hf_expired")) == ("yes", "HfHubHTTPError 401")


def test_a_gated_repository_is_listed_but_not_read(hub: TestHub, repository: Repository) -> None:
    repository.gated = "manual"
    hub.tokens = {"hf_reader": frozenset({NAME}), "hf_other": frozenset()}
    assert HfApi(endpoint=hub.url, token=False).kernel_info(NAME).gated == "manual"
    statuses = []
    for token in (False, "hf_other"):
        with pytest.raises(GatedRepoError) as refused:
            download(hub, "README.md", token=token)
        statuses.append(refused.value.response.status_code)
    assert statuses == [401, 403]
    assert download(hub, "README.md", token="hf_reader").read_text("utf-8").startswith("# acme/norms")


def test_ranges_are_answered_as_http_says(hub: TestHub, repository: Repository) -> None:
    url = f"{hub.url}/kernels/{NAME}/resolve/v1/build/torch-cpu/__init__.py"
    with httpx2.Client() as client:
        replies = {text: client.get(url, headers={"Range": text}) for text in ("bytes=2-4", "bytes=6-", "bytes=8-")}
    assert [(each.status_code, each.text) for each in replies.values()] == [(206, "E ="), (206, "1\n"), (416, "")]
    assert replies["bytes=2-4"].headers["Content-Range"] == "bytes 2-4/8"
    assert [each.range for each in hub.log.find()] == list(replies)


def test_requests_at_once_are_counted(hub: TestHub, repository: Repository) -> None:
    hub.latency = 0.2
    with ThreadPoolExecutor(4) as pool:
        paths = [".gitattributes", "README.md", "build/torch-cpu/__init__.py", "build/torch-cuda/__init__.py"]
        assert len(list(pool.map(lambda path: download(hub, path), paths))) == 4
    assert 2 <= hub.log.most_at_once <= 4


def test_the_log_counts_and_says_what_it_saw(hub: TestHub, api: HfApi, repository: Repository) -> None:
    with hub.log.expect(1):
        api.kernel_info(NAME)
    with hub.log.expect(0, "/tree/"):
        api.list_repo_refs(NAME, repo_type="kernel")
    seen = r"1 requests, expected 0:\n  GET /api/kernels/acme/norms/refs -> 200"
    with pytest.raises(AssertionError, match=seen), hub.log.expect(0):
        api.list_repo_refs(NAME, repo_type="kernel")
    assert "hf_hub/" in hub.log.find(kind="info")[0].agent
    hub.log.clear()
    assert (hub.log.everything, hub.log.most_at_once) == ([], 0)


def test_what_the_client_asks_by_itself_is_not_counted() -> None:
    with Hub() as hub, httpx2.Client() as client:
        client.get(f"{hub.url}/api/agent-harnesses")
    assert len(hub.log.everything) == 1 and not hub.log.find()


def test_a_hub_starts_and_ends_quickly() -> None:
    def once() -> float:
        start = time.perf_counter()
        with Hub() as hub, socket.create_connection(("127.0.0.1", hub.port)):
            pass
        return time.perf_counter() - start

    assert min(once() for _ in range(5)) < 0.05


def test_a_hub_that_ends_waits_for_no_latency() -> None:
    hub = Hub()
    hub.latency = 30
    with hub, socket.create_connection(("127.0.0.1", hub.port)) as client:
        client.sendall(b"GET /api/agent-harnesses HTTP/1.1\r\nHost: hub\r\n\r\n")
        while not hub.log.everything:
            time.sleep(0.001)
        start = time.perf_counter()
    assert time.perf_counter() - start < 5


def test_the_real_client_makes_a_repository_and_commits_to_it(hub: TestHub) -> None:
    hub.tokens["writer"], hub.writers["writer"] = frozenset({"*"}), frozenset({"acme"})
    api = huggingface_hub.HfApi(endpoint=hub.url, token="writer")
    api.create_repo("acme/made", private=True, exist_ok=True)
    api.create_repo("acme/made", exist_ok=True)
    add = [huggingface_hub.CommitOperationAdd(path, text.encode()) for path, text in FILES_SENT.items()]
    found = api.create_commit("acme/made", add, commit_message="Say something")
    made = hub.repository("model", "acme/made")
    assert made is not None and made.private and made.branches["main"] == found.oid
    commit = made.find("main")
    assert commit.title == "Say something"
    assert {path: commit.files[path].data.decode() for path in FILES_SENT} == FILES_SENT
    assert hub.log.kinds() == {"create": 2, "validate-yaml": 1, "preupload": 1, "commit": 1}


FILES_SENT = {"README.md": "---\ntags: [a]\n---\n# made\n", "a/b.yaml": "x: 1\n"}


@pytest.mark.parametrize(("token", "status"), [(False, 401), ("reader", 403)])
def test_who_may_not_write_is_told(hub: TestHub, token: str | bool, status: int) -> None:
    hub.tokens["reader"] = frozenset({"*"})
    api = huggingface_hub.HfApi(endpoint=hub.url, token=token)
    with pytest.raises(huggingface_hub.errors.HfHubHTTPError) as caught:
        api.create_repo("acme/made")
    assert caught.value.response.status_code == status
    assert hub.repository("model", "acme/made") is None
