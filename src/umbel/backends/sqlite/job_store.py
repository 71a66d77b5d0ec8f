"""SQLite as the ledger of another broker's messages."""

from __future__ import annotations

import sqlite3
from collections.abc import Mapping, Sequence
from functools import cached_property, partial
from typing import Any

from umbel.backends.broker import Demand, Published, Taken
from umbel.backends.offers import Offers
from umbel.backends.sqlite.broker import SqliteBroker
from umbel.backends.sqlite.claiming import next_look, open_queues, sooner
from umbel.backends.sqlite.granting import grant
from umbel.backends.sqlite.job_rows import SQL, delivery, envelope, job_row
from umbel.backends.sqlite.publishing import are_added
from umbel.backends.sqlite.savepoints import writing
from umbel.errors import LeaseLost
from umbel.messages import KINDS, Envelope


class SqliteJobStore(SqliteBroker):
    """See ``brokers.port.JobStore`` for what each method promises."""

    @cached_property
    def _offers(self) -> Offers:
        return Offers()

    async def note(self, envelopes: Sequence[Envelope]) -> list[Published]:
        return await self._database.run(partial(self._note, envelopes), writes=True)

    def note_now(self, envelopes: Sequence[Envelope], timeout: float) -> list[Published]:
        return self._database.run_here(partial(self._note, envelopes), timeout)

    def _note(
        self, envelopes: Sequence[Envelope], connection: sqlite3.Connection
    ) -> list[Published]:
        now = self._clock.now()
        if are_added(connection.cursor(), envelopes, now, "sent"):
            return [Published(one.id) for one in envelopes]
        with writing(connection) as cursor:
            return [_note(cursor, one, now) for one in envelopes]

    async def unsent(self, queues: Sequence[str], limit: int, wait: float) -> list[Envelope]:
        until = self._clock.monotonic() + wait
        await self._database.open()
        with self._database.listening() as ear:
            while True:
                ear.clear()
                look = partial(_unsent, here=self._here(), queues=queues, limit=limit)
                rows, due = await self._database.run(look)  # reads, but for what falls due
                for row in rows:
                    self._offers.make(row[1], row[18], row[2])
                found = [envelope(row, self._namespace) for row in rows]
                left = until - self._clock.monotonic()
                if found or left <= 0:
                    return found
                until_due = max(due - self._clock.now(), 0.001) if due is not None else left
                await ear.wait(min(left, until_due, self._safety_poll))

    async def sent(self, jobs: Sequence[str]) -> None:
        def write(connection: sqlite3.Connection) -> None:
            with writing(connection) as cursor:
                cursor.executemany(SQL["sent"], offers)

        offers = [
            {
                "id": offer.job,
                "namespace": self._namespace,
                "fence": offer.fence,
                "queue": offer.queue,
            }
            for offer in self._offers.redeem(jobs)
        ]
        await self._database.run(write, writes=True)

    async def take(
        self, jobs: Mapping[str, str], owner: str, unnoted: Sequence[Envelope] = ()
    ) -> Taken:
        def write(connection: sqlite3.Connection) -> Taken:
            with writing(connection) as cursor:
                for one in unnoted:
                    _note(cursor, one, self._clock.now())
                return _take(cursor, jobs, self._here() | {"owner": owner})

        return await self._database.run(write, writes=True)

    async def recall(self, lanes: Sequence[tuple[str, str]]) -> int:
        return await self._database.run(partial(self._recall, lanes))

    def unsend_now(self, jobs: Sequence[str], timeout: float) -> None:
        def write(connection: sqlite3.Connection) -> None:
            # Each by itself: a thread that is suspended must not keep the file locked.
            here = {"namespace": self._namespace}
            connection.executemany(SQL["unsend"], [{**here, "id": job} for job in jobs])

        self._database.run_here(write, timeout)

    def recall_now(self, lanes: Sequence[tuple[str, str]], timeout: float) -> int:
        return self._database.run_here(partial(self._recall, lanes), timeout)

    def _recall(self, lanes: Sequence[tuple[str, str]], connection: sqlite3.Connection) -> int:
        here = {"namespace": self._namespace}
        rows = [{**here, "queue": queue, "kind": kind} for queue, kind in lanes]
        if not any(connection.execute(SQL["any_sent"], row).fetchone() for row in rows):
            return 0
        with writing(connection) as cursor:
            return cursor.executemany(SQL["recall"], rows).rowcount


def _note(cursor: sqlite3.Cursor, one: Envelope, now: float) -> Published:
    row = job_row(one, now, "sent")
    return Published(one.id, existing=cursor.execute(SQL["insert_job"], row).rowcount == 0)


def _unsent(
    connection: sqlite3.Connection, here: dict[str, Any], queues: Sequence[str], limit: int
) -> tuple[list[tuple[Any, ...]], float | None]:
    """Rows of what is to be sent, or when to look again."""
    due = connection.execute(SQL["next_due"], here).fetchone()[0]
    if due is not None and due <= here["now"]:
        with writing(connection) as cursor:
            cursor.execute(SQL["promote"], here)
        due = here["now"]
    look = next_look(connection, here, queues, Demand(limit, limit))
    if look is not None and look <= here["now"]:
        with writing(connection) as cursor:
            for queue in open_queues(connection, here, queues):
                grant(
                    cursor, {**here, "queue": queue, "without": "[]"}, dict.fromkeys(KINDS, limit)
                )
        look = next_look(connection, here, queues, Demand(limit, limit))
    found: list[tuple[Any, ...]] = []
    for queue in open_queues(connection, here, queues):
        for kind in KINDS:
            where = {**here, "queue": queue, "kind": kind, "limit": limit}
            found += connection.execute(SQL["unsent"], where).fetchall()
    return found, sooner(due, look)


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
