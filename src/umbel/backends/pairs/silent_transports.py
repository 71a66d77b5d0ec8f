"""How much of a caller's time a transport may use, and which transports did not answer recently.

The store of a pair has to accept a job within the caller's deadline, even if the transport accepts
connections and answers nothing. Therefore the transport gets a share of the time. After it was
silent it is skipped for a while, and then tried for a shorter time.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import NamedTuple

from umbel.clock import Clock
from umbel.resilience import Backoff

_TRANSPORT_SHARE = 0.5
"""The share of a caller's time for the transport; the rest is for the store."""
_PROBE_SECONDS = 1.0
"""Maximum time for a transport that was silent before."""
_SLOW_SECONDS = 0.25
"""A failure that took less time costs callers nothing: the transport is tried again at once."""
_PAUSES = Backoff(first=1.0, factor=2.0, cap=10.0)


class _Silent(NamedTuple):
    until: float
    failures: int


class SilentTransports:
    """Remembers silent transports. Each call names the transports that its messages use."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._silent: dict[object, _Silent] = {}

    def allowed_seconds(self, transports: Collection[object], timeout: float) -> float:
        """Return the seconds of a caller's time for these transports; 0 if they are skipped now."""
        found = [self._silent[one] for one in transports if one in self._silent]
        if not found:
            return timeout * _TRANSPORT_SHARE
        now = self._clock.monotonic()
        if any(now < one.until for one in found):
            return 0.0
        return min(timeout * _TRANSPORT_SHARE, _PROBE_SECONDS)

    def record_answer(self, transports: Collection[object]) -> None:
        """Record that they have confirmed what was sent."""
        for one in transports:
            self._silent.pop(one, None)

    def record_failure(self, transports: Collection[object], seconds: float) -> None:
        """Record that they have not confirmed it, and how long the caller waited."""
        if seconds < _SLOW_SECONDS:
            return
        now = self._clock.monotonic()
        for one in transports:
            failures = self._silent.get(one, _Silent(0.0, 0)).failures + 1
            self._silent[one] = _Silent(now + _PAUSES.delay(failures), failures)
