"""One text means the same in a file and on the command line, whatever it is."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from kerncfg.compiler.assign import assign, leaf
from kerncfg.compiler.brackets import quoted
from kerncfg.compiler.overrides import read, rewrite
from kerncfg.compiler.reading import Place, parse
from kerncfg.compiler.tree import Node
from kerncfg.documents.config import Origin
from kerncfg.errors import ConfigError

pytestmark = pytest.mark.property
law = settings(deadline=None, max_examples=200)

REFUSED = object()
GRAMMAR = set("'\"[]{}(),\\=") | {"$"}  # what Hydra's grammar gives a meaning that YAML does not

# Texts near those that the two read differently, and any characters at all.
pieces = st.sampled_from([
    "0", "1", "12", "0123456", "61e9540", "1_000", "1.10", ":", "12:30:45", "0x1f", "0o7", "e", "E5", "+", "-",
    ".", ".5", "inf",
    ".inf", "nan", "on", "off", "yes", "No", "y", "true", "False", "null", "NULL", "~", "~/", "a/b", "@", ">=2.0",
    ",<3.0", ":Name",
    " ", "#", "é", "*", "&", "!", "|", ">", "%", "`", "?", "a", "=", "<<", "2026-11-30", "\\", "\\d", "C:\\x",
    "v1", "main",
])  # fmt: skip
texts = st.lists(pieces, min_size=1, max_size=4).map("".join) | st.text(
    st.characters(exclude_categories=["Cs", "Cc"]), min_size=1, max_size=12
)
inside = st.recursive(
    texts.map(str.strip).filter(bool),
    lambda child: (
        st.lists(child, max_size=3).map(lambda items: f"[{', '.join(items)}]")
        | st.lists(
            st.tuples(st.sampled_from(["kernel", "version", "a"]), child), max_size=2, unique_by=lambda pair: pair[0]
        ).map(lambda pairs: "{" + ", ".join(f"{name}: {value}" for name, value in pairs) + "}")
    ),
    max_leaves=5,
)


def by_file(text: str) -> Any:
    try:
        return parse(f"k: {text}\n", Place("file", "f.yaml")).value["k"].plain()
    except ConfigError:
        return REFUSED


def by_override(text: str) -> Any:
    root: Node = Node({}, Origin(kind="argument"))
    try:
        for line in rewrite([f"model.config.k={text}"]):
            override = read(line)
            if override.is_sweep_override():
                return REFUSED
            root = assign(root, override.key_or_group.split("."), leaf(override.value(), line), [])
    except ConfigError:
        return REFUSED
    return root.plain()["model"]["config"]["k"]


def same(one: Any, other: Any) -> bool:
    return repr(one) == repr(other)


@law
@given(texts)
@example("0123456")
@example("a/b@>=2.0,<3.0:Name")
@example("12:30:45")
@example(":\u00a0")
def test_a_bare_text_has_one_value_or_is_refused(text: str) -> None:
    if not text.strip():
        return  # nothing at all is null in a file and empty text on the command line; both mean off
    said, typed = by_file(text), by_override(text)
    if said is not REFUSED and typed is not REFUSED:
        assert same(said, typed)
    if said is REFUSED and typed is not REFUSED:
        assert typed.strip(" \t") == text.strip(" \t")  # a file needs quotes around it, and gives the same with them
    if typed is REFUSED and isinstance(said, str) and said == text.strip(" \t"):
        assert GRAMMAR & set(text) or not isinstance(read(f"k={text}").value(), str)


@law
@given(texts)
def test_a_quoted_text_is_that_text_by_both(text: str) -> None:
    escaped = text.replace("'", "''")
    assert by_file(f"'{escaped}'") == text
    if "$" not in text:
        typed = by_override(quoted(text))
        assert typed == text or (typed is REFUSED and "\\" in text)


@law
@given(inside)
@example("[!, []]")
@example('{kernel: [0", 0], version: []}')
@example("[a: b]")
@example("[inf]")
@example("[?A]")
def test_lists_and_maps_have_one_value_or_are_refused(text: str) -> None:
    said, typed = by_file(text), by_override(text)
    if said is not REFUSED and typed is not REFUSED:
        assert same(said, typed)
