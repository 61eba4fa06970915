"""A reason names both sides, what was found and what was needed, never only a category.

Every template of a refusal does, and so do the refusals that a user gets.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

import kerncfg
from kerncfg.anchors.hub import DEPENDENCIES, HUB, LOCKS
from kerncfg.anchors.planning import PLAN_FILES, REASONS
from kerncfg.cli import main
from kerncfg.documents.metadata import Metadata
from kerncfg.errors import SourceError
from tests.hub import kernels
from tests.hub.kernels import ACME, STRANGER, TRUSTED
from tests.hub.repos import Repository
from tests.hubbing import planned, row

if TYPE_CHECKING:
    from tests.hub.fixtures import TestHub

# Found on the left, needed on the right, in the words that reasons have for them.
PAIRS = (
    r".+, needed .+",
    r".+; needed .+",
    r"found .+, (needed|expected) .+",
    r"(.+ )?(needed|needs) .+, found .+",
    r"needs .+, the target('s version is not known| has .+)",
    r"needs .+, not installed here: pip install .+",
    r"needs the Python package .+, a build for .+ may need .+",
    r"needs kernels .+ or newer, kerncfg reads what .+ does",
    r"(built for|built with|compiled builds need) .+, the target('s torch)? (is|has|uses) .+",
    r"the compiled package .+ is for .+, the target is .+",
    r"publisher .+ is not trusted: set .+",
    r".+ was not named by you: .+",
    r".+ has no such revision.*; it has .+",
    r".+ is a file; name its folder, .+",
    r"no build in .+: looked for .+",
    r"there is a .+ of that name, and kernels are in repositories of type kernel",
    r"the lock does not hold it: `kerncfg lock` asks for what it lacks",
    r".+ is ignored: it comes from .+, and only a local file or an override can grant trust",
    r"metadata\.json(: .+)? is .+, expected .+",
    r"metadata\.json is no JSON, as was expected: .+",
    r".+ holds .+, which commit .+ has not",
    r".+ is no dependency of the kernel that is being imported; it declares .+",
    r"the (lock|plan) has format .+, this kerncfg reads .+",
    r"the (files of|plan's content) .*ha(s|ve) digest .+, the (lock|plan|file) says .+",
    r"is a plan, not a lock|.+: is a lock.*, not a plan|.+: holds a .+, not a plan",
)
# What stands before an inner reason, which has both.
AROUND = (
    r"no build fits: ",
    r"it imports .+: ",
    r".+ moved to .+, and ",
    r".+ came broken from the Hub, twice: ",
    r".+ is broken in the cache: ",
    r".+ stays as it is: ",
    r"the plan does not fit this machine: ",
    r"as last resolved, for ",
)
# What is no refusal but what somebody chose, or says where else to look.
CHOSEN = {
    "off, as the row says",
    "off, as inherited",
    "the original stands before it…",
    "replaced by your …",
    "the row takes nothing inherited",
    "…: a map takes the place of …, said at …",
    "… is beta upstream",
    "for a plan from a file say --trust …",
    "--check writes nothing, and --upgrade … is to be written",
    "… is neither a row with Hub kernels nor a repository",
    "no entry of a kernels.lock: …",
    "…: is no plan, it has no …",
    "…: not JSON (…)",
    "the source for … kernels, …, cannot be used: …",
    "… of … cannot be kept in …: …",
    *REASONS["why-code-may-run"],
}
TABLES = (REASONS, HUB, LOCKS, DEPENDENCIES, PLAN_FILES)
TEMPLATES = sorted({said for table in TABLES for messages in table.values() for said in messages} - CHOSEN)


def both_sides(reason: str) -> bool:
    """Whether a reason, or the one inside of it, says what was found and what was needed."""
    inner = next((reason[match.end() :] for each in AROUND if (match := re.match(each, reason))), None)
    if inner is not None and (inner.startswith("…") or both_sides(inner)):
        return True
    return any(re.fullmatch(pair, reason, re.DOTALL) for pair in PAIRS)


@pytest.mark.parametrize("template", TEMPLATES)
def test_every_template_of_a_refusal_has_both_sides(template: str) -> None:
    assert both_sides(template)


def test_what_is_chosen_is_in_the_tables() -> None:
    told = {said for table in TABLES for messages in table.values() for said in messages}
    assert not CHOSEN - told


@pytest.mark.parametrize(
    "reason",
    [
        "not found",
        "HTTP 404: not found",
        "no build",
        "unreachable",
        "needs torch",
        "found nothing",
        "it imports a/b: no",
    ],
)
def test_a_reason_without_a_side_is_none(reason: str) -> None:
    assert not both_sides(reason)


def refused(plan: kerncfg.Plan) -> Iterator[str]:
    """Every reason against a candidate; a reason for several builds is one for each of them."""
    for step in plan.steps:
        for found in step.modes.values():
            for rejection in found.rejected:
                yield from _verdicts(rejection.reason)


def _verdicts(reason: str) -> Iterator[str]:
    prefix, fits, verdicts = reason.partition("no build fits: ")
    if not fits:
        yield reason
    for verdict in re.split("; (?=torch|tvm)", verdicts) if fits else ():
        said = re.sub(r"^(torch|tvm)[\w-]*: ", "", verdict)
        yield prefix + re.sub(r"; (no version has one, looked at |v\d+ has ).*$", "", said)


def network(hub: TestHub) -> list[str]:
    """Rows that the Hub refuses, each for another reason."""
    private, gated = kernels.silu(f"{TRUSTED}/private"), kernels.silu(f"{TRUSTED}/gated")
    private.private, gated.gated = True, "manual"
    broken = kernels.repository(f"{TRUSTED}/broken", {"__init__.py": ""}, metadata={"version": "one"})
    needy = kernels.repository(f"{TRUSTED}/needy", {"__init__.py": ""}, metadata={"python-depends": ["einops"]})
    strange = kernels.repository(f"{TRUSTED}/strange", {"__init__.py": ""}, metadata={"python-depends": ["numpyy"]})
    circle = [
        kernels.dependent(f"{TRUSTED}/{one}", f"{TRUSTED}/{other}") for one, other in (("aa", "bb"), ("bb", "aa"))
    ]
    moved = kernels.redirect(f"{TRUSTED}/moved", f"{STRANGER}/norms")
    twice = [
        kernels.redirect(f"{TRUSTED}/one", f"{TRUSTED}/two"),
        kernels.redirect(f"{TRUSTED}/two", f"{TRUSTED}/three"),
    ]
    odd = kernels.redirect(f"{TRUSTED}/odd", "nowhere")
    wrong = Repository(f"{TRUSTED}/wrong-type", kind="model").describe()
    climbing = kernels.silu(f"{TRUSTED}/climbing")
    climbing.commit({"build/torch-cpu/../../../../up.py": "x = 1\n"}, "v1")
    hub.add(kernels.norms(), kernels.six_builds(), kernels.untrusted(), kernels.silu(f"{TRUSTED}/my-act"))
    hub.add(private, gated, broken, needy, strange, *circle, moved, *twice, odd, wrong, climbing)
    for name in ("forbidden", "busy", "teapot"):
        hub.add(kernels.silu(f"{TRUSTED}/{name}"))
    hub.fault("forbidden/refs", status=403, times=None)
    hub.fault("busy/refs", status=429, retry_after=3600, times=None)
    hub.fault("teapot/refs", status=418, times=None)
    names = ["private", "gated", "broken", "needy", "strange", "aa", "moved", "one", "odd", "wrong-type", "climbing"]
    names += ["forbidden", "busy", "teapot", "gone", "my_act"]
    rows = [f"kernels.{name.replace('-', '_')}.cpu={TRUSTED}/{name}@v1:SiLU" for name in names]
    versions = [
        f"kernels.R{n}.cpu='{TRUSTED}/norms@{at}:SiLU'" for n, at in enumerate(("v9", ">=7", "0123456", "v2.9"))
    ]
    return [*rows, *versions, f"kernels.six.cpu={TRUSTED}/six@v1:Scale"]


HERE = [
    f"kernels.untrusted.cpu={ACME}/norms@v1:X",
    "kernels.folder.cpu=/nowhere/norms:X",
    "kernels.module.cpu=python:nowhere.norms:X",
    "kernels.builtin.cuda=builtin:RMSNorm",
    "kernels.torch={cpu: [{kernel: 'builtin:RMSNorm', torch: '>=9'}]}",
    "kernels.capability={cpu: [{kernel: 'builtin:RMSNorm', capability: '>=9.0'}]}",
    "attention.default=flash_attention_3",
]
TARGETS: list[dict[str, Any]] = [
    {"device": "cpu"},
    {"device": "cuda", "capability": "7.5", "backend_version": "11.8", "torch": "2.1.0"},
    {"device": "cuda", "capability": "10.0", "backend_version": "13.0", "torch": "2.13.0", "cxx11_abi": False},
    {"device": "mps", "macos": "14.0", "os": "darwin", "cpu": "aarch64"},
    {"device": "rocm", "backend_version": "6.0"},
    {"device": "cpu", "os": "windows", "free_threaded": True, "python": "3.13"},
]


def test_every_no_of_the_hub_has_both_sides_and_its_status(hub: TestHub) -> None:
    reasons = list(dict.fromkeys(refused(planned(*network(hub)))))
    assert len(reasons) >= 20
    assert [reason for reason in reasons if not both_sides(reason)] == []
    assert sum(reason.startswith("HTTP ") for reason in reasons) >= 8


@pytest.mark.parametrize("target", TARGETS, ids=lambda target: str(target))
def test_every_build_that_is_refused_says_why(hub: TestHub, target: dict[str, Any]) -> None:
    archs = {"torch213-cxx11-cu130-x86_64-linux": ["8.0", "9.0a"], "torch213-cxx11-rocm71-x86_64-linux": ["gfx90a"]}
    hub.add(kernels.six_builds(archs=archs))
    device = target["device"]
    plan = kerncfg.plan("inherited=none", f"kernels.six.{device}={TRUSTED}/six@v1:Scale", *HERE, target=target)
    reasons = list(dict.fromkeys(refused(plan)))
    assert [reason for reason in reasons if not both_sides(reason)] == []


@pytest.mark.parametrize(
    "environment",
    [{"HF_HUB_OFFLINE": "1"}, {"HF_ENDPOINT": "http://127.0.0.1:9"}, {"USE_HUB_KERNELS": "0"}, {"HF_TOKEN": "a b"}],
    ids=str,
)
def test_what_the_environment_forbids_has_both_sides(
    hub: TestHub, monkeypatch: pytest.MonkeyPatch, environment: dict[str, str], tmp_path: Path
) -> None:
    hub.add(kernels.norms())
    planned(row(f"{TRUSTED}/norms@v2")).save(tmp_path / "plan.json")
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    (reason,) = set(refused(planned(row(f"{TRUSTED}/norms@v1"))))
    assert both_sides(reason), reason
    for reason in kerncfg.fetch(kerncfg.load_plan(tmp_path / "plan.json")).values():
        assert both_sides(reason), reason


def test_a_row_that_the_lock_lacks_or_that_is_no_pin_has_both_sides(hub: TestHub, tmp_path: Path) -> None:
    (tmp_path / "empty.lock").write_text(json.dumps({"schema": 1, "pins": {}}))
    rows = row(f"{TRUSTED}/norms@v1")
    (lacking,) = set(refused(planned(rows, lock=tmp_path / "empty.lock")))
    (unpinned,) = set(refused(planned(rows, "policy.require_pin=true")))
    (off,) = {step.reason for step in planned(rows, "enabled=false").steps}
    assert [both_sides(reason) for reason in (lacking, unpinned, str(off))] == [True] * 3


@pytest.mark.parametrize("text", ["{", "[]", '{"name": 3}', '{"name": "x", "version": -1}', "{} {}"])
def test_so_has_what_is_wrong_with_metadata(text: str) -> None:
    with pytest.raises(SourceError) as caught:
        Metadata.parse(text.encode())
    assert both_sides(caught.value.message)


def test_a_missing_file_of_a_plan_and_a_broken_one_have_both_sides(
    hub: TestHub, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    hub.add(kernels.norms())
    planned(row(f"{TRUSTED}/norms@v2")).save("plan.json")
    hub.fault("layers", wrong=True, times=None)
    assert main(["fetch", "plan.json", "--json"]) == 3
    reasons = [each["reason"] for each in json.loads(capsys.readouterr().out)["kernels"]]
    hub.faults.clear()
    assert main(["fetch", "plan.json", "--json"]) == 0
    for layers in hub.cache.rglob("layers.py"):
        layers.write_bytes(b"")
    capsys.readouterr()
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    assert main(["fetch", "plan.json", "--json"]) == 3
    reasons += [each["reason"] for each in json.loads(capsys.readouterr().out)["kernels"]]
    assert len(reasons) == 2 and [reason for reason in reasons if not both_sides(reason)] == []
