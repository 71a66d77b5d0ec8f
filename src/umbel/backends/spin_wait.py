"""Waiting for an answer that is near: to stay awake for it costs less than to fall asleep."""

from __future__ import annotations

import os
import select
import socket
import time

_MOMENT = 0.0001
"""Seconds: what a thread loses by falling asleep and being woken, and a little more."""
_NAPS = 64
"""Answers in a row that are slept through at the most, before one is looked out for again."""


class SpinWait:
    """Sees whether a server has said something, on one connection of a thread that may wait.

    One that answers within a moment is waited for awake; other threads and processes go first.
    Where that was in vain the next answers are left to sleep, ever more of them.
    """

    def __init__(self, connection: socket.socket) -> None:
        self._poll = select.poll()
        self._poll.register(connection, select.POLLIN)
        self._nap = 1
        self._naps = 0

    def sees(self) -> bool:
        """Whether there is something to read."""
        return bool(self._poll.poll(0))

    def wait(self) -> None:
        """Return when there is, or when it is time to sleep until then."""
        if self._naps:
            self._naps -= 1
            return
        until = time.monotonic() + _MOMENT
        while not self._poll.poll(0):
            if time.monotonic() >= until:
                self._nap = self._naps = min(2 * self._nap, _NAPS)
                return
            os.sched_yield()
        self._nap = 1
