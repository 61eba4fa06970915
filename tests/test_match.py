from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
import torch
from torch import nn

from kerncfg.applier.adapters.torch import TorchAdapter, kernel_layer
from kerncfg.applier.apply import apply
from kerncfg.applier.match import claims, glob, offered
from kerncfg.documents.plan import Rejection
from kerncfg.errors import ApplyError, ConflictError, KerncfgWarning
from tests.planning import plan, step

if TYPE_CHECKING:
    from kerncfg.documents.plan import Step


@kernel_layer("Norm")
class Norm(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x


class Plain(Norm):
    """Inherits the forward."""


class Own(Norm):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + 1


class MyRMSNorm(nn.RMSNorm):
    """Inherits torch's forward."""


class OwnRMSNorm(nn.RMSNorm):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x


def model() -> nn.Module:
    blocks = (nn.ModuleDict({"norm": Norm(), "plain": Plain(), "own": Own()}) for _ in range(2))
    return nn.ModuleDict({"layers": nn.ModuleList(blocks), "norm": Norm()})


def taken(root: nn.Module, *steps: Step) -> dict[str, str]:
    """Which row takes which path, with the glob that excludes it."""
    sites = TorchAdapter().sites(root)
    return {
        sites.paths[place]: claim[0].name if claim[1] is None else f"not {claim[0].name}: {claim[1]}"
        for place, claim in enumerate(claims(sites, steps))
        if claim is not None
    }


def row(name: str, match: dict[str, str] | None = None, *exclude: str) -> Step:
    return step(name, "Free", match=match, exclude=exclude)


def test_a_row_without_match_takes_every_module_of_its_name() -> None:
    assert taken(model(), row("Norm")) == dict.fromkeys(
        ["layers.0.norm", "layers.0.plain", "layers.1.norm", "layers.1.plain", "norm"], "Norm"
    )


@pytest.mark.parametrize(
    ("match", "paths"),
    [
        ({"class": "Norm"}, ["layers.0.norm", "layers.0.plain", "layers.1.norm", "layers.1.plain", "norm"]),
        ({"class": "Pla*"}, ["layers.0.plain", "layers.1.plain"]),
        ({"class": "Own"}, ["layers.0.own", "layers.1.own"]),
        ({"path": "layers.*.norm"}, ["layers.0.norm", "layers.1.norm"]),
        ({"path": "**.norm", "class": "Norm"}, ["layers.0.norm", "layers.1.norm", "norm"]),
        ({"path": "layers.0.*", "name": "Norm"}, ["layers.0.norm", "layers.0.plain"]),
        ({"name": "Norm"}, ["layers.0.norm", "layers.0.plain", "layers.1.norm", "layers.1.plain", "norm"]),
        ({"name": "Norm", "class": "Own"}, ["layers.0.own", "layers.1.own"]),
        ({"class": "Nothing"}, []),
    ],
    ids=["class", "glob", "own forward", "path", "both", "name and path", "name", "inherited name", "nothing"],
)
def test_match_takes_the_modules_that_satisfy_all_its_keys(match: dict[str, str], paths: list[str]) -> None:
    assert list(taken(model(), row("any", match))) == paths


@pytest.mark.parametrize(
    ("name", "found"),
    [
        ("torch.nn.RMSNorm", ["plain", "sub"]),
        ("torch.nn.modules.normalization.RMSNorm", ["plain", "sub"]),
        ("torch.nn.modules.RMSNorm", ["plain", "sub"]),
        (f"{__name__}.MyRMSNorm", ["sub"]),
        (f"{__name__}.OwnRMSNorm", ["own"]),
        ("torch.nn.LayerNorm", []),
        ("torch.nn.NoSuch", []),
        ("nowhere.at.All", []),
        ("RMSNorm", []),
        ("torch.nn.modules.normalization.RMSNorm.forward", []),
    ],
)
def test_type_is_a_qualified_name_public_or_not(name: str, found: list[str]) -> None:
    root = nn.ModuleDict({"plain": nn.RMSNorm(4), "sub": MyRMSNorm(4), "own": OwnRMSNorm(4)})
    assert list(taken(root, row("any", {"type": name}))) == found


def test_a_match_beats_a_name() -> None:
    found = taken(model(), row("Norm"), row("last", {"path": "norm"}))
    assert found["norm"] == "last"
    assert found["layers.0.norm"] == "Norm"


def test_two_matches_on_one_module_are_a_conflict_that_names_both() -> None:
    with pytest.raises(ConflictError, match=r"norm \(Norm\) is taken by kernels.a \(kernels.yaml:3\) and kernels.b \("):
        taken(model(), row("a", {"path": "norm"}), row("b", {"class": "No*"}, "layers.**"))


def test_an_exclude_settles_a_conflict() -> None:
    found = taken(model(), row("a", {"path": "norm"}), row("b", {"class": "Norm"}, "norm"))
    assert found["norm"] == "a"
    assert found["layers.0.norm"] == "b"


def test_excluded_modules_are_reported_with_the_glob() -> None:
    found = taken(model(), row("Norm", None, "layers.1.*", "norm"))
    assert found["layers.0.norm"] == "Norm"
    assert found["layers.1.norm"] == "not Norm: layers.1.*"
    assert found["norm"] == "not Norm: norm"
    report = apply(plan(row("Norm", None, "layers.**")), model()).report
    reasons = {line.path: (line.status, line.reason) for line in report.rows}
    assert reasons["layers.0.norm"] == ("kept", "excluded by layers.**")


def test_a_module_excluded_from_a_match_falls_to_the_row_of_its_name() -> None:
    found = taken(model(), row("Norm"), row("a", {"class": "Norm"}, "norm"))
    assert found["norm"] == "Norm"


def test_a_shared_module_is_one_site_at_any_of_its_paths() -> None:
    shared = Norm()
    root = nn.ModuleDict({"a": shared, "b": nn.ModuleDict({"c": shared})})
    assert taken(root, row("any", {"path": "b.c"})) == {"a": "any"}
    assert taken(root, row("Norm", None, "b.*")) == {"a": "not Norm: b.*"}


def test_the_model_itself_can_match() -> None:
    assert taken(Norm(), row("any", {"path": ""})) == {"": "any"}
    assert taken(Norm(), row("any", {"path": "**"})) == {"": "any"}


def test_the_report_says_which_matcher_hit() -> None:
    report = apply(plan(row("any", {"class": "*rm", "path": "norm"})), model()).report
    assert report.rows[0].reason == "chosen for cpu (kernels.yaml:3), by match class *rm, path norm"


def test_a_match_without_sites_names_the_nearest_classes() -> None:
    steps = [row("Norm"), row("any", {"class": "*Nrom"})]
    notes = apply(plan(*steps), model()).report.notes
    assert notes == ("kernels.any: no module matches class *Nrom, said at kernels.yaml:3; the model has Norm (3)",)


def test_a_match_by_type_without_sites_names_the_nearest_types_as_they_are_imported() -> None:
    root = nn.Sequential(nn.RMSNorm(2), nn.Linear(2, 2), Norm())
    with pytest.warns(KerncfgWarning, match="no module matches type") as caught:
        notes = apply(plan(row("any", {"type": "torch.nn.RMSNrom"})), root).report.notes
    near = f"the model has torch.nn.RMSNorm (1), {__name__}.Norm (1)"
    assert notes == (f"kernels.any: no module matches type torch.nn.RMSNrom, said at kernels.yaml:3; {near}",)
    assert str(caught[0].message).count("kernels.any") == 1


@pytest.mark.parametrize(("cls", "name"), [(nn.RMSNorm, "torch.nn.RMSNorm"), (Norm, f"{Norm.__module__}.Norm")])
def test_a_type_is_named_as_it_is_imported(cls: type, name: str) -> None:
    assert offered(cls) == name


def test_a_match_without_sites_is_an_error_under_strict() -> None:
    steps = [row("any", {"class": "*Norm", "path": "nowhere.*"}), row("Norm")]
    with pytest.raises(ApplyError, match=r"policy.strict: .* kernels.any: no module matches class \*Norm, path"):
        apply(plan(*steps, strict=True), model())


def test_a_row_that_matches_functions_takes_no_modules() -> None:
    assert taken(model(), row("f", {"function": "rotate", "class": "*"})) == taken(model())


@pytest.mark.parametrize(
    ("text", "path", "matches"),
    [
        ("model.layers.*.norm", "model.layers.0.norm", True),
        ("model.layers.*.norm", "model.layers.0.mlp.norm", False),
        ("model.layers.*.norm", "model.layers.norm", False),
        ("**.norm", "norm", True),
        ("**.norm", "a.b.norm", True),
        ("**.norm", "a.b.norm.c", False),
        ("model.**", "model", True),
        ("model.**", "model.a.b", True),
        ("model.**", "models", False),
        ("a.**.z", "a.z", True),
        ("a.**.z", "a.b.c.z", True),
        ("**", "", True),
        ("**", "a.b", True),
        ("", "", True),
        ("", "a", False),
        ("*", "", False),
        ("*", "a", True),
        ("*", "a.b", False),
        ("attn.q_*", "attn.q_proj", True),
        ("attn.q_*", "attn.q_", True),
        ("attn.q_*", "attn.q_a.b", False),
        ("a.b", "axb", False),
        ("layers.[0]", "layers.0", False),
        ("layers.?", "layers.0", False),
        ("**.**.a", "a", True),
    ],
)
def test_a_glob_counts_segments(text: str, path: str, matches: bool) -> None:
    assert bool(glob(text).fullmatch(f"{path}." if path else "")) is matches


@pytest.mark.parametrize(
    ("others", "words"),
    [
        (
            {"node": "fusions", "members": [("Norm", "blocks.*.norm")]},
            r"fusions\.Norm \(.*\): no parent has \[Norm, blocks",
        ),
        ({"node": "attention"}, r"attention\.Norm \(.*\): the model has no part whose attention can be chosen"),
    ],
    ids=["fusions", "attention"],
)
def test_a_row_of_another_node_without_sites_is_an_error_before_anything_is_done(others: Any, words: str) -> None:
    root = model()
    with pytest.raises(ApplyError, match=words):
        apply(plan(step("Norm", "Free"), step("Norm", "Free", **others)), root)
    assert all("forward" not in vars(module) for module in root.modules())


@pytest.mark.parametrize("node", ["fusions", "attention"])
def test_a_row_of_another_node_that_keeps_the_original_takes_no_layer_of_its_name(node: str) -> None:
    assert taken(model(), step("Norm", "original", node=node)) == {}
    report = apply(plan(step("Norm", "original", node=node), strict=True), model()).report
    assert (report.rows, report.idle, report.notes) == ((), {}, ())


def test_under_strict_a_fusion_whose_kernel_was_refused_is_an_error_with_its_reason() -> None:
    refused = Rejection(reference="org/a@v1:A", reason="no build fits", origin=None)
    fused = step("Norm", [], node="fusions", rejected=[refused], reason="every candidate was refused")
    with pytest.raises(ApplyError, match=r"rows that swap nothing: fusions\.Norm: every candidate was refused"):
        apply(plan(step("Norm", "Free"), fused, strict=True), model())
