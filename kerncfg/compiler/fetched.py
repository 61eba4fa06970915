"""What a file that came over the network may not say, checked where it is read and again when all is composed.

Whoever runs kerncfg consents to code, and says it in files of their own or on the command line. So fetched text grants
no trust, names no code of this machine, reads nothing of it, and steers neither Hydra nor what is instantiated.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

from kerncfg.compiler.tree import KeyPath, Node, Origins, grow, leaves
from kerncfg.documents.config import Origin
from kerncfg.documents.reference import is_folder
from kerncfg.errors import Issue
from kerncfg.terminal import OBEYED

__all__ = ["KIND", "forbidden", "laundered"]

KIND = "hub"  # of the origins of what was fetched

_PROPOSED = re.compile(r"(^|@)refs/")  # a pull request of the Hub
_WHOLE = re.compile(r"\$\{[\w.\[\]-]+\}")
# The nodes that only whoever runs kerncfg says.
_OWN = {"trust": "a fetched file cannot grant trust", "hydra": "a fetched file cannot steer Hydra"}
_SELF = "say it in a file of your own, or on the command line"
_CONSENT = "take it out; whoever runs this says --trust ORG"
_ADVICE = {"trust": _CONSENT, "hydra": _SELF}


def forbidden(node: Node, prefix: KeyPath = (), *, consent: bool = False) -> list[Issue]:
    """Return the faults of one fetched file, whose content comes to stand at `prefix`.

    With `consent` a row's `trust_remote_code` is a fault too, as where the file is to become one of the user's own;
    elsewhere it is ignored and noted.
    """
    origins, inside = Origins(node), {name: child for name, child in node.value.items() if name != "defaults"}
    # Whoever chooses the file may put it elsewhere than its folder or header says, at the root too.
    own = {name: root for name in inside for root in (name, (*prefix, name)[0]) if root in _OWN}
    issues = [_issue(origins, prefix, (name,), _OWN[root], _ADVICE[root]) for name, root in own.items()]
    kept = {name: child for name, child in inside.items() if name not in own}
    for path in _keys(Node(kept, node.origin)):
        if path[-1] == "_target_":
            message = "a fetched file cannot hold `_target_`, which names code of this machine"
            issues.append(_issue(origins, prefix, path, message, "take it out"))
        elif isinstance(path[-1], str) and (obeyed := OBEYED.search(path[-1])):
            message = f"a fetched file cannot have a key with {obeyed[0]!r} in it, which a terminal obeys"
            issues.append(_issue(origins, prefix, path[:-1], message, "take it out"))
        elif path[-1] == "trust_remote_code" and consent:
            issues.append(_issue(origins, prefix, path, "a fetched file cannot grant trust", _CONSENT))
    for path, leaf in leaves(Node(kept, node.origin)):
        if isinstance(leaf.value, str) and (said := _fault(leaf.value)):
            issues.append(_issue(origins, prefix, path, *said))
    return [*issues, *_defaults(node, origins)]


def laundered(root: Node, document: Any) -> list[Issue]:
    """Return the faults of fetched values whose interpolation brought what their text could not say."""
    origins, issues = Origins(root), []
    for path, leaf in leaves(root):
        if leaf.origin.kind != KIND or not isinstance(leaf.value, str) or "${" not in leaf.value:
            continue
        value = document
        for part in path:
            value = value[part]
        texts = [child.value for _, child in leaves(grow(value, Origin(kind=KIND))) if isinstance(child.value, str)]
        if any(_is_local(text) for text in texts) or any("${" in text for text in texts):
            message = f"{leaf.value} brings a fetched file what it cannot say: a folder, a module or a variable"
            issues.append(origins.issue(path, message, hint=_SELF))
    return issues


def _issue(origins: Origins, prefix: KeyPath, path: KeyPath, message: str, hint: str) -> Issue:
    found = origins.issue(path, message, hint=hint, key=True)
    whole = ".".join(map(str, (*prefix, *path)))
    return Issue(message=message, path=whole, file=found.file, line=found.line, column=found.column, hint=hint)


def _keys(node: Node, path: KeyPath = ()) -> Iterator[KeyPath]:
    inside = node.value
    if isinstance(inside, dict | list):
        for name, child in inside.items() if isinstance(inside, dict) else enumerate(inside):
            yield (*path, name)
            yield from _keys(child, (*path, name))


def _fault(text: str) -> tuple[str, str] | None:
    """Return what is wrong with a text and how to mend it."""
    if obeyed := OBEYED.search(text):
        return f"a fetched file cannot hold {obeyed[0]!r}, which a terminal obeys", "take it out"
    if "$" in text and not _WHOLE.fullmatch(text.strip()):
        message = f"a fetched file cannot look up {text!r}, expected ${{path.to.value}} alone or no $"
        return message, "write the value out; nothing of the environment is read for a fetched file"
    if _is_local(text):
        return f"a fetched file cannot name {text!r}, code or a folder of this machine", _SELF
    if _PROPOSED.search(text):
        message = f"a fetched file cannot name {text!r}, which anybody may propose to a publisher you trust"
        return message, "name a branch, a tag or a commit that the publisher has released"
    return None


def _is_local(text: str) -> bool:
    return text.strip().startswith("python:") or is_folder(text.strip())


def _defaults(node: Node, origins: Origins) -> list[Issue]:
    """Return the faults of a defaults list: what it chooses are files of this machine, too."""
    issues = []
    for path, leaf in leaves(node.value["defaults"]) if "defaults" in node.value else ():
        said = " ".join(str(part) for part in (*path, leaf.value) if not isinstance(part, int))
        groups = re.split(r"[/@.:\s]+", said.rpartition(" ")[0] if path and isinstance(path[-1], str) else said)
        if isinstance(leaf.value, str) and "/" in leaf.value:
            groups += re.split(r"[/@.:\s]+", leaf.value)
        if "$" in said or ".." in said:
            message = f"a fetched file cannot choose {said!r}, expected the name of an option"
            issues.append(origins.issue(("defaults", *path), message, hint="write the name out"))
        elif own := [name for name in _OWN if name in groups]:
            issues.append(origins.issue(("defaults", *path), _OWN[own[0]], hint=_ADVICE[own[0]]))
    return issues
