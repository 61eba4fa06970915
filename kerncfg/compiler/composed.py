"""Documents given as data, by way of somebody's own Hydra application too: what is OmegaConf's becomes plain.

Interpolations are followed in the application's whole configuration, with its own resolvers. Nothing of the environment
is read: a mark stands for each text that would, and where a mark arrives is what would have brought it.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Mapping, Sequence
from pathlib import PurePath
from typing import Any

from omegaconf import Container, DictConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException

from kerncfg.compiler.overrides import NODES
from kerncfg.compiler.tree import KeyPath, spell
from kerncfg.errors import ConfigError, Issue

__all__ = ["plain"]

_PLANNED = tuple(name for name in NODES if name not in ("model", "experiment"))  # what a plan is made from
_BY_NAME = 'pass single nodes: config={"kernels": cfg.kernels}'
_MARK = re.compile("\0(\\d+)\0")


def plain(config: Mapping[str, Any]) -> dict[str, Any]:
    """Return a document as plain data.

    Of an application's whole configuration these are the nodes that a plan is made from, the rest is the application's
    own; of a node in it, and of a map, everything.

    Raises:
        ConfigError: Interpolations that lead nowhere or bring the environment, or nothing of kerncfg's.
    """
    if isinstance(config, DictConfig):
        node: dict[str, Any] = _followed(config, (), _ours(config) if config._get_parent() is None else None)
        return node
    return {
        name: _followed(value, (name,)) if isinstance(value, Container) else value for name, value in config.items()
    }


def _ours(config: DictConfig) -> list[str]:
    """Return the keys that are kerncfg's; one that is nearly one of them is a mistake."""
    names = [str(name) for name in config]
    issues = [
        Issue(message=f"unknown key `{name}`", path=name, hint=f"did you mean {close[0]}? if not, {_BY_NAME}")
        for name in names
        if name not in NODES and (close := difflib.get_close_matches(name, _PLANNED, n=1, cutoff=0.8))
    ]
    if issues:
        raise ConfigError(issues)
    if not any(name in _PLANNED for name in names):
        hint = f"write `- kernels: liger` in the application's defaults list, or {_BY_NAME}"
        raise ConfigError(f"config= has no node of a plan: none of {', '.join(_PLANNED)}", hint=hint)
    return [name for name in names if name in _PLANNED]


def _followed(node: Any, place: KeyPath, names: Sequence[str] | None = None) -> Any:
    """Return a node of a composed configuration, or these keys of it, as plain data; `place` is its place here."""
    texts: list[str] = []
    whole = OmegaConf.to_container(node._get_root(), resolve=False, enum_to_str=True)
    marked = OmegaConf.create(_marked(whole, texts))
    key = node._get_full_key(None)
    inside: Any = OmegaConf.select(marked, key) if key else marked
    try:
        if names is None:
            found = OmegaConf.to_container(inside, resolve=True)
        else:
            values = {name: inside[name] for name in names}
            found = {
                name: OmegaConf.to_container(value, resolve=True) if isinstance(value, Container) else value
                for name, value in values.items()
            }
    except OmegaConfBaseException as error:
        said = str(error).partition("\n")[0]
        message = f"{error.full_key} cannot be resolved: {said}"
        raise ConfigError(message, hint="name a value that the composed configuration has") from error
    issues: list[Issue] = []
    data = _read(found, place, texts, issues)
    if issues:
        raise ConfigError(issues)
    return data


def _marked(value: Any, texts: list[str]) -> Any:
    """Return plain data with a mark for each text that brings the environment; `texts` gets the text."""
    if isinstance(value, dict):
        return {key: _marked(child, texts) for key, child in value.items()}
    if isinstance(value, list):
        return [_marked(child, texts) for child in value]
    if isinstance(value, str) and "${" in value and "oc.env" in value:
        texts.append(value)
        return f"\0{len(texts) - 1}\0"
    return value


def _read(value: Any, path: KeyPath, texts: Sequence[str], issues: list[Issue]) -> Any:
    """Return resolved data with paths as text, and marks as what they stand for, where that may be."""
    if isinstance(value, dict):
        return {key: _read(child, (*path, str(key)), texts, issues) for key, child in value.items()}
    if isinstance(value, list):
        return [_read(child, (*path, index), texts, issues) for index, child in enumerate(value)]
    if isinstance(value, PurePath):
        return str(value)
    if not isinstance(value, str) or not (marks := _MARK.findall(value)):
        return value
    if path[0] != "model":
        message = f"{texts[int(marks[0])]} brings a value of the environment, which is for `model` only"
        issues.append(Issue(message=message, path=spell(path), hint="write the value itself"))
    return _MARK.sub(lambda mark: texts[int(mark[1])], value)
