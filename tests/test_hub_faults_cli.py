"""A Hub that is away, ill, slow, closed or lying, and what a user who types kerncfg sees of it."""

from __future__ import annotations

import json
import re
import shutil
import signal
import socket
import threading
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from tests.hub import kernels
from tests.hub.kernels import TRUSTED
from tests.hub.repos import Repository
from tests.hubbing import CPU, Done, ended, files_of, planned, row, started
from tests.hubbing import plan_apart as plan_of
from tests.hubbing import typed_apart as typed

if TYPE_CHECKING:
    from tests.hub.fixtures import TestHub

NORMS = f"{TRUSTED}/norms"
V2 = row(f"{NORMS}@v2")


def both_sides(reason: str) -> bool:
    """Whether a reason of the network says what was found, with its status, and what was needed."""
    return re.match(r"HTTP \d{3}: ", reason) is not None and ("needed " in reason or "; it has " in reason)


@pytest.mark.parametrize(
    "rows",
    [
        {"Scale": f"{NORMS}@v2"},
        {"Scale": f"{NORMS}@>=2.0,<3.0", "RMSNorm": NORMS, "SiLU": f"{NORMS}@v2.0.0"},
    ],
    ids=["version", "range, unpinned and tag"],
)
def test_b19_offline_after_an_online_run_asks_for_nothing(
    norms: Repository, hub: TestHub, tmp_path: Path, rows: dict[str, str]
) -> None:
    words = [row(reference, name) for name, reference in rows.items()]
    online = plan_of(hub, tmp_path, *words, "-o", "plan.json")
    assert typed(hub, tmp_path, "fetch", "plan.json").code == 0
    before = files_of(hub.home)
    with hub.log.expect(0):
        offline = plan_of(hub, tmp_path, *words, HF_HUB_OFFLINE="1")
        fetched = typed(hub, tmp_path, "fetch", "plan.json", HF_HUB_OFFLINE="1")
    assert offline.data["digest"] == online.data["digest"] and fetched.code == 0
    for name in rows:
        assert "as last resolved, for HF_HUB_OFFLINE is set" in offline.inference(name)["choices"][0]["reason"]
    assert files_of(hub.home) == before  # nothing was written either


def test_offline_what_is_not_there_is_told_with_the_cache(norms: Repository, hub: TestHub, tmp_path: Path) -> None:
    with hub.log.expect(0):
        done = plan_of(hub, tmp_path, V2, HF_HUB_OFFLINE="1")
    found = f"HF_HUB_OFFLINE is set, and {NORMS} is not in the cache, {hub.cache}"
    assert done.refusal() == f"{found}; needed its branches and tags"
    plan_of(hub, tmp_path, V2, "-o", "plan.json")
    fetched = typed(hub, tmp_path, "fetch", "plan.json", HF_HUB_OFFLINE="1")
    commit = norms.branches["v2"][:12]
    assert fetched.code == 3
    assert re.search(rf"{re.escape(found)}; needed its file build/torch-cpu/\S+ of commit {commit}", fetched.out)


