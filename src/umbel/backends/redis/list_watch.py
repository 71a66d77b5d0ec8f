"""Tells when somebody has pushed to a list. Like every wake-up it is a hint and takes nothing."""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import Awaitable, Callable

from redis.exceptions import RedisError

from umbel.backends.redis.connections import Connection, ask, drop
from umbel.resilience import Backoff

_LONGEST = 10
"""Seconds that the server may keep us waiting; then it has to show that it is there."""
_GRACE = 3.0
_RECONNECT = Backoff(first=0.1, factor=2, cap=5.0, jitter=0.5)


class Doorbell:
    """Waits at a list for as long as somebody wants to know, on a connection of its own."""

    def __init__(
        self, connect: Callable[[], Awaitable[Connection]], key: str, ring: Callable[[], None]
    ) -> None:
        self._connect = connect
        self._key = key
        self._ring = ring
        self._here: asyncio.AbstractEventLoop | None = None
        self._wanted = asyncio.Event()
        self._connection: Connection | None = None
        self._task: asyncio.Task[None] | None = None

    def listen(self) -> None:
        """Ring once, as soon as there is something in the list."""
        self._arrive()
        self._wanted.set()
        if self._task is None:
            self._task = asyncio.create_task(self._run(), name="umbel-doorbell")

    async def close(self) -> None:
        """Stop waiting. Closing twice is fine."""
        self._arrive()
        task, self._task = self._task, None
        if task is not None:
            task.cancel()
            await asyncio.wait([task])

    def _arrive(self) -> None:
        """Start over in another event loop."""
        here = asyncio.get_running_loop()
        if here is not self._here:
            self._hang_up()
            self._here, self._task, self._wanted = here, None, asyncio.Event()

    async def _run(self) -> None:
        tries, token = 0, secrets.token_hex(4)
        try:
            while True:
                await self._wanted.wait()
                try:
                    there = await self._wait()
                    tries = 0
                except (RedisError, OSError):  # asyncio's TimeoutError is one too
                    self._hang_up()
                    tries += 1
                    await asyncio.sleep(_RECONNECT.delay(tries, token))
                    continue
                if there:
                    self._wanted.clear()
                    self._ring()
        finally:
            self._hang_up()

    async def _wait(self) -> bool:
        if self._connection is None:
            async with asyncio.timeout(_GRACE):
                self._connection = await self._connect()
        # From the list's end to its end: nothing moves, but there has to be something.
        command = ("BLMOVE", self._key, self._key, "RIGHT", "RIGHT", _LONGEST)
        async with asyncio.timeout(_LONGEST + _GRACE):
            return await ask(self._connection, *command) is not None

    def _hang_up(self) -> None:
        connection, self._connection = self._connection, None
        if connection is not None:
            drop(connection)
