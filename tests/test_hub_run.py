"""`kerncfg run` of kernels from the Hub as a user types it: what fails, and a cache that cannot be written."""

from __future__ import annotations

import ctypes
import json
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from tests.hub import kernels
from tests.hub.kernels import TRUSTED
from tests.hubbing import CPU, Done, ended, files_of, planned, row
from tests.hubbing import typed_apart as typed

if TYPE_CHECKING:
    from tests.hub.fixtures import TestHub
    from tests.hub.repos import Repository

NORMS = f"{TRUSTED}/norms"
V2 = row(f"{NORMS}@v2")
MODEL = """
import kerncfg
import torch
from torch import nn


def layer(name):
    @kerncfg.kernel_layer(name)
    class Same(nn.Module):
        def forward(self, input: torch.Tensor) -> torch.Tensor:
            return input * 23.0  # as `norms` at v2

    return Same()


def make():
    names = ("Scale", "Half", "Closed", "Forbidden", "Gated", "Gone")
    return nn.Sequential(*(layer(name) for name in (*names, *names))), {"input": torch.ones(2)}
"""
WORDS = (*CPU, "model={factory: 'python:small:make', dtype: float32}", "policy.verify.on_fail=report")


@pytest.fixture
def norms(hub: TestHub, tmp_path: Path) -> Repository:
    (tmp_path / "small.py").write_text(MODEL)
    made = kernels.norms()
    hub.add(made)
    return made


def run_of(hub: TestHub, folder: Path, *words: str, **environment: str) -> tuple[Done, dict[str, Any]]:
    """Type `kerncfg run --json` and give what it printed of its one run."""
    path = {"PYTHONPATH": f"{hub.environment()['PYTHONPATH']}:{folder}"}
    done = typed(hub, folder, "run", "--json", *WORDS, *words, **path, **environment)
    (made,) = done.data["runs"]
    return done, made


def test_what_fails_is_kept_with_its_reason_and_asked_for_once(norms: Repository, hub: TestHub, tmp_path: Path) -> None:
    hub.add(kernels.fails_half_way(), *(kernels.silu(f"{TRUSTED}/{name}") for name in ("closed", "forbidden", "gated")))
    hub.fault("closed/refs", status=401, times=None)
    hub.fault("forbidden/refs", status=403, times=None)
    hub.fault("gated/resolve/.*layers", status=403, code="GatedRepo", times=None)
    places = {"Half": "half", "Closed": "closed", "Forbidden": "forbidden", "Gated": "gated", "Gone": "gone"}
    rows = [f"kernels.{name}.cpu={TRUSTED}/{place}@v1:Scale" for name, place in places.items()]
    done, made = run_of(hub, tmp_path, V2, *rows)
    assert done.code == 0 and made["report"]["counts"]["swapped"] == 2
    reasons = {each["name"]: each["reason"] for each in made["report"]["rows"] if each["status"] == "kept"}
    for step in made["plan"]["steps"]:
        for rejection in step["modes"]["inference"]["rejected"]:
            reasons[step["name"]] = rejection["reason"]
    assert "cannot be imported: RuntimeError: half of a kernel" in reasons["Half"]
    assert reasons["Closed"].startswith(f"HTTP 401: {TRUSTED}/closed is private or does not exist, and no token")
    assert reasons["Forbidden"].startswith(f"HTTP 403: access to {TRUSTED}/forbidden is forbidden, and no token")
    assert f"HTTP 403: {TRUSTED}/gated is gated, and no token was sent" in reasons["Gated"]
    assert reasons["Gone"].startswith(f"HTTP 404: there is no kernel repository {TRUSTED}/gone at {hub.url}, needed ")
    for place in ("half/resolve/.*layers", "closed/refs", "forbidden/refs", "gated/resolve/.*layers", "gone/refs"):
        assert hub.log.count(place) == 1, place  # however many sites there are


def test_a_damaged_cache_is_healed_before_it_runs(norms: Repository, hub: TestHub, tmp_path: Path) -> None:
    plan = planned(V2)
    plan.save(tmp_path / "plan.json")
    assert typed(hub, tmp_path, "fetch", "plan.json").code == 0
    (layers,) = hub.cache.rglob("snapshots/*/build/torch-cpu/layers.py")
    right = layers.read_bytes()
    layers.resolve().write_bytes(b"raise SystemExit('poisoned')".ljust(len(right), b"#"))
    with hub.log.expect(1, "layers"):
        done, made = run_of(hub, tmp_path, V2)
    assert done.code == 0 and made["report"]["counts"]["swapped"] == 2 and layers.read_bytes() == right


@contextmanager
def read_only(folder: Path) -> Iterator[Callable[[], None]]:
    """Take the right to write below a folder away, from root too: give what a process does before it starts."""
    everything = [folder, *folder.rglob("*")]
    for path in everything:
        if not path.is_symlink():
            path.chmod(0o555 if path.is_dir() else 0o444)

    def weaken() -> None:
        # Root writes where it may not, by a capability that no later program of this process gets any more.
        ctypes.CDLL(None).prctl(24, 1, 0, 0, 0)  # PR_CAPBSET_DROP, CAP_DAC_OVERRIDE

    try:
        yield weaken
    finally:
        for path in everything:
            if not path.is_symlink():
                path.chmod(0o755 if path.is_dir() else 0o644)


def test_a_cache_that_cannot_be_written_is_used_without_a_write(
    norms: Repository, hub: TestHub, tmp_path: Path
) -> None:
    planned(V2).save(tmp_path / "plan.json")
    assert typed(hub, tmp_path, "fetch", "plan.json").code == 0
    before = files_of(hub.home)
    path = f"{hub.environment()['PYTHONPATH']}:{tmp_path}"

    def weakly(*words: str, **environment: str) -> Done:
        process = subprocess.Popen(
            [sys.executable, *words], cwd=tmp_path, env=hub.environment(PYTHONPATH=path, **environment),
            stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, preexec_fn=weaken,
        )  # fmt: skip
        return ended(process)

    with read_only(hub.home) as weaken:
        tried = weakly("-c", f"try: open({str(hub.cache / 'x')!r}, 'w')\nexcept PermissionError: print('no')")
        assert tried.out == "no\n"
        for environment in ({}, {"HF_HUB_OFFLINE": "1"}):
            done = weakly("-m", "kerncfg", "plan", "--json", *CPU, V2, **environment)
            assert done.commit() == norms.branches["v2"]
        with hub.log.expect(0):
            assert weakly("-m", "kerncfg", "fetch", "plan.json").code == 0
        done = weakly("-m", "kerncfg", "run", "--json", *WORDS, V2)
        (made,) = json.loads(done.out)["runs"]
        assert made["report"]["counts"]["swapped"] == 2, done.err
        lacking = weakly("-m", "kerncfg", "plan", "--json", *CPU, row(f"{NORMS}@v1"))
        assert "cannot be kept in" in lacking.refusal()
    assert files_of(hub.home) == before
