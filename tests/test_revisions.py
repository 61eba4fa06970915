"""From a reference's version to branches and tags."""

from __future__ import annotations

import pytest

from kerncfg.documents.reference import KernelRef
from kerncfg.sources.hub.revisions import is_commit, matching, versions

BRANCHES = {name: f"commit of {name}" for name in ("main", "v1", "v2", "v10", "v0", "dev", "v2x", "3.5")}
TAGS = {name: f"tag {name}" for name in ("v2.1.0", "v2.9", "v10.0.0rc1", "2.3", "v3", "nightly")}


@pytest.mark.parametrize(
    ("text", "is_one"), [("0" * 40, True), ("0" * 39, False), ("G" * 40, False), ("A" * 40, False)]
)
def test_a_commit_has_forty_digits(text: str, is_one: bool) -> None:
    assert is_commit(text) is is_one


def test_versions_are_branches_with_a_number_and_the_unstable_one_comes_last() -> None:
    assert versions(BRANCHES) == ["v10", "v2", "v1", "v0"]


@pytest.mark.parametrize(
    ("at", "expected"),
    [
        ("@>=1", ["v10"]),
        ("@>=1,<3", ["v2.9"]),
        ("@<2", ["v1"]),
        ("@==2", ["v2"]),
        ("@~=2.1", ["v2.9"]),
        ("@==2.3.*", ["2.3"]),
        ("@!=10,>2", ["v3"]),
        ("@==10.0.0rc1", ["v10.0.0rc1"]),
        ("@<10,>9.9", []),
        ("@==3.5", []),  # a branch of that name is no version
        ("@>11", []),
        ("", ["v10", "v2", "v1", "v0", "main"]),
    ],
)
def test_the_highest_that_a_range_takes(at: str, expected: list[str]) -> None:
    ref = KernelRef.parse(f"org/repo{at}:A")
    found = matching(ref, BRANCHES, TAGS)
    assert [name for name, _ in found] == expected
    assert all(commit == BRANCHES.get(name, TAGS.get(name)) for name, commit in found)


def test_a_branch_goes_before_a_tag_of_its_name() -> None:
    ref = KernelRef.parse("org/repo@==2:A")
    assert matching(ref, {"v2": "branch"}, {"v2": "tag"}) == [("v2", "branch")]


def test_nothing_answers_a_repository_without_versions() -> None:
    assert matching(KernelRef.parse("org/repo:A"), {"dev": "x"}, TAGS) == []
