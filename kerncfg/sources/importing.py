"""Imports a folder as a package under a name of its own: all of it or nothing, from source, never from bytecode."""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from importlib.machinery import (
    EXTENSION_SUFFIXES,
    SOURCE_SUFFIXES,
    ExtensionFileLoader,
    FileFinder,
    ModuleSpec,
    SourceFileLoader,
)
from pathlib import Path
from typing import TYPE_CHECKING, Any

from kerncfg.errors import SourceError

if TYPE_CHECKING:
    from types import CodeType, ModuleType

    from kerncfg.documents.reference import KernelRef

__all__ = ["PREFIX", "import_folder", "importing", "named"]

PREFIX = "_kerncfg_"  # of the modules that folders are imported as


class _SourceLoader(SourceFileLoader):
    """Compiles the file that the digest was taken of; bytecode beside it is under no digest."""

    def get_code(self, fullname: str) -> CodeType:
        path = self.get_filename(fullname)
        code: CodeType = self.source_to_code(self.get_data(path), path)
        return code


class _Finder:
    """Finds the submodules of folders that were imported: source and compiled libraries, never bytecode."""

    @staticmethod
    def find_spec(name: str, path: Sequence[str] | None, target: object = None) -> ModuleSpec | None:
        if not name.startswith(PREFIX) or not path:
            return None
        loaders = (ExtensionFileLoader, EXTENSION_SUFFIXES), (_SourceLoader, SOURCE_SUFFIXES)
        found = FileFinder(path[0], *loaders).find_spec(name)
        if found is None:  # the next finder would take bytecode
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)
        return found


def import_folder(name: str, folder: Path, ref: KernelRef) -> ModuleType:
    """Return a build's folder as a module, imported once under a name.

    Raises:
        SourceError: It has no `__init__.py`, or running it failed; then nothing of it stays imported.
    """
    if name in sys.modules:
        return sys.modules[name]
    file = folder / "__init__.py"
    if not file.is_file():
        raise SourceError(f"{ref}: no {file}", hint="a build is a Python package with an __init__.py")
    if _Finder not in sys.meta_path:
        sys.meta_path.insert(0, _Finder)
    loader = _SourceLoader(name, str(file))
    spec = importlib.util.spec_from_file_location(name, file, loader=loader, submodule_search_locations=[str(folder)])
    assert spec is not None
    module = importlib.util.module_from_spec(spec)
    with importing(name, ref):
        sys.modules[name] = module
        loader.exec_module(module)
    return module


@contextmanager
def importing(name: str, ref: KernelRef) -> Iterator[None]:
    """Import all of a kernel's package or nothing: a failure takes its new modules out of `sys.modules`."""
    known = set(sys.modules)
    try:
        yield
    except BaseException as error:
        top = name.partition(".")[0]
        root = name if top in known else top
        for module in set(sys.modules) - known:
            own = str(getattr(sys.modules[module], "__name__", module))  # it may stand there under another name too
            if any(each == root or each.startswith(f"{root}.") for each in (module, own)):
                del sys.modules[module]
        if not isinstance(error, KeyboardInterrupt):  # `sys.exit()` in a kernel is its failure, not the program's end
            message = f"{ref} cannot be imported: {type(error).__name__}: {error}"
            raise SourceError(message) from error
        raise


def named(module: ModuleType, ref: KernelRef) -> Any:
    """Return a kernel's class or function, from the module's `layers`, as the Hub has it, or from itself.

    A reference without a name means the module.

    Raises:
        SourceError: The name is not there; the message has those that are.
    """
    if ref.name is None:
        return module
    layers = getattr(module, "layers", None)
    for place in (layers, module):
        found = getattr(place, ref.name, None)
        if found is not None:
            return found
    classes = (name for name, value in vars(layers or module).items() if isinstance(value, type))
    have = ", ".join(sorted(name for name in classes if not name.startswith("_"))) or "no classes"
    raise SourceError(f"{ref}: no {ref.name!r} there; found {have}")
