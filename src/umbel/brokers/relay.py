"""Sends what the books have and nobody carries yet: the outbox is the table itself."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence

from umbel.brokers.hall import MOMENT
from umbel.brokers.mapped import MappedTransport
from umbel.brokers.port import Ledger
from umbel.brokers.transport import Lane, Transport
from umbel.errors import UmbelError, Unavailable
from umbel.messages import Envelope
from umbel.resilience import Backoff

_BATCH = 500
_PATIENCE = 5.0
_AGAIN = Backoff(first=0.2, factor=2.0, cap=5.0)


class Relay:
    """Carries from a ledger to a transport, for as long as somebody fetches.

    ``can_carry`` tells whether a message may be sent at all, ``sent`` is told where some went.
    """

    def __init__(
        self,
        transport: Transport,
        ledger: Ledger,
        *,
        namespace: str,
        can_carry: Callable[[Envelope], bool],
        sent: Callable[[set[str]], None],
    ) -> None:
        self._transport = transport
        self._ledger = ledger
        self._namespace = namespace
        self._can_carry = can_carry
        self._sent = sent
        self._lost: set[Lane] = set()
        """Lanes whose messages are gone: what was sent there has to be sent again."""
        self._recalling: set[asyncio.Task[None]] = set()
        self._running: asyncio.Task[None] | None = None
        self._queues: tuple[str, ...] = ()
        self._ended: list[asyncio.Task[None]] = []

    def serve(self, queues: Sequence[str]) -> None:
        """See to these queues from now on, too."""
        running = self._running
        if running is not None and not running.done() and {*queues} <= {*self._queues}:
            return
        if running is not None:
            running.cancel()
            self._ended.append(running)
        # Those who fetch here in turns have each a queue of their own: all of them are relayed to.
        self._queues = tuple(dict.fromkeys([*queues, *self._queues]))
        self._running = asyncio.create_task(self._keep_on(self._queues), name="umbel-relay")

    async def send_all(self, queues: Sequence[str]) -> None:
        """Send all that is unsent. Raises Unavailable when none of the brokers takes anything."""
        groups, failures = self._apart(queues), list[Unavailable]()
        for some in groups:
            try:
                while await self._send_some(some, 0.0):
                    pass
            except Unavailable as error:
                failures.append(error)
        if failures and len(failures) == len(groups):
            raise failures[0]

    def lost(self, lane: Lane) -> asyncio.Task[None]:
        """Recall at once. A lane is made when that is done: until then anybody sees it missing."""
        recalling = asyncio.create_task(self.recall(lane))
        self._recalling.add(recalling)
        recalling.add_done_callback(self._recalled)
        return recalling

    async def recall(self, *lanes: Lane) -> None:
        """Have what was sent there sent again; and to whatever lane is known to be lost."""
        lost = {*lanes, *self._lost}
        if lost:
            self._lost -= lost
            try:
                await self._ledger.recall([*lost])
            except BaseException:
                self._lost |= lost
                raise

    async def close(self) -> None:
        """Send nothing any more. Twice is fine."""
        running, self._running = self._running, None
        tasks = [*([running] if running is not None else []), *self._ended, *self._recalling]
        self._ended.clear()
        for task in tasks:
            task.cancel()
            await asyncio.wait([task])

    async def _keep_on(self, queues: tuple[str, ...]) -> None:
        async with asyncio.TaskGroup() as relays:
            for some in self._apart(queues):
                relays.create_task(self._keep_on_with(some), name="umbel-relay")

    async def _keep_on_with(self, queues: tuple[str, ...]) -> None:
        tries = 0
        while True:
            try:
                await self._send_some(queues, _PATIENCE)
                tries = 0
            except UmbelError:
                tries += 1
                await asyncio.sleep(_AGAIN.delay(tries, self._namespace))

    def _apart(self, queues: Sequence[str]) -> list[tuple[str, ...]]:
        """Queues in groups of one broker each: one that is down keeps no other's jobs here."""
        if isinstance(self._transport, MappedTransport):
            return self._transport.apart(queues)
        return [tuple(queues)]

    async def _send_some(self, queues: Sequence[str], wait: float) -> bool:
        """Send what is unsent; whether there was something."""
        await self.recall()
        found = await self._ledger.unsent(queues, _BATCH, wait)
        # One that somebody put into the books by hand may be too large: it stays there.
        fitting = [one for one in found if self._can_carry(one)]
        if fitting:
            await self._transport.send(fitting)
            await self._ledger.sent([one.id for one in fitting])
            self._sent({one.queue for one in fitting})
        elif found:
            await asyncio.sleep(min(wait, MOMENT))
        return bool(fitting)

    def _recalled(self, recalling: asyncio.Task[None]) -> None:
        self._recalling.discard(recalling)
        if not recalling.cancelled():
            recalling.exception()  # whoever waits has it, and the relay tries again
