"""What may come next in an override, answered from the packaged and the user's files alone."""

from __future__ import annotations

import functools
import json
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from kerncfg.compiler.reading import Place, read
from kerncfg.compiler.tree import Node, leaves
from kerncfg.documents.reference import ATTENTION
from kerncfg.errors import ConfigError, KerncfgError
from kerncfg.locations import conf, schemas, searches

__all__ = ["experiments", "names", "offers", "searched"]

_ROWS = ("kernels", "inherited", "fusions", "attention")  # `inherited` is the group `kernels` a second time
_RESERVED = ("defaults", "inherit_mapping")
_REMOVABLE = (*_ROWS, "model", "experiment")


def offers(word: str, config_dir: Path | None = None, shared: Sequence[str] = ()) -> list[str]:
    """Return the overrides that begin with a word, as far as the next `=` or `.`; a single one goes further.

    A lone offer that is no whole word would be followed by a blank in the shell, so what comes after it is
    offered too. `shared` are the files that `searched` found.
    """
    folders = [*([config_dir.expanduser()] if config_dir else []), conf()]
    every = dict.fromkeys([*_level(word, folders), *_shared(word, shared)])
    found = [offer for offer in every if offer.startswith(word)]
    if len(found) == 1 and found[0] != word and found[0].endswith(("=", ".")):
        return [found[0], *offers(found[0], config_dir, shared)]
    return found


def searched(words: Iterable[str]) -> list[str]:
    """Return the files of the places on the Hub that `hydra.searchpath=[hf://…]` names, as far as the cache knows."""
    addresses = [address for word in words if searches(word) for address in re.findall(r"hf://[^],\s'\"]+", word)]
    if not addresses:
        return []
    from kerncfg.sources.hub.configs import opened

    found: list[str] = []
    for address in addresses:
        try:
            found += opened(address, cached=True).files
        except KerncfgError:  # nobody asked about it yet; completion has no place to say so
            continue
    return found


def _shared(word: str, files: Iterable[str]) -> Iterator[str]:
    key, equals, _ = word.partition("=")
    for file in files:
        group, _, name = file.removesuffix(".yaml").rpartition("/")
        if equals and group == _group(key):
            yield f"{key}={name}"
        elif group and "/" not in group and not equals:
            yield f"{group}="


def names(config_dir: Path | None = None) -> list[str]:
    """Return the names of rows that some mapping has; those of fusions and attention stand behind their node."""
    folders = [*([config_dir.expanduser()] if config_dir else []), conf()]
    others = [f"{node}.{name}" for node in ("fusions", "attention") for name in _names(node, folders)]
    return sorted([*_names("kernels", folders), *others])


def experiments(config_dir: Path | None = None) -> list[str]:
    """Return the names of the user's own experiments."""
    return _options("experiment", [config_dir.expanduser()]) if config_dir else []


def _level(word: str, folders: Sequence[Path]) -> Iterator[str]:
    if word.startswith("~"):
        yield from (f"~{node}" for node in _REMOVABLE)
        yield from (f"~{node}.{name}" for node in _ROWS for name in _names(node, folders))
        return
    key, equals, _ = word.partition("=")
    parts = key.split(".")
    if equals:
        yield from (f"{key}={value}" for value in _values(parts, folders))
    elif len(parts) == 1:
        yield from (f"{group}=" for group in _groups(folders))
        yield from (f"{node}{'.' if _is_map(_at([node])) else '='}" for node in _keys(_at([])))
    else:
        yield from _below(parts, folders)


def _below(parts: Sequence[str], folders: Sequence[Path]) -> Iterator[str]:
    """Yield the keys of a node; one that may be a value or a map is offered as both once it stands there in full."""
    *parents, last = parts
    prefix = ".".join(parents)
    rows = len(parents) == 1 and parents[0] in _ROWS
    for name in _names(parents[0], folders) if rows else ():
        yield f"{prefix}.{name}."
        if name == last:
            yield f"{prefix}.{name}="
    for name in _keys(_at(parents)):
        schema = _at([*parents, name])
        if name == "defaults":
            continue
        if _is_value(schema):
            yield f"{prefix}.{name}="
        if _is_map(schema) and (name == last or not _is_value(schema)):
            yield f"{prefix}.{name}."


