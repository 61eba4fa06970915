"""What is loaded when: a front door costs nothing until it is used."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

import kerncfg

HEAVY = ("torch", "hydra", "omegaconf", "transformers", "triton", "jsonschema", "huggingface_hub", "rich")


def _loaded(code: str) -> set[str]:
    """Run code in a fresh interpreter and return which heavy packages it loaded."""
    report = f"import sys; print('loaded', *(name for name in {HEAVY} if name in sys.modules))"
    done = subprocess.run(
        [sys.executable, "-c", f"{code}\n{report}"], check=True, capture_output=True, text=True, timeout=120
    )
    return set(done.stdout.splitlines()[-1].split()[1:])


def test_importing_kerncfg_loads_nothing_heavy() -> None:
    assert _loaded("import kerncfg; dir(kerncfg)") == set()


def test_errors_and_documents_load_nothing_heavy() -> None:
    assert _loaded("import kerncfg; kerncfg.ConfigError, kerncfg.Plan, kerncfg.Mode") == set()


def test_help_loads_neither_torch_nor_hydra() -> None:
    code = """
from kerncfg.cli import main
import sys
sys.argv = ["kerncfg", "--help"]
try:
    main()
except SystemExit as stop:
    assert not stop.code
"""
    assert _loaded(code) & {"torch", "hydra", "omegaconf", "transformers"} == set()


def test_planning_for_a_described_target_does_not_load_torch() -> None:
    loaded = _loaded("import kerncfg; kerncfg.plan('target=h100', 'kernels=bundled')")
    assert loaded & {"torch", "transformers"} == set()


@pytest.mark.parametrize("version", ["0.0.1", "99.0"])
def test_no_version_of_the_kernels_library_keeps_kerncfg_from_planning(version: str, tmp_path: Path) -> None:
    (tmp_path / "kernels").mkdir()
    (tmp_path / "kernels" / "__init__.py").write_text(f"__version__ = {version!r}\n", encoding="utf-8")
    about = tmp_path / f"kernels-{version}.dist-info"
    about.mkdir()
    (about / "METADATA").write_text(f"Metadata-Version: 2.1\nName: kernels\nVersion: {version}\n", encoding="utf-8")
    code = f"""
import sys
sys.path.insert(0, {str(tmp_path)!r})
import kerncfg
from kerncfg.cli import main
plan = kerncfg.plan("kernels=liger", target="h100")
assert plan.target.packages["kernels"] == {version!r}
assert main(["validate", "kernels=liger"]) == 0
assert "kernels" not in sys.modules
"""
    _loaded(code)


@pytest.mark.parametrize("name", kerncfg.__all__)
def test_every_public_name_is_there_and_stays_the_same(name: str) -> None:
    assert getattr(kerncfg, name) is getattr(kerncfg, name)
    assert name in dir(kerncfg)


def test_an_unknown_name_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="has no attribute 'kernelise'"):
        kerncfg.kernelise  # noqa: B018
