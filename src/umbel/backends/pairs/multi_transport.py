"""A transport out of several: each queue has the one that carries it.

Whoever receives waits on all of them at once and takes what comes first. One that is out of reach
keeps nobody from the others: it is tried again, less and less often, while they go on.
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

_GRACE = 0.1
"""Seconds that the others have to bring what they have, when one has brought something."""
_STRAGGLERS = 2.0
"""Seconds that they have where nobody would come back for it soon."""
_MOMENT = 1.0
"""Seconds that a message may be held that nobody asks for."""
_AGAIN = Backoff(first=0.2, factor=2.0, cap=5.0)

T = TypeVar("T")


class _Line:
    """One of the transports, and the receive that is under way there: one at most."""

    def __init__(self, transport: Transport) -> None:
        self.transport = transport
        self.task: asyncio.Task[list[Arrival]] | None = None
        self.late = False
        """It was waited for in vain: nobody does that again before it has answered."""
        self.trouble: UmbelError | None = None
        """Why it could not be reached, when it was last tried."""
        self._tries = 0
        self._rests_until = 0.0
        self._releases: set[asyncio.Task[None]] = set()

    @property
    def rest(self) -> float:
        """Seconds until it is tried again."""
        return max(self._rests_until - asyncio.get_running_loop().time(), 0.0)

    def ask(self, share: Mapping[Lane, int], wait: float) -> None:
        """Begin to receive, unless that is under way or was in vain just now."""
        if self.task is None and not self.rest:
            self.task = asyncio.create_task(self.transport.receive(share, wait))

    def collect(self, share: Mapping[Lane, int]) -> list[Arrival]:
        """What the receive that is over has brought. What there is no room for now goes back."""
        task, self.task = self.task, None
        assert task is not None
        try:
            arrivals = task.result()
        except UmbelError as error:
            self.trouble, self._tries = error, self._tries + 1
            pause = _AGAIN.delay(self._tries, type(self.transport).__name__)
            self._rests_until = asyncio.get_running_loop().time() + pause
            return []
        self.trouble, self._tries, self._rests_until = None, 0, 0.0
        kept: list[Arrival] = []
        left = dict(share)
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
            with suppress(Unavailable):  # then they go back with their connection
                await self.transport.release(arrivals)

        releasing = asyncio.create_task(release())
        self._releases.add(releasing)
        releasing.add_done_callback(self._releases.discard)

    async def close(self) -> None:
        """End what is under way; all that was not accepted goes back."""
        tasks = [*self._releases, *([self.task] if self.task else [])]
        self.task = None
        for task in tasks:
            task.cancel()
            await asyncio.wait([task])
        await self.transport.close()


Shares = Mapping[_Line, Mapping[Lane, int]]
"""The room for what each line carries."""


class MultiTransport:
    """See ``brokers.transport.Transport`` for what each method promises.

    ``named`` are the queues with a transport of their own, ``rest`` carries all others. None: what
    is in such a queue is not carried at all.
    """

    def __init__(self, named: Mapping[str, Transport | None], rest: Transport | None) -> None:
        transports = dict.fromkeys(one for one in (*named.values(), rest) if one is not None)
        lines = {transport: _Line(transport) for transport in transports}
        self._lines = [*lines.values()]
        self._named = {queue: lines[one] if one else None for queue, one in named.items()}
        self._rest = lines[rest] if rest else None
        self._nudged = asyncio.Event()
        self._tidying: asyncio.TimerHandle | None = None
        self._asking = 0

    @property
    def limit(self) -> int:
        """The smallest of all: a job may be moved to any queue."""
        return min(line.transport.limit for line in self._lines)

    def carries(self, queue: str) -> bool:
        """Whether messages of the queue go by any of these transports."""
        return self._named.get(queue, self._rest) is not None

    def apart(self, queues: Sequence[str]) -> list[tuple[str, ...]]:
        """The queues that are carried, in groups that go the same way."""
        carried = [queue for queue in queues if self.carries(queue)]
        return [tuple(some) for some in self._grouped(carried, lambda queue: queue).values()]

    def ways(self, queues: Iterable[str]) -> set[Transport]:
        """The transports by which messages of these queues go."""
        return {line.transport for line in self._grouped(queues, lambda queue: queue)}

    async def send(self, envelopes: Sequence[Envelope]) -> None:
        for envelope in envelopes:
            if len(envelope.body.data) > self.limit:
                raise MessageTooLarge(
                    f"job {envelope.id} has {len(envelope.body.data):,} bytes; the brokers carry"
                    f" {self.limit:,}: pass a reference instead of the data"
                )
        shares = self._grouped(envelopes, lambda envelope: envelope.queue)
        await _all(line.transport.send(some) for line, some in shares.items())

    async def receive(self, room: Mapping[Lane, int], wait: float) -> list[Arrival]:
        lanes = self._grouped(room, lambda lane: lane.queue)
        shares = {line: {lane: room[lane] for lane in some} for line, some in lanes.items()}
        self._nudged.clear()
        self._asking += 1
        try:
            # A look at each before any wait: else a busy one would call the others back for ever.
            found = await self._look(shares, _GRACE if wait > 0 else _STRAGGLERS)
            if wait > 0 and not found:
                found = await self._wait(shares, wait)
        finally:
            self._asking -= 1
            self._tidy_up_later()
        if shares and not found and all(line.trouble for line in shares):
            raise next(line.trouble for line in shares if line.trouble)
        return found

    async def accept(self, arrivals: Sequence[Arrival]) -> None:
        for line, some in self._grouped(arrivals, _queue_of).items():
            with suppress(Unavailable):  # then they come again, and are known
                await line.transport.accept(some)

    async def release(self, arrivals: Sequence[Arrival]) -> None:
        for line, some in self._grouped(arrivals, _queue_of).items():
            with suppress(Unavailable):  # then they go back with their connection
                await line.transport.release(some)

    async def reply(self, replies: Sequence[Reply]) -> None:
        shares = self._grouped(replies, lambda reply: reply.queue)
        await _all(line.transport.reply(some) for line, some in shares.items())

    def nudge(self) -> None:
        self._nudged.set()
        for line in self._lines:
            line.transport.nudge()

    async def purge(self, queue: str) -> None:
        for line in self._grouped([queue], lambda queue: queue):
            await line.transport.purge(queue)

    async def check(self) -> None:
        await _all(line.transport.check() for line in self._lines)

    async def close(self) -> None:
        if self._tidying is not None:
            self._tidying.cancel()
        for line in self._lines:
            await line.close()

    # --- receiving ---------------------------------------------------------------------------

    async def _look(self, shares: Shares, patience: float) -> list[Arrival]:
        """What is there now. Who takes longer than the others is not waited for."""
        if found := await self._call_back(shares):  # what an earlier call could not wait for
            return found
        for line, share in shares.items():
            line.ask(share, 0.0)
        return await _finished(shares, patience)

    async def _wait(self, shares: Shares, wait: float) -> list[Arrival]:
        """The first that comes, and what the others have by then."""
        clock = asyncio.get_running_loop().time
        until = clock() + wait
        nudged = asyncio.ensure_future(self._nudged.wait())
        try:
            while (left := until - clock()) > 0 and not self._nudged.is_set():
                for line, share in shares.items():
                    line.ask(share, left)
                tasks = [line.task for line in shares if line.task is not None]
                if shares and not tasks:
                    return []  # all are out of reach
                soon = min((line.rest for line in shares if line.task is None), default=left)
                await asyncio.wait(
                    [*tasks, nudged], timeout=min(left, soon), return_when=asyncio.FIRST_COMPLETED
                )
                if found := _collected(shares):
                    return found + await self._call_back(shares)
            return await self._call_back(shares)
        finally:
            nudged.cancel()

    async def _call_back(self, shares: Shares) -> list[Arrival]:
        for line in shares:
            if line.task is not None:
                line.transport.nudge()
        return await _finished(shares, _GRACE)

    def _tidy_up_later(self) -> None:
        if self._tidying is None and any(line.task for line in self._lines):
            for line in self._lines:
                line.transport.nudge()
            loop = asyncio.get_running_loop()
            self._tidying = loop.call_later(_MOMENT, self._tidy_up)

    def _tidy_up(self) -> None:
        """What came after everybody had gone goes back."""
        self._tidying = None
        if not self._asking:
            for line in self._lines:
                if line.task is not None and line.task.done():
                    line.collect({})
            self._tidy_up_later()

    def _grouped(self, things: Iterable[T], queue_of: Callable[[T], str]) -> dict[_Line, list[T]]:
        """Things by the line that their queue goes by."""
        found: dict[_Line, list[T]] = {}
        for thing in things:
            line = self._named.get(queue_of(thing), self._rest)
            if line is not None:
                found.setdefault(line, []).append(thing)
        return found


async def _finished(shares: Shares, patience: float) -> list[Arrival]:
    """What is under way, if it ends soon."""
    if tasks := [line.task for line in shares if line.task is not None and not line.late]:
        await asyncio.wait(tasks, timeout=patience)
    for line in shares:
        line.late = line.task is not None and not line.task.done()
    return _collected(shares)


def _collected(shares: Shares) -> list[Arrival]:
    """What the receives that are over have brought."""
    over = [line for line in shares if line.task is not None and line.task.done()]
    return [arrival for line in over for arrival in line.collect(shares[line])]


def _queue_of(arrival: Arrival) -> str:
    return arrival.lane.queue


async def _all(works: Iterable[Awaitable[None]]) -> None:
    """All at once, and each to its end. Raises the first error."""
    for outcome in await asyncio.gather(*works, return_exceptions=True):
        if isinstance(outcome, BaseException):
            raise outcome
