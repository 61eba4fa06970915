"""The files of a build in the cache: right or not there, whoever broke them and however many fetch at once."""

from __future__ import annotations

import os
import threading
import time
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import huggingface_hub
import pytest

from kerncfg.documents.lock import File
from kerncfg.errors import IntegrityError, SourceError
from kerncfg.sources.environment import Settings
from kerncfg.sources.hub import asking, files
from kerncfg.sources.hub.asking import Hub, HubFault
from kerncfg.sources.hub.files import bring, fault, single
from tests.hub import kernels
from tests.hub.kernels import TRUSTED
from tests.hubbing import files_of, kernel, planned, row

if TYPE_CHECKING:
    from kerncfg.documents.plan import Kernel
    from tests.hub.fixtures import TestHub
    from tests.hub.repos import Repository

NORMS = f"{TRUSTED}/norms"


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(asking, "WAITS", (0.01, 0.01))


@pytest.fixture
def found(norms: Repository) -> Kernel:
    return kernel(planned(row(f"{NORMS}@v1")))


def client() -> Hub:
    return Hub(Settings.read())


def content(folder: Path, norms: Repository) -> None:
    """Every file of the build is what the repository has."""
    right = norms.find("v1").files
    for path in ("__init__.py", "layers.py", "metadata.json"):
        assert (folder / path).read_bytes() == right[f"build/torch-cpu/{path}"].data


def test_a_build_is_brought_whole_and_in_the_place_of_the_library(
    found: Kernel, norms: Repository, hub: TestHub
) -> None:
    sizes: list[int] = []
    folder = bring(client(), found, sizes.append)
    content(folder, norms)
    assert sorted(sizes) == sorted(file.size for file in found.files)
    assert found.commit is not None
    for file in found.files:
        path = f"build/torch-cpu/{file.path}"
        kept = huggingface_hub.try_to_load_from_cache(
            NORMS, path, cache_dir=hub.cache, revision=found.commit, repo_type="kernel"
        )
        assert kept == str(folder / file.path)
        assert (folder / file.path).is_symlink() and (folder / file.path).resolve().parent.name == "blobs"
    assert not list(hub.cache.rglob("*.part"))


def test_what_the_library_brought_is_not_fetched_again(norms: Repository, hub: TestHub, found: Kernel) -> None:
    huggingface_hub.snapshot_download(
        NORMS, repo_type="kernel", revision=found.commit, endpoint=hub.url, cache_dir=hub.cache, token=False
    )
    with hub.log.expect(0):
        content(bring(client(), found), norms)
    huggingface_hub.close_session()


@pytest.mark.parametrize("damage", ["wrong", "short", "empty", "gone", "blob gone", "dangling", "a copy"])
def test_a_damaged_file_is_healed(found: Kernel, norms: Repository, hub: TestHub, damage: str) -> None:
    folder = bring(client(), found)
    layers = folder / "layers.py"
    right = layers.read_bytes()
    if damage == "gone":
        layers.unlink()
    elif damage == "blob gone":
        layers.resolve().unlink()
    elif damage == "dangling":
        layers.unlink()
        layers.symlink_to("nowhere")
    elif damage == "a copy":
        layers.unlink()
        layers.write_bytes(b"x")
    else:
        said = {"wrong": b"#" * len(right), "short": right[:-1], "empty": b""}
        layers.resolve().write_bytes(said[damage])
    needs = 0 if damage in ("gone", "dangling", "a copy") else 1  # the blob is there
    with hub.log.expect(needs):
        content(bring(client(), found), norms)


