from __future__ import annotations

import json
import re
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
import torch

import kerncfg
from kerncfg.compiler.schema import validate
from kerncfg.errors import ApplyError, ContractError, KerncfgWarning
from kerncfg.evidence import gate
from kerncfg.evidence.verify import verify
from tests import attending
from tests.subjects import FAULTS, POLICY, Norm, Stack, applied, matched, qwen3, stack

if TYPE_CHECKING:
    from kerncfg.applier.apply import Bindings

RIGHT = f"kernels.Right={{match: {{path: first}}, cpu: {FAULTS}:Faithful}}"
WRONG = f"kernels.Wrong={{match: {{path: second}}, cpu: {FAULTS}:WeightOffset}}"


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Every test has verdicts of its own."""
    monkeypatch.setenv("KERNCFG_CACHE", str(tmp_path))
    return tmp_path / "verdicts"


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Gives the plans that were verified, in order."""
    found: list[str] = []

    def spy(bindings: Bindings, *rest: Any) -> Any:
        found.append(bindings.plan.digest)
        return verify(bindings, *rest)

    monkeypatch.setattr(gate, "verify", spy)
    return found


def statuses(bindings: Bindings) -> dict[str, str]:
    return {row.path: row.status for row in bindings.report.rows}


def fallen(model: Stack, inputs: dict[str, Any], *rows: str, **policy: Any) -> tuple[Bindings, Any]:
    said = {**POLICY, **policy}
    bindings = applied(model, "inherited=none", *rows)
    return gate.fall_back(bindings, verify(bindings, inputs, said), inputs, said)


def test_falling_back_takes_only_the_row_that_failed_off_and_verifies_again() -> None:
    model, inputs = stack()
    bindings, found = fallen(model, inputs, RIGHT, WRONG)
    with bindings:
        assert statuses(bindings) == {"first": "swapped", "second": "kept"}
        reason = next(row.reason for row in bindings.report.rows if row.path == "second")
        assert "WeightOffset: failed verification: second: in inference, output: " in reason
    assert [(row.name, row.passed) for row in found.rows] == [("Wrong", False), ("Right", True)]
    assert found.model.passed and found.model.identical == 1
    assert not found.passed  # a failure is one, whatever runs instead
    validate(json.loads(json.dumps(found.to_dict(), allow_nan=False)), "verification")
    assert f"removed: Wrong ({FAULTS}:WeightOffset): failed verification: " in str(found)
    assert not hasattr(model.second, "_kerncfg")


def test_falling_back_from_nothing_changes_nothing() -> None:
    model, inputs = stack()
    with applied(model, "inherited=none", RIGHT) as bindings:
        found = verify(bindings, inputs, POLICY)
        assert gate.fall_back(bindings, found, inputs, POLICY) == (bindings, found)


def test_the_next_kernel_of_the_row_runs_instead_and_is_verified_too() -> None:
    model, inputs = stack()
    folder, kernels = FAULTS, ("NoWeight", "WeightOffset", "Fused")
    row = f"kernels.Norm={{match: {{class: Norm}}, cpu: [{', '.join(f'{folder}:{name}' for name in kernels)}]}}"
    bindings, found = fallen(model, inputs, row)
    with bindings:
        assert {row.kernel for row in bindings.report.rows if row.status == "swapped"} == {f"{FAULTS}:Fused"}
    assert [one[1].rpartition(":")[2] for one in found.removed] == ["NoWeight", "WeightOffset"]


def test_a_row_that_may_not_fall_back_is_an_error_and_leaves_the_model_alone() -> None:
    model, inputs = stack()
    row = f"kernels.Wrong={{match: {{path: second}}, cpu: {FAULTS}:WeightOffset, fallback: error}}"
    with pytest.raises(ContractError, match=r"no kernel of kernels\.Wrong is left for .*failed verification: second"):
        fallen(model, inputs, RIGHT, row)
    assert not any("forward" in vars(module) for module in model.modules())


def test_where_only_the_model_fails_the_kernel_that_moves_it_goes() -> None:
    class Far(Stack):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            first = self.first(x)
            return torch.cat([self.second(first), self.second(1000 * first.roll(1))])

    torch.manual_seed(0)
    model, inputs = Far().eval(), {"x": torch.randn(4, 16)}
    late = f"kernels.Late={{match: {{path: second}}, cpu: {FAULTS}:WrongFarOut}}"
    bindings, found = fallen(model, inputs, RIGHT, late)
    with bindings:
        assert statuses(bindings) == {"first": "swapped", "second": "kept"}
    assert [(name, reason[:32]) for name, _, reason in found.removed] == [("Late", "failed verification: the model: ")]


