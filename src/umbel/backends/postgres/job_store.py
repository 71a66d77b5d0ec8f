"""PostgreSQL as the ledger of another broker's messages."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cached_property, partial
from typing import Any

from umbel.backends.broker import Published, Taken
from umbel.backends.offers import Offers
from umbel.backends.postgres.arrays import numbers, texts
from umbel.backends.postgres.broker import PostgresBroker
from umbel.backends.postgres.job_rows import delivery, envelope, is_plain, plain_row
from umbel.backends.postgres.publishing import inserting
from umbel.backends.postgres.scan_cursor import SOON, ScanCursor
from umbel.backends.postgres.statements import Row, Steps, atomically, one
from umbel.errors import LeaseLost
from umbel.messages import Envelope

_SOON = b"set local synchronous_commit to off"
"""What is noted is durable as a message. A server that crashes just then may forget the note, and
whoever receives the message makes up for it."""


class PostgresJobStore(PostgresBroker):
    """See ``brokers.port.JobStore`` for what each method promises."""

    @cached_property
    def _offers(self) -> Offers:
        return Offers()

    async def note(self, envelopes: Sequence[Envelope]) -> list[Published]:
        left = await self._database.perform(lambda: self._noting(envelopes))
        return [Published(envelope.id, place in left) for place, envelope in enumerate(envelopes)]

    def note_now(self, envelopes: Sequence[Envelope], timeout: float) -> list[Published]:
        left = self._database.direct.perform(partial(self._noting, envelopes), timeout)
        return [Published(envelope.id, place in left) for place, envelope in enumerate(envelopes)]

    async def unsent(self, queues: Sequence[str], limit: int, wait: float) -> list[Envelope]:
        until = self._clock.monotonic() + wait
        # Not the outlook of one that waits: it may be looking this very moment, and the lanes
        # that it has seen would count as seen by whoever cannot wait for what it finds there.
        sure = wait <= 0
        outlook = self._outlook(tuple(queues), "unsent at once" if sure else "unsent")
        if sure:
            outlook.doubt()
        while True:
            outlook.listen(self._clock.monotonic(), self._safety_poll)
            found = await self._look_for_unsent(outlook, limit, sure)
            now = self._clock.monotonic()
            if found or now >= until:
                return found
            poll = self._safety_poll if outlook.listener.hearing else self._database.home.poll
            next_look = min(outlook.due, max(outlook.passing, now + SOON))
            await outlook.wait(min(until - now, max(next_look - now, 0.001), poll))

    async def _look_for_unsent(self, outlook: ScanCursor, limit: int, sure: bool) -> list[Envelope]:
        free = {"io": limit, "cpu": limit}
        try:
            if outlook.due <= self._clock.monotonic():
                await self._promote(outlook, "promote_surely" if sure else "promote")
            queues = [queue for queue in outlook.queues if outlook.enter(queue, free)]
            if not queues:
                return []
            asked = {"queue": texts(queues), "limit": limit}
            rows = await self._rows("unsent", **asked)
            look = rows[0][-1]
            if look is not None and look <= 0:
                await self._grant(queues, free)
                rows = await self._rows("unsent", **asked)
            self._stand(outlook, queues, rows[0][-1])
        except BaseException:
            outlook.doubt()
            raise
        found = [(row, row[-2]) for row in rows if row[0] is not None]
        for row, queue in found:
            outlook.expect(queue)  # whoever sends these will look again
            self._offers.make(row[1], row[18], queue)
        return [envelope(row, self._namespace, queue) for row, queue in found]

    async def sent(self, jobs: Sequence[str]) -> None:
        if offers := self._offers.redeem(jobs):
            ids, fences, queues = zip(*offers, strict=True)
            await self._rows("sent", id=texts(ids), fence=numbers(fences), queue=texts(queues))

    async def take(
        self, jobs: Mapping[str, str], owner: str, unnoted: Sequence[Envelope] = ()
    ) -> Taken:
        values = {"id": texts([*jobs]), "queue": texts([*jobs.values()]), "owner": owner}
        if unnoted:
            rows = await self._database.perform(lambda: self._taking_new(unnoted, values))
        else:
            rows = await self._rows("take", **values)
        if not rows:
            raise LeaseLost(f"incarnation {owner} is not enlisted")
        taken = {row[1]: row for row in rows if row[0] is not None}
        return Taken(
            [delivery(taken[j], self._namespace, jobs[j], owner) for j in jobs if j in taken],
            rows[0][-1] or [],
        )

    def _noting(self, envelopes: Sequence[Envelope]) -> Steps[list[int]]:
        """Adds what is new, in a transaction. Gives the places of what was known."""
        if len(envelopes) == 1 and is_plain(envelopes[0]):
            ((added,),) = yield self._sql["note_job"], plain_row(envelopes[0])
            return [] if added else [0]
        return (yield from atomically(self._noting_several(envelopes)))

    def _noting_several(self, envelopes: Sequence[Envelope]) -> Steps[list[int]]:
        yield _SOON, None
        left = yield from inserting(self._sql, envelopes, idle="sent")
        # A worker may have noted, run and settled one since that statement began: it has found
        # neither the job nor the record then. The next one sees the record.
        ids = texts([one.id for one in envelopes])
        yield self._sql["drop_ended"], {"namespace": self._namespace, "id": ids}
        return left

    def _taking_new(
        self, envelopes: Sequence[Envelope], values: dict[str, Any]
    ) -> Steps[list[Row]]:
        # Two transactions: the second one makes both durable, and the first may stand alone.
        yield from self._noting(envelopes)
        return (yield self._sql["take"], {"namespace": self._namespace, **values})

    async def recall(self, lanes: Sequence[tuple[str, str]]) -> int:
        queues, kinds = texts([queue for queue, _ in lanes]), texts([kind for _, kind in lanes])
        return int((await self._rows("recall", queue=queues, kind=kinds))[0][0])

    def unsend_now(self, jobs: Sequence[str], timeout: float) -> None:
        values = {"namespace": self._namespace, "id": texts([*jobs])}
        self._database.direct.perform(lambda: one(self._sql["unsend"], values), timeout)

    def recall_now(self, lanes: Sequence[tuple[str, str]], timeout: float) -> int:
        queues, kinds = texts([queue for queue, _ in lanes]), texts([kind for _, kind in lanes])
        values = {"namespace": self._namespace, "queue": queues, "kind": kinds}
        rows = self._database.direct.perform(lambda: one(self._sql["recall"], values), timeout)
        return int(rows[0][0])
