"""A document against its schema: every fault at once, each in a sentence of our own."""

from __future__ import annotations

import functools
import json
import math
import re
from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from jsonschema import Draft202012Validator
from jsonschema.validators import extend

from kerncfg.compiler.assign import fault, near
from kerncfg.compiler.brackets import for_shell
from kerncfg.compiler.tree import KeyPath, Origins, spell
from kerncfg.errors import ConfigError, Issue
from kerncfg.locations import schemas

if TYPE_CHECKING:
    from jsonschema.exceptions import ValidationError

__all__ = ["Finding", "faults", "names", "schema", "validate"]

Finding = tuple[KeyPath, str, Issue]  # where a fault is, which rule it breaks, and its sentence

_ENDING = ".schema.json"
_KINDS = {"string": "text", "object": "a map", "array": "a list", "boolean": "true or false", "null": "null"}
_KINDS |= {"integer": "a whole number", "number": "a finite number"}
_BOUNDS = {"minimum": "at least", "exclusiveMinimum": "more than", "maximum": "at most"}
_KIND: Mapping[type, str] = {dict: "map", list: "list"}
_YES = {"true", "yes", "on", "y", "1"}
_TARGET = "`_target_` is refused: kerncfg never builds objects from a configuration"
_OF_MODEL = "for a model of your own write model=\"{factory: 'python:package.module:function'}\""
_OF_KERNEL = "name a kernel, as in kernel: python:package.module:Name"
_ROWS = ("kernels", "inherited", "fusions", "attention")
_REFERENCES = (
    "a reference such as org/repo@v1:Name",
    "text, null, a map, or a list in order of preference",
    "text or a map",
    "sdpa, eager, flash_attention_2 or a reference such as org/repo@v1",
)
_INSTEAD = {**dict.fromkeys(_ROWS, _OF_KERNEL), "model": _OF_MODEL}
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
    if found := faults(document, name, origins=origins, prefix=prefix):
        issues = [issue for _, _, issue in found]
        raise ConfigError(sorted(issues, key=lambda issue: (issue.file or "", issue.line or 0, issue.column or 0)))


def faults(
    document: Any, name: str = "config", *, origins: Origins | None = None, prefix: KeyPath = ()
) -> list[Finding]:
    """Return every fault of a document, each with its path below `prefix`."""
    return list(_faults(document, name, _Places(origins or Origins.argument(), prefix)))


class _Places:
    """Where things in the document stand, and how their author wrote them."""

    def __init__(self, origins: Origins, prefix: KeyPath) -> None:
        self.origins = origins
        self.prefix = prefix

    def issue(self, path: KeyPath, message: str, hint: str | None, *, key: bool = False) -> Issue:
        return self.origins.issue((*self.prefix, *path), message, hint=hint, key=key)

    def lacks(self, path: KeyPath, key: str, cure: str | None) -> Issue:
        """Say that a key is missing: in the map, or because an override took it out."""
        name = self.spelled((*path, key))
        if argument := self.origins.taken.get((*self.prefix, *path, key)):
            return fault(argument, f"`{key}` is missing", f"leave {argument} out, or write {name}=VALUE")
        return self.issue(path, f"`{key}` is missing", cure or f"say {name}=VALUE")

    def typed(self, path: KeyPath) -> bool:
        """Say whether a value was said by an override."""
        origin = self.origins.at((*self.prefix, *path))
        return origin is not None and origin.kind == "override"

    def words(self, path: KeyPath, value: Any) -> str:
        """Return a value as its author wrote it; text is in quotes."""
        if isinstance(value, Mapping | list):
            return ("a map" if isinstance(value, Mapping) else "a list") if value else f"an empty {_KIND[type(value)]}"
        if isinstance(value, str):
            return f"'{_short(value)}'" if value else "an empty text"
        origin = self.origins.at((*self.prefix, *path))
        return _short(origin.text if origin and origin.text else json.dumps(value, default=str))

    def line(self, path: KeyPath, text: str) -> str:
        """Return what to write where a value stands, so that it becomes `text`."""
        if self.typed(path):
            return f"write {self.spelled(path)}={text}"
        return f"write {path[-1]}: {text}" if path and isinstance(path[-1], str) else f"write {text}"

    def spelled(self, path: KeyPath) -> str:
        """Return a path as it is typed."""
        return spell((*self.prefix, *path))

    def quoted(self, path: KeyPath, words: str) -> str:
        """Return how to write characters so that they stay text."""
        return self.line(path, for_shell(words) if self.typed(path) else f"'{words}'")


def _if(validator: Any, asked: Any, value: Any, rule: Any) -> Iterator[ValidationError]:
    """The keyword `if`, without a validator of its own where all that is asked is a type."""
    if len(asked) == 1 and "type" in asked:
        holds = validator.is_type(value, asked["type"])
    else:
        holds = validator.evolve(schema=asked).is_valid(value)
    branch = "then" if holds else "else"
    if branch in rule:
        yield from validator.descend(value, rule[branch], schema_path=branch)


