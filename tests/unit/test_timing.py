"""The timing of schedules: intervals, dates and calendars."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any
from zoneinfo import ZoneInfo

import pytest
from hypothesis import given
from hypothesis import strategies as st

from umbel.errors import ConfigurationError
from umbel.schedules.timing import Timing, make_timing, next_function


def second(*parts: int, zone: str = "UTC") -> int:
    return int(datetime(*parts, tzinfo=ZoneInfo(zone)).timestamp())  # type: ignore[misc]


@given(st.integers(1, 10**7), st.data(), st.integers(0, 4 * 10**9))
def test_an_interval_is_counted_from_1970(every: int, data: st.DataObject, instant: int) -> None:
    phase = data.draw(st.integers(0, every - 1))
    found = next_function(make_timing(every=every, phase=phase))(instant)
    assert found is not None
    assert instant < found <= instant + every
    assert found % every == phase


def test_an_interval_does_not_shift_at_a_change_of_the_clock() -> None:
    find, at, found = next_function(make_timing(every=7_200, zone="Europe/Vienna")), 0, []
    at = second(2026, 3, 28, 22)
    for _ in range(4):
        at = find(at) or 0
        found.append(datetime.fromtimestamp(at, UTC).hour)
    assert found == [0, 2, 4, 6]


def test_a_date_fires_once() -> None:
    find = next_function(make_timing(at=datetime(2026, 7, 1, 9), zone="Europe/Vienna"))
    due = second(2026, 7, 1, 7)
    assert find(due - 1) == due
    assert find(due) is None


def next_working_day(after: datetime) -> datetime | None:
    day = after.replace(hour=9, minute=0, second=0)
    while day <= after or day.weekday() > 4:
        day += timedelta(days=1)
    return day


def test_a_calendar_is_a_function_of_the_application_that_gets_local_times() -> None:
    timing = make_timing(calendar=next_working_day, zone="Europe/Vienna")
    assert timing.calendar is not None
    assert timing.calendar.endswith("next_working_day")
    friday = second(2026, 11, 20, 12, zone="Europe/Vienna")
    monday = second(2026, 11, 23, 9, zone="Europe/Vienna")
    assert next_function(timing, next_working_day)(friday) == monday
    with pytest.raises(ConfigurationError, match="no such function"):
        next_function(timing)


@pytest.mark.parametrize(
    ("returned", "remedy"),
    [
        (datetime(2030, 1, 1), "with a time zone"),
        ("tomorrow", "return a datetime"),
        (datetime(2020, 1, 1, tzinfo=UTC), "after its argument"),
    ],
)
def test_what_a_calendar_returns_is_checked(returned: Any, remedy: str) -> None:
    def wrong(after: datetime) -> Any:
        return returned

    find = next_function(make_timing(calendar=wrong), wrong)
    with pytest.raises(ConfigurationError, match=remedy):
        find(second(2026, 1, 1))


@pytest.mark.parametrize(
    ("given", "remedy"),
    [
        ({}, "give one of cron, every, at, calendar"),
        ({"cron": "0 0 * * *", "every": 5}, "cron and every given"),
        ({"every": 0}, "every=0: give seconds from 1"),
        ({"every": 0.5}, "every=0.5: give whole seconds"),
        ({"every": True}, "every=True: give whole seconds"),
        ({"every": float("nan")}, "every=nan: give whole seconds"),
        ({"every": float("inf")}, "every=inf"),
        ({"every": "5m"}, "every='5m': give whole seconds"),
        ({"every": 10**12}, "every="),
        ({"every": 60, "phase": 60}, "phase=60: give seconds from 0 to 59"),
        ({"cron": "0 0 * * *", "phase": 5}, "phase=5: it needs every"),
        ({"at": "2026-01-01"}, "give a datetime"),
        ({"at": datetime(2026, 1, 1, microsecond=5)}, "whole seconds"),
        ({"at": datetime(1930, 1, 1)}, "at=-1262304000: give seconds from 0"),
        ({"calendar": 5}, "calendar=5: give a function"),
        ({"every": 60, "zone": "Mars/Base"}, "zone='Mars/Base'"),
        ({"cron": "0 0 * * FRIL"}, "5L"),
    ],
)
def test_a_wrong_timing_is_refused_with_the_remedy(given: dict[str, Any], remedy: str) -> None:
    with pytest.raises(ConfigurationError) as refused:
        make_timing(**given)
    assert remedy in str(refused.value)


def test_an_expression_that_never_fires_is_refused_at_declaration() -> None:
    with pytest.raises(ConfigurationError, match="never fires within 50 years"):
        make_timing(cron="0 0 */3 2 MON#5").check_fires(0)
    make_timing(cron="0 0 29 2 *").check_fires(0)


def test_the_last_second_of_the_year_9999_is_the_last_firing() -> None:
    assert next_function(Timing(every=5))(253_402_300_799) is None
