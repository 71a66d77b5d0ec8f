"""Turns received messages into jobs that a worker holds, by claiming them in the job store."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from contextlib import suppress

from msgspec.structs import replace

from umbel.backends.broker import JobStore
from umbel.backends.foreign_messages import (
    UNIQUE_KEY_HELD,
    build_burial,
    build_placeholder,
    id_of,
    is_foreign,
    read,
)
from umbel.backends.replies import Find, ReplySender
from umbel.backends.transport import Arrival, Transport
from umbel.clock import Clock
from umbel.errors import BadMessage, DuplicateJob, UmbelError
from umbel.messages import Delivery, Envelope, Lease, Settlement, State
from umbel.messages.documents import find_reply_request
from umbel.telemetry import Telemetry, events

_RECENT_SECONDS = 1.0
"""The publisher of a message that is older than this has recorded its job, or has failed to."""
_MAX_RECENT_MESSAGES = 4
"""In a larger batch, most jobs have been recorded by their publishers."""


class Claimer:
    """Claims jobs of one namespace. A message is acknowledged when the store knows its job.

    ``settle`` records the burial of a message that is not a job; ``find`` reads a record.
    """

    def __init__(
        self,
        transport: Transport,
        job_store: JobStore,
        replies: ReplySender,
        *,
        namespace: str,
        clock: Clock,
        find: Find,
        telemetry: Telemetry,
        settle: Callable[[Sequence[Settlement]], Awaitable[list[Lease]]],
    ) -> None:
        self._transport = transport
        self._job_store = job_store
        self._replies = replies
        self._namespace = namespace
        self._clock = clock
        self._settle = settle
        self._find = find
        self._telemetry = telemetry
        self._reporting: set[asyncio.Task[None]] = set()

    async def claim(self, arrivals: Sequence[Arrival], owner: str) -> list[Delivery]:
        """Claim the jobs of these messages, acknowledge the messages, and return the jobs.

        If it raises, the messages return to the transport.
        """
        by_id = {id_of(one, self._namespace): one for one in arrivals}
        queues = {job: one.lane.queue for job, one in by_id.items()}
        try:
            claimed = await self._job_store.claim(queues, owner, self._find_recent(by_id))
            deliveries = claimed.deliveries
            if claimed.unknown:
                unknown = {job: by_id[job] for job in claimed.unknown}
                deliveries += await self._adopt(unknown, owner)
        except BaseException:
            await self._transport.release(arrivals)
            raise
        await self._transport.accept(arrivals)
        self._replies.remember(deliveries)
        if len(deliveries) < len(by_id):
            known = by_id.keys() - {one.id for one in deliveries} - {*claimed.unknown}
            self._reply_again({job: by_id[job] for job in known})
            self._report_duplicates((job, by_id[job]) for job in known)
        if len(by_id) < len(arrivals):
            last = {id(one) for one in by_id.values()}
            repeated = [one for one in arrivals if id(one) not in last]
            self._report_duplicates((id_of(one, self._namespace), one) for one in repeated)
        return deliveries

    async def close(self) -> None:
        """Stop reporting duplicates. Closing twice is fine."""
        for task in [*self._reporting]:
            task.cancel()
            await asyncio.wait([task])

    async def bury(self, queues: Mapping[str, str], reasons: Mapping[str, str], owner: str) -> None:
        """Claim jobs and bury them: mappings of id to queue, and of id to the reason.

        Raises:
            LeaseLost: the owner is not registered, or no longer.
            Unavailable: the caller should try again.
        """
        await self._bury((await self._job_store.claim(queues, owner)).deliveries, reasons)

    def task_of(self, arrival: Arrival) -> str | None:
        """Return the task of a message; None if the message cannot be read."""
        with suppress(BadMessage):
            return read(arrival, self._namespace, id_of(arrival, self._namespace)).subject
        return None

    async def _bury(self, deliveries: Sequence[Delivery], reasons: Mapping[str, str]) -> None:
        if deliveries:
            self._replies.remember(deliveries)
            now = self._clock.now()
            await self._settle([build_burial(one, reasons[one.id], now) for one in deliveries])

    def _find_recent(self, arrivals: Mapping[str, Arrival]) -> list[Envelope]:
        """Return messages whose publisher may not have recorded them yet.

        Recording them together with the claim saves a second claim. Messages of Umbel's own
        publishers do not say when they were created.
        """
        recent: list[Envelope] = []
        since = self._clock.now() - _RECENT_SECONDS
        few = {} if len(arrivals) > _MAX_RECENT_MESSAGES else arrivals
        for job in few:
            with suppress(BadMessage):
                found = read(arrivals[job], self._namespace, job)
                is_recent = not found.created or found.created > since
                if is_recent and found.unique is None:
                    recent.append(found)
        return recent

    def _reply_again(self, repeated: Mapping[str, Arrival]) -> None:
        """Reply to messages whose jobs are running or have ended, if they ask for a reply."""
        for job, arrival in repeated.items():
            with suppress(BadMessage):
                asked = find_reply_request(job, read(arrival, self._namespace, job).headers)
                if asked is not None:
                    self._replies.reply_from_record(job, asked)

    def _report_duplicates(self, repeated: Iterable[tuple[str, Arrival]]) -> None:
        """Report messages that other programs have sent again although their jobs have started.

        Copies of Umbel's own messages are normal: several relays may send the same job.
        """
        foreign = [job for job, arrival in repeated if is_foreign(arrival, self._namespace)]
        if foreign:
            task = asyncio.create_task(self._report_started(foreign), name="umbel-duplicates")
            self._reporting.add(task)
            task.add_done_callback(self._reporting.discard)

    async def _report_started(self, jobs: Sequence[str]) -> None:
        for job in jobs:
            with suppress(UmbelError):  # the record was deleted, or the store is unreachable
                record = await self._find(job)
                # The job of a message that was only set aside, because of a pause, has not started.
                if record.state is State.RUNNING or record.state.finished:
                    event = events.DuplicateDiscarded(
                        job=job, task=record.task, attempt=record.attempt
                    )
                    self._telemetry.emit(event)

    async def _adopt(self, unknown: Mapping[str, Arrival], owner: str) -> list[Delivery]:
        """Record messages of other senders and claim them. A message that is no job is buried."""
        envelopes: list[Envelope] = []
        problems: dict[str, str] = {}
        for job, arrival in unknown.items():
            try:
                envelopes.append(read(arrival, self._namespace, job))
            except BadMessage as error:
                envelopes.append(build_placeholder(arrival, self._namespace, job))
                problems[job] = str(error)
        problems |= await self._record(envelopes)
        queues = {job: arrival.lane.queue for job, arrival in unknown.items()}
        claimed = (await self._job_store.claim(queues, owner)).deliveries
        await self._bury([one for one in claimed if one.id in problems], problems)
        return [one for one in claimed if one.id not in problems]

    async def _record(self, envelopes: Sequence[Envelope]) -> dict[str, str]:
        """Record jobs; return the ids of those that a publisher would refuse, with the reason."""
        refused: dict[str, str] = {}
        for keyed in [one for one in envelopes if one.unique is not None]:
            try:
                await self._job_store.publish([keyed])
            except DuplicateJob:
                refused[keyed.id] = UNIQUE_KEY_HELD
        plain = [one for one in envelopes if one.unique is None or one.id in refused]
        if plain:
            await self._job_store.record_sent([replace(one, unique=None) for one in plain])
        return refused