def _all_of(validator: Any, parts: Any, value: Any, rule: Any) -> Iterator[ValidationError]:
    """The keyword `allOf`, past the parts that are for values of another type: those are most of our schemas'."""
    for index, part in enumerate(parts):
        asked = part.get("if")
        if asked is None or len(asked) > 1 or "type" not in asked or part.keys() != {"if", "then"}:
            yield from validator.descend(value, part, schema_path=index)
        elif validator.is_type(value, asked["type"]):
            yield from validator.descend(value, part["then"], schema_path=index)


def _finite(checker: Any, value: Any) -> bool:
    """The type `number`: infinity and not-a-number are none, in JSON and as a bound alike."""
    return isinstance(value, int | float) and not isinstance(value, bool) and abs(value) < math.inf


def _whole(checker: Any, value: Any) -> bool:
    """The type `integer`: 3.0 is none, which JSON Schema takes for one."""
    return isinstance(value, int) and not isinstance(value, bool)


_Validator: Any = extend(  # type: ignore[no-untyped-call]
    Draft202012Validator,
    {"if": _if, "allOf": _all_of},
    type_checker=Draft202012Validator.TYPE_CHECKER.redefine_many({"number": _finite, "integer": _whole}),
)


@functools.cache
def _validator(name: str) -> Draft202012Validator:
    circular = {part: found for known in names() for part, found in _circular(known).items()}
    found: Draft202012Validator = _Validator({**_without_references(schema(name), name), "$defs": circular})
    return found


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
    said = {key: value for key, value in node.items() if key not in ("$ref", "$defs", "$schema")}
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
        return {"$ref": f"#/$defs/{part}"}  # the validator holds the circular ones of every schema
    found = schema(name)
    return _without_references(found["$defs"][part] if part else found, name)


def _faults(document: Any, name: str, places: _Places) -> Iterator[Finding]:
    untold = list(_not_text(document, places))
    yield from untold
    if untold:
        document = _with_text_keys(document)
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
        yield path, keyword, issue


def _with_text_keys(value: Any) -> Any:
    """Return a document without the keys that are no text."""
    if isinstance(value, Mapping):
        return {key: _with_text_keys(child) for key, child in value.items() if isinstance(key, str)}
    return [_with_text_keys(child) for child in value] if isinstance(value, list) else value


def _not_text(value: Any, places: _Places, path: KeyPath = ()) -> Iterator[Finding]:
    """Find the keys of a document given as data that are not text; no file has them."""
    if isinstance(value, Mapping):
        for key, child in value.items():
            if not isinstance(key, str):
                message = f"the key {key!r} is a {type(key).__name__}, expected text"
                here = (*path, str(key))
                yield here, "text", places.issue(here, message, f"write '{key}' with quotes", key=True)
            yield from _not_text(child, places, (*path, str(key)))
    elif isinstance(value, list):
        for index, child in enumerate(value):
            yield from _not_text(child, places, (*path, index))


def _forbidden(
    value: Any, places: _Places, path: KeyPath = (), *, top: bool = False
) -> Iterator[tuple[KeyPath, Issue]]:
    """Find what no schema allows at any depth."""
    if isinstance(value, Mapping):
        for key, child in value.items():
            here = (*path, key)
            if key == "_target_":
                yield (
                    here,
                    places.issue(here, _TARGET, _INSTEAD.get(str((*places.prefix, *here)[0]), "take it out"), key=True),
                )
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
    cure: str | None = rule.get("cure")
    found = places.words(path, value)
    if "propertyNames" in error.relative_schema_path:
        message = f"the key '{_short(value)}' cannot stand here, expected {rule['expected']}"
        hint = (near(value, asked) if error.validator == "enum" else None) or cure
        yield (*path, value), "key", places.issue((*path, value), message, hint, key=True)
        return
    match error.validator:
        case "additionalProperties":
            for key in value:
                if key not in rule.get("properties", {}):
                    yield (*path, key), "unknown", _unknown(places, path, key, list(rule["properties"]))
        case "required":
            for key in asked:
                if key not in value:
                    yield path, f"required {key}", places.lacks(path, key, cure)
        case "type":
            yield path, "type", _mistyped(places, path, value, rule)
        case "enum" | "const":
            allowed = [
                "null" if item is None else str(item) for item in (asked if error.validator == "enum" else [asked])
            ]
            message = f"found {found}, expected one of {', '.join(allowed)}"
            yield path, "enum", places.issue(path, message, near(str(value), allowed) or places.line(path, allowed[0]))
        case "minimum" | "exclusiveMinimum" | "maximum":
            message = f"found {found}, expected {_BOUNDS[error.validator]} {asked}"
            least = 1 if error.validator == "exclusiveMinimum" else asked
            yield path, "range", places.issue(path, message, f"{places.line(path, str(least))}, for example")
        case "minItems" | "minProperties" | "minLength":
            message = f"found {found}, expected {rule.get('expected', 'a value')}"
            yield path, "empty", places.issue(path, message, cure or "write a value, or take the key out")
        case "not":
            both = " and ".join(asked["required"])
            hint = cure and _of_two(places, path, value, asked["required"], cure)
            yield path, "not", _clash(places, path, asked["required"], f"found both {both}, expected one of them", hint)
        case _:
            wanted = rule.get("expected", "another form")
            hint = cure or _compared(places, path, value, wanted) or f"write {wanted}"
            yield path, "form", places.issue(path, f"found {found}, expected {wanted}", hint)


