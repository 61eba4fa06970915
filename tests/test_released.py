"""What anybody may propose to a repository does not ride on trust in its publisher, however it is named."""

from __future__ import annotations

import hashlib
import shutil
from dataclasses import replace
from typing import TYPE_CHECKING

import pytest
from huggingface_hub import snapshot_download

import kerncfg
from kerncfg.documents.config import Trust
from kerncfg.documents.lock import digest_of
from kerncfg.errors import IntegrityError, TrustError
from kerncfg.sources import fetch, load
from tests.hub import kernels
from tests.hub.kernels import TRUSTED
from tests.hubbing import CPU, TRUST, asked, first, kernel, planned, refusal, row, typed
from tests.test_hub_source import NORMS, scaled

if TYPE_CHECKING:
    from pathlib import Path

    from tests.hub.fixtures import TestHub
    from tests.hub.repos import Content, Repository

FOLDER = f"kernels--{NORMS.replace('/', '--')}"
LAYERS = "build/torch-cpu/layers.py"


@pytest.fixture
def proposed(norms: Repository) -> str:
    """The commit of a pull request: the builds of v1, with other code in them."""
    code = norms.find("v1").files[LAYERS].data + b"\n# proposed\n"
    return norms.propose({LAYERS: code}, start="v1")


def away(hub: TestHub) -> None:
    shutil.rmtree(hub.cache)
    hub.log.clear()


@pytest.mark.usefixtures("proposed")
def test_a_pull_request_needs_consent_of_its_own_and_is_not_asked_about(hub: TestHub) -> None:
    words = row(f"{NORMS}@refs/pr/1")
    with hub.log.expect(0):
        plan = planned(words, f"trust.repositories.{NORMS}=true")
    assert refusal(plan) == (
        f"{NORMS}@refs/pr/1 is what anybody may propose there, needed consent to it alone: "
        f"--trust {NORMS}@refs/pr/1, or trust_remote_code: true in its row"
    )
    assert refusal(planned(words, trust=[f"{NORMS}@refs/pr/2", f"{NORMS}@v1"])) == refusal(plan)


@pytest.mark.usefixtures("proposed")
@pytest.mark.parametrize(
    ("words", "trust", "why"),
    [
        (row(f"{NORMS}@refs/pr/1"), [f"{NORMS}@refs/pr/1"], f"trust.repositories.{NORMS}@refs/pr/1"),
        (
            f"kernels.Scale.cpu={{kernel: '{NORMS}@refs/pr/1:Scale', trust_remote_code: true}}",
            [],
            "trust_remote_code of its row",
        ),
    ],
)
def test_consent_to_a_pull_request_runs_it(words: str, trust: list[str], why: str, proposed: str) -> None:
    plan = planned(words, trust=trust)
    assert first(plan).trusted == why and kernel(plan).commit == proposed
    assert fetch(plan.kernels(), plan.trust) == {}
    assert load(kernel(plan), plan.trust).code is not None


@pytest.mark.usefixtures("proposed")
def test_a_plan_file_with_a_pull_request_says_which_consent_it_needs(tmp_path: Path) -> None:
    planned(row(f"{NORMS}@refs/pr/1"), trust=[f"{NORMS}@refs/pr/1"]).save(tmp_path / "plan.json")
    with pytest.raises(TrustError, match="is what anybody may propose there") as caught:
        kerncfg.fetch(kerncfg.load_plan(tmp_path / "plan.json"))
    assert f"--trust {NORMS}@refs/pr/1," in str(caught.value.hint)


def test_consent_to_a_pull_request_is_none_to_what_a_plan_file_claims_of_it(
    norms: Repository, proposed: str, tmp_path: Path, hub: TestHub
) -> None:
    named = [f"{NORMS}@refs/pr/1"]
    planned(row(f"{NORMS}@refs/pr/1"), trust=named).save(tmp_path / "plan.json")
    away(hub)
    first = kerncfg.load_plan(tmp_path / "plan.json", trust=named)
    assert kerncfg.fetch(first) == {}
    hub.log.clear()
    other = norms.propose({LAYERS: b"# another\n"}, start="v1", number=2)
    claimed = replace(kernel(first), commit=other)
    assert "is on no branch" in fetch([claimed], first.trust)[claimed]
    disguised = replace(claimed, reference=kernel(planned(row(f"{NORMS}@v1"))).reference, commit=proposed)
    shutil.rmtree(hub.cache / FOLDER / "snapshots")
    assert "is on no branch" in fetch([disguised])[disguised]  # nor does consent to one name serve another


