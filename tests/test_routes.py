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
Swept = dict[tuple[str, str], Said]

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

MEMBERS = "members: [[RMSNorm, model.layers.*.norm], [MLP, model.layers.*.mlp]]"
NORM_MLP = [["RMSNorm", "model.layers.*.norm"], ["MLP", "model.layers.*.mlp"]]
# The same for rows of the other nodes.
ACCEPTED_ELSEWHERE: dict[tuple[str, str], Any] = {
    ("attention", "sdpa"): "sdpa",
    ("attention", "eager"): "eager",
    ("attention", "null"): None,
    ("attention", "original"): "original",
    ("attention", "flash_attention_2"): "flash_attention_2",
    ("attention", "a/b@>=2.0,<3.0"): "a/b@>=2.0,<3.0",
    ("attention", "a/b@v1:fn"): "a/b@v1:fn",
    ("attention", "/a/k"): "/a/k",
    ("attention", "python:flash_attn.cute"): "python:flash_attn.cute",
    ("attention", "[a/b@v1, flash_attention_3, sdpa]"): ["a/b@v1", "flash_attention_3", "sdpa"],
    ("attention", "[a/b@v1, sdpa,]"): ["a/b@v1", "sdpa"],
    ("kernels", "{cuda: a/b:C, cpu: , }"): {"cuda": "a/b:C", "cpu": None},
    ("attention", "{kernel: a/b, version: 3, mask: sdpa}"): {"kernel": "a/b", "version": 3, "mask": "sdpa"},
    ("attention", "{path: 'model.visual.**', cuda: {training: sdpa}, fallback: error, any: eager}"): {
        "path": "model.visual.**", "cuda": {"training": "sdpa"}, "fallback": "error", "any": "eager",
    },
    ("fusions", "null"): None,
    ("fusions", f"{{{MEMBERS}, kernel: a/b@v1:C}}"): {"members": NORM_MLP, "kernel": "a/b@v1:C"},
    ("fusions", f"{{{MEMBERS}, rocm: a/b:C, cuda: [builtin:RMSNorm, null]}}"): {
        "members": NORM_MLP, "rocm": "a/b:C", "cuda": ["builtin:RMSNorm", None],
    },
    ("fusions", "{members: [[N, norm]], kernel: null}"): {"members": [["N", "norm"]], "kernel": None},
}  # fmt: skip
REFUSED_ELSEWHERE: dict[tuple[str, str], tuple[Any, str, str]] = {
    ("kernels", "sdpa"): ("sdpa", "this is an attention", "this is an attention"),
    ("kernels", "{kernel:a/b:C}"): ({"kernel:a/b:C": None}, ":", "unknown key `kernel:a/b:C`"),
    ("attention", "spda"): ("spda", "is no repository", "is no repository"),
    ("attention", "inherited"): ("inherited", "where nothing is inherited", "where nothing is inherited"),
    ("attention", "1.10"): (1.1, "1.10 is a number", "1.1 is a number"),
    ("attention", "{kernel: sdpa, version: 3}"): ({"kernel": "sdpa", "version": 3}, "only a Hub kernel", "only a Hub"),
    ("attention", "{path: model}"): ({"path": "model"}, "no kernel is named", "no kernel is named"),
    ("attention", "{kernel: sdpa, mask: causal}"): (
        {"kernel": "sdpa", "mask": "causal"}, "found 'causal', expected one of auto", "found 'causal'",
    ),
    ("fusions", "a/b:C"): ("a/b:C", "expected a map with members", "expected a map with members"),
    ("fusions", "{kernel: a/b:C}"): ({"kernel": "a/b:C"}, "`members` is missing", "`members` is missing"),
    ("fusions", f"{{{MEMBERS}}}"): ({"members": NORM_MLP}, "no kernel is named", "no kernel is named"),
    ("fusions", "{members: [[N, a.norm, x]], kernel: a/b:C}"): (
        {"members": [["N", "a.norm", "x"]], "kernel": "a/b:C"}, "expected a pair", "expected a pair",
    ),
    ("fusions", "{members: [[N, a.norm], [M, b.mlp]], kernel: a/b:C}"): (
        {"members": [["N", "a.norm"], ["M", "b.mlp"]], "kernel": "a/b:C"}, "different parents", "different parents",
    ),
}  # fmt: skip
EVERY_ACCEPTED = {**{("kernels", value): data for value, data in ACCEPTED.items()}, **ACCEPTED_ELSEWHERE}
EVERY_REFUSED = {**{("kernels", value): said for value, said in REFUSED.items()}, **REFUSED_ELSEWHERE}


