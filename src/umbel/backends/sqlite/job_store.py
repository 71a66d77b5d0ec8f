"""SQLite as the job store of a pair: another transport carries the messages."""

from __future__ import annotations

import sqlite3
from collections.abc import Mapping, Sequence
from functools import cached_property, partial
from typing import Any

from umbel.backends.broker import Claimed, Demand, Published
from umbel.backends.sqlite.broker import SqliteBroker
from umbel.backends.sqlite.claiming import earliest, next_gate_check, unpaused_queues
from umbel.backends.sqlite.granting import grant
from umbel.backends.sqlite.job_rows import SQL, delivery, envelope, job_row
from umbel.backends.sqlite.publishing import try_insert_all
from umbel.backends.sqlite.transactions import write_transaction
from umbel.backends.unsent_versions import UnsentVersions
from umbel.errors import LeaseLost
from umbel.messages import KINDS, Envelope


class SqliteJobStore(SqliteBroker):
    """See ``umbel.backends.broker.JobStore`` for what each method promises."""

    @cached_property
    def _unsent_versions(self) -> UnsentVersions:
        return UnsentVersions()

    async def record_sent(self, envelopes: Sequence[Envelope]) -> list[Published]:
        return await self._database.run(partial(self._record_sent, envelopes), writes=True)

    def _record_sent(
        self, envelopes: Sequence[Envelope], connection: sqlite3.Connection
    ) -> list[Published]:
        now = self._clock.now()
        if try_insert_all(connection.cursor(), envelopes, now, "sent"):
            return [Published(one.id) for one in envelopes]
        with write_transaction(connection) as cursor:
            return [_record_sent(cursor, one, now) for one in envelopes]

    async def find_unsent(self, queues: Sequence[str], limit: int, wait: float) -> list[Envelope]:
        until = self._clock.monotonic() + wait
        await self._database.open()
        with self._database.listening() as wake_ups:
            while True:
                wake_ups.clear()
                find = partial(_find_unsent, values=self._values(), queues=queues, limit=limit)
                rows, due = await self._database.run(find)  # writes only if a job is due
                for row in rows:
                    self._unsent_versions.remember(row[1], row[18], row[2])
                found = [envelope(row, self._namespace) for row in rows]
                left = until - self._clock.monotonic()
                if found or left <= 0:
                    return found
                until_due = max(due - self._clock.now(), 0.001) if due is not None else left
                await wake_ups.wait(min(left, until_due, self._safety_poll))

    async def mark_sent(self, jobs: Sequence[str]) -> None:
        rows = [
            {
                "id": offer.job,
                "namespace": self._namespace,
                "fence": offer.fence,
                "queue": offer.queue,
            }
            for offer in self._unsent_versions.pop(jobs)
        ]
        await self._database.write(lambda cursor: cursor.executemany(SQL["sent"], rows))

    async def claim(
        self, jobs: Mapping[str, str], owner: str, unrecorded: Sequence[Envelope] = ()
    ) -> Claimed:
        def write(cursor: sqlite3.Cursor) -> Claimed:
            for new in unrecorded:
                _record_sent(cursor, new, self._clock.now())
            return _claim(cursor, jobs, self._values() | {"owner": owner})

        return await self._database.write(write)

    async def mark_lanes_unsent(self, lanes: Sequence[tuple[str, str]]) -> int:
        return await self._database.run(partial(self._mark_lanes_unsent, lanes))

    def _mark_lanes_unsent(
        self, lanes: Sequence[tuple[str, str]], connection: sqlite3.Connection
    ) -> int:
        values = {"namespace": self._namespace}
        rows = [{**values, "queue": queue, "kind": kind} for queue, kind in lanes]
        if not any(connection.execute(SQL["any_sent"], row).fetchone() for row in rows):
            return 0
        with write_transaction(connection) as cursor:
            return cursor.executemany(SQL["recall"], rows).rowcount


def _record_sent(cursor: sqlite3.Cursor, one: Envelope, now: float) -> Published:
    row = job_row(one, now, "sent")
    return Published(one.id, existing=cursor.execute(SQL["insert_job"], row).rowcount == 0)


def _find_unsent(
    connection: sqlite3.Connection, values: dict[str, Any], queues: Sequence[str], limit: int
) -> tuple[list[tuple[Any, ...]], float | None]:
    """Return rows of jobs to send, and when to check again."""
    due = connection.execute(SQL["next_due"], values).fetchone()[0]
    if due is not None and due <= values["now"]:
        with write_transaction(connection) as cursor:
            cursor.execute(SQL["promote"], values)
        due = values["now"]
    gate_check = next_gate_check(connection, values, queues, Demand(dict.fromkeys(KINDS, limit)))
    if gate_check is not None and gate_check <= values["now"]:
        with write_transaction(connection) as cursor:
            for queue in unpaused_queues(connection, values, queues):
                grant(
                    cursor, {**values, "queue": queue, "without": "[]"}, dict.fromkeys(KINDS, limit)
                )
        gate_check = next_gate_check(
            connection, values, queues, Demand(dict.fromkeys(KINDS, limit))
        )
    found: list[tuple[Any, ...]] = []
    for queue in unpaused_queues(connection, values, queues):
        for kind in KINDS:
            where = {**values, "queue": queue, "kind": kind, "limit": limit}
            found += connection.execute(SQL["unsent"], where).fetchall()
    return found, earliest(due, gate_check)


def _claim(cursor: sqlite3.Cursor, jobs: Mapping[str, str], where: dict[str, Any]) -> Claimed:
    worker = cursor.execute(SQL["worker_name"], where).fetchone()
    if worker is None:
        raise LeaseLost(f"incarnation {where['owner']} is not registered")
    found: list[tuple[Any, ...]] = []
    unknown: list[str] = []
    for job, queue in jobs.items():
        row = {**where, "worker": worker[0], "id": job, "queue": queue}
        if cursor.execute(SQL["hold_back"], row).fetchone() is not None:
            continue
        taken = cursor.execute(SQL["take"], row).fetchall()
        found += taken
        if not taken and cursor.execute(SQL["known_id"], row).fetchone() is None:
            unknown.append(job)
    name, owner, now = where["namespace"], where["owner"], where["now"]
    return Claimed([delivery(row, name, owner, now) for row in found], unknown)
