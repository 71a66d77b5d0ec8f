"""Notifies a worker when an entry was pushed to a list. Like every wake-up, it takes nothing."""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import Awaitable, Callable

from redis.exceptions import RedisError

from umbel.backends.redis.connections import Connection, abort, execute
from umbel.resilience import Backoff

_MAX_BLOCK_SECONDS = 10
"""How long one command waits on the server. A server that does not answer then counts as gone."""
_ANSWER_SECONDS = 3.0
_RECONNECT_BACKOFF = Backoff(first=0.1, factor=2, cap=5.0, jitter=0.5)


class ListWatch:
    """Waits until a list has entries, on a connection of its own."""

    def __init__(
        self, connect: Callable[[], Awaitable[Connection]], key: str, notify: Callable[[], None]
    ) -> None:
        self._connect = connect
        self._key = key
        self._notify = notify
        self._loop: asyncio.AbstractEventLoop | None = None
        self._requested = asyncio.Event()
        self._connection: Connection | None = None
        self._task: asyncio.Task[None] | None = None

    def request(self) -> None:
        """Notify once, as soon as the list has an entry."""
        self._reset_if_moved()
        self._requested.set()
        if self._task is None:
            self._task = asyncio.create_task(self._run(), name="umbel-list-watch")

    async def close(self) -> None:
        """Stop waiting. May be called twice."""
        self._reset_if_moved()
        task, self._task = self._task, None
        if task is not None:
            task.cancel()
            await asyncio.wait([task])

    def _reset_if_moved(self) -> None:
        """Forget the connection and the task in a new event loop."""
        loop = asyncio.get_running_loop()
        if loop is not self._loop:
            self._disconnect()
            self._loop, self._task, self._requested = loop, None, asyncio.Event()

    async def _run(self) -> None:
        failures, token = 0, secrets.token_hex(4)
        try:
            while True:
                await self._requested.wait()
                try:
                    has_entries = await self._wait()
                    failures = 0
                except (RedisError, OSError):  # TimeoutError is an OSError
                    self._disconnect()
                    failures += 1
                    await asyncio.sleep(_RECONNECT_BACKOFF.delay(failures, token))
                    continue
                if has_entries:
                    self._requested.clear()
                    self._notify()
        finally:
            self._disconnect()

    async def _wait(self) -> bool:
        if self._connection is None:
            async with asyncio.timeout(_ANSWER_SECONDS):
                self._connection = await self._connect()
        # Moves the last entry to where it is: this changes nothing, but waits until there is an
        # entry.
        command = ("BLMOVE", self._key, self._key, "RIGHT", "RIGHT", _MAX_BLOCK_SECONDS)
        async with asyncio.timeout(_MAX_BLOCK_SECONDS + _ANSWER_SECONDS):
            return await execute(self._connection, *command) is not None

    def _disconnect(self) -> None:
        connection, self._connection = self._connection, None
        if connection is not None:
            abort(connection)
