"""What the Hub answers, from references to code: every way of naming a commit, builds, redirects, dependencies."""

from __future__ import annotations

import os
import sys
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest
import torch

import kerncfg
from kerncfg.api import lock as lock_of
from kerncfg.documents.config import KernelRef, Trust
from kerncfg.errors import ConfigError, IntegrityError, SourceError
from kerncfg.machine import detect
from kerncfg.sources import fetch, load
from kerncfg.sources.hub import HubSource
from kerncfg.sources.hub.asking import WAITS
from tests.hub import kernels
from tests.hub.kernels import ACME, TRUSTED
from tests.hub.repos import Build, Repository
from tests.hubbing import TRUST, asked, first, kernel, planned, question, refusal, row

if TYPE_CHECKING:
    from tests.hub.fixtures import TestHub

NORMS = f"{TRUSTED}/norms"


def scaled(plan: Any, name: str = "Scale") -> float:
    """What the layer of a planned kernel makes of one: it shows which code runs."""
    layer = load(kernel(plan, name), TRUST).code()
    return float(layer(torch.ones(1)).item())


def short(repository: Repository, revision: str) -> str:
    return repository.find(revision).id[:8]


@pytest.mark.parametrize(
    ("at", "revision", "why"),
    [
        ("@v2", "v2", "chosen for cpu"),
        ("@v2.1.0", "v2.1.0", "chosen for cpu"),
        ("@feature/x", "feature/x", "chosen for cpu"),
        ("@>=2.0,<3.0", "v2.1.0", "v2.1.0 is the highest of >=2.0,<3.0"),
        ("@>=2", "v3", "v3 is the highest of >=2"),
        ("@==2.*", "v2.1.0", "v2.1.0 is the highest of ==2.*"),
        ("@>=2.2.0rc1,<3", "v2.2.0rc1", "v2.2.0rc1 is the highest of >=2.2.0rc1,<3"),
        ("", "v3", "unpinned, v3 is the highest version with a build that fits"),
    ],
)
def test_a_reference_leads_to_the_commit_that_it_names(
    norms: Repository, hub: TestHub, at: str, revision: str, why: str
) -> None:
    with hub.log.expect(3):
        plan = planned(row(f"{NORMS}{at}"))
    assert kernel(plan).commit == norms.find(revision).id
    assert why in first(plan).reason
    assert scaled(plan) == kernels.NORMS[revision]


def test_a_version_is_its_branch(norms: Repository) -> None:
    plan = planned(f"kernels.Scale.cpu={{kernel: '{NORMS}:Scale', version: 2}}")
    assert kernel(plan).commit == norms.branches["v2"]


@pytest.mark.parametrize("digits", [40, 12, 7])
def test_a_commit_may_be_short(norms: Repository, digits: int) -> None:
    commit = norms.find("v2.0.0").id
    plan = planned(row(f"{NORMS}@{commit[:digits]}"))
    assert kernel(plan).commit == commit
    assert scaled(plan) == 20


def test_a_whole_commit_is_asked_about_once_whether_it_was_released(norms: Repository, hub: TestHub) -> None:
    words = row(f"{NORMS}@{norms.find('v1').id}")
    planned(words)
    assert hub.log.kinds() == {"refs": 1, "tree": 1, "resolve": 1}
    hub.log.clear()
    with hub.log.expect(0):
        planned(words)


def test_a_range_that_nothing_answers_names_what_there_is(norms: Repository) -> None:
    assert asked(f"{NORMS}@>=9").reason == (f"{NORMS} has v3, v2, v1, v2.0.0, v2.1.0, v2.2.0rc1, v4.0.0a1, needed >=9")


def test_a_repository_without_versions_is_told(hub: TestHub) -> None:
    hub.add(Repository(f"{TRUSTED}/bare"))
    assert asked(f"{TRUSTED}/bare").reason == f"{TRUSTED}/bare has neither versions nor tags, needed a version"


def test_without_version_branches_main_is_taken(hub: TestHub) -> None:
    made = kernels.repository(f"{TRUSTED}/plain", kernels.package(kernels.scale(7)), branch="main")
    hub.add(made)
    plan = planned(row(f"{TRUSTED}/plain"))
    assert kernel(plan).commit == made.branches["main"] and scaled(plan) == 7


def test_an_unpinned_reference_passes_over_versions_without_a_build_that_fits(hub: TestHub) -> None:
    made = Repository(f"{TRUSTED}/late")
    for branch, variant in (("v1", "torch-cpu"), ("v2", "torch-cpu"), ("v10", "torch-cuda"), ("v0", "torch-cpu")):
        made.release([Build(name="late", modules=kernels.norm_layers(int(branch[1:])), variant=variant)], branch)
    hub.add(made)
    plan = planned(row(f"{TRUSTED}/late"))
    assert kernel(plan).commit == made.branches["v2"]
    assert "unpinned, v2 is the highest" in first(plan).reason


