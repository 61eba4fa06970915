"""The files of one composition: which of them Hydra chooses, and what is to blame where it cannot.

A file that cannot be read, or an entry of a defaults list that leads nowhere, is noted and left out, and the rest is
composed. More would have been said there: the part of its fault ends in `defaults`, as `tree.lacking` reads it.
"""

from __future__ import annotations

import errno
import shlex
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hydra.errors import HydraException, MissingConfigException
from hydra.plugins.config_source import ConfigResult
from hydra.types import RunMode
from omegaconf import OmegaConf
from omegaconf.errors import OmegaConfBaseException

from kerncfg.compiler.assign import fault, near
from kerncfg.compiler.entries import overriding, readable, sentence, targets
from kerncfg.compiler.overrides import NODES, part_of, read
from kerncfg.compiler.reading import Place
from kerncfg.compiler.reading import read as read_file
from kerncfg.compiler.shared import HubGroups, header_of, prefix_of, unpackaged
from kerncfg.compiler.tree import LISTED, Fault, KeyPath, Node, Origins, grow, leaves
from kerncfg.compiler.unfit import LONGEST
from kerncfg.documents.config import Origin
from kerncfg.errors import ConfigError, Issue
from kerncfg.locations import conf

if TYPE_CHECKING:
    from hydra.core.config_loader import ConfigLoader
    from hydra.core.override_parser.types import Override
    from hydra.plugins.config_source import ConfigSource

__all__ = ["CONFIG", "Choices", "place_of", "shown"]

CONFIG = "config"  # the primary config's name
_ROWS = ("kernels", "inherited", "fusions", "attention")
_WHOLE = ("hydra", LISTED)  # the part of a fault that leaves nothing out of the document

# What Hydra raises for a defaults list or a choice that it cannot use; not all of it has a class of its own.
_FROM_HYDRA = (HydraException, OmegaConfBaseException, ValueError, TypeError, AssertionError, OSError, RecursionError)

Entry = tuple[str, int]  # of a defaults list: the config whose it is, and which one
Header = dict[str, str | None]


