"""YAML text to a tree.

The types are those that Hydra gives the same text. What YAML would let pass in silence is refused here: a key
twice, a key that YAML made a boolean or a number, a tag, aliases that expand without end.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml

from kerncfg.compiler.tree import Fault, KeyPath, Node, spell
from kerncfg.documents.config import Origin
from kerncfg.errors import ConfigError, Issue

__all__ = ["Place", "kind_of_key", "parse", "parse_bytes", "read", "scalar"]

MAX_VALUES = 1_000_000  # what aliases may expand to: ten nested lists of ten aliases are more than memory holds


@dataclass(slots=True)
class Place:
    """What a text is, for the origins of its values: `kind` and `name` as in `Origin`.

    `prefix` is where its keys come to stand in the whole document, for messages. `dark` has for each fault the part of
    the document that cannot be judged for it.
    """

    kind: str
    name: str
    prefix: KeyPath = ()
    issues: list[Issue] = field(default_factory=list)
    dark: list[KeyPath] = field(default_factory=list)

    def fault(self, path: KeyPath, mark: yaml.Mark | None, message: str, hint: str | None = None) -> None:
        """Note a fault at a place in the text."""
        line, column = (mark.line + 1, mark.column + 1) if mark else (None, None)
        whole = (*self.prefix, *path)
        self.dark.append(whole)
        self.issues.append(
            Issue(message=message, path=spell(whole), file=self.name, line=line, column=column, hint=hint)
        )

    def origin(self, mark: yaml.Mark | None, text: str | None = None) -> Origin:
        """Return the origin of a value at a place in the text."""
        line, column = (mark.line + 1, mark.column + 1) if mark else (None, None)
        return Origin(kind=self.kind, place=self.name, line=line, column=column, text=text)


_Base: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
_TAG = "tag:yaml.org,2002:"
_ROWS = (("kernels",), ("inherited",), ("fusions",), ("attention",))
_TYPED = {_TAG + name for name in ("null", "bool", "int", "float")}


_AT_ITS_START = "expected key|expected '-'|expected <block end>|expected <document start>"
_ENTRY = re.compile(r" *(- +)*")  # what stands before the key of a line


class _Loader(_Base):  # type: ignore[misc]
    """PyYAML's safe loader with Hydra's types: `1e5` is a number, a date is text."""


_Loader.yaml_implicit_resolvers = {
    first: [(tag, pattern) for tag, pattern in rules if tag != _TAG + "timestamp"]
    for first, rules in _Base.yaml_implicit_resolvers.items()
}
_Loader.add_implicit_resolver(
    _TAG + "float",
    re.compile(r"[-+]?[0-9]+(_[0-9]+)*(\.[0-9_]*)?[eE][-+]?[0-9]+$"),
    list("-+0123456789"),
)
_SCALARS = yaml.constructor.SafeConstructor()
_NOT_OF_ITS_TAG = (ValueError, LookupError)  # what PyYAML raises for `!!int x` and `!!bool x`
_MAX_BITS = 10_000  # of an int: Python prints 4300 digits, whatever the base in which they were written


def scalar(text: str, *, inside: bool = False) -> Any:
    """Return what YAML makes of a text that stands bare after a key, or `inside` brackets; `{}` is any map there.

    Raises:
        ValueError: It is not one scalar there.
    """
    try:
        node: Any = yaml.compose(f"k: [{text} ]" if inside else f"k: {text}", Loader=_Loader)
    except (yaml.YAMLError, RecursionError) as error:
        raise ValueError(text) from error
    value = node.value[0][1] if isinstance(node, yaml.MappingNode) else None
    if inside and isinstance(value, yaml.SequenceNode):
        value = value.value[0] if len(value.value) == 1 else None
        if isinstance(value, yaml.MappingNode):
            return {}
    if not isinstance(value, yaml.ScalarNode) or len(node.value) != 1:
        raise ValueError(text)
    if value.tag not in _TYPED:
        return value.value
    try:
        return _typed(value)
    except _NOT_OF_ITS_TAG as error:
        raise ValueError(text) from error


def _typed(node: yaml.ScalarNode) -> Any:
    value = _SCALARS.construct_object(node)
    if isinstance(value, int) and value.bit_length() > _MAX_BITS:
        raise ValueError(node.value)
    return value


def kind_of_key(name: str) -> str | None:
    """Return what YAML makes of a name that stands bare before a colon, or `None` if that is text."""
    try:
        found = scalar(name)
    except ValueError:
        return None
    if isinstance(found, str) or not name:
        return None
    return "null" if found is None else "a boolean" if isinstance(found, bool) else "a number"


def read(path: Path, place: Place, faults: list[Fault] | None = None) -> Node:
    """Read a YAML file; `faults` as for `parse`.

    Raises:
        ConfigError: It cannot be read; every fault is in the issues.
    """
    try:
        data = path.read_bytes()
    except OSError as error:
        raise ConfigError([Issue(message=f"cannot be read: {error.strerror}", file=place.name)]) from error
    return parse_bytes(data, place, faults)


def parse_bytes(data: bytes, place: Place, faults: list[Fault] | None = None) -> Node:
    """Read the bytes of a YAML file; `faults` as for `parse`.

    Raises:
        ConfigError: They are not UTF-8 or cannot be read; every fault is in the issues.
    """
    try:
        text = data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise _undecoded(error, place) from error
    return parse(text, place, faults)


def parse(text: str, place: Place, faults: list[Fault] | None = None) -> Node:
    """Read YAML text whose top is a map, or nothing.

    With `faults` those of single keys and values are noted there, and the rest of the tree is returned.

    Raises:
        ConfigError: The text is not that; every fault is in the issues.
    """
    try:
        found: Any = yaml.compose(text, Loader=_Loader)
        node = _Growth(place).node(found, ()) if found is not None else Node({}, place.origin(None))
    except yaml.MarkedYAMLError as error:
        raise _syntax(error, text, place) from error
    except (yaml.YAMLError, RecursionError) as error:
        deep = isinstance(error, RecursionError)
        message = "is nested too deeply" if deep else f"is not YAML: {str(error).strip().partition(chr(10))[0]}"
        raise ConfigError([Issue(message=message, file=place.name)]) from error
    if node.value is None:
        node = Node({}, node.origin)
    if not isinstance(node.value, dict):
        holds = "a list" if isinstance(node.value, list) else "one value"
        place.fault((), found.start_mark, f"the file holds {holds}, expected a map", "write `key: value` lines")
    if node.size > MAX_VALUES:
        place.fault((), None, f"aliases expand to {node.size} values", "write the values out, or fewer aliases")
    whole = isinstance(node.value, dict) and node.size <= MAX_VALUES
    if faults is not None and whole:
        faults += zip(place.dark, place.issues, strict=True)
    elif place.issues:
        raise ConfigError(place.issues)
    return node


class _Growth:
    """From PyYAML's nodes to ours; an aliased node is converted once and shared."""

    def __init__(self, place: Place) -> None:
        self.place = place
        self.done: dict[int, Node] = {}
        self.open: set[int] = set()

    def node(self, node: yaml.Node, path: KeyPath) -> Node:
        if (known := self.done.get(id(node))) is not None:
            return known
        if id(node) in self.open:
            self.place.fault(path, node.start_mark, "an alias inside the value that it stands for")
            return Node(None, self.place.origin(node.start_mark))
        self.open.add(id(node))
        if isinstance(node, yaml.MappingNode):
            made = self.mapping(node, path)
        elif isinstance(node, yaml.SequenceNode):
            self.tagged(node, path, {"seq"})
            children = [self.node(child, (*path, index)) for index, child in enumerate(node.value)]
            size = 1 + sum(child.size for child in children)
            made = Node(children, self.place.origin(node.start_mark), size=size)
        else:
            assert isinstance(node, yaml.ScalarNode)
            made = Node(self.scalar(node, path), self.place.origin(node.start_mark, node.value))
        self.open.discard(id(node))
        self.done[id(node)] = made
        return made

    def tagged(self, node: yaml.Node, path: KeyPath, names: set[str]) -> None:
        if node.tag.removeprefix(_TAG) not in names:
            tag = node.tag.replace(_TAG, "!!")
            self.place.fault(
                path, node.start_mark, f"the tag {tag} is not read here, expected plain YAML", "leave the tag out"
            )

    def scalar(self, node: yaml.ScalarNode, path: KeyPath) -> Any:
        if node.tag not in _TYPED:
            self.tagged(node, path, {"str", "value", "merge"})
            return node.value
        try:
            return _typed(node)
        except _NOT_OF_ITS_TAG:
            message = f"{node.value!r} is no {node.tag.removeprefix(_TAG)}"
            self.place.fault(path, node.start_mark, message, f"for the text write '{node.value}'")
            return None

    def mapping(self, node: yaml.MappingNode, path: KeyPath) -> Node:
        self.tagged(node, path, {"map"})
        own: dict[str, Node] = {}
        merged: dict[str, Node] = {}
        for key, value in node.value:
            if key.tag == _TAG + "merge":
                for name, child in self.merged(value, path):
                    merged.setdefault(name, child)
                continue
            known = len(self.place.issues)
            name = self.name(key, path)
            if len(self.place.issues) > known:  # no text: what stands behind it is read for its own faults only
                self.node(value, (*path, name))
                continue
            if name in own:
                first, second = own[name].key, key.start_mark.line + 1
                message = f"the key {name!r} stands twice: lines {first and first.line} and {second}"
                hint = "keep one of them, or put both into one map"
                self.place.fault((*path, name), key.start_mark, message, hint)
            child = self.node(value, (*path, name))
            own[name] = Node(child.value, child.origin, self.place.origin(key.start_mark, name), child.size)
        children = {**{name: child for name, child in merged.items() if name not in own}, **own}
        return Node(
            children,
            self.place.origin(node.start_mark),
            size=1 + sum(child.size for child in children.values()),
        )

    def merged(self, value: yaml.Node, path: KeyPath) -> Iterable[tuple[str, Node]]:
        sources = value.value if isinstance(value, yaml.SequenceNode) else [value]
        for source in sources:
            made = self.node(source, path)
            if isinstance(made.value, dict):
                yield from made.value.items()
            else:
                self.place.fault(path, source.start_mark, "`<<` needs a map, or a list of maps", "write `<<: *anchor`")

    def name(self, key: yaml.Node, path: KeyPath) -> str:
        if not isinstance(key, yaml.ScalarNode):
            message = "a key must be text, not a map or a list"
            self.place.fault(path, key.start_mark, message, "quote the key if its characters are meant")
            return str(key.start_mark)
        if key.tag in _TYPED:
            kind = {"bool": "a boolean", "null": "null"}.get(key.tag.removeprefix(_TAG), "a number")
            expected, hint = "text", f"write '{key.value}' with quotes"
            if kind == "a number" and (*self.place.prefix, *path) in _ROWS:  # quotes would not make it a row's name
                expected = "a layer or function name that starts with a letter"
                hint = f"write a name such as row_{re.sub(r'[^0-9A-Za-z_]', '_', key.value)}"
            whole = (*self.place.prefix, *path)
            if len(whole) > 1 and whole[:1] in _ROWS and "when" not in whole:  # nor has a row such a key
                hint = "write a key that a row has, such as cuda or kernel"
            message = f"the key {key.value} is {kind} in YAML, expected {expected}"
            self.place.fault((*path, key.value), key.start_mark, message, hint)
        return str(key.value)


