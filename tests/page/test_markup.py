from __future__ import annotations

import base64
import hashlib
import re
from html.parser import HTMLParser

from hypothesis import given
from hypothesis import strategies as st

from kerncfg.page.markup import Markup, document, element, fragment, table
from kerncfg.terminal import shown


class _Heard(HTMLParser):
    """What a parser of HTML makes of a text."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.words = ""
        self.feed(text)
        self.close()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))

    def handle_data(self, data: str) -> None:
        self.words += data


@given(st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\r\0")))
def test_any_text_comes_back_as_that_text_and_nothing_else(text: str) -> None:
    heard = _Heard(element("p", text, title=text))
    assert heard.tags == [("p", {"title": shown(text)})]
    assert heard.words == shown(text)


def test_what_is_markup_already_stays_and_lists_are_flattened() -> None:
    inner = element("b", "a < b")
    assert fragment("x & y ", [inner, None, ["z"]]) == "x &amp; y <b>a &lt; b</b>z"
    assert isinstance(fragment("x"), Markup)


def test_attributes_of_nothing_are_left_out_and_true_stands_alone() -> None:
    found = element("li", class_=None, hidden=True, data_p="", open=False, aria_label="x")
    assert found == '<li hidden data-p="" aria-label="x"></li>'


def test_what_can_hold_nothing_has_no_end() -> None:
    assert element("br") == "<br>"
    assert element("input", type="search") == '<input type="search">'


def test_a_table_has_headings_for_rows_and_columns() -> None:
    found = table(["name", "of"], [("a", "b"), ("c", "d")], caption="Things")
    assert found.count('<th scope="col">') == 2
    assert found.count('<th scope="row">') == 2
    assert "<caption>Things</caption>" in found


def test_a_page_permits_its_own_script_by_digest_and_nothing_else() -> None:
    page = document("a & b", element("main"))
    script = re.search(r"<script>(.*)</script>", page, re.S)
    assert script
    digest = base64.b64encode(hashlib.sha256(script[1].encode()).digest()).decode()
    assert (
        f"default-src &#x27;none&#x27;; style-src &#x27;unsafe-inline&#x27;; script-src &#x27;sha256-{digest}" in page
    )
    assert "<title>a &amp; b</title>" in page
    assert not re.search(r"(?:src|href)=\"(?:https?:)?//|url\(|@import", page)
