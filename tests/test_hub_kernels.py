"""The kernels of the loopback Hub are right, in the on-Hub layout, and differ in what they are made to differ in."""

from __future__ import annotations

import base64
import hashlib
import importlib.util
import itertools
import json
import subprocess
import sys
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any

import pytest
import torch
from torch.nn import functional
from transformers.models.qwen3.modeling_qwen3 import Qwen3RMSNorm, apply_rotary_pos_emb

from kerncfg.documents.variant import Variant
from tests.hub import kernels
from tests.hub.repos import Build, Repository, backend_of

if TYPE_CHECKING:
    from tests.hub.fixtures import TestHub

numbers = itertools.count()

ALL = (
    kernels.norms,
    kernels.silu,
    kernels.rotary,
    kernels.attention,
    kernels.untrusted,
    kernels.dependent,
    kernels.asks_kernels,
    kernels.fails_half_way,
    kernels.six_builds,
    kernels.native,
)


def written(repository: Repository, revision: str, folder: Path) -> Path:
    """Write what a revision holds, and give the folder of its builds."""
    for path, file in repository.find(revision).files.items():
        (folder / path).parent.mkdir(parents=True, exist_ok=True)
        (folder / path).write_bytes(file.data)
    return folder / "build"


def imported(repository: Repository, revision: str, folder: Path, variant: str = "torch-cpu") -> ModuleType:
    name = f"kernel_of_test_{next(numbers)}"
    place = written(repository, revision, folder) / variant / "__init__.py"
    spec = importlib.util.spec_from_file_location(name, place)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    spec.loader.exec_module(module)
    return module


def said(repository: Repository, revision: str, variant: str) -> dict[str, Any]:
    data = repository.find(revision).files[f"build/{variant}/metadata.json"].data
    found: dict[str, Any] = json.loads(data)
    return found


def test_rms_norm_is_that_of_the_model(tmp_path: Path) -> None:
    layers = imported(kernels.norms(), "v1", tmp_path).layers
    for dtype in (torch.float32, torch.bfloat16):
        norm = Qwen3RMSNorm(64).to(dtype)
        torch.nn.init.normal_(norm.weight)
        x = torch.randn(3, 5, 64, dtype=dtype)
        assert torch.equal(layers.RMSNorm.forward(norm, x), norm(x))


def test_silu_is_that_of_torch(tmp_path: Path) -> None:
    x = torch.randn(100)
    torch.testing.assert_close(imported(kernels.silu(), "v1", tmp_path).layers.SiLU()(x), functional.silu(x))


def test_rotary_is_that_of_the_model(tmp_path: Path) -> None:
    module = imported(kernels.rotary(), "v2", tmp_path)
    q, k, cos, sin = torch.randn(1, 4, 7, 8), torch.randn(1, 2, 7, 8), torch.randn(1, 7, 8), torch.randn(1, 7, 8)
    expected = apply_rotary_pos_emb(q, k, cos, sin)
    for call in (module.apply_rotary_transformers, module.layers.apply_rotary_transformers()):
        for found, right in zip(call(q, k, cos, sin), expected, strict=True):
            assert torch.equal(found, right)


@pytest.mark.parametrize("causal", [False, True])
def test_attention_is_that_of_torch(tmp_path: Path, causal: bool) -> None:
    module = imported(kernels.attention(), "v4", tmp_path)
    q, k, v = torch.randn(2, 6, 4, 8), torch.randn(2, 6, 2, 8), torch.randn(2, 6, 2, 8)
    query, key, value = (x.transpose(1, 2) for x in (q, k, v))
    expected = functional.scaled_dot_product_attention(query, key, value, is_causal=causal, enable_gqa=True)
    expected = expected.transpose(1, 2)
    torch.testing.assert_close(module.flash_attn_func(q, k, v, causal=causal), expected)
    ends = torch.tensor([0, 6, 12], dtype=torch.int32)
    flat = [x.flatten(0, 1) for x in (q, k, v)]
    found = module.flash_attn_varlen_func(*flat, ends, ends, 6, 6, causal=causal)
    torch.testing.assert_close(found, expected.flatten(0, 1))


