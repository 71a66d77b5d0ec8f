"""Waiting for an answer that comes soon: polling costs less than sleeping and being woken."""

from __future__ import annotations

import os
import select
import socket
import time

_SPIN_SECONDS = 0.0001
"""A little more than a thread loses by going to sleep and being woken."""
_MAX_SKIPS = 64
"""Maximum number of answers in a row for which polling is skipped."""


class SpinWait:
    """Polls one connection, in a thread that may block.

    It polls for ``_SPIN_SECONDS`` and yields the CPU to other threads and processes in between.
    After polls in vain, it skips polling for the next answers, each time for more of them.
    """

    def __init__(self, connection: socket.socket) -> None:
        self._poll = select.poll()
        self._poll.register(connection, select.POLLIN)
        self._next_skips = 1
        self._skips_left = 0

    def is_readable(self) -> bool:
        """Return whether there is something to read."""
        return bool(self._poll.poll(0))

    def wait(self) -> None:
        """Return when there is something to read, or when the caller should block for it."""
        if self._skips_left:
            self._skips_left -= 1
            return
        until = time.monotonic() + _SPIN_SECONDS
        while not self._poll.poll(0):
            if time.monotonic() >= until:
                self._next_skips = self._skips_left = min(2 * self._next_skips, _MAX_SKIPS)
                return
            os.sched_yield()
        self._next_skips = 1