def _undecoded(error: UnicodeDecodeError, place: Place) -> ConfigError:
    before = error.object[: error.start]
    line, column = before.count(b"\n") + 1, len(before.rpartition(b"\n")[2].decode("utf-8-sig")) + 1
    message = f"the byte 0x{error.object[error.start]:02x} is not UTF-8"
    if error.object.startswith((b"\xff\xfe", b"\xfe\xff")):
        message = "is UTF-16, expected UTF-8"
    hint = "save the file with the encoding UTF-8"
    return ConfigError([Issue(message=message, file=place.name, line=line, column=column, hint=hint)])


def _line(text: str, mark: yaml.Mark | None) -> str:
    lines = text.splitlines()
    return lines[mark.line] if mark and mark.line < len(lines) else ""


def _misplaced(problem: str, text: str, mark: yaml.Mark | None, before: str) -> str | None:
    """Return what is wrong with the indentation of a line, if that is what a complaint about its start is about."""
    if mark is None:
        return None
    line = _line(text, mark)
    own = len(line) - len(line.lstrip(" "))
    levels: list[int] = []  # at which a line could go on here: the indents above, each smaller than those below it
    above = [found for found in text.splitlines()[: mark.line] if found.strip() and found.lstrip()[0] != "#"]
    for found in reversed(above):
        start = _ENTRY.match(found)
        assert start is not None
        outer = len(found) - len(found.lstrip(" "))
        for indent in (start.end() if ":" in found else outer, outer):
            if indent < min([*levels, indent + 1]):
                levels.append(indent)
    known = ", ".join(map(str, sorted(levels)))
    known = " or ".join(known.rsplit(", ", 1))
    if mark.column == own and re.search(_AT_ITS_START, problem) and own not in levels:
        return f"the line is indented by {own}, expected {known}"
    value = re.fullmatch(r" *(- +)*[^\s'\"#\[{:][^:]*:", before) and above and not above[-1].rstrip().endswith(":")
    if "mapping values are not allowed" in problem and value and own > len(above[-1]) - len(above[-1].lstrip(" ")):
        return f"the line is indented by {own}, below one that says a value, expected {known}"
    return None


