from __future__ import annotations

import copy
import random
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy
import pytest
import torch
from torch import nn

import kerncfg
from kerncfg.applier import deterministic
from kerncfg.cli import main
from kerncfg.compiler.compose import compose
from kerncfg.documents.plan import Plan
from kerncfg.errors import ConflictError
from kerncfg.evidence.wording import UNSTEADY
from kerncfg.kernels import layers
from tests.subjects import FAULTS, applied, stack

if TYPE_CHECKING:
    from kerncfg.applier.apply import Bindings

FIXED = "policy=deterministic"
NORMS = "kernels.Mine={match: {class: Norm}, cpu: %s}"
KERNELS = [getattr(layers, name) for name in layers.__all__]


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KERNCFG_CACHE", str(tmp_path / "cache"))


@pytest.fixture(autouse=True)
def process_left_alone() -> Iterator[None]:
    """No test leaves anything of the process set, and the random state is put back exactly."""
    torch.manual_seed(11)
    random.seed(11)
    before = everything()
    yield
    assert same(before, everything())
    assert deterministic._holds == []


def everything() -> tuple[Any, ...]:
    cudnn = torch.backends.cudnn
    state: Any = numpy.random.get_state()
    flags = (torch.get_deterministic_debug_mode(), cudnn.deterministic, cudnn.benchmark)
    return (*flags, random.getstate(), torch.get_rng_state(), state[0], torch.from_numpy(state[1].astype("int64")))


def same(one: tuple[Any, ...], other: tuple[Any, ...]) -> bool:
    pairs = zip(one, other, strict=True)
    return all(torch.equal(a, b) if isinstance(a, torch.Tensor) else a == b for a, b in pairs)


def fixed(model: nn.Module, kernel: str, *more: str) -> Bindings:
    return applied(model, "inherited=none", FIXED, NORMS % kernel, *more)


def test_the_switches_and_seeds_are_set_while_applied() -> None:
    model, _ = stack()
    with fixed(model, "builtin:RMSNorm", "policy.seed=5") as bindings:
        assert torch.get_deterministic_debug_mode() == 2
        assert (torch.backends.cudnn.deterministic, torch.backends.cudnn.benchmark) == (True, False)
        drawn = (torch.rand(3), random.random(), numpy.random.rand())
        assert {row.status for row in bindings.report.rows} == {"swapped"}
        notes = bindings.report.notes
    assert any("deterministic algorithms are on until this is reverted" in note for note in notes)
    assert any("was set to 5" in note for note in notes)
    torch.manual_seed(5)
    random.seed(5)
    numpy_state = numpy.random.get_state()
    numpy.random.seed(5)
    assert (torch.equal(torch.rand(3), drawn[0]), random.random(), numpy.random.rand()) == (True, *drawn[1:])
    numpy.random.set_state(numpy_state)
    torch.manual_seed(11)
    random.seed(11)


def test_without_the_policy_nothing_is_set() -> None:
    model, _ = stack()
    before = everything()
    with applied(model, "inherited=none", NORMS % "builtin:RMSNorm") as bindings:
        assert same(before, everything())
        assert bindings.report.notes == ()


def test_a_seed_alone_sets_no_switches() -> None:
    model, _ = stack()
    with applied(model, "inherited=none", NORMS % "builtin:RMSNorm", "policy.seed=3") as bindings:
        assert torch.initial_seed() == 3
        assert not torch.are_deterministic_algorithms_enabled()
        assert [note[:11] for note in bindings.report.notes] == ["policy.seed"]


def test_a_kernel_that_declares_nothing_is_left_out_with_both_sides() -> None:
    model, _ = stack()
    with pytest.warns(kerncfg.KerncfgWarning, match="no module runs one"):
        bindings = fixed(model, f"{FAULTS}:Faithful")
    with bindings:
        (reason,) = {row.reason for row in bindings.report.rows}
    wanted = "takes kernels that declare deterministic = True or were shown repeatable here"
    assert f"policy.deterministic {wanted}, this one declares nothing and no verdict of it is kept" in reason