@dataclass(slots=True)
class Choices:
    """What one composition loads; `typed` leads from a rewritten line to what the user wrote.

    `left` are the entries of defaults lists that are left out, and `unsearched` why a place of the search path is; the
    primary config is one's `own` unless it cannot be read, where the packaged one stands for it.
    """

    lines: list[str]
    typed: dict[str, str]
    faults: list[Fault]
    files: dict[str, Node] = field(default_factory=dict)
    headers: dict[str, Header] = field(default_factory=dict)
    lists: dict[str, dict[int, Any]] = field(default_factory=dict)
    left: set[Entry] = field(default_factory=set)
    shared: list[Any] = field(default_factory=list)
    unsearched: Issue | None = None
    own: bool = True

    def defaults(self, loader: ConfigLoader) -> tuple[list[tuple[list[str], Node]], list[Override]]:
        """Return the files in merge order, each with its package, and the overrides of values."""
        for source in loader.get_sources():
            patched: Any = source
            if source.scheme() == "file":
                patched.load_config = self.reader(source)
            elif isinstance(source, HubGroups):
                patched.load_config = self.fetching(source)
        found: Any = None
        while found is None:
            try:
                found = loader.compute_defaults_list(CONFIG, self.lines, RunMode.RUN)
            except _FROM_HYDRA as error:
                self.leave(error, loader)
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
            if config_path not in self.files:
                self.local(folder, config_path)
            return self.result(config_path, provider, f"file://{folder}")

        return load_config

    def local(self, folder: Path, config_path: str) -> None:
        """Read a file of a folder; one that cannot be read says nothing."""
        file = folder / (config_path if config_path.endswith(".yaml") else f"{config_path}.yaml")
        place = place_of(file)
        part: KeyPath = ()
        try:
            with file.open(encoding="utf-8-sig", errors="replace") as text:
                header = header_of(text.read(512), place)
            if config_path.startswith("experiment/") and (issue := unpackaged(header, place)):
                self.faults.append((_WHOLE, issue))
                header = Header(package="_global_")
            if header.get("package") != "_global_":
                part = place.prefix = tuple(config_path.split("/")[:-1])
            self.keep(config_path, read_file(file, place, self.faults), header, part)
        except OSError as error:
            self.unreadable(config_path, part, [Issue(message=f"cannot be read: {error.strerror}", file=place.name)])
        except ConfigError as error:
            self.unreadable(config_path, part, error.issues)

    def unreadable(self, config_path: str, part: KeyPath, issues: Sequence[Issue]) -> None:
        """Note why a file says nothing; the packaged primary config stands for one's own."""
        self.faults += [((*part, LISTED), issue) for issue in issues]
        if config_path == CONFIG and self.own:
            self.own = False
            self.local(conf(), CONFIG)
        else:
            nothing = Node({}, Origin(kind="file", place=config_path))
            self.keep(config_path, nothing, Header(package="_global_"), part)

    def keep(self, config_path: str, node: Node, header: Header, part: KeyPath) -> None:
        """Keep what a file says, and the entries of its defaults list that Hydra can read."""
        self.files[config_path], self.headers[config_path] = node, header
        self.lists[config_path], issues = readable(node)
        self.faults += [((*part, LISTED), issue) for issue in issues]

    def fetching(self, source: HubGroups) -> Callable[[str], ConfigResult]:
        """Return a loader of the files of a place on the Hub, as `reader` returns one of a folder's."""

        def load_config(config_path: str) -> ConfigResult:
            if config_path not in self.files:
                try:
                    node, header = source.tree(config_path)
                    self.keep(config_path, node, header, prefix_of(f"{config_path}.yaml", header))
                except ConfigError as error:
                    self.unreadable(config_path, (), error.issues)
            return self.result(config_path, source.provider, source.full_path())

        return load_config

    def result(self, config_path: str, provider: str, path: str) -> ConfigResult:
        """Return a file as Hydra needs it: without the entries that are left out."""
        entries = [entry for index, entry in self.lists[config_path].items() if (config_path, index) not in self.left]
        config = OmegaConf.create({"defaults": entries})
        return ConfigResult(provider=provider, path=path, config=config, header=self.headers[config_path])

    def file(self, config_path: str, loader: ConfigLoader) -> Node:
        """Return the tree of a config; one from another kind of source has no lines."""
        if (known := self.files.get(config_path)) is not None:
            return known
        source = next(source for source in loader.get_sources() if source.is_config(config_path))
        kind = "file" if source.scheme() in ("pkg", "structured") else "preset"
        place = f"{source.scheme()}://{source.path}/{config_path}"
        plain = OmegaConf.to_container(source.load_config(config_path).config, resolve=False)
        return self.files.setdefault(config_path, grow(plain, Origin(kind=kind, place=place)))

    def leave(self, error: Exception, loader: ConfigLoader) -> None:
        """Leave out what is to blame that there are no files, and note its fault.

        Raises:
            ConfigError: It cannot be told what is to blame.
        """
        text = _text(error)
        wanted = error.missing_cfg_file or "" if isinstance(error, MissingConfigException) else None
        argument = self.asking(wanted) if wanted is not None else self.clashing(text) or self.overlong(error)
        if argument:
            asked = fault(argument, "")
            issue = self.refusal(argument, text) if wanted is None else self.missing(wanted, asked, loader)
            self.lines = [line for line in self.lines if self.typed.get(line) != argument]
            self.faults.append((part_of(argument), issue))
        elif found := self.entry(error, text, wanted, loader):
            entry, issue = found
            self.left.add(entry)
            self.faults.append((self.part(entry), issue))
        elif isinstance(error, RecursionError):
            raise ConfigError("a defaults list leads back to itself", hint="remove the circle") from error
        else:
            raise ConfigError(f"the configuration cannot be composed: {text}") from error

    def entry(
        self, error: Exception, text: str, wanted: str | None, loader: ConfigLoader
    ) -> tuple[Entry, Issue] | None:
        """Return the entry of a defaults list that is to blame, and its fault."""
        if isinstance(error, RecursionError):
            entry, way = self.circle()
            return entry and (entry, self.circular(entry, way))
        entry = (self.naming(wanted) if wanted else None) or self.blamed(text, loader)
        if entry is None:
            return None
        if wanted is not None:
            return entry, self.missing(wanted, self.at(entry), loader)
        config_path, index = entry
        message, hint = sentence(text, self.lists[config_path][index], self.known())
        return entry, self.at(entry, message, hint)

    def asking(self, wanted: str) -> str | None:
        """Return the override that chose a config."""
        for line, argument in self.typed.items():
            if line in self.lines and any(wanted == f"{group}/{option}" for group, option in _chosen(line)):
                return argument
        return None

    def clashing(self, text: str) -> str | None:
        """Return the override that Hydra complains about."""
        lines = [] if text.startswith("In ") else [line for line in self.typed if line in self.lines]
        named = ((line, line.lstrip("~+").partition("=")[0]) for line in lines)
        return next((self.typed[line] for line, key in named if f"'{key}'" in text or f"'{line}'" in text), None)

    def overlong(self, error: Exception) -> str | None:
        """Return the override that names an option with which no file can be looked for."""
        found = (line for line in self.typed if line in self.lines and len(line) > LONGEST and _too_long(error))
        return next((self.typed[line] for line in found for _, name in _chosen(line) if len(name) > LONGEST), None)

    def refusal(self, argument: str, text: str) -> Issue:
        """Say why an override cannot be used."""
        if not text.startswith("Could not"):
            return fault(argument, text)
        key = argument.lstrip("~+").partition("=")[0].strip()
        return fault(argument, "the config's defaults list has no such entry", f"add `- {key}: NAME` to it")

    def entries(self) -> Iterator[tuple[Entry, Any]]:
        """Yield the entries of the files that are not packaged, the ones furthest inside first."""
        for config_path, entries in reversed(self.lists.items()):
            if self.files[config_path].origin.kind != "preset":
                for index, entry in reversed(entries.items()):
                    if (config_path, index) not in self.left:
                        yield (config_path, index), entry

    def naming(self, wanted: str) -> Entry | None:
        """Return the entry that chooses a config."""
        return next((place for place, entry in self.entries() if wanted in targets(place[0], entry)), None)

    def circle(self) -> tuple[Entry | None, list[str]]:
        """Return an entry that leads back to a file on the way to it, and the way round."""
        done: set[str] = set()

        def walk(config_path: str, way: list[str]) -> tuple[Entry | None, list[str]]:
            done.add(config_path)
            for index, entry in self.lists.get(config_path, {}).items():
                if (config_path, index) in self.left or overriding(entry):
                    continue
                for target in targets(config_path, entry):
                    if target in way:
                        return (config_path, index), [*way[way.index(target) :], target]
                    if target not in done and (found := walk(target, [*way, target]))[0]:
                        return found
            return None, []

        found = (walk(config_path, [config_path]) for config_path in self.lists if config_path not in done)
        return next((each for each in found if each[0]), (None, []))

    def blamed(self, text: str, loader: ConfigLoader) -> Entry | None:
        """Return the entry without which Hydra does not complain, or about something else.

        Where several have the same fault, it is the last that has to go.
        """
        places = [place for place, _ in self.entries()]
        for together in (False, True):
            tried: set[Entry] = set()
            for place in places:
                tried = {*tried, place} if together else {place}
                if self.complaint(tried, loader) != text:
                    return place
        return None

    def complaint(self, without: set[Entry], loader: ConfigLoader) -> str:
        """Return what Hydra says if further entries are left out, nothing if there are files."""
        before, self.left = self.left, self.left | without
        try:
            loader.compute_defaults_list(CONFIG, self.lines, RunMode.RUN)
            return ""
        except _FROM_HYDRA as error:
            return _text(error)
        finally:
            self.left = before

    def at(self, entry: Entry, message: str = "", hint: str | None = None) -> Issue:
        """Return a fault of an entry; without a message that of the option it names."""
        config_path, index = entry
        node = self.files[config_path].value["defaults"].value[index]
        if not message:
            _, last = list(leaves(node))[-1]
            return Origins(last).issue(("defaults",), "")
        return replace(Origins(node).issue((), message, hint=hint), path=f"defaults.{index}")

    def part(self, place: Entry) -> KeyPath:
        """Return the part of the document of which an entry would have said more."""
        config_path, index = place
        entry = self.lists[config_path][index]
        key = entry if isinstance(entry, str) else next(iter(entry))
        _, at, package = key.partition("@")
        inside = package.split(".") if at else [target.partition("/")[0] for target in targets(config_path, entry)]
        node = next(iter(inside), None)
        return _WHOLE if node is None else (node, LISTED) if node in NODES and node != "experiment" else (LISTED,)

    def circular(self, entry: Entry, way: Sequence[str]) -> Issue:
        """Say which way a circle leads."""
        config_path, _ = entry
        hint = f"take the entry out of {self.files[config_path].origin.place}"
        if (conf() / f"{way[-1]}.yaml").is_file():
            hint = f"{hint}; to build on the packaged {way[-1]}, give the file of that name another one"
        return self.at(entry, f"a defaults list leads back to itself: {' to '.join(way)}", hint)

    def known(self) -> list[str]:
        """Return the groups that the primary config chooses options of."""
        return [next(iter(entry)) for entry in self.lists.get(CONFIG, {}).values() if isinstance(entry, dict)]

    def missing(self, wanted: str, asked: Issue, loader: ConfigLoader) -> Issue:
        """Say which option is not there, where it was `asked` for, and which there are."""
        if self.unsearched:
            return self.unsearched  # it may be in the place that could not be looked in
        group, _, name = wanted.rpartition("/")
        for line in self.typed:
            for chosen, option in _chosen(line):
                if wanted == f"{chosen}/{option}":
                    group, name = chosen, option
        options = sorted(loader.get_group_options(group)) if group else []
        places = [shown(Path(source.path)) for source in loader.get_sources() if source.scheme() == "file"]
        places += [found.address for found in self.shared]
        lead = f"no option {name!r} in the group {group}" if group else f"no config {name!r}"
        hints = [near(name, options), f"there are {', '.join(options)}" if options else None]
        if ":" in name and group in _ROWS:
            hints = [f"for one row write {group}.NAME={name}"]
        message = f"{lead}; looked in {' and '.join(places)}"
        word = "inherited" if asked.path == "inherited" else group
        if group and (cure := _line_for(group, word, name, places)):
            hints = [cure]
        return replace(asked, message=message, hint=" ".join(filter(None, hints)) or "take the entry out")


