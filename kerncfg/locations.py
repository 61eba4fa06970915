"""Where the packaged `conf/` and `schemas/` are: beside the code if shipped, else in the checkout.

And how a command line says where else to look.
"""

from __future__ import annotations

from pathlib import Path

__all__ = ["SEARCHED", "conf", "schemas", "searches", "shipped"]

SEARCHED = "hydra.searchpath"


def _folder(name: str) -> Path:
    package = Path(__file__).resolve().parent
    shipped = package / name
    return shipped if shipped.is_dir() else package.parent / name


def conf() -> Path:
    """Return the folder of the packaged Hydra groups."""
    return _folder("conf")


def schemas() -> Path:
    """Return the folder of the JSON schemas."""
    return _folder("schemas")


def shipped(page: str) -> str | None:
    """Return where a page of the docs was installed with the code, or `None` in a checkout."""
    file = Path(__file__).resolve().parent / page
    return str(file) if file.is_file() else None


def searches(argument: str) -> bool:
    """Say whether an override names further places to look in."""
    return argument.lstrip("+").startswith(f"{SEARCHED}=")
