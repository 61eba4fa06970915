"""What `kerncfg doctor` looks at: versions, devices, variables, folders. Looked at once, judged elsewhere."""

from __future__ import annotations

import importlib.metadata
import importlib.util
import os
import platform
import re
import shutil
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from kerncfg.errors import KerncfgError
from kerncfg.locations import conf
from kerncfg.machine import detect
from kerncfg.sources.environment import Settings

if TYPE_CHECKING:
    from kerncfg.documents.target import Target

__all__ = ["COMPILERS", "Cache", "Facts", "accelerators", "accepts", "cache", "compiler", "gather"]

PACKAGES = ("kerncfg", "torch", "triton", "transformers", "hydra-core", "omegaconf", "huggingface_hub", "kernels")
COMPILERS = ("gcc", "clang", "cc")
_INTEL = "0x8086"


@dataclass(frozen=True, slots=True, kw_only=True)
class Cache:
    """The folder of downloaded kernels; `size` in bytes is that of its `kernels` repositories alone."""

    path: Path
    exists: bool
    writable: bool
    kernels: int
    size: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Facts:
    """What the probes are asked about.

    `requires` are the requirements that the installed kerncfg declares, `None` if it is not installed; `builds`
    the devices that torch is built for, with the version of each backend; `devices` the accelerators that the
    machine has; `accepts` the versions of `kernels` that the installed transformers takes.
    """

    versions: Mapping[str, str | None]
    requires: tuple[str, ...] | None
    accepts: str | None
    target: Target | None
    failure: str | None
    builds: Mapping[str, str]
    devices: frozenset[str]
    environment: Mapping[str, str]
    compiler: str | None
    system: str
    hub: Settings
    cache: Cache
    presets: int
    faults: tuple[str, ...]
    plugin: bool


def gather(environment: Mapping[str, str] = os.environ, root: Path = Path("/")) -> Facts:
    """Look at this machine; torch is imported, if it can be."""
    target, builds, failure = _torch()
    presets, faults = _packaged()
    return Facts(
        versions={"python": platform.python_version(), **{name: _version(name) for name in PACKAGES}},
        requires=_requires(),
        accepts=accepts(_folder("transformers")),
        target=target,
        failure=failure,
        builds=builds,
        devices=accelerators(root),
        environment=environment,
        compiler=compiler(environment),
        system=platform.system().lower(),
        hub=Settings.read(environment),
        cache=cache(environment),
        presets=presets,
        faults=faults,
        plugin=_folder("hydra_plugins.kerncfg") is not None,
    )


def _torch() -> tuple[Target | None, dict[str, str], str | None]:
    """Return the target that `auto` is, what torch is built for, and why it cannot be imported."""
    try:
        import torch

        versions = {"cuda": torch.version.cuda, "rocm": torch.version.hip, "xpu": getattr(torch.version, "xpu", None)}
        target = detect({"device": "auto"})
    except (ImportError, OSError, RuntimeError, KerncfgError) as error:
        reason = " ".join(str(error).split())
        return None, {}, f"{type(error).__name__}: {reason}"
    return target, {kind: version for kind, version in versions.items() if version}, None


def _packaged() -> tuple[int, tuple[str, ...]]:
    """Return how many packaged presets there are, and the faults of presets and schemas."""
    files = sorted(conf().rglob("*.yaml"))
    try:
        from kerncfg.compiler.checking import check_file
        from kerncfg.compiler.schema import names, schema

        for name in names():
            schema(name)
        return len(files), tuple(str(issue) for file in files for issue in check_file(file))
    except (ImportError, OSError, ValueError) as error:
        return len(files), (f"{type(error).__name__}: {error}",)


def _version(package: str) -> str | None:
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return None


def _requires() -> tuple[str, ...] | None:
    try:
        return tuple(importlib.metadata.requires("kerncfg") or ())
    except importlib.metadata.PackageNotFoundError:
        return None


def _folder(package: str) -> Path | None:
    """Return where a package lies, without importing it."""
    try:
        found = importlib.util.find_spec(package)
    except ModuleNotFoundError:
        return None
    places = list(found.submodule_search_locations or ()) if found else []
    return Path(places[0]) if places else None


def accepts(transformers: Path | None) -> str | None:
    """Return the range of `kernels` that a transformers takes; it stands in its source, and importing takes seconds."""
    file = transformers / "utils" / "import_utils.py" if transformers else None
    if file is None or not file.is_file():
        return None
    text = file.read_text(encoding="utf-8")
    bounds = [re.search(rf'^KERNELS_{end}_VERSION = "([^"]+)"', text, re.M) for end in ("MIN", "MAX")]
    said = [f"{sign}{found[1]}" for sign, found in zip((">=", "<"), bounds, strict=True) if found]
    return ",".join(said) or None


def accelerators(root: Path) -> frozenset[str]:
    """Return the kinds of accelerators that a Linux machine has, whatever torch makes of them."""
    found = set()
    if list(root.glob("dev/nvidia[0-9]*")):
        found.add("cuda")
    if (root / "dev" / "kfd").exists():
        found.add("rocm")
    for node in root.glob("dev/dri/renderD*"):
        vendor = root / "sys" / "class" / "drm" / node.name / "device" / "vendor"
        if vendor.is_file() and vendor.read_text(encoding="utf-8").strip() == _INTEL:
            found.add("xpu")
    return frozenset(found)


def compiler(environment: Mapping[str, str], which: Callable[..., str | None] = shutil.which) -> str | None:
    """Return the C compiler that Triton and Inductor would use: `CC`, else the first on `PATH`."""
    said = environment.get("CC", "").split()
    names = said[:1] or COMPILERS
    return next((found for name in names if (found := which(name, path=environment.get("PATH")))), None)


def cache(environment: Mapping[str, str]) -> Cache:
    """Look at the folder that kernels are downloaded to."""
    path = Settings.read(environment).cache
    repositories = [folder for folder in path.glob("kernels--*") if folder.is_dir()]
    files = (file for folder in repositories for file in folder.rglob("*"))
    return Cache(
        path=path,
        exists=path.is_dir(),
        writable=os.access(next(place for place in (path, *path.absolute().parents) if place.exists()), os.W_OK),
        kernels=len(repositories),
        size=sum(file.lstat().st_size for file in files if file.is_file() and not file.is_symlink()),
    )
