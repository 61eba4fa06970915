"""How close is close enough, and the numbers to compare."""

from __future__ import annotations

import torch

DTYPES = (torch.float32, torch.bfloat16, torch.float16)

# Forward rounds to the dtype twice, each time by half an eps at most, and what it is compared with may have
# done the same: 2 eps. The float32 inside adds sums of up to 2**16 terms, in a tree: 16 roundings of float32.
TOLERANCE = {dtype: 2 * torch.finfo(dtype).eps + 16 * torch.finfo(torch.float32).eps for dtype in DTYPES}


def assert_close(actual: torch.Tensor, expected: torch.Tensor, *dtypes: torch.dtype) -> None:
    """Compare within the tolerance of the coarsest dtype, of each value and of their root mean square."""
    tolerance = max(TOLERANCE[dtype] for dtype in dtypes or (actual.dtype,))
    actual, expected = actual.detach().double(), expected.detach().double()
    assert actual.shape == expected.shape
    assert torch.isfinite(actual).all()
    scale = expected.square().mean().sqrt() if expected.numel() else 0.0
    excess = (actual - expected).abs() - tolerance * (expected.abs() + scale)
    assert (excess <= 0).all(), f"off by {excess.max().item():.3g} more than the tolerance {tolerance:.3g}"


def randn(*shape: int, dtype: torch.dtype, device: str, seed: int = 0) -> torch.Tensor:
    """Draw on the CPU, so that every device gets the same numbers."""
    generator = torch.Generator().manual_seed(seed + 1000 * len(shape) + sum(shape))
    return torch.randn(*shape, generator=generator).to(device, dtype)