def test_b25_every_no_is_another_reason(norms: Repository, hub: TestHub, tmp_path: Path) -> None:
    private = kernels.silu(f"{TRUSTED}/private")
    private.private = True
    gated = kernels.silu(f"{TRUSTED}/gated")
    gated.gated = "manual"
    hub.add(private, gated, Repository(f"{TRUSTED}/wrong-type", kind="model").describe())
    hub.fault("forbidden/refs", status=403, times=None)
    names = ("gone", "private", "gated", "wrong-type", "forbidden")
    words = [f"kernels.{name}.cpu={TRUSTED}/{name}@v1:SiLU" for name in names]
    done = plan_of(hub, tmp_path, *words, row(f"{NORMS}@v9"), row(f"{NORMS}@0123456", "RMSNorm"))
    at = f"at {hub.url}"
    expected = {
        "gone": f"HTTP 404: there is no kernel repository {TRUSTED}/gone {at}, needed its branches and tags",
        "private": f"HTTP 401: {TRUSTED}/private is private or does not exist, and no token was sent: set HF_TOKEN; "
        "needed its branches and tags",
        "gated": f"HTTP 401: {TRUSTED}/gated is gated, and no token was sent: set HF_TOKEN; needed its file "
        f"build/torch-cpu/metadata.json of commit {gated.branches['v1'][:12]}: ask for access at "
        f"{hub.url}/kernels/{TRUSTED}/gated",
        "wrong-type": f"HTTP 404: there is no kernel repository {TRUSTED}/wrong-type {at}, needed its branches and "
        "tags; there is a model of that name, and kernels are in repositories of type kernel",
        "forbidden": f"HTTP 403: access to {TRUSTED}/forbidden is forbidden, and no token was sent: set HF_TOKEN; "
        "needed its branches and tags",
        "Scale": f"HTTP 404: {NORMS} has no such revision, needed revision v9; it has main, v1, v2, v3, feature/x, "
        "v2.0.0, v2.1.0, v2.2.0rc1, v4.0.0a1",
        "RMSNorm": f"HTTP 404: {NORMS} has no such revision, needed revision 0123456; it has main, v1, v2, v3, "
        "feature/x, v2.0.0, v2.1.0, v2.2.0rc1, v4.0.0a1",
    }
    assert {name: done.refusal(name) for name in expected} == expected
    assert all(map(both_sides, expected.values()))
    assert all("override: " in done.inference(name)["rejected"][0]["origin"] for name in expected)
    # The same with a token that opens one of them.
    hub.tokens = {"hf_some": frozenset({f"{TRUSTED}/private"})}
    done = plan_of(hub, tmp_path, *words, HF_TOKEN="hf_some", HF_HOME=str(tmp_path / "other"))
    assert done.commit("private") == private.branches["v1"]
    assert done.refusal("gated").startswith(
        f"HTTP 403: {TRUSTED}/gated is gated, with the token that was sent; needed its file"
    )


def test_a_row_that_may_not_fall_back_names_its_place_and_the_reason(
    hub: TestHub, norms: Repository, tmp_path: Path
) -> None:
    (tmp_path / "conf" / "kernels").mkdir(parents=True)
    (tmp_path / "conf" / "kernels" / "mine.yaml").write_text(
        f"Scale:\n  cpu: {TRUSTED}/gone@v1:Scale\n  fallback: error\n"
    )
    done = typed(hub, tmp_path, "plan", *CPU, "kernels=mine", "--config-dir", "conf")
    assert done.code == 1
    assert re.search(r"mine\.yaml:1: kernels\.Scale: no kernel for cpu: .*HTTP 404: there is no", done.err)


def test_a_busy_hub_is_waited_for_as_long_as_it_asks(norms: Repository, hub: TestHub, tmp_path: Path) -> None:
    hub.fault("/refs", status=429, retry_after=0.0, times=2)
    hub.fault("/tree/", status=429, retry_after=1)
    hub.fault("/resolve/", status=503)
    start = time.monotonic()
    assert plan_of(hub, tmp_path, V2).commit() == norms.branches["v2"]
    assert time.monotonic() - start >= 1.5
    assert hub.log.count() == 3 + 2 + 1 + 1


def test_a_wait_that_is_too_long_is_refused_at_once(norms: Repository, hub: TestHub, tmp_path: Path) -> None:
    plan_of(hub, tmp_path, V2, "-o", "plan.json")
    hub.log.clear()
    hub.fault("", status=429, retry_after=3600, times=None)
    done = plan_of(hub, tmp_path, V2)
    assert done.commit() == norms.branches["v2"]  # as it was last resolved, and said so
    reason = done.inference()["choices"][0]["reason"]
    assert "as last resolved, for HTTP 429: too many requests, needed its branches and tags of" in reason
    assert "it asks to wait 3600 s and kerncfg waits 60 s at most" in reason
    cold = {"HF_HOME": str(tmp_path / "cold")}
    assert both_sides(plan_of(hub, tmp_path, V2, **cold).refusal())
    start = time.monotonic()
    fetched = typed(hub, tmp_path, "fetch", "plan.json", **cold)
    assert fetched.code == 3 and "HTTP 429" in fetched.out and time.monotonic() - start < 20
    assert hub.log.count() <= 1 + 1 + 3


