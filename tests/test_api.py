from __future__ import annotations

import json
import threading
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
import torch
from torch import nn

import kerncfg
from kerncfg.cli import main
from kerncfg.errors import ApplyError, ConfigError, IntegrityError, LockError, TrustError
from kerncfg.machine import detect
from tests.builders import kernel_folder

if TYPE_CHECKING:
    from kerncfg.documents.target import Target

TIMES_TEN = """
from torch import nn

class Norm(nn.Module):
    def forward(self, x):
        return x * 10
"""


@kerncfg.kernel_layer("ApiNorm")
class ApiNorm(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(4))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x * self.weight


def reference(plan: kerncfg.Plan, name: str) -> str:
    return str(plan.step(name).modes[kerncfg.Mode.INFERENCE].choices[0].kernel.reference)


def test_overrides_are_those_of_the_command_line() -> None:
    plan = kerncfg.plan("kernels.RMSNorm.cpu=builtin:RMSNorm", target="cpu")
    assert reference(plan, "RMSNorm") == "builtin:RMSNorm"


def test_a_target_is_a_name_a_node_or_a_target() -> None:
    node = {"device": "cuda", "capability": "9.0", "backend_version": "12.8"}
    assert kerncfg.plan(target="h100").target.capability == "9.0"
    assert kerncfg.plan(target=node).target.capability == "9.0"
    described: Target = detect(node)
    assert kerncfg.plan(target=described).target is described


def test_a_wrong_target_node_is_located_as_an_argument() -> None:
    with pytest.raises(ConfigError) as raised:
        kerncfg.plan(target={"device": "cuda", "capabilty": "9.0"})
    assert [issue.path for issue in raised.value.issues] == ["target.capabilty"]


def test_a_document_as_data_takes_missing_nodes_from_the_packaged_ones() -> None:
    plan = kerncfg.plan(target="cpu", config={"kernels": {"X": {"cpu": "builtin:RMSNorm"}}})
    assert reference(plan, "X") == "builtin:RMSNorm"
    assert not plan.step("RMSNorm").own


def test_a_document_as_data_grants_no_trust_and_says_so() -> None:
    document: dict[str, Any] = {
        "kernels": {"X": {"cuda": "evil/x@v1:X"}},
        "trust": {"publishers": {"evil": True}, "repositories": {}, "allow_all_kernels": True},
    }
    plan = kerncfg.plan(target="h100", config=document)
    step = plan.step("X")
    assert "publisher evil is not trusted" in step.modes[kerncfg.Mode.INFERENCE].rejected[0].reason
    assert any("trust.publishers.evil" in note for note in plan.notes)
    assert any("trust.allow_all_kernels" in note for note in plan.notes)


def test_a_document_and_an_override_may_not_say_the_same_node() -> None:
    with pytest.raises(ConfigError, match="both say 'kernels'"):
        kerncfg.plan("kernels.X.cpu=builtin:RMSNorm", config={"kernels": {}})


def test_the_document_given_is_not_changed() -> None:
    document: dict[str, Any] = {"kernels": {"X": {"cpu": "builtin:RMSNorm", "cuda": "org/a@v1:X"}}}
    before = json.dumps(document)
    for target in ("cpu", "h100", "mi300x"):
        kerncfg.plan(target=target, config=document)
    assert json.dumps(document) == before


def test_switched_off_keeps_everything_and_reads_no_kernel(tmp_path: Path) -> None:
    plan = kerncfg.plan("enabled=false", f"kernels.ApiNorm.cpu={tmp_path}/none:Norm", target="cpu")
    assert {step.kind for step in plan.steps} == {"keep"}
    assert {step.reason for step in plan.steps} == {"kernels are switched off: enabled is false, needed true"}


def test_a_plan_from_a_file_is_the_same_plan(tmp_path: Path) -> None:
    plan = kerncfg.plan("kernels=bundled", target="h100")
    plan.save(tmp_path / "plan.json")
    assert kerncfg.load_plan(tmp_path / "plan.json") == plan


