"""When a schedule fires: by cron, at an interval, once, or by a function of the application."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime, tzinfo
from typing import Any

import msgspec

from umbel.errors import ConfigurationError
from umbel.schedules.cron import Cron, check_zone

KINDS = ("cron", "every", "at", "calendar")
_MAX_INTERVAL = 10 * 366 * 86_400
_MAX_INSTANT = 253_402_300_799
"""The last second of the year 9999."""

Calendar = Callable[[datetime], datetime | None]
"""Returns the first firing after a time, both with a time zone; None if there is none."""


class Timing(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """When a schedule fires, as it is stored. It has one of the four kinds.

    Raises:
        ConfigurationError: a field is wrong; the text says what to write instead.
    """

    cron: str | None = None
    every: int | None = None
    """Seconds between firings. They are counted from 1970, so that all schedulers agree."""
    phase: int = 0
    """With ``every``: seconds by which all firings are later."""
    at: int | None = None
    """The only firing, in seconds since 1970."""
    calendar: str | None = None
    """The name of the application's function. Only processes that have it can compute times."""
    zone: str = "UTC"

    def __post_init__(self) -> None:
        chosen = [kind for kind in KINDS if getattr(self, kind) is not None]
        if len(chosen) != 1:
            given = " and ".join(chosen) or "none"
            raise ConfigurationError(f"{given} given: give one of {', '.join(KINDS)}")
        zone = check_zone(self.zone)
        if self.every is not None:
            _check_whole("every", self.every, 1, _MAX_INTERVAL)
            _check_whole("phase", self.phase, 0, self.every - 1)
        elif self.phase:
            raise ConfigurationError(f"phase={self.phase!r}: it needs every=...; leave it out")
        if self.at is not None:
            _check_whole("at", self.at, 0, _MAX_INSTANT)
        if self.cron is not None:
            Cron(self.cron, zone)

    @property
    def tzinfo(self) -> tzinfo:
        """The time zone."""
        return check_zone(self.zone)

    def check_fires(self, now: float) -> None:
        """Raise ConfigurationError if a cron expression never fires after ``now``."""
        if self.cron is not None and next_function(self)(int(now)) is None:
            raise ConfigurationError(
                f"cron={self.cron!r}: it never fires within 50 years; correct the days and months"
            )

    def describe(self) -> str:
        """Return it as text for people."""
        if self.cron is not None:
            return f"{self.cron} {self.zone}"
        if self.every is not None:
            return f"every {self.every} s" + (f" + {self.phase} s" if self.phase else "")
        if self.at is not None:
            return f"at {datetime.fromtimestamp(self.at, self.tzinfo).isoformat()}"
        return f"calendar {self.calendar}"


def make_timing(
    *,
    cron: str | None = None,
    every: float | None = None,
    phase: float = 0,
    at: datetime | None = None,
    calendar: Calendar | None = None,
    zone: str | None = None,
) -> Timing:
    """Return the timing that a caller describes. Raise ConfigurationError if it is wrong.

    A date without a zone is in ``zone``.
    """
    if calendar is not None and not callable(calendar):
        raise ConfigurationError(f"calendar={calendar!r:.80}: give a function of a datetime")
    return Timing(
        cron=cron,
        every=_whole("every", every),
        phase=_whole("phase", phase) or 0,
        at=None if at is None else _timestamp(at, zone),
        calendar=None if calendar is None else calendar_name(calendar),
        zone="UTC" if zone is None else zone,
    )


def next_function(timing: Timing, calendar: Calendar | None = None) -> Callable[[int], int | None]:
    """Return the function that computes the first firing after an instant; None if there is none.

    With a calendar it raises what the application's function raises, and ConfigurationError if
    that returns a wrong value.
    """
    if timing.cron is not None:
        return Cron(timing.cron, timing.tzinfo).next_after
    if timing.every is not None:
        every, phase = timing.every, timing.phase
        return lambda instant: _bounded((instant - phase) // every * every + every + phase)
    if timing.at is not None:
        at = timing.at
        return lambda instant: at if at > instant else None
    if calendar is None:
        raise ConfigurationError(f"calendar={timing.calendar!r}: this process has no such function")
    function, zone = calendar, timing.tzinfo
    return lambda instant: _ask_calendar(function, instant, zone)


def calendar_name(calendar: Calendar) -> str:
    """Return the name by which a calendar is stored."""
    module = getattr(calendar, "__module__", "")
    return f"{module}.{getattr(calendar, '__qualname__', type(calendar).__qualname__)}"


def _ask_calendar(function: Calendar, instant: int, zone: tzinfo) -> int | None:
    found: Any = function(datetime.fromtimestamp(instant, zone))
    if found is None:
        return None
    if not isinstance(found, datetime) or found.tzinfo is None:
        raise ConfigurationError(
            f"calendar {calendar_name(function)} returned {found!r:.80}: return a datetime with a"
            " time zone, or None"
        )
    second = int(found.timestamp())
    if second <= instant:
        raise ConfigurationError(
            f"calendar {calendar_name(function)} returned {found.isoformat()}: return a time after"
            " its argument"
        )
    return _bounded(second)


def _bounded(instant: int) -> int | None:
    return instant if instant <= _MAX_INSTANT else None


def _timestamp(at: Any, zone: str | None) -> int:
    if not isinstance(at, datetime):
        raise ConfigurationError(f"at={at!r:.80}: give a datetime")
    aware = at if at.tzinfo is not None else at.replace(tzinfo=check_zone(zone or "UTC"))
    if aware.microsecond:
        raise ConfigurationError(f"at={at!r:.80}: give whole seconds; leave out the microseconds")
    return int((aware - datetime(1970, 1, 1, tzinfo=UTC)).total_seconds())


def _whole(field: str, value: Any) -> int | None:
    """Return a number of whole seconds."""
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, int | float) or value != value // 1:
        raise ConfigurationError(f"{field}={value!r:.80}: give whole seconds, as in {field}=300")
    return int(value)


def _check_whole(field: str, value: int, low: int, high: int) -> None:
    if not low <= value <= high:
        raise ConfigurationError(f"{field}={value!r}: give seconds from {low} to {high:,}")
