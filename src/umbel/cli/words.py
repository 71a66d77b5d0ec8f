"""Times, durations and sizes as people say them."""

from __future__ import annotations

from datetime import UTC, datetime


def duration(seconds: float) -> str:
    """``4 ms``, ``1.2 s``, ``3 min 2 s``, ``2 h 5 min``, ``3 d 4 h``."""
    if seconds == float("inf"):
        return "for ever"
    if seconds < 0.001:
        return f"{seconds * 1e6:.0f} µs"
    if seconds < 1:
        return f"{seconds * 1000:.0f} ms"
    if seconds < 10:
        return f"{seconds:.1f} s"
    whole = round(seconds)
    if whole < 60:
        return f"{whole} s"
    for big, small, size, part in (
        ("min", "s", 60, 1),
        ("h", "min", 3600, 60),
        ("d", "h", 86_400, 3600),
    ):
        if whole < size * (24 if big == "h" else 60) or big == "d":
            rest = whole % size // part
            return f"{whole // size} {big}" + (f" {rest} {small}" if rest else "")
    raise AssertionError("days have no limit")


def ago(moment: float | None, now: float) -> str:
    """``3 s ago``, ``in 5 min``, or nothing."""
    if moment is None:
        return ""
    if moment > now + 1:
        return f"in {_coarse(moment - now)}"
    return "now" if now - moment < 0.5 else f"{_coarse(now - moment)} ago"


def moment(seconds: float | None) -> str | None:
    """ISO 8601 in UTC, for programs; None for a moment that no calendar has."""
    if seconds is None:
        return None
    try:
        when = datetime.fromtimestamp(seconds, UTC)
    except (ValueError, OverflowError, OSError):
        return None
    return when.isoformat(timespec="milliseconds")[:-6] + "Z"


def clock(seconds: float) -> str:
    """Date and time of day in the local zone, to the millisecond."""
    try:
        return datetime.fromtimestamp(seconds).strftime("%Y-%m-%d %H:%M:%S.%f")[:-3]
    except (ValueError, OverflowError, OSError):
        return f"second {seconds:g}"  # a row written by hand: no calendar has it


def count(number: int, noun: str) -> str:
    """``1 job``, ``3 jobs``."""
    return f"{number:,} {noun}" + ("" if number == 1 else "s")


def _coarse(seconds: float) -> str:
    return f"{round(seconds)} s" if 0.5 <= seconds < 60 else duration(seconds)
