"""The fused norm and MLP against their formula, float64, and the modules they replace; under both paths."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
import torch
from torch.nn import functional
from transformers.models.llama import configuration_llama
from transformers.models.llama import modeling_llama as llama

from kerncfg.kernels._path import INTERPRETED
from kerncfg.kernels.layers import RMSNormMLP
from kerncfg.kernels.rms_norm_mlp import RMSNormMLPLayout, rms_norm_mlp_reference, silu_and_mul_halves
from tests.kernels.closeness import DTYPES, assert_close, randn

if TYPE_CHECKING:
    from collections.abc import Callable


FORWARD: Callable[..., torch.Tensor] = RMSNormMLP.forward  # its self may be any module with these attributes

# less than a block, odd, a block and one more in several rows, several blocks
SHAPES = [(2,), (5, 7, 66), (25, 82), (3, 2, 2048)]

# A product of K terms of size 1 adds up to K/2 roundings of its dtype at worst, and about their root in a random
# walk. Through two products of 32 and 96 terms, a norm and a gate: 16 eps of the values' root mean square, on both
# sides. Fixed before it was measured.
ROUNDINGS = 16


def layout(device: str, dtype: torch.dtype, bias: bool = False) -> tuple[Any, Any, Any]:
    """The layout of a small norm and MLP of Llama, its stacked weight filled as kerncfg would."""
    config = configuration_llama.LlamaConfig(
        hidden_size=32, intermediate_size=96, num_attention_heads=2, mlp_bias=bias, rms_norm_eps=1e-5
    )
    make: Any = llama
    norm, mlp = make.LlamaRMSNorm(32, 1e-5).to(device, dtype), make.LlamaMLP(config).to(device, dtype)
    for seed, parameter in enumerate((*norm.parameters(), *mlp.parameters())):
        parameter.data.copy_(0.3 * randn(*parameter.shape, dtype=dtype, device=device, seed=seed))
    found = RMSNormMLPLayout(norm, mlp)
    for name in ("weight", "bias")[: 1 + bias]:
        parts = [getattr(part, name) for part in (mlp.gate_proj, mlp.up_proj)]
        setattr(found, f"gate_up_{name}", torch.nn.Parameter(torch.cat([part.data for part in parts])))
    return found, norm, mlp


def close(actual: torch.Tensor, expected: torch.Tensor, dtype: torch.dtype) -> None:
    actual, expected = actual.detach().double(), expected.detach().double()
    assert actual.shape == expected.shape
    assert torch.isfinite(actual).all()
    room = ROUNDINGS * torch.finfo(dtype).eps * (expected.abs() + expected.square().mean().sqrt())
    excess = ((actual - expected).abs() - room).max().item()
    assert excess <= 0, f"off by {excess:.3g} more than the tolerance"


def run(function: Callable[..., torch.Tensor], stacked: torch.Tensor, grad: torch.Tensor) -> tuple[torch.Tensor, ...]:
    leaf = stacked.detach().requires_grad_()
    result = function(leaf)
    return result, *torch.autograd.grad(result, leaf, grad.to(result.dtype))


def gradients(
    function: Callable[..., torch.Tensor], x: torch.Tensor, grad: torch.Tensor, parameters: list[torch.Tensor]
) -> list[torch.Tensor]:
    leaf = x.clone().requires_grad_()
    result = function(leaf)
    return [result, *torch.autograd.grad(result, (leaf, *parameters), grad)]


def exact(stacked: torch.Tensor) -> torch.Tensor:
    gate, up = stacked.double().chunk(2, -1)
    return gate * torch.sigmoid(gate) * up


def eager(stacked: torch.Tensor) -> torch.Tensor:
    gate, up = stacked.chunk(2, -1)
    return functional.silu(gate) * up


def case(shape: tuple[int, ...], device: str, dtype: torch.dtype) -> tuple[torch.Tensor, torch.Tensor]:
    half = (*shape[:-1], shape[-1] // 2)
    return 3 * randn(*shape, dtype=dtype, device=device), 3 * randn(*half, dtype=dtype, device=device, seed=1)


@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_the_halves_agree_with_eager_and_float64(device: str, dtype: torch.dtype, shape: tuple[int, ...]) -> None:
    stacked, grad = case(shape, device, dtype)
    result = run(silu_and_mul_halves, stacked, grad)
    for actual, expected in zip(result, run(eager, stacked, grad), strict=True):
        assert actual.dtype == expected.dtype == dtype
        assert_close(actual, expected)
    for actual, expected in zip(result, run(exact, stacked.double(), grad), strict=True):
        assert_close(actual, expected)


@pytest.mark.parametrize("bias", [False, True], ids=["plain", "bias"])
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_agrees_with_the_modules_of_transformers(device: str, dtype: torch.dtype, bias: bool) -> None:
    found, norm, mlp = layout(device, dtype, bias)
    x, grad = (randn(2, 9, 32, dtype=dtype, device=device, seed=seed) for seed in (11, 12))
    names = ("weight", "bias")[: 1 + bias]
    kept = [norm.weight, *mlp.down_proj.parameters()]
    parts = [getattr(part, name) for name in names for part in (mlp.gate_proj, mlp.up_proj)]
    mine = gradients(
        lambda x: FORWARD(found, x), x, grad, [*kept, *(getattr(found, f"gate_up_{name}") for name in names)]
    )
    theirs = gradients(lambda x: mlp(norm(x)), x, grad, [*kept, *parts])
    whole = len(kept) + 2
    stacked = [torch.cat(theirs[place : place + 2]) for place in range(whole, len(theirs), 2)]
    for actual, expected in zip(mine, [*theirs[:whole], *stacked], strict=True):
        assert actual.dtype == expected.dtype == dtype
        close(actual, expected, dtype)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_agrees_with_the_reference_and_with_float64(device: str, dtype: torch.dtype) -> None:
    found, norm, mlp = layout(device, dtype)
    x = randn(2, 9, 32, dtype=dtype, device=device, seed=11)
    weights = norm.weight, 1e-5, mlp.gate_proj.weight, mlp.up_proj.weight, mlp.down_proj.weight
    result = FORWARD(found, x)
    close(result, rms_norm_mlp_reference(x, *weights), dtype)
    wide: list[Any] = [weight.double() if isinstance(weight, torch.Tensor) else weight for weight in weights]
    normal = x.double() * torch.rsqrt(x.double().square().mean(-1, keepdim=True) + 1e-5) * wide[0]
    close(result, exact(normal @ torch.cat([wide[2], wide[3]]).T) @ wide[4].T, dtype)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_leaves_its_arguments_alone_and_repeats_itself(device: str, dtype: torch.dtype) -> None:
    found, _, _ = layout(device, dtype)
    stacked, grad = case((25, 82), device, dtype)
    x = randn(2, 9, 32, dtype=dtype, device=device, seed=11)
    before = [t.clone() for t in (stacked, grad, x, *found.parameters())]
    first, again = (run(silu_and_mul_halves, stacked, grad) for _ in range(2))
    with torch.no_grad():
        inference, whole = silu_and_mul_halves(stacked), [FORWARD(found, x) for _ in range(2)]
    assert all(torch.equal(a, b) for a, b in zip((stacked, grad, x, *found.parameters()), before, strict=True))
    assert all(torch.equal(a, b) for a, b in zip(first, again, strict=True))
    assert torch.equal(first[0], inference)
    assert torch.equal(*whole)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_tolerances_catch_planted_faults(device: str, dtype: torch.dtype) -> None:
    found, norm, mlp = layout(device, dtype)
    x = randn(2, 9, 32, dtype=dtype, device=device, seed=11)
    expected = mlp(norm(x))
    close(FORWARD(found, x), expected, dtype)
    found.gate_up_weight.data.copy_(torch.cat([mlp.up_proj.weight, mlp.gate_proj.weight]).data)
    with pytest.raises(AssertionError, match="more than the tolerance"):
        close(FORWARD(found, x), expected, dtype)
    stacked, grad = case((16, 64), device, dtype)
    for actual, other in zip(run(silu_and_mul_halves, stacked, grad), run(exact, stacked.double(), grad), strict=True):
        with pytest.raises(AssertionError, match="more than the tolerance"):
            assert_close(actual * 0.9, other)


def test_takes_views_and_other_dtypes_and_nothing(device: str) -> None:
    stacked, grad = case((6, 8, 66), device, torch.float32)
    views: list[Callable[[torch.Tensor], torch.Tensor]] = [
        lambda x: x.transpose(0, 1),
        lambda x: x[:1].expand(4, -1, -1),
        lambda x: x[::2],
    ]
    for view in views:
        for actual, expected in zip(
            run(silu_and_mul_halves, view(stacked), view(grad)),
            run(exact, view(stacked).double(), view(grad)),
            strict=True,
        ):
            assert_close(actual, expected, torch.float32)
    wide = stacked.double()
    assert torch.equal(silu_and_mul_halves(wide), eager(wide))
    assert silu_and_mul_halves(stacked[:0]).shape == (0, 8, 33)


def test_the_layout_holds_the_model_s_own_and_says_what_is_stacked() -> None:
    found, norm, mlp = layout("cpu", torch.float32, bias=True)
    assert found.weight is norm.weight
    assert found.down_proj is mlp.down_proj
    assert found.conversion == {
        "gate_up_weight": ["mlp.gate_proj.weight", "mlp.up_proj.weight"],
        "gate_up_bias": ["mlp.gate_proj.bias", "mlp.up_proj.bias"],
    }
    assert RMSNormMLPLayout(norm, mlp).gate_up_weight.is_meta
    mlp.gate_proj.bias = None
    with pytest.raises(ValueError, match="one of gate_proj and up_proj has a bias"):
        RMSNormMLPLayout(norm, mlp)
    mlp.up_proj.bias = None
    mlp.act_fn = torch.nn.GELU()
    with pytest.raises(ValueError, match="activation is not SiLU"):
        RMSNormMLPLayout(norm, mlp)


@pytest.mark.filterwarnings("ignore:.*should not be instantiated")  # torch, of its own tracing
def test_compiles_in_one_graph(device: str) -> None:
    stacked, grad = case((3, 40), device, torch.bfloat16)
    compiled = torch.compile(silu_and_mul_halves, backend="aot_eager", fullgraph=True)
    for actual, expected in zip(run(compiled, stacked, grad), run(silu_and_mul_halves, stacked, grad), strict=True):
        assert_close(actual, expected)


if INTERPRETED:

    def test_a_second_derivative_is_refused() -> None:
        stacked, _ = case((4, 66), "cpu", torch.float32)
        with pytest.raises(NotImplementedError, match="no second derivative"):
            torch.autograd.grad(silu_and_mul_halves(stacked.requires_grad_()).sum(), stacked, create_graph=True)

    def test_operators_keep_their_promises() -> None:
        from kerncfg.kernels.triton_halves import backward_op, forward_op

        stacked, grad = case((5, 66), "cpu", torch.bfloat16)
        checks = ("test_schema", "test_faketensor", "test_aot_dispatch_dynamic")
        torch.library.opcheck(forward_op, (stacked,), test_utils=checks)
        torch.library.opcheck(backward_op, (grad, stacked), test_utils=checks)