def _values(parts: Sequence[str], folders: Sequence[Path]) -> Iterator[str]:
    if len(parts) == 1:
        yield from _options(_group(parts[0]), folders)
    found = _at(parts)
    for schema in found:
        kinds = schema.get("type", ())
        yield from (str(value) for value in schema.get("enum", ()) if value is not None)
        yield from ("true", "false") if kinds == "boolean" else ()
        yield from ("null",) if "null" in kinds and len(parts) > 1 else ()
    if parts[0] in _ROWS and len(parts) > 1 and any("null" in schema.get("type", ()) for schema in found):
        yield "original"
        yield from ("inherited",) if _group(parts[0]) == "kernels" else ()
        yield from ATTENTION if parts[0] == "attention" else ()
        yield from sorted({*_references(parts, folders)} - {*ATTENTION})


def _groups(folders: Sequence[Path]) -> list[str]:
    found = {folder.name for place in folders for folder in place.glob("[a-z]*") if any(folder.glob("*.yaml"))}
    return sorted(found | {"inherited"})


def _options(group: str, folders: Sequence[Path]) -> list[str]:
    return sorted({file.stem for folder in folders for file in (folder / group).glob("*.yaml")})


def _names(node: str, folders: Sequence[Path]) -> list[str]:
    return sorted({name for mapping in _mappings(node, folders) for name in mapping if name not in _RESERVED})


def _references(parts: Sequence[str], folders: Sequence[Path]) -> Iterator[str]:
    node, name, *_ = parts
    for mapping in _mappings(node, folders):
        for _, leaf in leaves(mapping[name]) if name in mapping else ():
            if isinstance(leaf.value, str) and re.search("[/:]", leaf.value) and not re.search("[ *]", leaf.value):
                yield leaf.value


def _group(node: str) -> str:
    return "kernels" if node == "inherited" else node


def _mappings(node: str, folders: Sequence[Path]) -> Iterator[Mapping[str, Node]]:
    """Yield the mappings that can be read; completion has no place to say what is wrong with another."""
    for file in (file for folder in folders for file in sorted((folder / _group(node)).glob("*.yaml"))):
        try:
            yield _mapping(file)
        except ConfigError:
            continue


@functools.cache
def _mapping(file: Path) -> Mapping[str, Node]:
    found: Mapping[str, Node] = read(file, Place("file", str(file))).value
    return found


Found = list[Mapping[str, Any]]  # every schema that speaks of one place


def _at(parts: Sequence[str]) -> Found:
    """Return the schemas of a place in a composed document."""
    found = list(_spoken({"$ref": "config.schema.json"}, ""))
    for part in parts:
        below = [(child, file) for schema, file in found for child in _child(schema, part)]
        found = [spoken for child, file in below for spoken in _spoken(child, file)]
    return [schema for schema, _ in found]


def _child(schema: Mapping[str, Any], part: str) -> Iterator[Mapping[str, Any]]:
    others = schema.get("additionalProperties")
    child = schema.get("properties", {}).get(part, others if isinstance(others, dict) else None)
    if child is not None:
        yield child


def _spoken(schema: Mapping[str, Any], file: str) -> Iterator[tuple[Mapping[str, Any], str]]:
    """Yield a schema and all that it stands for, each with the file that its references start from."""
    yield schema, file
    if reference := schema.get("$ref"):
        name, _, part = reference.partition("#/$defs/")
        document = _schema(name or file)
        yield from _spoken(document["$defs"][part] if part else document, name or file)
    for branch in (*schema.get("allOf", ()), *(schema[key] for key in ("then", "else") if key in schema)):
        yield from _spoken(branch, file)


@functools.cache
def _schema(file: str) -> Mapping[str, Any]:
    found: Mapping[str, Any] = json.loads((schemas() / file).read_text(encoding="utf-8"))
    return found


def _keys(found: Found) -> Iterable[str]:
    return dict.fromkeys(key for schema in found for key in schema.get("properties", {}))


def _is_map(found: Found) -> bool:
    return any("properties" in schema or isinstance(schema.get("additionalProperties"), dict) for schema in found)


def _is_value(found: Found) -> bool:
    kinds = [schema["type"] for schema in found if "type" in schema]
    return any(kind != "object" for kind in kinds) or any("enum" in schema for schema in found)
