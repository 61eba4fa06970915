"""Where the Hub is, what is sent there, and where its files are kept (`kerncfg.sources.environment`)."""

from __future__ import annotations

from pathlib import Path

import pytest

from kerncfg.errors import SourceError
from kerncfg.sources.environment import Settings, local_kernels

HOME = str(Path("~").expanduser())


@pytest.mark.parametrize(
    ("said", "cache"),
    [
        ({}, f"{HOME}/.cache/huggingface/hub"),
        ({"XDG_CACHE_HOME": "/x"}, "/x/huggingface/hub"),
        ({"HF_HOME": "/h"}, "/h/hub"),
        ({"HF_HOME": "~/h"}, f"{HOME}/h/hub"),
        ({"HF_HUB_CACHE": "/c", "HF_HOME": "/h"}, "/c"),
        ({"HUGGINGFACE_HUB_CACHE": "/o", "HF_HOME": "/h"}, "/o"),
        ({"KERNELS_CACHE": "/k", "HF_HUB_CACHE": "/c"}, "/k"),
        ({"KERNELS_CACHE": "", "HF_HUB_CACHE": ""}, f"{HOME}/.cache/huggingface/hub"),
    ],
)
def test_the_cache_is_where_the_libraries_put_it(said: dict[str, str], cache: str) -> None:
    assert str(Settings.read(said).cache) == cache


def test_variables_inside_a_folders_name_are_read_as_the_libraries_read_them(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KERNCFG_TEST_DISK", "/disk")
    assert str(Settings.read({"HF_HUB_CACHE": "$KERNCFG_TEST_DISK/hub"}).cache) == "/disk/hub"
    assert str(Settings.read({"HF_HOME": "${KERNCFG_TEST_DISK}/hf"}).cache) == "/disk/hf/hub"


def test_a_relative_cache_starts_at_the_working_directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert Settings.read({"HF_HUB_CACHE": "c"}).cache == tmp_path / "c"


def test_the_address_is_the_hubs_unless_another_is_said() -> None:
    assert Settings.read({}).endpoint == "https://huggingface.co"
    assert Settings.read({"HF_ENDPOINT": "http://here:1/"}).endpoint == "http://here:1"
    for address in ("http://a..b", f"http://{'a' * 64}.b", "https://[::1", ""):
        with pytest.raises(SourceError, match="HF_ENDPOINT"):
            Settings.read({"HF_ENDPOINT": address}).check()
    assert Settings.read({"HF_ENDPOINT": "http://me:word@here:1/hf"}).shown == "http://here:1/hf"


@pytest.mark.parametrize(
    ("value", "offline"),
    [("1", True), ("on", True), ("YES", True), ("True", True), ("0", False), ("", False), ("2", False)],
)
@pytest.mark.parametrize("name", ["HF_HUB_OFFLINE", "TRANSFORMERS_OFFLINE"])
def test_offline_is_what_the_libraries_take_for_true(name: str, value: str, offline: bool) -> None:
    assert Settings.read({name: value}).offline is offline


def test_a_token_is_taken_from_a_variable_or_the_file_of_a_login(tmp_path: Path) -> None:
    home = {"HF_HOME": str(tmp_path)}
    assert Settings.read(home).token is None
    (tmp_path / "token").write_text(" hf_file\n")
    (tmp_path / "other").write_text("hf_other")
    (tmp_path / "empty").write_text("\n")
    assert Settings.read(home).token == "hf_file"
    assert Settings.read({**home, "HF_TOKEN_PATH": str(tmp_path / "other")}).token == "hf_other"
    assert Settings.read({**home, "HF_TOKEN_PATH": str(tmp_path / "empty")}).token is None
    assert Settings.read({**home, "HF_HUB_DISABLE_IMPLICIT_TOKEN": "1"}).token is None
    assert Settings.read({**home, "HUGGING_FACE_HUB_TOKEN": "hf_old"}).token == "hf_old"
    assert Settings.read({**home, "HF_TOKEN": "hf_new\n", "HUGGING_FACE_HUB_TOKEN": "hf_old"}).token == "hf_new"
    assert Settings.read({**home, "HF_TOKEN": " ", "HF_HUB_DISABLE_IMPLICIT_TOKEN": "1"}).token is None


def test_a_token_is_not_shown() -> None:
    assert "hf_secret" not in repr(Settings.read({"HF_TOKEN": "hf_secret"}))


def test_a_repository_stays_in_its_folder() -> None:
    settings = Settings.read({"HF_HUB_CACHE": "/c"})
    assert str(settings.folder("org/repo")) == "/c/kernels--org--repo"
    assert str(settings.folder("../../x")) == "/c/kernels--..--..--x"
    assert str(settings.snapshot("org/repo", "a" * 40)) == f"/c/kernels--org--repo/snapshots/{'a' * 40}"


@pytest.mark.parametrize(
    ("said", "found"),
    [
        ("", {}),
        ("org/a=/x", {"org/a": "/x"}),
        ("org/a=/x:org/b=/y/z", {"org/a": "/x", "org/b": "/y/z"}),
        (" org/a =~/x", {"org/a": f"{HOME}/x"}),
        ("org/a=/x:with:colons:org/b=/y", {"org/a": "/x:with:colons", "org/b": "/y"}),
        ("nonsense:org/b=/y", {"org/b": "/y"}),
        ("org/a=", {}),
        ("=/x", {}),
    ],
)
def test_folders_in_place_of_repositories(said: str, found: dict[str, str]) -> None:
    assert local_kernels({"LOCAL_KERNELS": said}) == found


def test_variables_are_read_when_they_are_needed(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    for number in ("1", "2"):
        monkeypatch.setenv("HF_ENDPOINT", f"http://hub{number}")
        monkeypatch.setenv("HF_TOKEN", f"hf_{number}")
        monkeypatch.setenv("KERNELS_CACHE", str(tmp_path / number))
        monkeypatch.setenv("HF_HUB_OFFLINE", number)
        monkeypatch.setenv("LOCAL_KERNELS", f"org/a=/{number}")
        found = Settings.read()
        assert (found.endpoint, found.token, found.offline) == (f"http://hub{number}", f"hf_{number}", number == "1")
        assert found.cache == tmp_path / number and local_kernels() == {"org/a": f"/{number}"}
