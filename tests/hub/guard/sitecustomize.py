"""Python imports this by itself at its start, wherever this folder is on PYTHONPATH."""

from __future__ import annotations

import runpy

# Without pathlib, which not every process would import.
for _owner, _name, _call in runpy.run_path(__file__.removesuffix("sitecustomize.py") + "loopback.py")["guards"]():
    setattr(_owner, _name, _call)
