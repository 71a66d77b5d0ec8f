"""Reading values of a hash. People edit values by hand, so these functions never raise."""

from __future__ import annotations

from math import isfinite, isnan


def text(value: bytes | None, default: str = "") -> str:
    """Return a value as text; invalid bytes are replaced."""
    return default if value is None else value.decode(errors="replace")


def optional_text(value: bytes | None) -> str | None:
    """Return a value as text, or None if there is no value."""
    return None if value is None else value.decode(errors="replace")


def integer(value: bytes | int | None, default: int = 0) -> int:
    """Return a value as an integer, or the default if it is not a number."""
    if value is None:
        return default
    try:
        return int(value)
    except ValueError:
        number = optional_float(value if isinstance(value, bytes) else None)
        return int(number) if number is not None and isfinite(number) else default


def optional_float(value: bytes | None) -> float | None:
    """Return a value as a float, or None if it is not a number."""
    if value is None:
        return None
    try:
        number = float(value)
    except ValueError:
        return None
    return None if isnan(number) else number