def _clash(places: _Places, path: KeyPath, both: list[str], message: str, hint: str | None) -> Issue:
    """Say that two keys stand in one map: where an override said one of them, which is the one to mend."""
    typed = [(*path, key) for key in both if places.typed((*path, key))]
    issue = places.issue(typed[-1] if typed else path, message, hint)
    return replace(issue, path=places.spelled(path))


def _of_two(places: _Places, path: KeyPath, value: Any, both: list[str], cure: str) -> str:
    """Return the cure with the key that an override said, or else the last, and its value."""
    key = next((key for key in both if places.typed((*path, key))), both[-1])
    words = str(value[key]) if isinstance(value, Mapping) else "…"  # the library finds no key missing in a text
    return cure.replace("KEY", key).replace("VALUE", words)


def _mistyped(places: _Places, path: KeyPath, value: Any, rule: Mapping[str, Any]) -> Issue:
    allowed = [rule["type"]] if isinstance(rule["type"], str) else list(rule["type"])
    wanted = rule.get("expected") or " or ".join(_KINDS[kind] for kind in allowed)
    words = places.words(path, value)
    scalar = isinstance(value, bool | int | float)
    if scalar and "string" in allowed:
        kind = "a boolean" if isinstance(value, bool) else "a number"
        reads = "" if isinstance(value, bool) or words == json.dumps(value) else f" ({value!r})"
        where = "" if places.typed(path) else " in YAML"
        hint = _compared(places, path, value, wanted)
        if not hint and wanted in _REFERENCES and value is not False:
            hint = f"name a kernel, as in {places.line(path, 'org/repo@v1:Name').removeprefix('write ')}"
        if not hint and value is False and "null" in allowed:
            row = (*places.prefix, *path)[:-1] in ((), *((node,) for node in _ROWS))
            off = "" if places.typed(path) else f"to switch {'the row' if row else 'it'} off "
            hint = off + places.line(path, "null")
        if not hint:
            hint = "for the text " * isinstance(value, bool) + places.quoted(path, words)
        return places.issue(path, f"{words} is {kind}{where}{reads}, expected {wanted}", hint)
    hint = rule.get("cure") or _instead(places, path, value, allowed, rule)
    return places.issue(path, f"found {words}, expected {wanted}", hint)


def _instead(places: _Places, path: KeyPath, value: Any, allowed: list[str], rule: Mapping[str, Any]) -> str:
    """Return the line with a value of an allowed kind in the place of another, the nearest that can be told."""
    if "array" in allowed and isinstance(value, str):
        return places.line(path, f"[{value}]" if places.typed(path) else f"['{value}']")
    if "boolean" in allowed:
        return places.line(path, "true" if str(value).lower() in _YES else "false")
    number = str(rule.get("minimum", 1))
    example = {"integer": number, "number": number, "object": "{KEY: VALUE}", "array": "[VALUE]"}
    return places.line(path, example.get(allowed[0], "TEXT"))


def _compared(places: _Places, path: KeyPath, value: Any, wanted: str) -> str | None:
    """Return the line that makes comparisons of a bare version, where comparisons are what is wanted."""
    if "'>=2.0,<3.0'" in wanted and isinstance(value, bool):
        return places.line(path, "3")
    if ">=2.0,<3.0" not in wanted:
        return None
    words = value if isinstance(value, str) else places.words(path, value)
    if path[-1] == "version" and words.isdigit():
        return f"{places.line(path, words)} without quotes for the branch v{words}"
    return places.quoted(path, f"=={words}") if re.fullmatch(r"[0-9]+(\.[0-9]+)*", words) else None


def _unknown(places: _Places, path: KeyPath, key: str, known: list[str]) -> Issue:
    message = f"unknown key `{_short(key)}`"
    name, colon, value = key.partition(":")
    split = f"write {name}: {value}, with a blank after the ':'" if colon and name in known else None
    hint = split or near(key, known) or f"known are {', '.join(known)}"
    return places.issue((*path, key), message, hint, key=True)


def _short(text: str) -> str:
    line = " ".join(text.split())
    return line if len(line) <= 80 else f"{line[:77]}…"
