"""Hydra is started and put away without a trace."""

from __future__ import annotations

import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from hydra import compose as hydra_compose
from hydra import initialize_config_dir
from hydra.core.global_hydra import GlobalHydra
from hydra.version import getbase
from omegaconf import OmegaConf

from kerncfg.compiler import loading
from kerncfg.compiler.compose import compose
from kerncfg.compiler.loading import ListsAsText, hydra_folder, lists_replace, version_base
from kerncfg.errors import ConfigError
from kerncfg.locations import conf

JOB = """
import warnings
warnings.simplefilter("error")
import hydra
from hydra.core.global_hydra import GlobalHydra
from hydra.core.hydra_config import HydraConfig
from kerncfg.compiler.compose import compose

@hydra.main(version_base="1.2", config_path=None)
def main(config):
    before = GlobalHydra.instance()
    document, _ = compose(["kernels=bundled", f"model.seed={config.seed}"])
    assert GlobalHydra.instance() is before
    assert hydra.version.getbase() == hydra.version.Version("1.2")
    print(HydraConfig.get().job.name, document["kernels"]["RMSNorm"]["cuda"], document["model"]["seed"])

main()
"""


def test_eight_threads_compose_at_once() -> None:
    def one(number: int) -> bool:
        document, origins = compose([f"kernels.X{number}.cuda=a/b@v{number}:C", "kernels=bundled"])
        found = str(origins.at(("kernels", f"X{number}", "cuda")))
        return document["kernels"][f"X{number}"] == {"cuda": f"a/b@v{number}:C"} and f"@v{number}" in found

    with ThreadPoolExecutor(8) as pool:
        assert all(pool.map(one, range(40)))


@pytest.mark.parametrize("sweep", [["+seed=1"], ["+seed=1,2", "-m"]], ids=["run", "sweep"])
def test_a_running_hydra_job_composes_and_keeps_its_own_state(tmp_path: Path, sweep: list[str]) -> None:
    (tmp_path / "app.py").write_text(JOB, encoding="utf-8")
    root = str(Path(__file__).parent.parent)
    done = subprocess.run(
        [sys.executable, "app.py", *sweep], cwd=tmp_path, env={"PYTHONPATH": root}, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    assert [line for line in done.stdout.splitlines() if line.startswith("app ")] == [
        f"app builtin:RMSNorm {seed}" for seed in range(1, len(sweep) + 1)
    ]


def test_hydra_started_by_others_is_as_it_was_also_after_an_error() -> None:
    with initialize_config_dir(str(conf()), version_base="1.2"):
        before = GlobalHydra.instance()
        with pytest.raises(ConfigError):
            compose(["kernels=nowhere"])
        assert GlobalHydra.instance() is before
        assert str(getbase()) == "1.2"
        assert hydra_compose("config").enabled is True


def test_hydra_not_started_by_others_is_not_started_afterwards() -> None:
    compose()
    assert not GlobalHydra.instance().is_initialized()


def test_hydra_started_from_ones_own_folder_finds_the_packaged_groups_behind_it(tmp_path: Path) -> None:
    (tmp_path / "kernels").mkdir()
    (tmp_path / "kernels/bundled.yaml").write_text("X: a/b:C\n", encoding="utf-8")
    with hydra_folder(tmp_path) as folder, initialize_config_dir(str(folder), **version_base()):
        config = hydra_compose("config", ["kernels=bundled", "target=h100"])
    assert config.kernels == {"X": "a/b:C"}
    assert config.target.name == "h100"


@pytest.mark.parametrize(
    ("name", "text", "read"),
    [
        ("kernels/mine", "defaults: [other]\nX: {cpu: [a/b:C, d/e:F]}\n", {"X": {"cpu": "['a/b:C', 'd/e:F']"}}),
        ("experiment/mine", "kernels: {X: [a/b:C]}\nenabled: true\n", {"kernels": {"X": "['a/b:C']"}, "enabled": True}),
    ],
)
def test_lists_of_candidates_are_text_while_hydra_composes_files(
    tmp_path: Path, name: str, text: str, read: object
) -> None:
    file = tmp_path / f"{name}.yaml"
    file.parent.mkdir()
    file.write_text(text, encoding="utf-8")
    found = ListsAsText("test", f"file://{tmp_path}").load_config(name).config
    assert {**OmegaConf.to_container(found), "defaults": None} == {**read, "defaults": None}  # type: ignore[dict-item]
    from hydra.core.plugins import Plugins

    Plugins.instance()
    from hydra._internal.sources_registry import SourcesRegistry

    types = SourcesRegistry.instance().types
    before = types["file"]
    with lists_replace():
        assert types["file"] is ListsAsText
    assert types["file"] is before


def test_a_folder_that_hydra_refuses_is_one_error() -> None:
    with pytest.raises(ConfigError, match="the search path cannot be used"):
        loading._start(Path("relative"))
