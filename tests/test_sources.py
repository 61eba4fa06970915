from __future__ import annotations

import importlib
import importlib.metadata
import itertools
import os
import py_compile
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from kerncfg.documents.config import KernelRef, Trust
from kerncfg.documents.lock import Build, Lock, Pin
from kerncfg.documents.plan import Kernel
from kerncfg.errors import IntegrityError, SourceError, TrustError
from kerncfg.sources import SOURCES, KernelCode, Question, load, pin, reload
from tests.builders import kernel_folder, target
from tests.contracts import Place, SourceContract

numbers = itertools.count()


@pytest.fixture(autouse=True)
def forget_modules() -> Iterator[None]:
    known = set(sys.modules)
    yield
    for name in set(sys.modules) - known:
        if name.startswith(("_kerncfg_", "kernels_of_test_")):
            del sys.modules[name]


@pytest.fixture
def package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """The name of a top-level package that is not there yet, on a search path of its own."""
    (tmp_path / "site").mkdir()
    monkeypatch.syspath_prepend(str(tmp_path / "site"))
    return f"kernels_of_test_{next(numbers)}"


def write(file: Path, source: str) -> None:
    """Write a module so that Python does not take what it knows of an earlier one."""
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(source, encoding="utf-8")
    importlib.invalidate_caches()


def one(ref: KernelRef | str) -> Pin:
    ref = KernelRef.parse(ref) if isinstance(ref, str) else ref
    return pin([ref]).pins[ref]


def planned(text: str, said: dict[str, Any] | None = None) -> Kernel:
    """Give the kernel that a plan for a device would hold."""
    found = one(text)
    best = found.choose(target(**(said or {})))
    build = best and best[1]
    assert build is not None, found.reason
    variant = build.variant.name if build.variant else None
    return Kernel(reference=found.ref, variant=variant, digest=build.digest)


def code(text: str, said: dict[str, Any] | None = None) -> Any:
    kernel = planned(text, said)
    return load(kernel, Trust(local=frozenset({kernel.reference.place}))).code


class TestFolders(SourceContract):
    @pytest.fixture
    def place(self, tmp_path: Path) -> Place:
        folder = tmp_path / "norms"
        return Place(
            ref=KernelRef.parse(f"{folder}:Norm"),
            missing=KernelRef.parse(f"{tmp_path / 'nothing'}:Norm"),
            write=lambda source: write(folder / "__init__.py", source),
        )


class TestBuilds(SourceContract):
    @pytest.fixture
    def place(self, tmp_path: Path) -> Place:
        folder = tmp_path / "norms"
        return Place(
            ref=KernelRef.parse(f"{folder}:Norm"),
            missing=KernelRef.parse(f"{tmp_path}:Norm"),
            write=lambda source: write(folder / "build" / "torch-universal" / "__init__.py", source),
        )


class TestModules(SourceContract):
    @pytest.fixture
    def place(self, tmp_path: Path, package: str) -> Place:
        return Place(
            ref=KernelRef.parse(f"python:{package}:Norm"),
            missing=KernelRef.parse(f"python:{package}.nothing:Norm"),
            write=lambda source: write(tmp_path / "site" / f"{package}.py", source),
        )


class TestPackages(SourceContract):
    @pytest.fixture
    def place(self, tmp_path: Path, package: str) -> Place:
        return Place(
            ref=KernelRef.parse(f"python:{package}:Norm"),
            missing=KernelRef.parse("python:no_module_of_this_name.norms:Norm"),
            write=lambda source: write(tmp_path / "site" / package / "__init__.py", source),
        )


# Bundled kernels


def test_a_bundled_kernel_needs_no_consent() -> None:
    kernel = planned("builtin:RMSNorm", {"device": "cpu"})
    assert load(kernel, Trust()).code.__name__ == "RMSNorm"


def test_bundled_kernels_are_not_imported_to_be_pinned() -> None:
    lines = (
        "from kerncfg.sources import pin",
        "from kerncfg.documents.config import KernelRef",
        "import sys",
        "pin([KernelRef.parse('builtin:RMSNorm'), KernelRef.parse('python:torch.nn:RMSNorm')])",
        "print([name for name in ('torch', 'kerncfg.kernels') if name in sys.modules])",
    )
    done = subprocess.run([sys.executable, "-c", "\n".join(lines)], check=True, capture_output=True, text=True)
    assert done.stdout.strip() == "[]"


