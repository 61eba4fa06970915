"""`hf://` addresses in anybody's Hydra application: what it finds, what it writes down, and what it is told."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import hydra
import pytest
from hydra.core.global_hydra import GlobalHydra
from hydra.core.object_type import ObjectType
from hydra.core.plugins import Plugins
from omegaconf import OmegaConf

from kerncfg.compiler import shared
from kerncfg.compiler.loading import version_base
from kerncfg.compiler.shared import HubGroups, NotShared, from_file, pinned
from tests.test_configs import ADDRESS, forget
from tests.test_configs import shared as repository

if TYPE_CHECKING:
    from tests.hub.fixtures import TestHub
    from tests.hub.repos import Repository

APPLICATION = """
import json
import hydra
from hydra.core.config_search_path import ConfigSearchPath
from hydra.core.hydra_config import HydraConfig
from hydra.core.plugins import Plugins
from omegaconf import OmegaConf
from kerncfg.compiler.shared import HubGroups
import kerncfg

Plugins.instance().register(HubGroups)  # as the installed plugin does

@hydra.main(config_path="conf", config_name="config", version_base="1.3")
def main(config):
    kernels = OmegaConf.to_container(config.kernels)
    plan = kerncfg.plan(config={"kernels": kernels, "inherited": {}}, target="cpu")
    own = [step.name for step in plan.steps if step.own]
    print(json.dumps({"lr": config.lr, "own": own, "searchpath": dict(plan.searchpath)}))

main()
"""


@contextmanager
def application(folder: Path) -> Iterator[None]:
    """An application of somebody else's, whose primary config knows nothing of kerncfg."""
    folder.mkdir(exist_ok=True)
    (folder / "config.yaml").write_text("lr: 0.1\n")
    Plugins.instance().register(HubGroups)  # as the installed plugin does
    with hydra.initialize_config_dir(str(folder), **version_base()):
        yield


@pytest.fixture
def app(tmp_path: Path) -> Iterator[None]:
    with application(tmp_path / "app"):
        yield
    GlobalHydra.instance().clear()


def composed(*words: str, address: str = ADDRESS) -> dict[str, Any]:
    found: Any = OmegaConf.to_container(hydra.compose("config", [f"hydra.searchpath=[{address}]", *words]))
    return dict(found)


@pytest.mark.usefixtures("app")
def test_groups_of_the_hub_are_found_with_their_packages(hub: TestHub) -> None:
    repository(hub, optimizer__adam="# @package opt\nname: adam\n")
    assert composed("+kernels=theirs") == {"lr": 0.1, "kernels": {"RMSNorm": {"cpu": "builtin:RMSNorm"}}}
    assert composed("+optimizer=adam") == {"lr": 0.1, "opt": {"name": "adam"}}


@pytest.mark.usefixtures("app")
def test_what_cannot_be_reached_is_an_error_and_never_the_applications_default(hub: TestHub) -> None:
    repository(hub)
    with hub.unreachable(), pytest.raises(NotShared, match="gave no answer about models/acme/shared"):
        composed()
    with pytest.raises(NotShared, match="there is no model repository acme/none"):
        composed(address="hf://acme/none@main")
    with pytest.raises(NotShared, match="is no address on the Hub"):
        composed(address="hf://acme")


@pytest.mark.usefixtures("app")
def test_fetched_text_is_refused_there_too(hub: TestHub) -> None:
    repository(hub, optimizer__adam="_target_: torch.optim.Adam\n", data__secret="key: ${oc.env:HOME}\n")
    with pytest.raises(NotShared, match=r"adam\.yaml:1:1: optimizer\._target_: a fetched file"):
        composed("+optimizer=adam")
    with pytest.raises(NotShared, match="a fetched file cannot look up"):
        composed("+data=secret")


def test_groups_and_options_are_listed(hub: TestHub) -> None:
    repository(hub, kernels__deep__own="X: null\n")
    source = HubGroups("test", ADDRESS)
    assert source.available() and source.is_group("kernels") and source.is_group("") and not source.is_group("kernel")
    assert source.is_config("kernels/theirs") and not source.is_config("kernels")
    assert source.list("", None) == ["experiment", "kernels"]
    assert source.list("kernels", None) == ["deep", "theirs"]
    assert source.list("kernels", ObjectType.GROUP) == ["deep"]
    assert source.list("kernels", ObjectType.CONFIG) == ["theirs"]