def test_a_kernel_that_declares_the_contrary_is_left_out_whatever_was_shown(tmp_path: Path) -> None:
    (tmp_path / "__init__.py").write_text("from . import layers\n")
    text = "from torch import nn\n\n\nclass Ten(nn.Module):\n    deterministic = False\n\n"
    text += "    def forward(self, hidden_states):\n        return hidden_states * 10\n"
    (tmp_path / "layers.py").write_text(text)
    model, _ = stack()
    with pytest.warns(kerncfg.KerncfgWarning, match="this one declares deterministic = False"):
        bindings = fixed(model, f"{tmp_path}:Ten")
    bindings.revert()


@pytest.mark.parametrize(("name", "status"), [("Faithful", "swapped"), ("Unsteady", "kept")])
@pytest.mark.filterwarnings("ignore:the plan names kernels, and no module runs one")
def test_what_verification_has_shown_counts(name: str, status: str) -> None:
    model, inputs = stack()
    kernel = f"{FAULTS}:{name}"
    kerncfg.kernelize(model, "inherited=none", NORMS % kernel, verify=True, inputs=inputs).revert()
    with fixed(model, kernel) as bindings:
        assert {row.status for row in bindings.report.rows} == {status}
        if status == "kept":
            assert "gave other bits when it was run again" in bindings.report.rows[0].reason


@pytest.mark.filterwarnings("ignore:the plan names kernels, and no module runs one")
def test_a_kernel_that_claims_what_verification_does_not_find_fails_its_row() -> None:
    model, inputs = stack()
    said = f"in inference, {UNSTEADY[0]}, and policy.deterministic is on"
    with fixed(model, f"{FAULTS}:Claims") as bindings:
        found = kerncfg.verify(bindings, inputs)
        assert {(row.passed, row.reason) for row in found.rows} == {(False, said)}
    more = ("inherited=none", FIXED, NORMS % f"{FAULTS}:Claims")
    with kerncfg.kernelize(model, *more, verify=True, inputs=inputs) as bindings:
        assert {row.status for row in bindings.report.rows} == {"kept"}
        assert said in bindings.report.rows[0].reason


def test_a_row_that_may_not_fall_back_is_an_error_and_nothing_stays_set() -> None:
    model, _ = stack()
    row = f"kernels.Mine={{match: {{class: Norm}}, cpu: {FAULTS}:Faithful, fallback: error}}"
    with pytest.raises(kerncfg.ContractError, match=r"policy\.deterministic takes kernels"):
        applied(model, "inherited=none", FIXED, row)


def test_a_failure_while_binding_puts_everything_back(monkeypatch: pytest.MonkeyPatch) -> None:
    model, _ = stack()

    def fail(*_: Any) -> None:
        raise RuntimeError("half way")

    monkeypatch.setattr("kerncfg.applier.settle._bind", fail)
    with pytest.raises(RuntimeError, match="half way"):
        fixed(model, "builtin:RMSNorm")


def test_a_failure_while_setting_puts_everything_back(monkeypatch: pytest.MonkeyPatch) -> None:
    model, _ = stack()

    def fail(*_: Any) -> None:
        raise RuntimeError("no seed")

    monkeypatch.setattr(deterministic, "_seed", fail)
    with pytest.raises(RuntimeError, match="no seed"):
        fixed(model, "builtin:RMSNorm")


def test_nested_applies_restore_what_each_found() -> None:
    model, _ = stack()
    with fixed(model, "builtin:RMSNorm", "policy.seed=1"):
        torch.rand(3)
        between = everything()
        with fixed(model, "builtin:RMSNorm", "policy.seed=2"):
            assert torch.initial_seed() == 2
            torch.rand(3)
        assert same(between, everything())


def test_applies_to_two_models_may_end_in_any_order() -> None:
    (first, _), (second, _) = stack(), stack()
    one = fixed(first, "builtin:RMSNorm", "policy.seed=1")
    two = fixed(second, "builtin:RMSNorm", "policy.seed=2")
    one.revert()
    assert torch.get_deterministic_debug_mode() == 2
    assert torch.initial_seed() == 2
    two.revert()


