"""Nodes of somebody else's composed configuration, given as data."""

from __future__ import annotations

from enum import Enum
from pathlib import Path
from typing import Any

import pytest
from omegaconf import OmegaConf
from torch import nn

import kerncfg
from kerncfg.compiler.composed import plain
from kerncfg.errors import ConfigError

ROWS = {"RMSNorm": {"cuda": ["builtin:RMSNorm", "original"]}}


@pytest.fixture(autouse=True)
def secret(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KERNCFG_TEST_SECRET", "hunter2")


def refused(config: Any) -> list[str]:
    with pytest.raises(ConfigError) as caught:
        plain(config)
    assert "hunter2" not in str(caught.value)
    return str(caught.value).splitlines()


def test_a_whole_configuration_gives_the_nodes_of_a_plan_and_keeps_the_rest_to_itself() -> None:
    cfg = OmegaConf.create({"lr": 0.1, "model": {"width": 3}, "kernels": ROWS, "seed": "${nowhere}"})
    assert plain(cfg) == {"kernels": ROWS}
    assert type(plain(cfg)["kernels"]["RMSNorm"]["cuda"]) is list


def test_a_node_gives_all_that_it_holds() -> None:
    cfg = OmegaConf.create({"lr": 0.1, "kerncfg": {"kernels": ROWS, "extra": 1}})
    assert plain(cfg.kerncfg) == {"kernels": ROWS, "extra": 1}


def test_a_map_may_hold_nodes_and_data() -> None:
    cfg = OmegaConf.create({"rows": ROWS})
    assert plain({"kernels": cfg.rows, "enabled": True}) == {"kernels": ROWS, "enabled": True}


def test_data_stays_the_very_same() -> None:
    document = {"kernels": ROWS}
    assert plain(document)["kernels"] is ROWS


def test_interpolations_are_followed_in_the_whole_configuration_of_the_application() -> None:
    rows = {"X": {"cuda": "org/x@v${major}:${name}"}, "Y": "${.X}", "Z": {"cuda": "${..X.cuda}"}}
    cfg = OmegaConf.create({"major": 2, "name": "Norm", "n": {"kernels": rows}})
    said = {"cuda": "org/x@v2:Norm"}
    assert plain(cfg.n) == {"kernels": {"X": said, "Y": said, "Z": said}}
    assert plain({"kernels": cfg.n.kernels}) == {"kernels": {"X": said, "Y": said, "Z": said}}


def test_enums_and_paths_of_a_structured_configuration_are_texts() -> None:
    kind = Enum("kind", ["original"])
    cfg = OmegaConf.create({"kernels": {"X": kind.original, "Y": Path("./d:Y")}})
    assert plain(cfg) == {"kernels": {"X": "original", "Y": "d:Y"}}


@pytest.mark.parametrize(
    "rows",
    [
        {"X": "${oc.env:KERNCFG_TEST_SECRET}"},
        {"X": {"cuda": ["org/${oc.env:KERNCFG_TEST_SECRET}:X"]}},
        {"X": "${other.value}"},
        {"X": "a/${other.twice}:X"},
        "${other}",
    ],
)
def test_a_value_of_the_environment_is_refused_by_whatever_way_it_comes(rows: Any) -> None:
    other = {"value": "${oc.env:KERNCFG_TEST_SECRET}", "twice": "b-${.value}"}
    said = refused(OmegaConf.create({"kernels": rows, "other": other}))
    assert said[0].startswith("kernels.")
    assert "brings a value of the environment, which is for `model` only" in said[0]


def test_a_value_of_the_environment_in_a_model_stays_in_words() -> None:
    cfg = OmegaConf.create({"n": {"model": {"pretrained": "org/${oc.env:KERNCFG_TEST_SECRET}"}}})
    assert plain(cfg.n) == {"model": {"pretrained": "org/${oc.env:KERNCFG_TEST_SECRET}"}}


def test_an_interpolation_that_leads_nowhere_is_told_with_its_place() -> None:
    cfg = OmegaConf.create({"kernels": {"X": {"cuda": "${nowhere}"}}})
    assert refused(cfg)[0] == "kernels.X.cuda cannot be resolved: Interpolation key 'nowhere' not found"


def test_a_configuration_with_nothing_for_a_plan_is_told_what_to_say() -> None:
    said = refused(OmegaConf.create({"lr": 1, "model": {}}))
    assert said[0].startswith("config= has no node of a plan: none of enabled, inherited, kernels,")
    assert "defaults list" in said[1]


def test_a_key_that_is_nearly_a_nodes_is_a_mistake() -> None:
    assert refused(OmegaConf.create({"kernals": {}, "lr": 1})) == [
        "kernals: unknown key `kernals`",
        '  hint: did you mean kernels? if not, pass single nodes: config={"kernels": cfg.kernels}',
    ]


def test_a_plan_of_a_composed_configuration_is_the_plan_of_the_same_data() -> None:
    cfg = OmegaConf.create({"lr": 1, "kernels": ROWS, "target": {"device": "cuda", "capability": "9.0"}})
    data = {"kernels": ROWS, "target": {"device": "cuda", "capability": "9.0"}}
    assert kerncfg.plan("inherited=none", config=cfg) == kerncfg.plan("inherited=none", config=data)


def test_a_model_gets_what_a_composed_configuration_says_for_its_device() -> None:
    model = nn.Sequential(nn.Linear(4, 4), nn.RMSNorm(4, eps=1e-6))
    row = {"cpu": "original", "match": {"type": "torch.nn.RMSNorm"}}
    cfg = OmegaConf.create({"lr": 0.1, "kernels": {"norms": row, "inherit_mapping": False}})
    with kerncfg.kernelize(model, config=cfg) as bindings:
        assert [(found.path, found.status) for found in bindings.report.rows] == [("1", "off")]
        assert bindings.plan.target.device == "cpu"
