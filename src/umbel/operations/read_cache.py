"""Keeps what is expensive to read for a moment, for views that are read again and again."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Hashable
from typing import Any, TypeVar, cast

import anyio

from umbel.clock import Clock

T = TypeVar("T")

_COST_FACTOR = 100
"""A value is kept at least this many times as long as it took to read: a read of 40 ms is repeated
after four seconds, so it takes 1 % of the time of a store, however many are open."""
_MAX_SECONDS = 5.0
"""A slow read makes a value no older than this, or than the caller allows."""


class ReadCache:
    """Values with the time until which they are kept. It keeps nothing until ``enable``."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._is_enabled = False
        self._values: dict[Hashable, tuple[float, Any]] = {}
        self._locks: dict[Hashable, anyio.Lock] = {}

    def enable(self) -> None:
        """Keep values from now on."""
        self._is_enabled = True

    async def get(self, key: Hashable, seconds: float, read: Callable[[], Awaitable[T]]) -> T:
        """Return a value that is kept, or read it and keep it for so many seconds or longer.

        Of several callers at the same time, one reads and the others wait for it.
        """
        if not self._is_enabled:
            return await read()
        async with self._locks.setdefault(key, anyio.Lock()):
            until, value = self._values.get(key, (float("-inf"), None))
            started = self._clock.monotonic()
            if started < until:
                return cast(T, value)
            value = await read()
            now = self._clock.monotonic()
            kept = max(seconds, min(_COST_FACTOR * (now - started), _MAX_SECONDS))
            self._values[key] = now + kept, value
            return value

    def clear(self) -> None:
        """Read everything again, as after a change."""
        self._values.clear()
