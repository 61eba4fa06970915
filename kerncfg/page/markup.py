"""HTML that cannot be broken by what it says: text is escaped wherever it becomes a part of an element."""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Iterable
from functools import cache
from html import escape
from pathlib import Path
from typing import Any

from kerncfg.terminal import shown

__all__ = ["NONE", "TIMES", "Child", "Markup", "document", "element", "fragment", "table"]


NONE = "\N{EN DASH}"  # stands where there is no figure
TIMES = "\N{MULTIPLICATION SIGN}"


class Markup(str):
    """Text that is HTML already."""

    __slots__ = ()


Child = str | None | Iterable["Child"]

_VOID = ("br", "col", "input", "link", "meta", "wbr")


def element(tag: str, *children: Child, **attributes: Any) -> Markup:
    """Return an element; `class_` is `class`, `data_x` is `data-x`, an attribute of `None` or `False` is left out."""
    words = [tag]
    for name, value in attributes.items():
        if value is None or value is False:
            continue
        said = name.rstrip("_").replace("_", "-")
        words.append(said if value is True else f'{said}="{escape(shown(str(value)))}"')
    end = "" if tag in _VOID else f"</{tag}>"
    return Markup(f"<{' '.join(words)}>{fragment(*children)}{end}")


def fragment(*children: Child) -> Markup:
    """Return children one after the other; those that are no markup are escaped."""
    parts: list[str] = []
    for child in children:
        if isinstance(child, Markup):
            parts.append(child)
        elif isinstance(child, str):
            parts.append(escape(shown(child), quote=False))
        elif child is not None:
            parts += map(fragment, child)
    return Markup("".join(parts))


def table(heads: Iterable[Child], rows: Iterable[Iterable[Child]], *, caption: str) -> Markup:
    """Return a table that scrolls sideways by itself where it is wider than the page; its first column are headings."""
    head = element("tr", [element("th", cell, scope="col") for cell in heads])
    body = []
    for first, *others in rows:
        body.append(element("tr", element("th", first, scope="row"), [element("td", cell) for cell in others]))
    inside = element("table", element("caption", caption), element("thead", head), element("tbody", body))
    return element("div", inside, class_="scroll", tabindex="0", role="region", aria_label=caption)


def document(title: str, *body: Child) -> Markup:
    """Return a whole page, which may load nothing: it brings its style and its script, and refuses any other."""
    style, script = _file("page.css"), _file("page.js")
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    policy = f"default-src 'none'; style-src 'unsafe-inline'; script-src 'sha256-{digest}'; img-src data:"
    head = element(
        "head",
        element("meta", charset="utf-8"),
        element("meta", http_equiv="Content-Security-Policy", content=f"{policy}; base-uri 'none'; form-action 'none'"),
        element("meta", name="viewport", content="width=device-width, initial-scale=1"),
        element("meta", name="color-scheme", content="light dark"),
        element("meta", name="generator", content="kerncfg"),
        element("title", title),
        element("link", rel="icon", href="data:,"),
        element("style", Markup(style)),
    )
    skip = element("a", "To the content", href="#content", class_="skip")
    whole = element("html", head, element("body", skip, body, element("script", Markup(script))), lang="en")
    return Markup(f"<!doctype html>\n{whole}\n")


@cache
def _file(name: str) -> str:
    return Path(__file__).with_name(name).read_text(encoding="utf-8")
