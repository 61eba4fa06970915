"""What composing with origins and planning cost at 5,000 rows. Run by hand, from the root of the checkout:

    PYTHONPATH=. python tests/bench/bench_compose.py

Prints the time of `compose` over that of Hydra's own compose of the same files (3 at most is asked), and the time from
files to plan at several sizes, which is to grow with the rows: a row of the longest takes at most 1.5 times a row of
the shortest. The exit code is 1 if one of the two does not hold.
"""

from __future__ import annotations

import gc
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import hydra
from hydra import compose as hydra_compose

from kerncfg.compiler.checking import check
from kerncfg.compiler.compose import compose, version_base
from kerncfg.compiler.resolve import resolve
from kerncfg.locations import conf
from tests.builders import locked, request

ORIGINS, GROWTH = 3.0, 1.5  # the limits, set before anything was measured
SIZES = (625, 1_250, 2_500, 5_000)
WORDS = ["kernels=mine", "target=h100", "inherited=none"]
ROW = """L{number}:
  cuda: org/kernels@v{version}:Layer{number}
  rocm: {{kernel: org/kernels:Layer{number}, version: {version}}}
  cpu: {{inference: builtin:RMSNorm, training: original}}
"""


def write(folder: Path, rows: int) -> Path:
    (folder / "kernels").mkdir(parents=True, exist_ok=True)
    text = "".join(ROW.format(number=number, version=number % 7) for number in range(rows))
    (folder / "kernels/mine.yaml").write_text(text, encoding="utf-8")
    (folder / "config.yaml").write_text((conf() / "config.yaml").read_text("utf-8"), encoding="utf-8")
    return folder


def once(work: Callable[[], object]) -> float:
    """Return the processor time of one call; what others left to be collected is not in it."""
    gc.collect()
    started = time.process_time()
    work()
    return time.process_time() - started


def by_hydra(folder: Path) -> None:
    with hydra.initialize_config_dir(str(folder), **version_base()):
        hydra_compose("config", [*WORDS, f"hydra.searchpath=[file://{conf()}]"])


def say(line: str) -> None:
    sys.stdout.write(f"{line}\n")


def planned(folder: Path) -> Callable[[], object]:
    """Return what takes the files of a folder to their plan."""

    def work() -> None:
        document, origins = compose(WORDS, config_dir=folder)
        config = check(document, origins=origins)
        resolve(config, locked(config), request("cuda", trust=config.trust))

    return work


def main() -> int:
    with tempfile.TemporaryDirectory() as name:
        folder = write(Path(name), SIZES[-1])
        pairs = [(once(lambda: compose(WORDS, config_dir=folder)), once(lambda: by_hydra(folder))) for _ in range(5)]
        times = statistics.median(ours / theirs for ours, theirs in pairs)
        ours, theirs = (statistics.median(found) for found in zip(*pairs, strict=True))
        say(f"compose 5,000 rows: {ours:.2f} s with origins, {theirs:.2f} s by Hydra alone")
        say(f"that is {times:.2f} times, limit {ORIGINS}")
        rounds: list[list[float]] = []
        works = [planned(write(Path(name, str(rows)), rows)) for rows in SIZES]
        for _ in range(5):
            rounds.append([once(work) / rows for work, rows in zip(works, SIZES, strict=True)])
        for rows, found in zip(SIZES, zip(*rounds, strict=True), strict=True):
            a_row = statistics.median(found)
            say(f"plan {rows} rows: {a_row * rows:.2f} s, {a_row * 1e6:.0f} µs a row")
        growth = statistics.median(found[-1] / found[0] for found in rounds)
        say(f"a row of {SIZES[-1]} takes {growth:.2f} times a row of {SIZES[0]}, limit {GROWTH}")
    return int(times > ORIGINS or growth > GROWTH)


if __name__ == "__main__":
    sys.exit(main())
