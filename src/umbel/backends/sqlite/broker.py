"""The broker on a SQLite file. Every write is one transaction."""

from __future__ import annotations

import sqlite3
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

import msgspec

from umbel.backends.broker import Capabilities, Demand, Depth, Published, needed
from umbel.backends.sql.ending import EXPIRED
from umbel.backends.sqlite.cancelling import cancel_idle, cancel_steps
from umbel.backends.sqlite.claiming import claim, extend, is_ready, json_list, unpaused_queues
from umbel.backends.sqlite.database import Database
from umbel.backends.sqlite.job_rows import SQL
from umbel.backends.sqlite.joins import SqliteJoins
from umbel.backends.sqlite.publishing import caller_cursor, insert, publish
from umbel.backends.sqlite.settling import recover, settle
from umbel.backends.sqlite.transactions import perform, savepoint, write_transaction
from umbel.clock import Clock
from umbel.messages import Delivery, Envelope, Lease, Settlement, State


class SqliteBroker:
    """See ``umbel.backends.broker.Broker`` for what each method promises."""

    capabilities = Capabilities(
        transactional=True,
        blocking=True,
        records=True,
        delay=True,
        priority=True,
        unique=True,
        notify=True,
        move=True,
        forgets=True,
    )

    def __init__(
        self, database: Database, *, namespace: str, clock: Clock, safety_poll: float = 10.0
    ) -> None:
        self._database = database
        self._namespace = namespace
        self._clock = clock
        self._safety_poll = safety_poll
        self._stop_count = 0
        self._joins = SqliteJoins(database, namespace=namespace, clock=clock)

    async def publish(self, envelopes: Sequence[Envelope], within: Any = None) -> list[Published]:
        if within is not None:
            return self.publish_within(envelopes, within)
        return await self._database.run(partial(self._publish, envelopes), writes=True)

    def publish_blocking(self, envelopes: Sequence[Envelope], timeout: float) -> list[Published]:
        return self._database.run_blocking(partial(self._publish, envelopes), timeout)

    def _publish(
        self, envelopes: Sequence[Envelope], connection: sqlite3.Connection
    ) -> list[Published]:
        return publish(connection, envelopes, self._clock.now())

    def publish_within(
        self, envelopes: Sequence[Envelope], connection: sqlite3.Connection
    ) -> list[Published]:
        """Publish in the caller's transaction and thread."""
        with self._database.translate_errors():
            cursor = caller_cursor(self._database.file, connection)
            with savepoint(connection, cursor):
                return [insert(cursor, one, self._clock.now()) for one in envelopes]

    async def fetch(
        self, queues: Sequence[str], demand: Demand, owner: str, wait: float
    ) -> list[Delivery]:
        until = self._clock.monotonic() + wait
        stop_count = self._stop_count
        await self._database.open()
        with self._database.listening() as wake_ups:
            while stop_count == self._stop_count:
                wake_ups.clear()
                where = {**self._values(), "owner": owner}
                work = partial(claim, where=where, queues=queues, demand=demand)
                deliveries, due = await self._database.run(work, writes=True)
                left = until - self._clock.monotonic()
                if deliveries or left <= 0:
                    return deliveries
                until_due = max(due - self._clock.now(), 0.001) if due is not None else left
                await wake_ups.wait(min(left, until_due, self._safety_poll))
        return []

    def stop_waiting(self) -> None:
        self._stop_count += 1
        self._database.notifier.notify_all()

    async def assign_kinds(self, queues: Sequence[str], kinds: Mapping[str, str]) -> int:
        row = {
            "namespace": self._namespace,
            "queues": msgspec.json.encode([*queues]).decode(),
            "kinds": msgspec.json.encode(dict(kinds)).decode(),
        }

        def write(connection: sqlite3.Connection) -> int:
            if connection.execute(SQL["has_unassigned_kinds"], row).fetchone() is None:
                return 0
            with write_transaction(connection) as cursor:
                return cursor.execute(SQL["assign_kinds"], row).rowcount

        return await self._database.run(write)

    async def extend(self, owner: str, held: Sequence[Lease], older_than: float) -> list[Lease]:
        asked = self._clock.now()

        def write(connection: sqlite3.Connection) -> list[Lease]:
            # Neither a wait for the file nor a clock set back may make new claims look old.
            before = min(asked, self._clock.now()) - older_than
            return extend(connection, owner, held, before)

        return await self._database.run(write)

    async def settle(self, settlements: Sequence[Settlement]) -> list[Lease]:
        return await self._database.write(
            lambda cursor: settle(cursor, settlements, self._clock.now(), self._joins.grow_steps)
        )

    async def recover(self) -> list[str]:
        def write(connection: sqlite3.Connection) -> list[str]:
            values = self._values()
            if connection.execute(SQL["orphans"], values).fetchone() is None:
                return []  # a worker that reports a lapse takes back earlier deaths itself
            with write_transaction(connection) as cursor:
                orphans = cursor.execute(SQL["orphans"], values).fetchall()
                recover(cursor, orphans, values)
                return [orphan[0] for orphan in orphans]

        return await self._database.run(write)

    async def expire(self, limit: int) -> list[str]:
        def write(connection: sqlite3.Connection) -> list[str]:
            values = {**self._values(), "limit": limit}
            if connection.execute(SQL["expired_ids"], values).fetchone() is None:
                return []  # most often there is nothing to write
            with write_transaction(connection) as cursor:
                ids = [row[0] for row in cursor.execute(SQL["expired_ids"], values)]
                steps = cancel_steps(self._namespace, ids, EXPIRED, values["now"], State.EXPIRED)
                perform(cursor, steps)
            return ids

        return await self._database.run(write)

    async def depths(self) -> list[Depth]:
        def read(connection: sqlite3.Connection) -> list[Depth]:
            now = self._clock.now()
            rows = connection.execute(SQL["depths"], {"namespace": self._namespace})
            return [Depth(queue=q, state=State(s), jobs=n, age=now - o) for q, s, n, o in rows]

        return await self._database.run(read)

    async def has_waiting_jobs(
        self, queues: Sequence[str], kinds: Sequence[str], without: Sequence[str] = ()
    ) -> bool:
        lanes = ["", *kinds] if {*needed("")} <= {*kinds} else kinds

        def read(connection: sqlite3.Connection) -> bool:
            values = {**self._values(), "without": json_list(without)}
            return any(
                is_ready(connection, values, queue, kind, "waiting_lane")
                for queue in unpaused_queues(connection, values, queues)
                for kind in lanes
            )

        return await self._database.run(read)

    async def purge(self, queue: str) -> int:
        def write(cursor: sqlite3.Cursor) -> int:
            where = {"namespace": self._namespace, "queue": queue}
            ids = [row[0] for row in cursor.execute(SQL["idle_ids"], where)]
            cancel_idle(cursor, self._namespace, ids, "purged", self._clock.now())
            return len(ids)

        return await self._database.write(write)

    async def move(self, source: str, target: str) -> int:
        names = {"namespace": self._namespace, "source": source, "target": target}
        return await self._database.write(
            lambda cursor: cursor.execute(SQL["move"], names).rowcount
        )

    async def check(self) -> None:
        await self._database.run(lambda connection: connection.execute("select 1 from job limit 1"))

    async def close(self) -> None:
        await self._database.close()

    def _values(self) -> dict[str, Any]:
        """Return the parameters that most queries have."""
        return {"namespace": self._namespace, "now": self._clock.now()}
