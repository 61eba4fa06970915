"""Kernels from an importable package or from a folder in the Hub layout.

Pinning reads files and never runs them: a module is found without importing its parents, and what it will run
is known by the SHA-256 of its source files.
"""

from __future__ import annotations

import hashlib
import importlib
import os
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from kerncfg.documents.lock import Build, Pin
from kerncfg.documents.metadata import Metadata
from kerncfg.documents.variant import Variant
from kerncfg.errors import IntegrityError, SourceError
from kerncfg.sources import KernelCode
from kerncfg.sources.importing import PREFIX, import_folder, importing, named
from kerncfg.sources.names import missing

if TYPE_CHECKING:
    from importlib.machinery import ModuleSpec

    from kerncfg.documents.config import KernelRef
    from kerncfg.documents.plan import Kernel
    from kerncfg.sources import Question

__all__ = ["ModuleSource", "PathSource"]

_BUNDLED = "kerncfg.kernels"
_imported: dict[str, str] = {}  # the digest of each module when it was imported here


class ModuleSource:
    """Kernels of an importable module, installed or kerncfg's own, which have no privilege over others."""

    def pin(self, ref: KernelRef, question: Question) -> Pin:
        """Find the module on the search path and take the digest of its source; nothing is imported."""
        spec = _find(_module_name(ref))
        if spec is None or spec.origin is None:
            return Pin(ref=ref, reason=f"no module {_module_name(ref)} on the search path, needed for the kernel")
        if ref.name and (reason := missing(ref.name, Path(spec.origin))):
            return Pin(ref=ref, reason=reason)
        return Pin.of(ref, Build(variant=None, digest=_module_digest(spec)))

    def load(self, kernel: Kernel) -> KernelCode:
        """Import the module and take the named class from its `layers`, or from the module itself."""
        name = _module_name(kernel.reference)
        spec = _find(name)
        if spec is None or spec.origin is None:
            message = f"{kernel.reference}: no module {name} on the search path, needed for the kernel"
            raise SourceError(message, hint="install the package")
        digest = _module_digest(spec)
        _check(kernel, digest)
        if name in sys.modules and _imported.get(name, digest) != digest:
            message = f"{kernel.reference}: {name} was imported before its code changed"
            raise IntegrityError(message, hint="start a new process; Python does not import a module twice")
        with importing(name, kernel.reference):
            module = importlib.import_module(name)
        _imported[name] = digest
        return KernelCode(kernel=kernel, code=named(module, kernel.reference))


class PathSource:
    """Kernels in a folder: `DIR/build/VARIANT`, `DIR/VARIANT`, or a build itself, with an `__init__.py`."""

    def pin(self, ref: KernelRef, question: Question) -> Pin:
        """List the builds below the folder, each with the digest of its files."""
        root = Path(ref.location)
        found = list(_builds(root))
        if not found:
            return Pin(ref=ref, reason=_nothing_in(root))
        lacking = [missing(ref.name, folder / "__init__.py") for _, folder in found] if ref.name else []
        if lacking and all(lacking):
            return Pin(ref=ref, reason=lacking[0])
        return Pin.of(ref, *(_build(variant, folder) for variant, folder in found))

    def load(self, kernel: Kernel) -> KernelCode:
        """Import the build under a name of its own, so that two folders never share a module."""
        root = Path(kernel.reference.location)
        folders = {variant.name if variant else None: folder for variant, folder in _builds(root)}
        folder = folders.get(kernel.variant)
        if folder is None:
            raise SourceError(f"{kernel.reference}: build {kernel.variant or root} is not there any more")
        digest = _digest(folder)
        _check(kernel, digest)
        identity = f"{folder.resolve()} {digest}"
        name = f"{PREFIX}{hashlib.sha256(identity.encode()).hexdigest()[:16]}"
        return KernelCode(kernel=kernel, code=named(import_folder(name, folder, kernel.reference), kernel.reference))


def _module_name(ref: KernelRef) -> str:
    return _BUNDLED if ref.scheme == "builtin" else ref.location


