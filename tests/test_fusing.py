"""Which groups fusions take, and what that leaves to the rows of their members."""

from __future__ import annotations

from typing import Any

import pytest

import kerncfg
from kerncfg.applier.adapters import adapter_for
from kerncfg.applier.bind import Owner
from kerncfg.applier.decide import Decisions
from kerncfg.applier.functions import function_claims
from kerncfg.applier.fusing import FusionSite, alone, decide_fusions, fusion_groups, release
from kerncfg.applier.match import claims
from kerncfg.documents.target import Mode
from kerncfg.errors import ContractError
from tests import kinds
from tests.snapshot import snapshot

BOTH = (Mode.INFERENCE, Mode.TRAINING)
FUSED = "fusions.norm_mlp={{members: {}, cpu: {}}}"


class Settling:
    """A model and a plan, as far as fusions are settled."""

    def __init__(self, *rows: str, modes: tuple[Mode, Mode] = BOTH) -> None:
        self.model: Any = kinds.qwen()
        self.plan = kerncfg.plan("inherited=none", *rows, target="cpu")
        self.sites = adapter_for(self.model).sites(self.model)
        self.claims = claims(self.sites, self.plan.steps)
        self.decisions = Decisions(self.plan, modes, Owner.of("test"))

    def fused(self) -> list[FusionSite]:
        found = fusion_groups(self.model, self.sites, self.plan.steps, self.claims)
        return decide_fusions(self.model, self.sites, found, self.decisions)

    def alone(self) -> list[FusionSite]:
        return alone(self.model, self.sites, self.claims, self.decisions)


def said(choice: str) -> str:
    return FUSED.format(kinds.PAIR, choice)


def test_deciding_prepares_every_group_and_changes_nothing() -> None:
    settling = Settling(said("'builtin:RMSNormMLP'"))
    before = snapshot(settling.model)
    found = settling.fused()
    assert [(one.swaps, one.fusion) for one in found] == [(True, None)] * kinds.LAYERS
    assert [len(one.group.modules) for one in found] == [2] * kinds.LAYERS
    assert snapshot(settling.model) == before


def test_what_is_fused_leaves_the_rows_of_its_members() -> None:
    settling = Settling(said("'builtin:RMSNormMLP'"), kinds.NORM)
    fused = settling.fused()
    taken = sum(claim is not None for claim in settling.claims)
    _, left = release(settling.sites, settling.claims, function_claims(settling.sites, settling.plan.steps), fused)
    assert left == {"kernels.RMSNorm": f"left to fusions.norm_mlp, in {kinds.LAYERS} places"}
    assert sum(claim is not None for claim in settling.claims) == taken - kinds.LAYERS == kinds.SITES["layer"]


def test_a_group_that_stays_as_it_is_leaves_its_members_to_their_rows() -> None:
    settling = Settling(said("'python:tests.fakes:Ten'"), kinds.NORM)
    fused = settling.fused()
    assert [one.swaps for one in fused] == [False] * kinds.LAYERS
    assert "python:tests.fakes:Ten" in fused[0].verdicts[0].reason
    before = list(settling.claims)
    assert release(settling.sites, settling.claims, [], fused) == ([], {})
    assert settling.claims == before


def test_the_best_kernels_that_go_together_are_taken_in_both_modes() -> None:
    row = "{inference: ['python:tests.fakes:Ten', 'builtin:RMSNormMLP'], training: 'builtin:RMSNormMLP'}"
    (first, _) = Settling(said(row)).fused()
    idle, training = first.verdicts
    assert idle.kernel == training.kernel is not None
    assert "passed over: python:tests.fakes:Ten" in idle.reason


def test_a_mode_that_is_off_runs_the_members() -> None:
    (first, _) = Settling(said("{inference: 'builtin:RMSNormMLP', training: original}")).fused()
    assert [verdict.status for verdict in first.verdicts] == ["swapped", "off"]


def test_a_row_that_may_not_do_without_names_the_group_and_the_reasons() -> None:
    row = said("'python:tests.fakes:Ten'").replace("cpu:", "fallback: error, cpu:")
    with pytest.raises(ContractError, match=r"model\.layers\.0.*no kernel of fusions\.norm_mlp is left: python:tests"):
        Settling(row).fused()


def test_a_layers_kernel_with_a_layout_takes_the_claims_of_its_sites() -> None:
    settling = Settling("kernels.RMSNorm.cpu=python:tests.fusing:Scaled")
    count = sum(claim is not None for claim in settling.claims)
    found = settling.alone()
    assert len(found) == count == kinds.SITES["layer"] + kinds.LAYERS
    assert {len(one.group.modules) for one in found} == {1}
    assert not any(settling.claims)


def test_a_layers_kernel_without_a_layout_is_left_to_the_layers() -> None:
    settling = Settling(kinds.NORM)
    assert settling.alone() == []
    assert any(settling.claims)
