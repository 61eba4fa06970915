"""One value means the same by file, by override, in a sweep and as data in Python, or is refused by all four."""

from __future__ import annotations

import json
import math
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import kerncfg
from kerncfg.compiler.overrides import rewrite
from kerncfg.errors import ConfigError
from tests.planning_routes import Said, said

CHECKOUT = Path(__file__).parent.parent
AROUND = ("inherited=none", "target=h100")

# What stands after `X:` in a file and after `kernels.X=` in an override; and the same as data.
ACCEPTED: dict[str, Any] = {
    "a/b:C": "a/b:C",
    "a/b@v3:C": "a/b@v3:C",
    "a/b@v2.1.0:C": "a/b@v2.1.0:C",
    "a/b@feature/x:C": "a/b@feature/x:C",
    "a/b@61e9540:C": "a/b@61e9540:C",
    "a/b@>=2.0,<3.0:C": "a/b@>=2.0,<3.0:C",
    "'a/b@>=2.0,<3.0:C'": "a/b@>=2.0,<3.0:C",
    "a/b@==2.*:C": "a/b@==2.*:C",
    "~/kernels:C": "~/kernels:C",
    "/a folder/k:C": "/a folder/k:C",
    "C:\\dir\\k:C": "C:\\dir\\k:C",
    "null": None,
    "''": "",
    "original": "original",
    "inherited": "inherited",
    "builtin:RMSNorm": "builtin:RMSNorm",
    "python:package.module:Name": "python:package.module:Name",
    "{kernel: a/b:C, version: 3}": {"kernel": "a/b:C", "version": 3},
    "{kernel: a/b:C, version: '>=2.0,<3.0'}": {"kernel": "a/b:C", "version": ">=2.0,<3.0"},
    "{kernel: a/b:C, revision: '61e9540'}": {"kernel": "a/b:C", "revision": "61e9540"},
    "{kernel: a/b:C, revision: '0123456'}": {"kernel": "a/b:C", "revision": "0123456"},
    "[a/b@v1:C, inherited]": ["a/b@v1:C", "inherited"],
    "[a/b@>=2.0:C, null]": ["a/b@>=2.0:C", None],
    "{cuda: {inference: a/b:C, training: original}}": {"cuda": {"inference": "a/b:C", "training": "original"}},
    "{any: a/b:C, cuda: null}": {"any": "a/b:C", "cuda": None},
    "{kernel: a/b:C, dtype: [bfloat16], capability: '>=8.0'}": {
        "kernel": "a/b:C", "dtype": ["bfloat16"], "capability": ">=8.0",
    },
    "{kernel: a/b:C, when: {config.hidden_act: silu}}": {"kernel": "a/b:C", "when": {"config.hidden_act": "silu"}},
    "{match: {class: '*RMSNorm'}, exclude: [model.layers.0.*], any: a/b:C}": {
        "match": {"class": "*RMSNorm"}, "exclude": ["model.layers.0.*"], "any": "a/b:C",
    },
}  # fmt: skip

