"""How long `kerncfg --help` and `kerncfg plan` take, as multiples of an empty Python process.

python tests/bench/bench_start.py
"""

from __future__ import annotations

import os
import statistics
import subprocess
import sys
import time
from pathlib import Path

ROOT = Path(__file__).parents[2]
LIMIT = 6.0  # of --help
CLI = "import sys; from kerncfg.cli import main; sys.exit(main(sys.argv[1:]))"
COMPOSE = (
    "import hydra, jsonschema, sys\n"
    "with hydra.initialize_config_dir(sys.argv[1], version_base='1.3'):\n"
    "    hydra.compose('config', ['target=h100'])"
)
COMMANDS = {
    "python -c pass": ["-c", "pass"],
    "kerncfg --help": ["-c", CLI, "--help"],
    "kerncfg plan target=h100": ["-c", CLI, "plan", "target=h100"],
    "hydra, jsonschema, compose": ["-c", COMPOSE, str(ROOT / "conf")],
}


def seconds(arguments: list[str]) -> float:
    """Time one process."""
    started = time.perf_counter()
    env = {**os.environ, "PYTHONPATH": str(ROOT)}
    subprocess.run([sys.executable, *arguments], env=env, check=True, stdout=subprocess.DEVNULL)
    return time.perf_counter() - started


def ratio(one: list[float], other: list[float]) -> float:
    """Return the median of the pairs' ratios."""
    return statistics.median(a / b for a, b in zip(one, other, strict=True))


def main(rounds: int = 15) -> int:
    """Print medians of interleaved runs; 1 if the help is above its limit."""
    times: dict[str, list[float]] = {name: [] for name in COMMANDS}
    for _ in range(rounds):
        for name, arguments in COMMANDS.items():
            times[name].append(seconds(arguments))
    empty, plain = times["python -c pass"], times["hydra, jsonschema, compose"]
    ratios = {
        name: statistics.median(a / b for a, b in zip(found, empty, strict=True)) for name, found in times.items()
    }
    for name, times_empty in ratios.items():
        milliseconds = statistics.median(times[name]) * 1000
        print(f"{name:28} {milliseconds:6.0f} ms  {times_empty:5.1f} times an empty process")  # noqa: T201
    plan = ratio(times["kerncfg plan target=h100"], plain)
    print(f"a plan of the default mapping takes {plan:.2f} times the last line")  # noqa: T201
    return int(ratios["kerncfg --help"] > LIMIT)


if __name__ == "__main__":
    raise SystemExit(main())
