"""A callback for transformers' `Trainer`: kernels from the start of a training to its end."""

from __future__ import annotations

import json
import logging
import warnings
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from transformers import TrainerCallback

from kerncfg.api import kernelize
from kerncfg.errors import ConfigError, KerncfgWarning
from kerncfg.machine import device_of

if TYPE_CHECKING:
    from torch import nn
    from transformers import TrainerControl, TrainerState, TrainingArguments

    from kerncfg.applier.apply import Bindings
    from kerncfg.documents.plan import Plan

__all__ = ["PLAN", "KernelsCallback"]

PLAN = "plan.json"  # what the plan is called in a checkpoint's folder

_log = logging.getLogger(__name__)


class KernelsCallback(TrainerCallback):
    """Plans for the trainer's model, applies before it is compiled, and reverts when the training ends.

    Kernels follow `train()` and `eval()`, so evaluations during the training run those for inference. Each checkpoint
    gets the plan as `plan.json`; a training that resumes from one with another plan is warned about.

    Args:
        overrides: What would stand on the command line, as for `kerncfg.plan`.
        plan: A plan made already, instead of all other arguments.
        config_dir: As for `kerncfg.plan`; so are `config` and `trust`.
        keep: Leave the kernels in the model when the training ends; `revert()` takes them out.

    `bindings` is what was applied last, `None` before that; `plan` is its plan.
    """

    def __init__(
        self,
        *overrides: str,
        plan: Plan | None = None,
        config_dir: str | Path | None = None,
        config: Mapping[str, Any] | None = None,
        trust: Sequence[str] = (),
        keep: bool = False,
    ) -> None:
        self.plan = plan
        self.keep = keep
        self.bindings: Bindings | None = None
        self._given = plan is not None
        self._device: str | None = None
        self._kernelize = partial(kernelize, config_dir=config_dir, config=config, trust=trust)
        self._overrides = overrides

    def on_init_end(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **others: Any) -> None:
        """Apply while the trainer is made: its model is on its device, and not compiled yet."""
        if others.get("model") is not None:
            self._apply(others["model"], args)

    def on_train_begin(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **others: Any
    ) -> None:
        """Apply to a model that came, or moved, after the trainer was made, and compare with what is resumed from."""
        model = others["model"]
        if self.bindings is None or self.bindings.model is not model or self._device != _device(model):
            self.revert()
            self._apply(model, args)
        assert self.bindings is not None
        _log.info("kernels of this training\n%s", self.bindings.report)
        if state.global_step:
            self._compare(_checkpoint(args, state))

    def on_save(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **others: Any) -> None:
        """Put the plan beside what the trainer just saved."""
        folder = _checkpoint(args, state)
        if self.plan is None or not state.is_world_process_zero:
            return
        if folder.is_dir():
            self.plan.save(folder / PLAN)
        else:
            warnings.warn(f"the plan is not saved: there is no folder {folder}", KerncfgWarning, stacklevel=2)

    def on_train_end(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **others: Any
    ) -> None:
        """Give the model its own forwards back."""
        if not self.keep:
            self.revert()

    def revert(self) -> None:
        """Take the kernels out of the model; twice is harmless, and needed only after a training that failed."""
        if self.bindings is not None:
            self.bindings.revert()
            self.bindings = None

    def _apply(self, model: nn.Module, args: TrainingArguments) -> None:
        from kerncfg.applier.apply import apply

        if args.use_liger_kernel:
            hint = "take use_liger_kernel out; `kerncfg import` writes its flags as rows"
            raise ConfigError("use_liger_kernel and KernelsCallback both swap the layers of one model", hint=hint)
        compiled = bool(args.torch_compile)
        self._device = _device(model)
        if self.plan is not None and self._given:
            self.bindings = apply(self.plan, model, compile=compiled)
        else:
            self.bindings = self._kernelize(model, *self._overrides, compile=compiled)
            self.plan = self.bindings.plan

    def _compare(self, checkpoint: Path) -> None:
        try:
            digest = json.loads((checkpoint / PLAN).read_text("utf-8"))["digest"]
        except FileNotFoundError:
            _log.info("%s holds no plan", checkpoint)
            return
        assert self.plan is not None
        if digest != self.plan.digest:
            message = f"{checkpoint} was trained with plan {digest[:12]}, this training has {self.plan.digest[:12]}"
            warnings.warn(f"{message}: see kerncfg diff", KerncfgWarning, stacklevel=2)


def _device(model: nn.Module) -> str | None:
    """Return the device of a model's first parameter; sharded trainings move a model after the trainer is made."""
    first = next(model.parameters(), None)
    return None if first is None else device_of(first.device)


def _checkpoint(args: TrainingArguments, state: TrainerState) -> Path:
    """Return the folder that the trainer saves the present step to."""
    return Path(args.output_dir or ".") / f"checkpoint-{state.global_step}"
