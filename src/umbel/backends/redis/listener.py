"""Wake-ups between processes: one subscribed connection for all users on an event loop.

A wake-up on the channel of a namespace says that a check is worthwhile; it gives no job to the
receiver. ``<root>`` is the beginning of the namespace's keys:

``r:<root>:<queue>``   a job became ready
``s:<root>:<queue>``   a job was scheduled that is due before the others
``d:<root>:<id>``      a job has finished for which a process waits
``c:<root>``           pauses have changed, or rules of gates
``e:<root>:<section>`` entries of the coordination store have changed
``m:<root>:<lane>``    a message came to a lane of the transport

On a second channel the process is handed jobs: see standby.py.
"""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import Awaitable, Callable
from contextlib import suppress

from redis.exceptions import ResponseError

from umbel.backends.notifier import Notifier
from umbel.backends.redis.connections import Connection, abort
from umbel.backends.redis.pubsub_connection import PubSubConnection
from umbel.backends.redis.standby import StandbyTickets
from umbel.backends.redis.values import text
from umbel.resilience import Backoff

_PROBE_EVERY_SECONDS = 10.0
_PROBE_ANSWER_SECONDS = 3.0
_RECONNECT_BACKOFF = Backoff(first=0.1, factor=2, cap=5.0, jitter=0.5)


class Listener:
    """Passes each wake-up to its notifier. Always reconnects, and wakes all waiters after each gap.

    After ten seconds without data the server must answer a ping; otherwise the connection counts as
    lost.
    """

    def __init__(
        self,
        connect: Callable[[], Awaitable[Connection]],
        on_stop: Callable[[], None],
        *,
        probe_every: float = _PROBE_EVERY_SECONDS,
        probe_answer: float = _PROBE_ANSWER_SECONDS,
    ) -> None:
        self.notifier = Notifier()
        self.tickets = StandbyTickets()
        """The notifier wakes the holder of a ticket that was handed a job."""
        self._connect = connect
        self._on_stop = on_stop
        self._probe_every = probe_every
        self._probe_answer = probe_answer
        self._token = secrets.token_hex(4)
        self._users: set[object] = set()
        self._roots: set[str] = set()
        self._subscribed: set[str] = set()
        self._task: asyncio.Task[None] | None = None
        self._connection: Connection | None = None

    def is_subscribed(self, root: str) -> bool:
        """Return whether wake-ups of a namespace arrive. If not, its users must poll."""
        return root in self._subscribed

    def join(self, user: object, root: str) -> None:
        """Listen for a user to the wake-ups of a namespace. The first user starts the listener."""
        self._users.add(user)
        if root not in self._roots:
            self._roots.add(root)
            if self._connection is not None:  # the next connection subscribes to it
                abort(self._connection)
        if self._task is None:
            self._task = asyncio.create_task(self._run(), name="umbel-listener")

    async def leave(self, user: object) -> None:
        """Stop listening for a user. The last user stops the listener."""
        self._users.discard(user)
        if not self._users:
            self._on_stop()
            task, self._task = self._task, None
            if task is not None:
                task.cancel()
                await asyncio.wait([task])

    async def _run(self) -> None:
        failures = 0
        while True:
            roots = sorted(self._roots)
            try:
                connection = await self._open(roots)
                failures = 0
                if roots == sorted(self._roots):  # otherwise a namespace was added: reconnect
                    await connection.watch(self._probe_every, self._probe_answer)
            except Exception:  # noqa: BLE001 - a malformed wake-up must not end the listener
                failures += 1
            finally:
                self._subscribed.clear()
                broken, self._connection = self._connection, None
                if broken is not None:
                    abort(broken)
            if roots == sorted(self._roots):
                await asyncio.sleep(_RECONNECT_BACKOFF.delay(failures, self._token))

    async def _open(self, roots: list[str]) -> PubSubConnection:
        async with asyncio.timeout(self._probe_answer):
            self._connection = await self._connect()
            connection = PubSubConnection(self._connection, self._receive)
            await connection.subscribe([f"{root}:wake_ups" for root in roots])
            with suppress(ResponseError):  # if the user may not, this process is never handed a job
                token = self.tickets.token
                await connection.subscribe([f"{root}:handovers:{token}" for root in roots])
        self._subscribed.update(roots)
        self.notifier.notify_all()  # wake-ups may have been lost while it was disconnected
        return connection

    def _receive(self, channel: bytes, message: bytes) -> None:
        is_wake_up = channel.endswith(b":wake_ups")
        self.notifier.notify(text(message) if is_wake_up else self.tickets.receive(message))
