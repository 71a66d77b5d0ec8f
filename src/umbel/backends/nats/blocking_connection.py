"""The connection that callers' threads share, one at a time, within their deadlines."""

from __future__ import annotations

import threading
import time
from collections.abc import Coroutine, Iterator
from contextlib import contextmanager, suppress
from functools import partial
from random import sample
from typing import Any, TypeVar

from nats import errors

from umbel.backends.connecting import connect_before
from umbel.backends.nats.address import NatsAddress
from umbel.backends.nats.errors import JetStreamError, translate_errors
from umbel.backends.nats.raw_connection import RawConnection

T = TypeVar("T")

_CONNECT_TIMEOUT_SECONDS = 2.0


class BlockingConnection:
    """Gives one caller at a time the connection. It connects on use, and again after a loss."""

    def __init__(self, address: NatsAddress) -> None:
        self._address = address
        self._lock = threading.Lock()
        self._connection: RawConnection | None = None

    @contextmanager
    def using(self, until: float) -> Iterator[RawConnection]:
        """Give the caller exclusive use of the connection. An error inside closes it.

        Raises:
            Unavailable: no server could be reached, or its use failed.
        """
        with translate_errors(self._address.label):
            if not self._lock.acquire(timeout=max(until - time.monotonic(), 0.0)):
                raise TimeoutError
            try:
                connection = self._reuse(until) or self._connect(until)
                try:
                    yield connection
                except JetStreamError:  # an ordinary response
                    self._connection = connection
                    raise
                except BaseException:
                    connection.close()
                    raise
                self._connection = connection
            finally:
                self._lock.release()

    def close(self) -> None:
        """Close the connection. Twice is fine, and using it again opens another."""
        with self._lock:
            connection, self._connection = self._connection, None
        if connection is not None:
            connection.close()

    def _reuse(self, until: float) -> RawConnection | None:
        connection, self._connection = self._connection, None
        if connection is not None:
            connection.until = until
            with suppress(errors.Error, OSError):
                connection.read_pending()
                return connection
            connection.close()
        return None

    def _connect(self, until: float) -> RawConnection:
        problem: Exception = errors.NoServersError()
        for server in sample(self._address.servers, len(self._address.servers)):
            soon = min(until, time.monotonic() + _CONNECT_TIMEOUT_SECONDS)
            try:
                connection = connect_before(
                    soon,
                    partial(RawConnection, self._address, server, soon),
                    RawConnection.close,
                )
            except (errors.Error, OSError) as error:  # a TimeoutError is an OSError
                problem = error
            else:
                connection.until = until
                return connection
        raise problem


def run_without_loop(work: Coroutine[Any, Any, T]) -> T:
    """Return the result of a coroutine that never suspends, as it uses a ``RawConnection``."""
    try:
        work.send(None)
    except StopIteration as done:
        result: T = done.value
        return result
    work.close()
    raise RuntimeError("the coroutine waits for an event loop")
