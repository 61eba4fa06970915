"""A plan from its file. What words a fault, the schema and YAML's reader, is imported when there is one to word."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from kerncfg.documents.config import Trust
from kerncfg.documents.plain import DEEP, loads
from kerncfg.documents.plan import SCHEMA, Plan, seal
from kerncfg.errors import ConfigError, IntegrityError, Issue, LockError
from kerncfg.locations import conf

__all__ = ["default_trust", "load_plan", "names"]

_KINDS = ("publishers", "repositories")
_TRUST = "trust/default.yaml"
_MADE_BY = "a plan is written by `kerncfg plan -o FILE`"


def load_plan(path: str | Path, *, trust: Sequence[str] = ()) -> Plan:
    """Return a plan from a file. A file carries no consent: name in `trust` whose code it may run.

    Raises:
        ConfigError: The file cannot be read, or is no plan.
        LockError: The plan has a format that this version does not read.
        IntegrityError: The plan was edited.
    """
    try:
        data = loads(Path(path).read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) else f"not JSON ({error})"
        raise ConfigError(f"{path}: {reason}", hint=_MADE_BY) from error
    if not isinstance(data, dict):
        foreign = isinstance(data, list) and any(isinstance(entry, dict) and "lock" in entry for entry in data)
        what = "is a lock of the `kernels` library" if foreign else f"holds a {type(data).__name__}"
        raise ConfigError(f"{path}: {what}, not a plan", hint=_MADE_BY)
    if "pins" in data:
        hint = f"name the lock by --lock; {_MADE_BY}"
        raise ConfigError(f"{path}: is a lock, not a plan", hint=hint)
    if lacks := [key for key in ("schema", "digest", "steps") if key not in data]:
        message = f"{path}: is no plan, it has no {' and no '.join(lacks)}"
        raise ConfigError(message, hint=_MADE_BY)
    try:
        plan = _read_plan(data)
    except ConfigError as error:
        raise ConfigError([replace(issue, file=str(path)) for issue in error.issues]) from error
    except (LockError, IntegrityError) as error:
        raise type(error)(f"{path}: {error.message}", hint=error.hint) from error
    except RecursionError as error:
        raise ConfigError(f"{path}: {DEEP}", hint=_MADE_BY) from error
    return replace(plan, trust=default_trust().plus(*names(trust)))


def _read_plan(data: dict[str, Any]) -> Plan:
    """Return the plan in plain data; what is as kerncfg wrote it needs no schema, which takes 20 times as long."""
    if data["schema"] == SCHEMA and data.get("sealed") != seal(data):
        from kerncfg.compiler.schema import validate

        validate(data, "plan")
    return Plan.from_dict(data)


def names(trust: Sequence[str]) -> Sequence[str]:
    """Return the names given as trusted, each of which must be one."""
    if isinstance(trust, str):
        raise ConfigError("trust is a list of names", hint=f"write trust=[{trust!r}]")
    strange = [name for name in trust if not _TRUSTED.fullmatch(name)]
    if strange:
        hint = "name an organisation (org), a repository (org/repo, or org/repo@v1), a folder or python:package.module"
        raise ConfigError([Issue(message=f"{name!r} is nobody to trust", path="trust", hint=hint) for name in strange])
    return trust


def default_trust() -> Trust:
    """Return whom the packaged files trust, read without composing anything."""
    said = _plain((conf() / _TRUST).read_text("utf-8")) or _read()
    publishers, repositories = (frozenset(name for name, on in said[key].items() if on) for key in _KINDS)
    return Trust(publishers=publishers, repositories=repositories)


def _plain(text: str) -> dict[str, dict[str, bool]] | None:
    """Return the maps of yes and no in a file written as plainly as the packaged one; `None` is for YAML's reader."""
    found: dict[str, dict[str, bool]] = {}
    last: dict[str, bool] | None = None
    for line in text.splitlines():
        match = _LINE.fullmatch(line)
        if match is None or (match["name"] and last is None):
            return None
        if last is not None and match["name"]:
            last[match["name"]] = match["on"] == "true"
        elif match["key"]:
            last = found[match["key"]] = {}
    return found if found.keys() >= set(_KINDS) else None


def _read() -> dict[str, dict[str, bool]]:
    from kerncfg.compiler.reading import Place, read

    node = read(conf() / _TRUST, Place("preset", _TRUST))
    return {key: {name: on.value for name, on in node.value[key].value.items()} for key in _KINDS}


# A comment, the start of a map, a single value, or an entry of the map.
_LINE = re.compile(
    r"#.*|(?P<key>[a-z]+):( \{\})?|[a-z_]+: (true|false)|  (?P<name>[A-Za-z][\w./-]*): (?P<on>true|false)", re.ASCII
)
_TRUSTED = re.compile(
    r"[\w-][\w.-]*(/[\w-][\w.-]*(@[\w./+-]+)?)?|python:[\w.]+|(\.{0,2}|~[^/]*)[/\\].*|[A-Za-z]:[\\/].*", re.DOTALL
)
