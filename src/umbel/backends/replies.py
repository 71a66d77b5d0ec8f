"""Replies to senders that asked for the result of their job.

A reply is best effort: the job has ended whether the reply arrives or not, and a sender that missed
it can ask again. Therefore no job waits for a reply or fails because of one.
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
from umbel.messages.documents import (
    REPLY_TO,
    ReplyRequest,
    add_correlation,
    document_from_record,
    find_reply_request,
    make_document,
)

Send = Callable[[Sequence[Reply]], Awaitable[None]]
"""Sends documents to their addresses. Raises Unavailable."""
Find = Callable[[str], Awaitable[Record]]
"""Returns the record of a job, live or finished. Raises UnknownJob, Unavailable."""

_MAX_PENDING = 10_000
"""Requests and replies that are kept at a time; the oldest are dropped."""
_BATCH = 500
_CLOSE_SECONDS = 2.0
"""Time for the last replies on close."""


class ReplySender:
    """Remembers requests for a reply while their jobs run, and replies when the jobs have ended."""

    def __init__(self, send: Send, find: Find, *, namespace: str, clock: Clock) -> None:
        self._send = send
        self._find = find
        self._namespace = namespace
        self._clock = clock
        self._requests: dict[Lease, tuple[ReplyRequest, str, str]] = {}
        """By the lease of a job that runs here: the request, the task and the queue."""
        self._ready: deque[Reply] = deque(maxlen=_MAX_PENDING)
        self._lookups: deque[tuple[str, ReplyRequest]] = deque(maxlen=_MAX_PENDING)
        self._sending: asyncio.Task[None] | None = None

    def remember(self, deliveries: Iterable[Delivery]) -> None:
        """Remember the requests of jobs that start here."""
        for one in deliveries:
            headers = one.envelope.headers
            if REPLY_TO in headers and (asked := find_reply_request(one.id, headers)) is not None:
                self._requests[one.lease] = asked, one.envelope.subject, one.envelope.queue
                if len(self._requests) > _MAX_PENDING:
                    del self._requests[next(iter(self._requests))]

    def forget(self, leases: Iterable[Lease]) -> None:
        """Forget requests whose leases were lost: the next owner of the job replies."""
        if self._requests:
            for lease in leases:
                self._requests.pop(lease, None)

    def reply(self, settlements: Iterable[Settlement], refused: Sequence[Lease]) -> None:
        """Reply for the jobs that have ended with these settlements, which are committed."""
        if not self._requests:
            return
        for one in settlements:
            found, end = self._requests.pop(one.lease, None), disposition(one.outcome)
            if found is not None and isinstance(end, Finish) and one.lease not in refused:
                asked, task, queue = found
                document = make_document(
                    one.lease.job, task, self._namespace, end, self._clock.now()
                )
                self._ready.append(Reply(asked, add_correlation(document, asked), queue))
                self._start()

    def reply_from_record(self, job: str, asked: ReplyRequest) -> None:
        """Reply to a request for a known job with its record, if the job has ended."""
        self._lookups.append((job, asked))
        self._start()

    async def close(self) -> None:
        """Send the remaining replies, for a short time. Closing twice is fine."""
        sending, self._sending = self._sending, None
        if sending is not None:
            await asyncio.wait([sending], timeout=_CLOSE_SECONDS)
            sending.cancel()
            await asyncio.wait([sending])

    def _start(self) -> None:
        if self._sending is None or self._sending.done():
            self._sending = asyncio.create_task(self._work(), name="umbel-replies")

    async def _work(self) -> None:
        while self._lookups or self._ready:
            while self._lookups and len(self._ready) < _BATCH:
                await self._look_up(*self._lookups.popleft())
            await self._send_each(
                [self._ready.popleft() for _ in range(min(_BATCH, len(self._ready)))]
            )

    async def _send_each(self, batch: Sequence[Reply]) -> None:
        """Send a batch; if that fails, send its halves. A reply that cannot be sent is dropped."""
        try:
            await self._send(batch)
        except Unavailable:
            pass
        except Exception:  # noqa: BLE001 - one reply must not block the others
            if half := len(batch) // 2:
                await self._send_each(batch[:half])
                await self._send_each(batch[half:])

    async def _look_up(self, job: str, asked: ReplyRequest) -> None:
        # The job was deleted, the store is unreachable, or the record cannot be represented.
        with suppress(Exception):
            record = await self._find(job)
            if record.state.finished:
                document = add_correlation(document_from_record(record), asked)
                self._ready.append(Reply(asked, document, record.queue))
