"""Formats times, durations and counts for people."""

from __future__ import annotations

from datetime import datetime


def duration(seconds: float) -> str:
    """Return a duration such as ``4 ms``, ``1.2 s``, ``3 min 2 s``, ``2 h 5 min``, ``3 d 4 h``."""
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


def relative_time(seconds: float | None, now: float) -> str:
    """Return a time such as ``3 s ago`` or ``in 5 min``; "" for None."""
    if seconds is None:
        return ""
    if seconds > now + 1:
        return f"in {_coarse(seconds - now)}"
    return "now" if now - seconds < 0.5 else f"{_coarse(now - seconds)} ago"


def local_time(seconds: float) -> str:
    """Return the date and time of day in the local zone, to the millisecond."""
    try:
        return datetime.fromtimestamp(seconds).strftime("%Y-%m-%d %H:%M:%S.%f")[:-3]
    except (ValueError, OverflowError, OSError):
        return f"second {seconds:g}"  # a row written by hand


def count(number: int, noun: str) -> str:
    """Return a number with its noun: ``1 job``, ``3 jobs``."""
    return f"{number:,} {noun}" + ("" if number == 1 else "s")


def _coarse(seconds: float) -> str:
    return f"{round(seconds)} s" if 0.5 <= seconds < 60 else duration(seconds)
