"""How much of a caller's time a transport may take, and which transports did not answer of late.

The store of a pair has to accept a job within the caller's deadline, also if the transport takes
connections and answers nothing. So the transport gets a part of the time. After it was silent it is
left out for a while, and then tried for a shorter time.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import NamedTuple

from umbel.clock import Clock
from umbel.resilience import Backoff

_SHARE = 0.5
"""Of a caller's time the transport may take so much; the rest is for the store."""
_PROBE_SECONDS = 1.0
"""Maximum time for a transport that was silent before."""
_SLOW_SECONDS = 0.25
"""A failure that took less costs callers nothing: the transport is tried again at once."""
_PAUSES = Backoff(first=1.0, factor=2.0, cap=10.0)


class _Silent(NamedTuple):
    until: float
    failures: int


class Silence:
    """Remembers silent transports. Each call names the transports that its messages go by."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._silent: dict[object, _Silent] = {}

    def seconds(self, transports: Collection[object], timeout: float) -> float:
        """How long they may take out of a caller's time; 0: they are not to be tried now."""
        found = [self._silent[one] for one in transports if one in self._silent]
        if not found:
            return timeout * _SHARE
        now = self._clock.monotonic()
        if any(now < one.until for one in found):
            return 0.0
        return min(timeout * _SHARE, _PROBE_SECONDS)

    def answered(self, transports: Collection[object]) -> None:
        """They have confirmed what was sent."""
        for one in transports:
            self._silent.pop(one, None)

    def failed(self, transports: Collection[object], seconds: float) -> None:
        """They have not, and it took so long to find out."""
        if seconds < _SLOW_SECONDS:
            return
        now = self._clock.monotonic()
        for one in transports:
            failures = self._silent.get(one, _Silent(0.0, 0)).failures + 1
            self._silent[one] = _Silent(now + _PAUSES.delay(failures), failures)