def test_a_shell_that_completes_is_answered_from_the_cache(hub: TestHub, monkeypatch: pytest.MonkeyPatch) -> None:
    repository(hub)
    monkeypatch.setattr(sys, "argv", ["app.py", "-sc", "query=bash"])
    assert HubGroups("test", ADDRESS).list("", None) == []
    assert hub.log.count() == 0
    monkeypatch.setattr(sys, "argv", ["app.py"])
    HubGroups("test", ADDRESS)
    forget()
    hub.log.clear()
    monkeypatch.setattr(sys, "argv", ["app.py", "-sc", "query=bash"])
    assert HubGroups("test", ADDRESS).list("kernels", None) == ["theirs"]
    assert hub.log.count() == 0


def test_an_override_is_pinned_address_by_address() -> None:
    commits = {"hf://a/b": "1" * 40, "hf://a/b@x%2Fy/c": "2" * 40}
    found = pinned("hydra.searchpath=[hf://a/b,'hf://a/b@x%2Fy/c',file:///x]", commits)
    assert found == f"hydra.searchpath=[hf://a/b@{'1' * 40},'hf://a/b@{'2' * 40}/c',file:///x]"
    assert pinned("kernels=hf", commits) == "kernels=hf"


def test_what_another_process_was_told_stands_here(hub: TestHub) -> None:
    made = repository(hub)
    before = made.branches["main"]
    made.commit({"kernels/theirs.yaml": "RMSNorm: null\n"})
    shared.remember({ADDRESS: before})
    assert shared.opened(ADDRESS).commit == before


def test_a_job_of_an_application_writes_down_the_commit(hub: TestHub, tmp_path: Path) -> None:
    made: Repository = repository(hub)
    (tmp_path / "conf").mkdir()
    (tmp_path / "conf/config.yaml").write_text("lr: 0.1\n")
    (tmp_path / "app.py").write_text(APPLICATION)
    words = [f"hydra.searchpath=[{ADDRESS}]", "+kernels=theirs", "hydra.run.dir=made"]
    done = subprocess.run(
        [sys.executable, "app.py", *words], cwd=tmp_path, env=hub.environment(), capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    pinned_there = f"hf://acme/shared@{made.branches['main']}"
    searchpath = {pinned_there: made.branches["main"]}
    assert json.loads(done.stdout) == {"lr": 0.1, "own": ["RMSNorm"], "searchpath": searchpath}
    assert f"acme/shared@{made.branches['main']}" in (tmp_path / "made/.hydra/hydra.yaml").read_text()
    with hub.unreachable():
        done = subprocess.run(
            [sys.executable, "app.py", *words], cwd=tmp_path, env=hub.environment(), capture_output=True, text=True
        )
    assert done.returncode == 1 and "Traceback" not in done.stderr
    assert "hint: name the commit that it was last" in done.stderr


def test_the_places_of_a_job_are_those_with_a_commit(monkeypatch: pytest.MonkeyPatch) -> None:
    class Source:
        def __init__(self, schema: str, path: str) -> None:
            self.schema, self.path = schema, path

    class Job:
        runtime = None

        @staticmethod
        def initialized() -> bool:
            return True

        @classmethod
        def get(cls) -> Any:
            return cls

    place = f"a/b@{'1' * 40}"
    Job.runtime = type("R", (), {"config_sources": [Source("hf", place), Source("hf", "a/b"), Source("file", "x")]})  # type: ignore[assignment]
    monkeypatch.setattr(shared, "HydraConfig", Job)
    assert shared.of_job() == ((f"hf://{place}", "1" * 40),)


def test_the_places_of_ones_own_config_file_are_said_with_their_commits() -> None:
    commit = "1" * 40
    settings = SimpleNamespace(searchpath=OmegaConf.create([ADDRESS, "file:///a b"]))
    (line,) = from_file(settings, ["kernels=x"], {ADDRESS: commit})
    assert line.startswith("hydra.searchpath=[hf://") and commit in line and line.endswith("'file:///a b']")
    assert from_file(settings, ["hydra.searchpath=[/a]"], {ADDRESS: commit}) == []
    assert from_file(settings, [], {}) == []
