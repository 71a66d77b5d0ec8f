"""Redis as the ledger of another broker's messages."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from umbel.brokers.port import Published, Taken
from umbel.brokers.redis.broker import RedisBroker
from umbel.brokers.redis.publishing import publish_arguments, published
from umbel.brokers.redis.rows import delivery, envelope
from umbel.drivers.redis import moment, pack, text
from umbel.errors import LeaseLost
from umbel.messages import Envelope


class RedisLedger(RedisBroker):
    """See ``brokers.port.Ledger`` for what each method promises."""

    async def note(self, envelopes: Sequence[Envelope]) -> list[Published]:
        if not envelopes:
            return []
        arguments = publish_arguments(envelopes, self._clock.now(), "sent")
        answer = published(envelopes, await self._run("publish", arguments))
        return [
            Published(one.id, existing=found.existing)
            for one, found in zip(envelopes, answer, strict=True)
        ]

    async def unsent(self, queues: Sequence[str], limit: int, wait: float) -> list[Envelope]:
        until = self._clock.monotonic() + wait
        with self._listening(queues) as ear:
            while True:
                ear.clear()
                arguments = pack(self._clock.now(), limit, [*queues])
                more, due, rows = await self._run("unsent", arguments)
                if rows:
                    return [envelope(row, self._namespace) for row in rows]
                if more:
                    continue
                left = until - self._clock.monotonic()
                if left <= 0:
                    return []
                await self._sleep(ear, left, moment(due))

    async def sent(self, jobs: Sequence[str]) -> None:
        await self._run("sent", pack(*jobs))

    async def take(self, jobs: Mapping[str, str], owner: str) -> Taken:
        now = self._clock.now()
        asked = [part for pair in jobs.items() for part in pair]
        answer = await self._run("take", pack(now, owner, *asked))
        if not answer[0]:
            raise LeaseLost(f"incarnation {owner} is not enlisted")
        _, rows, unknown = answer
        found = [delivery(row, self._namespace, owner, now) for row in rows]
        return Taken(found, [text(job) for job in unknown])

    async def recall(self, queues: Sequence[str]) -> int:
        recalled = 0
        for queue in queues:
            looked = 1
            while looked:  # in portions: a queue may be long
                found, looked = await self._run("recall", pack(queue))
                recalled += found
        return recalled
