"""Blame: one job at most, and only when it can have been no other."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from umbel.resilience import judge

seen = st.lists(st.integers(0, 100), min_size=1, max_size=60)


@given(deaths=seen)
def test_at_most_one_job_is_blamed(deaths: list[int]) -> None:
    assert sum(verdict.blamed for verdict in judge(deaths)) <= 1


@given(deaths=st.integers(0, 100))
def test_a_job_that_was_alone_is_blamed_and_comes_back_at_once(deaths: int) -> None:
    [verdict] = judge([deaths])
    assert verdict.blamed
    assert verdict.within == 0


@given(others=st.lists(st.integers(0, 1), min_size=1, max_size=60), deaths=st.integers(2, 100))
def test_the_only_suspect_is_blamed(others: list[int], deaths: int) -> None:
    verdicts = judge([*others, deaths])
    assert [verdict.blamed for verdict in verdicts] == [False] * len(others) + [True]


def test_a_first_death_delays_no_job() -> None:
    assert {(v.blamed, v.within) for v in judge([0, 0, 0])} == {(False, 0.0)}


def test_suspects_come_back_further_apart_each_time() -> None:
    windows = [judge([deaths, deaths, 0])[0].within for deaths in range(1, 6)]
    assert windows == [0.25, 0.5, 1.0, 2.0, 4.0]
    assert judge([1, 1, 1, 1])[0].within == 0.75, "more suspects need more room"


@given(deaths=seen)
def test_no_suspect_waits_longer_than_an_hour(deaths: list[int]) -> None:
    assert all(0 <= verdict.within <= 3600 for verdict in judge(deaths))
