"""Sends what the books have and nobody carries yet: the outbox is the table itself."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from functools import partial

from umbel.backends.broker import JobStore
from umbel.backends.pairs.multi_transport import MultiTransport
from umbel.backends.pairs.prefetch_buffer import MOMENT
from umbel.backends.transport import Lane, Transport
from umbel.errors import BadMessage, LeaseLost, MessageTooLarge, Unavailable
from umbel.messages import Envelope
from umbel.services import keep_running
from umbel.telemetry import Telemetry, events

_BATCH = 500
_PATIENCE = 5.0

Bury = Callable[[Mapping[str, str], Mapping[str, str], str], Awaitable[object]]
"""Ends jobs that can never be sent: their ids and queues, the reason for each id, and the
incarnation that claims them for it. Raises LeaseLost."""


class Relay:
    """Carries from a ledger to a transport, for as long as somebody fetches.

    ``bury`` ends a job that can never be sent, ``sent`` is told where some went.
    """

    def __init__(
        self,
        transport: Transport,
        ledger: JobStore,
        *,
        bury: Bury,
        sent: Callable[[set[str]], None],
        telemetry: Telemetry,
    ) -> None:
        self._transport = transport
        self._ledger = ledger
        self._bury = bury
        self._sent = sent
        self._telemetry = telemetry
        self._owner = ""
        """The incarnation of the worker that fetched last."""
        self._lost: set[Lane] = set()
        """Lanes whose messages are gone: what was sent there has to be sent again."""
        self._recalling: set[asyncio.Task[None]] = set()
        self._running: asyncio.Task[None] | None = None
        self._queues: tuple[str, ...] = ()
        self._ended: list[asyncio.Task[None]] = []

    def serve(self, queues: Sequence[str], owner: str) -> None:
        """Send what these queues have from now on, too. The owner claims what is to be buried."""
        running, self._owner = self._running, owner
        if running is not None and not running.done() and {*queues} <= {*self._queues}:
            return
        if running is not None:
            running.cancel()
            self._ended.append(running)
        # Those who fetch here in turns have each a queue of their own: all of them are relayed to.
        self._queues = tuple(dict.fromkeys([*queues, *self._queues]))
        self._running = asyncio.create_task(self._keep_on(self._queues), name="umbel-relay")

    async def send_all(self, queues: Sequence[str], owner: str) -> None:
        """Send all that is unsent. Raises Unavailable when none of the brokers takes anything."""
        self._owner = owner
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
                service = _Relaying(partial(self._send_some, some, _PATIENCE))
                relays.create_task(keep_running(service, self._telemetry), name="umbel-relay")

    def _apart(self, queues: Sequence[str]) -> list[tuple[str, ...]]:
        """Queues in groups of one broker each: one that is down keeps no other's jobs here."""
        if isinstance(self._transport, MultiTransport):
            return self._transport.apart(queues)
        return [tuple(queues)]

    async def _send_some(self, queues: Sequence[str], wait: float) -> bool:
        """Send what is unsent, and bury what can never be sent; whether there was something."""
        await self.recall()
        found = await self._ledger.unsent(queues, _BATCH, wait)
        errors: dict[str, Exception] = {}
        sent = await self._send_each(found, errors) if found else []
        if sent:
            await self._ledger.sent([one.id for one in sent])
            self._sent({one.queue for one in sent})
        if not errors:
            return bool(sent)
        for error in errors.values():
            # An error of the transport itself would fail every message: none is buried for it.
            if not sent and not isinstance(error, BadMessage | MessageTooLarge):
                raise error
        buried = await self._end([one for one in found if one.id in errors], errors)
        if not sent and not buried:
            await asyncio.sleep(min(wait, MOMENT))
        return bool(sent or buried)

    async def _send_each(
        self, batch: Sequence[Envelope], errors: dict[str, Exception]
    ) -> list[Envelope]:
        """Send a batch, in halves if it fails: those that were sent, and the error of each other.

        Raises:
            Unavailable: any of them may be sent or not.
        """
        try:
            await self._transport.send(batch)
        except Unavailable:
            raise
        except Exception as error:  # noqa: BLE001 - one message must not keep the others here
            if len(batch) == 1:
                errors[batch[0].id] = error
                return []
            half = len(batch) // 2
            first = await self._send_each(batch[:half], errors)
            return first + await self._send_each(batch[half:], errors)
        return [*batch]

    async def _end(self, jobs: Sequence[Envelope], errors: Mapping[str, Exception]) -> bool:
        """Bury jobs that can never be sent. False: the owner is gone; the next one tries again."""
        reasons = {one.id: f"cannot be sent: {_told(errors[one.id])}" for one in jobs}
        try:
            await self._bury({one.id: one.queue for one in jobs}, reasons, self._owner)
        except LeaseLost:
            return False
        for one in jobs:
            event = events.JobUnsendable(job=one.id, task=one.subject, error=reasons[one.id])
            self._telemetry.emit(event)
        return True

    def _recalled(self, recalling: asyncio.Task[None]) -> None:
        self._recalling.discard(recalling)
        if not recalling.cancelled():
            recalling.exception()  # whoever waits has it, and the relay tries again


class _Relaying:
    """Sends again and again; ``keep_running`` tells of errors and waits after one."""

    name = "relay"

    def __init__(self, send: Callable[[], Awaitable[object]]) -> None:
        self._send = send

    async def run(self, working: Callable[[], None]) -> None:
        while True:
            await self._send()
            working()


def _told(error: Exception) -> str:
    return str(error) if isinstance(error, BadMessage | MessageTooLarge) else repr(error)
