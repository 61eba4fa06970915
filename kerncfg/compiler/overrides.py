"""What people type, in Hydra's grammar.

Below kerncfg's own nodes no `+` is needed, ranges and home folders stand bare, a name may hold a `/`, and a
row or mapping given whole replaces what was there. What the command line and a file would read differently is
refused with the line to type.
"""

from __future__ import annotations

import difflib
import functools
import math
import re
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.errors import HydraException

from kerncfg.compiler.brackets import (
    BLANKS,
    IN_QUOTES,
    bare,
    for_shell,
    inner,
    instead,
    pieces,
    quoted,
    spaced,
    texts,
    unclosed,
    unlike_a_file,
    with_quotes,
)
from kerncfg.compiler.reading import kind_of_key, scalar
from kerncfg.compiler.tree import LISTED
from kerncfg.compiler.unfit import unfit
from kerncfg.documents.target import Mode, canonical_device
from kerncfg.errors import ConfigError, Issue
from kerncfg.locations import searches

if TYPE_CHECKING:
    from hydra.core.override_parser.types import Override

    from kerncfg.compiler.tree import Fault, KeyPath

__all__ = ["NODES", "listed", "part_of", "read", "rewrite"]

# The nodes of a composed document; `experiment` is a group only.
NODES = ("enabled", "inherited", "kernels", "fusions", "attention", "trust", "policy", "target", "model", "experiment")
_MAPPINGS = ("kernels", "inherited")
_ROWS = (*_MAPPINGS, "fusions", "attention")  # nodes of rows, which a map replaces when it is given whole
_EMPTY = {"kernels": "kernels=none", "inherited": "kernels@inherited=none"}
_EMPTY |= {"fusions": "fusions=none", "attention": "attention=default"}
_OPTIONAL = ("model", "experiment")  # nodes that a plan does without
_TEXTS = ("revision", "capability", "torch")  # keys of text, besides those of references
_BOUNDS = "policy.verify.thresholds."
_VERSION = "a whole number such as 3, or a range such as '>=2.0,<3.0'"

_FORM = re.compile(r"(?P<sign>~|\+{0,2})(?P<key>[^=\s]*?)\s*(?:=(?P<value>.*))?", re.DOTALL)
_CHOICE = re.compile(r"\s*choice\((?P<inside>.*)\)\s*", re.DOTALL)
_NOT_IN_A_KEY = re.compile(r"[^\w./@-]")
_ESCAPE = re.compile(r"\\[\\()\[\]{}:=, \t]")
_TOKEN = re.compile(r"(?:[^\[\]{}(),:\s]|:(?=[^\[\]{},\s]))+")  # a colon inside a text is a part of it
_QUOTES = "'\""


def rewrite(arguments: Sequence[str], faults: list[Fault] | None = None) -> list[str]:
    """Return overrides in Hydra's grammar; one may become several, and rewriting them again changes nothing.

    With `faults` those that cannot be read are noted there, and left out.

    Raises:
        ConfigError: Arguments that cannot be read; it holds every one of them, with the line to type.
    """
    lines: list[str] = []
    found: list[Fault] = []
    for argument in arguments:
        try:
            lines += _rewritten(argument)
        except ConfigError as error:
            found += [(part_of(argument), issue) for issue in error.issues]
    if found and faults is None:
        raise ConfigError(issue for _, issue in found)
    if faults is not None:
        faults += found
    return lines


def part_of(argument: str) -> KeyPath:
    """Return the part of the document that cannot be judged without an override: a row, another value, or all of it."""
    group, _, package = argument.lstrip("~+").partition("=")[0].strip().partition("@")
    parts = (package or group).split(".")
    if parts == ["experiment"]:
        return (LISTED,)
    if len(parts) == 1 and parts != ["enabled"]:  # of a group; what else is said there can be judged
        return (*parts, LISTED)
    return tuple(parts[:2] if parts[0] in _ROWS else parts)


def read(line: str) -> Override:
    """Return one override of Hydra's grammar as Hydra reads it.

    Raises:
        HydraException: It is not one.
    """
    return _parser().parse_override(line)


@functools.cache
def _parser() -> OverridesParser:
    """Return one parser for all: to make it costs as much as to read a line with it."""
    return OverridesParser.create()