# Folders in the Hub's layout


@pytest.fixture
def norms(tmp_path: Path) -> Path:
    """A folder with four builds, each of which offers a class called as the build is."""
    folder = tmp_path / "norms"
    for name in ("torch-universal", "torch-cuda", "torch-cpu", "torch213-cxx11-cu126-x86_64-linux"):
        kernel_folder(folder / "build" / name, f"class Norm:\n    build = {name!r}\n")
    kernel_folder(folder / "build" / "docs", "raise AssertionError")
    return folder


@pytest.mark.parametrize(
    ("said", "build"),
    [
        ({"device": "cuda"}, "torch213-cxx11-cu126-x86_64-linux"),
        ({"device": "cuda", "torch": "2.12.0"}, "torch-cuda"),
        ({"device": "cpu"}, "torch-cpu"),
        ({"device": "xpu"}, "torch-universal"),
    ],
)
@pytest.mark.parametrize("inside", ["", "build"])
def test_the_build_that_fits_best_is_run(norms: Path, inside: str, said: dict[str, Any], build: str) -> None:
    assert code(f"{norms / inside}:Norm", said).build == build


def test_a_build_may_be_named_itself(norms: Path) -> None:
    found = one(f"{norms / 'build' / 'torch-cpu'}:Norm")
    assert [build.variant for build in found.builds] == [None]
    assert code(f"{norms / 'build' / 'torch-cpu'}:Norm").build == "torch-cpu"


def test_builds_in_a_folder_win_over_the_folder_itself(norms: Path) -> None:
    write(norms / "__init__.py", "raise AssertionError")
    assert len(one(f"{norms}:Norm").builds) == 4


def test_two_folders_with_equal_content_have_one_digest(tmp_path: Path) -> None:
    kernel_folder(tmp_path / "a" / "norms")
    kernel_folder(tmp_path / "b")
    assert one(f"{tmp_path / 'a' / 'norms'}:Norm").builds == one(f"{tmp_path / 'b'}:Norm").builds


@pytest.mark.parametrize("name", ["layers.py", "inner/data.bin", "lib.so"])
def test_every_file_of_a_build_is_in_its_digest(tmp_path: Path, name: str) -> None:
    before = one(f"{kernel_folder(tmp_path / 'norms')}:Norm")
    write(tmp_path / "norms" / name, "x = 1")
    assert one(f"{tmp_path / 'norms'}:Norm") != before


@pytest.mark.parametrize("name", ["__pycache__/x.cpython-311.pyc", "x.pyc", ".git/index", ".DS_Store"])
def test_what_never_runs_is_not_in_the_digest(tmp_path: Path, name: str) -> None:
    before = one(f"{kernel_folder(tmp_path / 'norms')}:Norm")
    write(tmp_path / "norms" / name, "x = 1")
    assert one(f"{tmp_path / 'norms'}:Norm") == before


def test_where_a_file_stands_is_in_the_digest(tmp_path: Path) -> None:
    kernel_folder(tmp_path / "norms")
    write(tmp_path / "norms" / "a.py", "x = 1")
    before = one(f"{tmp_path / 'norms'}:Norm")
    (tmp_path / "norms" / "a.py").rename(tmp_path / "norms" / "b.py")
    assert one(f"{tmp_path / 'norms'}:Norm") != before


def test_a_folder_that_is_not_there_is_told(tmp_path: Path) -> None:
    found = f"no folder {tmp_path / 'norms'}, needed a kernel in the layout of the Hub"
    assert one(f"{tmp_path / 'norms'}:Norm").reason == found


def test_a_folder_without_a_build_is_told_with_the_places(tmp_path: Path) -> None:
    (tmp_path / "build" / "docs").mkdir(parents=True)
    looked = f"{tmp_path}/VARIANT, {tmp_path}/build/VARIANT and {tmp_path / '__init__.py'}"
    found = "found docs, which name no variant such as torch-universal"
    assert one(f"{tmp_path}:Norm").reason == f"no build in {tmp_path}: looked for {looked}; {found}"


def test_a_file_is_answered_with_its_folder(norms: Path) -> None:
    file = next(norms.rglob("__init__.py"))
    assert one(f"{file}:Norm").reason == f"{file} is a file; name its folder, {file.parent}"


