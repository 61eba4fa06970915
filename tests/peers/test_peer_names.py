"""What transformers registers with a fitting `kernels`: names that its source has too, and functions of the process."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest

from tests.peers.overlay import ask, installed

pytestmark = pytest.mark.peers

# The newest pair that goes together; transformers 5.24 asks for a `kernels` that is not out.
PACKAGES = ("transformers==5.22.2", "kernels==0.17.2", "tomlkit")
FOLDER = "KERNCFG_PEER_PAIR"  # names a folder that holds them already

NAMES = """
import importlib, json, logging, sys, warnings
from pathlib import Path
import kernels, transformers
from torch import nn
from transformers.utils.import_utils import is_kernels_available
from kerncfg.applier.adapters.registrations import declarations, marked, registration
from kerncfg.applier.adapters.torch import _kernelized

json.load(sys.stdin)
warnings.simplefilter("ignore")
logging.disable()
assert is_kernels_available()
peer, ours, skipped, told = {}, {}, [], {"transformers": transformers.__version__, "kernels": kernels.__version__}
root = Path(transformers.__file__).parent / "models"
# What does not have the word is not decorated; some of those want packages that are not here.
paths = [path for path in sorted(root.glob("*/modeling_*.py")) if "use_kernel" in path.read_text("utf-8")]
places = ["transformers.activations", *(f"transformers.models.{path.parent.name}.{path.stem}" for path in paths)]
for place in places:
    try:
        module = importlib.import_module(place)
    except Exception as error:
        skipped.append(f"{place}: {error}")
        continue
    known = {id(value): name for name, value in vars(module).items()}
    for cls in list(vars(module).values()):
        if not (isinstance(cls, type) and issubclass(cls, nn.Module) and cls.__module__ == place):
            continue
        if (name := vars(cls).get("kernel_layer_name")) is not None:
            peer[f"{place}.{cls.__name__}"] = name
        if (name := registration(cls)) is not None:
            ours[f"{place}.{cls.__name__}"] = name
        for function in _kernelized(vars(cls).get("__init__")):
            if marked(function):
                peer[f"{place}.{cls.__name__} calls {known[id(function)]}"] = marked(function)
        for called, name in declarations(cls).items():
            ours[f"{place}.{cls.__name__} calls {called}"] = name
print(json.dumps({"peer": peer, "ours": ours, "skipped": skipped, "versions": told, "modules": len(places)}))
"""


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory) -> Path:
    if said := os.environ.get(FOLDER):
        return Path(said)
    return installed(tmp_path_factory.mktemp("pair"), PACKAGES)


def test_every_name_that_a_class_carries_is_read_from_its_source(pair: Path) -> None:
    root = str(Path(__file__).parents[2])
    found: dict[str, Any] = ask(Path(os.pathsep.join([str(pair), root])), NAMES, None)
    assert found["versions"] == {"transformers": "5.22.2", "kernels": "0.17.2"}
    assert found["skipped"] == []
    peer, ours = found["peer"], found["ours"]
    assert len(peer) > 300, "the library marks nothing"
    assert sum(" calls " in key for key in peer) > 100
    assert {key: ours.get(key) for key in peer} == peer
    assert set(ours) - set(peer) == set()


FUNCTIONS = """
import copy, json, sys
import torch
from transformers.models.qwen3 import modeling_qwen3
from transformers.utils.import_utils import is_kernels_available
from kerncfg.applier.apply import apply
from tests.snapshot import snapshot
from tests.test_adapters_transformers import build
from tests.test_functions import TOKENS, rotary

json.load(sys.stdin)


def logits(model):
    return model(TOKENS).logits.detach()


function, models = modeling_qwen3.apply_rotary_pos_emb, [build("Qwen3") for _ in range(3)]
for name in ("HalfQ", "triple_q"):
    apply(rotary(name), models[0]).revert()
own, before = logits(models[2]), [snapshot(model) for model in models]
bindings = [apply(rotary(name), model) for name, model in zip(("HalfQ", "triple_q"), models)]
found = [logits(model) for model in models]
alike = [[torch.equal(one, other) for other in (*found, own)] for one in found]
copied = torch.equal(logits(copy.deepcopy(models[0])), found[0])
for one in bindings:
    one.revert()
back = [snapshot(model) == then for model, then in zip(models, before)]
shared = isinstance(function, torch.nn.Module) and function is modeling_qwen3.apply_rotary_pos_emb
print(json.dumps([is_kernels_available(), shared, alike, copied, back, torch.equal(logits(models[0]), own)]))
"""


def test_a_function_that_is_one_object_of_the_process_is_replaced_for_one_model_alone(pair: Path) -> None:
    root = str(Path(__file__).parents[2])
    found = ask(Path(os.pathsep.join([str(pair), root])), FUNCTIONS, None)
    apart = [[True, False, False, False], [False, True, False, False], [False, False, True, True]]
    assert found == [True, True, apart, True, [True] * 3, True]