def _rewritten(argument: str) -> list[str]:
    if wrong := unfit(argument):
        raise _refused(argument, *wrong)
    form = _FORM.fullmatch(argument)
    if argument.lstrip("~+")[:1] in ("=", "."):
        raise _refused(argument, "has an empty part in its key", "write key=value, with names between the dots")
    if form is None or not form["key"]:
        raise _refused(argument, "is no override", "write key=value, or ~key to take something out")
    sign, key, value = form["sign"], form["key"], form["value"]
    node = re.split(r"[.@/\[]", key)[0]
    if node not in NODES:
        plain = argument.lstrip("+") if searches(argument) else argument  # it has a value, and people add to it
        return [_foreign(plain, node)]
    if sign == "~":
        return _without(argument, key, value)
    if value is None:
        back = "go back to the inherited value" if node in _MAPPINGS else "take it out"
        cure = f"{key}=org/repo@v1:Name" if _refers(key) else f"{key}=VALUE, or ~{key} to {back}"
        raise _refused(argument, "has no value", f"write {cure}")
    if key in ("inherited", "kernels@inherited"):
        return _group(argument, "kernels@inherited", "inherited", value, bool(sign))
    if "@" in key or node == "experiment" or (key == node and node != "enabled"):
        return _group(argument, key, key, value, bool(sign))
    parts = _parts(argument, key)
    text = _value(argument, key, value)
    replaces = sign == "" and node in _ROWS and text.lstrip().startswith("{") and "/" not in key
    return [*([f"++{'.'.join(parts)}=null"] if replaces else []), *_spelled(argument, parts, text)]


def _foreign(argument: str, node: str) -> str:
    """An override of what is not kerncfg's has to be in Hydra's grammar already."""
    try:
        read(argument)
    except HydraException:
        close = difflib.get_close_matches(node, NODES, n=1)
        plain = "write key=value, with quotes around a value that holds commas, brackets or blanks"
        raise _refused(argument, "is no override", f"did you mean {close[0]}?" if close else plain) from None
    return argument


def _without(argument: str, key: str, value: str | None) -> list[str]:
    """Taking a row out means: back to what it was without one."""
    parts = _parts(argument, key)
    if value is not None:
        raise _refused(argument, "has a value", f"write ~{key}")
    if len(parts) == 1:
        if node := key if key in _EMPTY else "inherited" if key == "kernels@inherited" else "":
            return [_EMPTY[node]]
        if key in _OPTIONAL:
            return [f"~{key}"]
        raise _refused(argument, f"leaves no {key}, which is needed", f"choose another one: {key}=NAME")
    if len(parts) == 2 and parts[0] in _MAPPINGS:
        return _spelled(argument, parts, "inherited")
    if "/" in parts[-1]:
        return _spelled(argument, parts, "false")
    return [_checked(argument, f"~{'.'.join(parts)}")]


def _group(argument: str, group: str, node: str, value: str, adds: bool) -> list[str]:
    """The choice of an option, or the whole node as a map that replaces a mapping unless it `adds`."""
    text = value.strip()
    if text in ("", "null") and group != "experiment":
        empty = f"write {_EMPTY[node].removeprefix('kernels@')}" if node in _EMPTY else f"choose one: {node}=NAME"
        raise _refused(argument, "chooses nothing", empty)
    if text == "null":
        return ["~experiment"]
    if text.startswith("{"):
        if "@" in node or node == "experiment":
            raise _refused(argument, "gives a map where an option is chosen", f"write {group}=NAME")
        line = _checked(argument, f"++{node}={_value(argument, node, value)}")
        emptied = {**_EMPTY, "model": "~model"}
        return [*([emptied[node]] if node in emptied and not adds else []), line]
    line = _checked(argument, f"{group}={value}")
    chosen = read(line)
    if not chosen.is_sweep_override() and not isinstance(chosen.value(), str | list):
        raise _refused(argument, f"{text} is no option's name", f"write {group}=NAME")
    return [line]


def _parts(argument: str, key: str) -> list[str]:
    """Split a key at its dots; from the part that holds a `/` on it is one name."""
    before, slash, after = key.partition("/")
    parts = before.split(".")
    if slash:
        parts[-1] += slash + after
    if not all(parts):
        raise _refused(argument, "has an empty part in its key", "write names with one dot between them")
    for part in parts:
        if not re.fullmatch("0|[1-9][0-9]*", part) and (kind := kind_of_key(part)):
            message = f"the key {part} is {kind} in YAML, expected text"
            row = kind == "a number" and len(parts) > 1 and parts[0] in _ROWS and part == parts[1]
            inside = len(parts) > 2 and parts[0] in _ROWS and part != parts[1] and "when" not in parts
            hint = f"such a key can stand in a file only, as '{part}' with quotes"
            hint = "write a key that a row has, such as cuda or kernel" if inside else hint
            raise _refused(argument, message, f"write a name such as row_{part}" if row else hint)
    return parts