def test_a_build_without_code_is_told_when_it_is_loaded(tmp_path: Path) -> None:
    write(tmp_path / "torch-universal" / "README.md", "nothing")
    with pytest.raises(SourceError) as caught:
        code(f"{tmp_path}:Norm")
    assert caught.value.message == f"{tmp_path}:Norm: no {tmp_path / 'torch-universal' / '__init__.py'}"
    assert caught.value.hint == "a build is a Python package with an __init__.py"


def test_a_build_that_went_away_is_told(norms: Path) -> None:
    kernel = planned(f"{norms}:Norm", {"device": "cpu"})
    (norms / "build" / "torch-cpu").rename(norms / "build" / "gone")
    with pytest.raises(SourceError) as caught:
        reload(kernel)
    assert caught.value.message == f"{norms}:Norm: build torch-cpu is not there any more"


def test_two_folders_never_share_a_module(tmp_path: Path) -> None:
    source = "from . import layers"
    for name in ("a", "b"):
        write(kernel_folder(tmp_path / name, source) / "layers.py", "class Norm: ...")
    one_code, other = (code(f"{tmp_path / name}:Norm") for name in ("a", "b"))
    assert one_code is not other
    assert one_code.__module__ != other.__module__


def test_two_kernels_of_one_folder_share_its_module(tmp_path: Path) -> None:
    kernel_folder(tmp_path / "norms", "class One: ...\nclass Two: ...")
    assert code(f"{tmp_path / 'norms'}:One").__module__ == code(f"{tmp_path / 'norms'}:Two").__module__


def test_a_submodule_that_fails_leaves_nothing_of_its_package(tmp_path: Path) -> None:
    folder = kernel_folder(tmp_path / "norms", "from . import good, bad")
    write(folder / "good.py", "")
    write(folder / "bad.py", "raise ValueError('no')")
    before = set(sys.modules)
    with pytest.raises(SourceError, match="ValueError: no"):
        code(f"{folder}:Norm")
    assert set(sys.modules) == before


@pytest.mark.parametrize("name", ["__init__.py", "layers.py"])
def test_the_source_is_what_runs_whatever_bytecode_says(tmp_path: Path, name: str) -> None:
    folder = kernel_folder(tmp_path / "norms", "from .layers import *")
    write(folder / "layers.py", "class Norm: old = 1")
    if name == "__init__.py":
        write(folder / name, "class Norm: old = 1")
    assert not hasattr(code(f"{folder}:Norm"), "new")
    stale = folder / name
    py_compile.compile(str(stale))
    stat = stale.stat()
    write(stale, "class Norm: new = 1")
    os.utime(stale, ns=(stat.st_atime_ns, stat.st_mtime_ns))
    assert code(f"{folder}:Norm").new


def test_bytecode_without_its_source_is_never_taken(tmp_path: Path) -> None:
    folder = kernel_folder(tmp_path / "norms", "from .layers import Norm")
    write(tmp_path / "layers.py", "class Norm: ...")
    py_compile.compile(str(tmp_path / "layers.py"), cfile=str(folder / "layers.pyc"))
    with pytest.raises(SourceError, match="No module named"):
        code(f"{folder}:Norm")


# Modules


def test_a_module_that_is_not_there_is_told() -> None:
    ref = KernelRef.parse("python:no_module_of_this_name:Norm")
    message = "no module no_module_of_this_name on the search path, needed for the kernel"
    assert one(ref).reason == message
    with pytest.raises(SourceError) as caught:
        reload(Kernel(reference=ref))
    assert caught.value.message == f"{ref}: {message}"
    assert caught.value.hint == "install the package"


@pytest.mark.parametrize("inside", ["inner", "inner.deep"])
def test_a_module_inside_packages_is_found_without_importing_them(tmp_path: Path, package: str, inside: str) -> None:
    folder = tmp_path / "site" / package
    write(folder / "__init__.py", "raise AssertionError")
    write(folder / "inner" / "__init__.py", "raise AssertionError")
    write(folder / "inner" / "deep.py", "raise AssertionError")
    assert one(f"python:{package}.{inside}:Norm").reason is None
    assert package not in sys.modules


def test_a_module_inside_nested_namespaces_is_found(tmp_path: Path, package: str) -> None:
    write(tmp_path / "site" / package / "a" / "b" / "norms.py", "class Norm: ...")
    assert code(f"python:{package}.a.b.norms:Norm").__module__ == f"{package}.a.b.norms"


