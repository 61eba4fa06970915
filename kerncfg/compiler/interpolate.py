"""What `${…}` stands for, by OmegaConf's rules.

Values of the environment may stand in `model` only, and stay in words until the model is built: so no plan, report,
message or shown configuration can hold them.
"""

from __future__ import annotations

import os
import re
from typing import Any

from omegaconf import Container, OmegaConf
from omegaconf.errors import OmegaConfBaseException

from kerncfg.compiler.bounds import endless
from kerncfg.compiler.tree import Fault, KeyPath, Node, Origins, grow, lacking, leaves, spell
from kerncfg.documents.config import Origin
from kerncfg.documents.plain import DEEP, MAX_BRACKETS, brackets
from kerncfg.errors import ConfigError, Issue

__all__ = ["resolved", "unfit", "with_environment"]

_ENVIRONMENT = "oc.env"
_VARIABLE = re.compile(r"oc\.env:\s*(\w+)")
_ALONE = re.compile(r"\$\{oc\.env:\s*(\w+)\s*\}(?!\w)")
_MAY_HOLD_ENVIRONMENT = ("model",)
_BY_SHELL = "where the shell puts the value in"
_MISSING = re.compile(r"Interpolation key '(.+)' not found")
_ROW = re.compile(r"there is no kernels\.([A-Za-z_][\w-]*)$")
_REFERENCE = re.compile(r"\$\{([^:{}]*)\}")


def resolved(root: Node, faults: list[Fault] | None = None) -> dict[str, Any]:
    """Return the document with every interpolation replaced by its value, but for those of the environment.

    With `faults` what is wrong is noted there, and null stands in its place.

    Raises:
        ConfigError: Interpolations that lead nowhere, or bring the environment where it would be shown.
    """
    document: dict[str, Any] = root.plain()
    texts = _texts(root)
    if not texts:
        return document
    found = unfit(root)
    for path, _ in found:
        _put(document, path, None)
    origins = Origins(root)
    unfits = {path for path, _ in found}
    texts = {path: text for path, text in texts.items() if path not in unfits}
    tainted = _tainted(texts)
    config = OmegaConf.create(document)
    values: dict[KeyPath, Any] = {}
    for path in texts:
        try:
            values[path] = _value(config, path)
        except OmegaConfBaseException as error:
            found.append((path, _unsaid(error, faults or []) or _nowhere(path, texts[path], error, origins)))
            values[path] = None
    if found and faults is None:
        raise ConfigError(dict.fromkeys(issue for _, issue in found))
    for path, value in values.items():
        if path not in tainted:
            _put(document, path, value)
    if faults is not None:
        faults += found
    return document


def unfit(root: Node) -> list[Fault]:
    """Return what is wrong with interpolations by themselves, wherever they lead."""
    texts, origins = _texts(root), Origins(root)
    far = endless(root, texts)
    known = {path for path, _ in far}
    near = {path: text for path, text in texts.items() if path not in known}
    unreadable = _unreadable(near, origins)
    known |= {path for path, _ in unreadable}
    misplaced = _misplaced(near, origins)
    return [*far, *unreadable, *((path, issue) for path, issue in misplaced if path not in known)]


def _texts(root: Node) -> dict[KeyPath, str]:
    said = ((path, node.value) for path, node in leaves(root))
    return {path: value for path, value in said if isinstance(value, str) and "${" in value}


def with_environment(document: dict[str, Any], node: str) -> tuple[Any, dict[str, str]]:
    """Return one node of a composed document with the values of the environment in it, and the words for each.

    Whoever shows something that may hold one of the values is to put its words there.
    """
    texts = {
        path: child.value
        for path, child in leaves(grow(document[node], Origin(kind="argument")), (node,))
        if isinstance(child.value, str) and "${" in child.value
    }
    config = OmegaConf.create(document) if texts else None
    whole = {node: grow(document[node], Origin(kind="argument")).plain()}
    words: dict[str, str] = {}
    for path, text in texts.items():
        value = _value(config, path)
        _put(whole, path, value)
        words[str(value)] = text
    for text in list(words.values()):
        words |= {os.environ[name]: f"${{oc.env:{name}}}" for name in _VARIABLE.findall(text) if name in os.environ}
    return whole[node], {value: text for value, text in words.items() if value}


