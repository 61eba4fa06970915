"""How large the page of 10,000 sites is, and what making it, opening it and its filter take.

    python tests/bench/bench_page.py

Times are medians in milliseconds. The filter's are from a key to the next frame on the screen, in headless chromium.
"""

from __future__ import annotations

import statistics
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent.parent.parent))

from playwright.sync_api import Page, sync_playwright

from kerncfg.page.report import page, write
from tests.page.conftest import CHROMIUM, outcome, site

# What the figures must not pass: the script then exits with 1.
LIMITS = {"megabytes": 5.0, "make": 5_000.0, "open": 5_000.0, "filter": 500.0, "filter, few": 500.0, "clear": 1_000.0}

NAMES = ("gate_projection", "up_projection", "down_projection", "activation")

FILTER = """(words) => new Promise((done) => {
  const find = document.getElementById("find");
  find.value = words;
  const start = performance.now();
  find.dispatchEvent(new Event("input"));
  requestAnimationFrame(() => setTimeout(() => done(performance.now() - start)));
})"""


def text() -> str:
    """Return the page of 50 layers with 50 experts of four sites each."""
    rows = [
        site(f"model.layers.{layer}.mlp.experts.{expert}.{name}", name, kernel=f"org/repo@v1:{name}")
        for layer in range(50)
        for expert in range(50)
        for name in NAMES
    ]
    return page(outcome(rows))


def filtering(opened: Page, words: str, runs: int = 7) -> tuple[float, float]:
    """Return what a filter takes that is typed, and what it takes to clear it again."""
    both = [(opened.evaluate(FILTER, words), opened.evaluate(FILTER, "")) for _ in range(runs)]
    typed, cleared = zip(*both, strict=True)
    return statistics.median(typed), statistics.median(cleared)


def measure() -> Iterator[tuple[str, float]]:
    """Yield every figure by its name."""
    start = time.perf_counter()
    made = text()
    yield "make", 1e3 * (time.perf_counter() - start)
    yield "megabytes", len(made.encode()) / 1e6
    with tempfile.TemporaryDirectory() as folder, sync_playwright() as playwright:
        file = write(made, Path(folder) / "report.html")
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        opened = browser.new_page()
        start = time.perf_counter()
        opened.goto(file.as_uri())
        yield "open", 1e3 * (time.perf_counter() - start)
        typed, cleared = filtering(opened, "projection")
        yield "filter", typed
        yield "clear", cleared
        yield "filter, few", filtering(opened, "layers.7.mlp.experts.3")[0]
        browser.close()


if __name__ == "__main__":
    figures = dict(measure())
    for name, figure in figures.items():
        print(f"{name:14} {figure:8.1f}   limit {LIMITS[name]:8.1f}")  # noqa: T201 (a script's result)
    sys.exit(any(figure > LIMITS[name] for name, figure in figures.items()))
