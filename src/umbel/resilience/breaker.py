"""A circuit breaker: after some failures in a row, nobody tries for a while."""

from __future__ import annotations

from enum import StrEnum

from umbel.errors import ConfigurationError
from umbel.resilience.backoff import Backoff


class Circuit(StrEnum):
    """Whether what is behind a breaker is tried."""

    CLOSED = "closed"
    """It works, or has not failed often enough."""
    OPEN = "open"
    """It does not; nobody tries."""
    HALF_OPEN = "half open"
    """One try is under way to find out."""


class Breaker:
    """Told what happened and when; says whether to try. It reads no clock, and is no lock.

    ::

        closed ──failures in a row──▶ open ──the pause is over, one may try──▶ half open
          ▲                            ▲────────────────── failed ────────────────┘  │
          └───────────────────────────────── succeeded ─────────────────────────────┘
    """

    def __init__(self, *, failures: int = 3, pause: Backoff | None = None) -> None:
        if failures < 1:
            raise ConfigurationError(f"failures={failures}: give how many in a row open it")
        self._limit = failures
        self._pause = pause or Backoff(first=0.5, factor=2.0, cap=10.0)
        self._failures = 0
        self._openings = 0
        self._until = 0.0
        self._trying = False

    @property
    def state(self) -> Circuit:
        """What it is now."""
        if self._openings == 0:
            return Circuit.CLOSED
        return Circuit.HALF_OPEN if self._trying else Circuit.OPEN

    def allows(self, now: float) -> bool:
        """Whether to try now. An open breaker lets one through when its pause is over."""
        if self._openings == 0:
            return True
        if self._trying or now < self._until:
            return False
        self._trying = True
        return True

    def succeeded(self) -> None:
        """A try went well."""
        self._failures = self._openings = 0
        self._trying = False

    def failed(self, now: float) -> None:
        """A try did not."""
        self._failures += 1
        if self._trying or (self._openings == 0 and self._failures >= self._limit):
            self._openings += 1
            self._until = now + self._pause.delay(self._openings)
            self._trying = False