def _line_for(group: str, node: str, name: str, places: Sequence[str]) -> str | None:
    """Return what to type for an option given as the path of its file, or looked for in the folder of its group."""
    if "/" in name or name.endswith(".yaml"):
        file = next(
            (file for file in (Path(name), Path(f"{name}.yaml")) if file.suffix == ".yaml" and file.is_file()), None
        )
        if file is None:
            return None
        folder, name = file.absolute().parent, file.stem
        if folder.name != group:
            place = f"my_conf/{group}/{file.name}"
            return f"put it into a folder {group}, as {place}, and write --config-dir my_conf {node}={name}"
    else:
        folders = (Path(place).absolute() for place in places)
        found = next(
            (folder for folder in folders if folder.name == group and (folder / f"{name}.yaml").is_file()), None
        )
        if found is None:
            return None
        folder = found
    return f"write --config-dir {shlex.quote(shown(folder.parent))} {node}={name}"


def place_of(file: Path) -> Place:
    """Say what a file is called: a preset by its place in the packaged folder, others as people know them."""
    file = file.absolute()
    if file.is_relative_to(conf()):
        return Place("preset", file.relative_to(conf()).as_posix())
    return Place("file", shown(file))


def shown(path: Path) -> str:
    """Return a path as people know it from where they are."""
    here = Path.cwd()
    return str(path.relative_to(here)) if path.is_relative_to(here) else str(path)


def _text(error: Exception) -> str:
    if _too_long(error):
        return f"the name of an option is too long for a file, expected {LONGEST} bytes at most"
    return " ".join(str(error).split()) or "Hydra gives no reason"


def _too_long(error: Exception) -> bool:
    return isinstance(error, OSError) and error.errno == errno.ENAMETOOLONG


def _chosen(line: str) -> Iterator[tuple[str, str]]:
    """Yield the group and each option that a line chooses."""
    group = line.partition("=")[0].partition("@")[0].lstrip("+")
    said = read(line).value()
    yield from ((group, str(option)) for option in (said if isinstance(said, list) else [said]))
