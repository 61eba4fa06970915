from __future__ import annotations

from typing import Any

import pytest
import yaml

from kerncfg.compiler.compose import compose
from kerncfg.compiler.tree import Node, Origins
from kerncfg.compiler.writing import document_lines
from kerncfg.documents.config import Origin


def written(document: dict[str, Any], origins: Origins | None = None) -> str:
    return "\n".join(document_lines(document, origins or Origins.argument()))


@pytest.mark.parametrize(
    "value",
    [
        None,
        True,
        1,
        2e-06,
        -3e20,
        1.5,
        "",
        "on",
        "0123456",
        "a: b",
        "${x}",
        "org/r@>=2,<3:N",
        "ü",
        "x\ny",
        [],
        {},
        [{"a": 1}],
    ],
    ids=repr,
)
def test_what_is_written_reads_back_as_it_was(value: Any) -> None:
    document = {"a": {"on": value, "b/c": 1}}
    assert yaml.safe_load(written(document)) == document


def test_a_composed_document_reads_back_as_it_was() -> None:
    document, origins = compose(["kernels=bundled", "target=h100"])
    assert yaml.safe_load(written(document, origins)) == document


def test_each_value_says_where_it_stands() -> None:
    document, origins = compose(["target=h100", "enabled=false"])
    assert written(document, origins).splitlines()[0] == "enabled: false  # override: enabled=false"


def test_a_value_that_came_by_interpolation_stands_as_it_was_written() -> None:
    said = Origin(kind="file", place="my.yaml", line=3, text="${oc.env:TOKEN}")
    origins = Origins(Node({"a": Node("secret", said)}, said))
    assert written({"a": "secret"}, origins) == 'a: "${oc.env:TOKEN}"  # my.yaml:3'
