"""The time by which the age of records is judged, although the machine's clock may be wrong.

A file has no clock of its own. If the machine's clock is set forward by mistake, every record seems
old at once, and pruning them could not be undone. So the file keeps the time by which it was last
pruned, and that time follows the machine's clock only as fast as a running process has measured
time to pass, or a few times faster to make up for the time in which no worker was running.
"""

from __future__ import annotations

_CATCH_UP = 10.0
"""Seconds by which the file's time may advance in one second of a running process."""
_TOLERANCE = 60.0
"""Seconds that the machine's clock may be ahead of the file's time and still be trusted."""


class FileTime:
    """What one process contributes to the file's time."""

    def __init__(self, monotonic: float) -> None:
        self._since = monotonic
        self._seen: float | None = None

    def read(self, known: float, now: float, monotonic: float) -> tuple[float, float]:
        """Return the time by which to judge age, and the time to store in the file."""
        seen = known if self._seen is None else self._seen
        reached = min(now, seen + _CATCH_UP * (monotonic - self._since))
        following = max(known, reached)
        self._seen, self._since = following, monotonic
        return min(now, following + _TOLERANCE), following
