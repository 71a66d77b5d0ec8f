"""The axes of charts."""

from __future__ import annotations

import re
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from umbel.dashboard.chart_axes import duration_axis, linear_axis
from umbel.dashboard.chart_drawing import draw_chart


@pytest.mark.parametrize(
    ("values", "texts"),
    [
        ([], ["1 ms", "10 ms", "100 ms", "1 s"]),
        ([0.02, 0.5], ["10 ms", "100 ms", "1 s"]),
        ([0.004, 420.0], ["1 ms", "100 ms", "10 s", "10 min"]),
        ([0.0, 0.02, 45.0], ["≤ 10 ms", "100 ms", "1 s", "10 s", "1 min"]),
        ([0.0004, 0.0006], ["≤ 1 ms", "10 ms"]),
        ([1.0], ["1 s", "10 s"]),
        ([0.001, 9e9], ["1 ms", "10 s", "1 h", "100 d"]),
    ],
)
def test_an_axis_of_durations_has_ticks_that_people_know(
    values: list[float], texts: list[str]
) -> None:
    assert [tick.text for tick in duration_axis(values).ticks] == texts


durations = st.lists(st.floats(0, 1e9), max_size=20)


@given(durations)
def test_no_duration_is_outside_the_chart_and_a_longer_one_is_not_lower(
    values: list[float],
) -> None:
    axis = duration_axis(values)
    heights = [axis.height(value) for value in sorted(values)]
    assert heights == sorted(heights)
    assert all(0.0 <= height <= 1.0 for height in heights)


@given(durations)
def test_the_texts_of_ticks_do_not_overlap(values: list[float]) -> None:
    at = [tick.height for tick in duration_axis(values).ticks]
    assert 2 <= len(at) <= 5
    assert (at[0], at[-1]) == (0.0, 1.0)
    assert all(above - below > 0.13 for below, above in pairwise(at))


def test_ten_times_as_long_is_always_equally_higher() -> None:
    axis = duration_axis([0.01, 10.0])
    steps = [axis.height(10 * value) - axis.height(value) for value in (0.01, 0.03, 0.2, 1.0)]
    assert steps == pytest.approx([1 / 3] * 4)


def test_a_number_is_drawn_where_it_is_between_zero_and_the_top() -> None:
    axis = linear_axis([3.0, 7.0], "s")
    assert [tuple(tick) for tick in axis.ticks] == [(0.0, "0"), (1.0, "8 s")]
    assert axis.height(4.0) == 0.5


def test_a_chart_of_durations_shows_short_and_long_ones() -> None:
    lines = [("p50", "running", [0.02, None, 0.01]), ("p95", "scheduled", [60.0, 60.0, 600.0])]
    chart = draw_chart("Run time", lines, "s", is_duration=True)
    assert re.findall(r'class="tick" x="\S+" y="\S+">([^<]+)<', chart)[:-1] == [
        *("10 ms", "100 ms", "10 s", "10 min")
    ]
    heights = [float(y) for y in re.findall(r'class="line \w+" d="M\S+ ([\d.]+)L', chart)]
    assert heights[0] - heights[-1] > 60  # p50 is not a line at the bottom beside p95
    assert len(set(heights)) == 3