def test_attention_looks_back_as_far_as_its_window_and_ends_with_the_last_key(tmp_path: Path) -> None:
    module = imported(kernels.attention(), "v4", tmp_path)
    q, k, v = torch.randn(1, 2, 1, 8), torch.randn(1, 5, 1, 8), torch.randn(1, 5, 1, 8)
    found = module.flash_attn_func(q, k, v, causal=True, window_size=(1, 0))
    for place, seen in ((0, slice(2, 4)), (1, slice(3, 5))):
        alone = module.flash_attn_func(q[:, place : place + 1], k[:, seen], v[:, seen])
        torch.testing.assert_close(found[:, place], alone[:, 0])


@pytest.mark.parametrize("revision", kernels.NORMS)
def test_each_revision_of_norms_shows_that_it_ran(tmp_path: Path, revision: str) -> None:
    layers = imported(kernels.norms(), revision, tmp_path).layers
    assert layers.Scale()(torch.ones(1)).item() == kernels.NORMS[revision]


def test_norms_has_version_branches_tags_and_others() -> None:
    branches, tags = kernels.norms().refs()
    assert set(branches) == {"main", "v1", "v2", "v3", "feature/x"}
    assert set(tags) == {"v2.0.0", "v2.1.0", "v2.2.0rc1", "v4.0.0a1"}
    assert len({*branches.values(), *tags.values()}) == 9


def test_a_moved_branch_runs_other_code(tmp_path: Path) -> None:
    norms = kernels.norms()
    before = norms.branches["v2"]
    after = kernels.move(norms, "v2", 24)
    assert norms.branches["v2"] == after != before
    assert imported(norms, after, tmp_path).layers.Scale()(torch.ones(1)).item() == 24


@pytest.mark.parametrize("build", ALL, ids=lambda build: build.__name__)
def test_every_kernel_is_in_the_layout_of_the_hub(build: Any) -> None:
    made = build()
    for branch in set(made.branches) - {"main"}:
        files = made.find(branch).files
        assert {"README.md", ".gitattributes"} <= set(files)
        for variant in {path.split("/")[1] for path in files if path.startswith("build/")}:
            folder = f"build/{variant}/"
            metadata = said(made, branch, variant)
            assert Variant.parse(variant) is not None and f"{folder}__init__.py" in files
            assert metadata["name"] == made.name.partition("/")[2]
            assert metadata["backend"]["type"] == backend_of(variant)
            assert metadata["digest"]["files"] == {
                path.removeprefix(folder): base64.b64encode(hashlib.sha256(file.data).digest()).decode()
                for path, file in files.items()
                if path.startswith(folder) and not path.endswith("metadata.json")
            }


@pytest.mark.parametrize(
    ("variant", "backend"),
    [
        ("torch-npu", "cann"),
        ("torch-cuda", "cuda"),
        ("torch213-xpu20252-x86_64-linux", "xpu"),
        ("torch-stable-abi29-cu126-x86_64-linux", "cuda"),
        ("tvm-ffi01-rocm71-x86_64-linux", "rocm"),
        ("torch213-cann85-aarch64-linux", "cann"),
    ],
)
def test_metadata_names_the_backend_of_its_variant(variant: str, backend: str) -> None:
    assert backend_of(variant) == backend


def test_metadata_may_say_anything() -> None:
    def metadata(**words: Any) -> bytes:
        build = Build(name="a", modules={"__init__.py": ""}, **words)
        content = build.files()["build/torch-cpu/metadata.json"]
        assert not isinstance(content, (str, bytes))
        return content.data

    assert metadata(metadata="{") == b"{"
    found = json.loads(metadata(metadata={"license": None, "python-depends": ["einops"]}, digest=None))
    assert set(found) == {"name", "id", "version", "python-depends", "backend"}
    assert found["python-depends"] == ["einops"]
    assert json.loads(metadata(digest="sha512"))["digest"]["algorithm"] == "sha512"