@pytest.mark.parametrize("name", ["{package}.os", "{package}.norms.os", "json.decoder.os"])
def test_a_module_has_no_modules_inside(tmp_path: Path, package: str, name: str) -> None:
    write(tmp_path / "site" / package / "norms.py", "")
    name = name.format(package=package)
    assert one(f"python:{name}:Norm").reason == f"no module {name} on the search path, needed for the kernel"


def test_a_namespace_is_no_module(tmp_path: Path, package: str) -> None:
    (tmp_path / "site" / package).mkdir()
    assert one(f"python:{package}:Norm").reason == f"no module {package} on the search path, needed for the kernel"


def test_a_module_without_a_file_is_told() -> None:
    assert one("python:sys:Norm").reason == "built-in cannot be read: No such file or directory"


def test_a_parent_that_fails_leaves_nothing_behind(tmp_path: Path, package: str) -> None:
    write(tmp_path / "site" / package / "__init__.py", f"import {package}.good\nraise ValueError('no')")
    write(tmp_path / "site" / package / "good.py", "")
    write(tmp_path / "site" / package / "norms.py", "class Norm: ...")
    before = set(sys.modules)
    with pytest.raises(SourceError, match="ValueError: no"):
        code(f"python:{package}.norms:Norm")
    assert set(sys.modules) == before


def test_what_a_failed_kernel_imported_of_others_stays(tmp_path: Path, package: str) -> None:
    write(tmp_path / "site" / f"{package}.py", "")
    folder = kernel_folder(tmp_path / "norms", f"import {package}\nraise ValueError('no')")
    with pytest.raises(SourceError, match="ValueError: no"):
        code(f"{folder}:Norm")
    assert package in sys.modules


def test_a_parent_that_was_there_before_stays(tmp_path: Path, package: str) -> None:
    write(tmp_path / "site" / package / "__init__.py", "")
    write(tmp_path / "site" / package / "norms.py", "raise ValueError('no')")
    parent = importlib.import_module(package)
    with pytest.raises(SourceError, match="ValueError: no"):
        code(f"python:{package}.norms:Norm")
    assert sys.modules[package] is parent


# Any source


def test_the_original_is_not_asked_about() -> None:
    assert pin([KernelRef.parse("original")]) == Lock()


def test_a_reference_is_asked_about_once(tmp_path: Path) -> None:
    ref = KernelRef.parse(f"{tmp_path}:Norm")
    assert list(pin([ref, ref]).pins) == [ref]


def test_a_hub_kernel_is_asked_for_consent_first() -> None:
    with pytest.raises(TrustError) as caught:
        load(Kernel(reference=KernelRef.parse("org/repo@v1:Norm")), Trust())
    assert caught.value.message.startswith("org/repo@v1:Norm: publisher org is not trusted: ")


class Shelf:
    """A source of somebody else's."""

    def pin(self, ref: KernelRef, question: Question) -> Pin:
        return Pin.of(ref, Build(variant=None, digest="shelf"))

    def load(self, kernel: Kernel) -> KernelCode:
        return KernelCode(kernel=kernel, code=Shelf)


class Locked(Shelf):
    def pin(self, ref: KernelRef, question: Question) -> Pin:
        raise PermissionError(13, "Permission denied", "/shelf")


class Closed(Shelf):
    def __init__(self) -> None:
        raise ValueError("closed")


FOREIGN = KernelRef(scheme="shelf", location="norms", name="Norm")


def test_a_source_may_be_given() -> None:
    sources = {"shelf": f"{__name__}:Shelf"}
    found = pin([FOREIGN], sources=sources).pins[FOREIGN]
    assert [build.digest for build in found.builds] == ["shelf"]
    assert reload(Kernel(reference=FOREIGN, digest="given"), sources=sources).code.__name__ == "Shelf"


def test_a_source_may_be_installed(tmp_path: Path, package: str) -> None:
    write(tmp_path / "site" / f"{package}.py", f"from {__name__} import Shelf")
    points = tmp_path / "site" / f"{package}-1.0.dist-info" / "entry_points.txt"
    write(points, f"[kerncfg.sources]\nshelf = {package}:Shelf\n")
    write(points.with_name("METADATA"), f"Metadata-Version: 2.1\nName: {package}\nVersion: 1.0\n")
    assert pin([FOREIGN]).pins[FOREIGN].reason is None


