"""Cron: every example, a brute-force reference at changes of the clock, and another library."""

from __future__ import annotations

import os
import random
from datetime import UTC, datetime, timedelta
from itertools import islice
from zoneinfo import ZoneInfo, available_timezones

import pytest
from croniter import croniter
from hypothesis import given, settings
from hypothesis import strategies as st

from umbel.errors import ConfigurationError
from umbel.schedules.cron import Cron, check_expression, check_zone

EVERYTHING = bool(os.environ.get("UMBEL_TEST_ALL"))

EXAMPLES = """
Europe/Vienna 2026
30 2 * * * | 03-28 12:00 | 03-29 03:00+02, 03-30 02:30+02, 03-31 02:30+02
0 30 2 * * * | 03-28 12:00 | 03-29 03:00+02, 03-30 02:30+02, 03-31 02:30+02
15,30,45 2 * * * | 03-28 12:00 | 03-29 03:00+02, 03-30 02:15+02, 03-30 02:30+02
*/30 2 * * * | 03-28 12:00 | 03-30 02:00+02, 03-30 02:30+02, 03-31 02:00+02
0 */2 * * * | 03-28 23:30 | 03-29 00:00+01, 03-29 04:00+02, 03-29 06:00+02
0 0-23/2 * * * | 03-28 23:30 | 03-29 00:00+01, 03-29 03:00+02, 03-29 04:00+02
30 2 * * * | 10-24 12:00 | 10-25 02:30+02, 10-26 02:30+01, 10-27 02:30+01
*/30 2 * * * | 10-25 00:00 | 10-25 02:00+02, 10-25 02:30+02, 10-25 02:00+01
45 2 * * * | 10-25 02:40+01 | 10-26 02:45+01, 10-27 02:45+01, 10-28 02:45+01
America/New_York 2026
0 2 * * 0 | 03-07 12:00 | 03-08 03:00-04, 03-15 02:00-04, 03-22 02:00-04
30 1 1 11 * | 10-31 12:00 | 11-01 01:30-04, 2027-11-01 01:30-04, 2028-11-01 01:30-04
America/Santiago 2026
0 0 * * * | 09-05 12:00 | 09-06 01:00-03, 09-07 00:00-03, 09-08 00:00-03
* 0 * * SUN | 09-05 12:00 | 09-13 00:00-03, 09-13 00:01-03, 09-13 00:02-03
Africa/Cairo 2026
0 0 * * FRI | 04-23 12:00 | 04-24 01:00+03, 05-01 00:00+03, 05-08 00:00+03
Australia/Lord_Howe 2026
*/10 5 * * * | 10-04 00:00 | 10-04 05:00+11, 10-04 05:10+11, 10-04 05:20+11
45 1 * * * | 04-04 12:00 | 04-05 01:45+11, 04-06 01:45+10:30, 04-07 01:45+10:30
Pacific/Apia 2011
0 12 * * * | 12-29 13:00 | 12-31 00:00+14, 12-31 12:00+14, 2012-01-01 12:00+14
UTC 2026
0 0 29 2 * | 2096-01-01 00:00 | 2096-02-29 00:00, 2104-02-29 00:00, 2108-02-29 00:00
0 0 * 2 MON#5 | 2020-01-01 00:00 | 2044-02-29 00:00, 2072-02-29 00:00, 2112-02-29 00:00
0 0 L * * | 2028-02-01 00:00 | 2028-02-29 00:00, 2028-03-31 00:00, 2028-04-30 00:00
0 0 LW * * | 01-01 00:00 | 01-30 00:00, 02-27 00:00, 03-31 00:00
0 0 * * 5L | 01-01 00:00 | 01-30 00:00, 02-27 00:00, 03-27 00:00
0 0 13 * 5 | 01-01 00:00 | 01-02 00:00, 01-09 00:00, 01-13 00:00
0 0 */2 * 1 | 01-01 00:00 | 01-05 00:00, 01-19 00:00, 02-09 00:00
0 0 31 2 0 | 01-01 00:00 | 02-01 00:00, 02-08 00:00, 02-15 00:00
"""


