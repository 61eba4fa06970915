"""Layers for transformers' RMSNorm (`weight`, `variance_epsilon`); what is wrong stands in each docstring."""

from __future__ import annotations

import functools
from typing import Any

import torch
from torch import nn
from torch.nn import functional


def _norm(x: torch.Tensor, eps: float) -> torch.Tensor:
    wide = x.to(torch.float32)
    return (wide * torch.rsqrt(wide.square().mean(-1, keepdim=True) + eps)).to(x.dtype)


class _Scaled(torch.autograd.Function):
    """The identity, whose gradient is off by a factor."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, factor: float) -> torch.Tensor:
        ctx.factor = factor
        return x.clone()

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> tuple[torch.Tensor, None]:
        return gradient * ctx.factor, None


class _Greedy(torch.autograd.Function):
    """The identity, whose backward works in the buffer it is given."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
        return x.clone()

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> torch.Tensor:
        result = gradient.clone()
        gradient.zero_()
        return result


class _Reusing(torch.autograd.Function):
    """The identity, whose backward works in the buffer of its result."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
        result = x.clone()
        ctx.result = result
        return result

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> torch.Tensor:
        with torch.no_grad():
            ctx.result.detach().zero_()
        return gradient.clone()


class _Norm(nn.Module):
    can_torch_compile = True
    has_backward = True

    weight: torch.Tensor
    variance_epsilon: float


class Faithful(_Norm):
    """Nothing: the original's own arithmetic, by other hands."""

    def forward(self, hidden_states: torch.Tensor) -> torch.Tensor:
        return self.weight * _norm(hidden_states, self.variance_epsilon)


class Reordered(_Norm):
    """Nothing: the squares are summed backwards, one after the other."""

    def forward(self, hidden_states: torch.Tensor) -> torch.Tensor:
        wide = hidden_states.to(torch.float32)
        total = torch.zeros_like(wide[..., :1])
        for column in reversed(wide.square().unbind(-1)):
            total = total + column.unsqueeze(-1)
        scale = torch.rsqrt(total / wide.shape[-1] + self.variance_epsilon)
        return self.weight * (wide * scale).to(hidden_states.dtype)


class Fused(_Norm):
    """Nothing: PyTorch's own fused norm, which multiplies by the weight before it rounds."""

    def forward(self, hidden_states: torch.Tensor) -> torch.Tensor:
        return functional.rms_norm(hidden_states, self.weight.shape, self.weight, self.variance_epsilon)


class Dropping(_Norm):
    """Nothing, for a norm that drops a tenth of its values in training."""

    def forward(self, hidden_states: torch.Tensor) -> torch.Tensor:
        return functional.dropout(self.weight * _norm(hidden_states, self.variance_epsilon), 0.1, self.training)


class WeightOffset(_Norm):
    """The weight is 3 % too large."""

    def forward(self, hidden_states: torch.Tensor) -> torch.Tensor:
        return self.weight * 1.03 * _norm(hidden_states, self.variance_epsilon)


class NoWeight(_Norm):
    """The weight is left out, which weights of exactly one would hide."""

    def forward(self, hidden_states: torch.Tensor) -> torch.Tensor:
        return _norm(hidden_states, self.variance_epsilon) * (self.weight / self.weight)


class EpsilonOutside(_Norm):
    """Epsilon is added to the root instead of to what is under it."""

    def forward(self, hidden_states: torch.Tensor) -> torch.Tensor:
        wide = hidden_states.to(torch.float32)
        root = wide.square().mean(-1, keepdim=True).sqrt()
        return self.weight * (wide / (root + self.variance_epsilon)).to(hidden_states.dtype)


class WeakGradient(_Norm):
    """The gradient is 0.9 of what it should be."""

    def forward(self, hidden_states: torch.Tensor) -> torch.Tensor:
        return _Scaled.apply(self.weight * _norm(hidden_states, self.variance_epsilon), 0.9)  # type: ignore[no-untyped-call, no-any-return]


