"""A document as a tree in which every value knows where it was said."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Self

from kerncfg.documents.config import Origin
from kerncfg.errors import Issue

__all__ = ["LISTED", "Fault", "KeyPath", "Node", "Origins", "grow", "lacking", "leaves", "merge", "spell"]

KeyPath = tuple[str | int, ...]
Fault = tuple[KeyPath, Issue]  # what is wrong, and the part of the document that cannot be judged because of it
LISTED = "defaults"  # the end of such a part where only files are left out: what others say there can be judged


@dataclass(slots=True)
class Node:
    """One value: a scalar, a dict of nodes or a list of nodes. `key` is where the key before it stands."""

    value: Any
    origin: Origin
    key: Origin | None = None
    size: int = 1

    def plain(self) -> Any:
        """Return the value as plain dicts, lists and scalars."""
        if isinstance(self.value, dict):
            return {name: child.plain() for name, child in self.value.items()}
        if isinstance(self.value, list):
            return [child.plain() for child in self.value]
        return self.value


@dataclass(frozen=True, slots=True)
class Origins:
    """Where every value of a document was said.

    `lost` holds what a map took the place of: the path, and the origin of the text or list that stood there. `shared`
    holds the addresses of the Hub that were on the search path, each with its commit; `notes` what is to be told of
    them; `taken` the paths that an override took out, each with the override.
    """

    root: Node
    lost: tuple[tuple[KeyPath, Origin], ...] = ()
    shared: tuple[tuple[str, str], ...] = ()
    notes: tuple[str, ...] = ()
    taken: Mapping[KeyPath, str] = field(default_factory=dict)

    def at(self, path: KeyPath) -> Origin | None:
        """Return the origin of the value at a path, else of its nearest ancestor."""
        return self._nearest(path).origin

    def key(self, path: KeyPath) -> Origin | None:
        """Return where the key of a path stands, else the origin of its nearest ancestor."""
        found = self._nearest(path)
        return found.key or found.origin

    def _nearest(self, path: KeyPath) -> Node:
        node = self.root
        for part in path:
            inside = node.value
            found = isinstance(inside, dict) and part in inside
            if not found and not (isinstance(inside, list) and isinstance(part, int) and part < len(inside)):
                break
            node = inside[part]
        return node

    def issue(self, path: KeyPath, message: str, *, hint: str | None = None, key: bool = False) -> Issue:
        """Return a fault at a path, with its place: that of the value, or of its `key`."""
        origin = self.key(path) if key else self.at(path)
        name = spell(path)
        if origin is None or origin.kind == "argument":
            return Issue(message=message, path=name, hint=hint)
        file = origin.place if origin.kind in ("file", "hub") else f"{origin.kind}: {origin.place}"
        return Issue(message=message, path=name, file=file, line=origin.line, column=origin.column, hint=hint)

    def saying(self, nodes: Iterable[str]) -> Origins:
        """Return the origins of the document in which these nodes were given as data."""
        said = {name: Node({}, Origin(kind="argument")) for name in nodes}
        lost = tuple((path, origin) for path, origin in self.lost if path[0] not in said)
        return replace(self, root=Node({**self.root.value, **said}, self.root.origin), lost=lost)

    @classmethod
    def argument(cls) -> Self:
        """Return the origins of a document that was passed as data."""
        return cls(Node({}, Origin(kind="argument")))


def spell(path: KeyPath) -> str:
    """Return a path as it is typed in an override: `kernels.RMSNorm.cuda.1.capability`."""
    return ".".join(str(part) for part in path)


def merge(below: Node | None, above: Node, path: KeyPath, lost: list[tuple[KeyPath, Origin]]) -> Node:
    """Lay one node over another as Hydra does: maps merge, anything else is replaced."""
    if below is None:
        return above
    if not isinstance(above.value, dict):
        return above
    if not isinstance(below.value, dict):
        if isinstance(below.value, str | list):
            lost.append((path, below.origin))
        return above
    children = dict(below.value)
    for name, child in above.value.items():
        children[name] = merge(children.get(name), child, (*path, name), lost)
    return Node(children, above.origin, above.key)


def grow(value: Any, origin: Origin) -> Node:
    """Return plain data as nodes that all have one origin."""
    if isinstance(value, dict):
        return Node({str(name): grow(child, origin) for name, child in value.items()}, origin, origin)
    if isinstance(value, list | tuple):
        return Node([grow(child, origin) for child in value], origin, origin)
    return Node(value, origin, origin)


def lacking(faults: Iterable[Fault]) -> dict[KeyPath, Issue]:
    """Return the parts of a document of which a file that is left out would have said more, each with the reason."""
    return {part[:-1]: issue for part, issue in faults if part[-1:] == (LISTED,)}


def leaves(node: Node, path: KeyPath = ()) -> Iterator[tuple[KeyPath, Node]]:
    """Yield every scalar with its path."""
    inside = node.value
    if isinstance(inside, dict | list):
        for name, child in inside.items() if isinstance(inside, dict) else enumerate(inside):
            yield from leaves(child, (*path, name))
    else:
        yield path, node