def test_consent_to_a_branch_of_a_repository_is_none_to_its_others(norms: Repository) -> None:
    trust = Trust(repositories=frozenset({f"{NORMS}@v1"}))
    assert asked(f"{NORMS}@v1", trust=trust).releases[0].commit == norms.find("v1").id
    plan = planned(row("acme/norms@v1"), row("acme/norms@v2", "RMSNorm"), trust=["acme/norms@v2"])
    assert "publisher acme is not trusted" in refusal(plan)
    assert "publisher acme" not in refusal(plan, "RMSNorm")


@pytest.mark.parametrize("digits", [40, 8])
def test_a_commit_that_is_on_no_branch_and_no_tag_needs_consent_of_its_own(
    hub: TestHub, proposed: str, digits: int
) -> None:
    words = row(f"{NORMS}@{proposed[:digits]}")
    plan = planned(words)
    assert refusal(plan) == (
        f"commit {proposed[:12]} is on no branch and no tag of {NORMS}, where anybody may propose one, "
        f"needed consent to it alone: --trust {NORMS}@{proposed}"
    )
    assert not hub.log.count(kind="tree") and not hub.log.count(kind="resolve")
    plan = planned(words, trust=[f"{NORMS}@{proposed}"])
    assert kernel(plan).commit == proposed and fetch(plan.kernels(), plan.trust) == {}
    assert load(kernel(plan), plan.trust).code is not None
    assert "is on no branch" in fetch(plan.kernels(), TRUST)[kernel(plan)]  # for who has not consented to it


def test_a_plan_or_lock_of_somebody_else_brings_no_proposed_commit(hub: TestHub, proposed: str, tmp_path: Path) -> None:
    mine = planned(row(f"{NORMS}@v1"))
    theirs = planned(row(f"{NORMS}@{proposed}"), trust=[f"{NORMS}@{proposed}"])
    away(hub)
    disguised = replace(kernel(theirs), reference=kernel(mine).reference)
    assert "is on no branch and no tag" in fetch([disguised])[disguised]
    with pytest.raises(TrustError, match=f"is on no branch.*--trust {NORMS}@{proposed}"):
        load(disguised, TRUST)
    assert not hub.log.count(kind="resolve")
    kept = kerncfg.lock(*("inherited=none", row(f"{NORMS}@{proposed}")))
    (pin,) = kept.pins.values()
    assert not pin.releases and "is on no branch and no tag" in str(pin.reason)
    (tmp_path / "plan.json").write_text(theirs.to_json())
    loaded = kerncfg.load_plan(tmp_path / "plan.json")
    assert "is on no branch" in next(iter(kerncfg.fetch(loaded).values()))
    loaded = kerncfg.load_plan(tmp_path / "plan.json", trust=[f"{NORMS}@{proposed}"])
    assert kerncfg.fetch(loaded) == {}


@pytest.mark.parametrize("brought", ["refs/pr/1", "commit"])
def test_what_was_pulled_from_a_proposal_is_no_code_of_a_released_commit(
    norms: Repository, hub: TestHub, tmp_path: Path, brought: str
) -> None:
    code = b"print('a README, and a module')\n"
    digest = "git:" + hashlib.sha1(b"blob %d\0" % len(code) + code).hexdigest()
    real = kernel(planned(row(f"{NORMS}@v1")))
    files = tuple(replace(f, size=len(code), digest=digest) if f.path == "__init__.py" else f for f in real.files)
    lying = replace(real, files=files, digest=digest_of(files))
    experiment: dict[str, Content | None] = {
        "experiment/nice.yaml": "# @package _global_\nenabled: true\n",
        "README.md": code,
    }
    commit = norms.propose(experiment, start="v1")
    away(hub)
    revision = commit if brought == "commit" else brought
    assert typed(hub, tmp_path, "pull", f"kernels/{NORMS}@{revision}", "got").code == 0
    blob = hub.cache / FOLDER / "blobs" / digest.removeprefix("git:")
    assert blob.read_bytes() == code
    assert "came broken from the Hub, twice" in fetch([lying], TRUST)[lying]
    with pytest.raises(IntegrityError, match="came broken from the Hub, twice"):
        load(lying, TRUST)
    assert fetch([real], TRUST) == {}


def test_a_file_of_another_commit_serves_where_the_listing_says_so(norms: Repository, hub: TestHub) -> None:
    assert fetch(planned(row(f"{NORMS}@v1")).kernels()) == {}
    norms.commit({"README.md": "# again\n"}, branch="v1")
    plan = planned(row(f"{NORMS}@v1"))
    hub.log.clear()
    with hub.log.expect(0):
        assert fetch(plan.kernels()) == {}


