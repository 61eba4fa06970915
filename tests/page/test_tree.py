from __future__ import annotations

import re
from collections.abc import Sequence
from typing import TYPE_CHECKING

from kerncfg.applier.report import Report, ReportRow
from kerncfg.page.colours import colours
from kerncfg.page.tree import tree
from tests.page.conftest import outcome, site

if TYPE_CHECKING:
    from kerncfg.page.markup import Markup


def shown(rows: Sequence[ReportRow]) -> Markup:
    return tree(Report(rows=tuple(rows)), colours([outcome(rows)]))


def summaries(found: str) -> list[tuple[str, str, bool]]:
    """Each module that can be unfolded: its name, how many of its sites are swapped, and whether it is open."""
    pattern = r"<details( open)?><summary><b>([^<]*)</b>.*?class=\"count\"[^>]*>([^<]*)<"
    return [(name, count, bool(is_open)) for is_open, name, count in re.findall(pattern, found)]


def test_every_site_is_a_line_with_its_path_its_name_and_what_it_runs() -> None:
    found = shown([site("model.norm"), site("model.act", "SiLU", kernel=None)])
    assert re.findall(r'data-p="([^"]*)" data-g="(\d)"', found) == [("model.norm", "0"), ("model.act", "1")]
    assert re.findall(r'data-name="(\w+)" data-status="(\w+)" data-kernel="([^"]+)"', found) == [
        ("Norm", "swapped", "builtin:Norm"), ("SiLU", "kept", "original"),
    ]  # fmt: skip
    assert '<span class="runs">builtin:Norm</span>' in found
    assert '<span class="runs">kept</span>' in found


def test_modules_that_hold_nothing_but_one_other_are_one_line() -> None:
    found = shown([site("model.text.layers.0.a"), site("model.text.layers.0.b"), site("model.text.layers.1.a")])
    assert [name for name, *_ in summaries(found)] == ["model.text.layers", "0"]
    assert "<b>1.a</b>" in found


def test_of_numbered_modules_the_first_is_open_and_all_count_their_sites() -> None:
    rows = [site(f"layers.{number}.{name}", kernel=kernel) for number in range(12) for name, kernel in
            (("a", "builtin:Norm"), ("b", None))]  # fmt: skip
    found = summaries(shown(rows))
    assert found[0] == ("layers", "12/24", True)
    assert found[1] == ("0", "1/2", True)
    assert {each[1:] for each in found[2:]} == {("1/2", False)}


def test_a_model_of_many_modules_is_closed_where_there_is_no_room() -> None:
    rows = [site(f"layers.{number}.{name}") for number in range(100) for name in "ab"]
    assert [is_open for *_, is_open in summaries(shown(rows))] == [False] * 101


def test_a_site_at_a_module_with_parts_stands_below_it() -> None:
    rows = [site("mlp", "MLP"), site("mlp.act", "SiLU"), site("mlp", "rotary", kind="function")]
    found = shown(rows)
    assert summaries(found) == [("mlp", "3/3", True)]
    assert "<b>itself</b><span>MLP</span>" in found
    assert "<b>rotary()</b><span class" in found  # not its name again


def test_a_site_that_is_the_model_has_a_line() -> None:
    assert "<b>(model)</b>" in shown([site("", "Whole"), site("a.b")])


def test_each_kernel_has_a_colour_and_the_original_none() -> None:
    rows = [site(f"m.{place}", kernel=f"builtin:K{place}") for place in range(9)] + [site("m.last", kernel=None)]
    known = colours([outcome(rows)])
    assert list(known.values()) == ["k0", "k1", "k2", "k3", "k4", "k5", "k6", "k7", "k0"]
    assert "original" not in known
    assert '<i class="swatch hollow"' in shown(rows)
    assert '<i class="swatch dashed"' in shown([site("a", kernel=None, status="off")])