@pytest.mark.parametrize("damage", ["wrong", "short"])
def test_offline_a_damaged_file_is_an_integrity_error(
    found: Kernel, hub: TestHub, damage: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    layers = bring(client(), found) / "layers.py"
    right = layers.read_bytes()
    layers.resolve().write_bytes(b"#" * len(right) if damage == "wrong" else right[:-1])
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    with pytest.raises(IntegrityError) as caught:
        bring(client(), found)
    assert "found " in caught.value.message and ", needed " in caught.value.message
    layers.unlink()
    layers.resolve().parent.joinpath("x").touch()
    for blob in (hub.cache / f"kernels--{TRUSTED}--norms" / "blobs").iterdir():
        blob.unlink()
    with pytest.raises(HubFault, match=r"HF_HUB_OFFLINE is set, and .* is not in the cache"):
        bring(client(), found)


@pytest.mark.parametrize("said", [{"wrong": True}, {"short": 3}, {"replace": (b"torch", b"t0rch")}])
def test_wrong_bytes_from_the_hub_are_asked_for_once_more_and_never_kept(
    found: Kernel, norms: Repository, hub: TestHub, said: dict[str, object]
) -> None:
    once = hub.fault("resolve.*layers", **said)
    content(bring(client(), found), norms)
    assert once.hits == 1
    (norms_layers,) = [file for file in found.files if file.path == "layers.py"]
    path = hub.cache / f"kernels--{TRUSTED}--norms" / "blobs" / norms_layers.digest.partition(":")[2]
    path.unlink()
    always = hub.fault("resolve.*layers", times=None, **said)
    with pytest.raises(IntegrityError, match=r"layers\.py of .* came broken from the Hub, twice: found .*, needed "):
        bring(client(), found)
    assert always.hits == 2 and not path.exists() and not list(hub.cache.rglob("*.part"))


def test_more_bytes_than_there_should_be_are_not_read_to_the_end(found: Kernel, hub: TestHub) -> None:
    (layers,) = [file for file in found.files if file.path == "layers.py"]
    smaller = replace(found, files=(replace(layers, size=10),))
    with pytest.raises(IntegrityError, match="needed 10"):
        bring(client(), smaller)


def test_one_file_that_cannot_be_had_is_enough(norms: Repository, hub: TestHub) -> None:
    modules = {**kernels.norm_layers(1), **{f"part{number}.py": f"x = {number}\n" for number in range(40)}}
    hub.add(kernels.repository(f"{TRUSTED}/large", modules))
    found = kernel(planned(row(f"{TRUSTED}/large@v1")))
    fault = hub.fault("resolve", status=404, code="EntryNotFound", times=None)
    with pytest.raises(HubFault, match="HTTP 404"):
        bring(client(), found)
    assert fault.hits <= 16


@pytest.mark.parametrize("name", ["evil.py", "sub/evil.py", "evil.so", "libevil.so.1", "evil.dll"])
def test_code_that_no_listing_names_is_refused(found: Kernel, name: str) -> None:
    folder = bring(client(), found)
    (folder / name).parent.mkdir(exist_ok=True)
    (folder / name).write_text("x = 1\n")
    with pytest.raises(IntegrityError, match=f"holds {name}, which commit {found.commit} has not"):
        bring(client(), found)


def test_a_folder_that_is_a_link_is_refused(found: Kernel, tmp_path: Path) -> None:
    folder = bring(client(), found)
    (tmp_path / "evil").mkdir()
    (tmp_path / "evil" / "__init__.py").write_text("raise SystemExit\n")
    (folder / "layers").symlink_to(tmp_path / "evil")
    with pytest.raises(IntegrityError, match="holds layers, which commit"):
        bring(client(), found)


def test_bytecode_and_data_beside_a_build_harm_nobody(found: Kernel) -> None:
    folder = bring(client(), found)
    (folder / "__pycache__").mkdir()
    (folder / "__pycache__" / "layers.cpython-311.pyc").write_bytes(b"bad")
    (folder / "notes.txt").write_text("mine")
    bring(client(), found)


def test_a_link_that_leads_out_of_the_cache_is_replaced_and_not_followed(
    found: Kernel, norms: Repository, tmp_path: Path
) -> None:
    folder = bring(client(), found)
    mine = tmp_path / "mine.txt"
    mine.write_text("precious")
    (folder / "layers.py").unlink()
    (folder / "layers.py").symlink_to(mine)
    content(bring(client(), found), norms)
    assert mine.read_text() == "precious"


@pytest.mark.parametrize(
    "path", ["../up.py", "/etc/up.py", "a/../../up.py", "a\\up.py", "c:up.py", "a/./up.py", "a//b"]
)
def test_a_name_that_climbs_out_is_refused(found: Kernel, hub: TestHub, path: str) -> None:
    before = files_of(hub.home.parent)
    odd = replace(found, files=(File(path=path, size=1, digest="git:" + "0" * 40),))
    with hub.log.expect(0), pytest.raises(SourceError, match="whose name leads out of its folder"):
        bring(client(), odd)
    assert files_of(hub.home.parent) == before


def test_many_threads_at_one_empty_cache_all_find_a_whole_build(found: Kernel, norms: Repository, hub: TestHub) -> None:
    hub.fault("resolve.*layers", slow=0.01, times=None)
    failed: list[BaseException] = []

    def one() -> None:
        try:
            content(bring(client(), found), norms)
        except BaseException as error:
            failed.append(error)

    threads = [threading.Thread(target=one) for _ in range(8)]
    for each in threads:
        each.start()
    for each in threads:
        each.join()
    assert failed == [] and not list(hub.cache.rglob("*.part"))


def test_a_large_file_comes_from_elsewhere_without_the_token(hub: TestHub, monkeypatch: pytest.MonkeyPatch) -> None:
    made = kernels.native()
    made.private = True
    hub.add(made)
    hub.tokens = {"hf_good": frozenset({"*"})}
    monkeypatch.setenv("HF_TOKEN", "hf_good")
    found = kernel(planned(row(f"{TRUSTED}/native@v1")))
    hub.fault("/cdn/", cut=0.5)
    bring(client(), found)
    assert {each.authorized for each in hub.log.find(kind="cdn")} == {False}
    assert {each.authorized for each in hub.log.find(kind="resolve")} == {True}
    second = hub.log.find(kind="cdn")[1]
    assert second.range is None or second.range.startswith("bytes=")


def test_what_was_left_long_ago_is_swept(found: Kernel, hub: TestHub) -> None:
    blobs = hub.cache / f"kernels--{TRUSTED}--norms" / "blobs"
    (layers,) = [file for file in found.files if file.path == "layers.py"]
    name = layers.digest.partition(":")[2]
    old, new = blobs / f"{name}.1.part", blobs / f"{name}.2.part"
    for left in (old, new):
        left.write_bytes(b"half")
    then = time.time() - files._STALE - 10
    os.utime(old, (then, then))
    bring(client(), found)
    assert not old.exists() and new.exists()


def test_a_machine_without_links_has_copies(
    found: Kernel, norms: Repository, hub: TestHub, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object, **__: object) -> None:
        raise OSError("no links here")

    monkeypatch.setattr(Path, "symlink_to", refuse)
    folder = bring(client(), found)
    content(folder, norms)
    assert not (folder / "layers.py").is_symlink()
    with hub.log.expect(0):
        bring(client(), found)


def test_a_cache_that_cannot_be_written_says_so(
    found: Kernel, hub: TestHub, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("KERNELS_CACHE", str(tmp_path / "file"))
    with hub.log.expect(0), pytest.raises(SourceError, match=r"cannot be kept in .*/file: Not a directory"):
        bring(client(), found)


def test_a_fault_names_both_sides(tmp_path: Path) -> None:
    file = File(path="a", size=3, digest="sha256:" + "0" * 64)
    (tmp_path / "a").write_text("abc")
    assert fault(tmp_path / "a", file) == "found sha256 ba7816bf8f01, needed 000000000000"
    assert fault(tmp_path / "a", replace(file, size=4)) == "found 3 bytes, needed 4"
    assert fault(tmp_path / "b", file) == "found nothing, needed 3 bytes"
    assert (
        fault(tmp_path / "a", replace(file, digest="git:" + "0" * 40)) == "found git f2ba8f84ab5c, needed 000000000000"
    )


def test_a_single_file_is_there_afterwards(norms: Repository, hub: TestHub, found: Kernel) -> None:
    (layers,) = [file for file in found.files if file.path == "layers.py"]
    place = single(client(), NORMS, str(found.commit), "build/torch-cpu/layers.py", layers)
    assert fault(place, layers) is None
