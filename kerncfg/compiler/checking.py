"""Every fault of a document or a file in one run, whichever pass finds it.

A pass is shown what the passes before it found no fault with: what cannot be judged is taken out first, so that no
fault is told that only another one brought about.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from kerncfg.compiler import schema
from kerncfg.compiler.compose import read_document
from kerncfg.compiler.defaults import CONFIG, place_of
from kerncfg.compiler.interpolate import unfit
from kerncfg.compiler.normalise import ROWS, normalise, unreadable
from kerncfg.compiler.overrides import NODES
from kerncfg.compiler.shared import header_of, unpackaged
from kerncfg.compiler.tree import Fault, KeyPath, Node, Origins, lacking, leaves, spell
from kerncfg.documents.target import Mode, canonical_device
from kerncfg.errors import ConfigError, Issue

if TYPE_CHECKING:
    from kerncfg.documents.config import Config

__all__ = ["check", "check_file"]

_MODELINE = re.compile(r"yaml-language-server:.*?([\w-]+)\.schema\.json")
_VERSIONS = ("version", "revision")
_OF_KEYS = ("unknown", "key", "text", "forbidden")  # rules that a key breaks, whatever its value
_ROUNDS = 20  # more than a valid document is deep
_MEMBERS = [["A", "a"]]  # what stands for members that cannot be read


def check(
    document: Mapping[str, Any],
    *,
    origins: Origins | None = None,
    base: Path | None = None,
    found: Sequence[Fault] = (),
) -> Config:
    """Return the config that a composed document means; `found` is what composing it noted, `base` as in `normalise`.

    Raises:
        ConfigError: The document is not valid; it holds every fault, in the order of the document.
    """
    findings = _unwrapped(schema.faults(document, origins=origins), origins)
    if not found and not findings:
        try:
            return normalise(document, origins=origins, base=base)
        except ConfigError as error:
            raise ConfigError(_ordered(error.issues, document)) from error
    dark, lost = {part for part, _ in found}, {*lacking(found)}
    findings = [finding for finding in findings if not _inside(finding[0], dark)]
    told = [issue for path, rule, issue in findings if not _lacking(path, rule, lost)]
    known = [(path, rule) for path, rule, _ in findings if path or not _lacking(path, rule, lost)]
    rows = _judged(document, [*((part, "") for part in dark), *known])
    whole = not any(part[:1] in ((), *((node,) for node in ROWS)) for part in lost)
    issues = [*(issue for _, issue in found), *told]
    raise ConfigError(_ordered([*issues, *unreadable(rows, origins=origins, base=base, whole=whole)], document))


def check_file(file: Path) -> list[Issue]:
    """Return the faults of one file, checked as what its modeline, its name or its folder says it is."""
    try:
        name, unnamed = _name_for(file), []
    except ConfigError as error:
        name, unnamed = "", error.issues
    prefix: KeyPath = (name,) if name in NODES and name != "experiment" else ()
    try:
        noted: list[Fault] = []
        node = read_document(file, prefix, noted)
        if name == "experiment" and file.stem != CONFIG and (issue := unpackaged(_header(file), place_of(file))):
            noted.append((("hydra",), issue))
    except ConfigError as error:
        return [*error.issues, *(unnamed if file.is_file() else [])]
    if unnamed:
        return [*(issue for _, issue in noted), *unnamed]
    node.value.pop("defaults", None)
    root = Node({prefix[0]: node}, node.origin) if prefix else node
    origins, plain = Origins(root), root.plain()
    found = [*noted, *unfit(root)]
    dark = {part for part, _ in noted}
    later = {path for path, leaf in leaves(root) if isinstance(leaf.value, str) and "${" in leaf.value}
    told = schema.faults(plain[name] if prefix else plain, name, origins=origins, prefix=prefix)
    whole = [((*prefix, *path), rule, issue) for path, rule, issue in told]
    findings = [
        finding for finding in _unwrapped(whole, origins) if finding[0] not in later and not _inside(finding[0], dark)
    ]
    issues = [*(issue for _, issue in found), *(issue for _, _, issue in findings)]
    if name in NODES or name == "experiment":
        parts = [(path, "") for path in (*later, *dark)]
        rows = _judged(plain, [*parts, *((path, rule) for path, rule, _ in findings)])
        issues += unreadable(rows, origins=origins, whole=False)
    return _ordered(issues, plain)


def _unwrapped(findings: list[schema.Finding], origins: Origins | None) -> list[schema.Finding]:
    """Tell once, instead of all that it brings about, that a file of a group begins with the name of its group."""
    made = list(findings)
    for node in dict.fromkeys(str(path[0]) for path, rule, _ in findings if path and rule == "unknown"):
        group = "kernels" if node == "inherited" else node
        at, origin = (node, group), origins and origins.key((node, group))
        below = [path for path, rule, _ in findings if path[:2] == at and rule == "unknown" and len(path) < 4]
        if not origins or not origin or origin.kind == "override" or not origin.line or not below:
            continue
        what = "rows" if node in ROWS else "keys"
        message = f"`{group}:` stands in a file of {group}, expected what is below it at the top"
        hint = f"{what} stand at the top of the file: remove `{group}:`, and indent them one step less"
        issue = origins.issue(at, message, hint=hint, key=True)
        made = [each for each in made if each[0][:2] != at and not (each[0] == (node,) and "required" in each[1])]
        made.append((at, "unknown", issue))
    return made


def _name_for(file: Path) -> str:
    known = schema.names()
    try:
        head = file.read_bytes()[:2000].decode("utf-8-sig", errors="ignore")
    except OSError:
        head = ""  # whoever reads it next says why
    if modeline := _MODELINE.search(head):
        wanted = modeline[1]
    elif file.stem in known or file.stem == "config":
        wanted = file.stem
    else:
        wanted = file.parent.name
    if wanted in known:
        return "experiment" if wanted == "config" else wanted
    hint = f"put it into a folder named {', '.join(known)}, or say `# yaml-language-server: $schema=…` in it"
    raise ConfigError([Issue(message="cannot tell which schema it follows", file=str(file), hint=hint)])


def _header(file: Path) -> Mapping[str, str | None]:
    return header_of(file.read_text(encoding="utf-8-sig")[:512], place_of(file))


def _lacking(path: KeyPath, rule: str, lost: set[KeyPath]) -> bool:
    """Say whether a fault is that a key is missing which a file that is left out may have said."""
    required = "required "
    return rule.startswith(required) and _inside((*path, rule.removeprefix(required)), lost)


def _inside(path: KeyPath, parts: set[KeyPath]) -> bool:
    return any(path[:length] in parts for length in range(len(path) + 1))


def _ordered(issues: Iterable[Issue], document: Mapping[str, Any]) -> list[Issue]:
    """Return issues once each: those of a file by line, those of overrides and data as the document has their paths."""
    places = {path: index for index, path in enumerate(_paths(document))}

    def place(issue: Issue) -> tuple[str, int, int, int]:
        path = issue.path
        while path and path not in places:
            path = path.rpartition(".")[0]
        file = "override:" if (issue.file or "").startswith("override:") else issue.file or ""
        return file, issue.line or 0, issue.column or 0, places.get(path, -1)

    return sorted(dict.fromkeys(issues), key=place)


def _paths(value: Any, path: KeyPath = ()) -> Iterator[str]:
    inside = value.items() if isinstance(value, Mapping) else enumerate(value) if isinstance(value, list) else ()
    for key, child in inside:
        yield spell((*path, key))
        yield from _paths(child, (*path, key))


def _judged(document: Any, faults: Sequence[tuple[KeyPath, str]]) -> dict[str, Any]:
    """Return the nodes that hold rows, without what has a fault or cannot be judged."""
    if not isinstance(document, Mapping) or any(not path for path, _ in faults):
        return {}
    below = {node: [(path[1:], rule) for path, rule in faults if path[0] == node] for node in ROWS}
    return {node: _without(document[node], node, found) for node, found in below.items() if node in document}


def _without(rows: Any, node: str, faults: Sequence[tuple[KeyPath, str]]) -> dict[str, Any]:
    """Take out what has a fault until the rest is valid; each round leaves less. Members go all together."""
    made = _copied(rows)
    for _ in range(_ROUNDS):
        if not faults:
            return dict(made)
        if not isinstance(made, dict) or any(not path for path, _ in faults):
            return {}
        for path, rule in dict.fromkeys((path[:2] if "members" in path[1:2] else path, rule) for path, rule in faults):
            _take_out(made, path, rule)
        faults = [(path, rule) for path, rule, _ in schema.faults(made, "kernels" if node == "inherited" else node)]
    return {}


def _copied(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {key: _copied(child) for key, child in value.items() if isinstance(key, str)}
    return [_copied(child) for child in value] if isinstance(value, list) else value


def _take_out(rows: dict[str, Any], path: KeyPath, rule: str) -> None:
    """Put null, which is off, where a kernel may stand, and take anything else out."""
    holder, last = _holder(rows, path), path[-1]
    if holder is None:
        return  # it went with another fault
    value = holder[last]
    if rule == "required members" and isinstance(value, dict):
        value["members"] = _MEMBERS
    elif path[1:] == ("members",) and value != _MEMBERS:
        holder[last] = _MEMBERS
    elif rule == "not" and isinstance(value, dict):
        holder[last] = {key: child for key, child in value.items() if key not in _VERSIONS}
    elif last == "kernel" and (value is not None or not rule):
        _take_key(holder, last)
        holder[last] = None
    elif value is None and not rule and _may_be_off(last, path):
        pass  # composing put it there
    elif value is None and len(path) > 1 and _may_be_off(last):
        _take_out(rows, path[:-1], "")
    elif isinstance(holder, list) or (value is not None and rule not in _OF_KEYS and _may_be_off(last, path)):
        holder[last] = None
    else:
        _take_key(holder, last)
    row = rows.get(str(path[0]))
    if isinstance(row, dict) and not any(key in ("any", "kernel") or canonical_device(key) for key in row):
        row["any"] = None  # that no kernel is named may be because of the fault


def _holder(value: Any, path: KeyPath) -> Any:
    """Return the map or list in which the last part of a path stands; `None` if it does not."""
    for part in path[:-1]:
        value = value[part] if _holds(value, part) else None
    return value if _holds(value, path[-1]) else None


def _holds(value: Any, part: str | int) -> bool:
    if isinstance(value, list):
        return isinstance(part, int) and part < len(value)
    return isinstance(value, dict) and part in value


def _take_key(holder: dict[str, Any], key: Any) -> None:
    del holder[key]
    if "kernel" not in holder:  # it may be the kernel that was misspelt
        for version in _VERSIONS:
            holder.pop(version, None)


def _may_be_off(key: str | int, path: KeyPath = (0, 0)) -> bool:
    return (
        len(path) == 1 or isinstance(key, int) or key in ("any", "kernel", *Mode) or canonical_device(key) is not None
    )
