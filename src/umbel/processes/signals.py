"""Signals of a process without an event loop, and whether a person sits at its terminal."""

from __future__ import annotations

import os
import select
import signal
import sys
from collections.abc import Iterable


class SignalPipe:
    """Collects signals until the process asks for them.

    The handlers do nothing: Python writes the number of each signal into a pipe. The handlers stay
    for the rest of the process.
    """

    def __init__(self, numbers: Iterable[int]) -> None:
        self._read, write = os.pipe()
        os.set_blocking(self._read, False)
        os.set_blocking(write, False)
        signal.set_wakeup_fd(write, warn_on_full_buffer=False)
        for number in numbers:
            signal.signal(number, lambda *_: None)

    def wait(self, timeout: float | None) -> list[int]:
        """Return the numbers of signals, in order, once there are any; [] after ``timeout``."""
        select.select([self._read], [], [], timeout)
        try:
            return list(os.read(self._read, 4096))
        except BlockingIOError:
            return []


def is_interactive() -> bool:
    """Return whether the process reads from a terminal, rather than from a supervisor's pipe."""
    return sys.stdin is not None and not sys.stdin.closed and sys.stdin.isatty()