def test_broken_answers_are_asked_for_again(norms: Repository, hub: TestHub, tmp_path: Path) -> None:
    hub.fault("/refs", reset=True)
    hub.fault("/tree/", cut=0.5)
    hub.fault("metadata", cut=0.5, reset=True)
    plan_of(hub, tmp_path, V2, "-o", "plan.json")
    hub.fault("layers", wrong=True)
    hub.fault("__init__", slow=0.05)
    done = typed(hub, tmp_path, "fetch", "plan.json")
    assert done.code == 0, done.out
    assert [each.status for each in hub.log.find("layers")] == [200, 200]


@pytest.mark.slow  # the waits between tries are real: 7.5 s
@pytest.mark.parametrize("said", [{"status": 500}, {"reset": True}, {"cut": 0.5}], ids=["500", "reset", "cut"])
def test_a_hub_that_stays_ill_is_a_reason_or_the_commit_of_last_time(
    norms: Repository, hub: TestHub, tmp_path: Path, said: dict[str, Any]
) -> None:
    before = norms.branches["v2"]
    plan_of(hub, tmp_path, V2)
    kernels.move(norms, "v2", 24)
    hub.fault("/refs", times=None, **said)
    hub.log.clear()
    done = plan_of(hub, tmp_path, V2, row(f"{NORMS}@v1", "RMSNorm"))
    assert done.commit() == before
    assert "as last resolved, for " in done.inference()["choices"][0]["reason"]
    reason = done.refusal("RMSNorm")  # v1 was never resolved, and never is another commit taken for it
    assert both_sides(reason) if "status" in said else "gave no answer about" in reason
    assert "needed its branches and tags" in reason
    assert hub.log.count() == 5


@pytest.mark.slow  # the same
def test_a_hub_that_is_away_is_found_out_once(norms: Repository, hub: TestHub, tmp_path: Path) -> None:
    plan_of(hub, tmp_path, V2)
    names = [f"kernels.R{number}.cpu={TRUSTED}/r{number}@v1:Scale" for number in range(12)]
    with socket.create_server(("127.0.0.1", 0), backlog=64) as listener:
        connects: list[float] = []
        stop = threading.Event()

        def accept() -> None:
            listener.settimeout(0.1)
            while not stop.is_set():
                try:
                    connection, _ = listener.accept()
                except TimeoutError:
                    continue
                connects.append(time.monotonic())
                connection.close()  # it hangs up on everybody

        thread = threading.Thread(target=accept)
        thread.start()
        address = f"http://127.0.0.1:{listener.getsockname()[1]}"
        done = plan_of(hub, tmp_path, V2, *names, HF_ENDPOINT=address)
        stop.set()
        thread.join()
    assert len(connects) == 5  # one question, and its four further tries
    assert done.commit() == norms.branches["v2"]
    assert all(f"the Hub at {address} gave no answer about" in done.refusal(f"R{number}") for number in range(12))
    with hub.unreachable():
        start = time.monotonic()
        refused = plan_of(hub, tmp_path, *names)
        assert time.monotonic() - start < 30
    assert "ConnectError" in refused.refusal("R0")


def damage(hub: TestHub, text: bytes | None) -> Path:
    """Change or shorten the layers of a fetched build."""
    (layers,) = hub.cache.rglob("snapshots/*/build/torch-cpu/layers.py")
    right = layers.read_bytes()
    layers.resolve().write_bytes(right[:-5] if text is None else text.ljust(len(right), b"#"))
    return layers