def examples() -> list[tuple[str, str, datetime, list[datetime]]]:
    found, zone, year = [], "", ""
    for line in EXAMPLES.strip().splitlines():
        if "|" not in line:
            zone, year = line.split()
            continue
        expression, after, firings = (part.strip() for part in line.split("|"))
        start = moment(after, zone, year)
        found.append(
            (zone, expression, start, [moment(one, zone, year) for one in firings.split(", ")])
        )
    return found


def moment(text: str, zone: str, year: str) -> datetime:
    """Return an instant; without an offset, the first one of that wall time."""
    full = text if text[4] == "-" else f"{year}-{text}"
    parsed = datetime.fromisoformat(full)
    return (parsed if parsed.tzinfo else parsed.replace(tzinfo=ZoneInfo(zone))).astimezone(UTC)


def firings(expression: str, zone: str, after: datetime, count: int) -> list[datetime]:
    cron, found, last = Cron(expression, check_zone(zone)), [], int(after.timestamp())
    for _ in range(count):
        following = cron.next_after(last)
        assert following is not None
        assert following > last
        last = following
        found.append(datetime.fromtimestamp(last, UTC))
    return found


@pytest.mark.parametrize(("zone", "expression", "after", "expected"), examples())
def test_each_example_fires_as_documented(
    zone: str, expression: str, after: datetime, expected: list[datetime]
) -> None:
    assert firings(expression, zone, after, 3) == expected


def test_there_are_all_examples() -> None:
    assert len(examples()) == 25


@pytest.mark.parametrize(
    ("expression", "remedy"),
    [
        ("0 0 * * FRIL", '"5L"'),
        ("0 0 15W * *", "calendar=function"),
        ("0 0 L-3 * *", "calendar=function"),
        ("0 0 ? * *", '"*"'),
        ("0 0 * * SAT-SUN", '"6-7"'),
        ("0 0 * * FRI-MON", '"5-6,0-1"'),
        ("0 22-2 * * *", '"22-23,0-2"'),
        ("H * * * *", "choose a number"),
        ("H/5 * * * *", "choose a number"),
        ("0 0 0 1 1 1 2026", "at=datetime"),
        ("*/90 * * * *", "every=5400"),
        ("0 */36 * * *", "every=129600"),
        ("0 0 L/2 * *", 'write "L"'),
        ("0-0/5 * * * *", '"0/5"'),
        ("60 * * * * *", "leap second"),
        ("0 0 30 2 *", "it never fires"),
        ("0 0 31 4,6,9,11 *", "it never fires"),
        ("61 * * * *", "minute '61': give 0 to 59"),
        ("0 24 * * *", "hour '24': give 0 to 23"),
        ("0 0 0 * *", "day of month '0': give 1 to 31"),
        ("0 0 * 13 *", "month '13': give 1 to 12"),
        ("0 0 * * 8", "weekday '8': give 0 to 7"),
        ("0 0 * * MON#6", "1 to 5"),
        ("*/0 * * * *", "at least 1"),
        ("1,,2 * * * *", "minute ''"),
        ("* * * *", "five fields"),
        ("", "five fields"),
        ("@every 5m", "every=300"),
        ("@reboot", "@app.service"),
        ("@fortnightly", "@weekly"),
        ("٣ * * * *", "ASCII"),
        ("* * * * *" + " " * 300, "255"),
        (7, "as text"),
    ],
)
def test_a_wrong_expression_is_refused_with_the_remedy(expression: str, remedy: str) -> None:
    with pytest.raises(ConfigurationError) as refused:
        check_expression(expression)
    assert str(refused.value).startswith("cron=")
    assert remedy in str(refused.value)


@pytest.mark.parametrize(
    ("given", "same"),
    [
        ("@hourly", "0 * * * *"),
        ("@Daily", "0 0 * * *"),
        ("@weekly", "0 0 * * 0"),
        ("@monthly", "0 0 1 * *"),
        ("@yearly", "0 0 1 1 *"),
        ("0 0 * * 7", "0 0 * * 0"),
        ("0 0 * feb mOn", "0 0 * 2 1"),
        ("5/15 * * * *", "5-59/15 * * * *"),
        ("0 0 * * mon-fri", "0 0 * * 1-5"),
    ],
)
def test_two_ways_to_write_an_expression_are_equal(given: str, same: str) -> None:
    start = datetime(2026, 1, 1, tzinfo=UTC)
    assert firings(given, "UTC", start, 20) == firings(same, "UTC", start, 20)


