"""Reads durations and times from words on the command line."""

from __future__ import annotations

import re
from datetime import datetime

import click

_UNITS = {"s": 1.0, "m": 60.0, "h": 3600.0, "d": 86_400.0, "w": 604_800.0}


def seconds(_: click.Context, option: click.Parameter, value: str) -> float:
    """Return the seconds of ``90``, ``90s``, ``10m``, ``12h`` or ``7d``. Raises BadParameter."""
    found = _duration(value)
    if found is None:
        raise click.BadParameter(f"{value!r} is not a time: write 90, 90s, 10m, 12h or 7d.")
    return found


def moment(option: str, text: str | None, now: float) -> float | None:
    """Return the time of ``2h`` (so long ago) or of ISO 8601, in seconds. Raises UsageError.

    A time without a zone is a local one.
    """
    if text is None:
        return None
    ago = _duration(text)
    if ago is not None:
        return now - ago
    try:
        return datetime.fromisoformat(text).timestamp()
    except (ValueError, OverflowError, OSError):
        raise click.UsageError(
            f"{option} {text!r:.80} is not a time: write 90s, 30m, 2h or 7d (so long ago),"
            " or 2026-11-18T09:30."
        ) from None


def _duration(text: str) -> float | None:
    found = re.fullmatch(r"(\d{1,12}(?:\.\d+)?)\s*([smhdw]?)", text)
    return None if found is None else float(found[1]) * _UNITS[found[2] or "s"]
