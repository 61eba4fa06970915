"""What kernels import from the `kernels` package, with it and without."""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import pytest

from kerncfg.sources.standin import offering

BASE = ModuleType("base")


@pytest.fixture(autouse=True)
def nothing_stays(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.delitem(sys.modules, "kernels", raising=False)
    yield
    sys.modules.pop("kernels", None)


@pytest.fixture
def package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A package of that name, as the library is one."""
    (tmp_path / "kernels").mkdir()
    (tmp_path / "kernels" / "__init__.py").write_text("def get_kernel_dep(name):\n    return 'the own answer'\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    return tmp_path


def ask(name: str) -> object:
    from kernels import get_kernel_dep  # type: ignore[import-not-found, unused-ignore]

    return get_kernel_dep(name)


def test_without_the_package_a_module_stands_in_and_is_gone_afterwards() -> None:
    assert importlib.util.find_spec("kernels") is None
    with offering({"org/base": BASE}):
        assert ask("org/base") is BASE
        with pytest.raises(RuntimeError, match=r"org/other is no dependency of .*; it declares org/base"):
            ask("org/other")
    assert "kernels" not in sys.modules


def test_a_kernel_without_dependencies_may_import_it_too() -> None:
    with offering({}), pytest.raises(RuntimeError, match="it declares none"):
        ask("org/base")
    assert "kernels" not in sys.modules


def test_it_is_gone_after_a_failure_too() -> None:
    with pytest.raises(ZeroDivisionError), offering({"org/base": BASE}):
        _ = 1 / 0
    assert "kernels" not in sys.modules


def test_the_package_answers_for_us_and_for_itself_afterwards(package: Path) -> None:
    with offering({"org/base": BASE}):
        assert ask("org/base") is BASE
    assert ask("org/base") == "the own answer"
    with offering({}):
        assert ask("org/base") == "the own answer"


def test_a_mere_folder_of_that_name_is_no_package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "kernels").mkdir()
    monkeypatch.syspath_prepend(str(tmp_path))
    for modules in ({}, {"org/base": BASE}):
        with offering(modules), pytest.raises(RuntimeError, match="org/none is no dependency"):
            ask("org/none")
        assert "kernels" not in sys.modules


def test_a_module_of_that_name_that_somebody_imported_stays_as_it_was() -> None:
    own = sys.modules["kernels"] = ModuleType("kernels")
    with offering({"org/base": BASE}):
        assert ask("org/base") is BASE
    assert sys.modules["kernels"] is own and not hasattr(own, "get_kernel_dep")
