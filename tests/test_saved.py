"""A plan from its file, and how little is imported for it; what faults it finds stands in test_api."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from kerncfg.locations import conf
from kerncfg.saved import _plain, _read
from tests.planning import plan, step

APPLIED = """
import sys
import torch
import kerncfg
model = torch.nn.Sequential(torch.nn.RMSNorm(4))
bindings = kerncfg.apply(kerncfg.load_plan(sys.argv[1], trust=["python:tests.fakes"]), model)
assert bindings.report.counts["swapped"] == 1, bindings.report
heavy = {"hydra", "omegaconf", "jsonschema", "yaml", "huggingface_hub"}
print({name.partition(".")[0] for name in sys.modules} & heavy)
"""


def test_from_a_saved_plan_to_a_running_kernel_no_reader_of_configurations_is_imported(tmp_path: Path) -> None:
    plan(step("Norm", "Twenty", match={"class": "RMSNorm"})).save(tmp_path / "plan.json")
    done = subprocess.run(
        [sys.executable, "-c", APPLIED, str(tmp_path / "plan.json")], capture_output=True, text=True, check=False
    )
    assert done.stdout == "set()\n", done.stderr


def test_the_packaged_trust_is_read_as_yaml_reads_it() -> None:
    assert _plain((conf() / "trust/default.yaml").read_text("utf-8")) == _read()


@pytest.mark.parametrize(
    "text",
    [
        "publishers: {acme: true}\nrepositories: {}\n",
        "publishers:\n  acme: yes\nrepositories: {}\n",
        "publishers:\n  'acme': true\nrepositories: {}\n",
        "  acme: true\npublishers: {}\nrepositories: {}\n",
        "publishers:\n  acme: true\n",
    ],
)
def test_what_is_written_less_plainly_is_left_to_yaml(text: str) -> None:
    assert _plain(text) is None


def test_a_plain_map_has_its_entries_and_no_others() -> None:
    text = "# who\npublishers:\n  acme: true\n  other: false\nrepositories:\n  a/b.c: true\nallow_all_kernels: false\n"
    assert _plain(text) == {"publishers": {"acme": True, "other": False}, "repositories": {"a/b.c": True}}
