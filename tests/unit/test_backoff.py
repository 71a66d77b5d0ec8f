"""Backoff: waits that grow, never past their cap, the same for the same job."""

from __future__ import annotations

import math
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from umbel.errors import ConfigurationError
from umbel.resilience import Backoff, spread

seconds = st.floats(0, 1e6)
backoffs = st.builds(
    Backoff,
    first=seconds,
    factor=st.floats(1, 1e9),
    cap=seconds,
    jitter=st.floats(0, 1),
)


@given(backoff=backoffs, tries=st.integers(-5, 10_000), key=st.text())
def test_a_wait_is_never_negative_and_never_above_the_cap(
    backoff: Backoff, tries: int, key: str
) -> None:
    wait = backoff.delay(tries, key)
    assert math.isfinite(wait)
    assert 0 <= wait <= backoff.cap


@given(backoff=backoffs, tries=st.integers(1, 1000), key=st.text())
def test_the_same_job_waits_the_same_time(backoff: Backoff, tries: int, key: str) -> None:
    assert backoff.delay(tries, key) == backoff.delay(tries, key)


def test_without_jitter_waits_double_up_to_the_cap() -> None:
    backoff = Backoff(first=1, factor=2, cap=10, jitter=0)
    assert [backoff.delay(tries) for tries in range(1, 7)] == [1, 2, 4, 8, 10, 10]


@given(tries=st.integers(1, 50), key=st.text())
def test_jitter_shortens_by_its_share_at_most(tries: int, key: str) -> None:
    full = Backoff(first=10, factor=1, jitter=0).delay(tries, key)
    assert full * 0.8 <= Backoff(first=10, factor=1, jitter=0.2).delay(tries, key) <= full


def test_different_jobs_wait_differently() -> None:
    backoff = Backoff(first=100, jitter=0.5)
    assert len({backoff.delay(1, str(job)) for job in range(100)}) > 90


@given(key=st.text())
def test_spread_is_a_share(key: str) -> None:
    assert 0 <= spread(key) < 1


@pytest.mark.parametrize(
    ("field", "value"),
    [
        *(("first", bad) for bad in (-1, math.inf, math.nan)),
        *(("cap", bad) for bad in (-1, math.inf, math.nan)),
        *(("factor", bad) for bad in (0, 0.5, math.inf, math.nan)),
        *(("jitter", bad) for bad in (-0.1, 1.1, math.nan)),
    ],
)
def test_a_wrong_number_is_named(field: str, value: Any) -> None:
    with pytest.raises(ConfigurationError, match=f"^{field}="):
        Backoff(**{field: value})
