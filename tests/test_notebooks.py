"""Notebooks run from the top to the bottom, and hold the outputs that they give now."""

from __future__ import annotations

import json
from itertools import chain
from pathlib import Path
from typing import Any

import pytest

from tests.notebooks import executed
from tests.test_docs import prints

NOTEBOOKS = sorted((Path(__file__).parent.parent / "docs/notebooks").glob("*.ipynb"))
AGAIN = "run: python -m tests.notebooks docs/notebooks/*.ipynb"


def outputs(notebook: dict[str, Any]) -> list[list[tuple[str, str]]]:
    """What each code cell prints and shows: the kind, and the text."""
    cells = [cell["outputs"] for cell in notebook["cells"] if cell["cell_type"] == "code"]
    return [
        [
            (kind, "".join(lines))
            for output in cell
            for kind, lines in output.get("data", {"stream": output.get("text", ())}).items()
        ]
        for cell in cells
    ]


@pytest.mark.parametrize("file", NOTEBOOKS, ids=lambda file: file.stem)
def test_a_notebook_runs_and_holds_what_it_shows(file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    notebook = json.loads(file.read_text("utf-8"))
    held, found = outputs(notebook), outputs(executed(notebook))
    assert [[kind for kind, _ in cell] for cell in held] == [[kind for kind, _ in cell] for cell in found], AGAIN
    for (_, expected), (_, shown) in zip(chain.from_iterable(held), chain.from_iterable(found), strict=True):
        assert prints(expected, shown), f"{shown}\nand the notebook holds\n{expected}\n{AGAIN}"


def test_the_first_notebook_shows_plan_explanation_difference_and_report_as_tables() -> None:
    cells = outputs(json.loads(NOTEBOOKS[0].read_text("utf-8")))
    markup = [text for cell in cells for kind, text in cell if kind == "text/html"]
    assert [text[:3] for text in markup] == ["<p>", "<pr", "<pr", "<ta"]
    assert "<table>" in markup[0] and "9 swapped, 0 kept, 2 off" in markup[3]


def test_the_notebooks_are_there() -> None:
    assert [file.stem for file in NOTEBOOKS] == ["first_plan"]


def test_a_last_expression_is_shown_and_none_is_not() -> None:
    cells = ["x = 1\nprint(x)\nx + 1", "print('a')\nNone"]
    found = executed({"cells": [{"cell_type": "code", "source": [source]} for source in cells]})
    assert outputs(found) == [[("stream", "1\n"), ("text/plain", "2")], [("stream", "a\n")]]
