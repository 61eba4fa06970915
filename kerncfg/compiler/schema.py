"""A document against its schema: every fault at once, each in a sentence of our own."""

from __future__ import annotations

import difflib
import functools
import json
import re
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from jsonschema import Draft202012Validator

from kerncfg.compiler.compose import read_document
from kerncfg.compiler.tree import KeyPath, Origins, spell
from kerncfg.errors import ConfigError, Issue
from kerncfg.locations import schemas

if TYPE_CHECKING:
    from jsonschema.exceptions import ValidationError

__all__ = ["names", "schema", "validate", "validate_file"]

_ENDING = ".schema.json"
_MODELINE = re.compile(r"yaml-language-server:.*?([\w-]+)\.schema\.json")
_KINDS = {"string": "text", "object": "a map", "array": "a list", "boolean": "true or false", "null": "null"}
_KINDS |= {"integer": "a whole number", "number": "a number"}
_BOUNDS = {"minimum": "at least", "exclusiveMinimum": "more than", "maximum": "at most"}
_TARGET = "`_target_` would call any Python code"
_DEFAULTS = "a defaults list belongs at the top of a file"
_MISSING = "`???` stands where a value is due"


def names() -> list[str]:
    """Return the names of all schemas."""
    return sorted(path.name.removesuffix(_ENDING) for path in schemas().glob(f"*{_ENDING}"))


def schema(name: str) -> dict[str, Any]:
    """Return one schema."""
    data: dict[str, Any] = json.loads((schemas() / f"{name}{_ENDING}").read_text(encoding="utf-8"))
    return data


def validate(document: Any, name: str = "config", *, origins: Origins | None = None, prefix: KeyPath = ()) -> None:
    """Check a document against the schema of its name; `prefix` is where it stands in what `origins` tell.

    Raises:
        ConfigError: The document is not valid; it holds every fault, each with its place.
    """
    if issues := list(_issues(document, name, _Places(origins or Origins.argument(), prefix))):
        raise ConfigError(sorted(issues, key=lambda issue: (issue.file or "", issue.line or 0, issue.column or 0)))


def validate_file(file: Path) -> list[Issue]:
    """Return the faults of one file, checked as what its modeline, its name or its folder says it is."""
    try:
        document, origins = read_document(file)
        name = _name_for(file)
        document.pop("defaults", None)
        validate(document, name, origins=origins)
    except ConfigError as error:
        return error.issues
    return []


def _name_for(file: Path) -> str:
    known = names()
    if modeline := _MODELINE.search(file.read_text(encoding="utf-8-sig")[:2000]):
        wanted = modeline[1]
    elif file.stem in known or file.stem == "config":
        wanted = file.stem
    else:
        wanted = file.parent.name
    if wanted in known:
        return "experiment" if wanted == "config" else wanted
    hint = f"put it into a folder named {', '.join(known)}, or say `# yaml-language-server: $schema=…` in it"
    raise ConfigError([Issue(message="cannot tell which schema it follows", file=str(file), hint=hint)])


class _Places:
    """Where things in the document stand."""

    def __init__(self, origins: Origins, prefix: KeyPath) -> None:
        self.origins = origins
        self.prefix = prefix

    def issue(self, path: KeyPath, message: str, hint: str | None, *, key: bool = False) -> Issue:
        return self.origins.issue((*self.prefix, *path), message, hint=hint, key=key)

    def words(self, path: KeyPath, value: Any) -> str:
        """Return a value as its author wrote it."""
        origin = self.origins.at((*self.prefix, *path))
        if origin is not None and origin.text is not None:
            return _short(origin.text)
        return _short(value if isinstance(value, str) else json.dumps(value, default=str))

    def quoted(self, path: KeyPath, value: Any) -> str:
        """Return the line that makes a text of a value."""
        origin = self.origins.at((*self.prefix, *path))
        words = self.words(path, value)
        if origin is not None and origin.kind == "override":
            return f"write {spell((*self.prefix, *path))}=\"'{words}'\""
        return f'write "{words}" with quotes'


@functools.cache
def _validator(name: str) -> Draft202012Validator:
    circular = {part: found for known in names() for part, found in _circular(known).items()}
    return Draft202012Validator({**_without_references(schema(name), name), "$defs": circular})


@functools.cache
def _circular(name: str) -> dict[str, Any]:
    """Return the definitions that refer to themselves; those references stay."""
    parts: dict[str, Any] = schema(name).get("$defs", {})
    return {part: found for part, found in parts.items() if f'"#/$defs/{part}"' in json.dumps(found)}


def _without_references(node: Any, name: str) -> Any:
    """Put what a reference names in its place: following references took half the time of 5,000 rows."""
    if isinstance(node, list):
        return [_without_references(item, name) for item in node]
    if not isinstance(node, dict):
        return node
    said = {key: value for key, value in node.items() if key not in ("$ref", "$defs")}
    beside = {key: _without_references(value, name) for key, value in said.items()}
    if "$ref" not in node:
        return beside
    target = _target(node["$ref"], name)
    rules = set(beside) - {"description", "title", "$schema"}
    return {**beside, "allOf": [target]} if rules else {**target, **beside}


@functools.cache
def _target(reference: str, name: str) -> Any:
    file, _, part = reference.partition("#/$defs/")
    name = file.removesuffix(_ENDING) or name
    if part in _circular(name):
        return {"$ref": reference}
    found = schema(name)
    return _without_references(found["$defs"][part] if part else found, name)