# What is refused: the same as data, what every message by characters holds, and what the message about data holds.
REFUSED: dict[str, tuple[Any, str, str]] = {
    "{kernel: a/b:C, revision: 61e9540}": ({"kernel": "a/b:C", "revision": math.inf}, "61e9540 is a number",
    "a number"),
    "{kernel: a/b:C, revision: 0123456}": ({"kernel": "a/b:C", "revision": 42798}, "0123456", "42798 is a number"),
    "{kernel: a/b:C, revision: 12e5}": ({"kernel": "a/b:C", "revision": 12e5}, "12e5 is a number", "a number"),
    "{kernel: a/b:C, revision: 0x1f}": ({"kernel": "a/b:C", "revision": 31}, "0x1f", "31 is a number"),
    "{kernel: a/b:C, version: true}": ({"kernel": "a/b:C", "version": True}, "true is a boolean",
    "true is a boolean"),
    "{kernel: a/b:C, version: on}": ({"kernel": "a/b:C", "version": True}, "on", "true is a boolean"),
    "{kernel: a/b:C, version: 1.10}": ({"kernel": "a/b:C", "version": 1.1}, "1.10 is a number", "1.1 is a number"),
    "{kernel: a/b:C, version: 3, revision: main}": (
        {"kernel": "a/b:C", "version": 3, "revision": "main"}, "found both version and revision",
        "found both version",
    ),
    "1.10": (1.1, "1.10 is a number", "1.1 is a number"),
    "1234567": (1234567, "1234567 is a number", "1234567 is a number"),
    "1_000": (1000, "1_000 is a number", "1000 is a number"),
    "12:30:45": (45045, "12:30:45", "45045 is a number"),
    "on": (True, "on", "true is a boolean"),
    "off": (False, "off", "false is a boolean"),
    "true": (True, "true is a boolean", "true is a boolean"),
    "https://host/a/b": ("https://host/a/b", "a web address is no kernel reference", "a web address"),
    "a/b:C:D": ("a/b:C:D", "two names, expected one", "two names"),
    "a/../b:C": ("a/../b:C", "a repository has no parent part", "no parent part"),
    "a/b@v1": ("a/b@v1", "no kernel name", "no kernel name"),
    "é/ü:C": ("é/ü:C", "is no repository", "is no repository"),
    "'???'": ("???", "`???` stands where a value is due", "`???` stands"),
    "[]": ([], "found an empty list", "found an empty list"),
    "[[a/b:C]]": ([["a/b:C"]], "found a list, expected text or a map", "found a list"),
    "{_target_: os.system}": ({"_target_": "os.system"}, "`_target_` is refused", "`_target_` is refused"),
    "{cuda: {kernal: a/b:C}}": ({"cuda": {"kernal": "a/b:C"}}, "unknown key `kernal`", "unknown key `kernal`"),
    "{no: a/b:C}": ({False: "a/b:C"}, "the key no is a boolean in YAML", "the key False is a bool"),
    "{fallback: eror}": ({"fallback": "eror"}, "found 'eror', expected one of", "found 'eror'"),
    "'${oc.env:HOME}'": ("${oc.env:HOME}", "${oc.env:HOME}", "${oc.env:HOME}"),
}  # fmt: skip


def _rewritten(value: str) -> bool:
    try:
        rewrite([f"kernels.X=a/b:C,{value}"])
    except ConfigError:
        return False
    return True


@pytest.fixture(scope="session")
def swept(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Said]:
    """What each value means in a sweep: one Hydra multirun of a task that only plans."""
    values = [value for value in [*ACCEPTED, *REFUSED] if _rewritten(value)]
    results = tmp_path_factory.mktemp("sweep") / "results"
    command = [sys.executable, "-W", "error", "-m", "tests.apps.plan_sweep", str(results), *AROUND]
    environment = {**os.environ, "PYTHONPATH": str(CHECKOUT)}
    done = subprocess.run(
        [*command, f"kernels.X={','.join(values)}"], cwd=CHECKOUT, env=environment, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return dict(zip(values, map(json.loads, results.read_text("utf-8").splitlines()), strict=True))


def by_file(value: str, folder: Path) -> Said:
    (folder / "kernels").mkdir()
    (folder / "kernels/mine.yaml").write_text(f"X: {value}\n", encoding="utf-8")
    return said(lambda: kerncfg.plan("kernels=mine", *AROUND, config_dir=folder))


def by_override(value: str) -> Said:
    return said(lambda: kerncfg.plan(f"kernels.X={value}", *AROUND))


def by_sweep(value: str, swept: dict[str, Said]) -> Said:
    if value in swept:
        return swept[value]
    with pytest.raises(ConfigError) as caught:
        rewrite([f"kernels.X=a/b:C,{value}"])
    return {"refused": [issue.message for issue in caught.value.issues]}


def by_data(value: Any) -> Said:
    return said(lambda: kerncfg.plan(*AROUND, config={"kernels": {"X": value}}))


@pytest.mark.parametrize("value", ACCEPTED)
def test_a_value_means_the_same_by_every_route(value: str, tmp_path: Path, swept: dict[str, Said]) -> None:
    expected = by_data(ACCEPTED[value])
    assert "modes" in expected
    assert by_file(value, tmp_path) == expected
    assert by_override(value) == expected
    assert by_sweep(value, swept) == expected


@pytest.mark.parametrize("value", REFUSED)
def test_a_value_is_refused_by_every_route(value: str, tmp_path: Path, swept: dict[str, Said]) -> None:
    data, words, words_of_data = REFUSED[value]
    for found in (by_file(value, tmp_path), by_override(value)):
        (message,) = found["refused"]
        assert words in message
    (message,) = by_data(data)["refused"]
    assert words_of_data in message
    (message,) = by_sweep(value, swept)["refused"]  # Hydra spells a sweep's numbers and booleans in its own way
    assert words in message or words_of_data in message.replace("True", "true")


def test_there_are_sixty_pairs_and_more() -> None:
    assert 4 * len([*ACCEPTED, *REFUSED]) >= 60
