"""What `${…}` stands for, by OmegaConf's rules.

Values of the environment may stand only where no plan, lock, report or message shows them.
"""

from __future__ import annotations

import re
from typing import Any

from omegaconf import Container, OmegaConf
from omegaconf.errors import OmegaConfBaseException

from kerncfg.compiler.tree import KeyPath, Node, Origins, leaves, spell
from kerncfg.errors import ConfigError, Issue

__all__ = ["resolved"]

_ENVIRONMENT = "oc.env"
_MAY_HOLD_ENVIRONMENT = ("model",)
_MISSING = re.compile(r"Interpolation key '(.+)' not found")
_REFERENCE = re.compile(r"\$\{([^:{}]*)\}")


def resolved(root: Node) -> dict[str, Any]:
    """Return the document with every interpolation replaced by its value.

    Raises:
        ConfigError: Interpolations that lead nowhere, or bring the environment where it would be shown.
    """
    document: dict[str, Any] = root.plain()
    said = ((path, node.value) for path, node in leaves(root))
    texts = {path: value for path, value in said if isinstance(value, str) and "${" in value}
    if not texts:
        return document
    origins = Origins(root)
    if issues := [*_unreadable(texts, origins), *_from_environment(texts, origins)]:
        raise ConfigError(issues)
    config = OmegaConf.create(document)
    values: dict[KeyPath, Any] = {}
    for path, text in texts.items():
        try:
            values[path] = _value(config, path)
        except OmegaConfBaseException as error:
            hint = "write the full path of a value, such as ${kernels.RMSNorm.cuda}"
            issues.append(origins.issue(path, f"{text} {_why(text, error)}", hint=hint))
    if issues:
        raise ConfigError(issues)
    for path, value in values.items():
        inside: Any = document
        for part in path[:-1]:
            inside = inside[part]
        inside[path[-1]] = value
    return document


def _value(config: Any, path: KeyPath) -> Any:
    for part in path:
        config = config[part]
    return OmegaConf.to_container(config, resolve=True) if isinstance(config, Container) else config


def _why(text: str, error: Exception) -> str:
    """Say what is wrong with an interpolation; nothing of what the environment holds is in it."""
    if _ENVIRONMENT in text:
        return "cannot be resolved"
    said = str(error).partition("\n")[0]
    missing = _MISSING.search(said)
    return f"leads nowhere: there is no {missing[1]}" if missing else f"cannot be resolved: {said}"


def _unreadable(texts: dict[KeyPath, str], origins: Origins) -> list[Issue]:
    issues = []
    for path, text in texts.items():
        try:
            OmegaConf.create({"value": text})
        except OmegaConfBaseException:
            hint = r"write ${path.to.value}, or \${ for the characters themselves"
            issues.append(origins.issue(path, f"{text} is no interpolation that can be read", hint=hint))
    return issues


def _from_environment(texts: dict[KeyPath, str], origins: Origins) -> list[Issue]:
    """Find what takes a value from the environment, by itself or by way of another value."""
    tainted = {path for path, text in texts.items() if _ENVIRONMENT in text}
    while more := {path for path, text in texts.items() if path not in tainted and _reaches(text, tainted)}:
        tainted |= more
    hint = 'say the value by an override, such as kernels.RMSNorm="$KERNEL", where the shell puts it in'
    message = "brings a value of the environment, which is for `model` only"
    return [
        origins.issue(path, f"{texts[path]} {message}", hint=hint)
        for path in texts
        if path in tainted and path[0] not in _MAY_HOLD_ENVIRONMENT
    ]


def _reaches(text: str, tainted: set[KeyPath]) -> bool:
    """Say whether a text refers to a tainted value; one that cannot be told from its text is taken to."""
    names = [name.strip() for name in _REFERENCE.findall(text)]
    if not tainted:
        return False
    if text.count("${") > len(names) or any(name.startswith(".") or "[" in name for name in names):
        return True
    return any(_inside(name, spell(path)) for name in names for path in tainted)


def _inside(name: str, path: str) -> bool:
    return f"{path}.".startswith(f"{name}.") or f"{name}.".startswith(f"{path}.")