def test_a_plain_apply_above_a_fixed_one_changes_nothing() -> None:
    model, _ = stack()
    with fixed(model, "builtin:RMSNorm") as below:
        with applied(model, "inherited=none", NORMS % "builtin:RMSNorm"):
            with pytest.raises(ConflictError):
                below.revert()
            assert torch.get_deterministic_debug_mode() == 2
        assert torch.get_deterministic_debug_mode() == 2


def test_reverting_the_model_or_a_part_puts_the_process_back_when_nothing_is_left() -> None:
    model, _ = stack()
    fixed(model, "builtin:RMSNorm")
    duplicate = copy.deepcopy(model)
    kerncfg.revert(duplicate)
    kerncfg.revert(model.first)
    assert torch.get_deterministic_debug_mode() == 2
    kerncfg.revert(model)
    assert torch.get_deterministic_debug_mode() == 0


def test_a_plan_that_swaps_nothing_is_reverted_too() -> None:
    model, _ = stack()
    with pytest.warns(kerncfg.KerncfgWarning):
        fixed(model, f"{FAULTS}:Faithful")
    assert torch.get_deterministic_debug_mode() == 2
    kerncfg.revert(model)


def test_an_error_inside_puts_everything_back() -> None:
    model, _ = stack()
    with pytest.raises(ValueError, match="inside"), fixed(model, "builtin:RMSNorm"):
        raise ValueError("inside")


def test_the_bundled_preset_is_verified_under_the_policy_from_the_command_line(
    capsys: pytest.CaptureFixture[str],
) -> None:
    small = ("num_hidden_layers=1", "hidden_size=32", "intermediate_size=48", "head_dim=16", "vocab_size=64")
    words = [FIXED, "kernels=bundled", "inherited=none", "model.sequence=8", *(f"model.config.{one}" for one in small)]
    assert main(["verify", *words]) == 0
    out = capsys.readouterr().out
    assert "builtin:RMSNorm" in out
    assert "NO" not in out.split()


def test_threads_that_apply_and_revert_leave_the_process_as_it_was() -> None:
    models = [stack()[0] for _ in range(4)]

    def life(model: nn.Module) -> None:
        for _ in range(3):
            fixed(model, "builtin:RMSNorm", "policy.seed=1").revert()

    with ThreadPoolExecutor(4) as pool:
        list(pool.map(life, models))


def test_a_plan_keeps_policy_and_seed_in_its_file_and_digest() -> None:
    rows = ("inherited=none", "kernels.RMSNorm.cpu=builtin:RMSNorm")
    plain, made = (kerncfg.plan(*rows, *more, target="cpu") for more in ((), (FIXED, "policy.seed=4")))
    assert (made.deterministic, made.seed) == (True, 4)
    assert plain.digest != made.digest
    read = Plan.from_dict(made.to_dict())
    assert (read.deterministic, read.seed, read.digest) == (True, 4, made.digest)
    assert plain.diff(made).policy == {"deterministic": (False, True), "seed": (None, 4)}


def test_a_plan_of_before_these_keys_is_read() -> None:
    made = kerncfg.plan("inherited=none", "kernels.RMSNorm.cpu=builtin:RMSNorm", target="cpu")
    data = made.to_dict()
    del data["deterministic"], data["seed"]
    assert Plan.from_dict(data).digest == made.digest


def test_the_packaged_policy_is_the_default_with_two_words_changed() -> None:
    default, found = (compose([f"policy={name}"])[0]["policy"] for name in ("default", "deterministic"))
    assert {key: found[key] for key in found if found[key] != default[key]} == {"deterministic": True, "seed": 0}


@pytest.mark.parametrize("kernel", KERNELS, ids=lambda kernel: kernel.__name__)
def test_every_bundled_kernel_declares_what_it_is(kernel: type[nn.Module]) -> None:
    assert vars(kernel)["deterministic"] is True
