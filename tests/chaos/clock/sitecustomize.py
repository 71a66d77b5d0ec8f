"""Gives a worker process a wrong clock: ``time.time()`` is off by what a file says, at any moment.

The file may change while the process runs, so its clock jumps. Monotonic time is untouched.
"""

from __future__ import annotations

import os
import time

_file = os.environ.get("CHAOS_CLOCK", "")
_true_time, _true_time_ns = time.time, time.time_ns
_looked, _off = float("-inf"), 0.0


def _shift() -> float:
    global _looked, _off
    now = time.monotonic()
    if now - _looked > 0.1:
        _looked = now
        try:
            with open(_file) as file:
                _off = float(file.read() or 0)
        except (OSError, ValueError):
            pass  # it is being written at this moment
    return _off


def _wrong_time() -> float:
    return _true_time() + _shift()


def _wrong_time_ns() -> int:
    return _true_time_ns() + int(_shift() * 1e9)


if _file:
    time.time = _wrong_time
    time.time_ns = _wrong_time_ns
