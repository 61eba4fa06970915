"""What a composition loads where Hydra cannot be asked: files that do not open, complaints that nothing explains."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from kerncfg.compiler.defaults import Choices
from kerncfg.compiler.tree import grow
from kerncfg.documents.config import Origin
from kerncfg.errors import ConfigError


def choices() -> Choices:
    return Choices(lines=[], typed={}, faults=[])


def complaining(error: Exception) -> Any:
    """A loader that Hydra's own fault keeps from any list, whatever is left out."""

    def compute_defaults_list(*_: Any) -> None:
        raise error

    return SimpleNamespace(compute_defaults_list=compute_defaults_list, get_sources=list)


@pytest.mark.parametrize(
    ("error", "message"),
    [(RecursionError(), "leads back to itself"), (AssertionError("odd"), "the configuration cannot be composed: odd")],
)
def test_a_complaint_that_no_entry_explains_is_one_error(error: Exception, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        choices().leave(error, complaining(error))


def test_a_file_that_cannot_be_opened_is_told_by_its_name(tmp_path: Path) -> None:
    (tmp_path / "kernels/mine.yaml").mkdir(parents=True)
    found = choices()
    found.local(tmp_path, "kernels/mine")
    ((_, issue),) = found.faults
    assert issue.message == "cannot be read: Is a directory"
    assert issue.file is not None and issue.file.endswith("kernels/mine.yaml")


def test_a_file_from_the_hub_is_read_once() -> None:
    asked = []

    def tree(config_path: str) -> Any:
        asked.append(config_path)
        return grow({"RMSNorm": None}, Origin(kind="file", place="hf://a/b")), {"package": "_global_"}

    found, source = choices(), SimpleNamespace(provider="hub", full_path=lambda: "hf://a/b", tree=tree)
    load: Any = found.fetching(source)  # type: ignore[arg-type]
    assert load("kernels/x").config == load("kernels/x").config
    assert asked == ["kernels/x"]
