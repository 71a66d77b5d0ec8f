"""Cron expressions: what is accepted, and when they fire in a time zone.

CronSim finds the matching wall times. It is only given wall times without a zone: with a zone it
misses firings at changes of the clock, and at some of them it never returns. This module maps wall
times to instants by the rule of Debian's cron. A *wildcard* expression, whose second, minute or
hour begins with ``*``, fires at every instant whose wall time matches. Every other expression is
*fixed*: each matching wall time fires once; if the clock skips it, at the first instant after the
gap, and if the clock repeats it, in the first pass.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta, tzinfo
from typing import NamedTuple
from zoneinfo import ZoneInfo

from umbel.errors import ConfigurationError

MACROS = {
    "@hourly": "0 * * * *",
    "@daily": "0 0 * * *",
    "@midnight": "0 0 * * *",
    "@weekly": "0 0 * * 0",
    "@monthly": "0 0 1 * *",
    "@yearly": "0 0 1 1 *",
    "@annually": "0 0 1 1 *",
}
_MAX_LENGTH = 255
_DAYS = ["SUN", "MON", "TUE", "WED", "THU", "FRI", "SAT"]
_MONTHS = ["JAN", "FEB", "MAR", "APR", "MAY", "JUN", "JUL", "AUG", "SEP", "OCT", "NOV", "DEC"]
_RANGE = re.compile(r"(\*|[A-Z]+|[0-9]+)(?:-([A-Z]+|[0-9]+))?(?:/([0-9]+))?")
_DAY = timedelta(days=1)
_SECOND = timedelta(seconds=1)


class _Field(NamedTuple):
    name: str
    low: int
    high: int
    names: tuple[str, ...] = ()
    """Names of its values, from ``low`` on."""

    @property
    def size(self) -> int:
        """How many different values it has; 0 and 7 are the same weekday."""
        return 7 if self.name == "weekday" else self.high - self.low + 1


_FIELDS = (
    _Field("second", 0, 59),
    _Field("minute", 0, 59),
    _Field("hour", 0, 23),
    _Field("day of month", 1, 31),
    _Field("month", 1, 12, tuple(_MONTHS)),
    _Field("weekday", 0, 7, tuple(_DAYS)),
)


class Cron:
    """A cron expression of five fields, or of six with seconds first, in a time zone.

    Raises:
        ConfigurationError: the expression is wrong; the text says what to write instead.
    """

    def __init__(self, expression: str, zone: tzinfo = UTC) -> None:
        self._expression = check_expression(expression)
        self._zone = zone
        parts = self._expression.split()
        self._is_wildcard = any(part.startswith("*") for part in parts[:-3])

    def next_after(self, instant: int) -> int | None:
        """Return the first firing after an instant, in seconds since 1970; None if there is none.

        There is none if no wall time of the next 50 years matches, or of the years to 9999.
        """
        try:
            after = datetime.fromtimestamp(instant, UTC)
            found = self._next_wildcard(after) if self._is_wildcard else self._next_fixed(after)
        except (OverflowError, ValueError, OSError):  # the instant, or it, is after the year 9999
            return None
        return None if found is None else int(found.timestamp())

    def _next_fixed(self, after: datetime) -> datetime | None:
        for wall in self._walls(self._local(after)):
            found = self._instants(wall)
            first = min(found) if found else self._gap_end(wall)
            if first > after:
                return first
        return None

    def _next_wildcard(self, after: datetime) -> datetime | None:
        best = self._first_match(self._local(after), after)
        repeat = self._next_repeat(after)
        if repeat is not None and (best is None or repeat <= best):
            again = self._first_match(self._local(repeat) - _SECOND, repeat - _SECOND)
            best = min((one for one in (best, again) if one is not None), default=None)
        return best

    def _first_match(self, wall: datetime, after: datetime) -> datetime | None:
        """Return the first instant after ``after`` of the matching times that follow ``wall``."""
        for match in self._walls(wall):
            found = [instant for instant in self._instants(match) if instant > after]
            if found:
                return min(found)
        return None

    def _next_repeat(self, after: datetime) -> datetime | None:
        """Return when the clock is set back within a day, which repeats times before ``after``."""
        ahead = after + _DAY
        if self._offset(ahead) >= self._offset(after):
            return None
        return self._change_between(after, ahead)

    def _gap_end(self, wall: datetime) -> datetime:
        """Return the first instant after the gap in which the clock skips this wall time."""
        before, behind = (
            wall.replace(tzinfo=self._zone, fold=fold).astimezone(UTC) for fold in (1, 0)
        )
        return self._change_between(before, behind)

    def _change_between(self, early: datetime, late: datetime) -> datetime:
        """Return the first second in which the offset is no longer the one of ``early``."""
        offset = self._offset(early)
        low, high = int(early.timestamp()), int(late.timestamp())
        while high - low > 1:
            middle = (low + high) // 2
            if self._offset(datetime.fromtimestamp(middle, UTC)) == offset:
                low = middle
            else:
                high = middle
        return datetime.fromtimestamp(high, UTC)

    def _instants(self, wall: datetime) -> set[datetime]:
        """Return the instants that have this wall time: none in a gap, two if it is repeated."""
        every = {wall.replace(tzinfo=self._zone, fold=fold).astimezone(UTC) for fold in (0, 1)}
        return {instant for instant in every if self._local(instant) == wall}

    def _local(self, instant: datetime) -> datetime:
        return instant.astimezone(self._zone).replace(tzinfo=None, fold=0)

    def _offset(self, instant: datetime) -> timedelta:
        return instant.astimezone(self._zone).utcoffset() or timedelta()

    def _walls(self, after: datetime) -> Iterator[datetime]:
        """Yield the wall times after this one that match, without end or for 50 years."""
        from cronsim import CronSim  # only processes that schedule need it

        return iter(CronSim(self._expression, after))


def check_zone(name: object) -> tzinfo:
    """Return the time zone of that name. Raise ConfigurationError if the host does not know it."""
    try:
        if isinstance(name, str) and name.strip() == name and name:
            return UTC if name == "UTC" else ZoneInfo(name)
    except (LookupError, ValueError, OSError):  # a folder of the database, or a path outside it
        pass
    raise ConfigurationError(
        f"zone={name!r:.80}: give the name of a time zone that this host has, such as"
        ' "Europe/Vienna" or "UTC"; pip install tzdata adds missing zones'
    )


def check_expression(given: object) -> str:
    """Return an expression in upper case, with macros replaced. Raise ConfigurationError."""
    if not isinstance(given, str):
        raise _refusal(given, 'give an expression as text, as in "0 3 * * *"')
    text = " ".join(given.split())
    if len(given) > _MAX_LENGTH or not text.isascii():
        raise _refusal(given, f"give at most {_MAX_LENGTH} characters of ASCII")
    if text.startswith("@"):
        return _replace_macro(given, text)
    parts = text.upper().split()
    if len(parts) == 7:
        raise _refusal(given, "a year is not supported; for one date give at=datetime(...)")
    if len(parts) not in (5, 6):
        raise _refusal(
            given,
            "give five fields (minute, hour, day of month, month, weekday), or six with seconds"
            ' first, as in "0 3 * * *"',
        )
    for part, field in zip(parts, _FIELDS[-len(parts) :], strict=True):
        for item in part.split(","):
            remedy = _find_fault(item, field)
            if remedy:
                raise _refusal(given, f"{field.name} {item!r}: {remedy}")
    _check_cronsim(given, parts)
    return " ".join(parts)


def _replace_macro(given: str, text: str) -> str:
    if text.lower() in MACROS:
        return MACROS[text.lower()]
    if text.lower().startswith("@every"):
        raise _refusal(given, "give an interval, as in every=300")
    if text.lower() == "@reboot":
        raise _refusal(given, "use @app.service for what runs when a worker starts")
    raise _refusal(given, f"give one of {', '.join(MACROS)}")


def _check_cronsim(given: str, parts: list[str]) -> None:
    from cronsim import CronSim, CronSimError

    try:
        CronSim(" ".join(parts), datetime(2000, 1, 1))
    except CronSimError:  # the form of each field is known to be right
        raise _refusal(
            given, "it never fires: no month in it has such a day; correct the day or the month"
        ) from None


def _refusal(given: object, remedy: str) -> ConfigurationError:
    return ConfigurationError(f"cron={given!r:.120}: {remedy}")


def _find_fault(item: str, field: _Field) -> str | None:
    """Return what to write instead of one item of a field; None if it is right."""
    if item in _special_items(field):
        return None
    found = _RANGE.fullmatch(item)
    if found is None or any(
        text is not None and text != "*" and not text.isdigit() and text not in field.names
        for text in found.groups()[:2]
    ):
        return _suggest(item, field)
    first, last, step = found.groups()
    if first == "*" and last is not None:
        return 'write "*" alone, or a range of two values'
    values = [_value(text, field) for text in (first, last) if text is not None and text != "*"]
    for value in values:
        if not field.low <= value <= field.high:
            if field.name == "second" and value == 60:
                return "there are no leap seconds here; give 0 to 59"
            return f"give {field.low} to {field.high}"
    if len(values) == 2 and values[0] > values[1]:
        return _split_range(first, last, field)
    if step is None:
        return None
    if len(values) == 2 and values[0] == values[1]:
        return f'a step needs a range of several values; write "{first}" or "{first}/{step}"'
    size = values[1] - values[0] + 1 if len(values) == 2 else field.size
    return _find_step_fault(int(step), size, field)


def _find_step_fault(step: int, size: int, field: _Field) -> str | None:
    if step == 0:
        return "give a step of at least 1"
    if step <= size:
        return None
    seconds = {"second": 1, "minute": 60, "hour": 3_600}.get(field.name)
    remedy = f"the step is wider than the {size} values, so it would not be an interval"
    return f"{remedy}; give every={step * seconds}" if seconds else f"{remedy}; give the values"


def _special_items(field: _Field) -> set[str]:
    if field.name == "day of month":
        return {"L", "LW"}
    if field.name != "weekday":
        return set()
    values = [*_DAYS, *map(str, range(8))]
    return {f"{day}L" for day in range(8)} | {f"{one}#{n}" for one in values for n in range(1, 6)}


def _value(text: str, field: _Field) -> int:
    return int(text) if text.isdigit() else field.names.index(text) + field.low


def _split_range(first: str, last: str, field: _Field) -> str:
    """Return how to write a range that passes the end of its field."""
    low, high = _value(first, field), _value(last, field)
    if field.name == "weekday" and high == 0:
        return f'the range ends before it begins; write "{low}-7"'
    most = 6 if field.name == "weekday" else field.high
    parts = (
        f"{one}-{two}" if one != two else str(one) for one, two in ((low, most), (field.low, high))
    )
    return f'the range ends before it begins; write "{",".join(parts)}"'


def _suggest(item: str, field: _Field) -> str:
    """Return what to write instead of an item that other dialects have, or that no dialect has."""
    if item == "?":
        return 'write "*"'
    if item.startswith("H") and not item.startswith("HOUR"):
        return "choose a number; jitter=... spreads the starts"
    if field.name == "weekday" and item[:-1] in _DAYS and item.endswith("L"):
        return f'write "{_DAYS.index(item[:-1])}L"'
    if field.name == "weekday" and item == "L":
        return 'write the weekday, as in "5L" for the last Friday, or "6"'
    if field.name == "weekday" and "#" in item:
        return 'give a weekday and a number from 1 to 5, as in "MON#2"'
    if field.name == "day of month" and re.fullmatch(r"[0-9]+W|L-[0-9]+", item):
        return 'it is not supported; "L" and "LW" are, or compute it with calendar=function'
    if "/" in item and item.partition("/")[0] in _special_items(field):
        return f'it takes no step; write "{item.partition("/")[0]}"'
    names = f", or {field.names[0]} to {field.names[-1]}" if field.names else ""
    return f'give "*", or numbers from {field.low} to {field.high}{names}; lists, ranges and steps'
