"""Who asked to hear how a job ends, and the answers on their way to them.

An answer is a courtesy: the job has ended whether it arrives or not, and who missed it can ask
again. So nothing waits for one, nothing fails with one, and while nobody asks there is nothing to
do.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable, Iterable, Sequence
from contextlib import suppress

from umbel.backends.transport import Reply
from umbel.clock import Clock
from umbel.errors import Unavailable
from umbel.messages import Delivery, Finish, Lease, Record, Settlement, disposition
from umbel.messages.documents import REPLY_TO, Asked, addressed, answer, answer_from, asked_by

Send = Callable[[Sequence[Reply]], Awaitable[None]]
"""Hands documents to their addresses. Raises Unavailable."""
Find = Callable[[str], Awaitable[Record]]
"""One job, live or finished. Raises UnknownJob, Unavailable."""

_MOST = 10_000
"""Questions and answers that are kept at a time; the oldest go first."""
_BATCH = 500
_FAREWELL = 2.0
"""Seconds that the last answers have."""


class Answers:
    """Remembers who asked while a job runs, and tells them when it has ended."""

    def __init__(self, send: Send, find: Find, *, namespace: str, clock: Clock) -> None:
        self._send = send
        self._find = find
        self._namespace = namespace
        self._clock = clock
        self._asked: dict[Lease, tuple[Asked, str, str]] = {}
        """By the lease of what runs here: who asked, the task and the queue."""
        self._ready: deque[Reply] = deque(maxlen=_MOST)
        self._again: deque[tuple[str, Asked]] = deque(maxlen=_MOST)
        self._sending: asyncio.Task[None] | None = None

    def remember(self, deliveries: Iterable[Delivery]) -> None:
        """These begin to run here."""
        for one in deliveries:
            headers = one.envelope.headers
            if REPLY_TO in headers and (asked := asked_by(one.id, headers)) is not None:
                self._asked[one.lease] = asked, one.envelope.subject, one.envelope.queue
                if len(self._asked) > _MOST:
                    del self._asked[next(iter(self._asked))]

    def forget(self, leases: Iterable[Lease]) -> None:
        """These were lost: somebody else will tell."""
        if self._asked:
            for lease in leases:
                self._asked.pop(lease, None)

    def settled(self, settlements: Iterable[Settlement], refused: Sequence[Lease]) -> None:
        """These have been settled, and that is committed: tell of those that ended."""
        if not self._asked:
            return
        for one in settlements:
            found, end = self._asked.pop(one.lease, None), disposition(one.outcome)
            if found is not None and isinstance(end, Finish) and one.lease not in refused:
                asked, task, queue = found
                told = answer(one.lease.job, task, self._namespace, end, self._clock.now())
                self._ready.append(Reply(asked, addressed(told, asked), queue))
                self._start()

    def asked_again(self, job: str, asked: Asked) -> None:
        """Somebody asks for a job that is known: tell what the record says, if it has ended."""
        self._again.append((job, asked))
        self._start()

    async def close(self) -> None:
        """Send what is left, but not for long. Closing twice is fine."""
        sending, self._sending = self._sending, None
        if sending is not None:
            await asyncio.wait([sending], timeout=_FAREWELL)
            sending.cancel()
            await asyncio.wait([sending])

    def _start(self) -> None:
        if self._sending is None or self._sending.done():
            self._sending = asyncio.create_task(self._work(), name="umbel-answers")

    async def _work(self) -> None:
        while self._again or self._ready:
            while self._again and len(self._ready) < _BATCH:
                await self._look_up(*self._again.popleft())
            await self._send_each(
                [self._ready.popleft() for _ in range(min(_BATCH, len(self._ready)))]
            )

    async def _send_each(self, batch: Sequence[Reply]) -> None:
        """Send them, in halves if one cannot be sent; that one is dropped."""
        try:
            await self._send(batch)
        except Unavailable:
            pass
        except Exception:  # noqa: BLE001 - one answer must not keep the others here
            if half := len(batch) // 2:
                await self._send_each(batch[:half])
                await self._send_each(batch[half:])

    async def _look_up(self, job: str, asked: Asked) -> None:
        # Forgotten meanwhile, the store is out of reach, or its record cannot be told.
        with suppress(Exception):
            record = await self._find(job)
            if record.state.finished:
                document = addressed(answer_from(record), asked)
                self._ready.append(Reply(asked, document, record.queue))
