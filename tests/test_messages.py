"""Every message in `data/errors.yaml`, which is written by hand and never taken from the program's output."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
import yaml

import kerncfg
from kerncfg import locations
from kerncfg.errors import KerncfgError

CASES: list[dict[str, Any]] = yaml.safe_load((Path(__file__).parent / "data/errors.yaml").read_text("utf-8"))


def _said(case: dict[str, Any]) -> str:
    folder = Path(case.get("folder", "my"))
    if "folder" not in case:
        folder.mkdir()
    for name, text in case.get("files", {}).items():
        Path(name).parent.mkdir(parents=True, exist_ok=True)
        Path(name).write_text(text, encoding="utf-8")
    for name, digits in case.get("bytes", {}).items():
        Path(name).parent.mkdir(parents=True, exist_ok=True)
        Path(name).write_bytes(bytes.fromhex(digits))
    words = list(case["type"])
    chosen = [] if any(word.startswith("target") for word in words) else ["target=cpu"]
    with pytest.raises(KerncfgError) as caught:
        kerncfg.plan(*chosen, *words, config_dir=folder)
    return str(caught.value)


@pytest.mark.parametrize("case", CASES, ids=[case["case"] for case in CASES])
def test_the_message_is_the_one_written_by_hand(
    case: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("NORM", "a secret")
    assert _said(case) == case["says"].replace("{conf}", str(locations.conf()))


def test_a_fault_takes_at_most_three_lines_and_has_a_place_and_a_cure() -> None:
    for case in CASES:
        faults = re.split(r"\n(?! )", case["says"])
        assert all(len(fault.splitlines()) <= 3 for fault in faults), case["case"]
        assert all("\n  hint: " in fault for fault in faults), case["case"]
        assert all(": " in fault or "folder" in fault for fault in faults), case["case"]


def test_there_are_enough_and_each_is_told_once() -> None:
    names = [case["case"] for case in CASES]
    assert len(names) == len(set(names)) >= 45
