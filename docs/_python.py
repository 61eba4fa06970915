"""Makes `python.md`, the public names of the package with their signatures and docstrings, for `_generate.py`."""

from __future__ import annotations

import inspect
import re
from collections.abc import Iterator
from enum import Enum
from typing import Any

import kerncfg
from kerncfg.trainer import KernelsCallback

__all__ = ["page"]

_PARTS = re.compile(r"^(Args|Raises|Returns|Yields):\n((?:(?:    .*)?\n?)+)", re.M)
_ENTRY = re.compile(r"^    (\w+): ((?:.*)(?:\n {8}.*)*)", re.M)


def page() -> str:
    """Return the page."""
    names = {name: getattr(kerncfg, name) for name in kerncfg.__all__}
    errors = {name: value for name, value in names.items() if isinstance(value, type) and issubclass(value, Exception)}
    functions = {name: value for name, value in names.items() if inspect.isfunction(value)}
    classes = {name: value for name, value in names.items() if name not in errors and name not in functions}
    lines = [
        "# Python",
        "",
        "Every public name with its docstring. `import kerncfg` imports neither PyTorch nor Hydra; a name is loaded",
        "when it is first used. What documents hold is in the [reference](reference.md).",
    ]
    lines += ["", "## Functions"]
    for name, value in functions.items():
        lines += ["", *_callable(f"kerncfg.{name}", value, "###")]
    lines += ["", "## Classes"]
    for name, value in {**classes, "trainer.KernelsCallback": KernelsCallback}.items():
        lines += ["", *_class(f"kerncfg.{name}", value)]
    lines += ["", "## Errors", "", "| error | is raised when |", "|---|---|"]
    lines += [f"| `{name}`, a `{value.__mro__[1].__name__}` | {_first(value)} |" for name, value in errors.items()]
    return "\n".join(lines) + "\n"


def _class(name: str, value: type) -> Iterator[str]:
    yield from (f"### {name}", "", *_prose(value))
    if issubclass(value, Enum):
        yield from ("", "Values: " + ", ".join(f"`{each.value}`" for each in value) + ".")
        return
    for attribute, member in vars(value).items():
        if attribute.startswith(("_", "on_")) or not inspect.getdoc(member):
            continue
        function = getattr(member, "__func__", member)
        if inspect.isfunction(function):
            yield from ("", *_callable(f"{name.rpartition('.')[2]}.{attribute}", function, "####"))
        elif isinstance(member, property) or type(member).__name__ == "cached_property":
            yield from ("", f"#### {name.rpartition('.')[2]}.{attribute}", "", *_prose(member))


def _callable(name: str, function: Any, level: str) -> Iterator[str]:
    given = inspect.signature(inspect.unwrap(function))
    own = [one for key, one in given.parameters.items() if key not in ("self", "cls")]
    short = name.removeprefix("kerncfg.")
    said = f"{short}{given.replace(parameters=own)}".replace("'", "") if len(own) < 3 else _long(short, own, given)
    yield from (f"{level} {name}", "", "```text", said, "```", "", *_prose(function))


def _long(name: str, parameters: list[inspect.Parameter], given: inspect.Signature) -> str:
    lines: list[str] = []
    starred = False
    for one in parameters:
        if one.kind is one.KEYWORD_ONLY and not starred:
            lines.append("*") if not any(line.startswith("*") for line in lines) else None
            starred = True
        lines.append(re.sub(r"<function .*>", "…", str(one)).replace("'", ""))
    end = "" if given.return_annotation is given.empty else f" -> {given.return_annotation}"
    return f"{name}(\n" + "".join(f"    {line},\n" for line in lines) + f"){end}"


def _prose(value: Any) -> Iterator[str]:
    """Return a docstring in Markdown: arguments and errors are lists."""
    text = inspect.getdoc(value) or ""
    yield _PARTS.sub("", f"{text}\n").strip()
    for part, body in _PARTS.findall(f"{text}\n"):
        yield from ("", f"{part}:" if part != "Args" else "Arguments:", "")
        yield from (f"- `{name}`: {' '.join(said.split())}" for name, said in _ENTRY.findall(body))


def _first(value: Any) -> str:
    return (inspect.getdoc(value) or "").partition("\n")[0]
