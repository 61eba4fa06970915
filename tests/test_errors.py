from __future__ import annotations

import copy
import pickle

import pytest

from kerncfg import errors
from kerncfg.errors import (
    ApplyError,
    ConfigError,
    ConflictError,
    ContractError,
    IntegrityError,
    Issue,
    KerncfgError,
    ResolutionError,
    SourceError,
)

BAD_KEY = Issue(
    message="unknown key `verison`", path="kernels.A", file="my.yaml", line=3, column=5, hint="write version"
)
BAD_VALUE = Issue(message="is no text", path="kernels.B")


def test_an_error_reads_as_its_sentence_and_its_cure() -> None:
    assert str(KerncfgError("nothing works", hint="try again")) == "nothing works\n  hint: try again"


def test_an_error_without_a_cure_is_one_sentence() -> None:
    assert str(KerncfgError("nothing works")) == "nothing works"


def test_an_error_as_data_says_what_kind_it_is() -> None:
    expected = {"error": "SourceError", "message": "gone", "hint": "look elsewhere"}
    assert SourceError("gone", hint="look elsewhere").to_dict() == expected


@pytest.mark.parametrize(
    ("issue", "where"),
    [
        (BAD_KEY, "my.yaml:3:5: kernels.A"),
        (BAD_VALUE, "kernels.B"),
        (Issue(message="m", file="my.yaml", line=3), "my.yaml:3"),
        (Issue(message="m", file="override: enabled=1", path="enabled"), "override: enabled=1: enabled"),
        (Issue(message="m"), ""),
    ],
)
def test_an_issue_says_where_as_far_as_it_is_known(issue: Issue, where: str) -> None:
    assert issue.where == where


def test_an_issue_reads_as_place_fault_and_cure() -> None:
    assert str(BAD_KEY) == "my.yaml:3:5: kernels.A: unknown key `verison`\n  hint: write version"


def test_an_issue_without_a_place_is_its_sentence() -> None:
    assert str(Issue(message="is empty")) == "is empty"


def test_a_config_error_holds_every_fault() -> None:
    error = ConfigError([BAD_KEY, BAD_VALUE])
    assert error.issues == [BAD_KEY, BAD_VALUE]
    assert str(error) == f"{BAD_KEY}\n{BAD_VALUE}"


def test_a_config_error_of_a_sentence_holds_one_fault() -> None:
    error = ConfigError("is empty", hint="write something")
    assert error.issues == [Issue(message="is empty", hint="write something")]
    assert str(error) == "is empty\n  hint: write something"


def test_a_config_error_as_data_lists_its_faults() -> None:
    assert ConfigError([BAD_VALUE]).to_dict() == {
        "error": "ConfigError",
        "message": "kernels.B: is no text",
        "hint": None,
        "issues": [
            {
                "file": None,
                "line": None,
                "column": None,
                "path": "kernels.B",
                "message": "is no text",
                "hint": None,
            }
        ],
    }


def test_a_resolution_error_holds_the_reasons_by_name() -> None:
    assert ResolutionError("no kernel", reasons={"N": ["too old"]}).reasons == {"N": ["too old"]}


@pytest.mark.parametrize("again", [copy.copy, lambda error: pickle.loads(pickle.dumps(error))])
@pytest.mark.parametrize(
    "error",
    [
        KerncfgError("m", hint="h"),
        ConfigError([BAD_KEY, BAD_VALUE]),
        ResolutionError("m", reasons={"N": ["r"]}, hint="h"),
        IntegrityError("m"),
    ],
    ids=lambda error: type(error).__name__,
)
def test_an_error_crosses_to_another_process_whole(error: KerncfgError, again: object) -> None:
    assert callable(again)
    other = again(error)
    assert (type(other), str(other), vars(other)) == (type(error), str(error), vars(error))


@pytest.mark.parametrize("name", [name for name in errors.__all__ if name.endswith("Error")])
def test_every_error_is_one_of_ours(name: str) -> None:
    assert issubclass(getattr(errors, name), KerncfgError)


def test_narrower_errors_are_caught_with_their_parents() -> None:
    assert issubclass(IntegrityError, SourceError)
    assert issubclass(ConflictError, ApplyError)
    assert issubclass(ContractError, ApplyError)


def test_an_error_is_one_line_and_its_hint_another_whatever_they_quote() -> None:
    issue = Issue(message="a\nb", path="k\ney", file="override: x=\x1b[31m\n", hint="write\nx")
    assert str(ConfigError([issue])) == "override: x=\\x1b[31m\\n: k\\ney: a\\nb\n  hint: write\\nx"
    assert str(SourceError("gone\x1b[2J")) == "gone\\x1b[2J"
