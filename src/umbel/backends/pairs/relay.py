"""Sends the jobs in the store that the transport does not have. The job table is the outbox."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from functools import partial

from umbel.backends.broker import JobStore
from umbel.backends.pairs.multi_transport import MultiTransport
from umbel.backends.transport import Lane, Transport
from umbel.errors import BadMessage, LeaseLost, MessageTooLarge, Unavailable
from umbel.messages import Envelope
from umbel.services import keep_running
from umbel.telemetry import Telemetry, events

_BATCH = 500
_WAIT_SECONDS = 5.0
_RETRY_SECONDS = 1.0
"""Pause before jobs are tried again that could neither be sent nor be buried."""

Bury = Callable[[Mapping[str, str], Mapping[str, str], str], Awaitable[object]]
"""Buries jobs that can never be sent: mappings of id to queue and of id to the reason, and the
incarnation that claims them. Raises LeaseLost."""


class Relay:
    """Sends jobs from a job store to a transport, from the first fetch until it is closed.

    ``bury`` buries a job that can never be sent. ``on_sent`` is called with the queues to which
    something was sent.
    """

    def __init__(
        self,
        transport: Transport,
        job_store: JobStore,
        *,
        bury: Bury,
        on_sent: Callable[[set[str]], None],
        telemetry: Telemetry,
    ) -> None:
        self._transport = transport
        self._job_store = job_store
        self._bury = bury
        self._on_sent = on_sent
        self._telemetry = telemetry
        self._owner = ""
        """The incarnation of the worker that fetched last."""
        self._lost_lanes: set[Lane] = set()
        """Lanes whose messages are lost and whose jobs are not yet marked as unsent."""
        self._marking: set[asyncio.Task[None]] = set()
        self._running: asyncio.Task[None] | None = None
        self._queues: tuple[str, ...] = ()
        self._cancelled: list[asyncio.Task[None]] = []

    def serve(self, queues: Sequence[str], owner: str) -> None:
        """Send the jobs of these queues from now on, too. ``owner`` claims jobs to bury them."""
        running, self._owner = self._running, owner
        if running is not None and not running.done() and {*queues} <= {*self._queues}:
            return
        if running is not None:
            running.cancel()
            self._cancelled.append(running)
        # Workers that fetch here in turn have one inbox each: all of their queues are served.
        self._queues = tuple(dict.fromkeys([*queues, *self._queues]))
        self._running = asyncio.create_task(self._run(self._queues), name="umbel-relay")

    async def send_all(self, queues: Sequence[str], owner: str) -> None:
        """Send all unsent jobs. Raises Unavailable if none of the brokers accepts anything."""
        self._owner = owner
        groups, failures = self._group_by_transport(queues), list[Unavailable]()
        for some in groups:
            try:
                while await self._send_some(some, 0.0):
                    pass
            except Unavailable as error:
                failures.append(error)
        if failures and len(failures) == len(groups):
            raise failures[0]

    def on_lane_missing(self, lane: Lane) -> asyncio.Task[None]:
        """Start marking the jobs of a lost lane as unsent.

        The lane is created when the task is done. Until then every process finds it missing.
        """
        marking = asyncio.create_task(self.mark_lanes_unsent(lane))
        self._marking.add(marking)
        marking.add_done_callback(self._end_marking)
        return marking

    async def mark_lanes_unsent(self, *lanes: Lane) -> None:
        """Mark the jobs of these lanes as unsent, and those of all lanes known to be lost."""
        lost = {*lanes, *self._lost_lanes}
        if lost:
            self._lost_lanes -= lost
            try:
                await self._job_store.mark_lanes_unsent([*lost])
            except BaseException:
                self._lost_lanes |= lost
                raise

    async def close(self) -> None:
        """Stop sending. Closing twice is fine."""
        running, self._running = self._running, None
        tasks = [*([running] if running is not None else []), *self._cancelled, *self._marking]
        self._cancelled.clear()
        for task in tasks:
            task.cancel()
            await asyncio.wait([task])

    async def _run(self, queues: tuple[str, ...]) -> None:
        async with asyncio.TaskGroup() as relays:
            for some in self._group_by_transport(queues):
                service = _RelayService(partial(self._send_some, some, _WAIT_SECONDS))
                relays.create_task(keep_running(service, self._telemetry), name="umbel-relay")

    def _group_by_transport(self, queues: Sequence[str]) -> list[tuple[str, ...]]:
        """Group queues by broker, so that an unreachable broker does not delay the others' jobs."""
        if isinstance(self._transport, MultiTransport):
            return self._transport.group_queues(queues)
        return [tuple(queues)]

    async def _send_some(self, queues: Sequence[str], wait: float) -> bool:
        """Send unsent jobs, and bury those that can never be sent; return if there were any."""
        await self.mark_lanes_unsent()
        found = await self._job_store.find_unsent(queues, _BATCH, wait)
        errors: dict[str, Exception] = {}
        sent = await self._send_each(found, errors) if found else []
        if sent:
            await self._job_store.mark_sent([one.id for one in sent])
            self._on_sent({one.queue for one in sent})
        if not errors:
            return bool(sent)
        for error in errors.values():
            # An error of the transport itself would fail every message: none is buried for it.
            if not sent and not isinstance(error, BadMessage | MessageTooLarge):
                raise error
        is_buried = await self._bury_each([one for one in found if one.id in errors], errors)
        if not sent and not is_buried:
            await asyncio.sleep(min(wait, _RETRY_SECONDS))
        return bool(sent or is_buried)

    async def _send_each(
        self, batch: Sequence[Envelope], errors: dict[str, Exception]
    ) -> list[Envelope]:
        """Send a batch; if that fails, send its halves. Return the messages that were sent.

        The error of each other message is added to ``errors``.

        Raises:
            Unavailable: each message may or may not have been sent.
        """
        try:
            await self._transport.send(batch)
        except Unavailable:
            raise
        except Exception as error:  # noqa: BLE001 - one message must not block the others
            if len(batch) == 1:
                errors[batch[0].id] = error
                return []
            half = len(batch) // 2
            first = await self._send_each(batch[:half], errors)
            return first + await self._send_each(batch[half:], errors)
        return [*batch]

    async def _bury_each(self, jobs: Sequence[Envelope], errors: Mapping[str, Exception]) -> bool:
        """Bury jobs that can never be sent. Return False if the owner is not registered any more;
        the next owner tries again."""
        reasons = {one.id: f"cannot be sent: {_describe(errors[one.id])}" for one in jobs}
        try:
            await self._bury({one.id: one.queue for one in jobs}, reasons, self._owner)
        except LeaseLost:
            return False
        for one in jobs:
            event = events.JobUnsendable(job=one.id, task=one.subject, error=reasons[one.id])
            self._telemetry.emit(event)
        return True

    def _end_marking(self, marking: asyncio.Task[None]) -> None:
        self._marking.discard(marking)
        if not marking.cancelled():
            marking.exception()  # the caller sees it if it waits, and the relay tries again


class _RelayService:
    """Sends repeatedly; ``keep_running`` reports errors and waits after each."""

    name = "relay"

    def __init__(self, send: Callable[[], Awaitable[object]]) -> None:
        self._send = send

    async def run(self, working: Callable[[], None]) -> None:
        while True:
            await self._send()
            working()


def _describe(error: Exception) -> str:
    return str(error) if isinstance(error, BadMessage | MessageTooLarge) else repr(error)
