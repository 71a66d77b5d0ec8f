"""Reads what stands in a hash. People edit values by hand, so nothing here raises."""

from __future__ import annotations

from math import isfinite, isnan


def text(value: bytes | None, usual: str = "") -> str:
    """A text; bytes that are none stand out in it."""
    return usual if value is None else value.decode(errors="replace")


def maybe(value: bytes | None) -> str | None:
    """A text, if there is one."""
    return None if value is None else value.decode(errors="replace")


def whole(value: bytes | int | None, usual: int = 0) -> int:
    """A whole number."""
    if value is None:
        return usual
    try:
        return int(value)
    except ValueError:
        number = moment(value if isinstance(value, bytes) else None)
        return int(number) if number is not None and isfinite(number) else usual


def moment(value: bytes | None) -> float | None:
    """A number, such as a moment, if there is one."""
    if value is None:
        return None
    try:
        number = float(value)
    except ValueError:
        return None
    return None if isnan(number) else number
