"""Wake-ups between processes: LISTEN on one channel, heard by everybody on an event loop.

What is said on the channel, each "look", never "take":

``r:<namespace>:<queue>``        something became ready
``s:<namespace>``                something was scheduled: the next due time may have changed
``d:<namespace>:<id>,<id>...``   jobs that somebody waits for are final
``g:<namespace>``                somebody may pass a gate: a slot is free, a rule has changed
``c:<namespace>``                a pause or a cancellation
``p:<token>``                    a listener's word to itself
"""

from __future__ import annotations

import asyncio
import contextlib
import secrets
from collections.abc import Awaitable, Callable, Iterator, Mapping

import psycopg
from psycopg import Notify

from umbel.backends.notifier import Notifier
from umbel.backends.postgres.connections import Connection
from umbel.resilience import Backoff

PROBE_EVERY = 10.0
PROBE_ANSWER = 3.0
RECONNECT = Backoff(first=0.1, factor=2, cap=5.0, jitter=0.5)


class Listener:
    """Rings the bell for every hint. Reconnects for ever, and wakes everybody after each gap.

    While nothing is said it costs nothing: the event loop watches the socket. A connection that
    looks alive is not believed; every ten seconds it has to bring back a word of our own.
    """

    def __init__(
        self,
        connect: Callable[[], Awaitable[Connection]] | None,
        sql: Mapping[str, bytes],
        on_stop: Callable[[], None],
        *,
        probe_every: float = PROBE_EVERY,
    ) -> None:
        self.bell = Notifier()
        self.hearing = False
        """Whether silence means that nothing happened. Else: look now and then."""
        self.token = secrets.token_hex(8)
        self._connect = connect
        self._sql = sql
        self._on_stop = on_stop
        self._probe_every = probe_every
        self._users: set[object] = set()
        self._task: asyncio.Task[None] | None = None
        self._answered = asyncio.Event()
        self._lost = asyncio.Event()

    def join(self, user: object) -> None:
        """Somebody wants to hear. The first one starts the listening."""
        self._users.add(user)
        if self._task is None and self._connect is not None:
            self._task = asyncio.create_task(self._run(self._connect), name="umbel-listener")

    async def leave(self, user: object) -> None:
        """Somebody is gone. The last one stops it."""
        self._users.discard(user)
        if not self._users:
            self._on_stop()
            task, self._task = self._task, None
            if task is not None:
                task.cancel()
                await asyncio.wait([task])

    async def _run(self, connect: Callable[[], Awaitable[Connection]]) -> None:
        tries = 0
        while True:
            connection: Connection | None = None
            try:
                connection = await connect()
                await self._open(connection)
                tries = 0
                await self._attend(connection)
            except Exception:  # noqa: BLE001 - an odd hint must not end the listening
                tries += 1
            finally:
                self.hearing = False
                if connection is not None:
                    connection.pgconn.finish()
            await asyncio.sleep(RECONNECT.delay(tries, self.token))

    async def _open(self, connection: Connection) -> None:
        connection.add_notify_handler(self._heard)
        async with asyncio.timeout(PROBE_ANSWER):
            await connection.execute(self._sql["listen"], prepare=False)
        self.hearing = True
        self.bell.ring_all()  # nobody knows what was said during the gap

    async def _attend(self, connection: Connection) -> None:
        """Until the connection is lost; then it raises."""
        self._lost.clear()
        while True:
            with self._watching(connection), contextlib.suppress(TimeoutError):
                async with asyncio.timeout(self._probe_every):
                    await self._lost.wait()
                raise psycopg.OperationalError("the listening connection was closed")
            self._answered.clear()
            async with asyncio.timeout(PROBE_ANSWER):
                await connection.execute(self._sql["probe"], {"payload": f"p:{self.token}"})
                with self._watching(connection):
                    await self._answered.wait()

    @contextlib.contextmanager
    def _watching(self, connection: Connection) -> Iterator[None]:
        # psycopg watches the socket itself while a statement runs: take turns.
        loop, socket = asyncio.get_running_loop(), connection.pgconn.socket
        loop.add_reader(socket, self._read, connection, socket)
        try:
            self._read(connection, socket)  # what came in while nobody watched
            yield
        finally:
            loop.remove_reader(socket)

    def _read(self, connection: Connection, socket: int) -> None:
        try:
            connection.pgconn.consume_input()
            while (found := connection.pgconn.notifies()) is not None:
                self._say(found.extra.decode())
        except psycopg.Error:
            asyncio.get_running_loop().remove_reader(socket)
            self._lost.set()

    def _heard(self, notify: Notify) -> None:
        self._say(notify.payload)

    def _say(self, hint: str) -> None:
        if hint == f"p:{self.token}":
            self._answered.set()
        elif hint.startswith("d:"):
            where, _, jobs = hint.rpartition(":")
            for job in jobs.split(","):
                self.bell.ring(f"{where}:{job}")
        else:
            self.bell.ring(hint)
