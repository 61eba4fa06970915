from __future__ import annotations

import json
from typing import Any

import pytest

from kerncfg.documents.fields import Part, anything, each, flag, loaded, optional, shown, text, unsigned
from kerncfg.errors import SourceError


def value(line: str) -> Any:
    return loaded(f'{{"a": {line}}}'.encode())["a"]


def refused(read: Any, *given: Any) -> str:
    with pytest.raises(SourceError) as caught:
        read(*given)
    return caught.value.message


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        (b"", "Expecting value"),
        (b"\xff{}", "invalid start byte"),
        (b"\xef\xbb\xbf{}", "Unexpected UTF-8 BOM"),
        ("{}".encode("utf-16"), "invalid start byte"),
        (b"{} // no", "Extra data"),
        (b'{"a": NaN}', "NaN is no number"),
        (b'{"a": -Infinity}', "-Infinity is no number"),
        (b'{"a": "\t"}', "Invalid control character"),
        (b'{"a\\ud800": 1}', "surrogates not allowed"),
        (b"[" * 100_000, "nested too deeply"),
    ],
)
def test_what_is_no_json_says_why(content: bytes, reason: str) -> None:
    message = refused(loaded, content)
    assert message.startswith("metadata.json is no JSON, as was expected: ")
    assert reason in message


@pytest.mark.parametrize("line", ["0", "18446744073709551615"])
def test_a_number_of_64_bits_is_one(line: str) -> None:
    assert unsigned(value(line), "a") == int(line)


@pytest.mark.parametrize(
    ("line", "found"),
    [
        ("-1", "-1"),
        ("-0", "-0.0"),
        ("1.0", "1.0"),
        ("true", "true"),
        ("null", "null"),
        ('"1"', '"1"'),
        ("18446744073709551616", "18446744073709551616"),
        ("1" * 5000, "Infinity"),
    ],
)
def test_another_number_is_none(line: str, found: str) -> None:
    assert refused(unsigned, value(line), "a") == f"metadata.json: a is {found}, expected a whole number from 0"


@pytest.mark.parametrize("line", ["1", "null", "[]", '"ab"', '"a\\n"'])
def test_a_text_is_whole_and_matches_as_a_whole(line: str) -> None:
    assert refused(text, value(line), "a", "[a]", "an a").endswith(", expected an a")


def test_any_text_will_do_where_none_is_asked_for() -> None:
    assert text("a\nb\U0001f600", "a") == "a\nb\U0001f600"


@pytest.mark.parametrize("line", ["0", '"true"', "null"])
def test_a_flag_is_true_or_false(line: str) -> None:
    assert refused(flag, value(line), "a") == f"metadata.json: a is {line}, expected true or false"
    assert flag(False, "a") is False


def test_an_item_of_a_list_has_its_number() -> None:
    assert each([True, False], "a", flag) == (True, False)
    assert refused(each, [True, 1], "a", flag) == "metadata.json: a[1] is 1, expected true or false"
    assert refused(each, "true", "a", flag) == 'metadata.json: a is "true", expected a list'


def test_nothing_and_null_will_do_where_a_key_may_be_left_out() -> None:
    part = Part(loaded(b'{"null": null, "wrong": 1}'), "", ())
    assert part.read("null", optional(flag)) is None
    assert part.read("gone", optional(flag)) is None
    assert refused(part.read, "wrong", optional(flag)).endswith("wrong is 1, expected true or false")
    assert refused(part.read, "gone", flag) == "metadata.json: gone is missing, expected true or false"


def test_a_key_inside_has_the_path_of_its_map() -> None:
    outer = Part(loaded(b'{"a": {"b": {}}}'), "", ())
    inner = Part(outer.read("a", anything), outer.at("a"), ())
    assert refused(inner.read, "b", text) == "metadata.json: a.b is a map, expected a text"


@pytest.mark.parametrize(("line", "found"), [("[]", "a list"), ("null", "null"), ('"a"', '"a"')])
def test_what_is_no_map_is_told(line: str, found: str) -> None:
    assert refused(Part, loaded(line.encode()), "", ()) == f"metadata.json is {found}, expected a map"


def test_a_key_that_matters_is_there_once() -> None:
    twice = loaded(b'{"a": 1, "b": 2, "a": 1}')
    assert refused(Part, twice, "", {"a"}) == "metadata.json: a is there twice, expected it once"
    assert Part(twice, "", {"b"}).data == {"a": 1, "b": 2}


@pytest.mark.parametrize(
    ("found", "said"),
    [
        ("a" * 58, '"' + "a" * 58 + '"'),
        ("a" * 59, '"' + "a" * 56 + "..."),
        ({}, "a map"),
        ([], "a list"),
        ("\n", '"\\n"'),
    ],
)
def test_what_was_found_is_told_on_one_short_line(found: Any, said: str) -> None:
    assert shown(found) == said
    assert json.dumps(said)
