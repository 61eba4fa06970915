"""kerncfg and the `kernels` library in one process, and what each asks of the Hub for the same rows."""

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

BOTH = """
import json, sys
import torch
from torch import nn
import kerncfg
from kernels import get_kernel


@kerncfg.kernel_layer("Scale")
class Layer(nn.Module):
    def forward(self, input):
        return input


def ours(rows):
    "What our kernel makes of one, and the module that it came from."
    model = nn.Sequential(Layer())
    with kerncfg.kernelize(model, "inherited=none", "target=cpu", *rows, mode="inference") as bindings:
        code = next(iter(bindings.sites)).forward("inference").__func__
        return model(torch.ones(1)).item(), sys.modules[code.__module__.rpartition(".")[0]]


def theirs(repo_id, version=1):
    return get_kernel(repo_id, version=version, backend="cpu")

"""
NORMS = f"{kernels.TRUSTED}/norms"


def told(peer: Peer, code: str) -> Any:
    done = peer(BOTH + code)
    assert not done.returncode, done.stderr
    return json.loads(done.stdout.splitlines()[-1])


@pytest.mark.parametrize("first", ["ours", "theirs"])
def test_a_native_library_is_loaded_once_by_both(hub: TestHub, peer: Peer, first: str) -> None:
    hub.add(kernels.native())
    place = f"{kernels.TRUSTED}/native"
    own = f"value, module = ours(['kernels.Scale.cpu={place}@v1:Scale'])\n"
    other = f"peer = theirs('{place}')\n"
    code = own + other if first == "ours" else other + own
    found = told(peer, f"{code}print(json.dumps([value, module.loads(), peer.loads(), module is not peer]))\n")
    assert found == [8, 1, 1, True]


def test_each_keeps_the_code_that_it_loaded(hub: TestHub, peer: Peer) -> None:
    hub.add(kernels.norms(), kernels.dependent())
    code = (
        f"peer = theirs('{NORMS}', 2)\n"
        f"value, _ = ours(['kernels.Scale.cpu={kernels.TRUSTED}/fused@v1:Scale'])\n"
        f"again = theirs('{kernels.TRUSTED}/fused')\n"
        "print(json.dumps([peer.layers.Scale()(torch.ones(1)).item(), value,"
        " again.layers.Scale()(torch.ones(1)).item(), sys.modules['kernels'].__name__]))\n"
    )
    assert told(peer, code) == [23, 10, 10, "kernels"]


@pytest.mark.parametrize("rows", [1, 8, 64])
def test_more_rows_of_one_repository_cost_us_nothing_and_the_library_three_each(
    hub: TestHub, peer: Peer, rows: int
) -> None:
    norms = kernels.norms()
    hub.add(norms)
    files = sum(path.startswith("build/") for path in norms.find("v1").files)
    words = [f"kernels.{'Scale' if row == 0 else f'Row{row}'}.cpu={NORMS}@v1:Scale" for row in range(rows)]
    assert told(peer, f"print(json.dumps(ours({words!r})[0]))\n") == 1
    assert (hub.log.count("refs"), hub.log.count("/tree/")) == (1, 1)
    own = hub.log.count()
    assert own <= 2 + 2 * files
    hub.log.clear()
    cache = "import os; os.environ['HF_HOME'] += '-peer'\n"
    done = peer(cache + BOTH + f"print(json.dumps([bool(theirs({NORMS!r})) for _ in range({rows})]))\n")
    assert not done.returncode, done.stderr
    assert hub.log.count() == 4 + 2 * files + 3 * (rows - 1) > own
