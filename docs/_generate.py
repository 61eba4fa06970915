"""Writes what pages take from the code: `reference.md` from schemas, `python.md`, messages in `troubleshooting.md`.

`python docs/_generate.py` writes all; a test fails while they are not up to date.
"""

from __future__ import annotations

import re
import runpy
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from kerncfg.anchors import ANCHORS
from kerncfg.compiler.schema import schema

__all__ = ["python", "reference", "troubleshooting", "write"]

DOCS = Path(__file__).parent

# The schemas in the order of the page, each with where such documents come from.
GROUPS = {
    "config": "The composed document: what `kerncfg show` prints, and what `config=` takes in Python.",
    "kernels": "Files in `kernels/`. The node `kernels` is your mapping, `inherited` the one that it builds on.",
    "fusions": "Files in `fusions/`.",
    "attention": "Files in `attention/`.",
    "trust": "Files in `trust/`.",
    "policy": "Files in `policy/`.",
    "target": "Files in `target/`.",
    "model": "Files in `model/`.",
    "experiment": "Files in `experiment/`, whose first line is `# @package _global_`, and a `config.yaml` of your own.",
}
DOCUMENTS = {
    "lock": "`kerncfg lock`, `lock.save(FILE)`.",
    "lock-check": "`kerncfg lock --check --json`.",
    "fetch": "`kerncfg fetch PLAN --json`.",
    "plan": "`kerncfg plan -o FILE`, `plan.save(FILE)`.",
    "explanation": "`kerncfg explain NAME --json`.",
    "difference": "`kerncfg diff PLAN PLAN --json`.",
    "report": "`report.json` in a run's folder, `bindings.report.to_dict()`.",
    "verification": "`verification.json` in a run's folder.",
    "measurement": "`measurement.json` in a run's folder.",
    "outcome": "`outcome.json` in a run's folder.",
    "comparison": "`kerncfg compare DIR --json`, `kerncfg.compare(DIR).to_dict()`.",
    "validation": "`kerncfg validate --json`.",
    "doctor": "`kerncfg doctor --json`.",
    "translation": "`kerncfg import FILE… --json`.",
    "push": "`kerncfg push … --json`.",
    "pull": "`kerncfg pull … --json`.",
    "completion": "`kerncfg completion SHELL --json`.",
    "schema-names": "`kerncfg schema --json`.",
}

_KINDS = {"string": "text", "object": "map", "array": "list", "boolean": "true or false", "integer": "whole number"}
_BOUNDS = {"minimum": "at least", "exclusiveMinimum": "more than", "maximum": "at most"}
_SAID_OF_A_CANDIDATE = "the keys of a candidate"


def reference() -> str:
    """Return the page of all keys."""
    lines = [
        "# Reference",
        "",
        "Every key of every group and document, from the JSON schemas that check them (`kerncfg schema NAME` prints",
        "one). [The configuration](config.md) explains how they work together.",
    ]
    for title, names in (("Groups", GROUPS), ("Documents that kerncfg writes", DOCUMENTS)):
        lines += ["", f"## {title}"]
        for name, where in names.items():
            lines += ["", *_section(name, where)]
    return "\n".join(lines) + "\n"


def _section(name: str, where: str) -> Iterator[str]:
    found = schema(name)
    parts: Mapping[str, Any] = found.get("$defs", {})
    written = name in DOCUMENTS
    always = " Every key is always there." if written else ""
    yield from (f"### {name}", "", f"{found['description']} {where}{always}")
    if "$ref" in found:
        yield from ("", *_table(found["$ref"].removesuffix(".schema.json"), _whole(found)))
    elif "properties" in found:
        yield from ("", *_table(name, found))
    if rest := found.get("additionalProperties"):
        names = found.get("propertyNames", {}).get("expected", "any text")
        yield from ("", f"Every other key is {_markup(names)}. Its value: {_link(name, rest)}.")
    for part, inside in parts.items():
        yield from ("", f"#### {_heading(name, part)}", "", str(inside["description"]))
        if "properties" in inside:
            yield from ("", *_table(name, inside, parts.get("candidate") if part != "candidate" else None))
        else:
            kind, allowed = _kind(name, inside), _allowed(inside)
            yield from ("", f"Allowed: {allowed or kind}.")


