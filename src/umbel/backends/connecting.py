"""Connecting within a time, whatever the driver does meanwhile."""

from __future__ import annotations

import time
from collections.abc import Callable
from concurrent.futures import Future
from typing import TypeVar

from umbel.backends import reentry

T = TypeVar("T")


def connected_by(until: float, connect: Callable[[], T], discard: Callable[[T], object]) -> T:
    """A new connection, made in a thread of its own: looking up a name may take for ever.

    One that arrives when nobody waits for it any more is discarded.

    Raises:
        TimeoutError: it is not there at the monotonic moment ``until``. What ``connect`` raises.
    """
    made: Future[T] = Future()

    def work() -> None:
        try:
            connection = connect()
        except BaseException as error:  # noqa: BLE001 - raised where it was asked for
            if made.set_running_or_notify_cancel():
                made.set_exception(error)
        else:
            if made.set_running_or_notify_cancel():
                made.set_result(connection)
            else:
                discard(connection)

    try:
        # What a finalizer calls there is inside this call, too: the caller waits for it.
        level = reentry.here.level - 1
        reentry.thread(work, name="umbel-connect", level=level).start()
    except RuntimeError:  # there are too many threads, or the interpreter exits
        work()
    try:
        return made.result(max(until - time.monotonic(), 0.0))
    except BaseException:
        if not made.cancel() and made.exception() is None:
            discard(made.result())
        raise
