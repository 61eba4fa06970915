"""Small kernels of ours in the on-Hub layout, each a repository that differs from the others in one thing.

Publishers: `kernels-community` is trusted by default, `acme` on the user's word, `stranger` never.
"""

from __future__ import annotations

import platform
import shutil
import subprocess
import sys
import sysconfig
from collections.abc import Iterable, Mapping
from functools import cache
from importlib.metadata import version
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from tests.hub.git import File
from tests.hub.repos import Build, Content, Repository, backend_of

TRUSTED = "kernels-community"
ACME = "acme"
STRANGER = "stranger"

_SOURCES = Path(__file__).with_name("sources")

_PACKAGE = "from . import layers\n\n__all__ = ['layers']\n"

# A layer that shows which code ran: it multiplies by a number of its own.
_SCALE = """
import torch
from torch import nn


class {name}(nn.Module):
    can_torch_compile = True

    def forward(self, {argument}: torch.Tensor) -> torch.Tensor:
        return {argument} * {factor}
"""


def source(name: str) -> str:
    """Read one of the sources beside this file."""
    return (_SOURCES / name).read_text("utf-8")


def scale(factor: float, *, name: str = "Scale", argument: str = "input") -> str:
    """A layer that multiplies by `factor`."""
    return _SCALE.format(name=name, factor=factor, argument=argument)


def package(*layers: str, **modules: Content) -> dict[str, Content]:
    """A kernel's files: `layers` are the sources of layers.py; `modules` are other files, `a__b` as `a/b.py`."""
    others = {f"{name.replace('__', '/')}.py": content for name, content in modules.items()}
    lines = "\n\n".join(text.replace("from __future__ import annotations\n", "") for text in layers)
    return {"__init__.py": _PACKAGE, "layers.py": f"from __future__ import annotations\n{lines}", **others}


def norm_layers(factor: float) -> dict[str, Content]:
    """RMSNorm and SiLU as they should be, and a Scale."""
    return package(source("rms_norm.py"), source("silu.py"), scale(factor))


def repository(
    name: str,
    modules: Mapping[str, Content],
    *,
    branch: str = "v1",
    variants: Iterable[str] = ("torch-cpu",),
    metadata: Mapping[str, Any] | None = None,
    **said: Any,
) -> Repository:
    """One version of one kernel, the same files in every variant."""
    made = Repository(name)
    kernel = name.partition("/")[2]
    major = int(branch[1:]) if branch[1:].isdigit() else 1
    builds = [
        Build(name=kernel, modules=modules, variant=each, version=major, metadata=metadata, **said) for each in variants
    ]
    made.release(builds, branch)
    return made


# What multiplies in each revision of `norms`.
NORMS: dict[str, float] = {
    "v1": 1, "v2.0.0": 20, "v2.1.0": 21, "v2.2.0rc1": 22, "v2": 23, "v3": 3, "v4.0.0a1": 40, "feature/x": 99,
}  # fmt: skip


def norms(name: str = f"{TRUSTED}/norms", variants: Iterable[str] = ("torch-cpu",)) -> Repository:
    """RMSNorm, SiLU and a Scale of `NORMS`: branches v1 v2 v3 feature/x; tags v2.0.0 v2.1.0 v2.2.0rc1 v4.0.0a1."""
    made = Repository(name)
    kernel = name.partition("/")[2]
    where = {"v2.0.0": "v2", "v2.1.0": "v2", "v2.2.0rc1": "v2", "v4.0.0a1": "next"}
    for revision, factor in NORMS.items():
        branch = where.get(revision, revision)
        major = int(revision[1]) if revision[1].isdigit() else 0
        builds = [
            Build(name=kernel, modules=norm_layers(factor), variant=each, version=major) for each in variants
        ]  # fmt: skip
        made.release(builds, branch, tag=revision if revision in where else None)
    made.delete("next")
    return made


def move(made: Repository, branch: str, factor: float, variant: str = "torch-cpu") -> str:
    """Move a branch of `norms` to a new commit, whose Scale has another factor, and give the commit."""
    kernel, major = made.name.partition("/")[2], int(branch[1:])
    return made.release([Build(name=kernel, modules=norm_layers(factor), variant=variant, version=major)], branch)


def documented() -> list[Repository]:
    """The repositories that the pages of the docs name, as far as the pages look at them.

    `kernels-community/liger-kernels` is on the Hub under this name; whatever is of `acme` is made up.
    """
    liger = source("rms_norm.py").replace("class RMSNorm", "class LigerRMSNorm")
    devices = ("torch-cuda", "torch-npu", "torch-rocm", "torch-xpu")
    own = Repository(f"{ACME}/norms")
    for major, variants in ((1, ["torch-cpu"]), (2, ["torch-cpu", "torch-cuda"]), (3, ["torch-cuda", "torch-rocm"])):
        modules = norm_layers(major)
        builds = [Build(name="norms", modules=modules, variant=each, version=major) for each in variants]
        own.release(builds, f"v{major}", tag=f"v{major}.1.0")
    return [
        repository(f"{TRUSTED}/liger-kernels", package(liger), branch="v3", variants=devices),
        own,
        redirect(f"{ACME}/old-norms", to=own.name, revision="v2"),
    ]


def silu(name: str = f"{TRUSTED}/activation") -> Repository:
    """SiLU alone."""
    return repository(name, package(source("silu.py")))


def rotary(name: str = f"{TRUSTED}/rotary") -> Repository:
    """A function: `apply_rotary_transformers`, which is also among the layers, as in the Hub's own."""
    return repository(name, {"__init__.py": source("rotary.py")}, branch="v2")


