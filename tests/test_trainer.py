"""A training with kernels is the training without them: same losses, same checkpoints, and the model as it was."""

from __future__ import annotations

import copy
import logging
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
import torch

import kerncfg
from kerncfg.errors import ConfigError, KerncfgWarning
from kerncfg.trainer import PLAN, KernelsCallback
from tests.snapshot import snapshot
from tests.subjects import qwen3

if TYPE_CHECKING:
    from transformers import Trainer

pytest.importorskip("accelerate", reason="transformers' Trainer needs accelerate")

# Fixed before anything was run: float32, 6 steps, two layers; rounding of fused formulas grows with each step.
close = partial(torch.testing.assert_close, rtol=1e-4, atol=1e-6)

ROWS = (
    "inherited=none",
    "kernels.RMSNorm.cpu=builtin:RMSNorm",
    "kernels.MLP.cpu=builtin:SwiGLUMLP",
    "kernels.MLP.match.class=*MLP",
)


def data(count: int = 24) -> list[dict[str, torch.Tensor]]:
    generator = torch.Generator().manual_seed(0)
    rows = [torch.randint(97, (8,), generator=generator) for _ in range(count)]
    return [{"input_ids": row, "labels": row} for row in rows]


def trainer(folder: Path, *callbacks: Any, steps: int = 6, model: Any = None, **said: Any) -> Trainer:
    from transformers import Trainer, TrainingArguments

    said = {"logging_steps": 1, "save_steps": 3, "eval_strategy": "steps", "eval_steps": 2, **said}
    arguments = TrainingArguments(
        output_dir=str(folder), max_steps=steps, per_device_train_batch_size=4, use_cpu=True, report_to=[],
        disable_tqdm=True, dataloader_pin_memory=False, learning_rate=1e-2, lr_scheduler_type="constant", **said,
    )  # fmt: skip
    made = model if model is not None else qwen3().model
    return Trainer(made, arguments, train_dataset=data(), eval_dataset=data(4), callbacks=list(callbacks))


def losses(made: Trainer, key: str = "loss") -> torch.Tensor:
    return torch.tensor([entry[key] for entry in made.state.log_history if key in entry])


@pytest.fixture(scope="module")
def unpatched(tmp_path_factory: pytest.TempPathFactory) -> Trainer:
    made = trainer(tmp_path_factory.mktemp("unpatched"))
    made.train()
    return made


def test_losses_are_those_of_the_training_without_kernels(tmp_path: Path, unpatched: Trainer) -> None:
    callback = KernelsCallback(*ROWS)
    made = trainer(tmp_path, callback)
    assert callback.bindings is not None and callback.bindings.report.counts["swapped"] > 10
    made.train()
    close(losses(made), losses(unpatched))
    close(losses(made, "eval_loss"), losses(unpatched, "eval_loss"))
    assert len(losses(made)) == 6 and len(losses(made, "eval_loss")) == 3


def test_a_training_resumed_from_a_checkpoint_goes_on_as_it_would_have(tmp_path: Path, unpatched: Trainer) -> None:
    trainer(tmp_path, KernelsCallback(*ROWS), steps=3).train()
    callback = KernelsCallback(*ROWS)
    made = trainer(tmp_path, callback)
    made.train(resume_from_checkpoint=str(tmp_path / "checkpoint-3"))
    close(losses(made), losses(unpatched))


def test_each_checkpoint_holds_the_plan_and_stock_weights(tmp_path: Path, unpatched: Trainer) -> None:
    from transformers import AutoModelForCausalLM

    callback = KernelsCallback(*ROWS)
    trainer(tmp_path, callback).train()
    for step in (3, 6):
        plan = kerncfg.load_plan(tmp_path / f"checkpoint-{step}" / PLAN)
        assert callback.plan is not None and plan.digest == callback.plan.digest
    assert unpatched.model is not None
    state = unpatched.model.state_dict()
    model = AutoModelForCausalLM.from_pretrained(tmp_path / "checkpoint-6")
    torch.testing.assert_close(model.state_dict(), state, rtol=1e-2, atol=1e-3)


def test_the_model_is_as_it_was_when_the_training_ends(tmp_path: Path) -> None:
    callback = KernelsCallback(*ROWS)
    model: Any = trainer(tmp_path, steps=1).model
    before = snapshot(model)
    made = trainer(tmp_path, callback, steps=1, model=model)
    assert snapshot(model)["modules"] != before["modules"]
    callback.on_train_end(made.args, made.state, made.control)
    assert snapshot(model) == before
    made.train()
    assert callback.bindings is None
    assert not any("forward" in vars(module) for module in model.modules())


