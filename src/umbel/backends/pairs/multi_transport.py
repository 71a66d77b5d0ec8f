"""Several transports that work as one: each queue is carried by one of them.

A receive waits on all of them at once and returns what comes first. An unreachable transport does
not delay the others: it is tried again, less and less often, while they continue.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from typing import TypeVar

from umbel.backends.transport import Arrival, Lane, Reply, Transport
from umbel.errors import MessageTooLarge, UmbelError, Unavailable
from umbel.messages import Envelope
from umbel.resilience import Backoff

_GRACE_SECONDS = 0.1
"""Time for the other transports to return their messages when one has returned some."""
_NO_WAIT_GRACE_SECONDS = 2.0
"""That time for a receive that does not wait: its caller may not receive again soon."""
_HOLD_SECONDS = 1.0
"""Maximum time for which a message is held that no receive asks for."""
_RETRY_PAUSES = Backoff(first=0.2, factor=2.0, cap=5.0)

T = TypeVar("T")


class _Receiver:
    """One of the transports, with at most one receive in progress."""

    def __init__(self, transport: Transport) -> None:
        self.transport = transport
        self.task: asyncio.Task[list[Arrival]] | None = None
        self.is_late = False
        """The receive did not end in time; it is not waited for again before it has ended."""
        self.error: UmbelError | None = None
        """Why the transport could not be reached when it was last tried."""
        self._tries = 0
        self._pause_until = 0.0
        self._releases: set[asyncio.Task[None]] = set()

    @property
    def pause_left(self) -> float:
        """Seconds until it is tried again."""
        return max(self._pause_until - asyncio.get_running_loop().time(), 0.0)

    def start(self, capacity: Mapping[Lane, int], wait: float) -> None:
        """Start a receive, unless one is in progress or the transport was just unreachable."""
        if self.task is None and not self.pause_left:
            self.task = asyncio.create_task(self.transport.receive(capacity, wait))

    def collect(self, capacity: Mapping[Lane, int]) -> list[Arrival]:
        """Return the messages of the receive that has ended. Those beyond the capacity go back."""
        task, self.task = self.task, None
        assert task is not None
        try:
            arrivals = task.result()
        except UmbelError as error:
            self.error, self._tries = error, self._tries + 1
            pause = _RETRY_PAUSES.delay(self._tries, type(self.transport).__name__)
            self._pause_until = asyncio.get_running_loop().time() + pause
            return []
        self.error, self._tries, self._pause_until = None, 0, 0.0
        kept: list[Arrival] = []
        left = dict(capacity)
        for one in arrivals:
            left[one.lane] = left.get(one.lane, 0) - 1
            if left[one.lane] >= 0:
                kept.append(one)
        if len(kept) < len(arrivals):
            fitting = {id(one) for one in kept}
            self._release([one for one in arrivals if id(one) not in fitting])
        return kept

    def _release(self, arrivals: Sequence[Arrival]) -> None:
        async def release() -> None:
            with suppress(Unavailable):  # then they return when their connection ends
                await self.transport.release(arrivals)

        releasing = asyncio.create_task(release())
        self._releases.add(releasing)
        releasing.add_done_callback(self._releases.discard)

    async def close(self) -> None:
        """Cancel the receive; unacknowledged messages return to their lanes."""
        tasks = [*self._releases, *([self.task] if self.task else [])]
        self.task = None
        for task in tasks:
            task.cancel()
            await asyncio.wait([task])
        await self.transport.close()


Shares = Mapping[_Receiver, Mapping[Lane, int]]
"""The capacity for the lanes of each transport."""


class MultiTransport:
    """See ``Transport`` for what each method guarantees.

    ``named`` maps queues to their transports, and ``rest`` carries all other queues. None means
    that no transport carries such a queue.
    """

    def __init__(self, named: Mapping[str, Transport | None], rest: Transport | None) -> None:
        transports = dict.fromkeys(one for one in (*named.values(), rest) if one is not None)
        receivers = {transport: _Receiver(transport) for transport in transports}
        self._receivers = [*receivers.values()]
        self._named = {queue: receivers[one] if one else None for queue, one in named.items()}
        self._rest = receivers[rest] if rest else None
        self._stopped = asyncio.Event()
        self._cleaning: asyncio.TimerHandle | None = None
        self._receiving = 0

    @property
    def max_body_bytes(self) -> int:
        """The smallest limit of all transports, because a job may be moved to any queue."""
        return min(receiver.transport.max_body_bytes for receiver in self._receivers)

    def carries(self, queue: str) -> bool:
        """Return whether one of these transports carries the queue."""
        return self._named.get(queue, self._rest) is not None

    def group_queues(self, queues: Sequence[str]) -> list[tuple[str, ...]]:
        """Return the queues that are carried, grouped by transport."""
        carried = [queue for queue in queues if self.carries(queue)]
        return [tuple(some) for some in self._group(carried, lambda queue: queue).values()]

    def transports_of(self, queues: Iterable[str]) -> set[Transport]:
        """Return the transports that carry these queues."""
        return {receiver.transport for receiver in self._group(queues, lambda queue: queue)}

    async def send(self, envelopes: Sequence[Envelope]) -> None:
        for envelope in envelopes:
            if len(envelope.body.data) > self.max_body_bytes:
                raise MessageTooLarge(
                    f"job {envelope.id} has {len(envelope.body.data):,} bytes; the brokers carry"
                    f" {self.max_body_bytes:,}: pass a reference instead of the data"
                )
        shares = self._group(envelopes, lambda envelope: envelope.queue)
        await _run_all(receiver.transport.send(some) for receiver, some in shares.items())

    async def receive(self, capacity: Mapping[Lane, int], wait: float) -> list[Arrival]:
        lanes = self._group(capacity, lambda lane: lane.queue)
        shares = {
            receiver: {lane: capacity[lane] for lane in some} for receiver, some in lanes.items()
        }
        self._stopped.clear()
        self._receiving += 1
        try:
            # Poll each before any wait: else a busy one would always stop the others' receives.
            found = await self._poll(shares, _GRACE_SECONDS if wait > 0 else _NO_WAIT_GRACE_SECONDS)
            if wait > 0 and not found:
                found = await self._wait(shares, wait)
        finally:
            self._receiving -= 1
            self._schedule_clean_up()
        if shares and not found and all(receiver.error for receiver in shares):
            raise next(receiver.error for receiver in shares if receiver.error)
        return found

    async def accept(self, arrivals: Sequence[Arrival]) -> None:
        for receiver, some in self._group(arrivals, _queue_of).items():
            with suppress(Unavailable):  # then they are delivered again, and their jobs are known
                await receiver.transport.accept(some)

    async def release(self, arrivals: Sequence[Arrival]) -> None:
        for receiver, some in self._group(arrivals, _queue_of).items():
            with suppress(Unavailable):  # then they return when their connection ends
                await receiver.transport.release(some)

    async def reply(self, replies: Sequence[Reply]) -> None:
        shares = self._group(replies, lambda reply: reply.queue)
        await _run_all(receiver.transport.reply(some) for receiver, some in shares.items())

    def stop_waiting(self) -> None:
        self._stopped.set()
        for receiver in self._receivers:
            receiver.transport.stop_waiting()

    async def purge(self, queue: str) -> None:
        for receiver in self._group([queue], lambda queue: queue):
            await receiver.transport.purge(queue)

    async def remove(self, queue: str) -> None:
        for receiver in self._group([queue], lambda queue: queue):
            await receiver.transport.remove(queue)

    async def check(self) -> None:
        await _run_all(receiver.transport.check() for receiver in self._receivers)

    async def close(self) -> None:
        if self._cleaning is not None:
            self._cleaning.cancel()
        for receiver in self._receivers:
            await receiver.close()

    # --- receiving ---------------------------------------------------------------------------

    async def _poll(self, shares: Shares, timeout: float) -> list[Arrival]:
        """Return the messages that are there now, of all transports that answer in time."""
        # Messages may have come after an earlier call.
        if found := await self._stop_and_collect(shares):
            return found
        for receiver, capacity in shares.items():
            receiver.start(capacity, 0.0)
        return await _wait_and_collect(shares, timeout)

    async def _wait(self, shares: Shares, wait: float) -> list[Arrival]:
        """Return the first messages that come, and those that the other transports have by then."""
        clock = asyncio.get_running_loop().time
        until = clock() + wait
        stopped = asyncio.ensure_future(self._stopped.wait())
        try:
            while (left := until - clock()) > 0 and not self._stopped.is_set():
                for receiver, capacity in shares.items():
                    receiver.start(capacity, left)
                tasks = [receiver.task for receiver in shares if receiver.task is not None]
                if shares and not tasks:
                    return []  # all are unreachable
                soon = min(
                    (receiver.pause_left for receiver in shares if receiver.task is None),
                    default=left,
                )
                await asyncio.wait(
                    [*tasks, stopped], timeout=min(left, soon), return_when=asyncio.FIRST_COMPLETED
                )
                if found := _collect_ended(shares):
                    return found + await self._stop_and_collect(shares)
            return await self._stop_and_collect(shares)
        finally:
            stopped.cancel()

    async def _stop_and_collect(self, shares: Shares) -> list[Arrival]:
        for receiver in shares:
            if receiver.task is not None:
                receiver.transport.stop_waiting()
        return await _wait_and_collect(shares, _GRACE_SECONDS)

    def _schedule_clean_up(self) -> None:
        if self._cleaning is None and any(receiver.task for receiver in self._receivers):
            for receiver in self._receivers:
                receiver.transport.stop_waiting()
            loop = asyncio.get_running_loop()
            self._cleaning = loop.call_later(_HOLD_SECONDS, self._clean_up)

    def _clean_up(self) -> None:
        """Release messages that came when no receive was waiting any more."""
        self._cleaning = None
        if not self._receiving:
            for receiver in self._receivers:
                if receiver.task is not None and receiver.task.done():
                    receiver.collect({})
            self._schedule_clean_up()

    def _group(self, things: Iterable[T], queue_of: Callable[[T], str]) -> dict[_Receiver, list[T]]:
        """Group things by the transport that carries their queue."""
        found: dict[_Receiver, list[T]] = {}
        for thing in things:
            receiver = self._named.get(queue_of(thing), self._rest)
            if receiver is not None:
                found.setdefault(receiver, []).append(thing)
        return found


async def _wait_and_collect(shares: Shares, timeout: float) -> list[Arrival]:
    """Return the messages of the receives that end in time."""
    if tasks := [
        receiver.task for receiver in shares if receiver.task is not None and not receiver.is_late
    ]:
        await asyncio.wait(tasks, timeout=timeout)
    for receiver in shares:
        receiver.is_late = receiver.task is not None and not receiver.task.done()
    return _collect_ended(shares)


def _collect_ended(shares: Shares) -> list[Arrival]:
    """Return the messages of the receives that have ended."""
    ended = [receiver for receiver in shares if receiver.task is not None and receiver.task.done()]
    return [arrival for receiver in ended for arrival in receiver.collect(shares[receiver])]


def _queue_of(arrival: Arrival) -> str:
    return arrival.lane.queue


async def _run_all(works: Iterable[Awaitable[None]]) -> None:
    """Await all of them, each to its end. Raise the first error."""
    for outcome in await asyncio.gather(*works, return_exceptions=True):
        if isinstance(outcome, BaseException):
            raise outcome