def test_the_gate_lets_only_what_passes_run(cache: Path, asked: list[str]) -> None:
    model, inputs = stack()
    with kerncfg.kernelize(model, "inherited=none", RIGHT, WRONG, verify=True, inputs=inputs) as bindings:
        assert statuses(bindings) == {"first": "swapped", "second": "kept"}
    assert len(asked) == 2
    assert not any("forward" in vars(module) for module in model.modules())


def test_verdicts_are_used_again_while_plan_environment_and_model_are_the_same(cache: Path, asked: list[str]) -> None:
    for _ in range(2):
        model, inputs = stack()
        with kerncfg.kernelize(model, "inherited=none", RIGHT, WRONG, verify=True, inputs=inputs) as bindings:
            assert statuses(bindings) == {"first": "swapped", "second": "kept"}
        assert len(asked) == 2
    assert len(list(cache.glob("*.json"))) == 2
    model.first.variance_epsilon = 1e-5  # another model
    kerncfg.kernelize(model, "inherited=none", RIGHT, WRONG, verify=True, inputs=inputs).revert()
    assert len(asked) == 4
    wide = {"x": torch.randn(5, 16)}  # other inputs
    kerncfg.kernelize(model, "inherited=none", RIGHT, WRONG, verify=True, inputs=wide).revert()
    assert len(asked) == 6


