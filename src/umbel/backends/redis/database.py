"""One event loop's connections to one server: few, opened on use, replaced if broken."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Awaitable, Callable
from typing import Any

from redis.exceptions import ReadOnlyError, ResponseError

from umbel.backends.free_connections import FreeConnections
from umbel.backends.redis.address import RedisAddress
from umbel.backends.redis.blocking_connection import BlockingConnection
from umbel.backends.redis.connections import Connection, abort, execute, is_usable, run_script
from umbel.backends.redis.errors import DRIVER_ERRORS, translate_error
from umbel.backends.redis.listener import Listener
from umbel.backends.redis.scripts import Script
from umbel.errors import UmbelError

_inherited: list[Any] = []
"""Connections of the parent process. Garbage collection must not close them, so they are kept."""


class Database:
    """Runs scripts on up to ``size`` connections. No call takes longer than ``timeout``."""

    def __init__(self, address: RedisAddress, *, size: int = 2, timeout: float = 10.0) -> None:
        self.address = address
        self._size = size
        self._timeout = timeout
        self._free = FreeConnections[Connection](abort)
        self._semaphore = asyncio.Semaphore(size)
        self._process_and_loop: tuple[int, asyncio.AbstractEventLoop] | None = None
        self._listener: Listener | None = None
        self.blocking = BlockingConnection(address.connect_blocking, address.label)
        """The connection for callers that may block."""

    async def run(self, script: Script, root: str, *arguments: str | bytes | int | float) -> Any:
        """Return a script's answer. The script is one atomic step and usually one round trip.

        Raises:
            Unavailable: the server cannot be reached, refuses, is too slow, or is out of memory.
        """
        return await self.with_connection(
            lambda connection: run_script(connection, script, root, *arguments)
        )

    async def execute(self, *command: str | bytes | int | float) -> Any:
        """Return the server's answer to a plain command. Raises the errors of ``run``."""
        return await self.with_connection(lambda connection: execute(connection, *command))

    def listener(self, root: str) -> Listener:
        """Return the listener, which all databases of this address and event loop share."""
        self._reset_if_moved()
        if self._listener is None:
            self._listener = self.address.listener()
        self._listener.join(self, root)
        return self._listener

    async def close(self) -> None:
        """Close the connections, and an otherwise unused listener. May be called twice."""
        self._reset_if_moved()
        self.blocking.close()
        self._free.close_all()
        listener, self._listener = self._listener, None
        if listener is not None:
            await listener.leave(self)

    async def with_connection(self, work: Callable[[Connection], Awaitable[Any]]) -> Any:
        """Return the result of ``work``, which has a connection to itself.

        Raises the errors of ``run``. After any error except an error answer of the server, the
        connection is replaced.
        """
        self._reset_if_moved()
        try:
            async with asyncio.timeout(self._timeout), self._semaphore:
                connection = await self._take_free() or await self.address.connect()
                try:
                    answer = await work(connection)
                except ReadOnlyError:  # no longer the primary: a new connection may find it
                    abort(connection)
                    raise
                except ResponseError:  # an error answer: the connection remains usable
                    self._free.put(connection)
                    raise
                except BaseException:
                    abort(connection)
                    raise
                self._free.put(connection)
                return answer
        except UmbelError:
            raise
        except DRIVER_ERRORS as error:
            raise translate_error(error, self.address.label) from error

    async def _take_free(self) -> Connection | None:
        while (connection := self._free.take()) is not None:
            if await is_usable(connection):
                return connection
            abort(connection)
        return None

    def _reset_if_moved(self) -> None:
        """Forget all connections after a fork or in a new event loop."""
        current = (os.getpid(), asyncio.get_running_loop())
        if current == self._process_and_loop:
            return
        if self._process_and_loop is not None and self._process_and_loop[0] != current[0]:
            _inherited.append((self._free, self._listener))
        else:
            self._free.close_all()
        self._free, self._listener = FreeConnections[Connection](abort), None
        self._semaphore = asyncio.Semaphore(self._size)
        self._process_and_loop = current
