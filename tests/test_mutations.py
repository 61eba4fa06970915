"""Whatever it is given, the compiler makes a plan or says what is wrong; it never breaks or hangs."""

from __future__ import annotations

import time
from random import Random
from typing import TYPE_CHECKING, Any

import pytest

from kerncfg.api import checked
from kerncfg.compiler.checking import check
from kerncfg.compiler.compose import compose
from kerncfg.compiler.normalise import normalise
from kerncfg.compiler.resolve import resolve
from kerncfg.compiler.schema import validate
from kerncfg.errors import ConfigError, Issue, ResolutionError
from tests.builders import locked, request
from tests.mutating import command_line, mutated

if TYPE_CHECKING:
    from kerncfg.documents.plan import Plan

PARTS = 4


@pytest.fixture(scope="module")
def documents() -> list[dict[str, Any]]:
    """Every form of the language, in few rows."""
    own = {
        "RMSNorm": {"cuda": "org/a@v3:X", "cpu": {"inference": "builtin:RMSNorm", "training": "original"}},
        "Gated": {
            "match": {"class": "*MLP", "path": "model.**"},
            "exclude": ["model.layers.0.*"],
            "kernel": "org/b:Y",
            "version": ">=2.0,<3.0",
            "rocm": [{"kernel": "kernels-community/c:Z", "dtype": ["bfloat16"], "capability": ">=8.0"}, "inherited"],
            "any": {"kernel": "/abs/dir:K", "when": {"config.hidden_act": ["silu"]}, "torch": ">=2.9"},
            "fallback": "error",
        },
        "SiLU": None,
    }
    base, _ = compose(["inherited=none", "target=h100", "trust.repositories.acme/norms=true"])
    members = [["RMSNorm", "model.layers.*.norm"], ["MLP", "model.layers.*.mlp"]]
    fusions = {"f": {"members": members, "cuda": ["org/f:F", None], "cpu": {"training": "builtin:F"}}, "g": None}
    attention = {
        "default": "flash_attention_2",
        "a": {"path": "model.visual.**", "kernel": "org/a@v1", "mask": "sdpa", "rocm": ["flash_attention_3", "eager"]},
    }
    others = {"fusions": fusions, "attention": attention}
    small = {
        **base,
        **others,
        "kernels": own,
        "inherited": {"RMSNorm": {"cuda": "kernels-community/d@v1:D"}, "SiLU": "org/e:E"},
    }
    bundled, _ = compose(["inherited=none", "kernels=bundled", "target=mi300x"])
    lean = {name: node for name, node in small.items() if name != "model"}
    return [lean, {**lean, "kernels": {"X": "a/b:C", "Y": {"cuda": ["a/b@v1:C", "inherited"]}}}, bundled]


def planned(document: dict[str, Any], *, whole: bool = True) -> Plan | None:
    """Take a document through the passes; whatever is not one of our errors is a failure.

    If the `whole` is asked for, no fault is hidden that a pass alone would tell.
    """
    try:
        config = check(document)
    except ConfigError as error:
        told = error.issues
        assert all(issue.message and str(issue).count("\n") < 3 for issue in told)
        assert not whole or _of_one_pass(document) <= {*told}
        return None
    try:
        return resolve(config, locked(config), request("cuda", trust=config.trust))
    except ResolutionError as error:  # a name has no kernel, and `fallback: error` says that it may not do without
        assert error.reasons
        return None


def _of_one_pass(document: dict[str, Any]) -> set[Issue]:
    """Return what the first pass that finds faults says by itself."""
    try:
        validate(document)
        normalise(document)
    except ConfigError as error:
        return {*error.issues}
    raise AssertionError("a fault that no pass finds")


@pytest.mark.parametrize("part", range(PARTS))
def test_a_mutated_document_gives_a_plan_or_an_error_of_ours(part: int, documents: list[dict[str, Any]]) -> None:
    draw = Random(part)
    plans = 0
    for number in range(20_000 // PARTS):
        document = mutated(documents[number % len(documents)], draw)
        started = time.process_time()
        plans += planned(document, whole=number % 10 == 0) is not None
        assert time.process_time() - started < 2, document
    assert 300 < plans < 4_500  # both ends are reached


def composed(words: list[str]) -> bool:
    """Compose a command line; whatever is not a `ConfigError` is a failure."""
    started = time.process_time()
    try:
        checked(*words)
        return True
    except ConfigError as error:
        assert str(error).strip()
        return False
    finally:
        assert time.process_time() - started < 5, words


def drawn(seed: int, count: int) -> int:
    """Compose drawn command lines and return how many were fine."""
    draw = Random(seed)
    return sum(composed(command_line(draw)) for _ in range(count))


def test_a_mutated_command_line_gives_a_document_or_an_error_of_ours() -> None:
    assert 20 < drawn(0, 500) < 480


@pytest.mark.slow
@pytest.mark.timeout(1200)
@pytest.mark.parametrize("part", range(1, PARTS + 1))
def test_twenty_thousand_mutated_command_lines(part: int) -> None:
    drawn(part, 20_000 // PARTS)
