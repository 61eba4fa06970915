from __future__ import annotations

import math
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kerncfg.page.charts import Scale, Strip, chart, ratio_scale, spread_of


def test_a_scale_of_ratios_is_as_wide_below_one_as_above() -> None:
    scale = ratio_scale([0.5, 1.2])
    assert (scale.low, scale.high) == (0.5, 2.0)
    assert [value for value, _ in scale.ticks][::2] == [0.5, 1.0, 2.0]
    assert scale.at(1.0) == 0.5
    assert scale.at(0.5) == 0.0
    assert scale.at(2.0) == 1.0


def test_ticks_below_one_are_fractions_where_these_are_shorter_and_stand_half_way() -> None:
    words = {reach: [word[:-1] for _, word in ratio_scale([reach]).ticks] for reach in (1.25, 1.5, 8.0, 32.0)}
    assert words[1.25] == ["0.8", "1", "1.25"]
    assert words[1.5][:2] == ["0.667", "0.8"]
    assert words[8.0] == ["1/8", "1/2", "1", "2", "8"]
    assert words[32.0] == ["1/32", "1/4", "1", "4", "32"]


@given(st.lists(st.floats(0.01, 100), min_size=1))
def test_every_ratio_of_a_scale_lies_on_it_and_ticks_keep_apart(ratios: list[float]) -> None:
    scale = ratio_scale(ratios)
    assert all(scale.low <= ratio <= scale.high for ratio in ratios)
    places = [scale.at(value) for value, _ in scale.ticks]
    assert places == sorted(places)
    assert all(after - before > 0.1 for before, after in pairwise(places))


def test_what_lies_outside_a_scale_is_at_its_edge() -> None:
    scale = Scale(low=0.1, high=10, ticks=())
    assert [scale.at(value) for value in (-1, 0, 0.01, 1000)] == [0, 0, 0, 1]
    assert math.isclose(scale.at(1), 0.5)


def test_a_spread_is_the_range_on_which_the_verdict_stands() -> None:
    low, high = spread_of(1.5, 0.25)
    assert (low, high) == (1.2, 1.875)
    assert low > 1  # faster: further from 1 than the spread


@pytest.mark.parametrize("scale", [None, Scale(low=0.5, high=2, ticks=((1.0, "1"),))])
def test_a_line_of_a_chart_can_be_read_without_its_drawing(scale: Scale | None) -> None:
    found = chart([Strip(label="a<b", drawing=None, figure="1.2")], scale, label="Speed")
    assert 'aria-label="Speed"' in found
    assert '<div class="label">a&lt;b</div><svg class="strip" aria-hidden="true">' in found
    assert '<div class="figure">1.2</div>' in found
