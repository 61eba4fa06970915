"""What earlier runs found out, and what is made of it when it is broken or somebody else's."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import huggingface_hub
import pytest

from kerncfg.documents.lock import File
from kerncfg.documents.reference import KernelRef
from kerncfg.errors import SourceError
from kerncfg.sources.environment import Settings
from kerncfg.sources.hub.memory import Found, Memory, builds_of, checked, listed

A, B = "a" * 40, "b" * 40
PLACE = "org/repo"


@pytest.fixture
def settings(tmp_path: Path) -> Settings:
    return Settings.read({"HF_HUB_CACHE": str(tmp_path / "hub"), "HF_HOME": str(tmp_path)})


@pytest.fixture
def memory(settings: Settings) -> Memory:
    return Memory(settings)


def entry(path: str = "build/torch-cpu/a.py", **said: Any) -> dict[str, Any]:
    return {"type": "file", "oid": A, "size": 3, "path": path, **said}


@pytest.mark.parametrize("text", ["org/repo@v1", "org/repo@feature/x", "org/repo@>=1,<2", "org/repo", f"org/repo@{A}"])
def test_what_a_reference_led_to_is_found_again(memory: Memory, settings: Settings, text: str) -> None:
    ref = KernelRef.parse(text)
    found = Found(repository="org/other", commits=(("v2", A),))
    assert memory.found(ref) is None
    memory.keep_found(ref, found)
    assert Memory(settings).found(ref) == found


def test_another_reference_is_another_question(memory: Memory) -> None:
    memory.keep_found(KernelRef.parse("org/repo@v1"), Found(repository=PLACE, commits=(("v1", A),)))
    for text in ("org/repo@v2", "org/repo", "org/repo@>=1", "org/other@v1"):
        assert memory.found(KernelRef.parse(text)) is None


def test_a_branch_is_written_where_the_library_looks_for_it(memory: Memory, settings: Settings) -> None:
    memory.keep_found(KernelRef.parse("org/repo@feature/x"), Found(repository=PLACE, commits=(("feature/x", A),)))
    assert (settings.folder(PLACE) / "refs" / "feature" / "x").read_text() == A
    memory.keep_found(KernelRef.parse(f"org/repo@{B}"), Found(repository=PLACE, commits=((B, B),)))
    assert not (settings.folder(PLACE) / "refs" / B).exists()


def test_a_branch_that_the_library_wrote_is_known(memory: Memory, settings: Settings) -> None:
    refs = settings.folder(PLACE) / "refs"
    refs.mkdir(parents=True)
    (refs / "v1").write_text(A)
    (refs / "v2").write_text("half a comm")
    assert memory.found(KernelRef.parse("org/repo@v1")) == Found(repository=PLACE, commits=(("v1", A),))
    assert memory.found(KernelRef.parse("org/repo@v2")) is None


@pytest.mark.parametrize(
    "text",
    [
        "", "{", "[]", "null", "{}", '{"repository": "org/repo"}', '{"repository": "org/repo", "commits": []}',
        '{"repository": 3, "commits": [["v1", "' + A + '"]]}',
        '{"repository": "../..", "commits": [["v1", "' + A + '"]]}',
        '{"repository": "org/repo", "commits": [["v1", "HEAD"]]}', '{"repository": "org/repo", "commits": [["v1"]]}',
        '{"repository": "org/repo", "commits": 3}', '{"repository": "a/b:C", "commits": [["v1", "' + A + '"]]}',
    ],
)  # fmt: skip
def test_a_broken_memory_is_none(memory: Memory, settings: Settings, text: str) -> None:
    ref = KernelRef.parse("org/repo@v1")
    memory.keep_found(ref, Found(repository="org/other", commits=(("v1", A),)))
    (file,) = (settings.folder(PLACE) / "kerncfg").iterdir()
    file.write_text(text)
    assert memory.found(ref) is None


def test_a_memory_of_another_commit_is_none(memory: Memory, settings: Settings) -> None:
    ref = KernelRef.parse(f"org/repo@{A}")
    memory.keep_found(ref, Found(repository="org/other", commits=((B, B),)))
    assert memory.found(ref) is None


def test_a_listing_is_found_again_by_us_and_by_the_library(memory: Memory, settings: Settings) -> None:
    large = {"oid": "c" * 64, "size": 9, "pointerSize": 1}
    entries = [entry(), entry("build/torch-cpu/x.so", lfs=large, xetHash="d" * 64)]
    assert memory.listing(PLACE, A) is None
    memory.keep_listing(PLACE, A, entries)
    right = [File(path="build/torch-cpu/a.py", size=3, digest=f"git:{A}")]
    right += [File(path="build/torch-cpu/x.so", size=9, digest=f"sha256:{'c' * 64}")]
    assert memory.listing(PLACE, A) == right == [listed(each, PLACE) for each in entries]
    from huggingface_hub._tree_cache import read_tree_cache

    assert set(read_tree_cache(str(settings.folder(PLACE)), A) or {}) == {each["path"] for each in entries}
    assert huggingface_hub.__version__


@pytest.mark.parametrize(
    "text",
    [
        "", "{", "[]", "{}", '{"format_version": 2, "files": {}}', '{"format_version": 1, "files": []}',
        '{"format_version": 1, "files": {"a": {}}}',
        '{"format_version": 1, "files": {"a": {"size": "x", "blob_id": "y"}}}',
        '{"format_version": 1, "files": {"a": {"size": 1, "blob_id": "../../x"}}}',
    ],
)  # fmt: skip
def test_a_broken_listing_is_none(memory: Memory, settings: Settings, text: str) -> None:
    memory.keep_listing(PLACE, A, [entry()])
    (settings.folder(PLACE) / "trees" / f"{A}.json").write_text(text)
    assert memory.listing(PLACE, A) is None


def test_a_listing_whose_names_climb_is_refused(memory: Memory, settings: Settings) -> None:
    memory.keep_listing(PLACE, A, [entry()])
    file = settings.folder(PLACE) / "trees" / f"{A}.json"
    file.write_text(file.read_text().replace("a.py", "../../../a.py"))
    with pytest.raises(SourceError, match="whose name leads out of its folder, needed a plain path"):
        memory.listing(PLACE, A)


@pytest.mark.parametrize(
    "said", [{"size": None}, {"oid": "../../x"}, {"oid": 3}, {"lfs": {"oid": "x", "size": 1}}, {"lfs": {"size": 1}}]
)
def test_an_entry_that_is_none_is_refused(said: dict[str, Any]) -> None:
    with pytest.raises((KeyError, TypeError, ValueError)):
        listed(entry(**said), PLACE)


def test_a_cache_that_cannot_be_written_is_read_all_the_same(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    memory = Memory(Settings.read({"HF_HUB_CACHE": str(tmp_path / "file")}))
    memory.keep_found(KernelRef.parse("org/repo@v1"), Found(repository=PLACE, commits=(("v1", A),)))
    memory.keep_listing(PLACE, A, [entry()])
    assert memory.found(KernelRef.parse("org/repo@v1")) is None and memory.listing(PLACE, A) is None


def test_nothing_half_written_stays(memory: Memory, settings: Settings, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(Path, "replace", full)
    with pytest.raises(KeyboardInterrupt):
        memory.keep_listing(PLACE, A, [entry()])
    assert [path for path in settings.folder(PLACE).rglob("*") if path.is_file()] == []


@pytest.mark.parametrize("path", ["a.py", "a/b.py", "a/.hidden", "a b.py", "ä.py", "...a"])
def test_a_plain_path_stays(path: str) -> None:
    assert checked(path, PLACE) == path


@pytest.mark.parametrize(
    "path", ["", "/a", "../a", "a/..", "a/./b", "a//b", "a\\b", "c:a", "a\0b", "a\nb", ". ./a", "a/ "]
)
def test_a_path_that_climbs_is_refused(path: str) -> None:
    with pytest.raises(SourceError, match="needed a plain path"):
        checked(path, PLACE)


def test_builds_are_the_folders_below_build_without_bytecode() -> None:
    paths = [
        "README.md",
        "build/x",
        "build/A/a.py",
        "build/A/b/c.py",
        "build/A/a.pyc",
        "build/A/__pycache__/a.x",
        "b/A/a",
    ]
    found = builds_of([File(path=path, size=1, digest="git:x") for path in paths])
    assert {name: [file.path for file in files] for name, files in found.items()} == {"A": ["a.py", "b/c.py"]}
    assert json.dumps(sorted(found)) == '["A"]'
