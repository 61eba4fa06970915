"""A training script of somebody else's that is a Hydra application, and plans kernels inside its job.

`app.py USERS OVERRIDES…`: USERS is a folder of the user's own groups. Prints one JSON object.
"""

from __future__ import annotations

import json
import sys
from concurrent.futures import ThreadPoolExecutor

import hydra
from hydra.core.hydra_config import HydraConfig
from omegaconf import DictConfig, OmegaConf

import kerncfg

USERS = sys.argv.pop(1)


def planned(number: int) -> str:
    plan = kerncfg.plan(f"kernels.Mine.cuda=org/n{number}:X", "experiment=mine", config_dir=USERS)
    return str(plan.to_dict()["digest"])


@hydra.main(version_base="1.3", config_path="conf", config_name="config")
def main(config: DictConfig) -> None:
    mapping = OmegaConf.to_container(config.kernels)
    plan = kerncfg.plan(config={"kernels": mapping}, target=str(config.target.name))
    one_by_one = [planned(number) for number in range(8)]
    with ThreadPoolExecutor(8) as threads:
        at_once = list(threads.map(planned, range(8)))
    print(  # noqa: T201 (what the test reads)
        json.dumps(
            {
                "lr": config.lr,
                "rows": sorted(config.kernels),
                "steps": sorted(step.name for step in plan.steps if step.own),
                "threads_agree": at_once == one_by_one,
                "job": HydraConfig.get().job.name,  # Hydra's own state is still there
            }
        )
    )


if __name__ == "__main__":
    main()