def _whole(found: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return the schema that another one refers to, with what that one asks for besides."""
    base = schema(found["$ref"].removesuffix(".schema.json"))
    inside = {key: rule for key, rule in base["properties"].items() if key not in ("defaults", "hydra")}
    return {"properties": inside, "required": found.get("required", [])}


def _table(name: str, found: Mapping[str, Any], candidate: Mapping[str, Any] | None = None) -> Iterator[str]:
    yield "| key | meaning | type | allowed |"
    yield "|---|---|---|---|"
    shared = candidate["properties"] if candidate else {}
    told = False
    for key, rule, needed in _rows(found):
        if shared and set(shared) <= set(found["properties"]) and rule == shared.get(key):
            if not told:
                link = f"[{_SAID_OF_A_CANDIDATE}](#{_slug(_heading(name, 'candidate'))})"
                keys = ", ".join(f"`{key}`" for key in shared)
                yield f"| {keys} | {link} | | |"
            told = True
            continue
        meaning = _meaning(name, rule) + (" Required." if needed and name not in DOCUMENTS else "")
        yield f"| `{key}` | {_markup(meaning.strip())} | {_kind(name, rule)} | {_allowed(rule)} |"


def _meaning(name: str, rule: Mapping[str, Any]) -> str:
    """Return what a key says of itself, or else what it refers to."""
    if "description" in rule or "$ref" not in rule:
        return str(rule.get("description", ""))
    file, _, part = rule["$ref"].partition("#/$defs/")
    target = schema(file.removesuffix(".schema.json") or name)
    return str((target["$defs"][part] if part else target)["description"])


def _rows(found: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Mapping[str, Any], bool]]:
    """Yield every key with its rule; keys of maps that are described in place stand there with a dot."""
    for key, rule in found["properties"].items():
        yield f"{prefix}{key}", rule, key in found.get("required", ())
        if "properties" in rule:
            yield from _rows(rule, f"{prefix}{key}.")


def _kind(name: str, rule: Mapping[str, Any]) -> str:
    if "$ref" in rule:
        return _link(name, rule)
    if "const" in rule:
        return "number" if isinstance(rule["const"], int) else "text"
    kinds = [rule["type"]] if isinstance(rule.get("type"), str) else list(rule.get("type", ()))
    if not kinds:
        return " or ".join(dict.fromkeys("null" if value is None else "text" for value in rule.get("enum", ())))
    words = " or ".join(_KINDS.get(kind, kind) for kind in kinds)
    inner = rule.get("items") or rule.get("additionalProperties")
    if isinstance(inner, Mapping) and ("$ref" in inner or "type" in inner or "enum" in inner):
        return f"{words} of {_kind(name, inner)}"
    return words


def _allowed(rule: Mapping[str, Any]) -> str:
    if "enum" in rule:
        return ", ".join(f"`{'null' if value is None else value}`" for value in rule["enum"])
    if "const" in rule:
        return f"`{rule['const']}`"
    bounds = [f"{words} {rule[bound]}" for bound, words in _BOUNDS.items() if bound in rule]
    said = [_markup(str(rule["expected"]))] if "expected" in rule else []
    return "; ".join(said or bounds)


def _link(name: str, rule: Mapping[str, Any]) -> str:
    if "$ref" not in rule:
        return _kind(name, rule)
    file, _, part = rule["$ref"].partition("#/$defs/")
    name = file.removesuffix(".schema.json") or name
    return f"[{part.replace('_', ' ') or name}](#{_slug(_heading(name, part) if part else name)})"


def _heading(name: str, part: str) -> str:
    return f"{name}: {part.replace('_', ' ')}"


def _slug(heading: str) -> str:
    return re.sub(r"[^\w -]", "", heading.lower()).replace(" ", "-")


def _markup(text: str) -> str:
    """Return a sentence of a schema in Markdown: what looks like code is shown as such, and no `|` ends a cell."""
    words = re.sub(r"(?<![\w`])(\*\*?)(?= )", r"`\1`", text)
    words = re.sub(r"(?<![\w`'\"])((?:python:)?[\w./~-]+(?:@[\w.]+)?:[A-Z]\w*)", r"`\1`", words)
    return words.replace("|", "\\|").replace("{", "\\{").replace('["', '\\["')


def troubleshooting(page: str) -> str:
    """Return the page with the messages of every section as the code has them."""

    def filled(section: re.Match[str]) -> str:
        messages = ANCHORS.get(_slug(section["heading"]), ())
        return f"### {section['heading']}\n\n```text\n" + "".join(f"{said}\n" for said in messages) + "```\n\n"

    return re.sub(r"^### (?P<heading>.*)\n+```text\n[^`]*?(?:`+[^`\n]+`+[^`]*?)*^```\n+", filled, page, flags=re.M)


def python() -> str:
    """Return the page of all public names."""
    made: str = runpy.run_path(str(DOCS / "_python.py"))["page"]()
    return made


def write() -> None:
    """Write all pages."""
    (DOCS / "reference.md").write_text(reference(), encoding="utf-8")
    (DOCS / "python.md").write_text(python(), encoding="utf-8")
    page = DOCS / "troubleshooting.md"
    page.write_text(troubleshooting(page.read_text("utf-8")), encoding="utf-8")


if __name__ == "__main__":
    write()
