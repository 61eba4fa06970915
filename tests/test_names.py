from __future__ import annotations

from pathlib import Path

import pytest

from kerncfg.sources.names import missing

CLASS = "class Norm: ..."


def write(folder: Path, **files: str) -> Path:
    for name, text in files.items():
        (folder / f"{name}.py").write_text(text, encoding="utf-8")
    return folder / "__init__.py"


@pytest.mark.parametrize(
    "source",
    [
        CLASS,
        "def Norm(x): ...",
        "Norm = object()",
        "Norm: type = object",
        "from .norms import Norm",
        "from .norms import Inner as Norm",
        "import norms as Norm",
        "try:\n    import a\nexcept ImportError:\n    class Norm: ...",
        "if True:\n    pass\nelse:\n    class Norm: ...",
        "with open('x') as Norm: ...",
        "for Norm in (): ...",
        "class layers:\n    class Norm: ...",
    ],
)
def test_a_name_is_found_however_it_is_bound(tmp_path: Path, source: str) -> None:
    assert missing("Norm", write(tmp_path, __init__=source)) is None


@pytest.mark.parametrize(
    "source",
    [
        "from .norms import *",
        "def __getattr__(name): ...",
        "class Other: ...\nglobals()['Norm'] = 1",
        "class Other: ...\nlayers = make()",
        "raise ValueError('no')",
        "class Other: ...\ndef",
        "",
    ],
)
def test_what_only_running_can_tell_is_not_told(tmp_path: Path, source: str) -> None:
    assert missing("Norm", write(tmp_path, __init__=source)) is None


def test_a_file_that_cannot_be_read_is_left_to_the_import(tmp_path: Path) -> None:
    assert missing("Norm", tmp_path / "__init__.py") is None


def test_names_inside_functions_and_classes_are_not_the_modules(tmp_path: Path) -> None:
    source = "def make():\n    class Norm: ...\nclass Other:\n    class Norm: ..."
    assert missing("Norm", write(tmp_path, __init__=source)) == "no 'Norm' there; it has Other, make"


def test_the_layers_of_a_package_are_read(tmp_path: Path) -> None:
    file = write(tmp_path, __init__="from . import layers", layers=f"{CLASS}\nclass Act: ...")
    assert missing("Norm", file) is None
    assert missing("Nrom", file) == "no 'Nrom' there; did you mean Norm? it has Act, Norm"


def test_layers_that_are_not_imported_are_told_with_the_line_to_add(tmp_path: Path) -> None:
    file = write(tmp_path, __init__="import torch", layers=CLASS)
    assert missing("Norm", file) == (
        "layers.py has Norm, but __init__.py does not import it: add `from . import layers`"
    )


def test_layers_that_make_their_names_by_code_are_left_to_the_import(tmp_path: Path) -> None:
    file = write(tmp_path, __init__="from . import layers", layers="class Act: ...\nsetattr(Act, 'x', 1)")
    assert missing("Norm", file) is None


def test_what_is_imported_from_elsewhere_is_no_kernel_on_offer(tmp_path: Path) -> None:
    source = "from pathlib import Path\nfrom torch.nn import Module\nfrom .norms import Act\nclass Other: ..."
    assert missing("Norm", write(tmp_path, __init__=source)) == "no 'Norm' there; it has Act, Other"
