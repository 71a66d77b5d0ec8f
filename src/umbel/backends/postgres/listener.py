"""Wake-ups between processes: LISTEN on one channel, for all users of an event loop.

Payloads on the channel. Each says "check", and none carries data:

``r:<namespace>:<queue>``        a job became ready
``s:<namespace>``                a job was scheduled: the next due time may have changed
``d:<namespace>:<id>,<id>...``   jobs for which callers wait are final
``g:<namespace>``                a job may pass a gate: a slot is free, or a rule has changed
``c:<namespace>``                a pause was added or has ended
``e:<namespace>``                entries of coordination have changed
``p:<token>``                    a listener probes its own connection
"""

from __future__ import annotations

import asyncio
import contextlib
import secrets
from collections.abc import Awaitable, Callable, Mapping

import psycopg
from psycopg import Notify

from umbel.backends.notifier import Notifier
from umbel.backends.postgres.connections import Connection, is_idle
from umbel.resilience import Backoff

PROBE_INTERVAL_SECONDS = 30.0
"""A probe wakes every listener of the schema, so probes are rare; keep-alives find dead servers."""
PROBE_TIMEOUT_SECONDS = 3.0
_MAX_LENT_SECONDS = 1.0
"""A statement that takes longer keeps the connection, and the listener opens another one."""
_NO_LENDING_SECONDS = 30.0
"""After a statement took long or broke the connection, others would do so, too."""
_RECONNECT_BACKOFF = Backoff(first=0.1, factor=2, cap=5.0, jitter=0.5)


class Listener:
    """Passes every notification on to its notifier. Reconnects forever, and wakes up all listeners
    after each gap.

    An idle connection costs nothing: the event loop watches the socket. From time to time, a probe
    checks that the connection still delivers notifications. While no statement runs on it, the
    connection can be lent, so that an idle process needs no other one. The server sends no
    notification before the statement has ended, so a long statement must not keep the connection.
    """

    def __init__(
        self,
        connect: Callable[[], Awaitable[Connection]] | None,
        sql: Mapping[str, bytes],
        on_stop: Callable[[], None],
        *,
        probe_interval: float = PROBE_INTERVAL_SECONDS,
    ) -> None:
        self.notifier = Notifier()
        self.is_listening = False
        """Whether no notification means that nothing has happened. Otherwise, poll."""
        self.token = secrets.token_hex(8)
        self._connect = connect
        self._sql = sql
        self._on_stop = on_stop
        self._probe_interval = probe_interval
        self._users: set[object] = set()
        self._task: asyncio.Task[None] | None = None
        self._answered = asyncio.Event()
        self._lost = asyncio.Event()
        self._connection: Connection | None = None
        """The connection that listens."""
        self._idle: Connection | None = None
        """The same connection while it runs no statement."""
        self._overdue: asyncio.TimerHandle | None = None
        """Ends the listening on a connection that is lent for too long."""
        self._lends_from = float("-inf")

    def join(self, user: object) -> None:
        """Add a user. The first one starts the listener."""
        self._users.add(user)
        if self._task is None and self._connect is not None:
            self._task = asyncio.create_task(self._run(self._connect), name="umbel-listener")

    async def leave(self, user: object) -> None:
        """Remove a user. The last one stops the listener."""
        self._users.discard(user)
        if not self._users:
            self._on_stop()
            task, self._task = self._task, None
            if task is not None:
                task.cancel()
                await asyncio.wait([task])

    def lend(self) -> Connection | None:
        """Return the connection for statements, or None if it is in use or not open.

        Notifications that arrive during a statement are passed on, too.
        """
        loop = asyncio.get_running_loop()
        if loop.time() < self._lends_from:
            return None
        connection = self._take()
        if connection is not None:
            self._overdue = loop.call_later(_MAX_LENT_SECONDS, self._lose)
        return connection

    def give_back(self, connection: Connection) -> None:
        """Listen again on a connection that was lent. If it is broken, connect again."""
        if connection is not self._connection:  # it was lent for too long, and replaced
            connection.pgconn.finish()
            return
        if self._overdue is not None:
            self._overdue.cancel()
            self._overdue = None
        if not is_idle(connection):
            self._lose()
            connection.pgconn.finish()
            return
        self._idle, socket = connection, connection.pgconn.socket
        # psycopg watches the socket itself while a statement runs, so both take turns.
        asyncio.get_running_loop().add_reader(socket, self._read, connection, socket)
        self._read(connection, socket)  # notifications that arrived in between

    def _lose(self) -> None:
        """Leave the connection to its borrower, and connect again."""
        self._connection = self._overdue = None
        self._lends_from = asyncio.get_running_loop().time() + _NO_LENDING_SECONDS
        self._lost.set()

    def _take(self) -> Connection | None:
        if self._idle is not None:
            self._read(self._idle, self._idle.pgconn.socket)  # finds out whether it was closed
        connection, self._idle = self._idle, None
        if connection is not None:
            asyncio.get_running_loop().remove_reader(connection.pgconn.socket)
        return connection

    async def _run(self, connect: Callable[[], Awaitable[Connection]]) -> None:
        tries = 0
        while True:
            connection: Connection | None = None
            try:
                connection = self._connection = await connect()
                await self._open(connection)
                tries = 0
                await self._wait_until_lost(connection)
            except Exception:  # noqa: BLE001 - an odd payload must not end the listener
                tries += 1
            finally:
                self._close(connection)
            await asyncio.sleep(_RECONNECT_BACKOFF.delay(tries, self.token))

    def _close(self, connection: Connection | None) -> None:
        """Stop listening. A connection that is lent is closed when it is given back."""
        self.is_listening = False
        self._take()
        if self._overdue is not None:
            self._overdue.cancel()
        elif connection is not None and connection is self._connection:
            connection.pgconn.finish()
        self._connection = self._overdue = None

    async def _open(self, connection: Connection) -> None:
        connection.add_notify_handler(self._on_notify)
        async with asyncio.timeout(PROBE_TIMEOUT_SECONDS):
            await connection.execute(self._sql["listen"], prepare=False)
        self.is_listening = True
        self.notifier.notify_all()  # notifications may have been missed in the gap

    async def _wait_until_lost(self, connection: Connection) -> None:
        """Wait until the connection is lost, then raise."""
        self._lost.clear()
        self.give_back(connection)
        while True:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(self._probe_interval):
                    await self._lost.wait()
                raise psycopg.OperationalError("the listening connection was closed")
            if self._take() is None:
                continue  # a statement is in progress
            self._answered.clear()
            async with asyncio.timeout(PROBE_TIMEOUT_SECONDS):
                try:
                    await connection.execute(self._sql["probe"], {"payload": f"p:{self.token}"})
                finally:
                    self.give_back(connection)
                await self._answered.wait()

    def _read(self, connection: Connection, socket: int) -> None:
        try:
            connection.pgconn.consume_input()
            while (found := connection.pgconn.notifies()) is not None:
                self._dispatch(found.extra.decode())
        except psycopg.Error:
            asyncio.get_running_loop().remove_reader(socket)
            self._idle = None
            self._lost.set()

    def _on_notify(self, notify: Notify) -> None:
        self._dispatch(notify.payload)

    def _dispatch(self, payload: str) -> None:
        if payload == f"p:{self.token}":
            self._answered.set()
        elif payload.startswith("d:"):
            where, _, jobs = payload.rpartition(":")
            for job in jobs.split(","):
                self.notifier.notify(f"{where}:{job}")
        else:
            self.notifier.notify(payload)