@pytest.mark.parametrize("text", [b"raise SystemExit('poisoned')", None], ids=["changed", "short"])
def test_a_damaged_cache_is_healed_and_offline_told(
    norms: Repository, hub: TestHub, tmp_path: Path, text: bytes | None
) -> None:
    plan_of(hub, tmp_path, V2, "-o", "plan.json")
    typed(hub, tmp_path, "fetch", "plan.json")
    layers = damage(hub, text)
    offline = typed(hub, tmp_path, "fetch", "plan.json", HF_HUB_OFFLINE="1")
    assert offline.code == 3
    assert re.search(
        r"layers\.py of .* is broken in the cache: found .*, needed .*, and HF_HUB_OFFLINE is set", offline.out
    )
    with hub.log.expect(1):
        assert typed(hub, tmp_path, "fetch", "plan.json").code == 0
    assert layers.read_bytes() == norms.find("v2").files["build/torch-cpu/layers.py"].data
    for file in hub.cache.rglob("*.json"):  # what was written down is asked for anew where it is broken
        if file.parent.name in ("trees", "kerncfg"):
            file.write_bytes(file.read_bytes()[:-20])
    assert plan_of(hub, tmp_path, V2).commit() == norms.branches["v2"]


def test_a_hub_that_sends_wrong_bytes_leaves_nothing_of_them(norms: Repository, hub: TestHub, tmp_path: Path) -> None:
    plan_of(hub, tmp_path, V2, "-o", "plan.json")
    hub.fault("layers", wrong=True, times=None)
    done = typed(hub, tmp_path, "fetch", "plan.json")
    assert done.code == 3 and re.search(r"came broken from the Hub, twice: found git \w+, needed \w+", done.out)
    assert not list(hub.cache.rglob("layers.py"))
    hub.faults.clear()
    assert typed(hub, tmp_path, "fetch", "plan.json").code == 0


def test_several_processes_at_one_empty_cache(norms: Repository, hub: TestHub, tmp_path: Path) -> None:
    plan_of(hub, tmp_path, V2, "-o", "plan.json", HF_HOME=str(tmp_path / "other"))
    hub.fault("layers", delay=0.2, times=None)
    running = [started(hub, tmp_path, "fetch", "plan.json") for _ in range(4)]
    done = [ended(process) for process in running]
    assert [each.code for each in done] == [0] * 4, done
    assert not list(hub.cache.rglob("*.part"))
    with hub.log.expect(0):
        assert typed(hub, tmp_path, "fetch", "plan.json", HF_HUB_OFFLINE="1").code == 0


def test_a_process_that_was_killed_half_way_harms_no_other(norms: Repository, hub: TestHub, tmp_path: Path) -> None:
    plan_of(hub, tmp_path, V2, "-o", "plan.json")
    fault = hub.fault("layers", slow=1.0)
    process = started(hub, tmp_path, "fetch", "plan.json")
    until = time.monotonic() + 60
    while not fault.hits and time.monotonic() < until:
        time.sleep(0.02)
    time.sleep(0.3)
    process.send_signal(signal.SIGKILL)
    process.communicate()
    assert fault.hits == 1 and not list(hub.cache.rglob("layers.py"))
    assert typed(hub, tmp_path, "fetch", "plan.json").code == 0
    (layers,) = hub.cache.rglob("layers.py")
    assert layers.read_bytes() == norms.find("v2").files["build/torch-cpu/layers.py"].data


@pytest.mark.parametrize(
    ("words", "pattern"),
    [
        (("lock", *CPU, V2), "/refs"),
        (("plan", *CPU, V2), "/tree/"),
        (("plan", *CPU, V2), "metadata"),
        (("fetch", "plan.json"), "layers"),
    ],
    ids=["lock", "plan, the listing", "plan, the metadata", "fetch"],
)
def test_an_interrupt_ends_at_once_what_waits_for_a_silent_hub(
    norms: Repository, hub: TestHub, tmp_path: Path, words: tuple[str, ...], pattern: str
) -> None:
    if words[0] == "fetch":
        planned(V2, target="cpu").save(tmp_path / "plan.json")
        shutil.rmtree(hub.cache)
    slow = {"slow": 3.0} if pattern == "layers" else {"delay": 60.0}
    fault = hub.fault(pattern, times=None, **slow)
    process = started(hub, tmp_path, *words)
    until = time.monotonic() + 60
    while not fault.hits and time.monotonic() < until:
        time.sleep(0.02)
    time.sleep(0.3)
    process.send_signal(signal.SIGINT)
    start = time.monotonic()
    done = ended(process)
    assert time.monotonic() - start < 5
    assert done.code == 130 and done.out == "" and done.err.split() == ["interrupted"]
    assert not (tmp_path / "kerncfg.lock").exists()
    assert not [path for path in hub.home.rglob("*") if path.suffix in (".part", ".tmp")]
    hub.faults.clear()
    assert plan_of(hub, tmp_path, V2).commit() == norms.branches["v2"]


