"""Files of other tools to one document: each is read as what it is, and pins and folders go into the rows."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from kerncfg.compiler.compose import Origins, read_document
from kerncfg.dialects.kernel_config import from_kernel_config
from kerncfg.dialects.liger import from_liger
from kerncfg.dialects.pins import Move, folders, moved, pins
from kerncfg.dialects.source import read_source
from kerncfg.dialects.translation import Translation
from kerncfg.documents.config import Origin
from kerncfg.documents.plain import DEEP, loads
from kerncfg.errors import ConfigError, Issue

__all__ = ["translate"]

_LOCAL = "LOCAL_KERNELS"
_LIGER = ("use_liger_kernel", "liger_kernel_config")
_ATTENTION = "attn_implementation"
_KINDS = "a Python source, a kernels.lock, training arguments in YAML or JSON, or LOCAL_KERNELS=org/repo=/path"


def translate(*files: str | Path) -> Translation:
    """Return what files of other tools mean together.

    Args:
        files: Python sources (`train.py`, or `train.py:12` for one of several places), a `kernels.lock`, training
            arguments in YAML or JSON (`use_liger_kernel`, `liger_kernel_config` and, beside them,
            `attn_implementation`), or `LOCAL_KERNELS=org/repo=/path`.

    Raises:
        ConfigError: A file cannot be read or is none of these, or two say one thing.
    """
    if not files or "" in files:
        raise ConfigError("import needs a file", hint=f"name {_KINDS}")
    found: Translation | None = None
    moves: list[Move] = []
    for file in files:
        read = _read(str(file))
        if isinstance(read, list):
            moves += read
        else:
            found = read if found is None else _joined(found, read)
    if found is None:
        found = Translation(document={"kernels": {}}, origin=Origin(kind="file", place=_place(str(files[0]))))
    document, idle = moved(found.document, moves)
    return replace(found, document=document).remarked(*idle)


def _place(file: str) -> str:
    return _LOCAL if file.startswith(f"{_LOCAL}=") else file


def _read(file: str) -> Translation | list[Move]:
    if file.startswith(f"{_LOCAL}="):
        return folders(file.partition("=")[2])
    numbered = re.fullmatch(r"(.+\.py):(\d+)", file)
    path = Path(numbered[1] if numbered else file)
    try:
        if path.suffix == ".py":
            return read_source(path, int(numbered[2]) if numbered else None)
        if path.suffix == ".lock" or path.read_text("utf-8").lstrip().startswith("["):
            return pins(loads(path.read_text("utf-8")))
    except RecursionError as error:
        raise ConfigError([Issue(message=DEEP, file=str(path))]) from error
    except OSError as error:
        raise ConfigError([Issue(message=f"cannot be read: {error.strerror}", file=str(path))]) from error
    except UnicodeDecodeError as error:
        raise ConfigError([Issue(message="is no text", file=str(path), hint=f"name {_KINDS}")]) from error
    except json.JSONDecodeError as error:
        raise ConfigError([Issue(message=f"not JSON: {error.msg}", file=str(path), line=error.lineno)]) from error
    except ValueError as error:
        raise ConfigError([Issue(message=f"not JSON: {error}", file=str(path))]) from error
    except ConfigError as error:
        raise ConfigError(
            [issue if issue.file else replace(issue, file=str(path)) for issue in error.issues]
        ) from error
    return _arguments(path)


def _arguments(path: Path) -> Translation:
    """Read training arguments."""
    node = read_document(path)
    data, origins = node.plain(), Origins(node)
    if not any(key in data for key in _LIGER):
        message = f"holds none of {' and '.join(_LIGER)}"
        raise ConfigError([Issue(message=message, file=str(path), hint=f"import reads {_KINDS}")])
    origin = origins.at((next(key for key in reversed(_LIGER) if key in data),)) or Origin(kind="file", place=str(path))
    switch = data.get("use_liger_kernel", True)
    if not isinstance(switch, bool):
        message = f"found {switch!r}, expected true or false"
        raise ConfigError([origins.issue(("use_liger_kernel",), message)])
    beside = _attention(data.get(_ATTENTION), origins)
    if not switch:
        return Translation(document={"kernels": {}, **beside}, origin=origin)
    flags: Any = data.get("liger_kernel_config") or {}
    if not isinstance(flags, Mapping):
        hint = "write liger_kernel_config: {rms_norm: true}"
        raise ConfigError([origins.issue(("liger_kernel_config",), "is no map of flags", hint=hint)])
    try:
        found = from_liger(flags, model_type=data.get("model_type"), origin=origin)
        return replace(found, document={**found.document, **beside})
    except ConfigError as error:
        raise ConfigError([replace(one, file=origin.place, line=origin.line) for one in error.issues]) from error


def _attention(said: Any, origins: Origins) -> dict[str, Any]:
    """Return the node of the attention that training arguments choose beside Liger's kernels."""
    if said is None:
        return {}
    try:
        return {"attention": from_kernel_config(attn_implementation=said)["attention"]}
    except ConfigError as error:
        raise ConfigError([origins.issue((_ATTENTION,), one.message, hint=one.hint) for one in error.issues]) from error


def _joined(first: Translation, second: Translation) -> Translation:
    """Return two documents as one; they must not say one thing twice."""
    document: dict[str, Any] = dict(first.document)
    for node, said in second.document.items():
        below = document.get(node)
        if isinstance(below, Mapping) and isinstance(said, Mapping):
            twice = sorted(key for key in below.keys() & said.keys() if below[key] != said[key])
            if twice:
                message = f"{node}.{twice[0]} is said in both {first.origin} and {second.origin}"
                raise ConfigError(message, hint="import one of them, and write the other's rows beside it")
            document[node] = {**below, **said}
        else:
            document[node] = said
    return replace(first, document=document, remarks=(*first.remarks, *second.remarks))