def _issues(document: Any, name: str, places: _Places) -> Iterator[Issue]:
    found: dict[tuple[KeyPath, str], Issue] = {}
    for error in _validator(name).iter_errors(document):
        for path, keyword, issue in _sentences(error, places):
            found.setdefault((path, keyword), issue)
    for path, issue in _forbidden(document, places, top=name == "config"):
        found[path, "forbidden"] = issue
    hints = {path: str(issue.hint) for (path, keyword), issue in found.items() if keyword == "unknown"}
    misspelt = {path[:-1] for path, hint in hints.items() if "did you mean" in hint}
    for (path, keyword), issue in found.items():
        if (path, "forbidden") in found and keyword != "forbidden":
            continue
        if keyword.startswith("required ") and path in misspelt:
            continue  # the misspelt key says what was meant
        yield issue


def _forbidden(
    value: Any, places: _Places, path: KeyPath = (), *, top: bool = False
) -> Iterator[tuple[KeyPath, Issue]]:
    """Find what no schema allows at any depth."""
    if isinstance(value, Mapping):
        for key, child in value.items():
            here = (*path, key)
            if key == "_target_":
                yield here, places.issue(here, _TARGET, "take it out", key=True)
            elif top and key == "defaults" and len(path) < 2:
                yield here, places.issue(here, _DEFAULTS, "take it out", key=True)
            else:
                yield from _forbidden(child, places, here, top=top)
    elif isinstance(value, list):
        for index, child in enumerate(value):
            yield from _forbidden(child, places, (*path, index), top=top)
    elif value == "???":
        yield path, places.issue(path, _MISSING, f"say {spell(path)}=VALUE, or take the key out")


def _sentences(error: ValidationError, places: _Places) -> Iterator[tuple[KeyPath, str, Issue]]:
    """Say one error of the schema library in our words; one about several keys becomes several faults."""
    path: KeyPath = tuple(error.absolute_path)
    rule: Any = error.schema
    value: Any = error.instance
    asked: Any = error.validator_value
    expected = rule.get("expected") if isinstance(rule, Mapping) else None
    if "propertyNames" in error.relative_schema_path:
        here = (*path, value)
        hint = (_near(value, asked) if error.validator == "enum" else None) or _expect(expected)
        yield here, "key", places.issue(here, f"the key {_short(value)!r} cannot stand here", hint, key=True)
        return
    match error.validator:
        case "additionalProperties":
            for key in value:
                if key not in rule.get("properties", {}):
                    yield (*path, key), "unknown", _unknown(places, path, key, list(rule["properties"]))
        case "required":
            for key in asked:
                if key not in value:
                    hint = _expect(expected) or f"say {spell((*places.prefix, *path, key))}"
                    yield path, f"required {key}", places.issue(path, f"`{key}` is missing", hint)
        case "type":
            yield path, "type", _mistyped(places, path, value, asked, expected)
        case "enum" | "const":
            allowed = asked if error.validator == "enum" else [asked]
            words = ", ".join("null" if item is None else str(item) for item in allowed)
            message = f"found {places.words(path, value)}, expected one of {words}"
            yield path, "enum", places.issue(path, message, _near(value, allowed))
        case "minimum" | "exclusiveMinimum" | "maximum":
            message = f"found {places.words(path, value)}, expected {_BOUNDS[error.validator]} {asked}"
            yield path, "range", places.issue(path, message, None)
        case "minItems" | "minProperties" | "minLength":
            hint = _expect(expected) or "write a value, or take the key out"
            yield path, "empty", places.issue(path, "is empty", hint)
        case "not":
            yield path, "not", places.issue(path, f"expected {expected}", "take one of them out")
        case _:
            message = f"found {places.words(path, value)}, expected {expected or 'another form'}"
            yield path, "form", places.issue(path, message, None)


def _mistyped(places: _Places, path: KeyPath, value: Any, kinds: Any, expected: str | None) -> Issue:
    allowed = [kinds] if isinstance(kinds, str) else list(kinds)
    wanted = expected or " or ".join(_KINDS[kind] for kind in allowed)
    if isinstance(value, bool | int | float) and "string" in allowed:
        kind = "a boolean" if isinstance(value, bool) else "a number"
        words = places.words(path, value)
        reads = "" if words == json.dumps(value, default=str) else f", {value!r}"
        message = f"{words} is {kind} in YAML{reads}; expected {wanted}"
        return places.issue(path, message, f"for the text, {places.quoted(path, value)}")
    container = "a map" if isinstance(value, Mapping) else "a list" if isinstance(value, list) else None
    found = container or places.words(path, value)
    return places.issue(path, f"found {found}, expected {wanted}", None)


def _unknown(places: _Places, path: KeyPath, key: str, known: list[str]) -> Issue:
    hint = _near(key, known) or f"known are {', '.join(known)}"
    return places.issue((*path, key), f"unknown key `{_short(key)}`", hint, key=True)


def _expect(expected: str | None) -> str | None:
    return f"write {expected}" if expected else None


def _near(value: Any, known: Iterable[Any]) -> str | None:
    close = difflib.get_close_matches(str(value), [str(item) for item in known], n=1, cutoff=0.6)
    return f"did you mean {close[0]}?" if close else None


def _short(text: str) -> str:
    line = " ".join(text.split())
    return line if len(line) <= 80 else f"{line[:77]}…"