def _rewritten(node: str, value: str) -> bool:
    try:
        rewrite([f"{node}.X=null,{value}"])
    except ConfigError:
        return False
    return True


@pytest.fixture(scope="session")
def swept(tmp_path_factory: pytest.TempPathFactory) -> Swept:
    """What each value means in a sweep: for each node one Hydra multirun of a task that only plans."""
    found: Swept = {}
    for node in ("kernels", "fusions", "attention"):
        every = [value for root, value in [*EVERY_ACCEPTED, *EVERY_REFUSED] if root == node]
        values = [value for value in every if _rewritten(node, value)]
        results = tmp_path_factory.mktemp("sweep") / "results"
        command = [sys.executable, "-W", "error", "-m", "tests.apps.plan_sweep", str(results), *AROUND]
        environment = {**os.environ, "PYTHONPATH": str(CHECKOUT)}
        done = subprocess.run(
            [*command, f"{node}.X={','.join(values)}"], cwd=CHECKOUT, env=environment, capture_output=True, text=True
        )
        assert done.returncode == 0, done.stdout + done.stderr
        said = map(json.loads, results.read_text("utf-8").splitlines())
        found |= {(node, value): answer for value, answer in zip(values, said, strict=True)}
    return found


def by_file(node: str, value: str, folder: Path) -> Said:
    (folder / node).mkdir()
    (folder / node / "mine.yaml").write_text(f"X: {value}\n", encoding="utf-8")
    return said(lambda: kerncfg.plan(f"{node}=mine", *AROUND, config_dir=folder))


def by_override(node: str, value: str) -> Said:
    return said(lambda: kerncfg.plan(f"{node}.X={value}", *AROUND))


def by_sweep(node: str, value: str, swept: Swept) -> Said:
    if (node, value) in swept:
        return swept[node, value]
    with pytest.raises(ConfigError) as caught:
        rewrite([f"{node}.X=null,{value}"])
    return {"refused": [issue.message for issue in caught.value.issues]}


def by_data(node: str, value: Any) -> Said:
    return said(lambda: kerncfg.plan(*AROUND, config={node: {"X": value}}))


@pytest.mark.parametrize(("node", "value"), EVERY_ACCEPTED)
def test_a_value_means_the_same_by_every_route(node: str, value: str, tmp_path: Path, swept: Swept) -> None:
    expected = by_data(node, EVERY_ACCEPTED[node, value])
    assert "modes" in expected
    assert by_file(node, value, tmp_path) == expected
    assert by_override(node, value) == expected
    assert by_sweep(node, value, swept) == expected


@pytest.mark.parametrize(("node", "value"), EVERY_REFUSED)
def test_a_value_is_refused_by_every_route(node: str, value: str, tmp_path: Path, swept: Swept) -> None:
    data, words, words_of_data = EVERY_REFUSED[node, value]
    for found in (by_file(node, value, tmp_path), by_override(node, value)):
        (message,) = found["refused"]
        assert words in message
    (message,) = by_data(node, data)["refused"]
    assert words_of_data in message
    (message,) = by_sweep(node, value, swept)["refused"]  # Hydra spells a sweep's numbers and booleans in its own way
    assert words in message or words_of_data in message.replace("True", "true")


def test_there_are_sixty_pairs_and_more() -> None:
    assert 4 * len([*EVERY_ACCEPTED, *EVERY_REFUSED]) >= 60
