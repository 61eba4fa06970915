from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from kerncfg.compiler.schema import validate
from kerncfg.documents.lock import Build, File, Lock, Pin, Release, digest_of
from kerncfg.documents.metadata import Metadata
from kerncfg.documents.reference import KernelRef
from kerncfg.documents.variant import Variant
from kerncfg.errors import LockError
from tests.builders import target


@pytest.mark.parametrize(
    ("written", "asked"),
    [
        ("org/r@v3:A", KernelRef.parse("org/r:A").at(version=3)),
        ("org/r@>=2.0,<3.0:A", KernelRef.parse("org/r@<3.0,>=2.0:A")),
        ("/dir/:A", KernelRef.parse("/dir:A")),
    ],
    ids=["version", "range", "folder"],
)
def test_an_answer_is_found_however_the_reference_was_written(written: str, asked: KernelRef) -> None:
    ref = KernelRef.parse(written)
    pin = Pin.of(ref, Build(variant=None, digest="d"))
    assert Lock(pins={ref: pin}).pins[asked] is pin


def test_another_version_is_another_question() -> None:
    ref = KernelRef.parse("org/r@v3:A")
    assert KernelRef.parse("org/r@v4:A") not in Lock(pins={ref: Pin(ref=ref, reason="gone")}).pins


COMMIT, OTHER = "a" * 40, "b" * 40
FILES = (
    File(path="__init__.py", size=3, digest=f"git:{'c' * 40}"),
    File(path="x.so", size=9, digest=f"sha256:{'d' * 64}"),
)


def metadata(**said: Any) -> Metadata:
    return replace(Metadata(id="_x", name="xx", backend="cpu"), **said)


def build(name: str = "torch-cpu", **said: Any) -> Build:
    return Build(variant=Variant.parse(name), digest=digest_of(FILES), files=FILES, **said)


def pin(text: str = "org/r@v1", *commits: str, **said: Any) -> Pin:
    releases = tuple(Release(commit=commit, revision="v1", builds=(build(),)) for commit in commits)
    return Pin(ref=KernelRef.parse(text), releases=releases, **said)


def lock(*pins: Pin, **said: Any) -> Lock:
    return Lock(pins={pin.ref: pin for pin in pins}, **said)


def test_one_digest_stands_for_all_files_in_whatever_order() -> None:
    assert digest_of(FILES) == digest_of(reversed(FILES))
    assert digest_of(FILES) != digest_of([replace(FILES[0], path="b.py"), FILES[1]])
    assert digest_of(FILES) != digest_of([replace(FILES[0], digest=f"git:{'e' * 40}"), FILES[1]])


def test_a_lock_is_read_back_and_its_bytes_are_stable(tmp_path: Path) -> None:
    needs = metadata(kernel_depends=(("org/base", 2, None), ("org/more", None, "v1.0")))
    moved = Release(
        commit=COMMIT, revision="v2", repository="org/new", builds=(build(metadata=needs), build("torch-cuda"))
    )
    made = lock(
        replace(pin(), releases=(moved,), note="n", versions={"v3": ("torch-cuda",)}),
        pin("org/gone", reason="no"),
        Pin.of(KernelRef.parse("/dir:A"), Build(variant=None, digest="d")),
    )
    made.save(tmp_path / "kerncfg.lock")
    text = (tmp_path / "kerncfg.lock").read_text("utf-8")
    read = Lock.from_dict(json.loads(text))
    assert read.to_json() == text
    assert list(read.hub()) == list(made.hub()) and len(read.pins) == 2
    assert Lock(pins=dict(reversed(list(made.pins.items())))).to_json() == text
    validate(json.loads(text), "lock")


def test_a_newer_format_is_refused_with_both_numbers() -> None:
    for said in ({"schema": 2, "pins": {}}, {}):
        with pytest.raises(LockError, match=r"the lock has format (2|None), this kerncfg reads 1"):
            Lock.from_dict(said)


def test_an_edited_build_is_refused_with_both_digests() -> None:
    data = lock(pin("org/r@v1", COMMIT)).to_dict()
    (found,) = data["pins"]["org/r@v1"]["releases"][0]["builds"].values()
    found["files"]["x.so"]["digest"] = f"sha256:{'e' * 64}"
    with pytest.raises(LockError, match=r"the files of build torch-cpu have digest \w{12}, the lock says \w{12}"):
        Lock.from_dict(data)
    with pytest.raises(LockError, match="build 'any' is none, needed a name such as torch-cuda"):
        Build.from_dict("any", build().to_dict())


def test_an_answer_for_a_repository_is_one_for_each_of_its_kernels() -> None:
    made = lock(pin("org/r@v1", COMMIT))
    assert made.pin(KernelRef.parse("org/r@v1:A")) is made.pins[KernelRef.parse("org/r@v1")]
    assert made.pin(KernelRef.parse("org/r@v2:A")) is None


def test_a_build_names_the_kernels_that_it_imports() -> None:
    found = build(metadata=metadata(kernel_depends=(("org/base", 2, None), ("org/more", None, "v1.0"))))
    assert [str(ref) for ref in found.dependencies] == ["org/base@v2", "org/more@v1.0"]
    assert build().dependencies == () and build().name == "torch-cpu"


@pytest.mark.parametrize("named", [("../../x", 1, None), ("org/base", None, "../../up"), ("/etc:x", None, "main")])
def test_a_build_that_imports_what_is_no_kernel_fits_nowhere(named: Any) -> None:
    found = build(metadata=metadata(kernel_depends=(("org/base", 2, None), named)))
    assert [str(ref) for ref in found.dependencies] == ["org/base@v2"]
    assert "needed organisation/name with a version" in str(found.refusal(target("cpu")))


