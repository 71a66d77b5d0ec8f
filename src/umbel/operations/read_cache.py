"""Keeps what is expensive to read for a moment, for views that look again and again."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Hashable
from typing import Any, TypeVar, cast

import anyio

from umbel.clock import Clock

T = TypeVar("T")

_COST_FACTOR = 100
"""A value is kept at least this many times as long as it took to read: a read of 60 ms is repeated
after six seconds, so it takes 1 % of the time of a store, however many look."""


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
            self._values[key] = now + max(seconds, _COST_FACTOR * (now - started)), value
            return value
