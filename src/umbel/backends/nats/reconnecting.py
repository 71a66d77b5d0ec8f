"""One event loop's connection to a home: opened on use, replaced when it is lost."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from random import shuffle

from nats import errors

from umbel.backends.nats.address import Home
from umbel.backends.nats.connections import Connection
from umbel.backends.nats.errors import explaining

_PATIENCE = 5.0


class Link:
    """Whoever asks for the connection gets the living one, or an error within five seconds.

    ``opened`` is told of each new one before anybody else has it.
    """

    def __init__(self, home: Home, *, opened: Callable[[Connection], None]) -> None:
        self.home = home
        self._opened = opened
        self._servers = list(home.servers)
        self._connection: Connection | None = None
        self._turn = asyncio.Lock()
        self._here: asyncio.AbstractEventLoop | None = None

    @property
    def living(self) -> Connection | None:
        """The connection, if there is one now."""
        self._arrive()
        found = self._connection
        return found if found is not None and found.loss is None else None

    async def connection(self) -> Connection:
        """The connection; a new one if there was none or it is lost.

        Raises:
            Unavailable: no server could be reached, or none of them wants us.
        """
        if (found := self.living) is not None:
            return found
        with explaining(self.home.address):
            async with asyncio.timeout(_PATIENCE), self._turn:
                if (found := self.living) is None:  # nobody made it while we waited for our turn
                    found = self._connection = await self._open()
                    self._servers = list({*self.home.servers, *found.neighbours})
                    self._opened(found)
                return found

    async def close(self) -> None:
        """Close the connection, with all that was written. Twice is fine."""
        found, self._connection = self.living, None
        if found is not None:
            await found.close()

    async def _open(self) -> Connection:
        shuffle(self._servers)
        problem: Exception = errors.NoServersError()
        for server in self._servers:
            try:
                return await Connection.open(self.home, server)
            except (errors.Error, OSError) as error:  # a TimeoutError is an OSError
                problem = error
        raise problem

    def _arrive(self) -> None:
        """Start over in another event loop, as in a child process: this one's socket is gone."""
        here = asyncio.get_running_loop()
        if here is not self._here:
            self._here, self._connection, self._turn = here, None, asyncio.Lock()