def test_a_version_without_a_build_names_the_newest_that_has_one_and_does_not_take_it(hub: TestHub) -> None:
    made = Repository(f"{TRUSTED}/emu")
    for branch, variant in (("v1", "torch27-cxx11-cu128-x86_64-linux"), ("v2", "torch-cpu"), ("v3", "torch-universal")):
        made.release([Build(name="emu", modules=kernels.norm_layers(1), variant=variant)], branch)
    hub.add(made)
    said = refusal(planned(row(f"{TRUSTED}/emu@v1")))
    assert said.startswith("no build fits: torch27-cxx11-cu128-x86_64-linux: ")
    assert said.endswith("; v3 has torch-universal")


def test_where_no_version_has_a_build_those_looked_at_are_named(hub: TestHub) -> None:
    made = Repository(f"{TRUSTED}/gpu")
    for branch in ("v1", "v2"):
        made.release([Build(name="gpu", modules=kernels.norm_layers(1), variant="torch-cuda")], branch)
    hub.add(made)
    assert "no version has one, looked at v1, v2" in refusal(planned(row(f"{TRUSTED}/gpu@v1")))
    assert "no build fits" in refusal(planned(row(f"{TRUSTED}/gpu")))


@pytest.mark.parametrize("seed", range(4))
def test_b54_the_build_does_not_depend_on_the_order_of_the_listing(hub: TestHub, seed: int) -> None:
    hub.add(kernels.six_builds())
    hub.shuffle = seed
    machine = detect({
        "device": "cuda", "backend_version": "13.0", "torch": "2.13.0", "cpu": "x86_64", "os": "linux",
        "capability": "9.0", "cxx11_abi": True, "python": "3.11",
    })  # fmt: skip
    pin = asked(
        f"{TRUSTED}/six@v1", device="cuda", backend_version="13.0", torch="2.13.0", cpu="x86_64", os="linux",
        capability="9.0",
    )  # fmt: skip
    found = pin.choose(machine)
    assert found is not None
    assert found[1].name == "torch213-cxx11-cu130-x86_64-linux"


STABLE, ABI, NEW, ROCM, METAL = (
    "torch-stable-abi29-cu126-x86_64-linux", "torch213-cxx11-cu126-x86_64-linux", "torch213-cxx11-cu130-x86_64-linux",
    "torch213-cxx11-rocm71-x86_64-linux", "torch213-metal-aarch64-darwin",
)  # fmt: skip
H100 = {"device": "cuda", "capability": "9.0", "backend_version": "12.8", "torch": "2.13.0", "cpu": "x86_64"}
MI300X = {"device": "rocm", "capability": "9.4", "backend_version": "7.1", "torch": "2.13.0", "cpu": "x86_64"}
M3 = {"device": "mps", "macos": "15.6", "torch": "2.13.0", "cpu": "aarch64", "os": "darwin"}
VERDICTS: list[tuple[dict[str, str], dict[str, str]]] = [
    (
        H100,
        {
            "torch-cpu": "built for cpu, the target is cuda",
            STABLE: "chosen",
            ABI: f"fits, {STABLE} goes before",
            NEW: "built for cuda 13.0, the target has 12.8",
            ROCM: "built for rocm, the target is cuda",
            METAL: "built for mps, the target is cuda",
        },
    ),
    (
        MI300X,
        {
            "torch-cpu": "built for cpu, the target is rocm",
            **dict.fromkeys((STABLE, ABI, NEW), "built for cuda, the target is rocm"),
            ROCM: "chosen",
            METAL: "built for mps, the target is rocm",
        },
    ),
    (
        M3,
        {
            "torch-cpu": "built for cpu, the target is mps",
            **dict.fromkeys((STABLE, ABI, NEW), "built for cuda, the target is mps"),
            ROCM: "built for rocm, the target is mps",
            METAL: "needs macOS 26 or newer, the target has 15.6",
        },
    ),
]


@pytest.mark.parametrize(("target", "verdicts"), VERDICTS, ids=["h100", "mi300x", "m3"])
def test_b52_every_build_is_taken_or_says_why_not_for_a_machine_elsewhere(
    hub: TestHub, target: dict[str, str], verdicts: dict[str, str]
) -> None:
    hub.add(kernels.six_builds())
    plan = kerncfg.plan("inherited=none", f"kernels.Scale={TRUSTED}/six@v1:Scale", target={"os": "linux", **target})
    if "chosen" in verdicts.values():
        assert first(plan).builds == verdicts
    else:
        told = "; ".join(f"{name}: {reason}" for name, reason in sorted(verdicts.items()))
        assert refusal(plan).startswith(f"no build fits: {told}; ")


