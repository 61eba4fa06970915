"""Whatever it is given, the compiler makes a plan or says what is wrong; it never breaks or hangs."""

from __future__ import annotations

import time
from dataclasses import replace
from random import Random
from typing import TYPE_CHECKING, Any

import pytest
from hydra._internal.config_loader_impl import ConfigLoaderImpl
from hydra.core.override_parser.overrides_parser import OverridesParser

from kerncfg.api import checked
from kerncfg.compiler.checking import check
from kerncfg.compiler.compose import _Composition, compose
from kerncfg.compiler.normalise import normalise
from kerncfg.compiler.resolve import resolve
from kerncfg.compiler.schema import validate
from kerncfg.errors import ConfigError, Issue, ResolutionError
from tests.builders import locked, request
from tests.mutating import command_line, mutated

if TYPE_CHECKING:
    from hydra.core.override_parser.types import Override
    from hydra.types import RunMode

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


def _of_value(loader: ConfigLoaderImpl, override: Override) -> bool:
    """Whether Hydra takes an override for one of a value, as its own `Overrides` asks."""
    return isinstance(override.value(), dict) or not loader.repository.group_exists(override.key_or_group)


def said(words: list[str]) -> Any:
    """What comes of a command line: its document, or its faults."""
    try:
        return checked(*words)
    except ConfigError as error:
        return error.issues


@pytest.fixture
def remembered(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let Hydra make one list of files for the same choices of options, and read each once: they stay as they are.

    That is most of what a composition costs, and overrides of values have no part in it.
    """
    anew, known, parser = ConfigLoaderImpl.compute_defaults_list, dict[Any, Any](), OverridesParser.create()

    def compute(self: ConfigLoaderImpl, config_name: str | None, overrides: list[str], run_mode: RunMode) -> Any:
        read = parser.parse_overrides(overrides)
        values = [each for each in read if not each.is_sweep_override() and _of_value(self, each)]
        choices = [each.input_line or "" for each in read if each not in values]
        key = (config_name, *(source.path for source in self.get_sources()), *choices)
        if key not in known:
            try:
                known[key] = anew(self, config_name, choices, run_mode)
            except Exception:
                return anew(self, config_name, overrides, run_mode)
        return replace(known[key], config_overrides=[*known[key].config_overrides, *values])

    def file(self: Any, config_path: str, loader: Any) -> Any:
        key = (*(source.path for source in loader.get_sources()), config_path)
        return files[key] if key in files else files.setdefault(key, read_anew(self, config_path, loader))

    files, read_anew = dict[Any, Any](), _Composition.file
    monkeypatch.setattr(_Composition, "file", file)
    monkeypatch.setattr(ConfigLoaderImpl, "compute_defaults_list", compute)


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


def test_what_is_remembered_makes_no_difference(request: pytest.FixtureRequest) -> None:
    draw = Random(9)
    lines = [command_line(draw) for _ in range(40)]
    anew = [repr(said(words)) for words in lines]
    request.getfixturevalue("remembered")
    assert [repr(said(words)) for words in lines * 2] == anew * 2


@pytest.mark.usefixtures("remembered")
def test_a_mutated_command_line_gives_a_document_or_an_error_of_ours() -> None:
    assert 20 < drawn(0, 500) < 480


@pytest.mark.slow
@pytest.mark.usefixtures("remembered")
@pytest.mark.timeout(1200)
@pytest.mark.parametrize("part", range(1, PARTS + 1))
def test_twenty_thousand_mutated_command_lines(part: int) -> None:
    drawn(part, 20_000 // PARTS)