def test_steps_begin_again_in_each_hour() -> None:
    found = firings("*/7 * * * *", "UTC", datetime(2026, 1, 1, 0, 50, tzinfo=UTC), 2)
    assert [one.minute for one in found] == [56, 0]


def test_an_expression_without_a_match_in_fifty_years_has_no_next_firing() -> None:
    assert Cron("0 0 */3 2 MON#5").next_after(0) is None  # only the 29th can be a fifth Monday
    assert Cron("0 0 29 2 *").next_after(253_402_300_799 - 86_400) is None


def test_the_zone_must_be_known() -> None:
    for wrong in ("Europe/Wien", "", " UTC", "../etc/passwd", "Europe", "a" * 5000, None, 3, "\0"):
        with pytest.raises(ConfigurationError, match="zone="):
            check_zone(wrong)


# --- against a brute-force reference, at changes of the clock ----------------------------------

SAMPLE = (
    "30 2 * * *",
    "0 0 * * *",
    "59 23 * * *",
    "15,45 0-3 * * *",
    "0 0-23/2 * * *",
    "5 1,2,3 * * *",
    "*/30 * * * *",
    "*/7 0-4 * * *",
    "* 2 * * *",
    "0 * * * *",
    "30 */2 * * *",
    "* 0 * * SUN",
    "10 1 */2 * *",
    "0 12 * * *",
    "20 0 1-7 * 0",
    "* * 1,15,31 * *",
)


def transitions(zone: ZoneInfo, first: int, last: int) -> list[datetime]:
    """Return the instants at which the offset changes, to the minute."""
    found, step = [], timedelta(days=7)
    here = datetime(first, 1, 1, tzinfo=UTC)
    while here.year < last:
        low, high = here, here + step
        if low.astimezone(zone).utcoffset() != high.astimezone(zone).utcoffset():
            while high - low > timedelta(minutes=1):
                middle = low + (high - low) / 2
                middle = middle.replace(second=0, microsecond=0)
                same = middle.astimezone(zone).utcoffset() == low.astimezone(zone).utcoffset()
                low, high = (middle, high) if same else (low, middle)
            found.append(high)
        here += step
    return found


def brute_force(expression: str, zone: ZoneInfo, start: datetime, end: datetime) -> set[datetime]:
    """Return all firings in a time by looking at each of its minutes."""
    minute, hour, day, month, weekday = expression.split()
    margin = timedelta(days=2)
    instants = [
        start - margin + timedelta(minutes=n)
        for n in range(int((end - start + 2 * margin) / timedelta(minutes=1)))
    ]
    walls = [one.astimezone(zone).replace(tzinfo=None, fold=0) for one in instants]

    minutes, hours, months = values(minute, 0, 59), values(hour, 0, 23), values(month, 1, 12)
    days, weekdays = values(day, 1, 31), {one % 7 for one in values(weekday, 0, 7)}
    both = day.startswith("*") or weekday.startswith("*")

    def matches(wall: datetime) -> bool:
        if wall.minute not in minutes or wall.hour not in hours or wall.month not in months:
            return False
        fits = wall.day in days, wall.isoweekday() % 7 in weekdays
        return all(fits) if both else any(fits)

    if minute.startswith("*") or hour.startswith("*"):
        found = {one for one, wall in zip(instants, walls, strict=True) if matches(wall)}
    else:
        found, first = set(), {}
        for one, wall in zip(instants, walls, strict=True):
            first.setdefault(wall, one)
        wall, last = min(walls), max(walls)
        while wall <= last:
            if matches(wall):
                behind = (one for one, its in zip(instants, walls, strict=True) if its > wall)
                found.add(first[wall] if wall in first else min(islice(behind, 1)))
            wall += timedelta(minutes=1)
    return {one for one in found if start < one <= end}