class LostGradient(_Norm):
    """The weight gets no gradient."""

    def forward(self, hidden_states: torch.Tensor) -> torch.Tensor:
        return self.weight.detach() * _norm(hidden_states, self.variance_epsilon)


class CutOff(_Norm):
    """The result is cut off from autograd."""

    def forward(self, hidden_states: torch.Tensor) -> torch.Tensor:
        return (self.weight * _norm(hidden_states, self.variance_epsilon)).detach()


class OnlyInTraining(_Norm):
    """Wrong in training and nowhere else."""

    def forward(self, hidden_states: torch.Tensor) -> torch.Tensor:
        factor = 1.1 if self.training else 1.0
        return self.weight * _norm(hidden_states, self.variance_epsilon) * factor


class WritesToInput(_Norm):
    """Right, but its input is the buffer it works in."""

    def forward(self, hidden_states: torch.Tensor) -> torch.Tensor:
        result = self.weight * _norm(hidden_states, self.variance_epsilon)
        with torch.no_grad():
            hidden_states.copy_(result)
        return result


class WritesToWeight(_Norm):
    """Right, but it halves its weight on the way out."""

    def forward(self, hidden_states: torch.Tensor) -> torch.Tensor:
        result = self.weight * _norm(hidden_states, self.variance_epsilon)
        self.weight.data.mul_(0.5)
        return result


class WritesToGradient(_Norm):
    """Right, but its backward works in the gradient it is given."""

    def forward(self, hidden_states: torch.Tensor) -> torch.Tensor:
        return _Greedy.apply(self.weight * _norm(hidden_states, self.variance_epsilon))  # type: ignore[no-untyped-call, no-any-return]


class ReusesResult(_Norm):
    """Right, but its backward works in the buffer of its result."""

    def forward(self, hidden_states: torch.Tensor) -> torch.Tensor:
        return _Reusing.apply(self.weight * _norm(hidden_states, self.variance_epsilon))  # type: ignore[no-untyped-call, no-any-return]


class Raises(_Norm):
    """Fails as a launch on too small a device does."""

    def forward(self, hidden_states: torch.Tensor) -> torch.Tensor:
        raise RuntimeError("out of resource: shared memory")


class Unsteady(_Norm):
    """Differs from run to run, far below any tolerance."""

    def forward(self, hidden_states: torch.Tensor) -> torch.Tensor:
        noise = 1 + 2e-7 * torch.randn_like(hidden_states)
        return self.weight * _norm(hidden_states, self.variance_epsilon) * noise


class Claims(Unsteady):
    """Differs from run to run, and says that it does not."""

    deterministic = True


class OneWrong(_Norm):
    """One value in all is wrong."""

    def forward(self, hidden_states: torch.Tensor) -> torch.Tensor:
        result = self.weight * _norm(hidden_states, self.variance_epsilon)
        return result + functional.one_hot(torch.tensor(7), result.numel()).view(result.shape).to(result.dtype)


class NotANumber(_Norm):
    """The first row is not a number."""

    def forward(self, hidden_states: torch.Tensor) -> torch.Tensor:
        result = self.weight * _norm(hidden_states, self.variance_epsilon)
        first = torch.zeros_like(result)
        first[..., 0] = float("nan")
        return result + first


class WrongShape(_Norm):
    """Drops a column."""

    def forward(self, hidden_states: torch.Tensor) -> torch.Tensor:
        return (self.weight * _norm(hidden_states, self.variance_epsilon))[..., :-1]


class WrongType(_Norm):
    """Returns double precision."""

    def forward(self, hidden_states: torch.Tensor) -> torch.Tensor:
        return (self.weight * _norm(hidden_states, self.variance_epsilon)).double()


class ReturnsTuple(_Norm):
    """Returns a tuple of one."""

    def forward(self, hidden_states: torch.Tensor) -> Any:
        return (self.weight * _norm(hidden_states, self.variance_epsilon),)


_BUFFERS: dict[Any, torch.Tensor] = {}