def test_only_kernels_of_the_hub_are_fetched_so_a_folder_needs_no_consent(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = kernel_folder(tmp_path / "mine", TIMES_TEN)
    file = tmp_path / "plan.json"
    kerncfg.plan("inherited=none", f"kernels.ApiNorm.cpu={folder}:Norm", target="cpu").save(file)
    assert kerncfg.fetch(kerncfg.load_plan(file)) == {}
    for words in (["fetch", str(file), "--dry-run"], ["fetch", str(file)]):
        assert (main(words), *capsys.readouterr()) == (0, "the plan names no kernel that is to be fetched\n", "")


def test_a_plan_from_a_file_carries_no_consent(tmp_path: Path) -> None:
    folder = kernel_folder(tmp_path / "mine", TIMES_TEN)
    kerncfg.plan(f"kernels.ApiNorm.cpu={folder}:Norm", target="cpu").save(tmp_path / "plan.json")
    model = nn.Sequential(ApiNorm())
    with pytest.raises(TrustError, match=r"was not named by you"):
        kerncfg.apply(kerncfg.load_plan(tmp_path / "plan.json"), model)
    plan = kerncfg.load_plan(tmp_path / "plan.json", trust=[str(folder)])
    with kerncfg.apply(plan, model):
        assert torch.equal(model(torch.ones(4)), torch.full((4,), 10.0))


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("", "not JSON"),
        ("[]", "holds a list, not a plan"),
        ('{"schema": 1}', "digest"),
    ],
)
def test_a_file_that_is_no_plan_is_one_clear_error(tmp_path: Path, content: str, message: str) -> None:
    (tmp_path / "plan.json").write_text(content)
    with pytest.raises(ConfigError, match=message):
        kerncfg.load_plan(tmp_path / "plan.json")


def test_a_plan_that_is_not_there_says_so(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="No such file"):
        kerncfg.load_plan(tmp_path / "plan.json")


def test_a_plan_of_another_format_is_refused(tmp_path: Path) -> None:
    data = kerncfg.plan(target="cpu").to_dict()
    (tmp_path / "plan.json").write_text(json.dumps({**data, "schema": 99}))
    with pytest.raises(LockError, match="99"):
        kerncfg.load_plan(tmp_path / "plan.json")


def test_an_edited_plan_is_refused(tmp_path: Path) -> None:
    data = kerncfg.plan("kernels=bundled", target="h100").to_dict()
    data["target"]["capability"] = "8.0"
    (tmp_path / "plan.json").write_text(json.dumps(data))
    with pytest.raises(IntegrityError, match="edited"):
        kerncfg.load_plan(tmp_path / "plan.json")


def test_kernelize_plans_for_the_model_and_can_be_undone(tmp_path: Path) -> None:
    folder = kernel_folder(tmp_path / "mine", TIMES_TEN)
    model = nn.Sequential(ApiNorm())
    bindings = kerncfg.kernelize(model, f"kernels.ApiNorm.cpu={folder}:Norm", mode="training")
    assert torch.equal(model(torch.ones(4)), torch.full((4,), 10.0))
    bindings.revert()
    assert torch.equal(model(torch.ones(4)), torch.ones(4))


def test_kernelize_keeps_a_target_that_was_said() -> None:
    model = nn.Sequential(ApiNorm())
    with pytest.warns(UserWarning, match="on cpu, the plan is for cuda"):
        bindings = kerncfg.kernelize(model, "target=h100", "kernels.ApiNorm.cuda=builtin:RMSNorm")
    assert bindings.plan.target.device == "cuda"
    assert bindings.report.counts["swapped"] == 0


def test_the_warning_of_kernelize_and_apply_stands_at_the_line_that_called_them() -> None:
    for call in (lambda: kerncfg.kernelize(nn.Sequential(), "kernels.X.cpu=builtin:RMSNorm", "target=cpu"), _applied):
        with pytest.warns(kerncfg.KerncfgWarning, match="no module runs one") as caught:
            call()
        assert [Path(warning.filename).name for warning in caught] == ["test_api.py"]


def _applied() -> None:
    kerncfg.apply(kerncfg.plan("kernels.X.cpu=builtin:RMSNorm", target="cpu"), nn.Sequential())


