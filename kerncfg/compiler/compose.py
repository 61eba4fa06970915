"""Files and overrides to one plain document, with the origin of every value.

Hydra decides which files there are, in which order and under which package, and reads the overrides' grammar.
The files are then laid over each other here, as trees that know where each value stands, the overrides last.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from omegaconf import OmegaConf

from kerncfg.compiler.assign import assign, fault, leaf, near, without
from kerncfg.compiler.defaults import CONFIG, Choices, place_of
from kerncfg.compiler.fetched import laundered
from kerncfg.compiler.interpolate import resolved
from kerncfg.compiler.loading import add_packaged, hydra_folder, loader, schemes, version_base
from kerncfg.compiler.overrides import NODES, part_of, read, rewrite
from kerncfg.compiler.reading import read as read_file
from kerncfg.compiler.shared import SCHEME, opened
from kerncfg.compiler.sweeps import sweeping
from kerncfg.compiler.tree import Fault, KeyPath, Node, Origins, lacking, merge
from kerncfg.documents.config import Origin
from kerncfg.errors import ConfigError, Issue
from kerncfg.locations import SEARCHED, searches

if TYPE_CHECKING:
    from hydra.core.override_parser.types import Override

__all__ = [
    "KeyPath",
    "Origins",
    "add_packaged",
    "compose",
    "hydra_folder",
    "job_overrides",
    "read_document",
    "version_base",
]

_ROWS = ("kernels", "inherited", "fusions", "attention")
_NOWHERE = Origin(kind="argument")


def compose(
    overrides: Sequence[str] = (), *, config_dir: Path | None = None, faults: list[Fault] | None = None
) -> tuple[dict[str, Any], Origins]:
    """Return the composed document as plain data, and where each of its values was said.

    `overrides` are as typed; `config_dir` is a folder of the user's own, whose files go before the packaged
    ones. Works inside a running Hydra job, and in threads. With `faults` the files and overrides that cannot be read
    are noted there and left out, so that the rest can be checked too.

    Raises:
        ConfigError: Files, overrides or choices that cannot be composed; it holds every fault found.
        SourceError: A place on the Hub that is on the search path cannot be reached, or is not there.
    """
    noted: list[Fault] = []
    try:
        composed = _composed(overrides, config_dir, noted)
    except ConfigError as error:
        raise ConfigError(dict.fromkeys([*(issue for _, issue in noted), *error.issues])) from error
    if noted and faults is None:
        raise ConfigError(dict.fromkeys(issue for _, issue in noted))
    if faults is not None:
        faults += noted
    return composed


def _composed(overrides: Sequence[str], config_dir: Path | None, faults: list[Fault]) -> tuple[dict[str, Any], Origins]:
    lines = rewrite(overrides, faults)
    typed = {line: argument for argument in overrides for line in rewrite([argument], [])}
    for line in _sweeps(typed, faults):
        lines.remove(line)
    work = _Composition(lines=lines, typed=typed, faults=faults)
    with hydra_folder(config_dir) as folder, loader(folder, work.search_path(folder)) as hydra:
        defaults, found = work.defaults(hydra)
    root = Node({}, _NOWHERE)
    for package, node in defaults:
        root = work.put(root, package, node)
    for override in found:
        root = work.overridden(root, override)
    root = _document(root)
    document = resolved(root, faults)
    if work.shared and (issues := laundered(root, document)):
        raise ConfigError(issues)
    shared = tuple((found.address, found.commit) for found in work.shared)
    notes = tuple(f"{found.address} is {found.note}" for found in work.shared if found.note)
    return document, Origins(root, tuple(work.lost), shared, notes, work.taken)


def _document(root: Node) -> Node:
    """Return the tree without Hydra's own node, in the order of the nodes; those of rows are there."""
    children = {name: root.value[name] for name in NODES if name in root.value}
    for name in _ROWS:
        if name not in children or children[name].value is None:
            children[name] = Node({}, _NOWHERE)
    others = {name: node for name, node in root.value.items() if name not in children and name != "hydra"}
    return Node({**children, **others}, root.origin)


def read_document(path: Path, prefix: KeyPath = (), faults: list[Fault] | None = None) -> Node:
    """Return one file's content as it stands below `prefix` in a document, without its defaults list composed.

    With `faults` those of single keys and values are noted there, and the rest is returned.

    Raises:
        ConfigError: The file cannot be read as a map.
    """
    place = place_of(path)
    place.prefix = prefix
    return read_file(path, place, faults)


def job_overrides(settings: Any) -> list[str]:
    """Return the overrides of a Hydra job as they were said, with every `${oc.env:…}` still in words."""
    words: Any = OmegaConf.to_container(settings.overrides.task, resolve=False)
    return list(words)