def test_a_scheme_without_a_source_is_told() -> None:
    found = "no source for 'shelf' kernels is installed, needed an entry point in kerncfg.sources"
    assert pin([FOREIGN]).pins[FOREIGN].reason == found
    with pytest.raises(SourceError) as caught:
        reload(Kernel(reference=FOREIGN))
    assert caught.value.message == f"{FOREIGN}: {found}"


@pytest.mark.parametrize(
    ("place", "why"),
    [
        ("no_module_of_this_name:Shelf", "ModuleNotFoundError: No module named 'no_module_of_this_name'"),
        ("json:Shelf", "AttributeError: module 'json' has no attribute 'Shelf'"),
        (f"{__name__}:Closed", "ValueError: closed"),
    ],
)
def test_a_source_that_cannot_be_used_is_told(place: str, why: str) -> None:
    reason = f"the source for 'shelf' kernels, {place}, cannot be used: {why}"
    assert pin([FOREIGN], sources={"shelf": place}).pins[FOREIGN].reason == reason
    with pytest.raises(SourceError) as caught:
        reload(Kernel(reference=FOREIGN), sources={"shelf": place})
    assert caught.value.message == f"{FOREIGN}: {reason}"


def test_what_cannot_be_read_is_a_reason() -> None:
    sources = {"shelf": f"{__name__}:Locked"}
    assert pin([FOREIGN], sources=sources).pins[FOREIGN].reason == "/shelf cannot be read: Permission denied"


def test_the_usual_sources_are_four() -> None:
    assert list(SOURCES) == ["builtin", "python", "path", "hub"]


def test_a_kernel_that_runs_already_needs_no_consent_again(tmp_path: Path) -> None:
    kernel = planned(f"{kernel_folder(tmp_path / 'norms', 'class Norm: ...')}:Norm")
    assert reload(kernel).code.__name__ == "Norm"


def test_a_module_of_a_package_is_known_by_all_of_the_package(tmp_path: Path, package: str) -> None:
    inner = tmp_path / "site" / package / "inner.py"
    write(inner, "FACTOR = 10")
    write(tmp_path / "site" / package / "__init__.py", "")
    write(tmp_path / "site" / package / "norms.py", "from .inner import FACTOR\nclass Norm: ...")
    before = planned(f"python:{package}.norms:Norm").digest
    write(inner, "FACTOR = 20")
    assert planned(f"python:{package}.norms:Norm").digest != before


def test_code_that_changed_after_python_imported_it_is_refused(tmp_path: Path, package: str) -> None:
    file = tmp_path / "site" / f"{package}.py"
    write(file, "class Norm:\n    factor = 10")
    assert code(f"python:{package}:Norm").factor == 10
    write(file, "class Norm:\n    factor = 2000")
    with pytest.raises(IntegrityError) as caught:
        code(f"python:{package}:Norm")
    assert caught.value.message == f"python:{package}:Norm: {package} was imported before its code changed"
    assert caught.value.hint == "start a new process; Python does not import a module twice"


def test_code_behind_a_linked_folder_is_in_the_digest(tmp_path: Path) -> None:
    outside = tmp_path / "outside" / "inner.py"
    write(outside, "FACTOR = 10")
    folder = kernel_folder(tmp_path / "norms", "from .sub import inner\nclass Norm: ...")
    (folder / "sub").symlink_to(outside.parent, target_is_directory=True)
    before = planned(f"{folder}:Norm").digest
    write(outside, "FACTOR = 20")
    assert planned(f"{folder}:Norm").digest != before


def test_a_link_that_leads_back_has_an_end(tmp_path: Path) -> None:
    folder = kernel_folder(tmp_path / "norms")
    (folder / "again").symlink_to(folder, target_is_directory=True)
    assert planned(f"{folder}:Norm").digest


@pytest.mark.parametrize("ending", ["import sys; sys.exit(0)", "raise GeneratorExit"])
def test_a_kernel_that_ends_the_program_only_fails_itself(tmp_path: Path, ending: str) -> None:
    folder = kernel_folder(tmp_path / "norms", ending)
    with pytest.raises(SourceError, match=r"cannot be imported: (SystemExit|GeneratorExit)"):
        code(f"{folder}:Norm")


def test_a_file_name_that_is_no_text_is_digested(tmp_path: Path) -> None:
    folder = kernel_folder(tmp_path / "norms")
    (folder / os.fsdecode(b"\xff.py")).write_text("", encoding="utf-8")
    assert planned(f"{folder}:Norm").digest