@pytest.mark.parametrize("said", [{"kernels": {}}, ["kernels=bundled"], None, 3])
def test_an_override_that_is_no_text_is_sent_to_config(said: Any) -> None:
    for call in (kerncfg.plan, lambda word: kerncfg.kernelize(nn.Sequential(), word)):
        with pytest.raises(ConfigError, match="an override is a text, found a") as caught:
            call(said)
        assert "pass a document as config=" in str(caught.value.issues[0].hint)


def test_two_threads_plan_and_apply_what_is_theirs_and_nothing_else(tmp_path: Path) -> None:
    folder = kernel_folder(tmp_path / "mine", TIMES_TEN + TIMES_TEN.replace("Norm", "Other").replace("10", "20"))
    barrier = threading.Barrier(2)
    found: dict[str, list[float]] = {"Norm": [], "Other": []}

    def work(name: str) -> None:
        for _ in range(50):
            model = nn.Sequential(ApiNorm())
            barrier.wait()
            plan = kerncfg.plan(f"kernels.ApiNorm.cpu={folder}:{name}", "inherited=none", target="cpu")
            with kerncfg.apply(plan, model):
                found[name].append(float(model(torch.ones(4))[0]))

    threads = [threading.Thread(target=work, args=(name,)) for name in found]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert found == {"Norm": [10.0] * 50, "Other": [20.0] * 50}


def test_plans_made_in_threads_do_not_mix() -> None:
    barrier = threading.Barrier(8)
    found: dict[int, list[str]] = {}

    def work(number: int) -> None:
        barrier.wait()
        made = [kerncfg.plan(f"kernels.X{number}.cpu=builtin:RMSNorm", target="cpu") for _ in range(5)]
        found[number] = [step.name for plan in made for step in plan.steps if step.own]

    threads = [threading.Thread(target=work, args=(number,)) for number in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert found == {number: [f"X{number}"] * 5 for number in range(8)}


def test_a_name_alone_is_no_list_of_names() -> None:
    with pytest.raises(ConfigError, match="trust is a list of names"):
        kerncfg.plan(target="cpu", trust="acme")


@pytest.mark.parametrize("name", ["acme/norms/x", "https://huggingface.co/acme", "", "a b"])
def test_nobody_is_trusted_by_a_name_that_is_none(name: str) -> None:
    with pytest.raises(ConfigError, match="nobody to trust"):
        kerncfg.plan(target="cpu", trust=[name])


def test_a_row_that_trusts_its_own_code_takes_its_consent_along() -> None:
    plan = kerncfg.plan("kernels.X.cuda={kernel: acme/x@v1:X, trust_remote_code: true}", target="h100")
    assert plan.trust.references == {"acme/x@v1:X"}
    step = plan.step("X")
    assert "gave no answer about acme/x" in step.modes[kerncfg.Mode.INFERENCE].rejected[0].reason


def test_a_plan_for_another_machine_is_refused_with_both_sides(tmp_path: Path) -> None:
    folder = kernel_folder(tmp_path / "mine", TIMES_TEN)
    model = nn.Sequential(ApiNorm())
    row = f"kernels.ApiNorm.cpu={{kernel: {folder}:Norm, torch: '>=9.0'}}"
    plan = kerncfg.plan(row, target={"device": "cpu", "torch": "9.9"})
    with pytest.raises(ApplyError) as raised:
        kerncfg.apply(plan, model)
    assert "needs torch >=9.0, the target has 2." in raised.value.message
    assert raised.value.hint is not None
    assert "torch is 9.9 there and " in raised.value.hint
    assert "forward" not in model[0].__dict__


def test_a_build_for_another_machine_is_refused_before_it_is_loaded(tmp_path: Path) -> None:
    variant = "torch29-cpu-aarch64-darwin"
    kernel_folder(tmp_path / "mine" / variant, "raise SystemError('was imported')")
    target = {"device": "cpu", "torch": "2.9.0", "cpu": "aarch64", "os": "darwin"}
    plan = kerncfg.plan(f"kernels.ApiNorm.cpu={tmp_path}/mine:Norm", target=target)
    with pytest.raises(ApplyError, match="built for aarch64 darwin"):
        kerncfg.apply(plan, nn.Sequential(ApiNorm()))
