"""What composing with origins and planning cost at 5,000 rows. Run by hand, from the root of the checkout:

    PYTHONPATH=. python tests/bench/bench_compose.py

Prints the time of `compose` over that of Hydra's own compose of the same files (3 at most is asked), and the time of a
plan at several sizes, which is to grow with the rows.
"""

from __future__ import annotations

import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import hydra
from hydra import compose as hydra_compose

from kerncfg.compiler.compose import compose, version_base
from kerncfg.compiler.normalise import normalise
from kerncfg.compiler.resolve import resolve
from kerncfg.compiler.schema import validate
from kerncfg.locations import conf
from tests.builders import locked, request

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


def median(work: Callable[[], object], times: int = 3) -> float:
    work()
    found = []
    for _ in range(times):
        started = time.process_time()
        work()
        found.append(time.process_time() - started)
    return statistics.median(found)


def by_hydra(folder: Path) -> None:
    with hydra.initialize_config_dir(str(folder), **version_base()):
        hydra_compose("config", ["kernels=mine", "target=h100", f"hydra.searchpath=[file://{conf()}]"])


def say(line: str) -> None:
    sys.stdout.write(f"{line}\n")


def main() -> int:
    with tempfile.TemporaryDirectory() as name:
        folder = write(Path(name), 5_000)
        words = ["kernels=mine", "target=h100", "inherited=none"]
        ours, theirs = median(lambda: compose(words, config_dir=folder)), median(lambda: by_hydra(folder))
        say(f"compose 5,000 rows: {ours:.2f} s with origins, {theirs:.2f} s by Hydra alone: {ours / theirs:.2f} times")
        for rows in (625, 1_250, 2_500, 5_000):
            document, origins = compose(words, config_dir=write(Path(name), rows))
            started = time.process_time()
            validate(document, origins=origins)
            config = normalise(document, origins=origins)
            resolve(config, locked(config), request("cuda", trust=config.trust))
            took = time.process_time() - started
            say(f"plan {rows} rows: {took:.2f} s, {took / rows * 1e6:.0f} µs a row")
    return 0 if ours <= 3 * theirs else 1


if __name__ == "__main__":
    sys.exit(main())