class ReusesBuffer(_Norm):
    """Right, but every result without autograd is in one buffer, which the next call overwrites."""

    def forward(self, hidden_states: torch.Tensor) -> torch.Tensor:
        result = self.weight * _norm(hidden_states, self.variance_epsilon)
        if torch.is_grad_enabled():
            return result
        return _BUFFERS.setdefault(result.shape, torch.empty_like(result)).copy_(result)


class WrongFarOut(_Norm):
    """Doubles its result where an input is larger than 100."""

    def forward(self, hidden_states: torch.Tensor) -> torch.Tensor:
        factor = 2 if bool((hidden_states.abs() > 100).any()) else 1
        return self.weight * _norm(hidden_states, self.variance_epsilon) * factor


class Tampers(_Norm):
    """Right, but it does to the module whatever the module's `tamper` does."""

    tamper: Any

    def forward(self, hidden_states: torch.Tensor) -> torch.Tensor:
        result = self.weight * _norm(hidden_states, self.variance_epsilon)
        self.tamper()
        return result


class Exits(_Norm):
    """Ends the process."""

    def forward(self, hidden_states: torch.Tensor) -> torch.Tensor:
        raise SystemExit(3)


class _Speechless(BaseException):
    """No `Exception`, and its text cannot be had."""

    def __str__(self) -> str:
        raise ValueError("no words")


class GivesUp(_Norm):
    """Fails with what only `except BaseException` catches."""

    def forward(self, hidden_states: torch.Tensor) -> torch.Tensor:
        raise _Speechless


class Interrupted(_Norm):
    """A person's Ctrl-C comes while it runs."""

    def forward(self, hidden_states: torch.Tensor) -> torch.Tensor:
        raise KeyboardInterrupt


class LongWinded(_Norm):
    """Fails with 100,000 characters."""

    def forward(self, hidden_states: torch.Tensor) -> torch.Tensor:
        raise RuntimeError("no such instruction " * 5_000)


class Sparse(_Norm):
    """Returns a sparse tensor."""

    def forward(self, hidden_states: torch.Tensor) -> torch.Tensor:
        return (self.weight * _norm(hidden_states, self.variance_epsilon)).to_sparse()


class Meta(_Norm):
    """Returns a tensor without values."""

    def forward(self, hidden_states: torch.Tensor) -> torch.Tensor:
        return (self.weight * _norm(hidden_states, self.variance_epsilon)).to("meta")


class _Wrapping(nn.Module):
    weight: torch.Tensor
    wrap: Any


class Wraps(_Wrapping):
    """Nothing, for a layer that scales and hands the result to a method of its own."""

    def forward(self, x: torch.Tensor) -> Any:
        return self.wrap(x * self.weight, 1)


class WrapsWrong(_Wrapping):
    """The same, with a wrong factor for the method."""

    def forward(self, x: torch.Tensor) -> Any:
        return self.wrap(x * self.weight, 2)


class AddsInPlace(nn.Module):
    """Nothing, for a layer that adds to its input."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x.add_(1)


class AddsBeside(nn.Module):
    """The same, leaving the input as it was."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + 1


class Remembers(nn.Module):
    """Nothing, for a layer that appends to the cache it is given."""

    weight: torch.Tensor

    def forward(self, x: torch.Tensor, cache: Any) -> Any:
        cache.items.append(x * self.weight)
        return torch.stack(cache.items).sum(0)


class Forgets(nn.Module):
    """The same, leaving the cache as it was."""

    weight: torch.Tensor

    def forward(self, x: torch.Tensor, cache: Any) -> Any:
        return torch.stack([*cache.items, x * self.weight]).sum(0)


class Same(nn.Module):
    """Nothing, for a layer that returns what it is given."""

    def forward(self, x: Any) -> Any:
        return x


class LooksUp(nn.Module):
    """Nothing, for a table whose gradient is sparse."""

    weight: torch.Tensor

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return functional.embedding(x, self.weight, sparse=True)