@pytest.mark.parametrize("path", ["build/torch-cpu/../../../../up.py", "build/torch-cpu/a\\..\\up.py"])
def test_a_name_that_climbs_out_of_the_cache_is_refused(
    norms: Repository, hub: TestHub, tmp_path: Path, path: str
) -> None:
    norms.commit({path: "x = 1\n"}, "v2")
    done = plan_of(hub, tmp_path, V2)
    assert done.refusal() == f"{NORMS} has a file {path!r}, whose name leads out of its folder, needed a plain path"
    assert not list(tmp_path.rglob("up.py"))


def test_a_plan_that_climbs_out_of_the_cache_is_refused(norms: Repository, hub: TestHub, tmp_path: Path) -> None:
    plan_of(hub, tmp_path, V2, "-o", "plan.json")
    commit = norms.branches["v2"]
    text = (tmp_path / "plan.json").read_text().replace(commit, "../../../../../../../tmp/evil")
    (tmp_path / "plan.json").write_text(text)
    done = typed(hub, tmp_path, "fetch", "plan.json")
    assert done.code == 1 and "40 hexadecimal digits" in done.err


def test_somebody_elses_page_in_the_place_of_the_hub_is_told(hub: TestHub, tmp_path: Path) -> None:
    from tests.test_asking import proxy

    with proxy(b"<html>log in</html>") as address:
        done = plan_of(hub, tmp_path, V2, HF_ENDPOINT=address)
    assert done.refusal().startswith(f"HTTP 200: {address}/api/kernels/{NORMS}/refs answered '<html>log in</html>'")
    assert both_sides(done.refusal())


PROGRAM = """
import json, os, sys
import kerncfg, huggingface_hub

def commit():
    plan = kerncfg.plan("inherited=none", "kernels.Scale.cpu={norms}@v2:Scale", target="cpu")
    found = plan.step("Scale").modes[kerncfg.Mode.INFERENCE]
    return found.choices[0].kernel.commit or found.rejected[0].reason

told = [commit()]
for line in sys.argv[1:]:
    os.environ.update(json.loads(line))
    told.append(commit())
print(json.dumps(told))
"""


def test_b26_variables_that_change_after_the_import_are_heard(norms: Repository, hub: TestHub, tmp_path: Path) -> None:
    import subprocess
    import sys

    norms.private = True
    hub.tokens = {"hf_good": frozenset({NORMS})}
    steps = [
        {"HF_ENDPOINT": hub.url},
        {"HF_TOKEN": "hf_good"},
        {"HF_HUB_OFFLINE": "1"},
        {"HF_HOME": str(tmp_path / "a")},
        {"HF_HUB_OFFLINE": "0", "HF_HUB_CACHE": str(tmp_path / "b")},
        {"KERNELS_CACHE": str(tmp_path / "c")},
        {"USE_HUB_KERNELS": "0"},
    ]
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM.replace("{norms}", NORMS), *map(json.dumps, steps)],
        env=hub.environment(HF_ENDPOINT="http://127.0.0.1:9"), capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    told = json.loads(done.stdout)
    commit = norms.branches["v2"]
    assert "the Hub at http://127.0.0.1:9 gave no answer" in told[0]
    assert "HTTP 401" in told[1]
    assert told[2:4] == [commit, commit]
    assert "is not in the cache, " + str(tmp_path / "a" / "hub") in told[4]
    assert told[5:7] == [commit, commit]
    assert "switched off by USE_HUB_KERNELS" in told[7]
    for name in ("b", "c"):
        assert (tmp_path / name / f"kernels--{TRUSTED}--norms").is_dir()


def test_the_reasons_that_a_user_sees_name_both_sides() -> None:
    assert both_sides("HTTP 404: found nothing, needed it")
    assert not both_sides("HTTP 404: not found")
    assert not both_sides("not found, needed it")
    assert Done(code=0, out="{}", err="").data == {}
