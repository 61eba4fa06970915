"""What people install finds its files from anywhere: as a wheel, as a wheel of the sdist, and editable."""

from __future__ import annotations

import json
import os
import re
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
from hydra.plugins.config_source import ConfigSource
from hydra.plugins.search_path_plugin import SearchPathPlugin
print(json.dumps({
    "conf": (kerncfg.locations.conf() / "config.yaml").is_file(),
    "schemas": any(kerncfg.locations.schemas().glob("*.schema.json")),
    "package": str(package),
    "typed": (package / "py.typed").is_file(),
    "page": all((package / "page" / name).is_file() for name in ("page.css", "page.js")),
    "plugins": [cls.__module__ for cls in Plugins.instance().discover(SearchPathPlugin)],
    "sources": [cls.scheme() for cls in Plugins.instance().discover(ConfigSource)],
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
    assert "hf" in found.pop("sources")
    assert found == {"conf": True, "schemas": True, "typed": True, "page": True, "version": DECLARED["version"]}


def test_a_message_leads_to_a_page_that_is_there(installed: Path, tmp_path: Path) -> None:
    said = _run("bash", "-c", f"{installed.with_name('kerncfg')} plan kernels.X.cdua=a/b:C 2>&1 || true", cwd=tmp_path)
    (page,) = re.findall(r"^  see: (.*)#unknown-key$", said, re.MULTILINE)
    assert (CHECKOUT / page).is_file() and "### Unknown key" in (CHECKOUT / page).read_text("utf-8")
    home = _run(installed, "-c", "import kerncfg; print(kerncfg.__file__)", cwd=tmp_path).strip()
    assert (page == "docs/troubleshooting.md") == Path(home).is_relative_to(CHECKOUT)


def test_the_console_script_plans_from_another_directory(installed: Path, tmp_path: Path) -> None:
    table = _run(installed.with_name("kerncfg"), "plan", "target=h100", "kernels=bundled", cwd=tmp_path)
    assert "RMSNorm" in table


def test_someone_elses_hydra_application_sees_the_groups(installed: Path, tmp_path: Path) -> None:
    (tmp_path / "app.py").write_text(APPLICATION, encoding="utf-8")
    said = _run(installed, "app.py", "+kernels=bundled", "hydra.output_subdir=null", cwd=tmp_path)
    assert "RMSNorm" in said


@pytest.fixture
def users(tmp_path: Path) -> Path:
    """An empty working directory but for the user's own groups, which build on the packaged ones."""
    folder = tmp_path / "my_conf"
    for group in ("kernels", "experiment", "trust"):
        (folder / group).mkdir(parents=True)
    (folder / "kernels/mine.yaml").write_text("defaults: [bundled, _self_]\nSiLU: org/act@v1:Silu\nGELU: ./mine:Gelu\n")
    (folder / "trust/mine.yaml").write_text("defaults: [default, _self_]\npublishers: {org: true}\n")
    (folder / "experiment/mine.yaml").write_text(
        "# @package _global_\ndefaults:\n  - override /kernels: mine\n  - override /trust: mine\n"
        "  - override /target: h100\n  - override /kernels@inherited: none\n"
    )
    return folder


def test_presets_experiments_and_the_users_own_files_work_together(installed: Path, users: Path) -> None:
    said = ["--json", "--config-dir", "my_conf", "experiment=mine", "policy=strict", "~kernels.SwiGLUMLP"]
    plan = json.loads(_run(installed.with_name("kerncfg"), "plan", *said, cwd=users.parent))
    origins = {
        step["name"]: [each["origin"] for each in [*modes["choices"], *modes["rejected"]] if each["origin"]]
        for step in plan["steps"]
        for modes in [step["modes"]["inference"]]
    }
    assert origins == {
        "GELU": ["my_conf/kernels/mine.yaml:3"],
        "RMSNorm": ["preset: kernels/bundled.yaml:5"],
        "SiLU": ["my_conf/kernels/mine.yaml:2"],
        "rotary_pos_emb": ["preset: kernels/bundled.yaml:33"],
    }
    assert f"{users}/kernels/mine:Gelu" in json.dumps(plan)  # from the file's folder, not the working directory


def test_an_unknown_option_tells_both_places_that_were_looked_in(installed: Path, users: Path) -> None:
    script = "import kerncfg; kerncfg.plan('kernels=mien', config_dir='my_conf')"
    done = subprocess.run([installed, "-c", script], cwd=users.parent, capture_output=True, text=True, timeout=240)
    said = done.stderr
    assert "looked in my_conf and /" in said
    assert "did you mean mine? there are bundled, bundled_gemma, default, liger, mine, none, reference" in said


FOREIGN = CHECKOUT / "tests/apps/foreign/app.py"
LIGER, BUNDLED = ["GatedMLP", "RMSNorm", "SiLU"], ["RMSNorm", "SiLU", "SwiGLUMLP", "rotary_pos_emb"]


def _job(lr: float, rows: list[str]) -> dict[str, object]:
    return {
        "lr": lr,
        "rows": rows,
        "steps": rows,
        "silu": ["org/act-16@v1:Silu"],
        "target": "9.0",
        "nodes_agree": True,
        "threads_agree": True,
        "different": 8,
        "job": "app",
    }


def test_all_of_it_works_inside_someone_elses_hydra_job_and_in_eight_threads(
    installed: Path, users: Path, tmp_path: Path
) -> None:
    said = _run(installed, FOREIGN, "lr=0.2", "hydra.run.dir=made", cwd=tmp_path)
    assert json.loads(said) == _job(0.2, LIGER)


@pytest.mark.parametrize("installed", [_wheel], indirect=True)
def test_all_of_it_works_in_every_job_of_someone_elses_multirun(installed: Path, users: Path, tmp_path: Path) -> None:
    said = _run(installed, FOREIGN, "-m", "lr=0.2", "kernels=liger,bundled", "hydra.sweep.dir=made", cwd=tmp_path)
    jobs = [json.loads(line) for line in said.splitlines() if line.startswith("{")]
    assert jobs == [_job(0.2, LIGER), _job(0.2, BUNDLED)]
