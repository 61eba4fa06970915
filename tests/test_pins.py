from __future__ import annotations

from typing import Any

import pytest

from kerncfg.dialects.pins import Move, folders, moved, pins
from kerncfg.errors import ConfigError

A, B = "a" * 40, "b" * 40


def entry(repo: str, commit: str = A, **said: Any) -> dict[str, Any]:
    return {"dependency": {"repo-id": repo, **said}, "lock": {"commit": commit}}


def after(rows: dict[str, Any], *moves: Move) -> dict[str, Any]:
    found: dict[str, Any] = moved({"kernels": {**rows, "inherit_mapping": False}}, list(moves))[0]["kernels"]
    return {name: row for name, row in found.items() if name != "inherit_mapping"}


PIN = Move(repository="o/r", revision="v3", commit=A)
FOLDER = Move(repository="o/r", folder="/k")


def test_the_entries_of_a_lock_file_are_read() -> None:
    data = [entry("o/r", version=3), entry("o/s", B, revision="main")]
    assert pins(data) == [PIN, Move(repository="o/s", revision="main", commit=B)]


@pytest.mark.parametrize("data", [{}, [{}], [entry("o/r", "short", version=1)], [3], "text"])
def test_what_is_no_lock_file_is_refused(data: Any) -> None:
    with pytest.raises(ConfigError, match="entry 0 names no repository and commit"):
        pins(data)


def test_a_lock_file_that_pins_nothing_is_refused() -> None:
    with pytest.raises(ConfigError, match="holds an empty list, expected an entry for each repository"):
        pins([])


def test_the_parts_of_a_value_are_read() -> None:
    assert folders("o/r=/k:p/q=C:\\k:r/s=rel/dir") == [
        FOLDER,
        Move(repository="p/q", folder="C:\\k"),
        Move(repository="r/s", folder="./rel/dir"),
    ]


@pytest.mark.parametrize("text", ["o/r", "o=/k", "o/r="])
def test_a_part_that_is_no_repository_with_a_folder_is_refused(text: str) -> None:
    with pytest.raises(ConfigError, match="is no repository with a folder"):
        folders(text)


@pytest.mark.parametrize(
    ("row", "pinned"),
    [
        ("o/r:X", f"o/r@{A}:X"),
        ("o/r@v3:X", f"o/r@{A}:X"),
        ({"kernel": "o/r:X", "version": 3, "dtype": "float16"}, {"kernel": f"o/r@{A}:X", "dtype": "float16"}),
        (
            {"cuda": {"training": ["o/r:X", "inherited", None]}},
            {"cuda": {"training": [f"o/r@{A}:X", "inherited", None]}},
        ),
        ({"match": {"path": "o/r:X"}, "cuda": "o/r:X"}, {"match": {"path": "o/r:X"}, "cuda": f"o/r@{A}:X"}),
        ({"kernel": "o/s:X", "rocm": "o/r:X"}, {"kernel": "o/s:X", "rocm": f"o/r@{A}:X"}),
    ],
)
def test_rows_of_the_repository_are_pinned(row: Any, pinned: Any) -> None:
    assert after({"N": row}, PIN) == {"N": pinned}


@pytest.mark.parametrize("row", ["o/s:X", "o/r@v2:X", "o/r@>=1.0:X", "/o/r:X", None, "builtin:X"])
def test_other_rows_are_left(row: Any) -> None:
    assert after({"N": row}, PIN) == {"N": row}


def test_a_folder_serves_every_version() -> None:
    assert after({"N": "o/r@v2:X", "M": {"kernel": "o/r:Y", "version": ">=1"}}, FOLDER) == {
        "N": "/k:X",
        "M": {"kernel": "/k:Y"},
    }


def test_fusions_and_attention_move_too() -> None:
    document = {
        "kernels": {},
        "fusions": {"f": {"members": [["o/r", "x"]], "kernel": "o/r:F"}},
        "attention": {"default": "o/r", "vision": {"path": "v", "kernel": "o/r@v3"}},
    }
    found, idle = moved(document, [PIN])
    assert not idle
    assert found["fusions"] == {"f": {"members": [["o/r", "x"]], "kernel": f"o/r@{A}:F"}}
    assert found["attention"] == {"default": f"o/r@{A}", "vision": {"path": "v", "kernel": f"o/r@{A}"}}


def test_names_that_inherit_the_repository_get_rows_with_what_changes() -> None:
    found, idle = moved({"kernels": {}}, [Move(repository="kernels-community/rmsnorm", revision="v1", commit=A)])
    assert not idle
    assert found["kernels"] == {"RMSNorm": {"xpu": {"inference": f"kernels-community/rmsnorm@{A}:RMSNorm"}}}


def test_a_move_that_nothing_names_is_told() -> None:
    _, (pin, folder) = moved({"kernels": {}}, [PIN, FOLDER])
    assert pin.message == f"o/r at {A} has no equivalent: nothing here names a layer that runs it"
    assert pin.hint == f"write kernels.NAME=o/r@{A}:Name for each layer"
    assert folder.hint == "write kernels.NAME=/k:Name for each layer"


def test_a_pin_of_another_version_is_told() -> None:
    _, (remark,) = moved({"kernels": {"N": "o/r@v2:X"}}, [PIN])
    assert remark.message == "o/r at v3 has no equivalent: the rows name o/r@v2:X"


def test_names_that_inherit_nothing_get_no_rows() -> None:
    pin = Move(repository="kernels-community/rmsnorm", revision="v1", commit=A)
    found, idle = moved({"kernels": {"inherit_mapping": False}}, [pin])
    assert found["kernels"] == {"inherit_mapping": False}
    assert len(idle) == 1