def _syntax(error: yaml.MarkedYAMLError, text: str, place: Place) -> ConfigError:
    problem = error.problem or "cannot be read"
    mark = error.problem_mark or error.context_mark
    before = _line(text, mark)[: mark.column + 1 if mark else 0]
    if misplaced := _misplaced(problem, text, mark, before):
        problem, hint = misplaced, "indent it as the lines that it belongs to, with spaces"
    elif "\t" in before:
        problem, hint = "a tab where a key or value starts", "indent with spaces"
    elif "expected a single document" in f"{error.context} {problem}":
        problem, hint = "two documents in one file", "keep one of the parts between the `---` lines"
    elif "cannot start any token" in problem:
        hint = "quote a text that starts with one of > @ * & ! % `, and indent with spaces"
    elif "block scalar" in f"{error.context} {problem}" or "chomping" in problem:
        sign = next((char for char in reversed(before) if char in ">|"), ">")
        problem = f"{sign} starts a block of text here"
        hint = "quote a text that starts with > or |, as in '>=2.0,<3.0'"
    else:
        hint = "quote a text that holds `: ` or ` #`, or that starts with a bracket or a sign"
    place.prefix = ()  # no key of the file could be read
    place.fault((), mark, f"is not YAML: {problem}", hint)
    return ConfigError(place.issues)