def test_archs_are_said_of_the_builds_they_are_for() -> None:
    archs = {"torch-stable-abi29-cu126-x86_64-linux": ["8.0", "9.0a"]}
    made = kernels.six_builds(archs=archs)
    assert said(made, "v1", next(iter(archs)))["backend"] == {"type": "cuda", "archs": ["8.0", "9.0a"]}
    assert said(made, "v1", "torch213-metal-aarch64-darwin")["backend"] == {"type": "metal"}


def test_the_folder_for_old_clients_is_the_kernel_again(tmp_path: Path) -> None:
    made = Repository("acme/old-style")
    made.release([Build(name="old-style", modules={"__init__.py": "ONE = 1\n"}, compatibility=True)])
    assert imported(made, "v1", tmp_path, "torch-cpu/old_style").ONE == 1


def test_a_moved_kernel_says_where_to() -> None:
    files = kernels.redirect(revision="v2").find("v1").files
    assert files["kernel-status.toml"].data.decode().splitlines() == [
        'kind = "redirect"',
        'destination = "kernels-community/norms"',
        'revision = "v2"',
    ]


def test_half_of_a_kernel_is_left_by_an_import_that_fails(tmp_path: Path) -> None:
    with pytest.raises(RuntimeError, match="half of a kernel"):
        imported(kernels.fails_half_way(), "v1", tmp_path)
    left = [name for name in sys.modules if name.startswith("kernel_of_test_") and name.endswith(".first")]
    assert len(left) == 1


NATIVE = """
import importlib.util, shutil, sys
from pathlib import Path

def load(name, folder):
    spec = importlib.util.spec_from_file_location(name, Path(folder) / "__init__.py")
    sys.modules[name] = module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module

folder = sys.argv[1]
first = load("first", folder)
print(first.twice(2.5), first.loads(), load("again", folder).loads())
shutil.copytree(folder, folder + "-copy")
print(load("copied", folder + "-copy").loads())
"""


def test_a_native_kernel_counts_how_often_its_library_was_loaded(hub: TestHub, tmp_path: Path) -> None:
    variant = kernels.this_variant()
    folder = written(kernels.native(), "v1", tmp_path) / variant
    command = [sys.executable, "-c", NATIVE, str(folder)]
    done = subprocess.run(command, env=hub.environment(), capture_output=True, text=True, timeout=120)
    assert (done.stdout.split(), done.stderr) == (["5.0", "1", "1", "2"], "")


OUTWARD = """
import socket
try:
    socket.create_connection(("192.0.2.1", 80), timeout=1)
except OSError as error:
    print(error)
try:
    socket.getaddrinfo("huggingface.co", 443)
except OSError as error:
    print(error)
print(len(socket.getaddrinfo("localhost", 80)) > 0)
"""


def test_a_process_that_a_test_starts_reaches_loopback_only(hub: TestHub) -> None:
    command = [sys.executable, "-c", OUTWARD]
    done = subprocess.run(command, env=hub.environment(), capture_output=True, text=True, timeout=60)
    lines = [
        "a test wanted to reach ('192.0.2.1', 80); tests reach loopback only",
        "a test wanted to reach huggingface.co; tests reach loopback only",
    ]
    assert done.stdout.splitlines() == [*lines, "True"]
    assert hub.refused().splitlines() == lines  # so that a client which swallows the error is found out, too
    hub.refusals.unlink()


def test_an_environment_leads_a_process_to_this_hub(hub: TestHub, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    monkeypatch.setenv("HF_TOKEN", "hf_of_the_user")
    hub.add(kernels.norms())
    code = (
        "import huggingface_hub as h; from huggingface_hub import constants as c;"
        "print(h.hf_hub_download('kernels-community/norms', 'README.md', repo_type='kernel', revision='v1'), c.HF_HOME)"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], env=hub.environment(), capture_output=True, text=True, timeout=60
    )
    path, home = done.stdout.split()
    assert Path(path).is_relative_to(hub.cache) and home == str(hub.home)
    assert not any(each.authorized for each in hub.log.everything)
    assert hub.environment(HF_HOME=None, A="b").items() >= {("A", "b")} and "HF_HOME" not in hub.environment(
        HF_HOME=None
    )
