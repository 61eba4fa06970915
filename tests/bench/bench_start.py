"""How long `kerncfg --help`, and a plan of the default mapping from a lock, take, as multiples of an empty process.

The lock is one of a loopback Hub that has every repository of the mapping, with 12 builds each; it is not asked again.
The exit code is 1 if a limit does not hold: `--help` 6 times an empty process, the plan 1.8 times a process that
imports hydra and jsonschema and composes the same files.

python tests/bench/bench_start.py
"""

from __future__ import annotations

import os
import resource
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

from kerncfg.compiler.compose import compose
from kerncfg.compiler.normalise import normalise
from tests.hub.fixtures import TestHub
from tests.hub.kernels import norm_layers, repository

ROOT = Path(__file__).parents[2]
LIMIT = 6.0  # of --help
PLAN = 1.8
BUILDS = [
    *(
        f"torch{torch}-cxx11-{backend}-x86_64-linux"
        for torch in ("212", "213")
        for backend in ("cu126", "cu128", "cu130")
    ),
    *(f"torch213-cxx11-{backend}-x86_64-linux" for backend in ("cpu", "rocm71", "xpu20253")),
    *("torch-cuda", "torch-cpu", "torch-rocm"),
]
CLI = "import sys; from kerncfg.cli import main; sys.exit(main(sys.argv[1:]))"
COMPOSE = (
    "import hydra, jsonschema, sys\n"
    "with hydra.initialize_config_dir(sys.argv[1], version_base='1.3'):\n"
    "    hydra.compose('config', ['target=h100'])"
)
COMMANDS = {
    "python -c pass": ["-c", "pass"],
    "kerncfg --help": ["-c", CLI, "--help"],
    "kerncfg plan target=h100": ["-c", CLI, "plan", "target=h100", "target.backend_version='12.8'"],
    "hydra, jsonschema, compose": ["-c", COMPOSE, str(ROOT / "conf")],
}


def seconds(arguments: list[str], folder: Path, env: dict[str, str]) -> float:
    """Return the processor time of one whole process, which on a machine with nothing else to do is its wall time."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    subprocess.run([sys.executable, *arguments], cwd=folder, env=env, check=True, stdout=subprocess.DEVNULL)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


def locked(folder: Path, hub: TestHub) -> dict[str, str]:
    """Write the lock of the default mapping into a folder, and return the environment of the processes there."""
    config = normalise(compose()[0])
    refs = {candidate.ref for row in config.every() for candidate in row.candidates() if candidate.ref.scheme == "hub"}
    for ref in sorted(refs, key=str):
        if hub.repository("kernel", ref.location) is None and (ref.revision or "").startswith("v"):
            hub.add(repository(ref.location, norm_layers(1), branch=str(ref.revision), variants=BUILDS))
    env = {**os.environ, **hub.settings(), "PYTHONPATH": str(ROOT)}
    subprocess.run([sys.executable, "-c", CLI, "lock"], cwd=folder, env=env, check=True, capture_output=True)
    return env


def ratio(one: list[float], other: list[float]) -> float:
    """Return the median of the pairs' ratios."""
    return statistics.median(a / b for a, b in zip(one, other, strict=True))


def main(rounds: int = 15) -> int:
    """Print medians of interleaved runs; 1 if one is above its limit."""
    times: dict[str, list[float]] = {name: [] for name in COMMANDS}
    with tempfile.TemporaryDirectory() as made, TestHub(Path(made) / "hf") as hub:
        env = locked(Path(made), hub)
        hub.log.clear()
        for _ in range(rounds):
            for name, arguments in COMMANDS.items():
                times[name].append(seconds(arguments, Path(made), env))
        assert not hub.log.everything, "a plan from a lock asks nothing"
    empty, plain = times["python -c pass"], times["hydra, jsonschema, compose"]
    ratios = {
        name: statistics.median(a / b for a, b in zip(found, empty, strict=True)) for name, found in times.items()
    }
    for name, times_empty in ratios.items():
        milliseconds = statistics.median(times[name]) * 1000
        print(f"{name:28} {milliseconds:6.0f} ms  {times_empty:5.1f} times an empty process")  # noqa: T201
    plan = ratio(times["kerncfg plan target=h100"], plain)
    print(f"a plan of the default mapping, from a lock, takes {plan:.2f} times the last line")  # noqa: T201
    return int(ratios["kerncfg --help"] > LIMIT or plan > PLAN)


if __name__ == "__main__":
    raise SystemExit(main())
