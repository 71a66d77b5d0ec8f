"""Redis as the job store for messages that a transport carries."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cached_property
from typing import Any

from umbel.backends.broker import Claimed, Published
from umbel.backends.redis.broker import RedisBroker
from umbel.backends.redis.job_rows import Row, read_delivery, read_envelope
from umbel.backends.redis.publishing import publish_call, read_published
from umbel.backends.redis.scripts import pack
from umbel.backends.redis.values import optional_float, text
from umbel.backends.unsent_versions import UnsentVersions
from umbel.errors import LeaseLost
from umbel.messages import Envelope


class RedisJobStore(RedisBroker):
    """See ``umbel.backends.broker.JobStore`` for what each method guarantees."""

    @cached_property
    def _unsent_versions(self) -> UnsentVersions:
        return UnsentVersions()

    async def record_sent(self, envelopes: Sequence[Envelope]) -> list[Published]:
        if not envelopes:
            return []
        # No sent job is handed over: the worker that receives the message claims it.
        script, arguments = publish_call(envelopes, "sent")
        answer = await self._database.run(script, self._root, *arguments)
        return _read_recorded(envelopes, answer)

    async def find_unsent(self, queues: Sequence[str], limit: int, wait: float) -> list[Envelope]:
        until = self._clock.monotonic() + wait
        waiter = f"relay:{self._listener.tickets.token}" if wait > 0 else ""
        with self._listening(queues) as (wake_up, _):
            while True:
                wake_up.clear()
                arguments = pack(limit, [*queues], waiter)
                more, due, rows = await self._run("find_unsent", arguments)
                if rows:
                    return [self._read_unsent(row) for row in rows]
                if more:
                    continue
                left = until - self._clock.monotonic()
                if left <= 0:
                    return []
                await self._sleep(wake_up, left, optional_float(due))

    def _read_unsent(self, row: Row) -> Envelope:
        envelope = read_envelope(row, self._namespace)
        self._unsent_versions.remember(envelope.id, row[1], envelope.queue)
        return envelope

    async def mark_sent(self, jobs: Sequence[str]) -> None:
        versions = self._unsent_versions.pop(jobs)
        await self._run("mark_sent", pack(*(part for version in versions for part in version)))

    async def claim(
        self, jobs: Mapping[str, str], owner: str, unrecorded: Sequence[Envelope] = ()
    ) -> Claimed:
        await self.record_sent(unrecorded)
        parts = [part for pair in jobs.items() for part in pair]
        answer = await self._run("claim_jobs", pack(owner, *parts))
        if not answer[0]:
            raise LeaseLost(f"incarnation {owner} is not registered")
        _, rows, unknown, claimed = answer
        found = [read_delivery(row, self._namespace, owner, claimed) for row in rows]
        return Claimed(found, [text(job) for job in unknown])

    async def mark_lanes_unsent(self, lanes: Sequence[tuple[str, str]]) -> int:
        changed = 0
        for lane in lanes:
            checked = 1
            while checked:  # in portions: a queue may be long
                found, checked = await self._run("mark_lane_unsent", pack(*lane))
                changed += found
        return changed


def _read_recorded(envelopes: Sequence[Envelope], answer: Sequence[Any]) -> list[Published]:
    """Return the results, each with the envelope's own id, even if another job holds its key."""
    return [
        Published(one.id, existing=found.existing)
        for one, found in zip(envelopes, read_published(envelopes, answer), strict=True)
    ]
