"""What people install finds its files from anywhere: as a wheel, as a wheel of the sdist, and editable."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import sysconfig
import tomllib
from collections.abc import Callable
from pathlib import Path

import pytest

CHECKOUT = Path(__file__).parent.parent
DECLARED = tomllib.loads((CHECKOUT / "pyproject.toml").read_text("utf-8"))["project"]

PROBE = """
import importlib.metadata, json, pathlib
import kerncfg, kerncfg.locations
package = pathlib.Path(kerncfg.__file__).parent
from hydra.core.plugins import Plugins
from hydra.plugins.search_path_plugin import SearchPathPlugin
print(json.dumps({
    "conf": (kerncfg.locations.conf() / "config.yaml").is_file(),
    "schemas": any(kerncfg.locations.schemas().glob("*.schema.json")),
    "package": str(package),
    "typed": (package / "py.typed").is_file(),
    "plugins": [cls.__module__ for cls in Plugins.instance().discover(SearchPathPlugin)],
    "version": importlib.metadata.version("kerncfg"),
}))
"""

APPLICATION = """
import hydra

@hydra.main(version_base="1.3", config_path=None)
def main(config):
    print(sorted(config.kernels))

main()
"""


def _run(*command: str | Path, cwd: Path) -> str:
    environment = {key: value for key, value in os.environ.items() if key not in ("PYTHONPATH", "PYTHONHOME")}
    done = subprocess.run(command, cwd=cwd, env=environment, capture_output=True, text=True, timeout=240)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def _build(target: str, source: Path, into: Path) -> Path:
    _run(sys.executable, "-m", "hatchling", "build", "-t", target, "-d", into, cwd=source)
    (built,) = into.iterdir()
    return built


def _wheel(folder: Path) -> list[str | Path]:
    return [_build("wheel", CHECKOUT, folder / "wheel")]


def _wheel_from_sdist(folder: Path) -> list[str | Path]:
    sdist = _build("sdist", CHECKOUT, folder / "sdist")
    _run("tar", "-xf", sdist, "-C", folder, cwd=folder)
    return [_build("wheel", folder / sdist.name.removesuffix(".tar.gz"), folder / "wheel")]


def _editable(folder: Path) -> list[str | Path]:
    return ["--editable", CHECKOUT]


@pytest.fixture(scope="module", params=[_wheel, _wheel_from_sdist, _editable])
def installed(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A virtual environment with kerncfg, and with links to everything else that is installed here."""
    way: Callable[[Path], list[str | Path]] = request.param
    folder = tmp_path_factory.mktemp("installed")
    _run(sys.executable, "-m", "venv", "--without-pip", folder / "venv", cwd=folder)
    (packages,) = (folder / "venv").glob("[Ll]ib/python*/site-packages")
    for entry in Path(sysconfig.get_path("purelib")).iterdir():
        ours = "kerncfg" in entry.name or entry.name == "hydra_plugins"
        if not ours and entry.name != "__pycache__" and not (packages / entry.name).exists():
            (packages / entry.name).symlink_to(entry)
    python = folder / "venv/bin/python"
    offline = ["--no-deps", "--no-build-isolation", "--no-index", "--quiet", "--disable-pip-version-check"]
    _run(python, "-m", "pip", "install", *offline, *way(folder), cwd=folder)
    return python


def test_every_file_is_found_from_another_directory(installed: Path, tmp_path: Path) -> None:
    found = json.loads(_run(installed, "-c", PROBE, cwd=tmp_path))
    assert found.pop("package").startswith((str(CHECKOUT), str(installed.parent.parent)))
    assert "hydra_plugins.kerncfg" in found.pop("plugins")
    assert found == {"conf": True, "schemas": True, "typed": True, "version": DECLARED["version"]}


def test_the_console_script_plans_from_another_directory(installed: Path, tmp_path: Path) -> None:
    table = _run(installed.with_name("kerncfg"), "plan", "target=h100", "kernels=bundled", cwd=tmp_path)
    assert "RMSNorm" in table


def test_someone_elses_hydra_application_sees_the_groups(installed: Path, tmp_path: Path) -> None:
    (tmp_path / "app.py").write_text(APPLICATION, encoding="utf-8")
    said = _run(installed, "app.py", "+kernels=bundled", "hydra.output_subdir=null", cwd=tmp_path)
    assert "RMSNorm" in said
