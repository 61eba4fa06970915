"""Files and overrides to one plain document, with the origin of every value.

Hydra decides which files there are, in which order and under which package, and reads the overrides' grammar.
The files are then laid over each other here, as trees that know where each value stands, the overrides last.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hydra.errors import HydraException, MissingConfigException
from hydra.plugins.config_source import ConfigResult
from hydra.types import RunMode
from omegaconf import OmegaConf
from omegaconf.errors import OmegaConfBaseException

from kerncfg.compiler.assign import assign, fault, leaf, near, without
from kerncfg.compiler.fetched import laundered
from kerncfg.compiler.interpolate import resolved
from kerncfg.compiler.loading import add_packaged, hydra_folder, loader, version_base
from kerncfg.compiler.overrides import NODES, part_of, read, rewrite
from kerncfg.compiler.reading import Place
from kerncfg.compiler.reading import read as read_file
from kerncfg.compiler.shared import SCHEME, HubGroups, header_of, opened
from kerncfg.compiler.sweeps import sweeping
from kerncfg.compiler.tree import Fault, KeyPath, Node, Origins, grow, leaves, merge
from kerncfg.documents.config import Origin
from kerncfg.errors import ConfigError, Issue, KerncfgError
from kerncfg.locations import SEARCHED, conf, searches

if TYPE_CHECKING:
    from hydra.core.config_loader import ConfigLoader
    from hydra.core.override_parser.types import Override
    from hydra.plugins.config_source import ConfigSource

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

CONFIG = "config"  # the primary config's name
_ROWS = ("kernels", "inherited", "fusions", "attention")
_NOWHERE = Origin(kind="argument")

# What Hydra raises for a defaults list or a choice that it cannot use; not all of it has a class of its own.
_FROM_HYDRA = (HydraException, OmegaConfBaseException, ValueError, TypeError, AssertionError, OSError)


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
    return document, Origins(root, tuple(work.lost), shared, notes)


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
    place = _place(path)
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


@dataclass(slots=True)
class _Composition:
    """What one composition has found so far; `typed` leads from a rewritten line to what the user wrote."""

    lines: list[str]
    typed: dict[str, str]
    faults: list[Fault]
    files: dict[str, Node] = field(default_factory=dict)
    lost: list[tuple[KeyPath, Origin]] = field(default_factory=list)
    shared: list[Any] = field(default_factory=list)

    def search_path(self, folder: Path) -> list[str]:
        """Return what `hydra.searchpath` adds, by an override or else by the user's own primary config."""
        primary = folder / f"{CONFIG}.yaml"
        origins = Origins(read_file(primary, _place(primary)) if primary.is_file() else Node({}, _NOWHERE))
        found = origins.root.value.get("hydra", origins.root).plain()
        said = found.get("searchpath") if isinstance(found, dict) else None
        path: KeyPath = ("hydra", "searchpath")
        for line in [line for line in self.lines if searches(line)]:
            self.lines.remove(line)
            said, origins = read(line).value(), Origins(leaf(None, self.typed[line]))
        addresses = said if isinstance(said, list) else [said] if said is not None else []
        for index, address in enumerate(addresses):
            if not isinstance(address, str) or not isinstance(said, list):
                hint = f"write {SEARCHED}=[file:///folder]"
                raise ConfigError([origins.issue((*path, index), "must be a list of addresses", hint=hint)])
            place = address.removeprefix("file://")
            if place.startswith(f"{SCHEME}://"):
                self.shared.append(self.opened(place, origins, (*path, index)))
            elif "://" not in place and not Path(place).is_dir():
                raise ConfigError([origins.issue((*path, index), f"there is no folder {place}")])
        return addresses

    def opened(self, address: str, origins: Origins, path: KeyPath) -> Any:
        """Return what a place on the Hub holds, asked for before anybody has to wait for Hydra's state."""
        try:
            return opened(address)
        except ConfigError as error:
            raise ConfigError([origins.issue(path, each.message, hint=each.hint) for each in error.issues]) from error

    def defaults(self, loader: ConfigLoader) -> tuple[list[tuple[list[str], Node]], list[Override]]:
        """Return the files in merge order, each with its package, and the overrides of values."""
        for source in loader.get_sources():
            patched: Any = source
            if source.scheme() == "file":
                patched.load_config = self.reader(source)
            elif isinstance(source, HubGroups):
                patched.load_config = self.fetching(source)
        try:
            found = loader.compute_defaults_list(CONFIG, self.lines, RunMode.RUN)
        except KerncfgError:
            raise
        except MissingConfigException as error:
            if not (issues := self.left_out(missing := self.missing(error, loader))):
                raise missing from error
            self.faults += issues
            return self.defaults(loader)
        except RecursionError as error:
            raise ConfigError("a defaults list leads back to itself", hint="remove the circle") from error
        except _FROM_HYDRA as error:
            raise self.failed(error) from error
        defaults = []
        for default in found.defaults:
            if default.config_path is None or default.config_path.startswith("hydra/"):
                continue
            node = self.file(default.config_path, loader)
            package = [part for part in (default.package or "").split(".") if part and part != "_global_"]
            inside = {name: child for name, child in node.value.items() if name != "defaults"}
            defaults.append((package, Node(inside, node.origin)))
        return defaults, list(found.config_overrides)

    def reader(self, source: ConfigSource) -> Callable[[str], ConfigResult]:
        """Return a loader of one source's files that reads them once, with origins and every fault.

        Hydra is given the defaults list only, so a long mapping costs OmegaConf nothing.
        """
        folder, provider = Path(source.path), source.provider

        def load_config(config_path: str) -> ConfigResult:
            file = folder / (config_path if config_path.endswith(".yaml") else f"{config_path}.yaml")
            place = _place(file)
            with file.open(encoding="utf-8-sig", errors="replace") as text:
                header = header_of(text.read(512), place)
            if header.get("package") != "_global_":
                place.prefix = tuple(config_path.split("/")[:-1])
            part = place.prefix
            try:
                node = read_file(file, place, self.faults)
            except ConfigError as error:
                self.faults += [(part, issue) for issue in error.issues]
                node = Node({}, place.origin(None))
            self.files[config_path] = node
            config = OmegaConf.create({"defaults": _entries(node)})
            return ConfigResult(provider=provider, path=f"file://{folder}", config=config, header=header)

        return load_config

    def fetching(self, source: HubGroups) -> Callable[[str], ConfigResult]:
        """Return a loader of the files of a place on the Hub, as `reader` returns one of a folder's."""

        def load_config(config_path: str) -> ConfigResult:
            node, header = source.tree(config_path)
            self.files[config_path] = node
            config = OmegaConf.create({"defaults": _entries(node)})
            return ConfigResult(provider=source.provider, path=source.full_path(), config=config, header=header)

        return load_config

    def file(self, config_path: str, loader: ConfigLoader) -> Node:
        """Return the tree of a config; one from another kind of source has no lines."""
        if (known := self.files.get(config_path)) is not None:
            return known
        source = next(source for source in loader.get_sources() if source.is_config(config_path))
        kind = "file" if source.scheme() in ("pkg", "structured") else "preset"
        place = f"{source.scheme()}://{source.path}/{config_path}"
        plain = OmegaConf.to_container(source.load_config(config_path).config, resolve=False)
        return self.files.setdefault(config_path, grow(plain, Origin(kind=kind, place=place)))

    def put(self, root: Node, package: Sequence[str], node: Node) -> Node:
        """Lay a file over what is there."""
        for part in reversed(package):
            node = Node({part: node}, node.origin)
        return merge(root, node, (), self.lost)

    def overridden(self, root: Node, override: Override) -> Node:
        """Apply one override of a value; what cannot be applied is noted, and left out."""
        argument = self.typed.get(override.input_line or "", override.input_line or "")
        part = part_of(argument)
        try:
            return self.override(root, override)
        except ConfigError as error:
            if not any(part[: len(other)] == other for other, _ in self.faults):
                self.faults += [(part, issue) for issue in error.issues]
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
            return without(root, parts, argument)
        return assign(root, parts, leaf(override.value(), argument), self.lost)

    def missing(self, error: MissingConfigException, loader: ConfigLoader) -> ConfigError:
        """Say which option is not there, who asked for it, and which there are."""
        wanted = error.missing_cfg_file or ""
        group, _, name = wanted.rpartition("/")
        asked = self.asked_by_file(name)
        for line, argument in self.typed.items():
            chosen = line.partition("=")[0].partition("@")[0].lstrip("+")
            said = read(line).value()
            for option in said if isinstance(said, list) else [said]:
                if wanted == f"{chosen}/{option}":
                    group, name, asked = chosen, str(option), fault(argument, "")
        options = sorted(loader.get_group_options(group)) if group else []
        places = [_shown(Path(source.path)) for source in loader.get_sources() if source.scheme() == "file"]
        places += [found.address for found in self.shared]
        lead = f"no option {name!r} in the group {group}" if group else f"no config {name!r}"
        message = f"{lead}; looked in {' and '.join(places)}"
        hints = [near(name, options), f"there are {', '.join(options)}" if options else None]
        if ":" in name and group in _ROWS:
            hints = [f"for one row write {group}.NAME={name}"]
        return ConfigError([replace(asked, message=message, hint=" ".join(filter(None, hints)) or None)])

    def left_out(self, missing: ConfigError) -> list[Fault]:
        """Take the override out that chose what is not there, and return its fault; nothing if a file chose it."""
        words = {f"override: {argument}": argument for argument in self.typed.values()}
        (issue,) = missing.issues
        if issue.file not in words:
            return []
        argument = words[issue.file]
        self.lines = [line for line in self.lines if self.typed.get(line) != argument]
        return [(part_of(argument), issue)]

    def asked_by_file(self, name: str) -> Issue:
        """Return a fault, still without words, where a defaults list names an option."""
        lists = [node.value["defaults"] for node in self.files.values() if "defaults" in node.value]
        for _, entry in (found for entries in lists for found in leaves(entries)):
            text = entry.origin.text or ""
            if text == name or text.endswith(f"/{name}"):
                return Origins(entry).issue(("defaults",), "")
        return Issue(message="", path="defaults")

    def failed(self, error: Exception) -> ConfigError:
        """Turn what Hydra says about a composition into one of our errors."""
        text = " ".join(str(error).split()) or type(error).__name__
        for line, argument in self.typed.items():
            key = line.lstrip("~+").partition("=")[0]
            if f"'{key}'" in text or f"'{line}'" in text:
                if text.startswith("Could not"):
                    text = "the config's defaults list has no such entry"
                    return ConfigError([fault(argument, text, f"add `- {key}: NAME` to it")])
                return ConfigError([fault(argument, text)])
        return ConfigError(f"the configuration cannot be composed: {text}")


