"""Every message in `data/errors.yaml`, which is written by hand and never taken from the program's output.

A case with `hub` has a Hub with the kernels that the docs name; `locks` is locked first, `plans` is planned, saved,
edited and read.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
import yaml

import kerncfg
from kerncfg import locations
from kerncfg.errors import KerncfgError
from tests.hub import kernels

if TYPE_CHECKING:
    from tests.hub.fixtures import TestHub

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
    if "locks" in case:
        kerncfg.lock(*case["locks"]).save("kerncfg.lock")
    if "plans" in case:
        kerncfg.plan(*case["plans"]).save("plan.json")
        text = Path("plan.json").read_text("utf-8")
        Path("plan.json").write_text(text.replace(*case["edits"]), encoding="utf-8")
    words = list(case.get("type", ()))
    chosen = [] if any(word.startswith("target") for word in words) else ["target=cpu"]
    with pytest.raises(KerncfgError) as caught:
        if "plans" in case:
            kerncfg.load_plan("plan.json")
        kerncfg.plan(*chosen, *words, config_dir=folder)
    return re.sub(r"\bdigest \w{12}\b|\bsays \w{12}\b", lambda found: f"{found[0][:-12]}#", str(caught.value))


@pytest.mark.parametrize("case", CASES, ids=[case["case"] for case in CASES])
def test_the_message_is_the_one_written_by_hand(
    case: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, hub: TestHub
) -> None:
    (tmp_path / "work").mkdir()
    monkeypatch.chdir(tmp_path / "work")
    hub.add(*kernels.documented() if case.get("hub") else ())
    monkeypatch.setenv("NORM", "a secret")
    assert _said(case) == case["says"].replace("{conf}", str(locations.conf())).replace("{hub}", hub.url)


def test_a_fault_takes_at_most_three_lines_and_has_a_place_and_a_cure() -> None:
    for case in CASES:
        faults = re.split(r"\n(?! )", case["says"])
        assert all(len(fault.splitlines()) <= 3 for fault in faults), case["case"]
        assert all("\n  hint: " in fault for fault in faults), case["case"]
        assert all(": " in fault or "folder" in fault for fault in faults), case["case"]


def test_there_are_enough_and_each_is_told_once() -> None:
    names = [case["case"] for case in CASES]
    assert len(names) == len(set(names)) >= 45
