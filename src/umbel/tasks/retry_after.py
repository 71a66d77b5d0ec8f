"""``raise RetryAfter(30)`` fails an attempt and chooses the delay; HTTP errors may carry one."""

from __future__ import annotations

import re
from datetime import UTC, datetime
from typing import Any

from umbel.errors import ConfigurationError

_MAX_SECONDS = 10_000_000_000.0
"""About three centuries. Databases refuse later times."""
_SECONDS = re.compile(r"[0-9]+(\.[0-9]+)?")


class RetryAfter(Exception):
    """Raised by a task: this attempt has failed, and the next one starts after ``delay`` seconds.

    The error is retried whatever ``Retry.on`` and ``Retry.never`` say. It counts as an attempt, so
    the job is buried when no retries are left.
    """

    def __init__(self, delay: float, reason: str = "") -> None:
        number = isinstance(delay, int | float) and not isinstance(delay, bool)
        if not number or not 0 <= delay <= _MAX_SECONDS:
            raise ConfigurationError(
                f"RetryAfter({delay!r:.80}): give seconds, 0 to {_MAX_SECONDS:,.0f}"
            )
        super().__init__(delay, reason)
        self.delay = delay
        self.reason = reason

    def __str__(self) -> str:
        return self.reason or f"retry after {self.delay:g} s"


def read_retry_after(error: BaseException, now: float) -> float | None:
    """Return the seconds that the Retry-After header of an HTTP error asks for; None without one.

    The headers are those of ``error.response`` (httpx, requests) or of ``error`` (aiohttp, urllib).
    A date is compared with the response's own Date header, because the clocks may differ; without
    a valid one it is compared with ``now``.
    """
    try:
        headers = getattr(getattr(error, "response", None), "headers", None)
        if headers is None:
            headers = getattr(error, "headers", None)
        asked = _header(headers, "Retry-After")
        if asked is None or _SECONDS.fullmatch(asked):
            return None if asked is None else float(asked)
        return max(0.0, _timestamp(asked) - _response_time(headers, now))
    except Exception:  # noqa: BLE001 - a foreign object may raise anything; it then has no header
        return None


def _response_time(headers: Any, now: float) -> float:
    try:
        return _timestamp(_header(headers, "Date") or "")
    except ValueError:  # it has no date, or one that cannot be read
        return now


def _header(headers: Any, name: str) -> str | None:
    for spelled in (name, name.lower()):  # a plain dictionary distinguishes them
        value = headers.get(spelled)
        if isinstance(value, str):
            return value.strip()
    return None


def _timestamp(text: str) -> float:
    from email.utils import parsedate_to_datetime  # imported only when a header has a date

    moment: datetime = parsedate_to_datetime(text)
    return moment.replace(tzinfo=moment.tzinfo or UTC).timestamp()