def _place(file: Path) -> Place:
    """Say what a file is called: a preset by its place in the packaged folder, others as people know them."""
    file = file.absolute()
    if file.is_relative_to(conf()):
        return Place("preset", file.relative_to(conf()).as_posix())
    return Place("file", _shown(file))


def _shown(path: Path) -> str:
    here = Path.cwd()
    return str(path.relative_to(here)) if path.is_relative_to(here) else str(path)


def _entries(node: Node) -> list[Any]:
    """Return the defaults list of a file, of which each entry is one that Hydra can read."""
    entries = node.value["defaults"].plain() if "defaults" in node.value else None
    if entries is None:
        return []
    origins = Origins(node)
    if not isinstance(entries, list):
        found = "a map" if isinstance(entries, dict) else repr(entries)
        listed = f"write defaults: [{entries}]" if entries and isinstance(entries, str) else None
        hint = listed or "write `defaults:` and `- group: option` lines"
        raise ConfigError([origins.issue(("defaults",), f"found {found}, expected a list", hint=hint)])
    issues = []
    for index, entry in enumerate(entries):
        values = list(entry.values()) if isinstance(entry, dict) else [entry]
        options = values[0] if values and isinstance(values[0], list) else values
        one = len(values) == 1 and all(isinstance(option, str) for option in options)
        if not one and not (isinstance(entry, dict) and values == [None]):
            hint = "write `- group: option`, `- override /group: option` or `- _self_`"
            issues.append(origins.issue(("defaults", index), "is no entry of a defaults list", hint=hint))
    if issues:
        raise ConfigError(issues)
    return entries