def values(field: str, low: int, high: int) -> set[int]:
    found = set()
    for item in field.replace("SUN", "0").split(","):
        span, _, step = item.partition("/")
        first, _, last = (f"{low}-{high}" if span == "*" else span).partition("-")
        end = int(last or (high if step else first))
        found |= set(range(int(first), end + 1, int(step or 1)))
    return found


def sampled_changes() -> list[tuple[str, datetime]]:
    choose = random.Random(22)
    zones = sorted(available_timezones())
    picked = [
        "Australia/Lord_Howe",
        "Pacific/Apia",
        "America/Santiago",
        "Africa/Cairo",
        "America/St_Johns",
        "America/Moncton",
        "Africa/Casablanca",
        "Antarctica/Troll",
    ]
    picked += zones if EVERYTHING else choose.sample(zones, 10)
    found = []
    for name in picked:
        changes = transitions(ZoneInfo(name), 1976, 2036)
        found += [(name, one) for one in choose.sample(changes, min(len(changes), 2))]
    return found


def test_firings_at_changes_of_the_clock_agree_with_a_search_of_every_minute() -> None:
    choose, compared = random.Random(5), 0
    for name, change in sampled_changes():
        zone = ZoneInfo(name)
        start, end = change - timedelta(hours=26), change + timedelta(hours=26)
        for expression in choose.sample(SAMPLE, 4):
            expected = sorted(brute_force(expression, zone, start, end))
            found = firings(expression, name, start, len(expected) + 1)
            assert found[:-1] == expected, (name, expression, change)
            assert found[-1] > end
            # Asked at any moment, not only at a firing.
            for _ in range(5):
                at = start + timedelta(seconds=choose.randrange(int((end - start).total_seconds())))
                following = [one for one in expected if one > at]
                if following:
                    assert firings(expression, name, at, 1) == following[:1], (name, expression, at)
            compared += 1
    assert compared > 30


# --- against another library -------------------------------------------------------------------


@st.composite
def fields(draw: st.DrawFn, low: int, high: int, *, steps: bool = True) -> str:
    kind = draw(st.sampled_from(["*", "one", "list", "range", *(["step"] if steps else [])]))
    one = st.integers(low, high)
    if kind == "*":
        return "*"
    if kind == "one":
        return str(draw(one))
    if kind == "list":
        return ",".join(map(str, sorted(draw(st.sets(one, min_size=1, max_size=4)))))
    first = draw(st.integers(low, high - 1))
    last = draw(st.integers(first + 1, high))
    if kind == "range":
        return f"{first}-{last}"
    return f"{first}-{last}/{draw(st.integers(1, last - first))}"


days = (
    st.tuples(fields(1, 28, steps=False), st.just("*"))
    | st.tuples(st.just("*"), fields(0, 6))
    | st.tuples(st.integers(1, 28).map(str), st.integers(0, 6).map(str))
)


@settings(max_examples=2_000 if EVERYTHING else 150, deadline=None)
@given(
    fields(0, 59),
    fields(0, 23),
    days,
    fields(1, 12),
    st.sampled_from(sorted(available_timezones())),
    st.datetimes(datetime(1976, 1, 1), datetime(2026, 1, 1)),
)
def test_firings_agree_with_croniter_where_no_clock_changes(
    minute: str, hour: str, day: tuple[str, str], month: str, zone: str, start: datetime
) -> None:
    expression = f"{minute} {hour} {day[0]} {month} {day[1]}"
    start = start.replace(microsecond=0)
    aware = start.replace(tzinfo=ZoneInfo(zone)).astimezone(UTC)
    if aware.astimezone(ZoneInfo(zone)).replace(tzinfo=None) != start:
        return  # a skipped time
    (found,) = firings(expression, zone, aware, 1)
    offsets = {
        (one + timedelta(days=days)).astimezone(ZoneInfo(zone)).utcoffset()
        for one in (aware, found)
        for days in (-2, 0, 2)
    }
    expected = croniter(expression, start).get_next(datetime)
    if len(offsets) == 1:
        assert found.astimezone(ZoneInfo(zone)).replace(tzinfo=None) == expected