def attention(name: str = f"{TRUSTED}/flash-attn2") -> Repository:
    """`flash_attn_func` and `flash_attn_varlen_func`."""
    return repository(name, {"__init__.py": source("attention.py")}, branch="v4")


def untrusted(name: str = f"{STRANGER}/norms") -> Repository:
    """A kernel that must not be run: its import leaves an entry in the environment of the process."""
    modules = norm_layers(-1)
    modules["__init__.py"] = f"import os\n\nos.environ['HUB_STRANGER_RAN'] = '1'\n{_PACKAGE}"
    return repository(name, modules)


def dependent(
    name: str = f"{TRUSTED}/fused", needs: str = f"{TRUSTED}/norms", pin: Mapping[str, Any] | None = None
) -> Repository:
    """A kernel whose Scale is ten times that of another, which it asks `kernels` for at its import."""
    modules: dict[str, Content] = {
        "__init__.py": f"from kernels import get_kernel_dep\n\nbase = get_kernel_dep({needs!r})\n{_PACKAGE}",
        "layers.py": _DEPENDENT,
    }
    return repository(name, modules, metadata={"kernel-depends": [{"repo-id": needs, **(pin or {"version": 1})}]})


_DEPENDENT = """
import torch
from torch import nn

from . import base


class Scale(nn.Module):
    def forward(self, input: torch.Tensor) -> torch.Tensor:
        return 10 * base.layers.Scale()(input)
"""


def asks_kernels(name: str = f"{TRUSTED}/asking") -> Repository:
    """A kernel without dependencies that imports `get_kernel_dep`, and so needs a module of the name `kernels`."""
    modules = package(scale(4))
    modules["__init__.py"] = f"from kernels import get_kernel_dep\n\nask = get_kernel_dep\n{_PACKAGE}"
    return repository(name, modules)


def redirect(
    name: str = f"{TRUSTED}/old-norms", to: str = f"{TRUSTED}/norms", revision: str | None = None
) -> Repository:
    """A repository that moved: `kernel-status.toml` on main and v1 says where to."""
    made = Repository(name).describe("It moved.")
    said = f'kind = "redirect"\ndestination = "{to}"\n' + (f'revision = "{revision}"\n' if revision else "")
    made.commit({"kernel-status.toml": said})
    made.branch("v1")
    return made


def fails_half_way(name: str = f"{TRUSTED}/half") -> Repository:
    """An import that fails after a submodule was imported."""
    modules = package(scale(5), first="STARTED = True\n")
    modules["__init__.py"] = "from . import first\nfrom . import layers\n\nraise RuntimeError('half of a kernel')\n"
    return repository(name, modules)


# Builds of one kernel for several systems, in the order that the Hub lists them; one for each reason to refuse.
SIX = (
    "torch-cpu",
    "torch-stable-abi29-cu126-x86_64-linux",
    "torch213-cxx11-cu126-x86_64-linux",
    "torch213-cxx11-cu130-x86_64-linux",
    "torch213-cxx11-rocm71-x86_64-linux",
    "torch213-metal-aarch64-darwin",
)


def six_builds(
    name: str = f"{TRUSTED}/six", variants: Iterable[str] = SIX, archs: Mapping[str, Iterable[str]] | None = None
) -> Repository:
    """Builds for several systems, whose Scale multiplies by the build's place; `archs` are chips by variant."""
    made = Repository(name)
    kernel = name.partition("/")[2]
    builds = []
    for place, variant in enumerate(variants, start=1):
        build = Build(name=kernel, modules=package(scale(place)), variant=variant)
        if archs and variant in archs:
            backend = {"type": backend_of(variant), "archs": list(archs[variant])}
            build = Build(name=kernel, modules=build.modules, variant=variant, metadata={"backend": backend})
        builds.append(build)
    made.release(builds)
    return made


def this_variant() -> str:
    """The name of a compiled build for the CPU of this machine and the torch that is installed."""
    major, minor = version("torch").split(".")[:2]
    system = platform.system().lower()
    cpu = {"arm64": "aarch64", "AMD64": "x86_64"}.get(platform.machine(), platform.machine())
    return f"torch{major}{minor}{'-cxx11' if system == 'linux' else ''}-cpu-{cpu}-{system}"


def native(name: str = f"{TRUSTED}/native", *, lfs: bool = True) -> Repository:
    """A compiled kernel: `loads()` says how often its library was loaded in this process, `twice` doubles a number."""
    modules: dict[str, Content] = {
        "__init__.py": "from ._native import loads, twice\nfrom . import layers\n",
        "layers.py": scale(8),
        "_native.abi3.so": File(data=_compiled(), lfs=lfs),
    }
    return repository(name, modules, variants=(this_variant(),))


@cache
def _compiled() -> bytes:
    compiler = shutil.which("gcc") or shutil.which("cc")
    if compiler is None:
        raise RuntimeError("tests compile a small extension: install gcc")
    with TemporaryDirectory() as folder:
        made = Path(folder) / "_native.so"
        flags = ["-shared", "-fPIC", "-O1", *(["-undefined", "dynamic_lookup"] if sys.platform == "darwin" else [])]
        include = f"-I{sysconfig.get_paths()['include']}"
        command = [compiler, *flags, include, str(_SOURCES / "native.c"), "-o", str(made)]
        subprocess.run(command, check=True, capture_output=True, text=True)
        return made.read_bytes()
