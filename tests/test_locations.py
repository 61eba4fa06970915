from __future__ import annotations

from pathlib import Path

import pytest

from kerncfg import locations


def test_the_packaged_groups_are_found() -> None:
    assert (locations.conf() / "config.yaml").is_file()


def test_the_schemas_are_found() -> None:
    assert list(locations.schemas().glob("*.schema.json"))


@pytest.mark.parametrize("folder", ["conf", "schemas"])
def test_a_folder_beside_the_code_wins_over_the_checkout(
    folder: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    package = tmp_path / "kerncfg"
    monkeypatch.setattr(locations, "__file__", str(package / "locations.py"))
    find = getattr(locations, folder)
    assert find() == tmp_path / folder
    (package / folder).mkdir(parents=True)
    assert find() == package / folder
