"""What is read of a source in part is what the whole of it says."""

from __future__ import annotations

import ast
import importlib
import sys
import zipfile
from pathlib import Path
from types import ModuleType

import pytest

from kerncfg.applier.adapters import statements
from kerncfg.applier.adapters.statements import decorated, has_statement, source_text

CASES = {
    "one": '@hub("A")\nclass A(B):\n    pass\n',
    "several lines": '@other\n@hub(\n    "A",\n)\n# why\n\n@third\nclass A:\n    pass\n',
    "a function": '@hub("f")\ndef f(x):\n    return x\n',
    "async": '@hub("f")\nasync def f(x):\n    return x\n',
    "another comes first": '@other\nclass A:\n    x = 1\n\n@hub("B")\nclass B:\n    pass\n',
    "a comment": '# @hub("A")\nclass A:\n    pass\n',
    "a product": "y = a @hub\nclass A:\n    pass\n",
    "blank between": '@ hub("A")\nclass A:\n    pass\n',
    "inside a class": 'class A:\n    @hub("B")\n    class B:\n        pass\n',
    "inside a function": 'def f():\n    @hub("B")\n    class B:\n        pass\n    return B\n',
    "two of a name": 'if True:\n    class A:\n        pass\n\n@hub("A")\nclass A:\n    pass\n',
    "two branches": (
        'try:\n    @hub("A")\n    class A:\n        pass\nexcept E:\n    @hub("B")\n    class A:\n        pass\n'
    ),
    "in a string": 'x = """\n@hub("A")\nclass A:\n    pass\n"""\nclass A:\n    pass\n',
    "in a string alone": 'x = """\n@hub("A")\nclass A:\n    pass\n"""\n',
    "a string of several lines": '@hub("""\nA\n""")\nclass A:\n    pass\n',
    "nothing": "class A:\n    pass\n",
    "a longer name": '@hubbub("A")\nclass A:\n    pass\n',
}


def whole(text: str) -> dict[str, list[list[str]]]:
    """The decorators of every statement by the parser alone; those without are left out."""
    found = statements._all(f"\n{text}")
    return {name: [list(map(ast.unparse, one.decorators)) for one in each] for name, each in found.items()}


@pytest.mark.parametrize("text", CASES.values(), ids=list(CASES))
def test_a_part_says_what_the_whole_says(text: str) -> None:
    found = decorated(text, ["hub"], lambda name: name == "hub")
    assert found is not None
    read = {name: [list(map(ast.unparse, one.decorators)) for one in each] for name, each in found.items()}
    expected = whole(text)
    assert read.items() <= expected.items()
    counting = {name for name, each in expected.items() if any(said.startswith("hub(") for one in each for said in one)}
    assert counting <= set(read)


@pytest.mark.parametrize(("case", "alone"), [("one", True), ("several lines", True), ("two of a name", False)])
def test_only_what_stands_alone_is_read_alone(case: str, alone: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    parsed: list[str] = []
    monkeypatch.setattr(statements, "_all", parsed.append)
    decorated(CASES[case], ["hub"], lambda name: True)
    assert not parsed if alone else parsed


def test_lines_are_those_of_the_file() -> None:
    text = CASES["two of a name"]
    found = decorated(text, ["hub"], lambda name: True)
    assert found is not None
    assert [one.lines for one in found["A"]] == [range(2, 4), range(5, 8)]


def test_what_does_not_count_is_not_parsed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(statements, "ast", None)
    assert decorated(CASES["one"], ["hub"], lambda name: False) == {}
    assert decorated(CASES["one"], [], lambda name: True) == {}
    assert decorated(CASES["nothing"], ["hub"], lambda name: True) == {}


def test_what_is_no_python_is_none() -> None:
    assert decorated('@hub("A")\nclass (\n', ["hub"], lambda name: True) is None


def test_a_dotted_name_is_asked_for_as_a_whole() -> None:
    asked: list[str] = []

    def counts(name: str) -> bool:
        asked.append(name)
        return False

    decorated('@kernels.hub("A")\nclass A:\n    pass\n', ["kernels"], counts)
    assert asked == ["kernels.hub"]


def test_a_statement_is_found_by_its_name() -> None:
    text = "class A:\n    def f(self): pass\ndef g(): pass\nasync  def h(): pass\n"
    assert [name for name in "Afgh" if has_statement(text, name)] == ["A", "g", "h"]


@pytest.mark.slow
def test_every_file_of_transformers_is_read_alike() -> None:
    import transformers

    names = ["use_kernel_forward_from_hub", "use_kernel_func_from_hub_with_fallback", "use_kernelized_func"]
    files = 0
    for path in sorted((Path(transformers.__file__).parent / "models").glob("*/modeling_*.py")):
        text = path.read_text("utf-8")
        found = decorated(text, names, lambda name: True)
        assert found is not None
        read = {name: [list(map(ast.unparse, one.decorators)) for one in each] for name, each in found.items()}
        expected = whole(text)
        assert read.items() <= expected.items()
        counts = {
            name: each
            for name, each in expected.items()
            if any(said.partition("(")[0] in names for one in each for said in one)
        }
        assert counts.items() <= read.items()
        files += bool(counts)
    assert files > 100


def test_a_source_is_that_of_the_file_as_python_reads_it_and_as_it_is_now(tmp_path: Path) -> None:
    file, module = tmp_path / "changing.py", ModuleType("changing")
    module.__file__ = str(file)
    file.write_bytes(b"# coding: latin-1\r\nx = '\xe9'")
    assert source_text(module) == "# coding: latin-1\nx = 'é'\n"
    assert source_text(module) is source_text(module)
    file.write_text("y = 1\n")
    assert source_text(module) == "y = 1\n\n"
    file.write_bytes(b"\xff")
    assert source_text(module) is None
    file.unlink()
    assert source_text(module) is None and source_text(sys) is None


def test_a_source_in_an_archive_is_read_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with zipfile.ZipFile(tmp_path / "packed.zip", "w") as archive:
        archive.writestr("packed_source.py", "z = 1\n")
    monkeypatch.syspath_prepend(tmp_path / "packed.zip")
    assert source_text(importlib.import_module("packed_source")) == "z = 1\n"
