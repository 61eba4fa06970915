"""What a language model reads and writes in a second: a prompt at once, then one token after the other.

Both sides get the same tokens, those of the prompt over again, and write with the cache that the model itself makes:
what `generate` does, without choosing words, which would be another text on each side.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, nullcontext
from functools import partial
from typing import TYPE_CHECKING, Any, Self

import torch

from kerncfg.evidence.capture import originals
from kerncfg.evidence.rows import Generation, Spoken
from kerncfg.evidence.timing import Contest

if TYPE_CHECKING:
    from torch import nn

    from kerncfg.applier.apply import Bindings

__all__ = ["Speaking"]

_TOKENS = 16  # written in one reading


class Speaking:
    """A language model's two contests: to read the prompt, and to write after it."""

    def __init__(self, bindings: Bindings, ids: torch.Tensor, tokens: int, seconds: float) -> None:
        self._ids, self._tokens = ids, tokens
        model, without = bindings.model, partial(originals, bindings)

        def contest(kind: type[_Reading]) -> Contest:
            original, kernel = (partial(kind, model, ids, tokens, around) for around in (without, nullcontext))
            return Contest(original, kernel, ids.device, seconds)

        self._reading, self._writing = contest(_Reading), contest(_Writing)

    @classmethod
    def of(cls, bindings: Bindings, inputs: Mapping[str, Any], seconds: float) -> Self | None:
        """Return the contests of a model that can generate from the ids it is given, or `None`."""
        ids, model = inputs.get("input_ids"), bindings.model
        config = getattr(model, "config", None)
        able = getattr(model, "can_generate", None)
        if not isinstance(ids, torch.Tensor) or ids.dim() != 2 or not callable(able) or not able():
            return None
        if getattr(config, "is_encoder_decoder", False):
            return None
        longest = getattr(config, "max_position_embeddings", None)
        tokens = min(_TOKENS, longest - ids.shape[1]) if isinstance(longest, int) else _TOKENS
        return cls(bindings, ids, tokens, seconds) if tokens > 0 else None

    @property
    def reason(self) -> str | None:
        """Why nothing was measured, if so."""
        return self._reading.reason or self._writing.reason

    def block(self) -> None:
        """Take one block of each."""
        self._reading.block()
        self._writing.block()

    def generation(self) -> Generation:
        """Return what was measured."""
        batch, length = self._ids.shape
        return Generation(
            batch=batch,
            prompt=length,
            tokens=self._tokens,
            prefill=Spoken.of(self._reading.timing(), batch * length),
            decode=Spoken.of(self._writing.timing(), batch * self._tokens),
        )


class _Reading:
    """The prompt in one forward, which fills a cache."""

    used_up = True  # it makes a cache, and every call makes its own

    def __init__(
        self, model: nn.Module, ids: torch.Tensor, tokens: int, around: Callable[[], AbstractContextManager[Any]]
    ) -> None:
        self._model, self._ids, self._tokens, self.around = model, ids, tokens, around
        self._mask = torch.ones(ids.shape[0], ids.shape[1] + tokens, dtype=torch.long, device=ids.device)
        self._cache: Any = None
        # transformers 5.24 renamed it, and warns of the older name.
        taken = inspect.signature(type(model).forward).parameters
        self._name = "cache" if "cache" in taken else "past_key_values"

    def refresh(self) -> None:
        """Forget the cache."""
        self._cache = None

    def __call__(self) -> None:
        self._forward(self._ids, self._ids.shape[1])

    @torch.no_grad()
    def _forward(self, ids: torch.Tensor, length: int) -> None:
        given = {"attention_mask": self._mask[:, :length], self._name: self._cache, "use_cache": True}
        self._cache = getattr(self._model(input_ids=ids, **given), self._name, None)
        if self._cache is None:
            raise ValueError(f"the model returns no {self._name}")


class _Writing(_Reading):
    """So many tokens, one forward each, after the prompt that `refresh` reads."""

    def refresh(self) -> None:
        """Read the prompt."""
        super().refresh()
        with self.around():
            super().__call__()

    def __call__(self) -> None:
        length = self._ids.shape[1]
        for step in range(self._tokens):
            place = step % length
            self._forward(self._ids[:, place : place + 1], length + step + 1)
