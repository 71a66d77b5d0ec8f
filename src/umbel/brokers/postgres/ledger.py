"""PostgreSQL as the ledger of another broker's messages."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from umbel.brokers.port import Published, Taken
from umbel.brokers.postgres.broker import PostgresBroker
from umbel.brokers.postgres.outlook import Outlook
from umbel.brokers.postgres.publishing import inserting
from umbel.brokers.postgres.rows import delivery, envelope
from umbel.drivers.postgres import texts
from umbel.errors import LeaseLost
from umbel.messages import Envelope


class PostgresLedger(PostgresBroker):
    """See ``brokers.port.Ledger`` for what each method promises."""

    async def note(self, envelopes: Sequence[Envelope]) -> list[Published]:
        left = await self._database.perform(
            lambda: inserting(self._sql, envelopes, alone=True, idle="sent")
        )
        return [Published(one.id, place in left) for place, one in enumerate(envelopes)]

    async def unsent(self, queues: Sequence[str], limit: int, wait: float) -> list[Envelope]:
        until = self._clock.monotonic() + wait
        outlook = self._outlook(tuple(queues), "unsent")
        if wait <= 0:
            outlook.doubt()
        while True:
            outlook.listen(self._clock.monotonic(), self._safety_poll)
            found = await self._look_for_unsent(outlook, limit)
            now = self._clock.monotonic()
            if found or now >= until:
                return found
            poll = self._safety_poll if outlook.listener.hearing else self._database.home.poll
            await outlook.wait(min(until - now, max(outlook.due - now, 0.001), poll))

    async def _look_for_unsent(self, outlook: Outlook, limit: int) -> list[Envelope]:
        free = {"io": limit, "cpu": limit}
        try:
            if outlook.due <= self._clock.monotonic():
                await self._promote(outlook, "promote")
            queues = [queue for queue in outlook.queues if outlook.enter(queue, free)]
            if not queues:
                return []
            rows = await self._rows("unsent", queue=texts(queues), limit=limit)
        except BaseException:
            outlook.doubt()
            raise
        for queue in {row[-1] for row in rows}:  # whoever sends these will look again
            outlook.expect(queue)
        return [envelope(row, self._namespace, row[-1]) for row in rows]

    async def sent(self, jobs: Sequence[str]) -> None:
        await self._rows("sent", id=texts([*jobs]))

    async def take(self, jobs: Mapping[str, str], owner: str) -> Taken:
        ids, queues = texts([*jobs]), texts([*jobs.values()])
        rows = await self._rows("take", id=ids, queue=queues, owner=owner)
        if not rows:
            raise LeaseLost(f"incarnation {owner} is not enlisted")
        taken = {row[1]: row for row in rows if row[0] is not None}
        return Taken(
            [delivery(taken[j], self._namespace, jobs[j], owner) for j in jobs if j in taken],
            rows[0][-1] or [],
        )

    async def recall(self, queues: Sequence[str]) -> int:
        return int((await self._rows("recall", queue=texts([*queues])))[0][0])
