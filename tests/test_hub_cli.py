"""Kernels from the Hub as a user types them: locks, plans for machines elsewhere, fetching ahead, and a run."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from kerncfg.cli import main
from tests.hub import kernels
from tests.hub.kernels import ACME, TRUSTED
from tests.hub.repos import Build, Repository
from tests.hubbing import CPU, files_of, plan_of, row, typed

if TYPE_CHECKING:
    from tests.hub.fixtures import TestHub

NORMS = f"{TRUSTED}/norms"
SMALL = (
    "model.config.num_hidden_layers=1", "model.config.hidden_size=64", "model.config.intermediate_size=96",
    "model.config.head_dim=16", "model.config.vocab_size=128", "model.sequence=16",
)  # fmt: skip


def everywhere(name: str = f"{TRUSTED}/every") -> Repository:
    """A kernel with a build for each of five machines."""
    made = Repository(name)
    variants = ("torch-cuda", "torch-rocm", "torch-xpu", "torch-metal", "torch-cpu")
    made.release([Build(name="every", modules=kernels.norm_layers(2), variant=each) for each in variants])
    return made


def test_one_lock_plans_for_five_machines_without_a_network(hub: TestHub, tmp_path: Path) -> None:
    hub.add(everywhere())
    words = ("inherited=none", f"kernels.Scale={TRUSTED}/every@v1:Scale")
    assert typed(hub, tmp_path, "lock", *words).code == 0
    assert hub.log.kinds() == {"refs": 1, "tree": 1, "resolve": 5}
    hub.close()
    hub.log.clear()
    expected = {
        "h100": "torch-cuda", "mi300x": "torch-rocm", "max1550": "torch-xpu", "m3": "torch-metal", "cpu": "torch-cpu",
    }  # fmt: skip
    for target, variant in expected.items():
        done = typed(hub, tmp_path, "plan", "--json", f"target={target}", *words)
        found = done.inference()
        assert found["choices"], (target, found["rejected"])
        assert found["choices"][0]["variant"] == variant
        fits = {name: verdict for name, verdict in found["choices"][0]["builds"].items() if verdict == "chosen"}
        assert fits == {variant: "chosen"}
    assert hub.log.count() == 0


RMS = (*CPU, f"kernels.RMSNorm.cpu={NORMS}@v2:RMSNorm")


def run(capsys: pytest.CaptureFixture[str]) -> Any:
    """Run in this process, which has torch already."""
    assert main(["run", "--json", *RMS, *SMALL]) == 0
    (made,) = json.loads(capsys.readouterr().out)["runs"]
    return made


def planned_commit(made: Any) -> tuple[str, str]:
    choice = made["plan"]["steps"][0]["modes"]["inference"]["choices"][0]
    return choice["commit"], choice["variant"]


def test_a_run_fetches_verifies_and_reports_with_commit_and_build(
    norms: Repository,
    hub: TestHub,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    made = run(capsys)
    swapped = [each for each in made["report"]["rows"] if each["status"] == "swapped"]
    assert len(swapped) == 5
    assert {each["kernel"] for each in swapped} == {f"{NORMS}@v2:RMSNorm"}
    assert planned_commit(made) == (norms.branches["v2"], "torch-cpu")
    assert made["verification"]["rows"] and all(each["passed"] for each in made["verification"]["rows"])
    assert hub.log.kinds() == {"refs": 1, "tree": 1, "resolve": 3}


@pytest.mark.slow
def test_a_second_run_asks_once_and_with_a_lock_not_at_all(
    norms: Repository,
    hub: TestHub,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    run(capsys)
    hub.log.clear()
    run(capsys)
    assert hub.log.kinds() == {"refs": 1}
    assert main(["lock", *RMS]) == 0
    capsys.readouterr()
    hub.log.clear()
    commit = norms.branches["v2"]
    kernels.move(norms, "v2", 24)  # whatever happens there
    assert planned_commit(run(capsys)) == (commit, "torch-cpu")
    assert hub.log.count() == 0


def test_fetch_brings_ahead_what_a_plan_names(norms: Repository, hub: TestHub, tmp_path: Path) -> None:
    hub.add(kernels.dependent())
    plan_of(hub, tmp_path, row(f"{NORMS}@v2"), f"kernels.X.cpu={TRUSTED}/fused@v1:Scale", "-o", "plan.json")
    hub.log.clear()
    dry = typed(hub, tmp_path, "fetch", "plan.json", "--dry-run", "--json")
    assert dry.code == 0 and dry.data["dry_run"] and len(dry.data["kernels"]) == 3 and hub.log.count() == 0
    done = typed(hub, tmp_path, "fetch", "plan.json")
    assert done.code == 0 and done.err == ""
    assert done.out.splitlines() == [
        f"fetched {TRUSTED}/fused@v1:Scale at {hub_commit(hub, f'{TRUSTED}/fused', 'v1')}, torch-cpu: "
        + sizes(hub, f"{TRUSTED}/fused", "v1"),
        f"fetched {NORMS}@v1 at {norms.branches['v1'][:12]}, torch-cpu: {sizes(hub, NORMS, 'v1')}",
        f"fetched {NORMS}@v2:Scale at {norms.branches['v2'][:12]}, torch-cpu: {sizes(hub, NORMS, 'v2')}",
    ]
    with hub.log.expect(0):
        assert typed(hub, tmp_path, "fetch", "plan.json", "--json").code == 0


def hub_commit(hub: TestHub, name: str, branch: str) -> str:
    found = hub.repository("kernel", name)
    assert found is not None
    return found.branches[branch][:12]


def sizes(hub: TestHub, name: str, branch: str) -> str:
    found = hub.repository("kernel", name)
    assert found is not None
    files = [file for path, file in found.find(branch).files.items() if path.startswith("build/torch-cpu/")]
    return f"{len(files)} files, {sum(len(file.data) for file in files)} bytes"


def test_a_plan_carries_no_consent_to_fetch(hub: TestHub, tmp_path: Path) -> None:
    hub.add(kernels.norms(f"{ACME}/norms"))
    plan_of(hub, tmp_path, row(f"{ACME}/norms@v1"), "--trust", ACME, "-o", "plan.json")
    with hub.log.expect(0):
        refused = typed(hub, tmp_path, "fetch", "plan.json")
        assert refused.code == 1 and "trust.publishers.acme=true" in refused.err
    assert typed(hub, tmp_path, "fetch", "plan.json", "--trust", f"{ACME}/norms").code == 0


def test_a_lock_carries_no_consent(hub: TestHub, tmp_path: Path) -> None:
    hub.add(kernels.norms(f"{ACME}/norms"))
    assert typed(hub, tmp_path, "lock", "inherited=none", row(f"{ACME}/norms@v1"), "--trust", ACME).code == 0
    with hub.log.expect(0):
        assert "publisher acme is not trusted" in plan_of(hub, tmp_path, row(f"{ACME}/norms@v1")).refusal()


def test_trust_remote_code_counts_where_the_user_says_it(hub: TestHub, tmp_path: Path) -> None:
    hub.add(kernels.norms(f"{ACME}/norms"))
    said = f"{{kernel: '{ACME}/norms@v1:Scale', trust_remote_code: true}}"
    done = plan_of(hub, tmp_path, f"kernels.Scale.cpu={said}", row(f"{ACME}/norms@v2", "RMSNorm"))
    assert done.commit() and "publisher acme is not trusted" in done.refusal("RMSNorm")
    # A document that comes as data is nobody's consent, and neither is the word in a plan.
    program = (
        "import kerncfg; plan = kerncfg.plan(target='cpu', config={'inherited': {}, 'kernels': {'Scale': {'cpu': "
        f"{{'kernel': '{ACME}/norms@v1:Scale', 'trust_remote_code': True}}}}}}}})\n"
        "print(plan.step('Scale').modes[kerncfg.Mode.INFERENCE].rejected[0].reason, *plan.notes)"
    )
    import subprocess
    import sys

    with hub.log.expect(0):
        told = subprocess.run(
            [sys.executable, "-c", program], env=hub.environment(), capture_output=True, text=True, check=True
        ).stdout
    assert "publisher acme is not trusted" in told and "trust_remote_code" in told


# Locks.


def test_what_moved_is_told_and_one_row_is_moved(norms: Repository, hub: TestHub, tmp_path: Path) -> None:
    hub.add(kernels.silu())
    words = ("inherited=none", row(f"{NORMS}@v2"), f"kernels.SiLU.cpu={TRUSTED}/activation:SiLU")
    made = typed(hub, tmp_path, "lock", *words)
    assert (made.code, made.err) == (0, "written to kerncfg.lock: 2 pinned, 0 not\n")
    before = (tmp_path / "kerncfg.lock").read_bytes()
    assert typed(hub, tmp_path, "lock", *words).code == 0  # nothing is asked of what it holds
    assert (tmp_path / "kerncfg.lock").read_bytes() == before
    old = norms.branches["v2"]
    new = kernels.move(norms, "v2", 24)
    checked = typed(hub, tmp_path, "lock", "--check", *words)
    assert checked.code == 1
    assert checked.out == f"{NORMS}@v2: v2: {old[:12]}… → {new[:12]}…\n"
    assert (tmp_path / "kerncfg.lock").read_bytes() == before
    assert plan_of(hub, tmp_path, *words[1:]).commit() == old
    assert typed(hub, tmp_path, "lock", "--upgrade", "SiLU", *words).code == 0
    assert plan_of(hub, tmp_path, *words[1:]).commit() == old
    assert typed(hub, tmp_path, "lock", "--upgrade", "Scale", *words).out == checked.out
    assert plan_of(hub, tmp_path, *words[1:]).commit() == new


def test_a_check_without_a_hub_is_no_finding_but_a_fault_of_the_network(
    norms: Repository, hub: TestHub, tmp_path: Path
) -> None:
    words = ("inherited=none", row(f"{NORMS}@v2"))
    assert typed(hub, tmp_path, "lock", *words).code == 0
    before = (tmp_path / "kerncfg.lock").read_bytes()
    with hub.unreachable():
        for home in (hub.home, tmp_path / "cold"):
            done = typed(hub, tmp_path, "lock", "--check", *words, HF_HOME=str(home))
            assert done.code == 3 and done.out.startswith(f"not checked: {NORMS}@v2: ")
            upgrade = typed(hub, tmp_path, "lock", "--upgrade", NORMS, *words, HF_HOME=str(home))
            assert upgrade.code == 3 and "stays as it is" in upgrade.err
        assert (tmp_path / "kerncfg.lock").read_bytes() == before
        other = typed(hub, tmp_path, "lock", "--lock", "new.lock", *words, HF_HOME=str(tmp_path / "cold"))
        assert other.code == 3 and other.out.startswith(f"not pinned: {NORMS}@v2: the Hub at ")


def test_a_lock_of_the_kernels_library_is_read(norms: Repository, hub: TestHub, tmp_path: Path) -> None:
    old = norms.branches["v2"]
    entry = {"dependency": {"repo-id": NORMS, "version": 2}, "lock": {"commit": old}}
    (tmp_path / "kernels.lock").write_text(json.dumps([entry]))
    new = kernels.move(norms, "v2", 24)
    done = plan_of(hub, tmp_path, row(f"{NORMS}@v2"), row(f"{NORMS}@v1", "RMSNorm"), "--lock", "kernels.lock")
    assert done.commit() == old
    assert done.refusal("RMSNorm") == "the lock does not hold it: `kerncfg lock` asks for what it lacks"
    kinds = hub.log.kinds()
    assert kinds["refs"] == 1 and kinds["commits"] == 2  # whether it is in the history of v3, or else of v2
    words = ("inherited=none", row(f"{NORMS}@v2"))
    checked = typed(hub, tmp_path, "lock", "--from", "kernels.lock", "--check", *words)
    assert checked.code == 1 and checked.out == f"{NORMS}@v2: {old[:12]}… → {new[:12]}…\n"
    assert typed(hub, tmp_path, "lock", "--from", "kernels.lock", *words).code == 0
    pin = json.loads((tmp_path / "kerncfg.lock").read_text())["pins"][f"{NORMS}@v2"]
    assert [(each["commit"], each["revision"]) for each in pin["releases"]] == [(old, "v2")]
    assert plan_of(hub, tmp_path, row(f"{NORMS}@v2")).commit() == old


def test_a_lock_that_is_none_newer_or_edited_is_refused(norms: Repository, hub: TestHub, tmp_path: Path) -> None:
    words = (row(f"{NORMS}@v2"),)
    assert typed(hub, tmp_path, "lock", "inherited=none", *words).code == 0
    file = tmp_path / "kerncfg.lock"
    data = json.loads(file.read_text())
    newer = {**data, "schema": 2, "future": True}
    release = data["pins"][f"{NORMS}@v2"]["releases"][0]
    (build,) = release["builds"].values()
    build["files"]["layers.py"]["digest"] = f"git:{'0' * 40}"
    cases = {
        json.dumps(newer): "kerncfg.lock: the lock has format 2, this kerncfg reads 1",
        json.dumps(data): "kerncfg.lock: the files of build torch-cpu have digest ",
        "{": "kerncfg.lock: not JSON",
        "[{}]": "kerncfg.lock: no entry of a kernels.lock: {}",
    }
    for text, message in cases.items():
        file.write_text(text)
        done = typed(hub, tmp_path, "plan", *CPU, *words)
        assert done.code == 1 and f"error: {message}" in done.err, done.err
    release["commit"] = "../../../tmp"
    file.write_text(json.dumps(data))
    done = typed(hub, tmp_path, "plan", *CPU, *words)
    assert done.code == 1 and "40 hexadecimal digits" in done.err


# Off.


def test_nothing_is_asked_while_kernels_are_off(norms: Repository, hub: TestHub, tmp_path: Path) -> None:
    words = (row(f"{NORMS}@v2"), "kernels.RMSNorm.cpu=builtin:RMSNorm")
    plan_of(hub, tmp_path, *words, "-o", "plan.json")
    with hub.log.expect(0):
        off = plan_of(hub, tmp_path, *words, "enabled=false")
        assert off.inference()["choices"][0]["reference"] == "original"
        assert typed(hub, tmp_path, "lock", "inherited=none", *words, "enabled=false").code == 0
        assert "enabled is false" in (tmp_path / "kerncfg.lock").read_text()
        (tmp_path / "kerncfg.lock").unlink()
        for value in ("0", "no", ""):
            done = plan_of(hub, tmp_path, *words, USE_HUB_KERNELS=value)
            assert done.refusal() == "Hub kernels are switched off by USE_HUB_KERNELS, needed 1, ON, YES or TRUE"
            assert done.inference("RMSNorm")["choices"][0]["reference"] == "builtin:RMSNorm"
        fetched = typed(hub, tmp_path, "fetch", "plan.json", USE_HUB_KERNELS="0")
        assert fetched.code == 3 and "switched off by USE_HUB_KERNELS" in fetched.out
        locked = typed(hub, tmp_path, "lock", "inherited=none", *words, USE_HUB_KERNELS="0")
        assert "not pinned: " in locked.out and "USE_HUB_KERNELS" in locked.out


def test_an_untrusted_row_makes_no_request_and_names_the_key(hub: TestHub, tmp_path: Path) -> None:
    hub.add(kernels.untrusted())
    with hub.log.expect(0):
        done = plan_of(hub, tmp_path, row("stranger/norms@v1"))
        assert done.refusal() == (
            "publisher stranger is not trusted: set trust.publishers.stranger=true, "
            "or trust.repositories.stranger/norms=true for this repository alone"
        )
        assert done.inference()["rejected"][0]["origin"].startswith("override: kernels.Scale.cpu")
        assert typed(hub, tmp_path, "lock", "inherited=none", row("stranger/norms@v1")).code == 0
    key = "trust.publishers.stranger=true"
    (tmp_path / "kerncfg.lock").unlink()
    assert plan_of(hub, tmp_path, row("stranger/norms@v1"), key).commit()


def test_the_token_is_printed_nowhere(norms: Repository, hub: TestHub, tmp_path: Path) -> None:
    token = "hf_very_secret"
    hub.tokens = {token: frozenset({"*"})}
    said = {"HF_TOKEN": token}
    words = (row(f"{NORMS}@v2"), row(f"{TRUSTED}/gone@v1", "SiLU"))
    printed = []
    for command in (
        ("plan", "--json", *CPU),
        ("plan", *CPU),
        ("lock", "inherited=none"),
        ("lock", "--json", "inherited=none"),
    ):
        output = ("-o", "plan.json") if command[0] == "plan" else ()
        done = typed(hub, tmp_path, *command, *words, *output, **said)
        assert done.code == 0
        printed.append(done.out + done.err)
    (tmp_path / "kerncfg.lock").unlink()
    hub.tokens = {}  # it is not taken any more
    done = plan_of(hub, tmp_path, *words, **said, HF_HOME=str(tmp_path / "cold"))
    assert "the token that was sent was rejected" in done.refusal()
    fetched = typed(hub, tmp_path, "fetch", "plan.json", **said, HF_HOME=str(tmp_path / "cold"))
    assert fetched.code == 3 and "HTTP 401: the token that was sent was rejected" in fetched.out
    printed += [done.out + done.err, fetched.out + fetched.err]
    odd = plan_of(hub, tmp_path, *words, HF_TOKEN=f"{token}\nx", HF_HOME=str(tmp_path / "cold"))
    printed.append(odd.out + odd.err)
    assert all(each.authorized for each in hub.log.everything)
    written = [
        file.read_text("utf-8", "replace") for folder in (tmp_path,) for file in folder.rglob("*") if file.is_file()
    ]
    assert not any(token in text for text in [*printed, *written])


def test_the_cache_is_where_the_variables_say(norms: Repository, hub: TestHub, tmp_path: Path) -> None:
    plan_of(hub, tmp_path, row(f"{NORMS}@v2"), "-o", "plan.json", KERNELS_CACHE=str(tmp_path / "k"))
    assert files_of(tmp_path / "k") and not (hub.home / "hub").exists()
    typed(hub, tmp_path, "fetch", "plan.json", HF_HUB_CACHE=str(tmp_path / "c"))
    assert list((tmp_path / "c").rglob("layers.py")) and not list((tmp_path / "k").rglob("layers.py"))
