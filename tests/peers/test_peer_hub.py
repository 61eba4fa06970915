"""The loopback Hub serves the `kernels` library, and this is what that library asks of it."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import pytest

from tests.hub import kernels

if TYPE_CHECKING:
    from tests.hub.fixtures import TestHub

Peer = Callable[..., subprocess.CompletedProcess[str]]

pytestmark = pytest.mark.peers

LOAD = """
import json, sys
import torch
from kernels import get_kernel

def factor(repo_id, **said):
    return get_kernel(repo_id, backend="cpu", **said).layers.Scale()(torch.ones(1)).item()

def failure(repo_id, **said):
    try:
        return factor(repo_id, **said)
    except Exception as error:
        return f"{type(error).__name__}: {error}"

"""
NORMS = f"{kernels.TRUSTED}/norms"


def told(peer: Peer, expression: str, **env: str) -> Any:
    """Give what a process that loads kernels makes of an expression."""
    done = peer(f"{LOAD}print(json.dumps({expression}))", env)
    assert not done.returncode, done.stderr
    return json.loads(done.stdout.splitlines()[-1])


def test_a_revision_runs_the_code_that_it_names(hub: TestHub, peer: Peer) -> None:
    norms = kernels.norms()
    hub.add(norms)
    said = [f"version={major}" for major in (1, 2, 3)]
    said += [f"revision={name!r}" for name in ("v2.0.0", "v2.2.0rc1", "feature/x", norms.tags["v2.1.0"])]
    calls = ", ".join(f"factor({NORMS!r}, {each})" for each in said)
    assert told(peer, f"[{calls}]") == [1, 23, 3, 20, 22, 99, 21]


def test_a_moved_branch_is_followed(hub: TestHub, peer: Peer) -> None:
    norms = kernels.norms()
    hub.add(norms)
    assert told(peer, f"factor({NORMS!r}, version=2)") == 23
    kernels.move(norms, "v2", 24)
    assert told(peer, f"factor({NORMS!r}, version=2)") == 24


@pytest.mark.parametrize("rows", [1, 8])
def test_the_requests_for_rows_of_one_repository(hub: TestHub, peer: Peer, rows: int) -> None:
    norms = kernels.norms()
    hub.add(norms)
    files = sum(path.startswith("build/") for path in norms.find("v1").files)
    rows_of = f"[factor({NORMS!r}, version=1) for _ in range({rows})]"
    assert told(peer, rows_of) == [1] * rows
    # Trust, refs and the builds for each row; a listing and twice its files for the first.
    assert hub.log.kinds() == {
        "overview": rows,
        "refs": rows,
        "tree": rows + 1,
        "HEAD resolve": files,
        "resolve": files,
    }
    assert hub.log.count() == 4 + 2 * files + 3 * (rows - 1)
    hub.log.clear()
    assert told(peer, rows_of) == [1] * rows
    assert hub.log.kinds() == {"overview": rows, "refs": rows, "tree": rows}


def test_what_was_fetched_by_version_is_not_found_offline(hub: TestHub, peer: Peer) -> None:
    hub.add(kernels.norms())
    told(peer, f"factor({NORMS!r}, version=1)")
    hub.log.clear()
    failed = told(peer, f"failure({NORMS!r}, version=1)", HF_HUB_OFFLINE="1")
    assert "is not available in the local cache" in failed
    assert not hub.log.everything


def test_an_untrusted_publisher_is_refused_unless_named(hub: TestHub, peer: Peer) -> None:
    hub.add(kernels.untrusted())
    name = f"{kernels.STRANGER}/norms"
    refused = told(peer, f"failure({name!r}, version=1)")
    assert "is not from a trusted publisher" in refused
    assert hub.log.kinds() == {"overview": 1}
    assert told(peer, f"failure({name!r}, version=1, trust_remote_code=[{name!r}])") == -1


def test_a_dependency_is_there_when_its_kernel_is_imported(hub: TestHub, peer: Peer) -> None:
    hub.add(kernels.norms(), kernels.dependent(), kernels.asks_kernels())
    calls = [f"factor('{kernels.TRUSTED}/{name}', version=1)" for name in ("fused", "asking")]
    assert told(peer, f"[{', '.join(calls)}]") == [10, 4]


def test_the_right_build_of_several_is_taken(hub: TestHub, peer: Peer) -> None:
    hub.add(kernels.six_builds())
    hub.shuffle = 3
    assert told(peer, f"factor('{kernels.TRUSTED}/six', version=1)") == kernels.SIX.index("torch-cpu") + 1


def test_a_native_kernel_is_loaded_from_elsewhere_and_once(hub: TestHub, peer: Peer) -> None:
    hub.add(kernels.native())
    expression = f"[get_kernel('{kernels.TRUSTED}/native', version=1, backend='cpu').loads() for _ in range(2)]"
    assert told(peer, expression) == [1, 1]
    assert [each.authorized for each in hub.log.find(kind="cdn")] == [False]


def test_a_failed_import_leaves_its_submodules(hub: TestHub, peer: Peer) -> None:
    hub.add(kernels.fails_half_way())
    left = "sorted(name.split('.')[-1] for name in sys.modules if name.startswith('_half_'))"
    failed, names = told(peer, f"[failure('{kernels.TRUSTED}/half', version=1), {left}]")
    assert failed.startswith("RuntimeError: half of a kernel")
    assert names == ["first", "layers"]


def test_a_redirect_is_no_build(hub: TestHub, peer: Peer) -> None:
    hub.add(kernels.norms(), kernels.redirect())
    failed = told(peer, f"failure('{kernels.TRUSTED}/old-norms', version=1)")
    assert failed.startswith("RemoteEntryNotFoundError") and '"build" does not exist' in failed


def test_layers_and_functions_are_what_the_library_accepts(hub: TestHub, peer: Peer) -> None:
    hub.add(kernels.norms(), kernels.silu(), kernels.rotary())
    rows = {"RMSNorm": (NORMS, 1), "Scale": (NORMS, 3), "SiLU": (f"{kernels.TRUSTED}/activation", 1)}
    done = peer(f"{KERNELIZE}print(json.dumps(run({rows!r})))")
    assert not done.returncode, done.stderr
    assert json.loads(done.stdout.splitlines()[-1]) == {"RMSNorm": True, "Scale": True, "SiLU": True}


KERNELIZE = """
import json
import torch
from torch import nn
from kernels import LayerRepository, Mode, kernelize, use_kernel_forward_from_hub, use_kernel_mapping

@use_kernel_forward_from_hub("RMSNorm")
class RMSNorm(nn.Module):
    def __init__(self):
        super().__init__()
        self.weight, self.variance_epsilon = nn.Parameter(torch.ones(4)), 1e-6

    def forward(self, hidden_states):
        return torch.nn.functional.rms_norm(hidden_states, (4,), self.weight, self.variance_epsilon)

@use_kernel_forward_from_hub("Scale")
class Scale(nn.Module):
    def forward(self, input):
        return 3 * input

@use_kernel_forward_from_hub("SiLU")
class SiLU(nn.Module):
    def forward(self, input):
        return torch.nn.functional.silu(input)

def run(rows):
    found = {}
    for name, (repo_id, version) in rows.items():
        module, x = globals()[name](), torch.randn(3, 4)
        expected, original = module(x), module.forward.__code__
        row = {"cpu": LayerRepository(repo_id, layer_name=name, version=version)}
        with use_kernel_mapping({name: row}):
            kernelize(module, mode=Mode.INFERENCE, device="cpu")
        changed = module.forward.__code__ is not original
        found[name] = changed and torch.allclose(module(x), expected, atol=1e-6)
    return found

"""
