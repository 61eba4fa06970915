"""A Hydra application whose task only plans, started as `kerncfg run -m` starts its own.

`plan_sweep.py RESULTS OVERRIDES…` writes one line of JSON a job: what the plan says of the row X, or the error.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import hydra
from hydra.core.hydra_config import HydraConfig

import kerncfg
from kerncfg.compiler.compose import hydra_folder, job_overrides, version_base
from kerncfg.compiler.overrides import rewrite
from tests.planning_routes import said


def main() -> None:
    results, overrides = Path(sys.argv[1]), sys.argv[2:]
    quiet = ["hydra/job_logging=none", "hydra/hydra_logging=none", "hydra.output_subdir=null"]
    sys.argv = ["plan_sweep", *rewrite(overrides), *quiet, f"hydra.sweep.dir={results.parent}/jobs", "--multirun"]

    def job(_: Any) -> None:
        words = job_overrides(HydraConfig.get())
        found = said(lambda: kerncfg.plan(*words))
        with results.open("a", encoding="utf-8") as lines:
            lines.write(json.dumps(found) + "\n")

    with hydra_folder(None) as folder:
        hydra.main(config_path=str(folder), config_name="config", **version_base())(job)()


if __name__ == "__main__":
    main()
