"""A folder as a package of its own name: all of it or nothing, and no bytecode."""

from __future__ import annotations

import importlib
import sys
import types
from pathlib import Path

import pytest

from kerncfg.documents.reference import KernelRef
from kerncfg.errors import SourceError
from kerncfg.sources.importing import PREFIX, import_folder, importing, named

REF = KernelRef.parse("org/repo@v1:Norm")


def folder_with(tmp_path: Path, **modules: str) -> Path:
    made = tmp_path / "build"
    made.mkdir(exist_ok=True)
    for name, text in modules.items():
        (made / f"{name}.py").write_text(text)
    return made


def left(name: str) -> set[str]:
    return {module for module in sys.modules if module == name or module.startswith(f"{name}.")}


def test_a_folder_is_imported_once_under_its_name(tmp_path: Path) -> None:
    name = f"{PREFIX}once"
    made = folder_with(tmp_path, __init__="from . import layers\n", layers="class Norm: pass\n")
    module = import_folder(name, made, REF)
    assert import_folder(name, made, REF) is module and sys.modules[name] is module
    assert named(module, REF) is module.layers.Norm
    assert named(module, REF.everything) is module
    assert not list(made.rglob("*.pyc"))


def test_a_module_imported_later_is_found_in_the_folder(tmp_path: Path) -> None:
    name = f"{PREFIX}later"
    import_folder(name, folder_with(tmp_path, __init__="", more="X = 1\n"), REF)
    assert importlib.import_module(f"{name}.more").X == 1
    with pytest.raises(ModuleNotFoundError, match=f"No module named '{name}.gone'"):
        importlib.import_module(f"{name}.gone")


def test_bytecode_alone_is_no_module(tmp_path: Path) -> None:
    import py_compile

    made = folder_with(tmp_path, __init__="from . import hidden\n", hidden="X = 1\n")
    py_compile.compile(str(made / "hidden.py"), cfile=str(made / "hidden.pyc"), doraise=True)
    (made / "hidden.py").unlink()
    with pytest.raises(SourceError, match="cannot be imported: "):
        import_folder(f"{PREFIX}bytecode", made, REF)
    assert left(f"{PREFIX}bytecode") == set()


def test_a_folder_without_a_package_is_told(tmp_path: Path) -> None:
    with pytest.raises(SourceError, match=r"org/repo@v1:Norm: no .*__init__\.py"):
        import_folder(f"{PREFIX}none", folder_with(tmp_path), REF)


@pytest.mark.parametrize("end", ["raise ValueError('no')", "import sys; sys.exit('no')", "1 +", "from . import gone"])
def test_a_failure_leaves_nothing_and_a_second_try_is_a_new_one(tmp_path: Path, end: str) -> None:
    name = f"{PREFIX}{tmp_path.name}"  # each its own
    made = folder_with(tmp_path, __init__=f"from . import part\n{end}\n", part="X = 1\n")
    for _ in range(2):
        with pytest.raises(SourceError, match="org/repo@v1:Norm cannot be imported: "):
            import_folder(name, made, REF)
        assert left(name) == set()
    (made / "__init__.py").write_text("from . import part\n")
    assert import_folder(name, made, REF).part.X == 1


def test_a_failure_leaves_no_module_under_another_name(tmp_path: Path) -> None:
    text = "import sys\nfrom . import part\nsys.modules['importing_alias'] = part\nraise ValueError\n"
    made = folder_with(tmp_path, __init__=text, part="X = 1\n")
    with pytest.raises(SourceError):
        import_folder(f"{PREFIX}alias", made, REF)
    assert "importing_alias" not in sys.modules


def test_whoever_presses_ctrl_c_means_the_program(tmp_path: Path) -> None:
    made = folder_with(tmp_path, __init__="raise KeyboardInterrupt\n")
    with pytest.raises(KeyboardInterrupt):
        import_folder(f"{PREFIX}ctrl_c", made, REF)
    assert left(f"{PREFIX}ctrl_c") == set()


def test_what_others_imported_meanwhile_stays() -> None:
    with pytest.raises(SourceError), importing("importing_other.part", REF):
        sys.modules["importing_bystander"] = types.ModuleType("importing_bystander")
        raise ValueError
    assert sys.modules.pop("importing_bystander", None) is not None


def test_a_name_that_is_not_there_is_told_with_those_that_are(tmp_path: Path) -> None:
    made = folder_with(tmp_path, __init__="class A: pass\nclass _B: pass\n")
    with pytest.raises(SourceError, match=r"no 'Norm' there; found A$"):
        named(import_folder(f"{PREFIX}names", made, REF), REF)
    empty = types.ModuleType("empty")
    with pytest.raises(SourceError, match="found no classes"):
        named(empty, REF)