def test_a_kernel_that_imports_a_proposal_is_not_taken(hub: TestHub, proposed: str) -> None:
    hub.add(
        kernels.dependent(pin={"revision": "refs/pr/1"}),
        kernels.dependent("kernels-community/twice", pin={"revision": proposed}),
    )
    assert "is what anybody may propose there" in refusal(planned(row(f"{TRUSTED}/fused@v1")))
    assert "is on no branch and no tag" in refusal(planned(row(f"{TRUSTED}/twice@v1")))


def test_a_commit_before_those_of_today_is_looked_up_once(norms: Repository, hub: TestHub) -> None:
    plan = planned(row(f"{NORMS}@v2"))
    for value in (24, 25, 26):
        kernels.move(norms, "v2", value)
    away(hub)
    hub.page_size = 2
    assert fetch(plan.kernels()) == {}
    assert hub.log.kinds()["refs"] == 1 and hub.log.kinds()["commits"] == 2  # pages of the history of v2 alone
    shutil.rmtree(hub.cache / FOLDER / "snapshots")
    hub.log.clear()
    assert fetch(plan.kernels()) == {}
    assert set(hub.log.kinds()) == {"resolve"}


def test_a_commit_of_a_repository_that_moved_is_looked_up_where_it_is(norms: Repository, hub: TestHub) -> None:
    plan = planned(row(f"{NORMS}@v2"))
    hub.rename(norms, f"{TRUSTED}/scales")
    away(hub)
    assert fetch(plan.kernels(), TRUST) == {}
    assert hub.log.count(kind="refs") == 2


@pytest.mark.parametrize("by", ["plan", "lock"])
def test_a_repository_that_moved_to_a_stranger_brings_none_of_their_code(
    norms: Repository, hub: TestHub, tmp_path: Path, by: str
) -> None:
    code = norms.find("v1").files[LAYERS].data
    norms.commit({LAYERS: code + b"\n# the stranger's\n"}, branch="v1")  # after the move, as far as the file can tell
    words = row(f"{NORMS}@v1")
    planned(words).save(tmp_path / "plan.json")
    kerncfg.lock("inherited=none", words).save(tmp_path / "kerncfg.lock")
    hub.rename(norms, "stranger/norms")
    away(hub)
    fresh = refusal(planned(words))
    assert fresh.startswith(f"{NORMS} moved to stranger/norms, and publisher stranger is not trusted")
    away(hub) if hub.cache.exists() else hub.log.clear()
    lock, file = str(tmp_path / "kerncfg.lock"), tmp_path / "plan.json"
    plan = kerncfg.load_plan(file) if by == "plan" else planned(words, lock=lock)
    assert kerncfg.fetch(plan) == {kernel(plan): fresh}
    with pytest.raises(TrustError, match="moved to stranger/norms, and publisher stranger is not trusted") as caught:
        load(kernel(plan), plan.trust)
    assert "--trust stranger/norms" in str(caught.value.hint)
    assert not hub.log.count(kind="resolve") and not hub.log.count(kind="tree")
    said = {"trust": ["stranger/norms"]}
    plan = kerncfg.load_plan(file, **said) if by == "plan" else planned(words, lock=lock, **said)
    assert kerncfg.fetch(plan) == {}


def test_a_file_that_lies_with_a_stranger_now_is_not_taken_from_there(norms: Repository, hub: TestHub) -> None:
    plan = planned(row(f"{NORMS}@v1"))
    assert fetch(plan.kernels(), TRUST) == {}
    shutil.rmtree(hub.cache / FOLDER / "snapshots")
    shutil.rmtree(hub.cache / FOLDER / "blobs")
    hub.rename(norms, "stranger/norms")
    assert "moved to stranger/norms, and publisher stranger" in fetch(plan.kernels(), TRUST)[kernel(plan)]
    assert fetch(plan.kernels(), Trust(publishers=frozenset({TRUSTED, "stranger"}))) == {}


def _proposed_with(norms: Repository, start: str) -> str:
    """A pull request whose commit begins as wanted, as anybody can make one."""
    code = norms.find("v1").files[LAYERS].data
    tried = (norms.propose({LAYERS: code + b"\n# %d\n" % number}, start="v1") for number in range(10_000))
    return next(commit for commit in tried if commit.startswith(start))


