"""Which path a bundled kernel takes: its Triton launch, or plain torch.

Triton runs on the devices it compiles for, and on CPU tensors when its interpreter was asked for before the
process started (which is how the device code is tested without a GPU). Everything else is plain torch, so a
model with bundled kernels stays movable. Both facts are read once, since Triton too reads them on import.
"""

import importlib.util
import os
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch

TRITON_DEVICES = ("cuda", "xpu")  # ROCm devices call themselves cuda
TRITON_DTYPES = (torch.float32, torch.bfloat16, torch.float16)
LAUNCH_OPTIONS = {"enable_fp_fusion": True}  # Triton 3.10 changes its default, 3.9 warns where it is not said
INTERPRETED = os.environ.get("TRITON_INTERPRET", "").lower() in ("1", "true", "yes", "on", "y")
HAS_TRITON = importlib.util.find_spec("triton") is not None


def takes_triton(*tensors: torch.Tensor) -> bool:
    """Say whether these tensors go to the Triton kernel.

    Tensors on different devices do not: torch words that error well, a kernel would read stray memory.

    Raises:
        ImportError: if they do and triton is not installed.
    """
    device = tensors[0].device
    if not (device.type in TRITON_DEVICES or (INTERPRETED and device.type == "cpu")):
        return False
    if not all(t.device == device and t.dtype in TRITON_DTYPES and t.numel() > 0 for t in tensors):
        return False
    if not HAS_TRITON:
        raise ImportError(
            f"the bundled kernels run on {device.type} through triton, which is not installed: "
            "install it (pip install triton), or choose `original` for this device"
        )
    return True


def on_device_of(x: torch.Tensor) -> AbstractContextManager[Any]:
    """Make the device of `x` the current one, which is the one that Triton launches on."""
    return nullcontext() if x.device.type == "cpu" else torch.get_device_module(x.device).device(x.device)


def refuse_second_derivative() -> None:
    """Refuse a backward that is itself to be differentiated: a launch records nothing to differentiate.

    Raises:
        NotImplementedError: if backward runs under `create_graph=True`.
    """
    # torch's once_differentiable lets a constant incoming gradient through, and then drops terms in silence
    if torch.is_grad_enabled() and not torch.compiler.is_compiling():
        raise NotImplementedError(
            "the bundled kernels have no second derivative: leave create_graph, or choose `original`"
        )
