"""A pace keeps its rate, and no period sees more than it may."""

from __future__ import annotations

from bisect import bisect_left

import pytest
from hypothesis import given
from hypothesis import strategies as st

from umbel.resilience import Pace

rates = st.tuples(st.integers(1, 500), st.sampled_from((1.0, 6.0, 60.0, 3600.0)))


def busiest(found: list[float], period: float) -> int:
    """The most that any window of a period has seen."""
    return max((bisect_left(found, at + period) - n for n, at in enumerate(found)), default=0)


@given(
    count=st.integers(1, 200),
    period=st.sampled_from((1.0, 6.0, 60.0, 3600.0)),
    late=st.lists(st.floats(0.0, 3.0), min_size=1, max_size=5),
)
def test_no_period_sees_more_however_late_a_look_is(
    count: int, period: float, late: list[float]
) -> None:
    """Looks for three periods, each as late as the next of a few numbers says, in steps."""
    pace, now, paces = Pace(((count, period),)), 1_800_000_000.0, list[float]()
    found: list[float] = []
    while len(found) < 3 * count + 10:
        many = pace.allowed(paces, now)
        paces = pace.spent(paces, now, many)
        found += [now] * many
        after = late[len(found) % len(late)] * 0.01 * period
        now = max(pace.next_time(paces), now) + (after if len(found) % 7 == 0 else 0.0)
    assert busiest(found, period) <= count


@given(rate=rates, late=st.floats(0.0, 0.5))
def test_looks_that_are_a_little_late_cost_no_start(rate: tuple[int, float], late: float) -> None:
    """A look when the next one is due, and a bit later than that; never more than the credit."""
    count, period = rate
    pace, now, paces = Pace((rate,)), 1_800_000_000.0, list[float]()
    began, seen = now, 0
    while now < began + 5 * period:
        many = pace.allowed(paces, now)
        paces, seen = pace.spent(paces, now, many), seen + many
        now = pace.next_time(paces) + late * min(0.009 * period, period / count)
    assert 0.98 * 5 * count - 1 <= seen <= 5 * count + 1


@given(rate=rates, burst=st.integers(2, 50))
def test_a_burst_starts_at_the_same_moment_and_no_more(rate: tuple[int, float], burst: int) -> None:
    pace = Pace((rate,), burst)
    assert burst <= pace.allowed([], 1_800_000_000.0) <= burst + 1 + rate[0] * 0.01


def test_the_slowest_of_several_rates_counts() -> None:
    pace, now = Pace(((100, 1.0), (1, 60.0))), 1_800_000_000.0
    assert pace.allowed([], now) == 1
    paces = pace.spent([], now, 1)
    assert pace.allowed(paces, now + 1.0) == 0
    assert pace.next_time(paces) == pytest.approx(now + 60.0 * 1.01, abs=1.0)


def test_nothing_spent_changes_nothing() -> None:
    assert Pace(((5, 1.0),)).spent([7.0], 100.0, 0) == [7.0]
