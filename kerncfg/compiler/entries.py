"""The entries of a defaults list: what each chooses, and what is wrong with it in words of our own."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any

from kerncfg.compiler.assign import near
from kerncfg.compiler.tree import Node, Origins

if TYPE_CHECKING:
    from kerncfg.errors import Issue

__all__ = ["overriding", "readable", "sentence", "targets"]

_SELF = "_self_"
_LATE = ("stands after an override, expected before it", "move it before the first `- override` of the list")


def overriding(entry: Any) -> bool:
    """Say whether an entry chooses anew what another one chose."""
    return isinstance(entry, dict) and "override" in next(iter(entry)).split(" ")[:-1]


def targets(config_path: str, entry: Any) -> list[str]:
    """Return the configs that an entry of a defaults list chooses, by Hydra's names."""
    folder = config_path.rpartition("/")[0]
    if isinstance(entry, str):
        return [] if entry == _SELF else [_joined(folder, entry.partition("@")[0])]
    ((key, said),) = entry.items()
    group = _joined(folder, key.split(" ")[-1].partition("@")[0])
    return [f"{group}/{option}" for option in (said if isinstance(said, list) else [said]) if option is not None]


def _joined(folder: str, name: str) -> str:
    return name[1:] if name.startswith("/") or not folder else f"{folder}/{name}"


def readable(node: Node) -> tuple[dict[int, Any], list[Issue]]:
    """Return the entries of a file's defaults list that Hydra can read, and what is wrong with the others."""
    entries = node.value["defaults"].plain() if "defaults" in node.value else None
    if entries is None:
        return {}, []
    origins = Origins(node)
    if not isinstance(entries, list):
        found = "a map" if isinstance(entries, dict) else repr(entries)
        listed = f"write defaults: [{entries}]" if entries and isinstance(entries, str) else None
        hint = listed or "write `defaults:` and `- group: option` lines"
        return {}, [origins.issue(("defaults",), f"found {found}, expected a list", hint=hint)]
    kept: dict[int, Any] = {}
    issues = []
    for index, entry in enumerate(entries):
        values = list(entry.values()) if isinstance(entry, dict) else [entry]
        options = values[0] if values and isinstance(values[0], list) else values
        one = isinstance(entry, str | dict) and len(values) == 1 and all(isinstance(option, str) for option in options)
        if not one and not (isinstance(entry, dict) and values == [None]):
            hint = "write `- group: option`, `- override /group: option` or `- _self_`"
            issues.append(origins.issue(("defaults", index), "is no entry of a defaults list", hint=hint))
        elif _late(entry, kept.values()):  # where one of the two is a list, Hydra says AssertionError
            issues.append(origins.issue(("defaults", index), _LATE[0], hint=_LATE[1]))
        else:
            kept[index] = entry
    return kept, issues


def _late(entry: Any, before: Iterable[Any]) -> bool:
    """Say whether an entry that says more stands behind one that says otherwise; Hydra's own groups may."""
    key = entry if isinstance(entry, str) else next(iter(entry))
    return key != _SELF and not overriding(entry) and "hydra/" not in key and any(map(overriding, before))


def sentence(text: str, entry: Any, known: Sequence[str]) -> tuple[str, str]:
    """Say what Hydra says of an entry, and how to mend it."""
    option = next(iter(entry.values())) if isinstance(entry, dict) else entry
    if "Duplicate _self_" in text:
        return "`_self_` stands twice in one list, expected once", "keep one of the two"
    if "Overrides must be at the end" in text:
        return _LATE
    if twice := re.match(r"Multiple values for (\S+)\.|(\S+) appears more than once", text):
        key = twice[1] or twice[2]
        return f"{key} is chosen a second time, expected once", f"write `- override /{key}: {option}`"
    if lost := re.search(r"Could not override '([^']+)'", text):
        choose = f"to choose one anew write `- /{lost[1]}: {option}`"
        return f"there is no {lost[1]} to override", near(lost[1], known) or choose
    if due := re.match("You must specify '([^']+)'", text):
        message, hint = "`???` stands where an option is due", f"say {due[1]}=NAME, or write it here"
        options = text.partition("Available options: ")[2].split()
        return message, f"{hint}; there are {', '.join(options)}" if options else hint
    hint = "write `- group: option`, `- override /group: option` or `- _self_`"
    return f"cannot be followed: {re.sub(r'^In [^ ]+: ', '', text)}", hint
