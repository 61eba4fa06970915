"""A composed document as files that say the same anywhere: an experiment on top of packaged options.

What only this machine has is refused, and consent is left out: whoever runs the experiment gives their own.
"""

from __future__ import annotations

import functools
import json
import re
from collections.abc import Iterator, Mapping
from itertools import zip_longest
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from kerncfg.compiler.compose import Origins, compose
from kerncfg.compiler.fetched import forbidden
from kerncfg.compiler.tree import grow
from kerncfg.compiler.writing import document_lines
from kerncfg.documents.config import Origin
from kerncfg.errors import ConfigError
from kerncfg.locations import conf

__all__ = ["checked_name", "files_of", "shareable"]

# The nodes, each with its group as a defaults list names it.
_GROUPS = {
    "kernels": "kernels",
    "inherited": "kernels@inherited",
    "fusions": "fusions",
    "attention": "attention",
    "policy": "policy",
    "target": "target",
    "model": "model",
}
_NAME = re.compile(r"[A-Za-z0-9][\w-]*")
_SAID_BY = "# Written by `kerncfg push`."


class _Inexpressible(Exception):
    """A base has a key that the document lacks, and no file can take one away."""


def checked_name(name: str) -> str:
    """Return the name of an experiment, if files and command lines take it and no packaged one has it.

    Raises:
        ConfigError: It is none.
    """
    if not _NAME.fullmatch(name):
        message = f"{name!r} cannot name an experiment, expected letters, digits, - and _"
        raise ConfigError(message, hint="name it with --name NAME")
    if (conf() / "experiment" / f"{name}.yaml").is_file():
        message = f"{name!r} is a packaged experiment, which would be found in the place of yours"
        raise ConfigError(message, hint="name it with --name NAME")
    return name


def shareable(document: Mapping[str, Any], origins: Origins) -> dict[str, Any]:
    """Return a document without consents.

    Raises:
        ConfigError: It names folders or modules of this machine, or looks something up; it holds every fault.
    """
    kept = {name: _without_consent(value) for name, value in document.items() if name != "trust"}
    issues = forbidden(grow(kept, Origin(kind="argument")))
    if issues:
        raise ConfigError(
            [origins.issue(tuple(issue.path.split(".")), issue.message, hint=_ADVICE) for issue in issues]
        )
    return kept


_ADVICE = "others do not have it: name a kernel on the Hub or a value, or take the row out"


def _without_consent(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _without_consent(child) for key, child in value.items() if key != "trust_remote_code"}
    return [_without_consent(child) for child in value] if isinstance(value, list) else value


def files_of(document: Mapping[str, Any], name: str) -> dict[str, str]:
    """Return the files that compose to a shareable document: `experiment/NAME.yaml`, and groups that it needs.

    Raises:
        ConfigError: They would not compose to it.
    """
    files: dict[str, str] = {}
    chosen: list[str] = []
    above: dict[str, Any] = {} if document["enabled"] else {"enabled": False}
    for node, group in _GROUPS.items():
        wanted = document.get(node) or {}
        found = list(_bases(node, wanted))
        if found:
            option, said = min(found, key=lambda pair: len(json.dumps(pair[1])))
            above |= {node: said} if said else {}
        else:
            option, folder = name, group.partition("@")[0]
            files[f"{folder}/{name}.yaml"] = "\n".join([_SAID_BY, *document_lines(wanted, None)]) + "\n"
        chosen.append(f"  - override /{group}: {option}")
    lines = ["# @package _global_", _SAID_BY, "defaults:", *chosen, *document_lines(above, None)]
    files[f"experiment/{name}.yaml"] = "\n".join(lines) + "\n"
    _check(files, document, name)
    return files


def _check(files: Mapping[str, str], document: Mapping[str, Any], name: str) -> None:
    with TemporaryDirectory() as folder:
        for path, text in files.items():
            place = Path(folder, path)
            place.parent.mkdir(exist_ok=True)
            place.write_text(text, encoding="utf-8")
        again = compose([f"experiment={name}"], config_dir=Path(folder))[0]
    wrong = [node for node in document if (again.get(node) or {}) != (document[node] or {})]
    if wrong:
        message = f"the experiment would not say the same as what was run, in {', '.join(wrong)}"
        raise ConfigError(message, hint="say those nodes in an experiment file of your own and push that")


def _bases(node: str, wanted: Any) -> Iterator[tuple[str, Any]]:
    """Yield the packaged options that a node can be said on top of, each with what is to be said there."""
    for option, base in _packaged()[node].items():
        try:
            yield option, _above(base, wanted)
        except _Inexpressible:
            continue


def _above(base: Mapping[str, Any], wanted: Mapping[str, Any]) -> dict[str, Any]:
    """Return what, laid over a base, gives what is wanted."""
    if base.keys() - wanted.keys():
        raise _Inexpressible
    said: dict[str, Any] = {}
    for key, value in wanted.items():
        below = base.get(key)
        if key in base and below == value and type(below) is type(value):
            continue
        said[key] = _above(below, value) if isinstance(below, dict) and isinstance(value, dict) else value
    return said


@functools.cache
def _packaged() -> dict[str, dict[str, dict[str, Any]]]:
    """Return what each option of each packaged group composes to, by node."""
    options = {
        node: sorted(file.stem for file in (conf() / group.partition("@")[0]).glob("*.yaml"))
        for node, group in _GROUPS.items()
    }
    found: dict[str, dict[str, dict[str, Any]]] = {node: {} for node in _GROUPS}
    for row in zip_longest(*options.values()):
        pairs = {node: option for node, option in zip(options, row, strict=True) if option is not None}
        data, _ = compose([f"{node}={option}" for node, option in pairs.items()])
        for node, option in pairs.items():
            found[node][option] = data.get(node) or {}
    return found
