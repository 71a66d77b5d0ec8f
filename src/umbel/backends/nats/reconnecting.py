"""The connection of one event loop: opened on use, and replaced when it is lost."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from random import shuffle

from nats import errors

from umbel.backends.nats.address import NatsAddress
from umbel.backends.nats.connections import Connection
from umbel.backends.nats.errors import translate_errors

OnOpen = Callable[[Connection], Awaitable[None]]

_CONNECT_TIMEOUT_SECONDS = 5.0


class Reconnector:
    """Gives all callers the same open connection.

    ``on_open`` is called with each new connection before other callers get it.
    """

    def __init__(self, address: NatsAddress, *, on_open: OnOpen) -> None:
        self.address = address
        self._on_open = on_open
        self._servers = list(address.servers)
        self._connection: Connection | None = None
        self._connecting = asyncio.Lock()
        self._loop: asyncio.AbstractEventLoop | None = None

    @property
    def current(self) -> Connection | None:
        """The connection, if it is open."""
        self._reset_in_new_loop()
        found = self._connection
        return found if found is not None and found.is_open else None

    async def connection(self) -> Connection:
        """Return the connection, or a new one if there was none or it is lost.

        Raises:
            Unavailable: no server could be reached, or all have refused.
        """
        if (found := self.current) is not None:
            return found
        with translate_errors(self.address.label):
            async with asyncio.timeout(_CONNECT_TIMEOUT_SECONDS), self._connecting:
                if (found := self.current) is None:
                    found = self._connection = await self._open()
                    self._servers = list({*self.address.servers, *found.discovered_servers})
                    await self._on_open(found)
                return found

    async def close(self) -> None:
        """Close the connection after everything was written. Twice is fine."""
        found, self._connection = self.current, None
        if found is not None:
            await found.close()

    async def _open(self) -> Connection:
        shuffle(self._servers)
        problem: Exception = errors.NoServersError()
        for server in self._servers:
            try:
                return await Connection.open(self.address, server)
            except (errors.Error, OSError) as error:  # a TimeoutError is an OSError
                problem = error
        raise problem

    def _reset_in_new_loop(self) -> None:
        """Forget the connection of another event loop, as in a child process."""
        loop = asyncio.get_running_loop()
        if loop is not self._loop:
            self._loop, self._connection, self._connecting = loop, None, asyncio.Lock()
