"""Calls inside a call: those that a signal handler or a finalizer makes while its thread makes one.

The outer call may hold any lock, and cannot go on before the inner one has returned. So the inner
call must not wait for a lock that the outer one may hold. Every part that holds locks therefore
runs at a level, and a thread that is at work at one level publishes with the parts of the next.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any


class _Here(threading.local):
    level = 0
    """Parts of this level, and of higher ones, are not in use by this thread."""


here = _Here()


@contextmanager
def entered() -> Iterator[None]:
    """In this block the thread may hold locks of the parts of its level."""
    level = here.level
    here.level = level + 1
    try:
        yield
    finally:
        here.level = level


def thread(work: Callable[..., object], *arguments: Any, name: str, level: int) -> threading.Thread:
    """A thread, not started yet, that works for the parts of one level."""
    return threading.Thread(target=_work, args=(level, work, *arguments), name=name, daemon=True)


def _work(level: int, work: Callable[..., object], *arguments: Any) -> None:
    here.level = level + 1
    work(*arguments)
