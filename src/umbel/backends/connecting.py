"""Connecting within a time limit, even if the driver blocks."""

from __future__ import annotations

import time
from collections.abc import Callable
from concurrent.futures import Future
from typing import TypeVar

from umbel.backends import reentry

T = TypeVar("T")


def connect_before(until: float, connect: Callable[[], T], discard: Callable[[T], object]) -> T:
    """Return a new connection. It is opened in a separate thread, because a DNS lookup may hang.

    A connection that is opened too late is passed to ``discard``.

    Raises:
        TimeoutError: there is no connection at the monotonic time ``until``.
        Exception: the error of ``connect``.
    """
    made: Future[T] = Future()

    def work() -> None:
        try:
            connection = connect()
        except BaseException as error:  # noqa: BLE001 - raised in the caller's thread
            if made.set_running_or_notify_cancel():
                made.set_exception(error)
        else:
            if made.set_running_or_notify_cancel():
                made.set_result(connection)
            else:
                discard(connection)

    try:
        # A finalizer that runs in that thread is inside this call, too: the caller waits for it.
        level = reentry.here.level - 1
        reentry.thread(work, name="umbel-connect", level=level).start()
    except RuntimeError:  # too many threads, or the interpreter exits
        work()
    try:
        return made.result(max(until - time.monotonic(), 0.0))
    except BaseException:
        if not made.cancel() and made.exception() is None:
            discard(made.result())
        raise
