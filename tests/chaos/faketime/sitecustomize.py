"""Makes ``time.sleep`` work under libfaketime.

Its ``clock_nanosleep`` fails for an absolute monotonic time when monotonic time is not faked, and
that is what ``time.sleep`` calls. A wait on a lock is not affected.
"""

from __future__ import annotations

import threading
import time


def _sleep(seconds: float) -> None:
    until = time.monotonic() + seconds
    while (left := until - time.monotonic()) > 0:
        threading.Event().wait(left)


time.sleep = _sleep
