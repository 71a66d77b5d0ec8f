"""The circuit breaker, against a plain retelling of its rules."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from umbel.errors import ConfigurationError
from umbel.resilience import Backoff, Breaker, Circuit

PAUSE = Backoff(first=1.0, factor=2.0, cap=8.0, jitter=0.0)


def a_breaker(failures: int = 3) -> Breaker:
    return Breaker(failures=failures, pause=PAUSE)


def opened(at: float = 0.0) -> Breaker:
    breaker = a_breaker()
    for _ in range(3):
        assert breaker.allows(at)
        breaker.failed(at)
    return breaker


def test_it_opens_after_failures_in_a_row() -> None:
    breaker = a_breaker()
    for outcome in (breaker.failed, breaker.failed):
        outcome(0.0)
    breaker.succeeded()
    for _ in range(2):
        breaker.failed(0.0)
        assert breaker.state is Circuit.CLOSED
    breaker.failed(0.0)
    assert breaker.state is Circuit.OPEN
    assert not breaker.allows(0.5)


def test_one_may_try_when_the_pause_is_over() -> None:
    breaker = opened()
    assert breaker.allows(1.0)
    assert breaker.state is Circuit.HALF_OPEN
    assert not breaker.allows(1.0), "the others wait for the one"


def test_a_try_that_fails_doubles_the_pause() -> None:
    breaker, now = opened(), 0.0
    for pause in (1.0, 2.0, 4.0, 8.0, 8.0):
        assert not breaker.allows(now + pause - 0.01)
        now += pause
        assert breaker.allows(now)
        breaker.failed(now)


def test_a_try_that_succeeds_closes_it_and_forgets() -> None:
    breaker = opened()
    assert breaker.allows(1.0)
    breaker.succeeded()
    assert breaker.state is Circuit.CLOSED
    breaker.failed(1.0)
    assert breaker.allows(1.0)


def test_a_call_in_progress_when_the_breaker_opens_changes_nothing() -> None:
    breaker = opened()
    breaker.failed(0.9)
    assert breaker.allows(1.0)


def test_how_many_failures_is_checked() -> None:
    with pytest.raises(ConfigurationError, match="failures=0"):
        Breaker(failures=0)


@given(st.lists(st.tuples(st.sampled_from(["ask", "ok", "bad"]), st.floats(0, 3)), max_size=60))
def test_it_never_lets_two_through_and_never_stays_shut(steps: list[tuple[str, float]]) -> None:
    breaker, now, trying = a_breaker(), 0.0, False
    for what, passed in steps:
        now += passed
        was_open = breaker.state is not Circuit.CLOSED
        if what == "ask":
            allowed = breaker.allows(now)
            assert not (allowed and was_open and trying)
            trying = trying or (allowed and was_open)
        elif what == "ok":
            breaker.succeeded()
            trying = False
            assert breaker.state is Circuit.CLOSED
        else:
            breaker.failed(now)
            trying = False
    if breaker.state is Circuit.OPEN:
        assert breaker.allows(now + 8.0)
