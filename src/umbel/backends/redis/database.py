"""One event loop's connections to one server: few, opened on use, replaced when broken."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Awaitable, Callable
from typing import Any

from redis.exceptions import ReadOnlyError, ResponseError

from umbel.backends.redis.address import Home
from umbel.backends.redis.blocking_connection import Direct
from umbel.backends.redis.connections import Connection, ask, drop, is_fresh, run
from umbel.backends.redis.errors import FAULTS, explained
from umbel.backends.redis.listener import Listener
from umbel.backends.redis.scripts import Script
from umbel.errors import UmbelError

_inherited: list[Any] = []
"""Connections of a parent process: never used again here, and never closed by collection."""


class Database:
    """Runs scripts on up to ``size`` connections. Nothing takes longer than ``timeout``."""

    def __init__(self, home: Home, *, size: int = 2, timeout: float = 10.0) -> None:
        self.home = home
        self._size = size
        self._timeout = timeout
        self._free: list[Connection] = []
        self._turn = asyncio.Semaphore(size)
        self._here: tuple[int, asyncio.AbstractEventLoop] | None = None
        self._listener: Listener | None = None
        self.direct = Direct(home.connect_blocking, home.address)
        """For callers that may block."""

    async def run(self, script: Script, root: str, *arguments: str | bytes | int | float) -> Any:
        """What a script answers; it is one step on the server, and one round trip.

        Raises:
            Unavailable: out of reach, refused, too slow, full.
        """
        return await self.use(lambda connection: run(connection, script, root, *arguments))

    async def ask(self, *command: str | bytes | int | float) -> Any:
        """What the server answers to a plain command. Errors are those of ``run``."""
        return await self.use(lambda connection: ask(connection, *command))

    def listener(self, root: str) -> Listener:
        """Where hints are heard; shared with the other databases of this home and event loop."""
        self._arrive()
        if self._listener is None:
            self._listener = self.home.listener()
        self._listener.join(self, root)
        return self._listener

    async def close(self) -> None:
        """Close the connections; stop listening when nobody else does. Twice is fine."""
        self._arrive()
        self.direct.close()
        while self._free:
            await self._free.pop().disconnect()
        listener, self._listener = self._listener, None
        if listener is not None:
            await listener.leave(self)

    async def use(self, work: Callable[[Connection], Awaitable[Any]]) -> Any:
        """What comes of work with a connection, which is nobody else's until then.

        It is replaced after any error that was not an answer of the server. Errors are those of
        ``run``.
        """
        self._arrive()
        try:
            async with asyncio.timeout(self._timeout), self._turn:
                connection = await self._take() or await self.home.connect()
                try:
                    answer = await work(connection)
                except ReadOnlyError:  # no primary any more: another connection may find that
                    drop(connection)
                    raise
                except ResponseError:  # an answer like any other
                    self._free.append(connection)
                    raise
                except BaseException:
                    drop(connection)
                    raise
                self._free.append(connection)
                return answer
        except UmbelError:
            raise
        except FAULTS as error:
            raise explained(error, self.home.address) from error

    async def _take(self) -> Connection | None:
        while self._free:
            connection = self._free.pop()
            if await is_fresh(connection):
                return connection
            drop(connection)
        return None

    def _arrive(self) -> None:
        """Start over in a new process or event loop."""
        here = (os.getpid(), asyncio.get_running_loop())
        if here == self._here:
            return
        if self._here is not None and self._here[0] != here[0]:
            _inherited.append((self._free, self._listener))
        else:
            for connection in self._free:
                drop(connection)
        self._free, self._listener = [], None
        self._turn = asyncio.Semaphore(self._size)
        self._here = here
