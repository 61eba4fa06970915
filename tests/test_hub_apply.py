"""Kernels from the Hub on a model: what a kernel costs that fails, and what a model at work asks for."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
import torch
from torch import nn

import kerncfg
from kerncfg.errors import KerncfgWarning, TrustError
from tests.hub import kernels
from tests.hub.kernels import ACME, TRUSTED
from tests.hubbing import planned, row

if TYPE_CHECKING:
    from tests.hub.fixtures import TestHub


@kerncfg.kernel_layer("Scale")
class Same(nn.Module):
    def forward(self, input: torch.Tensor) -> torch.Tensor:
        return input


def model(layers: int = 40) -> nn.Sequential:
    return nn.Sequential(*(Same() for _ in range(layers)))


def test_a_kernel_is_fetched_at_apply_and_never_asked_for_again(hub: TestHub) -> None:
    hub.add(kernels.repository(f"{TRUSTED}/doubling", kernels.norm_layers(2)))
    plan = planned(row(f"{TRUSTED}/doubling@v1"))
    layers = model(3)
    with hub.log.expect(2):
        bindings = kerncfg.apply(plan, layers)
    with hub.log.expect(0):
        assert layers(torch.ones(1)).item() == 8
        layers.train()
        layers.eval()
        bindings.revert()
        with kerncfg.apply(plan, layers):
            assert layers(torch.ones(1)).item() == 8
    assert layers(torch.ones(1)).item() == 1


@pytest.mark.parametrize("fault", ["import", "file", "contract"])
def test_a_kernel_that_fails_costs_its_requests_once(hub: TestHub, fault: str) -> None:
    modules = kernels.norm_layers(2)
    if fault == "import":
        modules["__init__.py"] = "raise RuntimeError('no')\n"
    if fault == "contract":
        modules["layers.py"] = kernels.scale(2, argument="other")
    hub.add(kernels.repository(f"{TRUSTED}/failing-{fault}", modules))
    plan = planned(row(f"{TRUSTED}/failing-{fault}@v1"))
    refused = hub.fault("resolve.*layers", status=404, code="EntryNotFound", times=None) if fault == "file" else None
    layers = model()
    # Its code; the metadata was there.
    with hub.log.expect(2), pytest.warns(KerncfgWarning, match="no module runs one"):
        bindings = kerncfg.apply(plan, layers)
    assert bindings.report.counts["kept"] == 40
    with hub.log.expect(0):
        for _ in range(3):
            layers.train()
            layers.eval()
        assert layers(torch.ones(1)).item() == 1
    assert refused is None or refused.hits == 1
    (reason,) = {row.reason for row in bindings.report.rows}
    said = {"import": "RuntimeError: no", "file": "HTTP 404: ", "contract": "other"}
    assert said[fault] in reason and f"{TRUSTED}/failing-{fault}@v1:Scale" in reason


def test_a_hub_that_is_switched_off_after_the_plan_runs_nothing(hub: TestHub, monkeypatch: pytest.MonkeyPatch) -> None:
    hub.add(kernels.repository(f"{TRUSTED}/switched", kernels.norm_layers(2)))
    plan = planned(row(f"{TRUSTED}/switched@v1"))
    monkeypatch.setenv("USE_HUB_KERNELS", "0")
    layers = model(2)
    with hub.log.expect(0), pytest.warns(KerncfgWarning, match="no module runs one"):
        report = kerncfg.apply(plan, layers).report
    assert report.counts["kept"] == 2 and "switched off by USE_HUB_KERNELS" in report.rows[0].reason
    assert layers(torch.ones(1)).item() == 1


def test_a_plan_from_a_file_runs_nothing_without_consent(hub: TestHub, tmp_path: object) -> None:
    hub.add(kernels.norms(f"{ACME}/norms"))
    plan = planned(row(f"{ACME}/norms@v1"), trust=[ACME])
    plan.save(f"{tmp_path}/plan.json")
    read = kerncfg.load_plan(f"{tmp_path}/plan.json")
    with hub.log.expect(0), pytest.raises(TrustError, match=r"trust\.publishers\.acme=true"):
        kerncfg.apply(read, model(1))
    consented = kerncfg.load_plan(f"{tmp_path}/plan.json", trust=[f"{ACME}/norms"])
    assert kerncfg.apply(consented, model(1)).report.counts["swapped"] == 1
