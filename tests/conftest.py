"""What holds for every test: no network but loopback, and no skip but for want of a device or a peer."""

from __future__ import annotations

import atexit
import gc
import importlib
import os
import shutil
import subprocess
import tempfile
import warnings
from collections.abc import Generator, Iterator
from importlib.metadata import distributions
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

from tests.hub.guard import brief, loopback
from tests.hub.guard.loopback import EVERY_REFUSAL, guarded, guards

pytest_plugins = ["tests.hub.fixtures"]

# Else huggingface_hub, which reads this when it is imported, asks its own Hub which agents there are.
os.environ["HF_HUB_DISABLE_TELEMETRY"] = "1"
# Nobody listens there: tests that plan with the packaged presets learn so at once, and those of the Hub have their own.
os.environ["HF_ENDPOINT"] = "http://127.0.0.1:9"

# Verdicts of tests are nobody's: they must neither be found by a later run nor be left behind.
os.environ["KERNCFG_CACHE"] = tempfile.mkdtemp(prefix="kerncfg-verdicts-")
atexit.register(shutil.rmtree, os.environ["KERNCFG_CACHE"], ignore_errors=True)
# Inductor asks setuptools for a compiler, and setuptools refuses to come after a distutils that others imported.
if find_spec("setuptools"):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        importlib.import_module("setuptools")

# Workers share the cores: with a thread pool for each, which torch makes when it is imported, they wait for each other.
if "PYTEST_XDIST_WORKER" in os.environ:
    os.environ.setdefault("OMP_NUM_THREADS", "1")

brief.install()

_GUARD = str(Path(loopback.__file__).parent)
_MAY_SKIP = ("gpu", "peers")


@pytest.fixture(scope="session", autouse=True)
def loopback_only() -> Iterator[None]:
    """Refuse every connection that would leave this machine, also of processes that tests start; that one was tried
    fails the last test, and names the one that did.
    """
    log = Path(tempfile.mkdtemp(prefix="kerncfg-refusals-"), "refusals")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv(EVERY_REFUSAL, str(log))
        for owner, name, call in guards():
            patch.setattr(owner, name, call)
        patch.setattr(subprocess.Popen, "__init__", _start)
        yield
    assert not log.exists(), log.read_text("utf-8")


_popen = subprocess.Popen.__init__


def _start(self: Any, args: Any, *rest: Any, **options: Any) -> None:
    """Start a process under the same guard, but for `pip`, which brings the peers."""
    words = [args] if isinstance(args, str | bytes) else [*args]
    if "pip" not in words:
        environment = options.get("env")
        options["env"] = guarded(dict(os.environ if environment is None else environment), _GUARD)
    _popen(self, args, *rest, **options)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    lacking = {"gpu": _lacks_gpu, "peers": _lacks_peers}
    for name, lacks in lacking.items():
        marked = [item for item in items if item.get_closest_marker(name)]
        if marked and (reason := lacks()):
            for item in marked:
                item.add_marker(pytest.mark.skip(reason=reason))


def pytest_collection_finish() -> None:
    """Set aside what was imported and collected: a `gc.collect()` of a test then costs 20 ms instead of 350."""
    gc.collect()
    gc.freeze()


def pytest_unconfigure() -> None:
    gc.unfreeze()  # else compiled libraries complain at exit of what they believe to be leaks


def _lacks_gpu() -> str | None:
    import torch

    return None if torch.cuda.is_available() else "no CUDA or ROCm device"


def _lacks_peers() -> str | None:
    # `tests.peers` installs it into a folder of its own, and skips where that fails.
    # Asked of the metadata: setuptools' import hook warns where somebody looks for the module `pip`.
    return None if _installed("kernels") or _installed("pip") else "the `kernels` library cannot be installed: no pip"


def _installed(name: str) -> bool:
    return any(True for _ in distributions(name=name))


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """A skip for any other reason is a test that silently does not run: it fails."""
    report = yield
    allowed = any(item.get_closest_marker(name) for name in _MAY_SKIP) or hasattr(report, "wasxfail")
    if report.skipped and not allowed:
        report.outcome = "failed"
        report.longrepr = f"skipped: {report.longrepr}; only tests marked gpu or peers may skip"
    return report


@pytest.hookimpl(wrapper=True)
def pytest_make_collect_report(
    collector: pytest.Collector,
) -> Generator[None, pytest.CollectReport, pytest.CollectReport]:
    """The same for a file that skips itself, by `importorskip` for one."""
    report = yield
    if report.skipped:
        report.outcome = "failed"
        report.longrepr = f"skipped: {report.longrepr}; only tests marked gpu or peers may skip"
    return report