def _sweeps(typed: dict[str, str], faults: list[Fault]) -> list[str]:
    """Return the lines that are no single value, each of them noted."""
    found = {line: argument for line, argument in typed.items() if sweeping(line)}
    for argument in found.values():
        key, _, value = argument.partition("=")
        one = "" if "(" in value else f"for one list write {key}=[{value}], "
        hint = f"{one}for several runs write `kerncfg run -m {argument}`"
        faults.append((part_of(argument), fault(argument, "has several values, and this is one run", hint)))
    return list(found)


def _primary(folder: Path) -> Node:
    """Return what one's own primary config says; what is wrong with it is told when Hydra reads it."""
    primary = folder / f"{CONFIG}.yaml"
    try:
        return read_file(primary, place_of(primary), []) if primary.is_file() else Node({}, _NOWHERE)
    except ConfigError:
        return Node({}, _NOWHERE)


@dataclass(slots=True)
class _Composition(Choices):
    """What one composition has found so far."""

    lost: list[tuple[KeyPath, Origin]] = field(default_factory=list)
    taken: dict[KeyPath, str] = field(default_factory=dict)

    def search_path(self, folder: Path) -> list[str]:
        """Return what `hydra.searchpath` adds, by an override or else by the user's own primary config."""
        origins = Origins(_primary(folder))
        found = origins.root.value.get("hydra", origins.root).plain()
        said = found.get("searchpath") if isinstance(found, dict) else None
        for line in [line for line in self.lines if searches(line)]:
            self.lines.remove(line)
            said, origins = read(line).value(), Origins(leaf(None, self.typed[line]))
        addresses = said if isinstance(said, list) else [said] if said is not None else []
        known = schemes()
        return [
            address
            for index, address in enumerate(addresses)
            if self.usable(address, isinstance(said, list), known, origins, ("hydra", "searchpath", index))
        ]

    def usable(self, address: Any, listed: bool, known: Sequence[str], origins: Origins, path: KeyPath) -> bool:
        """Say whether files can be looked for at an address; why not is noted."""
        hint = f"write {SEARCHED}=[file:///folder]"
        if not isinstance(address, str) or not listed:
            issues = [origins.issue(path, f"found {address!r}, expected a list of addresses", hint=hint)]
        elif (place := address.removeprefix("file://")).startswith(f"{SCHEME}://"):
            issues = self.opened(place, origins, path)
        elif "://" in place and not place.startswith(tuple(known)):
            message = f"found {address!r}, expected an address with {', '.join(known)}"
            issues = [origins.issue(path, message, hint=hint)]
        elif "://" not in place and not Path(place).is_dir():
            issues = [origins.issue(path, f"there is no folder {place}", hint=hint)]
        else:
            return True
        self.faults += [(path, issue) for issue in issues]
        self.unsearched = next(iter(issues), self.unsearched)
        return not issues

    def opened(self, address: str, origins: Origins, path: KeyPath) -> list[Issue]:
        """Open a place on the Hub, before anybody has to wait for Hydra's state, and return its faults."""
        try:
            self.shared.append(opened(address))
            return []
        except ConfigError as error:
            return [origins.issue(path, each.message, hint=each.hint) for each in error.issues]

    def put(self, root: Node, package: Sequence[str], node: Node) -> Node:
        """Lay a file over what is there."""
        for part in reversed(package):
            node = Node({part: node}, node.origin)
        return merge(root, node, (), self.lost)

    def overridden(self, root: Node, override: Override) -> Node:
        """Apply one override of a value; what cannot be applied is noted, and left out."""
        argument = self.typed.get(override.input_line or "", override.input_line or "")
        part = tuple(override.key_or_group.split("."))
        try:
            return self.override(root, override)
        except ConfigError as error:
            dark = {other for other, _ in self.faults}
            if override.is_delete() or any(name.isdigit() for name in part):  # of what a file may have said
                dark |= {*lacking(self.faults)}
            if not any(part[: len(other)] == other for other in dark):
                self.faults += [(part_of(argument), issue) for issue in error.issues]
            return root

    def override(self, root: Node, override: Override) -> Node:
        """Apply one override of a value."""
        argument = self.typed.get(override.input_line or "", override.input_line or "")
        parts = override.key_or_group.split(".")
        if override.key_or_group.startswith("hydra"):
            return root
        if parts[0] not in NODES and parts[0] not in root.value:
            raise ConfigError([fault(argument, f"there is no {parts[0]!r}", near(parts[0], NODES))])
        if override.package is not None:
            raise ConfigError([fault(argument, f"{override.key_or_group!r} is no group", "leave the @ out")])
        if override.is_delete():
            self.taken[tuple(parts)] = argument
            return without(root, parts, argument)
        return assign(root, parts, leaf(override.value(), argument), self.lost)