def test_consent_to_a_branch_that_looks_like_a_commit_is_none_to_commits(
    norms: Repository, hub: TestHub, tmp_path: Path
) -> None:
    norms.branch("a1", at="v1")
    norms.branch("abcdef1", at="v1")
    commit = _proposed_with(norms, "a1")
    lock = kerncfg.lock("inherited=none", row(f"{NORMS}@{commit}"), trust=[f"{NORMS}@{commit}"])
    (tmp_path / "kerncfg.lock").write_text(lock.to_json().replace(f"{NORMS}@{commit}", f"{NORMS}@a1"))
    away(hub)
    for words, trust in (
        (row(f"{NORMS}@a1"), [f"{NORMS}@a1"]),
        (f"kernels.Scale.cpu={{kernel: '{NORMS}@a1:Scale', trust_remote_code: true}}", []),
    ):
        plan = planned(words, lock=str(tmp_path / "kerncfg.lock"), trust=trust)
        assert kernel(plan).commit == commit
        assert "is on no branch and no tag" in kerncfg.fetch(plan)[kernel(plan)]
    named = [f"{NORMS}@abcdef1"]
    plan = planned(row(f"{NORMS}@abcdef1"), trust=named)
    assert kerncfg.fetch(plan) == {}  # a branch, whatever it looks like
    claimed = replace(kernel(plan), commit=commit)
    assert "is on no branch and no tag" in fetch([claimed], plan.trust)[claimed]


def test_consent_to_the_digits_of_a_commit_is_for_the_one_that_the_hub_takes_them_for(
    norms: Repository, hub: TestHub, proposed: str
) -> None:
    named = [f"{NORMS}@{proposed[:8]}"]
    plan = planned(row(f"{NORMS}@{proposed[:8]}"), trust=named)
    assert kernel(plan).commit == proposed
    away(hub)  # as from a file, on another machine
    other = replace(kernel(plan), commit=norms.propose({LAYERS: b"# another\n"}, start="v1", number=2))
    failed = fetch([kernel(plan), other], plan.trust)
    assert list(failed) == [other] and "is on no branch and no tag" in failed[other]


def test_what_another_tool_brought_of_a_proposal_does_not_run(
    norms: Repository, hub: TestHub, proposed: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    theirs = planned(row(f"{NORMS}@{proposed}"), trust=[f"{NORMS}@{proposed}"])
    disguised = replace(kernel(theirs), reference=kernel(planned(row(f"{NORMS}@v1"))).reference)
    away(hub)
    for revision in ("refs/pr/1", proposed[:8], proposed, "v1"):
        snapshot_download(NORMS, repo_type="kernel", revision=revision, endpoint=hub.url, cache_dir=hub.cache)
    with pytest.raises(TrustError, match="is on no branch and no tag"):
        load(disguised, TRUST)
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    hub.log.clear()
    with hub.log.expect(0):
        with pytest.raises(TrustError, match=r"nothing in the cache says that commit .* was released"):
            load(disguised, TRUST)
        assert load(disguised, theirs.trust).code is not None
        assert scaled(planned(row(f"{NORMS}@v1"))) == kernels.NORMS["v1"]  # refs/v1 says so


def test_a_search_path_at_a_proposal_vouches_for_none_of_its_code(
    norms: Repository, hub: TestHub, tmp_path: Path
) -> None:
    groups = {"kernels/theirs.yaml": f"X: {NORMS}@v1:Scale\n"}
    code = norms.find("v1").files[LAYERS].data + b"\n# proposed\n"
    commit = norms.propose({**groups, LAYERS: code}, start="v1")
    address = f"hydra.searchpath=[hf://kernels/{NORMS}@{commit}]"
    assert typed(hub, tmp_path, "plan", address, "kernels=theirs", *CPU).code == 0
    assert (hub.cache / FOLDER / "trees" / f"{commit}.json").is_file()
    assert "is on no branch and no tag" in refusal(planned(row(f"{NORMS}@{commit}")))


@pytest.mark.parametrize(("pattern", "status"), [("/refs$", 403), ("/commits/", 404)])
def test_a_commit_that_nobody_vouches_for_does_not_come_in(
    hub: TestHub, proposed: str, pattern: str, status: int
) -> None:
    hub.fault(pattern, times=None, status=status, code="RevisionNotFound")
    reason = refusal(planned(row(f"{NORMS}@{proposed}")))
    assert f"HTTP {status}" in reason and (f"needed that or --trust {NORMS}@{proposed}" in reason) == (
        "commits" in pattern
    )
    assert not hub.log.count(kind="tree")
