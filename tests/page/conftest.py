"""Real runs and a real browser: Debian's chromium, driven without one of playwright's own."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from playwright.sync_api import Browser, Page, sync_playwright

from kerncfg.applier.report import Report, ReportRow
from kerncfg.outcome import Environment, Outcome
from kerncfg.run import run
from tests.planning import plan, step

if TYPE_CHECKING:
    from kerncfg.documents.plan import Rejection
    from kerncfg.evidence.rows import Measurement, Verification

FAULTS = Path(__file__).parent.parent / "faults"
CHROMIUM = os.environ.get("CHROMIUM") or shutil.which("chromium") or shutil.which("google-chrome")
SMALL = (
    "model.config.num_hidden_layers=2",
    "model.config.hidden_size=64",
    "model.config.intermediate_size=96",
    "model.config.head_dim=16",
    "model.config.vocab_size=128",
    "model.sequence=16",
)


@pytest.fixture(scope="session")
def passed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a run with the bundled kernels."""
    return _ran(tmp_path_factory.mktemp("passed"), "kernels=bundled")


@pytest.fixture(scope="session")
def failed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a run with a kernel that leaves its weight's offset out."""
    return _ran(tmp_path_factory.mktemp("failed"), f"kernels.RMSNorm.cpu={FAULTS}:WeightOffset")


def _ran(folder: Path, *words: str) -> Path:
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        run([*words, *SMALL, "hydra.run.dir=run"])
    return folder / "run"


def outcome(
    rows: Sequence[ReportRow],
    folder: Path = Path("run"),
    *,
    overrides: Sequence[str] = ("kernels=mine",),
    verification: Verification | None = None,
    measurement: Measurement | None = None,
    rejected: Sequence[Rejection] = (),
    **more: Any,
) -> Outcome:
    """An outcome by hand, with a step for each name of its rows."""
    steps = [step(name, "original", rejected=rejected) for name in dict.fromkeys(row.name for row in rows)]
    return Outcome(
        folder=folder,
        overrides=list(overrides),
        plan=plan(*steps),
        report=Report(rows=tuple(rows)),
        verification=verification,
        measurement=measurement,
        environment=Environment.here(),
        finished=True,
        **more,
    )


def site(path: str, name: str = "Norm", *, kernel: str | None = "builtin:Norm", **more: Any) -> ReportRow:
    """A row of a report."""
    status = more.pop("status", "swapped" if kernel else "kept")
    said = {"kind": "layer", "mode": "inference", "reason": "chosen for cpu", **more}
    return ReportRow(
        path=path, name=name, status=status, kernel=kernel, modes={"inference": kernel or "original"}, **said
    )


@pytest.fixture(scope="session")
def browser() -> Iterator[Browser]:
    """One headless browser for all tests, with an empty home of its own."""
    assert CHROMIUM, "no chromium: apt-get install chromium, or say where one is in CHROMIUM"
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        yield browser
        browser.close()


class Opened:
    """A page in the browser, with everything that it said and asked for."""

    def __init__(self, page: Page) -> None:
        self.page, self.said, self.asked = page, list[str](), list[str]()
        page.on("console", lambda message: self.said.append(f"{message.type}: {message.text}"))
        page.on("pageerror", lambda error: self.said.append(str(error)))
        page.on("request", lambda request: self.asked.append(request.url))

    def open(self, file: Path) -> Page:
        """Open a file."""
        self.page.goto(file.absolute().as_uri())
        return self.page


@pytest.fixture
def opened(browser: Browser) -> Iterator[Opened]:
    """A window of a laptop."""
    page = browser.new_page(viewport={"width": 1440, "height": 900})
    yield Opened(page)
    page.close()
