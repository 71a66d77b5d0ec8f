"""A circuit breaker: after several failures in a row, calls pause for a while."""

from __future__ import annotations

from enum import StrEnum

from umbel.errors import ConfigurationError
from umbel.resilience.backoff import Backoff


class Circuit(StrEnum):
    """The state of a circuit breaker."""

    CLOSED = "closed"
    """Calls go through."""
    OPEN = "open"
    """No call goes through."""
    HALF_OPEN = "half open"
    """One call is in progress to test whether the service works again."""


class Breaker:
    """Decides whether to call. The caller passes the time and reports the results.

    It reads no clock and has no lock.

    ::

        closed ──failures in a row──▶ open ──the pause is over, one call──▶ half open
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
        """The current state."""
        if self._openings == 0:
            return Circuit.CLOSED
        return Circuit.HALF_OPEN if self._trying else Circuit.OPEN

    def allows(self, now: float) -> bool:
        """Return whether to call now. An open breaker allows one call when its pause is over."""
        if self._openings == 0:
            return True
        if self._trying or now < self._until:
            return False
        self._trying = True
        return True

    def succeeded(self) -> None:
        """Record a successful call."""
        self._failures = self._openings = 0
        self._trying = False

    def failed(self, now: float) -> None:
        """Record a failed call."""
        self._failures += 1
        if self._trying or (self._openings == 0 and self._failures >= self._limit):
            self._openings += 1
            self._until = now + self._pause.delay(self._openings)
            self._trying = False