def _put(document: Any, path: KeyPath, value: Any) -> None:
    for part in path[:-1]:
        document = document[part]
    document[path[-1]] = value


def _value(config: Any, path: KeyPath) -> Any:
    for part in path:
        config = config[part]
    return OmegaConf.to_container(config, resolve=True) if isinstance(config, Container) else config


def _why(text: str, error: Exception) -> str:
    """Say what is wrong with an interpolation; nothing of what the environment holds is in it."""
    if _ENVIRONMENT in text:
        return "cannot be resolved"
    said = str(error).partition("\n")[0]
    if "Recursive interpolation" in said:
        return "refers to itself"
    missing = _MISSING.search(said)
    return f"leads nowhere: there is no {missing[1]}" if missing else f"cannot be resolved: {said}"


def _unsaid(error: Exception, faults: list[Fault]) -> Issue | None:
    """Return the fault of the file that may have said what an interpolation leads to."""
    missing = _MISSING.search(str(error))
    parts = tuple(missing[1].split(".")) if missing else ()
    lost = lacking(faults) if missing else {}
    return next((issue for part, issue in lost.items() if parts[: len(part)] == part), None)


def _nowhere(path: KeyPath, text: str, error: Exception, origins: Origins) -> Issue:
    why = _why(text, error)
    hint = "write the full path of a value, such as ${kernels.RMSNorm.cuda}"
    if row := _ROW.search(why):
        hint = f"add a row {row[1]}: org/repo@v1:Name, or name a value that is there"
    elif why == "refers to itself":
        hint = "write a value in one of the places"
    return origins.issue(path, f"{text} {why}", hint=hint)


def _unreadable(texts: dict[KeyPath, str], origins: Origins) -> list[Fault]:
    faults = []
    for path, text in texts.items():
        if brackets(text) > MAX_BRACKETS:
            hint = f"write at most {MAX_BRACKETS} brackets inside each other"
            faults.append((path, origins.issue(path, DEEP, hint=hint)))
            continue
        try:
            OmegaConf.create({"value": text})
        except OmegaConfBaseException:
            hint = r"write ${path.to.value}, or \${ for the characters themselves"
            faults.append((path, origins.issue(path, f"{text} is no interpolation that can be read", hint=hint)))
    return faults


def _tainted(texts: dict[KeyPath, str]) -> set[KeyPath]:
    """Find what takes a value from the environment, by itself or by way of another value."""
    tainted = {path for path, text in texts.items() if _ENVIRONMENT in text}
    while more := {path for path, text in texts.items() if path not in tainted and _reaches(text, tainted)}:
        tainted |= more
    return tainted


def _misplaced(texts: dict[KeyPath, str], origins: Origins) -> list[Fault]:
    tainted = _tainted(texts)
    fetched = [path for path in tainted if getattr(origins.at(path), "kind", None) == "hub"]
    message = "brings a value of the environment, which a fetched file cannot read"
    found = [(path, origins.issue(path, f"{texts[path]} {message}")) for path in fetched]
    message = "brings a value of the environment, which is for `model` only"
    return found + [
        (
            path,
            origins.issue(
                path, f"{text} {message}", hint=f"write {_typed(path, text)} on the command line, {_BY_SHELL}"
            ),
        )
        for path, text in texts.items()
        if path in tainted and path[0] not in _MAY_HOLD_ENVIRONMENT and path not in fetched
    ]


def _typed(path: KeyPath, text: str) -> str:
    """Return the override that says a text, with variables of the shell for those of the environment."""
    value = _ALONE.sub(r"$\1", text)
    return f'{spell(path)}="{"$VARIABLE" if "${" in value else value}"'


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