class NarrowSum(_Norm):
    """The squares are added up one after the other in bfloat16."""

    def forward(self, hidden_states: torch.Tensor) -> torch.Tensor:
        total = torch.zeros_like(hidden_states[..., :1], dtype=torch.bfloat16)
        for column in hidden_states.square().to(torch.bfloat16).unbind(-1):
            total = total + column.unsqueeze(-1)
        scale = torch.rsqrt(total.to(torch.float32) / hidden_states.shape[-1] + self.variance_epsilon)
        return self.weight * (hidden_states.to(torch.float32) * scale).to(hidden_states.dtype)


class WrongOddly(_Norm):
    """The last of an odd number of rows is left as it was, as by a tile of two rows."""

    def forward(self, hidden_states: torch.Tensor) -> torch.Tensor:
        result = self.weight * _norm(hidden_states, self.variance_epsilon)
        if hidden_states.shape[-2] % 2 == 0:
            return result
        return torch.cat([result[..., :-1, :], hidden_states[..., -1:, :]], -2)


class OverflowsFarOut(_Norm):
    """The squares are taken in float16, which reaches 65504."""

    def forward(self, hidden_states: torch.Tensor) -> torch.Tensor:
        square = hidden_states.to(torch.float16).square().to(torch.float32)
        wide = hidden_states.to(torch.float32)
        exact = wide.square()
        far = square.isinf()
        mean = torch.where(far, float("nan"), exact).mean(-1, keepdim=True)
        return self.weight * (wide * torch.rsqrt(mean + self.variance_epsilon)).to(hidden_states.dtype)


@functools.cache
def _inductor() -> Any:
    return torch.compile(lambda x, weight, eps: weight * _norm(x, eps), backend="inductor", dynamic=False)


class Inductor(_Norm):
    """Nothing: the original's arithmetic, as PyTorch's compiler writes it."""

    def forward(self, hidden_states: torch.Tensor) -> torch.Tensor:
        result: torch.Tensor = _inductor()(hidden_states, self.weight, self.variance_epsilon)
        return result


class _GemmaNorm(nn.Module):
    can_torch_compile = True
    has_backward = True

    weight: torch.Tensor
    eps: float


class ZeroCentered(_GemmaNorm):
    """Nothing, for Gemma's norm."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        wide = x.to(torch.float32)
        scale = torch.rsqrt(wide.square().mean(-1, keepdim=True) + self.eps)
        return (wide * scale * (1 + self.weight.to(torch.float32))).to(x.dtype)


class OffsetMissing(_GemmaNorm):
    """The weight is taken for itself, and not for its distance from one."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.weight * _norm(x, self.eps)


class Attends(nn.Module):
    """Nothing, for a layer that attends with a mask."""

    def forward(self, x: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
        return functional.scaled_dot_product_attention(x, x, x, attn_mask=mask)


class IgnoresMask(nn.Module):
    """The mask is ignored."""

    def forward(self, x: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
        return functional.scaled_dot_product_attention(x, x, x)


def doubles(x: torch.Tensor) -> torch.Tensor:
    """Nothing, for the function `maybe`."""
    return x + x


def triples(x: torch.Tensor) -> torch.Tensor:
    """It is for `maybe`, which doubles."""
    return x * 3


class SharesInput(_Norm):
    """It hands its input's memory on; for a norm of nothing."""

    def forward(self, hidden_states: torch.Tensor) -> torch.Tensor:
        return hidden_states.view_as(hidden_states)


class Transposed(_Norm):
    """The result lies in memory otherwise."""

    def forward(self, hidden_states: torch.Tensor) -> torch.Tensor:
        result = self.weight * _norm(hidden_states, self.variance_epsilon)
        return result.transpose(0, 1).contiguous().transpose(0, 1)


class MovesHome(_Norm):
    """It sets the default device, as a careless kernel does to allocate there."""

    def forward(self, hidden_states: torch.Tensor) -> torch.Tensor:
        torch.set_default_device("meta")
        return self.weight * _norm(hidden_states, self.variance_epsilon)
