"""PostgreSQL as the job store of a pair: another transport carries the messages."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cached_property
from typing import Any

from umbel.backends.broker import Claimed, Demand, Published
from umbel.backends.postgres.arrays import numbers, texts
from umbel.backends.postgres.broker import PostgresBroker
from umbel.backends.postgres.job_rows import delivery, envelope, is_plain, plain_row
from umbel.backends.postgres.publishing import insert_steps
from umbel.backends.postgres.scan_cursor import GATE_RETRY_SECONDS, ScanCursor
from umbel.backends.postgres.statements import atomically
from umbel.backends.sql.statements import Row, Steps
from umbel.backends.unsent_versions import UnsentVersions
from umbel.errors import LeaseLost
from umbel.messages import KINDS, Envelope

_ASYNC_COMMIT = b"set local synchronous_commit to off"
"""The transport makes the message durable. If the server crashes and loses the row, the worker that
receives the message adds it again."""


class PostgresJobStore(PostgresBroker):
    """See ``umbel.backends.broker.JobStore`` for what each method promises."""

    @cached_property
    def _unsent_versions(self) -> UnsentVersions:
        return UnsentVersions()

    async def record_sent(self, envelopes: Sequence[Envelope]) -> list[Published]:
        left = await self._database.perform(lambda: self._record_sent_steps(envelopes))
        return [Published(envelope.id, place in left) for place, envelope in enumerate(envelopes)]

    async def find_unsent(self, queues: Sequence[str], limit: int, wait: float) -> list[Envelope]:
        until = self._clock.monotonic() + wait
        # Its own scan cursor: a call that waits may be scanning now, and this call cannot wait for
        # the jobs in lanes that the other one has marked as scanned.
        waits_for_locks = wait <= 0
        scan = self._scan_cursor(tuple(queues), "unsent at once" if waits_for_locks else "unsent")
        if waits_for_locks:
            scan.expect_all()
        while True:
            scan.read_wake_ups(self._clock.monotonic(), self._safety_poll)
            found = await self._look_for_unsent(scan, limit, waits_for_locks)
            now = self._clock.monotonic()
            if found or now >= until:
                return found
            poll = self._safety_poll if scan.listener.is_listening else self._database.address.poll
            next_check = min(scan.due, max(scan.next_gate_check, now + GATE_RETRY_SECONDS))
            await scan.wait(min(until - now, max(next_check - now, 0.001), poll))

    async def _look_for_unsent(
        self, scan: ScanCursor, limit: int, waits_for_locks: bool
    ) -> list[Envelope]:
        free = dict.fromkeys(KINDS, limit)
        try:
            if scan.due <= self._clock.monotonic():
                await self._promote(
                    scan, "promote_wait_for_locks" if waits_for_locks else "promote"
                )
            queues = [queue for queue in scan.queues if scan.start_scan(queue, free)]
            if not queues:
                return []
            asked = {"queue": texts(queues), "kind": texts([*KINDS]), "limit": limit}
            rows = await self._rows("unsent", **asked)
            gate_check = rows[0][-1]
            if gate_check is not None and gate_check <= 0:
                await self._grant(queues, Demand(free), {})
                rows = await self._rows("unsent", **asked)
            self._set_gate_check(scan, queues, rows[0][-1])
        except BaseException:
            scan.expect_all()
            raise
        found = [(row, row[-2]) for row in rows if row[0] is not None]
        for row, queue in found:
            scan.expect(queue)  # the caller will ask again after sending these
            self._unsent_versions.remember(row[1], row[18], queue)
        return [envelope(row, self._namespace, queue) for row, queue in found]

    async def mark_sent(self, jobs: Sequence[str]) -> None:
        if offers := self._unsent_versions.pop(jobs):
            ids, fences, queues = zip(*offers, strict=True)
            await self._rows("sent", id=texts(ids), fence=numbers(fences), queue=texts(queues))

    async def claim(
        self, jobs: Mapping[str, str], owner: str, unrecorded: Sequence[Envelope] = ()
    ) -> Claimed:
        values = {"id": texts([*jobs]), "queue": texts([*jobs.values()]), "owner": owner}
        if unrecorded:
            rows = await self._database.perform(
                lambda: self._record_and_claim_steps(unrecorded, values)
            )
        else:
            rows = await self._rows("take", **values)
        if not rows:
            raise LeaseLost(f"incarnation {owner} is not registered")
        taken = {row[1]: row for row in rows if row[0] is not None}
        return Claimed(
            [delivery(taken[j], self._namespace, jobs[j], owner) for j in jobs if j in taken],
            rows[0][-1] or [],
        )

    def _record_sent_steps(self, envelopes: Sequence[Envelope]) -> Steps[list[int]]:
        """Add new jobs in a transaction. Return the places of jobs that were known."""
        if len(envelopes) == 1 and is_plain(envelopes[0]):
            ((added,),) = yield self._sql["note_job"], plain_row(envelopes[0])
            return [] if added else [0]
        return (yield from atomically(self._record_several_steps(envelopes)))

    def _record_several_steps(self, envelopes: Sequence[Envelope]) -> Steps[list[int]]:
        yield _ASYNC_COMMIT, None
        left = yield from insert_steps(self._sql, envelopes, idle="sent")
        # A worker may have recorded, run and settled one of them since that statement began, which
        # then saw neither job nor record. The next statement sees the record.
        ids = texts([one.id for one in envelopes])
        yield self._sql["drop_ended"], {"namespace": self._namespace, "id": ids}
        return left

    def _record_and_claim_steps(
        self, envelopes: Sequence[Envelope], values: dict[str, Any]
    ) -> Steps[list[Row]]:
        # Two transactions: the second commit makes both durable, and the first may stand alone.
        yield from self._record_sent_steps(envelopes)
        return (yield self._sql["take"], {"namespace": self._namespace, **values})

    async def mark_lanes_unsent(self, lanes: Sequence[tuple[str, str]]) -> int:
        queues, kinds = texts([queue for queue, _ in lanes]), texts([kind for _, kind in lanes])
        return int((await self._rows("recall", queue=queues, kind=kinds))[0][0])
