"""Reentrant calls: a signal handler or a finalizer publishes while its thread is publishing.

The outer call may hold any lock, and cannot continue before the inner call has returned. So the
inner call must not wait for a lock that the outer call may hold. Therefore every object that has
locks belongs to a level, and a thread that is working at one level uses the objects of the next.
"""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any


class _Here(threading.local):
    level = 0
    """Objects of this level and of higher levels are not in use by this thread."""


here = _Here()


@contextmanager
def entered() -> Iterator[None]:
    """Use the objects of the thread's level in this block; reentrant calls use the next level."""
    level = here.level
    here.level = level + 1
    try:
        yield
    finally:
        here.level = level


class _Thread(threading.Thread):
    def start(self) -> None:
        """Start. Raise RuntimeError while Python exits, as Python 3.12 does: 3.11 would hang."""
        if sys.is_finalizing():
            raise RuntimeError("can't start new thread at interpreter shutdown")
        super().start()


def thread(work: Callable[..., object], *arguments: Any, name: str, level: int) -> threading.Thread:
    """Return a thread, not yet started, that uses the objects of one level."""
    return _Thread(target=_work, args=(level, work, *arguments), name=name, daemon=True)


def _work(level: int, work: Callable[..., object], *arguments: Any) -> None:
    here.level = level + 1
    work(*arguments)