def _spelled(argument: str, parts: list[str], text: str) -> list[str]:
    """A name that Hydra cannot address is put into a map."""
    head, name = parts[:-1], parts[-1]
    if "/" not in name:
        return [_checked(argument, f"++{'.'.join(parts)}={text}")]
    values = ",".join(f"{{{name}:{piece.strip()}}}" for piece in pieces(text))
    return [_checked(argument, f"++{'.'.join(head)}={values}")]


def _value(argument: str, key: str, value: str) -> str:
    """Return a value as Hydra can read it; each piece of a sweep by itself."""
    found = pieces(listed(value))
    if len(found) > 1 and not all(piece.strip(BLANKS) for piece in found):
        line = f"{key}={','.join(piece for piece in found if piece.strip(BLANKS))}"
        raise _refused(argument, "has a comma with nothing beside it", f"write {line}")
    return ",".join(_piece(argument, key, piece) for piece in found)


def listed(value: str) -> str:
    """Return a sweep as a plain list of values, which keeps the quotes that Hydra loses inside choice()."""
    choice = _CHOICE.fullmatch(value)
    return choice["inside"] if choice else value


def _piece(argument: str, key: str, piece: str) -> str:
    text = piece.strip(BLANKS)
    if not argument.startswith("++") and (apart := spaced(text)) != text:
        message = "in a file a ':' with no blank after it is a part of the key"
        raise _refused(argument, message, f'write "{key}={apart}"')
    escape = _ESCAPE.search(IN_QUOTES.sub("", piece))
    if escape and not argument.startswith("++"):  # Hydra's own sweeps say `++key=a\\:b`
        message = f"{escape[0]} is one character on the command line, in a file it would be two"
        raise _refused(argument, message, f"for the text as it stands write {key}={for_shell(text)}")
    if not argument.startswith("++") and (unlike := unlike_a_file(key, text)):
        raise _refused(argument, *unlike)
    try:
        parsed = read(f"k={piece}")
    except HydraException:
        if text[:1] in ("[", "{", "'", '"') or re.match(r"\w+\(", text):
            piece = _bracketed(argument, key, text)
            found = read(f"k={piece}").value()
        else:
            found = text
            piece = quoted(text)
    else:
        if parsed.is_sweep_override():
            return piece
        found = parsed.value()
    _same_as_yaml(argument, key, text, found)
    return piece


def _bracketed(argument: str, key: str, text: str) -> str:
    """Return a list or map with quotes around the texts in it that Hydra cannot read bare.

    Raises:
        ConfigError: It does not close, cannot be read even so, or a file would split a text at its comma.
    """
    if closing := unclosed(text):
        raise _refused(argument, f"the {text[0]} is not closed", f"write {key}={text}{closing}")
    added: list[str] = []
    made = _inside(text, added)
    unclear = any(set(item) & set("'\"[]{}") for item in added)  # where a text ends is anybody's guess
    if text[:1] not in ("[", "{") or unclear or not _reads(made):
        examples = {"[": "[org/a:Name, 'org/b@>=2.0,<3.0:Name']", "{": "{kernel: 'org/a@>=2.0,<3.0:Name'}"}
        whole = f"for a text write {key}={for_shell(text.strip(_QUOTES))}"
        inside = f"quote the texts inside, as in {key}={examples.get(text[0])}"
        raise _refused(argument, f"cannot read {text}", inside if text[0] in examples else whole)
    if split := [item for item in added if "," in item]:
        message = f"in a file the comma in {split[0]} would end the text"
        raise _refused(argument, message, f'write "{key}={made}"')
    return made


def _inside(text: str, added: list[str]) -> str:
    """Quote every text that needs it, and note it in `added`."""
    text = text.strip(BLANKS)
    if _reads(text):
        return text
    if text[:1] == "[" and text[-1:] == "]":
        return f"[{', '.join(_inside(item, added) for item in inner(text))}]"
    if text[:1] == "{" and text[-1:] == "}":
        entries = [item.partition(":") for item in inner(text)]
        made = [f"{_name(name.strip())}: {_inside(value, added) or 'null'}" for name, _, value in entries]
        return f"{{{', '.join(made)}}}"
    if text[:1] in ("[", "{", "'", '"', ""):
        return text
    added.append(text)
    return quoted(text)


