"""From messages that were received to jobs that a worker has: what the books say of each."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import suppress

from msgspec.structs import replace

from umbel.backends.broker import JobStore
from umbel.backends.foreign_messages import TAKEN, burial, id_of, read, stand_in
from umbel.backends.pairs.prefetch_buffer import MOMENT
from umbel.backends.replies import Answers
from umbel.backends.transport import Arrival, Transport
from umbel.clock import Clock
from umbel.errors import BadMessage, DuplicateJob
from umbel.messages import Delivery, Envelope, Lease, Settlement
from umbel.messages.documents import asked_by

_FEW = 4
"""With more messages than that at once, their publishers have noted most of them."""


class Taking:
    """Takes jobs for one namespace; a message is acknowledged when the books say who has its job.

    ``is_expected`` tells whether the books gave a job before its message came, ``settle`` records
    the end of one that is no job.
    """

    def __init__(
        self,
        transport: Transport,
        ledger: JobStore,
        answers: Answers,
        *,
        namespace: str,
        clock: Clock,
        is_expected: Callable[[str], bool],
        settle: Callable[[Sequence[Settlement]], Awaitable[list[Lease]]],
    ) -> None:
        self._transport = transport
        self._ledger = ledger
        self._answers = answers
        self._namespace = namespace
        self._clock = clock
        self._is_expected = is_expected
        self._settle = settle

    async def take(self, arrivals: Sequence[Arrival], owner: str) -> list[Delivery]:
        """What the books give for these messages, which are acknowledged then."""
        by_id = {id_of(one, self._namespace): one for one in arrivals}
        queues = {job: one.lane.queue for job, one in by_id.items()}
        try:
            taken = await self._ledger.take(queues, owner, self._fresh(by_id))
            deliveries = taken.deliveries
            if taken.unknown:
                strangers = {job: by_id[job] for job in taken.unknown}
                deliveries += await self._adopt(strangers, owner)
        except BaseException:
            await self._transport.release(arrivals)
            raise
        await self._transport.accept(arrivals)
        self._answers.remember(deliveries)
        if len(deliveries) < len(by_id):
            known = by_id.keys() - {one.id for one in deliveries} - {*taken.unknown}
            self._answer_again({job: by_id[job] for job in known})
        return deliveries

    async def bury(self, queues: Mapping[str, str], reasons: Mapping[str, str], owner: str) -> None:
        """Claim these jobs and end them at once: by id, their queue and why they cannot run.

        Raises:
            LeaseLost: the owner is not enlisted (any more). Unavailable: try again.
        """
        taken = (await self._ledger.take(queues, owner)).deliveries
        if taken:
            self._answers.remember(taken)
            now = self._clock.now()
            await self._settle([burial(one, reasons[one.id], now) for one in taken])

    def task_of(self, arrival: Arrival) -> str | None:
        """The task that a message is for; None where it cannot be read."""
        with suppress(BadMessage):
            return read(arrival, self._namespace, id_of(arrival, self._namespace)).subject
        return None

    def _fresh(self, arrivals: Mapping[str, Arrival]) -> list[Envelope]:
        """Messages that their publisher may not have noted yet: spares asking twice.

        Those of Umbel's own publishers do not say when they were made.
        """
        fresh: list[Envelope] = []
        since = self._clock.now() - MOMENT
        few = {} if len(arrivals) > _FEW else arrivals
        for job in (one for one in few if not self._is_expected(one)):
            with suppress(BadMessage):
                found = read(arrivals[job], self._namespace, job)
                is_new = not found.created or found.created > since
                if is_new and found.unique is None:
                    fresh.append(found)
        return fresh

    def _answer_again(self, repeated: Mapping[str, Arrival]) -> None:
        """Messages of jobs that are in the books, and in somebody's hands or at their end."""
        for job, arrival in repeated.items():
            with suppress(BadMessage):
                asked = asked_by(job, read(arrival, self._namespace, job).headers)
                if asked is not None:
                    self._answers.asked_again(job, asked)

    async def _adopt(self, strangers: Mapping[str, Arrival], owner: str) -> list[Delivery]:
        """Note messages that somebody else sent, and take them. What is no job is buried."""
        envelopes: list[Envelope] = []
        problems: dict[str, str] = {}
        for job, arrival in strangers.items():
            try:
                envelopes.append(read(arrival, self._namespace, job))
            except BadMessage as error:
                envelopes.append(stand_in(arrival, self._namespace, job))
                problems[job] = str(error)
        problems |= await self._note(envelopes)
        queues = {job: arrival.lane.queue for job, arrival in strangers.items()}
        taken = (await self._ledger.take(queues, owner)).deliveries
        bad = [one for one in taken if one.id in problems]
        if bad:
            self._answers.remember(bad)
            now = self._clock.now()
            await self._settle([burial(one, problems[one.id], now) for one in bad])
        return [one for one in taken if one.id not in problems]

    async def _note(self, envelopes: Sequence[Envelope]) -> dict[str, str]:
        """Into the books; those that would have been refused, and why."""
        refused: dict[str, str] = {}
        for keyed in [one for one in envelopes if one.unique is not None]:
            try:
                await self._ledger.publish([keyed])
            except DuplicateJob:
                refused[keyed.id] = TAKEN
        plain = [one for one in envelopes if one.unique is None or one.id in refused]
        if plain:
            await self._ledger.note([replace(one, unique=None) for one in plain])
        return refused