def test_what_speaks_against_a_build_is_its_name_its_fault_or_its_metadata() -> None:
    cpu = target("cpu")
    assert build().refusal(cpu) is None and Build(variant=None, digest="d").refusal(cpu) is None
    assert "cuda" in str(build("torch-cuda", fault="odd").refusal(cpu))
    assert build(fault="odd").refusal(cpu) == "odd"
    assert "nki" in str(build(metadata=metadata(python_depends=("nki",))).refusal(cpu))


def test_the_first_release_with_a_build_that_fits_is_taken() -> None:
    releases = [Release(commit=str(n), builds=(build(name),)) for n, name in enumerate(("torch-cuda", "torch-cpu"))]
    found = Pin(ref=KernelRef.parse("org/r"), releases=tuple(releases))
    chosen = found.choose(target("cpu"))
    assert chosen is not None and chosen[0].commit == "1" and len(found.builds) == 2
    assert Pin.of(KernelRef.parse("org/r"), build("torch-cuda"), commit=COMMIT).choose(target("cpu")) is None
    both = Pin.of(KernelRef.parse("org/r"), Build(variant=None, digest="d"), build("torch-universal"), build())
    best = both.choose(target("cpu"))
    assert best is not None and best[1].name == "torch-cpu"


def at(text: str, *releases: tuple[str, str]) -> Pin:
    found = tuple(Release(commit=commit, revision=revision) for revision, commit in releases)
    return Pin(ref=KernelRef.parse(text), releases=found)


@pytest.mark.parametrize(
    ("before", "now", "lines"),
    [
        (lock(pin("org/r@v1", COMMIT)), lock(pin("org/r@v1", COMMIT)), []),
        (
            lock(pin("org/r@v1", COMMIT)),
            lock(pin("org/r@v1", OTHER)),
            [f"org/r@v1: v1: {COMMIT[:12]}… → {OTHER[:12]}…"],
        ),
        (lock(), lock(pin("org/r@v1", COMMIT)), ["org/r@v1: not locked"]),
        (lock(pin("org/r@v1", COMMIT)), lock(), ["org/r@v1: locked, and no row names it"]),
        (lock(pin("org/r@v1", COMMIT)), lock(pin(reason="gone")), [f"org/r@v1: v1: {COMMIT[:12]}… → gone"]),
        (lock(pin("org/r@v1", COMMIT)), lock(pin()), [f"org/r@v1: v1: {COMMIT[:12]}… → gone"]),
        (lock(pin(reason="a")), lock(pin(reason="b")), ["org/r@v1: a → b"]),
        (lock(pin("org/r@v1", COMMIT)), lock(pin("org/r@v1", COMMIT, note="n")), []),
        (lock(pin("org/r@v1", COMMIT)), lock(pin(reason="silence", away=True)), []),
        (lock(pin("org/r@v1", COMMIT)), lock(pin(reason="not to you", barred=True)), []),
        (lock(pin(reason="not to you")), lock(pin(reason="not to you", barred=True)), []),
        (lock(), lock(pin(reason="not to you", barred=True)), ["org/r@v1: not locked"]),
        (lock(commits={KernelRef.parse("org/r@v1"): COMMIT}), lock(pin("org/r@v1", COMMIT)), []),
        (
            lock(commits={KernelRef.parse("org/r@v1"): COMMIT}),
            lock(pin("org/r@v1", OTHER)),
            [f"org/r@v1: {COMMIT[:12]}… → {OTHER[:12]}…"],
        ),
        (
            lock(commits={KernelRef.parse("org/r@v1"): COMMIT}),
            lock(pin(reason="no")),
            [f"org/r@v1: {COMMIT[:12]}… → no"],
        ),
        (
            lock(pin("org/r@v1", COMMIT)),
            lock(replace(pin(), releases=(Release(commit=COMMIT, revision="v1", repository="org/n"),))),
            [f"org/r@v1: v1: {COMMIT[:12]}… → org/n@{COMMIT[:12]}…"],
        ),
        (
            lock(Pin.of(KernelRef.parse("org/r"), commit=COMMIT)),
            lock(Pin.of(KernelRef.parse("org/r"), commit=OTHER)),
            [f"org/r: it: {COMMIT[:12]}… → {OTHER[:12]}…"],
        ),
        (
            lock(at("org/r@>=2", ("v2.1.0", COMMIT))),
            lock(at("org/r@>=2", ("v2.5.0", OTHER))),
            [f"org/r@>=2: v2.1.0 {COMMIT[:12]}… → v2.5.0 {OTHER[:12]}…"],
        ),
        (
            lock(at("org/r@>=2", ("v2", COMMIT))),
            lock(at("org/r@>=2", ("v2", OTHER))),
            [f"org/r@>=2: v2: {COMMIT[:12]}… → {OTHER[:12]}…"],
        ),
        (
            lock(at("org/r", ("v2", COMMIT), ("v1", OTHER))),
            lock(at("org/r", ("v3", OTHER), ("v2", COMMIT))),
            [f"org/r: v1: {OTHER[:12]}… → gone", f"org/r: v3: none → {OTHER[:12]}…"],
        ),
    ],
)
def test_what_moved_is_told(before: Lock, now: Lock, lines: list[str]) -> None:
    assert list(before.moved(now)) == lines