def test_kernels_follow_the_modes_of_the_training(tmp_path: Path) -> None:
    from transformers import TrainerCallback

    seen: list[tuple[str, str | None]] = []
    callback = KernelsCallback("inherited=none", "kernels.RMSNorm.cpu={inference: builtin:RMSNorm,training: original}")

    class Watch(TrainerCallback):
        def on_step_end(self, *_: Any, **__: Any) -> None:
            note("step")

        def on_prediction_step(self, *_: Any, **__: Any) -> None:
            note("evaluation")

    def note(when: str) -> None:
        assert callback.bindings is not None
        seen.append((when, callback.bindings.report.rows[0].kernel))

    trainer(tmp_path, callback, Watch(), steps=2).train()
    assert dict(seen) == {"step": None, "evaluation": "builtin:RMSNorm"}


def test_the_report_is_logged(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO, logger="kerncfg.trainer"):
        trainer(tmp_path, KernelsCallback(*ROWS), steps=1).train()
    assert "builtin:RMSNorm" in caplog.text and "swapped" in caplog.text


def test_a_plan_made_before_is_applied(tmp_path: Path) -> None:
    plan = kerncfg.plan(*ROWS, "target=cpu")
    callback = KernelsCallback(plan=plan)
    trainer(tmp_path, callback, steps=1)
    assert callback.bindings is not None and callback.bindings.plan is plan
    callback.revert()
    callback.revert()


def test_a_resumed_training_with_another_plan_is_warned_about(tmp_path: Path) -> None:
    trainer(tmp_path, KernelsCallback(*ROWS), steps=3).train()
    other = trainer(tmp_path, KernelsCallback(*ROWS[:2]), steps=4)
    with pytest.warns(KerncfgWarning, match=r"checkpoint-3 was trained with plan \w{12}, this training has \w{12}"):
        other.train(resume_from_checkpoint=str(tmp_path / "checkpoint-3"))


def test_a_checkpoint_without_a_plan_resumes(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    trainer(tmp_path, steps=3).train()
    with caplog.at_level(logging.INFO, logger="kerncfg.trainer"):
        trainer(tmp_path, KernelsCallback(*ROWS), steps=4).train(resume_from_checkpoint=True)
    assert "checkpoint-3 holds no plan" in caplog.text


def test_a_model_made_for_each_training_gets_the_kernels(tmp_path: Path) -> None:
    from transformers import Trainer

    callback = KernelsCallback(*ROWS, keep=True)
    plain: Any = trainer(tmp_path, steps=1)
    made = Trainer(
        model_init=lambda: copy.deepcopy(plain.model), args=plain.args, train_dataset=data(4), eval_dataset=data(4),
        callbacks=[callback],
    )  # fmt: skip
    first = callback.bindings
    made.train()
    assert callback.bindings is not None and callback.bindings is not first
    assert callback.bindings.model is made.model
    assert not any(row.reason == "reverted" for row in callback.bindings.report.rows)
    callback.revert()


def test_a_model_that_moved_since_is_planned_for_anew(tmp_path: Path) -> None:
    callback = KernelsCallback(*ROWS, keep=True)
    made = trainer(tmp_path, callback, steps=1)
    first, callback._device = callback.bindings, "cuda"  # as if it had been there when the trainer was made
    made.train()
    assert callback.bindings is not None and callback.bindings is not first
    assert callback._device == "cpu"


def test_a_callback_added_late_applies_when_the_training_begins(tmp_path: Path) -> None:
    callback = KernelsCallback(*ROWS, keep=True)
    made = trainer(tmp_path, steps=1)
    made.add_callback(callback)
    before = callback.bindings
    made.train()
    assert before is None and callback.bindings is not None and callback.bindings.report.counts["swapped"] > 10


def test_a_compiled_training_runs_kernels_of_the_compile_modes(tmp_path: Path) -> None:
    callback = KernelsCallback(*ROWS)
    trainer(tmp_path, callback, torch_compile=True, torch_compile_backend="eager")
    assert callback.bindings is not None
    assert {row.mode for row in callback.bindings.report.rows} <= {"training_compile", "inference_compile"}
    callback.revert()


def test_a_plan_without_a_folder_to_go_to_is_told(tmp_path: Path) -> None:
    callback = KernelsCallback(*ROWS)
    made = trainer(tmp_path, callback)
    made.state.global_step = 99
    with pytest.warns(KerncfgWarning, match="the plan is not saved: there is no folder"):
        callback.on_save(made.args, made.state, made.control)
    callback.revert()
    assert not list(tmp_path.rglob(PLAN))


def test_liger_beside_the_callback_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="both swap the layers of one model"):
        trainer(tmp_path, KernelsCallback(*ROWS), use_liger_kernel=True)


def test_one_process_of_many_saves_the_plan(tmp_path: Path) -> None:
    callback = KernelsCallback(*ROWS)
    made = trainer(tmp_path, callback)
    (tmp_path / "checkpoint-0").mkdir()
    made.state.is_world_process_zero = False
    callback.on_save(made.args, made.state, made.control)
    assert not (tmp_path / "checkpoint-0" / PLAN).exists()
    made.state.is_world_process_zero = True
    callback.on_save(made.args, made.state, made.control)
    assert (tmp_path / "checkpoint-0" / PLAN).exists()
    callback.revert()