def _find(name: str) -> ModuleSpec | None:
    """Find a module's spec without importing its parents, which `importlib.util.find_spec` would."""
    path = None
    spec = None
    parts = name.split(".")
    for depth in range(1, len(parts) + 1):
        if depth > 1 and path is None:
            return None  # the parent is no package; without a path the finders would look at the top level
        found = (_asked(finder, ".".join(parts[:depth]), path) for finder in sys.meta_path)
        spec = next((spec for spec in found if spec is not None), None)
        if spec is None:
            return None
        path = None if spec.submodule_search_locations is None else list(spec.submodule_search_locations)
    return spec


def _asked(finder: Any, name: str, path: list[str] | None) -> ModuleSpec | None:
    found: ModuleSpec | None
    try:
        found = finder.find_spec(name, path)
    except KeyError:  # a namespace within a namespace looks for its parent, which is not imported
        found = finder.find_spec(name.rpartition(".")[2], path)
    return found


def _module_digest(spec: ModuleSpec) -> str:
    """Take the digest of the folder of the package that a module is, or is in; else of the module's one file."""
    assert spec.origin is not None
    origin = Path(spec.origin)
    in_package = "." in spec.name or spec.submodule_search_locations
    if in_package and (origin.parent / "__init__.py").is_file():
        return _digest(origin.parent)
    return _digest_of([(origin.name, origin)])


def _builds(root: Path) -> Iterator[tuple[Variant | None, Path]]:
    """Yield the builds of a folder, looking where the Hub library looks: in it, below `build`, at itself."""
    for parent in (root, root / "build"):
        if parent.is_dir():
            folders = sorted(folder for folder in parent.iterdir() if folder.is_dir())
            found = [(variant, folder) for folder in folders if (variant := Variant.parse(folder.name))]
            if found:
                yield from found
                return
    if (root / "__init__.py").is_file():
        yield None, root


def _build(variant: Variant | None, folder: Path) -> Build:
    """Describe a build by its files, and by the metadata beside them if there are any."""
    file, metadata, fault = folder / "metadata.json", None, None
    if variant is not None and file.is_file():
        try:
            metadata = Metadata.parse(file.read_bytes())
        except SourceError as error:
            fault = error.message
    return Build(variant=variant, digest=_digest(folder), metadata=metadata, fault=fault)


def _nothing_in(root: Path) -> str:
    if root.is_file():
        return f"{root} is a file; name its folder, {root.parent}"
    if not root.is_dir():
        return f"no folder {root}, needed a kernel in the layout of the Hub"
    places = f"{root}/VARIANT, {root}/build/VARIANT and {root / '__init__.py'}"
    inside = root / "build" if (root / "build").is_dir() else root
    folders = ", ".join(sorted(folder.name for folder in inside.iterdir() if folder.is_dir())[:5])
    found = f"; found {folders}, which name no variant such as torch-universal" if folders else ""
    return f"no build in {root}: looked for {places}{found}"


def _files(folder: Path) -> Iterator[tuple[str, Path]]:
    """Yield what a build runs: every file but bytecode and what is hidden, such as a `.git`."""
    for parent, folders, names in os.walk(folder, followlinks=True):
        folders[:] = [name for name in folders if _runs(name) and not _leads_back(Path(parent, name))]
        for file in (Path(parent, name) for name in names if _runs(name)):
            if file.is_file():
                yield file.relative_to(folder).as_posix(), file


def _runs(name: str) -> bool:
    return not (name == "__pycache__" or name.startswith(".") or name.endswith(".pyc"))


def _leads_back(folder: Path) -> bool:
    """A link to a folder that it lies in has no end."""
    return folder.is_symlink() and folder.parent.resolve().is_relative_to(folder.resolve())


def _digest(folder: Path) -> str:
    return _digest_of(_files(folder))


def _digest_of(files: Iterable[tuple[str, Path]]) -> str:
    total = hashlib.sha256()
    for name, file in sorted(files):
        try:
            with file.open("rb") as opened:
                content = hashlib.file_digest(opened, "sha256").hexdigest()
        except OSError as error:
            raise SourceError(f"{file} cannot be read: {error.strerror}") from error
        total.update(f"{content}  {name}\n".encode("utf-8", "surrogateescape"))
    return total.hexdigest()


def _check(kernel: Kernel, found: str) -> None:
    if kernel.digest is not None and found != kernel.digest:
        raise IntegrityError(
            f"{kernel.reference}: the code has digest {found[:12]}, the plan says {kernel.digest[:12]}",
            hint="the code changed after it was planned; plan again",
        )
