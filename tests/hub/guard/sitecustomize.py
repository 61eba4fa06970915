"""Python imports this by itself at its start, wherever this folder is on PYTHONPATH."""

from __future__ import annotations

import runpy

_FOLDER = __file__.removesuffix("sitecustomize.py")  # without pathlib, which not every process would import

for _owner, _name, _call in runpy.run_path(f"{_FOLDER}loopback.py")["guards"]():
    setattr(_owner, _name, _call)
runpy.run_path(f"{_FOLDER}brief.py")["install"]()