def test_another_environment_or_kernel_is_another_question(
    cache: Path, asked: list[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    model, inputs = stack()
    folder = tmp_path / "kernel"
    folder.mkdir()
    (folder / "__init__.py").write_text("from . import layers\n")
    text = (FAULTS / "layers.py").read_text()
    (folder / "layers.py").write_text(text)
    row = f"kernels.Mine={{match: {{class: Norm}}, cpu: {folder}:Faithful}}"

    def again() -> int:
        kerncfg.kernelize(model, "inherited=none", row, verify=True, inputs=inputs).revert()
        return len(asked)

    assert [again(), again()] == [1, 1]
    (folder / "layers.py").write_text(text + "\n# other bytes\n")
    assert [again(), again()] == [2, 2]
    monkeypatch.setattr(gate, "environment", lambda device: {"torch": "99.0"})
    assert [again(), again()] == [3, 3]


def test_the_policy_can_ask_for_the_gate_and_the_argument_decides(asked: list[str]) -> None:
    model, inputs = stack()
    rows = ("inherited=none", WRONG, "policy.verify.gate=true")
    with pytest.warns(KerncfgWarning, match="no module runs one: .*failed verification"):
        assert statuses(kerncfg.kernelize(model, *rows, inputs=inputs)) == {"second": "kept"}
    with kerncfg.kernelize(model, *rows, verify=False) as bindings:
        assert statuses(bindings) == {"second": "swapped"}
    assert len(asked) == 1


def test_under_the_gate_a_kernel_that_the_run_did_not_reach_does_not_run() -> None:
    model, inputs = stack()
    spare = f"kernels.Spare={{match: {{path: spare}}, cpu: {FAULTS}:Faithful}}"
    with kerncfg.kernelize(model, "inherited=none", RIGHT, spare, verify=True, inputs=inputs) as bindings:
        assert statuses(bindings) == {"first": "swapped", "spare": "kept"}
        reason = bindings.report.rows[-1].reason
    assert "policy.verify.gate takes what is verified, and the run of the model did not reach this" in reason


def test_where_a_failure_is_an_error_the_gate_raises_it_and_nothing_is_swapped() -> None:
    model, inputs = stack()
    with pytest.raises(ApplyError, match=r"policy\.verify\.on_fail is error: Wrong \(.*second: in inference"):
        kerncfg.kernelize(
            model, "inherited=none", RIGHT, WRONG, "policy.verify.on_fail=error", verify=True, inputs=inputs
        )
    assert not any("forward" in vars(module) for module in model.modules())


def test_the_gate_makes_inputs_for_a_model_of_tokens() -> None:
    loaded = qwen3()
    row = f"kernels.RMSNorm.cpu={FAULTS}:NoWeight"
    with pytest.warns(KerncfgWarning, match="no module runs one: .*failed verification"):
        bindings = kerncfg.kernelize(loaded.model, "inherited=none", row, verify=True)
    assert bindings.report.counts == {"swapped": 0, "kept": 9, "off": 0}


def test_a_fixed_mode_stays_fixed_when_a_row_falls_back() -> None:
    model, inputs = stack()
    rows = ("inherited=none", RIGHT, WRONG)
    with kerncfg.kernelize(model, *rows, mode="training", verify=True, inputs=inputs) as bindings:
        assert {str(mode) for mode in bindings.modes} == {"training"}
        assert statuses(bindings) == {"first": "swapped", "second": "kept"}


def test_the_public_verify_and_bench_make_inputs_and_take_the_packaged_policy() -> None:
    loaded = qwen3()
    with applied(loaded.model, f"kernels.RMSNorm.cpu={FAULTS}:NoWeight") as bindings:
        assert not kerncfg.verify(bindings).passed
        assert kerncfg.bench(bindings, seconds=0.005).passed
    model, inputs = stack()
    with applied(model, matched("Faithful")) as bindings:
        assert kerncfg.verify(bindings, inputs).passed
        with pytest.raises(ApplyError, match="no inputs can be made") as raised:
            kerncfg.verify(bindings)
    assert raised.value.hint == "pass inputs=, the keyword arguments of one forward"


def test_a_norm_of_ones_own_is_still_one(cache: Path) -> None:
    # the class and its code are part of the question: another forward is another model
    first, second = (
        gate._fingerprint(Stack(cls)) for cls in (Norm, type("Norm", (Norm,), {"forward": lambda s, x: x}))
    )
    assert first != second


def attending_rows(*kernels: str) -> str:
    said = ", ".join(f"'python:tests.{kernel}'" for kernel in kernels)
    return f"attention.mine={{cpu: [{said}]}}"


def test_attention_that_fails_gives_way_to_the_next_kernel_of_its_row() -> None:
    loaded = qwen3()
    before = attending.implementations(loaded.model)
    row = attending_rows("attention_planted:ignores_mask", "attention_kernels:interface")
    bindings = applied(loaded.model, "inherited=none", row, mode="inference")
    bindings, found = gate.fall_back(bindings, verify(bindings, loaded.inputs, POLICY), loaded.inputs, POLICY)
    (only,) = bindings.report.rows
    assert (only.kind, only.status, only.kernel) == ("attention", "swapped", "python:tests.attention_kernels:interface")
    assert [(row.name, row.passed) for row in found.rows] == [("mine", False), ("mine", True)]
    assert [one[:2] for one in found.removed] == [("mine", "python:tests.attention_planted:ignores_mask")]
    bindings.revert()
    assert attending.implementations(loaded.model) == before
    assert not any("_kerncfg_attention" in vars(module) for module in loaded.model.modules())


def test_attention_that_fails_gives_way_to_the_models_own() -> None:
    loaded = qwen3()
    before = attending.implementations(loaded.model)
    row = attending_rows("attention_planted:ignores_mask")
    bindings = applied(loaded.model, "inherited=none", row, mode="inference")
    with pytest.warns(KerncfgWarning, match="no module runs one: attention.mine: .*failed verification"):
        bindings, found = gate.fall_back(bindings, verify(bindings, loaded.inputs, POLICY), loaded.inputs, POLICY)
    (only,) = bindings.report.rows
    assert (only.status, only.kernel) == ("kept", None)
    assert "failed verification: " in only.reason
    assert not found.passed and found.model is None
    assert attending.implementations(loaded.model) == before
    assert not any("_kerncfg_attention" in vars(module) for module in loaded.model.modules())


def test_the_gate_takes_attention_that_fails_off() -> None:
    loaded = qwen3()
    norm = f"kernels.Right={{match: {{path: model.norm}}, cpu: {FAULTS}:Faithful}}"
    said = "inherited=none", attending_rows("attention_planted:ignores_padding"), norm
    with kerncfg.kernelize(loaded.model, *said, mode="inference", verify=True, inputs=loaded.inputs) as bindings:
        assert statuses(bindings) == {"model": "kept", "model.norm": "swapped"}


def test_inputs_may_be_a_tuple_as_a_factorys_are() -> None:
    model, inputs = stack()
    given = tuple(inputs.values())
    rows = ("inherited=none", RIGHT, WRONG)
    with kerncfg.kernelize(model, *rows, verify=True, inputs=given) as bindings:
        assert statuses(bindings) == {"first": "swapped", "second": "kept"}
        named = kerncfg.verify(bindings, inputs)
        assert kerncfg.verify(bindings, given).rows == kerncfg.verify(bindings, [*given]).rows == named.rows
        assert kerncfg.bench(bindings, given, seconds=0.005).passed


@pytest.mark.parametrize(
    ("given", "said"),
    [
        (torch.ones(2), "found a Tensor, expected a dict of keyword arguments or a tuple of positional ones"),
        ("x", "found a str, expected a dict"),
        (tuple(range(9)), "too many positional arguments, found 9 for forward("),
        ({0: torch.ones(2)}, "found the key 0, expected names of arguments"),
    ],
)
def test_inputs_of_another_kind_are_refused_with_what_was_found(given: Any, said: str) -> None:
    model, _ = stack()
    for verified in (
        lambda: kerncfg.verify(applied(model, "inherited=none", RIGHT), given),
        lambda: kerncfg.kernelize(model, "inherited=none", RIGHT, verify=True, inputs=given),
    ):
        with pytest.raises(ApplyError, match=re.escape(f"the inputs do not fit the model's forward: {said}")):
            verified()
        kerncfg.revert(model)
