"""Text of any origin as a terminal may print it."""

from __future__ import annotations

import json

from kerncfg.terminal import in_json, one_line, printed, shown

OBEYED = "\x00\x07\x08\x1b[31m\x7f\x9b\u202e\u2066"


def test_what_a_terminal_obeys_is_spelled_out_and_lines_stay() -> None:
    assert shown(f"a\tb\n{OBEYED}é") == "a\tb\n" + r"\x00\x07\x08\x1b[31m\x7f\x9b\u202e\u2066" + "é"


def test_a_line_cannot_pass_for_two() -> None:
    assert one_line("a\n\tnote: b\u2028c\r") == r"a\n\tnote: b\u2028c\r"
    assert printed(["a\nb", "c"]) == "a\\nb\nc"


def test_json_says_the_same_when_it_is_shown() -> None:
    data = {"a": OBEYED, "b": "é\n"}
    text = in_json(json.dumps(data, ensure_ascii=False, indent=1))
    assert json.loads(text) == data and text == shown(text) and "é" in text
