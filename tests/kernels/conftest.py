"""What the tests of kernels share: the devices, and Triton's interpreter.

The interpreter must be asked for before triton is imported, so it gets a process of its own: `test_interpreted` runs
these files again under TRITON_INTERPRET=1, where CPU tensors take the Triton path. On a machine with a GPU the `gpu`
cases of the first process run the compiled kernels.
"""

from __future__ import annotations

from typing import Any

import pytest
import torch

from kerncfg.kernels._path import INTERPRETED

NEEDS_CUDA = pytest.mark.skipif(
    INTERPRETED or not torch.cuda.is_available(), reason="needs a CUDA device (and no interpreter)"
)


@pytest.fixture(params=["cpu", pytest.param("cuda", marks=[pytest.mark.gpu, NEEDS_CUDA])])
def device(request: pytest.FixtureRequest) -> str:
    """Name the device that a test runs on; "cpu" is the Triton path in the interpreter's process."""
    return str(request.param)


def pytest_configure(config: pytest.Config) -> None:
    """Make the interpreter round float32 to bfloat16 as a GPU does; triton 3.9's cuts the bits off."""
    if not INTERPRETED:
        return
    from triton import language as tl
    from triton.runtime import interpreter

    def cast(self: Any, source: Any, target: Any, plain: Any = interpreter.InterpreterBuilder.cast_impl) -> Any:
        if source.dtype.scalar != tl.float32 or target.scalar != tl.bfloat16:
            return plain(self, source, target)
        rounded = torch.tensor(source.data).to(torch.bfloat16).view(torch.uint16).numpy()
        return interpreter.TensorHandle(rounded, target.scalar)

    interpreter.InterpreterBuilder.cast_impl = cast
