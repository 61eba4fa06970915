"""YAML text to a tree: the types Hydra gives, the places of everything, and what is refused."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
from omegaconf import OmegaConf

from kerncfg.compiler import reading
from kerncfg.compiler.reading import MAX_VALUES, Place, kind_of_key, parse, read, scalar
from kerncfg.compiler.tree import Fault, Node, Origins
from kerncfg.errors import ConfigError

BOMB = "\n".join(
    ["a: &a [1,1,1,1,1,1,1,1,1,1]"]
    + [f"{chr(98 + i)}: &{chr(98 + i)} [{','.join(['*' + chr(97 + i)] * 10)}]" for i in range(8)]
)

SCALARS = [
    "null", "~", "Null", "NULL", "nULL", "true", "True", "yes", "on", "off", "No", "y", "n", "1", "-1", "0",
    "012", "0o12", "0x1F", "1_000", "1.5", "1.", ".5", "1.10", "1e5", "1e-5", "61e9540", "1E+3", ".inf",
    "-.INF", ".nan", "inf", "nan", "1:30", "12:30:45", "1:30.5", "2024-01-01", "v1", "a/b:C", "1.2.3",
    "1__0", "0123456", "0899", "+1",
]  # fmt: skip


def tree(text: str) -> Node:
    return parse(text, Place("file", "f.yaml"))


def faults(text: str) -> list[str]:
    with pytest.raises(ConfigError) as caught:
        tree(text)
    return [f"{issue.line}:{issue.column} {issue.path} {issue.message}" for issue in caught.value.issues]


@pytest.mark.parametrize("text", SCALARS)
def test_a_scalar_has_the_type_that_hydra_gives_it(text: str) -> None:
    ours, theirs = tree(f"k: {text}").plain()["k"], OmegaConf.create(f"k: {text}").k
    assert (type(ours), repr(ours)) == (type(theirs), repr(theirs))
    assert repr(scalar(text)) == repr(ours)


@pytest.mark.parametrize("text", ["@a", "[a", "{a: b}", "a: b", "- a", "'a", "*x"])
def test_a_text_that_is_not_one_scalar_has_no_type(text: str) -> None:
    with pytest.raises(ValueError, match=r".*"):
        scalar(text)


def test_every_value_knows_its_line_its_column_and_its_characters() -> None:
    origins = Origins(tree("A:\n  cuda: [x/y:Z, 61e9540]\n"))
    found = origins.at(("A", "cuda", 1))
    assert found is not None
    assert (found.place, found.line, found.column, found.text) == ("f.yaml", 2, 17, "61e9540")


def test_a_path_that_is_not_there_has_the_origin_of_its_nearest_ancestor() -> None:
    origins = Origins(tree("A:\n  cuda: [x/y:Z]\n"))
    for path in [("A", "rocm"), ("A", "cuda", 7), ("A", "cuda", "version")]:
        origin = origins.at(path)
        assert origin is not None and origin.line == 2


def test_a_key_has_a_place_of_its_own() -> None:
    origin = Origins(tree("A:\n  cuda: x\n")).key(("A", "cuda"))
    assert origin is not None and (origin.line, origin.column) == (2, 3)


def test_anchors_and_merge_keys_work_and_an_explicit_key_beside_them_wins() -> None:
    text = "X: &x {cuda: 1a, rocm: 1b}\nW: &w {cpu: 1c, cuda: 1d}\nY: {cuda: 2, <<: *x}\nZ: {<<: [*x, *w]}\nV: *x\n"
    assert tree(text).plain() == {
        "X": {"cuda": "1a", "rocm": "1b"},
        "W": {"cpu": "1c", "cuda": "1d"},
        "Y": {"cuda": 2, "rocm": "1b"},
        "Z": {"cuda": "1a", "rocm": "1b", "cpu": "1c"},
        "V": {"cuda": "1a", "rocm": "1b"},
    }


@pytest.mark.parametrize("text", ["", "# nothing\n", "---\n", "~\n", "null\n"])
def test_a_file_without_a_word_is_an_empty_map(text: str) -> None:
    assert tree(text).plain() == {}


def test_a_byte_order_mark_is_no_part_of_the_first_key(tmp_path: Path) -> None:
    file = tmp_path / "f.yaml"
    file.write_text("A: b\n", encoding="utf-8-sig")
    assert read(file, Place("file", "f.yaml")).plain() == {"A": "b"}


def test_a_key_twice_is_refused_naming_both_lines() -> None:
    assert faults("A: 1\nB: {c: 1,\n  c: 2}\nA: 3\n") == [
        "3:3 B.c the key 'c' stands twice: lines 2 and 3",
        "4:1 A the key 'A' stands twice: lines 1 and 4",
    ]


def test_a_key_that_yaml_did_not_take_for_text_is_refused_with_its_characters() -> None:
    assert faults("on: 1\n1.10: 2\nnull: 3\n61e9540: 4\n") == [
        "1:1 on the key on is a boolean in YAML, expected text",
        "2:1 1.10 the key 1.10 is a number in YAML, expected text",
        "3:1 null the key null is null in YAML, expected text",
        "4:1 61e9540 the key 61e9540 is a number in YAML, expected text",
    ]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("A: !!python/object:os.system x", "the tag !!python/object:os.system is not read here, expected plain YAML"),
        ("A: !mine [1]", "the tag !mine is not read here, expected plain YAML"),
        ("A: !mine {b: 1}", "the tag !mine is not read here, expected plain YAML"),
        ("A: !!binary aGk=", "the tag !!binary is not read here, expected plain YAML"),
        ("A: !!int x\n", "'x' is no int"),
        ("A: !!int ''\n", "'' is no int"),
        ("A: !!bool maybe\n", "'maybe' is no bool"),
        ("A: b\n---\nC: d\n", "two documents in one file"),
        ("- a\n", "the file holds a list, expected a map"),
        ("hello\n", "the file holds one value, expected a map"),
        ("A: @x\n", "cannot start any token"),
        ("A: >=2.0,<3.0\n", "> starts a block of text here"),
        ("A: |2.0\n", "| starts a block of text here"),
        ("A: org/repo: L\n", "mapping values are not allowed"),
        ("A:\n\tb: c\n", "a tab where a key or value starts"),
        ("A: &x [*x]\n", "an alias inside the value that it stands for"),
        ("A: *x\n", "undefined alias"),
        ("? [a, b]\n: c\n", "a key must be text, not a map or a list"),
        ("A: {<<: 3}\n", "`<<` needs a map"),
        ("A: 0b_\n", "'0b_' is no int"),
        ('A: "\0"\n', "is not YAML"),
        ("A: " + "[" * 3000 + "]" * 3000, "nest"),
        (BOMB, "aliases expand to 1234567900 values"),
    ],
)
def test_what_is_no_plain_yaml_is_refused(text: str, message: str) -> None:
    (fault,) = faults(text)
    assert message in fault


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        ("on", "a boolean"),
        ("1e5", "a number"),
        ("~", "null"),
        ("RMSNorm", None),
        ("", None),
        ("a: b", None),
        ("&a b", None),
    ],
)
def test_what_a_name_would_be_as_a_key_is_told(name: str, kind: str | None) -> None:
    assert kind_of_key(name) == kind


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("a b", "a b"),
        ("inf", "inf"),
        ("0123456", 42798),
        ("a: b", {}),
        ("?A", {}),
        ("[", None),
        ("!", ""),
        ("!!int ", None),
        ("a, b", None),
    ],
)
def test_a_text_inside_brackets_is_read_as_yaml_reads_it_there(text: str, value: Any) -> None:
    if value is None:
        with pytest.raises(ValueError, match=re.escape(text)):
            scalar(text, inside=True)
    else:
        assert scalar(text, inside=True) == value


def test_as_many_values_as_a_large_mapping_has_are_no_bomb() -> None:
    assert tree("a: [" + "1," * 10_000 + "]").size < MAX_VALUES


@pytest.mark.parametrize(
    ("encoding", "message"),
    [("latin-1", "2:4: the byte 0xe9 is not UTF-8"), ("utf-16", "1:1: is UTF-16, expected UTF-8")],
)
def test_another_encoding_is_refused_naming_the_place(encoding: str, message: str, tmp_path: Path) -> None:
    file = tmp_path / "f.yaml"
    file.write_bytes("a: b\nA: é\n".encode(encoding))
    with pytest.raises(ConfigError, match=message) as caught:
        read(file, Place("file", "f.yaml"))
    (issue,) = caught.value.issues
    assert (issue.file, issue.line) == ("f.yaml", 2 if encoding == "latin-1" else 1)


def test_a_file_that_is_not_there_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="cannot be read: No such file"):
        read(tmp_path / "f.yaml", Place("file", "f.yaml"))


def test_the_rest_of_a_tree_is_returned_beside_noted_faults() -> None:
    noted: list[Fault] = []
    text = "A: {null: 1, cpu: a/b:C}\nB: !!int x\nC: 1\nC: 2\n"
    node = parse(text, Place("file", "x.yaml", ("kernels",)), noted)
    assert node.plain() == {"A": {"cpu": "a/b:C"}, "B": None, "C": 2}
    assert [part for part, _ in noted] == [("kernels", "A", "null"), ("kernels", "B"), ("kernels", "C")]


@pytest.mark.parametrize("text", ["- 1\n", "a: [\n"])
def test_what_is_no_map_is_refused_whoever_notes_faults(text: str) -> None:
    with pytest.raises(ConfigError):
        parse(text, Place("file", "x.yaml"), [])


def test_a_complaint_without_a_place_is_not_put_down_to_the_indentation() -> None:
    assert reading._misplaced("a: 1\n", "a: 1\n", None, "") is None
