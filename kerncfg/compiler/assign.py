"""One override's value laid into a tree."""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Sequence
from typing import Any

from kerncfg.compiler.reading import Place, kind_of_key, parse
from kerncfg.compiler.tree import KeyPath, Node, grow, merge, spell
from kerncfg.documents.config import Origin
from kerncfg.errors import ConfigError, Issue

__all__ = ["assign", "fault", "leaf", "near", "without"]

_ROWS = ("kernels", "inherited", "fusions", "attention")
# Words that people use for keys that are called something else, where the nearest spelling misleads.
_MEANT: dict[str, tuple[str, ...]] = {
    "gpu": ("cuda", "rocm", "xpu"),
    "nvidia": ("cuda",),
    "amd": ("rocm",),
    "hip": ("rocm",),
    "intel": ("xpu",),
    "eval": ("inference",),
    "train": ("training",),
    "repo": ("kernel",),
    "repository": ("kernel",),
    "bf16": ("bfloat16",),
    "fp16": ("float16",),
    "fp32": ("float32",),
}
_BESIDE_KERNEL = {"version", "revision", "capability", "torch", "dtype", "when", "trust_remote_code"}
_BESIDE_DEVICES = {"match", "exclude", "fallback", "inherit_mapping", "path", "mask", "members"}  # keys of a row alone

Lost = list[tuple[KeyPath, Origin]]


def assign(node: Node | None, parts: Sequence[str], value: Node, lost: Lost, path: KeyPath = ()) -> Node:
    """Return the node with a value set below it; maps are made where there are none.

    Raises:
        ConfigError: A list is on the way and the key does not say which item.
    """
    if not parts:
        return merge(node, value, path, lost)
    head, *rest = parts
    node = node or Node({}, value.origin, value.origin)
    inside = node.value
    if isinstance(inside, str | list) and head in _BESIDE_DEVICES and len(path) == 2 and path[0] in _ROWS:
        inside = {"any": node}  # `kernels.X.fallback=error` keeps what the row runs on every device
    if isinstance(inside, list):
        index = _index(inside, parts, path, value.origin)
        items = list(inside)
        items[index] = assign(items[index], rest, value, lost, (*path, index))
        return Node(items, value.origin, node.key)
    if isinstance(inside, str) and head in _BESIDE_KERNEL and len(path) > 1 and path[0] in _ROWS:
        inside = {"kernel": node}  # `kernels.X.cuda.version=2` keeps the kernel that stands there as text
    elif isinstance(inside, str):
        lost.append((path, node.origin))
    children = dict(inside) if isinstance(inside, dict) else {}
    if head not in children:
        _check_key(head, value.origin.place)
    children[head] = assign(children.get(head), rest, value, lost, (*path, head))
    # What such a map lacks, the file that said it lacks, not the override of one key.
    return Node(children, node.origin if inside is node.value and isinstance(inside, dict) else value.origin, node.key)


def _index(items: list[Node], parts: Sequence[str], path: KeyPath, origin: Origin) -> int:
    head, *rest = parts
    if head.isdigit() and int(head) < len(items):
        return int(head)
    name = spell(path)
    if head.isdigit() and items and rest:
        last = len(items) - 1
        known = {0: "0", 1: "0 or 1"}.get(last, f"0 to {last}")
        line = f"{name}.{last}.{'.'.join(rest)}={origin.place.partition('=')[2].strip()}"
        message = f"{name} has no item {head}, expected {known}"
        raise ConfigError([fault(origin.place, message, f"write {line}{' for the last one' * (last > 0)}")])
    key = "" if head.isdigit() else f".{head}"
    which = f"say which item, as in {name}.{len(items) - 1}{key}" if items else f"write {name}=[…]"
    hint = which if head.isdigit() else f"{which}, or replace the list: {name}={{{head}: …}}"
    raise ConfigError([fault(origin.place, f"{name} is a list of {len(items)}", hint)])


def without(node: Node, parts: Sequence[str], argument: str, path: KeyPath = ()) -> Node:
    """Return the node without one key.

    Raises:
        ConfigError: The key is not there.
    """
    head, *rest = parts
    inside = node.value if isinstance(node.value, dict) else {}
    if head not in inside:
        message = f"there is no {spell((*path, head))} to take out"
        raise ConfigError([fault(argument, message, near(head, inside))])
    children = dict(inside)
    if rest:
        children[head] = without(children[head], rest, argument, (*path, head))
    else:
        del children[head]
    return Node(children, node.origin, node.key)


def leaf(value: Any, argument: str) -> Node:
    """Return an override's value as nodes, with the characters of each scalar where they can be told."""
    origin = Origin(kind="override", place=argument)
    text = argument.partition("=")[2].strip()
    if not isinstance(value, dict | list):
        return Node(value, Origin(kind="override", place=argument, text=text), origin)
    _check_keys(value, argument)
    made = grow(value, origin)
    try:
        spoken = parse(f"k: {text}", Place("override", argument)).value["k"]
    except ConfigError:
        return made  # Hydra's `{a:b}` is no map in YAML: messages then show the value, not its characters
    return _worded(made, spoken, argument)


def _check_keys(value: Any, argument: str) -> None:
    if isinstance(value, dict):
        for name, child in value.items():
            if not isinstance(name, str):  # Hydra made it null, a boolean or a number, and its characters are lost
                _check_key(
                    "null" if name is None else repr(name).replace("inf", ".inf").replace("nan", ".nan"), argument
                )
            _check_key(str(name), argument)
            _check_keys(child, argument)
    elif isinstance(value, list):
        for child in value:
            _check_keys(child, argument)


def _check_key(name: str, argument: str) -> None:
    """Refuse a key that a file would not read as text, as it is refused there."""
    if kind := kind_of_key(name):
        message = f"the key {name} is {kind} in YAML, expected text"
        raise ConfigError([fault(argument, message, f"such a key can stand in a file only, as '{name}' with quotes")])


def _worded(made: Node, spoken: Node, argument: str) -> Node:
    """Give each scalar the characters that it has in the same place of another reading."""
    inside, other = made.value, spoken.value
    if isinstance(inside, dict) and isinstance(other, dict):
        both = {name: _worded(inside[name], other[name], argument) for name in inside if name in other}
        children = {name: both.get(name, child) for name, child in inside.items()}
        return Node(children, made.origin, made.key)
    if isinstance(inside, list) and isinstance(other, list) and len(inside) == len(other):
        pairs = zip(inside, other, strict=True)
        return Node([_worded(child, said, argument) for child, said in pairs], made.origin, made.key)
    if isinstance(inside, dict | list) or isinstance(other, dict | list):
        return made
    return Node(inside, Origin(kind="override", place=argument, text=spoken.origin.text), made.key)


def fault(argument: str, message: str, hint: str | None = None) -> Issue:
    """Return a fault in an override."""
    key = argument.lstrip("~+").partition("=")[0].strip()
    return Issue(message=message, path=key, file=f"override: {argument}", hint=hint)


def near(name: str, known: Iterable[str]) -> str | None:
    """Return the question whether the nearest known name was meant."""
    there = list(known)
    meant = [word for word in _MEANT.get(name.lower(), ()) if word in there]
    found = meant or difflib.get_close_matches(name.lower(), there, n=1, cutoff=0.6)
    found = found or difflib.get_close_matches(name, there, n=1, cutoff=0.6)
    if not found:
        return None
    *others, last = found
    return f"did you mean {', '.join(others)} or {last}?" if others else f"did you mean {last}?"
