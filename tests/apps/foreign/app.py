"""A training script of somebody else's that is a Hydra application, and plans kernels inside its job.

Prints one JSON object a job.
"""

from __future__ import annotations

import json
from concurrent.futures import ThreadPoolExecutor
from threading import Barrier
from typing import TYPE_CHECKING

import hydra
from hydra.core.hydra_config import HydraConfig

import kerncfg

if TYPE_CHECKING:
    from omegaconf import DictConfig


THREADS = 8


def planned(users: str, number: int, start: Barrier | None = None) -> str:
    """Plan a row of this number's own; what any other number says would be in it too if threads were mixed up."""
    words = [f"kernels.Mine{number}.cuda=builtin:{'RMSNorm' if number % 2 else 'LayerNorm'}", "experiment=mine"]
    if start is not None:
        start.wait()
    plan = kerncfg.plan(*words, config_dir=users)
    assert [step.name for step in plan.steps if step.name.startswith("Mine")] == [f"Mine{number}"]
    return plan.digest


@hydra.main(version_base="1.3", config_path="conf", config_name="config")
def main(config: DictConfig) -> None:
    plan = kerncfg.plan(config=config)
    nodes = kerncfg.plan(config={"kernels": config.kernels}, target=str(config.target.name))
    one_by_one = [planned(config.users, number) for number in range(THREADS)]
    start = Barrier(THREADS)
    with ThreadPoolExecutor(2 * THREADS) as threads:
        of_nodes = [threads.submit(kerncfg.plan, config=config) for _ in range(THREADS)]
        at_once = list(threads.map(lambda number: planned(config.users, number, start), range(THREADS)))
    refused = {each.reference for each in plan.step("SiLU").modes[kerncfg.Mode.INFERENCE].rejected}
    print(  # noqa: T201 (what the test reads)
        json.dumps(
            {
                "lr": config.lr,
                "rows": sorted(config.kernels),
                "steps": sorted(step.name for step in plan.steps if step.own),
                "silu": sorted(map(str, refused)),
                "target": plan.target.capability,
                "nodes_agree": nodes.digest == plan.digest,
                "threads_agree": at_once == one_by_one and {each.result().digest for each in of_nodes} == {plan.digest},
                "different": len(set(at_once)),
                "job": HydraConfig.get().job.name,  # Hydra's own state is still there
            }
        )
    )


if __name__ == "__main__":
    main()