def test_a_listing_of_many_pages_is_whole(norms: Repository, hub: TestHub) -> None:
    hub.page_size = 3
    pages = -(-len([*norms.find("v2").files, *norms.find("v2").trees]) // 3)
    plan = planned(row(f"{NORMS}@v2"))
    assert scaled(plan) == 23
    assert pages - 1 <= hub.log.count(kind="tree") <= pages + 1 and pages > 1


@pytest.mark.parametrize("rows", [1, 8, 64])
def test_rows_of_one_repository_cost_what_one_costs(norms: Repository, hub: TestHub, rows: int) -> None:
    words = [f"kernels.R{number}.cpu={NORMS}@v2:Scale" for number in range(rows)]
    plan = planned(*words)
    assert hub.log.kinds() == {"refs": 1, "tree": 1, "resolve": 1}
    assert fetch(plan.kernels()) == {}
    assert hub.log.kinds() == {"refs": 1, "tree": 1, "resolve": 3}  # metadata, __init__ and layers, a request each
    hub.log.clear()
    again = planned(*words)
    assert again.digest == plan.digest and hub.log.kinds() == {"refs": 1}
    assert fetch(again.kernels()) == {} and hub.log.kinds() == {"refs": 1}


def test_rows_of_three_repositories_cost_what_three_cost(norms: Repository, hub: TestHub) -> None:
    hub.add(kernels.silu(), kernels.asks_kernels())
    places = [f"{NORMS}@v2:Scale", f"{TRUSTED}/activation@v1:SiLU", f"{TRUSTED}/asking@v1:Scale"]
    words = [f"kernels.R{number}.cpu={places[number % 3]}" for number in range(8)]
    plan = planned(*words)
    assert hub.log.kinds() == {"refs": 3, "tree": 3, "resolve": 3}
    assert fetch(plan.kernels()) == {}
    assert hub.log.kinds()["resolve"] == 9
    hub.log.clear()
    planned(*words)
    assert hub.log.kinds() == {"refs": 3}


def test_two_revisions_of_one_repository_share_the_question_for_its_branches(norms: Repository, hub: TestHub) -> None:
    planned(row(f"{NORMS}@v1"), row(f"{NORMS}@v2", "RMSNorm"), row(f"{NORMS}@>=2", "SiLU"))
    assert hub.log.kinds() == {"refs": 1, "tree": 3, "resolve": 3}


def test_a_file_that_another_commit_has_too_is_not_asked_for(norms: Repository, hub: TestHub) -> None:
    fetch(planned(row(f"{NORMS}@v1")).kernels())
    hub.log.clear()
    fetch(planned(row(f"{NORMS}@v2")).kernels())
    paths = [each.path.rpartition("/")[2] for each in hub.log.find(kind="resolve")]
    assert sorted(paths) == ["layers.py", "metadata.json"]  # its __init__.py is that of v1


def test_a_branch_that_moved_is_seen_by_the_next_run(norms: Repository) -> None:
    before = planned(row(f"{NORMS}@v2"))
    after = kernels.move(norms, "v2", 24)
    plan = planned(row(f"{NORMS}@v2"))
    assert kernel(plan).commit == after != kernel(before).commit
    assert scaled(plan) == 24


def test_what_could_be_refused_without_an_answer_is_not_asked_for(norms: Repository, hub: TestHub) -> None:
    hub.add(kernels.untrusted())
    words = [
        "kernels.A.cpu={kernel: 'kernels-community/norms@v1:Scale', torch: '<2.0'}",
        "kernels.B.cpu=stranger/norms@v1:Scale",
        "kernels.C.cpu={kernel: 'kernels-community/norms@v1:Scale', capability: '>=8.0'}",
    ]
    with hub.log.expect(0):
        plan = planned(*words)
        pinned = planned(row(f"{NORMS}@v1"), "policy.require_pin=true")
    assert "needs torch <2.0" in refusal(plan, "A")
    assert "trust.publishers.stranger=true" in refusal(plan, "B") and "stranger/norms" in refusal(plan, "B")
    assert "needs capability" in refusal(plan, "C")
    assert "policy.require_pin needs a commit of 40 digits, found v1" in refusal(pinned)


def test_nothing_is_asked_while_kernels_are_off(
    norms: Repository, hub: TestHub, monkeypatch: pytest.MonkeyPatch
) -> None:
    plan = planned(row(f"{NORMS}@v1"))
    hub.log.clear()
    with hub.log.expect(0):
        assert planned(row(f"{NORMS}@v1"), "enabled=false").kernels() == set()
        monkeypatch.setenv("USE_HUB_KERNELS", "0")
        assert "switched off by USE_HUB_KERNELS" in refusal(planned(row(f"{NORMS}@v1")))
        assert list(fetch(plan.kernels()).values()) == [
            "Hub kernels are switched off by USE_HUB_KERNELS, needed 1, ON, YES or TRUE"
        ]
        with pytest.raises(SourceError, match="USE_HUB_KERNELS"):
            load(kernel(plan), TRUST)
        assert HubSource().pin(KernelRef.parse(f"{NORMS}@v1"), question()).reason


def test_local_kernels_stand_in_for_a_repository(
    norms: Repository, hub: TestHub, monkeypatch: pytest.MonkeyPatch, tmp_path: Any
) -> None:
    folder = tmp_path / "mine"
    for path, content in kernels.norm_layers(77).items():
        (folder / "build" / "torch-cpu").mkdir(parents=True, exist_ok=True)
        (folder / "build" / "torch-cpu" / path).write_text(str(content))
    monkeypatch.setenv("LOCAL_KERNELS", f"{NORMS}={folder}")
    with hub.log.expect(0):
        plan = planned(row(f"{NORMS}@v2"))
        code = load(kernel(plan), plan.trust).code
    assert code()(torch.ones(1)).item() == 77
    assert plan.notes == (f"{NORMS} comes from {folder}, as LOCAL_KERNELS says",)


# Redirects.


@pytest.mark.parametrize(("revision", "commit"), [("v2", "v2"), ("v2.0.0", "v2.0.0")])
def test_a_repository_that_says_it_moved_is_followed_and_the_plan_says_so(
    norms: Repository, hub: TestHub, revision: str, commit: str
) -> None:
    hub.add(kernels.redirect(revision=revision))
    plan = planned(row(f"{TRUSTED}/old-norms@v1"))
    found = kernel(plan)
    assert (found.repository, found.commit) == (NORMS, norms.find(commit).id)
    assert f"moved to {NORMS}" in first(plan).reason
    assert scaled(plan) == kernels.NORMS[commit]


def test_a_redirect_leads_to_main_unless_it_says_otherwise(norms: Repository, hub: TestHub) -> None:
    hub.add(kernels.redirect())
    assert asked(f"{TRUSTED}/old-norms@v1").releases[0].commit == norms.branches["main"]


def test_trust_is_asked_again_where_a_redirect_leads(hub: TestHub) -> None:
    hub.add(kernels.untrusted(), kernels.redirect(to="stranger/norms", revision="v1"))
    with hub.log.expect(0, "stranger"):
        said = refusal(planned(row(f"{TRUSTED}/old-norms@v1")))
    assert said.startswith(f"{TRUSTED}/old-norms moved to stranger/norms, and publisher stranger is not trusted")


@pytest.mark.parametrize(
    "said",
    [
        'kind = "redirect"\ndestination = "../../up"\n',
        'kind = "redirect"\ndestination = "kernels-community"\n',
        'kind = "redirect"\n',
        'kind = "redirect"\ndestination = "kernels-community/norms"\nrevision = "../../../../escaped"\n',
        'kind = "redirect"\ndestination = "/etc/x:y"\n',
        "kind = redirect",
    ],
)
def test_a_redirect_that_leads_nowhere_is_told(norms: Repository, hub: TestHub, said: str) -> None:
    made = kernels.redirect()
    made.commit({"kernel-status.toml": said}, "v1")
    hub.add(made)
    reason = str(asked(f"{TRUSTED}/old-norms@v1").reason)
    assert "kernel-status.toml of kernels-community/old-norms" in reason
    assert "needed organisation/name and a branch" in reason or "cannot be read" in reason
    assert not list(hub.home.rglob("escaped*"))


def test_another_status_is_no_redirect(hub: TestHub) -> None:
    made = kernels.norms()
    made.commit({"kernel-status.toml": 'kind = "deprecated"\n'}, "v1")
    hub.add(made)
    assert asked(f"{NORMS}@v1").builds


def test_a_second_redirect_is_not_followed(norms: Repository, hub: TestHub) -> None:
    hub.add(kernels.redirect(f"{TRUSTED}/older", to=f"{TRUSTED}/old-norms", revision="v1"))
    hub.add(kernels.redirect())
    assert asked(f"{TRUSTED}/older@v1").reason == (
        f"{TRUSTED}/older moved to {TRUSTED}/old-norms, and that to {NORMS}, needed one move at most"
    )


@pytest.mark.parametrize("at", ["@v2", "", "@>=2", "commit"])
def test_a_renamed_repository_is_followed_and_the_plan_says_so(hub: TestHub, at: str) -> None:
    made = kernels.norms(f"{TRUSTED}/before")
    hub.add(made)
    hub.rename(made, NORMS)
    at = f"@{made.find('v2').id}" if at == "commit" else at
    for _ in range(2):  # the second time from what the first has written down
        plan = planned(row(f"{TRUSTED}/before{at}"))
        assert kernel(plan).repository == NORMS
        assert f"moved to {NORMS}" in first(plan).reason
    assert scaled(plan) in (23, 3)


@pytest.mark.parametrize("at", ["v1", "commit"])
def test_trust_is_asked_again_where_a_rename_leads(hub: TestHub, at: str) -> None:
    made = kernels.untrusted(f"{TRUSTED}/before")
    hub.add(made)
    hub.rename(made, "stranger/norms")
    at = made.find("v1").id if at == "commit" else at
    with hub.log.expect(0, "stranger"):
        said = refusal(planned(row(f"{TRUSTED}/before@{at}")))
    assert "moved to stranger/norms, and publisher stranger is not trusted" in said


@pytest.mark.parametrize("at", ["v1", "commit"])
def test_where_an_earlier_run_was_led_is_not_trusted_for_it(
    hub: TestHub, at: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = kernels.norms(f"{TRUSTED}/before")
    hub.add(made)
    hub.rename(made, f"{ACME}/norms")
    at = made.find("v1").id if at == "commit" else at
    assert kernel(planned(row(f"{TRUSTED}/before@{at}"), trust=[ACME])).repository == f"{ACME}/norms"
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    assert kernel(planned(row(f"{TRUSTED}/before@{at}"), trust=[ACME])).repository == f"{ACME}/norms"
    assert "publisher acme is not trusted" in refusal(planned(row(f"{TRUSTED}/before@{at}")))


def test_a_rename_that_goes_on_is_told(hub: TestHub) -> None:
    made = kernels.norms(f"{TRUSTED}/one")
    hub.add(made)
    hub.rename(made, f"{TRUSTED}/two")
    hub.rename(made, f"{TRUSTED}/three")
    reason = str(asked(f"{TRUSTED}/one@v1").reason)
    assert "moved to" in reason and "needed one move at most" in reason


def test_a_lock_that_was_led_elsewhere_is_not_trusted_for_it(hub: TestHub) -> None:
    made = kernels.norms(f"{TRUSTED}/before")
    hub.add(made)
    hub.rename(made, f"{ACME}/norms")
    lock = lock_of("inherited=none", row(f"{TRUSTED}/before@v1"), trust=[ACME])
    with hub.log.expect(0):
        said = refusal(planned(row(f"{TRUSTED}/before@v1"), lock=lock))
    assert said.startswith(f"{TRUSTED}/before moved to {ACME}/norms, and publisher acme is not trusted")


# What the Hub has instead.


def test_a_repository_spelt_alike_is_named_and_not_taken(hub: TestHub) -> None:
    hub.add(kernels.norms(f"{TRUSTED}/my-norm"), Repository(f"{TRUSTED}/my_norm", kind="model").describe())
    said = str(asked(f"{TRUSTED}/my_norm@v1").reason)
    assert said.startswith(f"HTTP 404: there is no kernel repository {TRUSTED}/my_norm at {hub.url}")
    assert said.endswith(f"; there is a kernel repository {TRUSTED}/my-norm")
    assert hub.log.count(kind="tree") == 0


def test_another_kind_of_repository_is_named(hub: TestHub) -> None:
    hub.add(Repository(f"{TRUSTED}/norms", kind="model").describe())
    assert str(asked(f"{NORMS}@v1").reason).endswith(
        "; there is a model of that name, and kernels are in repositories of type kernel"
    )


def test_what_is_not_trusted_is_not_asked_for_advice(hub: TestHub) -> None:
    trust = Trust(repositories=frozenset({f"{ACME}/my_norm"}))
    hub.add(kernels.norms(f"{ACME}/my-norm"))
    with hub.log.expect(0, "my-norm"):
        assert "there is no kernel repository" in str(asked(f"{ACME}/my_norm@v1", trust=trust).reason)


# Builds.


@pytest.mark.parametrize(
    ("metadata", "reason"),
    [
        (b"{", "metadata.json is no JSON"),
        ({"python-depends": ["einops", "nki"]}, "nki"),
        ({"kernels-minver": "9.0.0"}, "9.0.0"),
        ({"kernel-depends": [{"repo-id": "../../x", "version": 1}]}, "kernel-depends: '../../x'"),
        ({"kernel-depends": [{"repo-id": "a/b", "revision": "../../../up"}]}, "'../../../up' is no branch"),
        ({"kernel-depends": [{"repo-id": "/etc/x:y", "version": 1}]}, "kernel-depends: "),
    ],
)
def test_a_build_that_cannot_be_used_is_passed_over_with_the_reason(hub: TestHub, metadata: Any, reason: str) -> None:
    hub.add(kernels.repository(f"{TRUSTED}/odd", kernels.norm_layers(1), metadata=metadata))
    said = refusal(planned(row(f"{TRUSTED}/odd@v1")))
    assert said.startswith("no build fits: torch-cpu: ") and reason in said
    assert not list(hub.home.rglob("up"))


def test_a_build_without_metadata_is_passed_over(hub: TestHub) -> None:
    made = kernels.norms()
    made.commit({"build/torch-cpu/metadata.json": None}, "v1")
    hub.add(made)
    assert "found no metadata.json" in refusal(planned(row(f"{NORMS}@v1")))


def test_b53_a_build_for_other_chips_is_refused_with_both(hub: TestHub) -> None:
    archs = {"torch-cuda": ["8.0", "9.0a"]}
    hub.add(kernels.six_builds(variants=("torch-cuda",), archs=archs))
    machine: dict[str, Any] = {"capability": "10.0", "backend_version": "13.0"}
    pin = asked(f"{TRUSTED}/six@v1", device="cuda", **machine)
    said = str(pin.builds[0].refusal(detect({"device": "cuda", **machine})))
    assert "8.0, 9.0a" in said and "10.0" in said
    assert hub.log.count("layers") == 0


def test_a_build_whose_package_is_a_folder_inside_is_imported_from_there(hub: TestHub) -> None:
    modules = {f"old_style/{name}": text for name, text in kernels.norm_layers(6).items()}
    hub.add(kernels.repository(f"{TRUSTED}/old-style", {**modules, "aa/__init__.py": "raise RuntimeError\n"}))
    assert scaled(planned(row(f"{TRUSTED}/old-style@v1"))) == 6


def test_a_build_without_a_package_says_what_it_lacks(hub: TestHub) -> None:
    hub.add(kernels.repository(f"{TRUSTED}/no-code", {"layers.py": "x = 1\n", "foo__init__.py": "x = 1\n"}))
    plan = planned(row(f"{TRUSTED}/no-code@v1"))
    with pytest.raises(SourceError, match=r"has no __init__\.py or no_code/__init__\.py, needed to import it"):
        load(kernel(plan), TRUST)


def test_bytecode_is_neither_fetched_nor_run(hub: TestHub) -> None:
    modules = {**kernels.norm_layers(5), "__pycache__/layers.cpython-311.pyc": b"bad", "layers.pyc": b"bad"}
    hub.add(kernels.repository(f"{TRUSTED}/cached", modules))
    plan = planned(row(f"{TRUSTED}/cached@v1"))
    assert scaled(plan) == 5
    assert hub.log.count("pyc") == 0
    assert all("pyc" not in file.path for file in kernel(plan).files)


def test_a_name_that_is_not_there_is_told_when_it_is_loaded(norms: Repository) -> None:
    plan = planned(f"kernels.Scale.cpu={NORMS}@v1:Skale")
    with pytest.raises(SourceError, match="no 'Skale' there; found RMSNorm, Scale, SiLU"):
        load(kernel(plan), TRUST)


@pytest.mark.parametrize("lfs", [True, False])
def test_a_native_library_is_loaded_once_whatever_it_is_imported_as(hub: TestHub, lfs: bool) -> None:
    os.unsetenv("HUB_NATIVE_LOADS")  # the library sets it, behind Python's back
    made = kernels.native(lfs=lfs)
    hub.add(made)
    first_commit = made.find("v1").id
    made.commit({"README.md": "another commit, the same library"}, "v1")
    plans = [planned(row(f"{TRUSTED}/native@{at}")) for at in ("v1", first_commit)]
    found = [kernel(plan) for plan in plans]
    modules = [load(replace(each, reference=each.reference.everything), TRUST) for each in found]
    assert len({module.code.__name__ for module in modules}) == 2
    assert modules[0].code.twice(4) == 8.0
    assert [module.code.loads() for module in modules] == [1, 1]
    assert hub.log.count("_native") == 1 and hub.log.count(kind="cdn") == lfs
    assert not any(each.authorized for each in hub.log.find(kind="cdn"))


# Imports.


def test_two_repositories_of_one_id_do_not_share_a_module(hub: TestHub) -> None:
    for name, factor in (("one", 2), ("two", 3)):
        modules = kernels.package(kernels.scale(factor))
        hub.add(kernels.repository(f"{TRUSTED}/{name}", modules, metadata={"id": "_the_same"}))
    assert scaled(planned(row(f"{TRUSTED}/one@v1"))) == 2
    assert scaled(planned(row(f"{TRUSTED}/two@v1"))) == 3
    assert "_the_same" not in sys.modules


def test_two_commits_of_one_repository_do_not_share_a_module(norms: Repository) -> None:
    assert [scaled(planned(row(f"{NORMS}@v{major}"))) for major in (1, 2, 3)] == [1, 23, 3]


@pytest.mark.parametrize(
    "last",
    [
        "raise RuntimeError('half of a kernel')",
        "import sys\nsys.modules['half_alias'] = first\nraise RuntimeError('half of a kernel')",
        "import sys\nsys.exit('half of a kernel')",
        "from . import third",
    ],
)
def test_a_failed_import_leaves_nothing(hub: TestHub, last: str) -> None:
    modules = kernels.package(kernels.scale(5), first="STARTED = True\n")
    modules["__init__.py"] = f"from . import first\nfrom . import layers\n{last}\n"
    hub.add(kernels.repository(f"{TRUSTED}/half", modules))
    plan = planned(row(f"{TRUSTED}/half@v1"))
    before = set(sys.modules)
    with pytest.raises(SourceError, match=f"{TRUSTED}/half@v1:Scale cannot be imported: ") as caught:
        load(kernel(plan), TRUST)
    assert "half of a kernel" in caught.value.message or "third" in caught.value.message
    left = {name for name in set(sys.modules) - before if "kerncfg" in name or "half" in name}
    assert left == set()


# Dependencies.


@pytest.mark.parametrize("pin", [{"version": 2}, {"revision": "v2.0.0"}], ids=["version", "revision"])
def test_a_dependency_is_pinned_planned_and_imported_first(norms: Repository, hub: TestHub, pin: Any) -> None:
    hub.add(kernels.dependent(pin=pin))
    plan = planned(row(f"{TRUSTED}/fused@v1"))
    (needed,) = kernel(plan).dependencies
    at = pin.get("revision", "v2")
    assert needed.commit == norms.find(at).id and str(needed.reference) == f"{NORMS}@{at}"
    assert scaled(plan) == 10 * kernels.NORMS[at]
    assert "kernels" not in sys.modules


def test_a_dependency_stands_in_the_lock(norms: Repository, hub: TestHub) -> None:
    hub.add(kernels.dependent())
    lock = lock_of("inherited=none", row(f"{TRUSTED}/fused@v1"))
    assert [str(pin.ref) for pin in lock.hub()] == [f"{TRUSTED}/fused@v1", f"{NORMS}@v1"]
    hub.log.clear()
    plan = planned(row(f"{TRUSTED}/fused@v1"), lock=lock)
    assert len(kernel(plan).dependencies) == 1 and hub.log.count() == 0


def test_a_dependency_that_is_not_trusted_is_not_asked_about(hub: TestHub) -> None:
    hub.add(kernels.untrusted(), kernels.dependent(needs="stranger/norms"))
    with hub.log.expect(0, "stranger"):
        said = refusal(planned(row(f"{TRUSTED}/fused@v1")))
    assert said.startswith("it imports stranger/norms@v1: publisher stranger is not trusted")


def test_a_dependency_that_moved_away_from_trust_is_not_imported(hub: TestHub) -> None:
    hub.add(kernels.untrusted(), kernels.redirect(to="stranger/norms", revision="v1"))
    hub.add(kernels.dependent(needs=f"{TRUSTED}/old-norms"))
    with hub.log.expect(0, "stranger"):
        said = refusal(planned(row(f"{TRUSTED}/fused@v1")))
    assert said.startswith(f"it imports {TRUSTED}/old-norms@v1: {TRUSTED}/old-norms moved to stranger/norms, and")


def test_a_dependency_of_a_lock_that_moved_away_from_trust_is_not_imported(hub: TestHub) -> None:
    moved = kernels.norms(f"{ACME}/norms")
    hub.add(moved, kernels.redirect(to=f"{ACME}/norms", revision="v1"))
    hub.add(kernels.dependent(needs=f"{TRUSTED}/old-norms"))
    words = (row(f"{TRUSTED}/fused@v1"),)
    lock = lock_of("inherited=none", *words, trust=[ACME])
    assert kernel(planned(*words, lock=lock, trust=[ACME])).dependencies[0].repository == f"{ACME}/norms"
    assert f"moved to {ACME}/norms, and publisher acme is not trusted" in refusal(planned(*words, lock=lock))


def test_a_dependency_that_has_no_build_is_told(hub: TestHub) -> None:
    hub.add(kernels.norms(variants=("torch-cuda",)), kernels.dependent())
    said = refusal(planned(row(f"{TRUSTED}/fused@v1")))
    assert said.startswith(f"it imports {NORMS}@v1: no build fits: torch-cuda: ")


def test_a_dependency_that_is_not_there_is_told(hub: TestHub) -> None:
    hub.add(kernels.dependent(needs=f"{TRUSTED}/gone"))
    said = refusal(planned(row(f"{TRUSTED}/fused@v1")))
    assert said.startswith(f"it imports {TRUSTED}/gone@v1: HTTP 404: there is no kernel repository {TRUSTED}/gone")


def test_kernels_that_import_each_other_are_refused(hub: TestHub) -> None:
    hub.add(
        kernels.dependent(f"{TRUSTED}/aa", needs=f"{TRUSTED}/bb"), kernels.dependent(f"{TRUSTED}/bb", f"{TRUSTED}/aa")
    )
    assert "it imports itself, by way of" in refusal(planned(row(f"{TRUSTED}/aa@v1")))


def test_a_kernel_may_ask_kernels_for_nothing(hub: TestHub) -> None:
    hub.add(kernels.asks_kernels())
    assert scaled(planned(row(f"{TRUSTED}/asking@v1"))) == 4
    assert "kernels" not in sys.modules


def test_a_plan_without_files_cannot_be_loaded(norms: Repository) -> None:
    found = kernel(planned(row(f"{NORMS}@v1")))
    with pytest.raises(SourceError, match="the plan has no files of build torch-cpu, needed to load it"):
        load(replace(found, files=(), digest="0" * 64), TRUST)


@pytest.mark.parametrize("wrong", [{"commit": "../../../../tmp"}, {"variant": "../../x"}, {"variant": "a/b"}])
def test_a_plan_that_leads_out_of_the_cache_is_refused(norms: Repository, wrong: dict[str, str]) -> None:
    found = kernel(planned(row(f"{NORMS}@v1")))
    with pytest.raises(SourceError, match=r"needed 40 hexadecimal digits|leads out of its folder"):
        load(replace(found, **wrong), TRUST)  # type: ignore[arg-type]


def test_a_failure_of_a_build_is_one_of_every_kernel_of_it(norms: Repository, hub: TestHub) -> None:
    hub.add(kernels.dependent())
    words = (row(f"{NORMS}@v1"), row(f"{NORMS}@v1", "RMSNorm"), f"kernels.X.cpu={TRUSTED}/fused@v1:Scale")
    plan = planned(*words)
    fault = hub.fault("norms/resolve.*layers", status=404, code="EntryNotFound", times=None)
    failed = fetch(plan.kernels())
    assert {str(each.reference) for each in failed} == {
        f"{NORMS}@v1", f"{NORMS}@v1:Scale", f"{NORMS}@v1:RMSNorm", f"{TRUSTED}/fused@v1:Scale",
    }  # fmt: skip
    assert fault.hits == 1
    assert all(reason.startswith("HTTP 404: ") and "layers.py" in reason for reason in failed.values())


def test_the_builds_of_a_lock_are_for_every_target(hub: TestHub) -> None:
    hub.add(kernels.six_builds())
    lock = lock_of("inherited=none", f"kernels.Scale={TRUSTED}/six@v1:Scale")
    (pin,) = lock.hub()
    assert {build.name for build in pin.builds} == set(kernels.SIX)
    assert all(build.metadata for build in pin.builds)


def test_waiting_is_bounded() -> None:
    assert sum(WAITS) < 10


def test_a_wrong_reference_is_a_fault_of_the_config() -> None:
    with pytest.raises(ConfigError):
        planned(row("kernels-community/norms@../../x"))


def test_code_that_changed_after_it_was_planned_is_fetched_again_or_refused(
    hub: TestHub, monkeypatch: pytest.MonkeyPatch
) -> None:
    hub.add(kernels.repository(f"{TRUSTED}/kept", kernels.norm_layers(1)))  # which no other test has loaded
    plan = planned(row(f"{TRUSTED}/kept@v1"))
    fetch(plan.kernels())
    (layers,) = hub.cache.rglob("snapshots/*/build/torch-cpu/layers.py")
    blob = layers.resolve()
    blob.write_text("raise SystemExit('changed')\n")
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    with pytest.raises(IntegrityError, match=r"is broken in the cache: found .* needed .*HF_HUB_OFFLINE"):
        load(kernel(plan), TRUST)
    monkeypatch.delenv("HF_HUB_OFFLINE")
    assert scaled(plan) == 1
