"""Exponential backoff: growing delays between tries."""

from __future__ import annotations

import zlib

import msgspec

from umbel.errors import ConfigurationError

_MAX_SECONDS = 10_000_000_000.0
"""About three centuries: databases refuse a later time."""


def spread(key: str) -> float:
    """Return a number from 0 to below 1 that is always the same for a key.

    Jitter only has to differ between jobs. A hash does that and keeps every decision repeatable.
    """
    return zlib.crc32(key.encode()) / 2**32


class Backoff(msgspec.Struct, frozen=True, kw_only=True):
    """The delay is ``first``, times ``factor`` after each try, and at most ``cap``.

    Jitter makes it shorter, by up to the share ``jitter``.
    """

    first: float = 1.0
    factor: float = 2.0
    cap: float = 300.0
    jitter: float = 0.2

    def __post_init__(self) -> None:
        for name in ("first", "cap"):
            if not 0 <= getattr(self, name) <= _MAX_SECONDS:
                given = f"{name}={getattr(self, name)!r:.80}"
                raise ConfigurationError(f"{given}: give seconds, 0 to {_MAX_SECONDS:.0f}")
        if not 1 <= self.factor < float("inf"):
            given = f"factor={self.factor!r:.80}"
            raise ConfigurationError(f"{given}: give 1 (steady) or more (growing)")
        if not 0 <= self.jitter <= 1:
            raise ConfigurationError(f"jitter={self.jitter!r:.80}: give a share from 0 to 1")

    def delay(self, tries: int, key: str = "") -> float:
        """Return the seconds to wait after this many failed tries, with jitter by ``key``."""
        try:
            grown = self.first * self.factor ** max(tries - 1, 0)
        except OverflowError:
            grown = self.cap if self.first else 0.0
        return min(grown, self.cap) * (1 - self.jitter * spread(f"{key}:{tries}"))
