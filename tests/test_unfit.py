"""What is refused before Hydra reads it."""

from __future__ import annotations

import pytest

from kerncfg.compiler.overrides import rewrite
from kerncfg.compiler.reading import Place, parse
from kerncfg.compiler.unfit import LONGEST, unfit
from kerncfg.errors import ConfigError

NINES = "9" * 5000


@pytest.mark.parametrize(
    "value",
    [
        "[" * 900 + "]" * 900,
        "{a: " * 500 + "1" + "}" * 500,
        "${a:" * 500 + "b" + "}" * 500,
        "choice(" * 500 + "1" + ")" * 500,
        "[" * 65 + "]" * 65,
        "{a: it's, b: " + "[" * 900 + "]" * 900 + ", c: it's}",
    ],
)
@pytest.mark.parametrize("key", ["kernels.X", "kernels", "policy.seed", "hydra.job.name", "knrels"])
def test_brackets_without_end_are_an_error_of_the_override(key: str, value: str) -> None:
    with pytest.raises(ConfigError) as caught:
        rewrite([f"{key}={value}"])
    (issue,) = caught.value.issues
    assert (issue.message, issue.path, issue.file) == ("is nested too deeply", key, f"override: {key}={value}")


@pytest.mark.parametrize("value", ["[" * 64 + "]" * 64, "{a: " * 64 + "b" + "}" * 64])
def test_as_many_brackets_as_are_allowed_are_read(value: str) -> None:
    assert rewrite([f"kernels.X={value}"])[-1] == f"++kernels.X={value}"


def test_brackets_in_quotes_are_text() -> None:
    assert unfit("kernels.X='" + "[" * 900 + "'") is None


@pytest.mark.parametrize("number", [NINES, f"-{NINES}", f"0x{NINES}", "0b" + "1" * 20_000, "59" + ":59" * 5000])
@pytest.mark.parametrize(
    "value", ["{}", "[1, {}]", "1,{}", "{{a: {}}}", "range(1,{})", "{{{}: 1}}", "[it's, {}, it's]"]
)
def test_a_number_of_digits_without_end_is_told_as_in_a_file(value: str, number: str) -> None:
    with pytest.raises(ConfigError) as in_file:
        parse(f"seed: {number}", Place("file", "x.yaml"))
    with pytest.raises(ConfigError) as caught:
        rewrite([f"policy.seed={value.format(number)}"])
    (said,), (issue,) = in_file.value.issues, caught.value.issues
    assert issue.message == said.message == f"{number!r} is no int" and issue.path == "policy.seed"


@pytest.mark.parametrize("value", ["9" * 3000, f"'{NINES}'", f"v{NINES}", f"org/a@{NINES}a:X"])
def test_a_number_that_python_reads_and_a_text_of_digits_are_no_fault(value: str) -> None:
    assert unfit(f"policy.seed={value}") is None


@pytest.mark.parametrize(
    "value",
    [
        "{cuda: org/a@v1:X, cuda: org/b@v1:X}",
        "{cuda: org/a@v1:X, cpu: org/c@v1:X, 'cuda': 'org/b@v1:X'}",
        "{any: {cuda: org/a@v1:X, cuda: org/b@v1:X}}",
        "{any: [original, {cuda: org/a@v1:X, cuda: org/b@v1:X}]}",
        "original,{cuda: org/a@v1:X, cuda: org/b@v1:X}",
        "choice(original, {cuda: org/a@v1:X, cuda: org/b@v1:X})",
        "{cuda: org/a@v1:X, cuda: org/b@v1:X,}",
    ],
)
def test_a_key_twice_in_one_map_is_refused(value: str) -> None:
    message = "the key 'cuda' stands twice: with 'org/a@v1:X' and with 'org/b@v1:X'"
    assert unfit(f"kernels.X={value}") == (message, "keep one of them, or put both into one map")


@pytest.mark.parametrize(
    "value",
    [
        "{cuda: {kernel: a/b:C}, cpu: {kernel: a/b:C}}",
        "[{kernel: a/b:C}, {kernel: a/b:C}]",
        "{kernel: 'a: b, a: c', version: 1}",
        "{cuda: a/b@>=2.0,<3.0:C, cpu: a/b@>=2.0,<3.0:C}",
        "{a: ${x}, b: ${x}}",
        "{},{}",
        "",
    ],
)
def test_a_key_that_stands_once_in_each_map_is_none_twice(value: str) -> None:
    assert unfit(f"kernels.X={value}") is None


def test_a_key_longer_than_a_files_name_is_told_in_words_of_our_own() -> None:
    assert unfit("kernels." + "a" * (LONGEST - 8) + "=x") is None
    found = unfit("++kernels." + "a" * (LONGEST - 7) + "=x")
    assert found and found[0] == f"the key has {LONGEST + 1} bytes, expected {LONGEST} at most"
