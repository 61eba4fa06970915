"""Where the text behind an override's `=` is cut."""

from __future__ import annotations

import subprocess

import pytest
from hydra.core.override_parser.overrides_parser import OverridesParser
from hypothesis import given
from hypothesis import strategies as st

from kerncfg.compiler.brackets import escaped, for_shell, halved, pieces, quoted, spaced, unclosed


@pytest.mark.parametrize(
    ("text", "apart"),
    [
        ("{kernel:a/b:C}", "{kernel: a/b:C}"),
        ("{kernel:'a/b@>=2,<3:C',version: 3}", "{kernel: 'a/b@>=2,<3:C', version: 3}"),
        ("{cuda: {kernel:a/b:C}}", "{cuda: {kernel: a/b:C}}"),
        ("{cuda:{kernel:a/b:C}}", "{cuda: {kernel: a/b:C}}"),
        ("[a/b:C, {kernel:d/e:F}]", "[a/b:C, {kernel: d/e:F}]"),
        ("{kernel:${kernels.Y},lone}", "{kernel: ${kernels.Y}, lone}"),
    ],
)
def test_a_colon_behind_a_key_gets_its_blank(text: str, apart: str) -> None:
    assert spaced(text) == apart
    assert spaced(apart) == apart


@pytest.mark.parametrize(
    "text",
    [
        "a/b:C",
        "{cuda:{kernel: a/b:C}}",
        "{cuda:[a/b:C]}",
        "{a:}",
        "{a: ,b}",
        "[a/b:C]",
        "[]",
        "{}",
        "'{kernel:a}'",
        "{a",
    ],
)
def test_what_a_file_reads_alike_stays_as_it_is(text: str) -> None:
    assert spaced(text) == text


def test_a_quote_in_a_text_is_escaped_as_hydra_reads_it() -> None:
    assert quoted("it's") == "'it\\'s'"


@pytest.mark.parametrize(("text", "closing"), [("[a, {b: c", "}]"), ("[a}", ""), ("['a", ""), ("[a]", "")])
def test_what_is_left_open_can_be_closed(text: str, closing: str) -> None:
    assert unclosed(text) == closing


@pytest.mark.parametrize(
    "text", ["on", "it's", "\\\\host\\k:K", "C:\\d", "a$b", "${x}", 'say "x"', "`x`", "a\\", "a\\'b", "C:\\\\d:K"]
)
def test_a_text_comes_through_a_shell_as_hydra_reads_it(text: str) -> None:
    done = subprocess.run(["sh", "-c", f"printf '%s' {for_shell(text)}"], capture_output=True, text=True)
    assert done.stdout == quoted(text)


def test_characters_that_yaml_alone_takes_for_one_are_found_in_double_quotes_only() -> None:
    assert escaped(r'"a\tb"') == r"\t" and escaped(r'["\u0061"]') == r"\u0061"
    assert (
        escaped(r'"a\\"') == escaped(r'["a\\", "b"]') == "" and escaped(r'"a\\b"') == r"\\"
    )  # before a quote both halve them
    assert (
        halved(r"'a\\'") == halved(r"['a\\\'b']") == r"\\"
        and halved(r"'a\\b'") == halved(r"'a\'b'") == halved(r'"a\\"') == ""
    )
    assert escaped(r'"a\"b"') == escaped(r"'a\tb'") == escaped(r"a\tb") == escaped(r'"C:\dir"') == ""


@given(st.text("a\\'\",", min_size=1, max_size=6))
def test_hydra_reads_every_text_in_quotes_as_it_was(text: str) -> None:
    assert OverridesParser.create().parse_override(f"k={quoted(text)}").value() == text
    assert pieces(f"{quoted(text)},b") == [quoted(text), "b"]