def _name(name: str) -> str:
    """Return a key without quotes, in which Hydra reads none, where a file reads the same text."""
    inner = name[1:-1]
    quotes = name[:1] == name[-1:] and name[:1] in _QUOTES and re.fullmatch(r"[\w./-]+", inner)
    return inner if quotes and kind_of_key(inner) is None else name


def _reads(text: str) -> bool:
    try:
        read(f"k=[{text}]" if text[:1] not in ("[", "{") else f"k={text}")
    except HydraException:
        return False
    return True


def _same_as_yaml(argument: str, key: str, text: str, found: Any) -> None:
    """Refuse what a file would read as another value than the command line does."""
    whole = text if isinstance(found, dict | list) else ""
    for value in texts(found):
        alone = text[:1] not in ("'", '"') and value == text
        if alone or (whole and value in bare(value).findall(whole)):
            _differs(argument, key, value, value, whole)
    if whole and not argument.startswith("++"):  # a sweep says `inf` for 61e9540
        for token in _TOKEN.findall(IN_QUOTES.sub("", text)):
            if _reads(token) and not isinstance(typed := read(f"k={token}").value(), str):
                _differs(argument, key, token, typed, whole)
    if isinstance(found, float | bool) or (found is None and text):
        _differs(argument, key, text, found)


def _differs(argument: str, key: str, text: str, found: Any, whole: str = "") -> None:
    """Refuse a text, by itself or inside the `whole` of a list or map, that is typed otherwise in a file."""
    try:
        other = scalar(text, inside=bool(whole))
    except ValueError:
        return  # a file needs quotes there and gives the same text with them
    if key.startswith(_BOUNDS) and not (_finite(other) and _finite(found)):
        return  # no bound is endless, however it is spelled: the schema says what it is
    if text and (type(other), repr(other)) != (type(found), repr(found)):
        if isinstance(other, bool) and key.endswith(".version") and not whole:
            message = f"{text} is a text on the command line and {str(other).lower()} in a file, expected {_VERSION}"
            raise _refused(argument, message, f"write {key}=3")
        here = "a text" if isinstance(found, str) else repr(found)
        there = f"the text {other!r}" if isinstance(other, str) else "a map" if other == {} else repr(other)
        message = f"{text} is {here} on the command line, in a file it would be {there}"
        if whole:
            line = f"{key}={with_quotes(whole, text)}".replace('"', '\\"')
            raise _refused(argument, message, f'write "{line}"')
        refers = _refers(key)
        if refers and (other is False or found is None):
            values = instead(listed(argument.partition("=")[2]), text, "null")
            raise _refused(argument, message, f"write {key}={values}")
        if refers and not isinstance(other, str):
            raise _refused(argument, message, f"name a kernel, as in {key}=org/repo@v1:Name")
        meant = "" if refers or key.rpartition(".")[2] in _TEXTS else _meant(key, other if found == text else found)
        raise _refused(argument, message, f"{'for the text ' * bool(meant)}write {key}={for_shell(text)}{meant}")


def _finite(value: Any) -> bool:
    return not isinstance(value, float) or math.isfinite(value)


def _refers(key: str) -> bool:
    """Say whether a reference is due at a key: that of a row, a device, a mode or a kernel."""
    node, *parts = key.split(".")
    below = ("any", "kernel", *Mode)
    here = all(part in below or part.isdigit() or canonical_device(part) for part in parts[1:])
    return node in _ROWS and bool(parts) and parts[0] != "inherit_mapping" and here


def _meant(key: str, other: Any) -> str:
    """Return how to say what a text is not, where both a file and the command line read it so."""
    if isinstance(other, bool):
        return f", for the other {key}={str(other).lower()}"
    if isinstance(other, float) and math.isinf(other):
        return f", for the number {key}={'-' * (other < 0)}1e999"
    return f", for the number {key}={other!r}" if isinstance(other, int | float) and other == other else ""


def _checked(argument: str, line: str) -> str:
    try:
        read(line)
    except HydraException:
        found = _NOT_IN_A_KEY.search(argument.lstrip("~+").partition("=")[0])
        message = (
            f"{found[0]!r} cannot stand in a key, expected names with dots between them" if found else "is no override"
        )
        hint = "name the row, and say a pattern, version or range as a value, as in kernels.NAME.match.path='…'"
        raise _refused(argument, message, hint) from None
    return line


def _refused(argument: str, message: str, hint: str) -> ConfigError:
    key = argument.lstrip("~+").partition("=")[0].strip()
    return ConfigError([Issue(message=message, path=key, file=f"override: {argument}", hint=hint)])
