"""What holds for every bundled kernel: the Hub's contract, its imports, and that a GPU compiler takes it."""

from __future__ import annotations

import ast
import dis
import inspect
import itertools
import os
import subprocess
import sys
from pathlib import Path
from typing import TypeAlias

import pytest
import torch
from torch import nn

import kerncfg.kernels
from kerncfg.kernels import _path, layers

Layer: TypeAlias = (
    type[layers.ForCausalLMLoss]
    | type[layers.GeGLUMLP]
    | type[layers.GemmaRMSNorm]
    | type[layers.LayerNorm]
    | type[layers.RMSNorm]
    | type[layers.RMSNormMLP]
    | type[layers.RotaryPosEmb]
    | type[layers.SwiGLUMLP]
)

CLASSES: list[Layer] = [getattr(layers, name) for name in layers.__all__]
FOLDER = Path(kerncfg.kernels.__file__).parent


@pytest.mark.parametrize("layer", CLASSES)
def test_a_layer_is_a_forward_and_three_flags(layer: Layer) -> None:
    assert issubclass(layer, nn.Module)
    assert inspect.getattr_static(layer, "__init__") is nn.Module.__init__
    own = {name for name, _ in inspect.getmembers(layer)} - {name for name, _ in inspect.getmembers(nn.Module)}
    assert own == {"can_torch_compile", "deterministic", "has_backward"}
    assert layer.can_torch_compile is layer.deterministic is layer.has_backward is True


@pytest.mark.parametrize(
    ("layer", "attributes"),
    [
        (layers.ForCausalLMLoss, set()),
        (layers.GeGLUMLP, {"gate_proj", "up_proj", "down_proj", "act_fn"}),
        (layers.GemmaRMSNorm, {"weight", "eps"}),
        (layers.LayerNorm, {"normalized_shape", "weight", "bias", "eps"}),
        (layers.RMSNorm, {"weight", "variance_epsilon"}),
        (layers.RotaryPosEmb, set()),
        (layers.RMSNormMLP, {"weight", "variance_epsilon", "gate_up_weight", "gate_up_bias", "down_proj"}),
        (layers.SwiGLUMLP, {"gate_proj", "up_proj", "down_proj"}),
    ],
)
def test_what_a_forward_reads_shows_in_its_bytecode(layer: Layer, attributes: set[str]) -> None:
    steps = list(dis.get_instructions(layer.forward))
    after_self = [b.argval for a, b in itertools.pairwise(steps) if a.argval == "self"]
    assert set(after_self) == attributes


def test_bundled_kernels_have_no_privilege() -> None:
    allowed = ("torch", "triton", "kerncfg.kernels")
    for file in FOLDER.glob("*.py"):
        for node in ast.walk(ast.parse(file.read_text())):
            names = [node.module or ""] if isinstance(node, ast.ImportFrom) else []
            names += [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
            for name in names:
                root = name.partition(".")[0]
                assert root in sys.stdlib_module_names or name.startswith(allowed), f"{file.name}: {name}"


def test_works_without_triton_and_does_not_load_it_on_a_cpu() -> None:
    program = (
        "import sys; sys.modules['triton'] = None\n"  # an import of it then fails
        "import torch, kerncfg.kernels as k\n"
        "norm = torch.nn.RMSNorm(8); norm.variance_epsilon = 1e-6\n"
        "k.layers.RMSNorm.forward(norm, torch.ones(2, 8)).sum().backward()\n"
    )
    environment = {name: value for name, value in os.environ.items() if name != "TRITON_INTERPRET"}
    subprocess.run([sys.executable, "-c", program], check=True, env=environment)


def test_says_what_is_missing_where_triton_is_needed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_path, "INTERPRETED", True)
    monkeypatch.setattr(_path, "HAS_TRITON", False)
    with pytest.raises(ImportError, match="through triton, which is not installed"):
        _path.takes_triton(torch.ones(2))


def test_tensors_on_two_devices_get_the_error_of_torch(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_path, "INTERPRETED", True)
    assert not _path.takes_triton(torch.ones(2), torch.ones(2, device="meta"))


COMPILE = """
import sys
import triton
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource
from kerncfg.kernels import triton_cross_entropy, triton_geglu, triton_halves, triton_layer_norm
from kerncfg.kernels import triton_rms_norm, triton_rotary, triton_swiglu

FLOATS = ("rstd_ptr", "partial_ptr", "mean_ptr", "loss_ptr", "peak_ptr", "log_ptr", "dw_ptr", "db_ptr")
KNOWN = dict.fromkeys(FLOATS, "*fp32") | {"eps": "fp32", "label_ptr": "*i64", "ignored": "i64"}


def variants(kernel):
    "What a kernel is specialised on: its switches, and whether a LayerNorm has a weight and a bias."
    sizes = {a: s for a, s in {"height": 2, "width": 1024, "back": True}.items() if a in kernel.arg_names}
    switches = [a for a in ("zero_centered", "tanh") if a in kernel.arg_names]
    yield from (sizes | {a: value for a in switches} for value in ((False, True) if switches else (False,)))
    if "b_ptr" in kernel.arg_names or "db_ptr" in kernel.arg_names:
        absent = {a: None for a in ("w_ptr", "b_ptr", "dw_ptr", "db_ptr") if a in kernel.arg_names}
        yield sizes | absent


for target in (GPUTarget("cuda", 90, 32), GPUTarget("hip", "gfx942", 64)):
    norms = (triton_layer_norm, triton_rms_norm)
    for module in (triton_cross_entropy, triton_geglu, triton_halves, *norms, triton_rotary, triton_swiglu):
        for name, kernel in vars(module).items():
            if not (name.startswith("_") and "_kernel" in name):
                continue
            for constants in variants(kernel):
                types = {a: "*bf16" if a.endswith("_ptr") else "i32" for a in kernel.arg_names}
                if module is triton_cross_entropy:
                    types |= {"g_ptr": "*fp32"} if "g_ptr" in types else {}
                types |= {a: t for a, t in KNOWN.items() if a in types} | dict.fromkeys(constants, "constexpr")
                source = ASTSource(kernel, types, constants)
                triton.compile(source, target=target, options={"num_warps": 4, "enable_fp_fusion": True})
                sys.stdout.write(f"{target.arch} {name} {constants}\\n")
"""


@pytest.mark.slow
def test_the_compiler_takes_every_kernel_for_nvidia_and_amd(tmp_path: Path) -> None:
    # the interpreter runs Python that the compiler refuses; compiling needs no GPU
    environment = {name: value for name, value in os.environ.items() if name != "TRITON_INTERPRET"}
    environment["TRITON_CACHE_DIR"] = str(tmp_path)
    done = subprocess.run([sys.executable, "-c", COMPILE], env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert len(done.stdout.splitlines()) == 2 * (2 + 2 * 2 + 3 * 2 + 3 * 2 + 1 + 2 + 2)
