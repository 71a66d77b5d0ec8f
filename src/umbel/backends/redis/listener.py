"""Wake-ups between processes: one subscribed connection, heard by everybody on an event loop.

What is said on a namespace's channel, each "look", never "take"; ``<root>`` is what its keys begin
with:

``r:<root>:<queue>``   something became ready
``s:<root>:<queue>``   something was scheduled: the next due time is earlier now
``d:<root>:<id>``      a job that somebody waits for is final
``c:<root>``           a pause or a cancellation
``m:<root>:<lane>``    a message came to a lane of the transport

On a channel of its own it is handed jobs, see hands.py.
"""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import Awaitable, Callable
from contextlib import suppress

from redis.exceptions import ResponseError

from umbel.backends.notifier import Notifier
from umbel.backends.redis.connections import Connection, drop
from umbel.backends.redis.handed_jobs import Hands
from umbel.backends.redis.pushed_messages import Attention
from umbel.backends.redis.values import text
from umbel.resilience import Backoff

PROBE_EVERY = 10.0
PROBE_ANSWER = 3.0
RECONNECT = Backoff(first=0.1, factor=2, cap=5.0, jitter=0.5)


class Listener:
    """Rings the bell for every hint. Reconnects for ever, and wakes everybody after each gap.

    A connection that looks alive is not believed: after ten seconds of silence the server has to
    answer a ping, or it counts as gone.
    """

    def __init__(
        self,
        connect: Callable[[], Awaitable[Connection]],
        on_stop: Callable[[], None],
        *,
        probe_every: float = PROBE_EVERY,
        probe_answer: float = PROBE_ANSWER,
    ) -> None:
        self.bell = Notifier()
        self.hands = Hands()
        """Tickets to stand by with: the bell rings for them."""
        self._connect = connect
        self._on_stop = on_stop
        self._probe_every = probe_every
        self._probe_answer = probe_answer
        self._token = secrets.token_hex(4)
        self._users: set[object] = set()
        self._roots: set[str] = set()
        self._heard: set[str] = set()
        self._task: asyncio.Task[None] | None = None
        self._connection: Connection | None = None

    def hears(self, root: str) -> bool:
        """Whether silence means that nothing happened. Else: look now and then."""
        return root in self._heard

    def join(self, user: object, root: str) -> None:
        """Somebody wants to hear of a namespace. The first one starts the listening."""
        self._users.add(user)
        if root not in self._roots:
            self._roots.add(root)
            if self._connection is not None:  # it subscribes with the next connection
                drop(self._connection)
        if self._task is None:
            self._task = asyncio.create_task(self._run(), name="umbel-listener")

    async def leave(self, user: object) -> None:
        """Somebody is gone. The last one stops it."""
        self._users.discard(user)
        if not self._users:
            self._on_stop()
            task, self._task = self._task, None
            if task is not None:
                task.cancel()
                await asyncio.wait([task])

    async def _run(self) -> None:
        tries = 0
        while True:
            roots = sorted(self._roots)
            try:
                attention = await self._open(roots)
                tries = 0
                if roots == sorted(self._roots):  # else somebody has joined meanwhile
                    await attention.keep(self._probe_every, self._probe_answer)
            except Exception:  # noqa: BLE001 - an odd hint must not end the listening
                tries += 1
            finally:
                self._heard.clear()
                connection, self._connection = self._connection, None
                if connection is not None:
                    drop(connection)
            if roots == sorted(self._roots):
                await asyncio.sleep(RECONNECT.delay(tries, self._token))

    async def _open(self, roots: list[str]) -> Attention:
        async with asyncio.timeout(self._probe_answer):
            self._connection = await self._connect()
            attention = Attention(self._connection, self._hear)
            await attention.subscribe([f"{root}:hints" for root in roots])
            with suppress(ResponseError):  # a user who may not: then nobody can hand it anything
                await attention.subscribe([f"{root}:hands:{self.hands.token}" for root in roots])
        self._heard.update(roots)
        self.bell.ring_all()  # nobody knows what was said during the gap
        return attention

    def _hear(self, channel: bytes, message: bytes) -> None:
        is_hint = channel.endswith(b":hints")
        self.bell.ring(text(message) if is_hint else self.hands.put(message))
