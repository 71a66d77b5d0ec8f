"""SQLite as the ledger of another broker's messages."""

from __future__ import annotations

import sqlite3
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

from umbel.brokers.port import Published, Taken
from umbel.brokers.sqlite.broker import SqliteBroker
from umbel.brokers.sqlite.claiming import KINDS, open_queues
from umbel.brokers.sqlite.rows import SQL, delivery, envelope, job_row
from umbel.drivers.sqlite import writing
from umbel.errors import LeaseLost
from umbel.messages import Envelope


class SqliteLedger(SqliteBroker):
    """See ``brokers.port.Ledger`` for what each method promises."""

    async def note(self, envelopes: Sequence[Envelope]) -> list[Published]:
        def write(connection: sqlite3.Connection) -> list[Published]:
            with writing(connection) as cursor:
                return [_note(cursor, one, self._clock.now()) for one in envelopes]

        return await self._database.run(write, writes=True)

    async def unsent(self, queues: Sequence[str], limit: int, wait: float) -> list[Envelope]:
        until = self._clock.monotonic() + wait
        await self._database.open()
        with self._database.listening() as ear:
            while True:
                ear.clear()
                look = partial(_unsent, here=self._here(), queues=queues, limit=limit)
                found, due = await self._database.run(look)  # reads, but for what falls due
                left = until - self._clock.monotonic()
                if found or left <= 0:
                    return found
                until_due = max(due - self._clock.now(), 0.001) if due is not None else left
                await ear.wait(min(left, until_due, self._safety_poll))

    async def sent(self, jobs: Sequence[str]) -> None:
        def write(connection: sqlite3.Connection) -> None:
            with writing(connection) as cursor:
                cursor.executemany(SQL["sent"], [{"id": job} for job in jobs])

        await self._database.run(write, writes=True)

    async def take(self, jobs: Mapping[str, str], owner: str) -> Taken:
        def write(connection: sqlite3.Connection) -> Taken:
            with writing(connection) as cursor:
                return _take(cursor, jobs, self._here() | {"owner": owner})

        return await self._database.run(write, writes=True)

    async def recall(self, queues: Sequence[str]) -> int:
        def write(connection: sqlite3.Connection) -> int:
            with writing(connection) as cursor:
                rows = [{"namespace": self._namespace, "queue": queue} for queue in queues]
                return cursor.executemany(SQL["recall"], rows).rowcount

        return await self._database.run(write)


def _note(cursor: sqlite3.Cursor, one: Envelope, now: float) -> Published:
    row = job_row(one, now, "sent")
    return Published(one.id, existing=cursor.execute(SQL["insert_job"], row).rowcount == 0)


def _unsent(
    connection: sqlite3.Connection, here: dict[str, Any], queues: Sequence[str], limit: int
) -> tuple[list[Envelope], float | None]:
    """What is to be sent, or when to look again."""
    due = connection.execute(SQL["next_due"], here).fetchone()[0]
    if due is not None and due <= here["now"]:
        with writing(connection) as cursor:
            cursor.execute(SQL["promote"], here)
        due = here["now"]
    found: list[Envelope] = []
    for queue in open_queues(connection, here, queues):
        for kind in KINDS:
            where = {**here, "queue": queue, "kind": kind, "limit": limit}
            rows = connection.execute(SQL["unsent"], where).fetchall()
            found += [envelope(row, here["namespace"]) for row in rows]
    return found, due


def _take(cursor: sqlite3.Cursor, jobs: Mapping[str, str], where: dict[str, Any]) -> Taken:
    worker = cursor.execute(SQL["enlisted"], where).fetchone()
    if worker is None:
        raise LeaseLost(f"incarnation {where['owner']} is not enlisted")
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
    return Taken([delivery(row, name, owner, now) for row in found], unknown)
