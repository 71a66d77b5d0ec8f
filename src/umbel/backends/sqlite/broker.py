"""Claims, settlements and the rest as SQL on one file. Every write is one transaction."""

from __future__ import annotations

import sqlite3
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

import msgspec

from umbel.backends.broker import Capabilities, Demand, Depth, Published
from umbel.backends.sqlite.cancelling import cancel_idle
from umbel.backends.sqlite.claiming import claim, extend, is_ready, listed, open_queues
from umbel.backends.sqlite.database import Database
from umbel.backends.sqlite.job_rows import SQL
from umbel.backends.sqlite.publishing import insert, publish
from umbel.backends.sqlite.savepoints import all_or_nothing, writing
from umbel.backends.sqlite.settling import recover, settle
from umbel.clock import Clock
from umbel.errors import ConfigurationError
from umbel.messages import Delivery, Envelope, Lease, Settlement, State


class SqliteBroker:
    """See ``brokers.port.Broker`` for what each method promises."""

    capabilities = Capabilities(
        transactional=True,
        direct=True,
        records=True,
        delay=True,
        priority=True,
        unique=True,
        notify=True,
        move=True,
        forgets=True,
    )

    def __init__(
        self, database: Database, *, namespace: str, clock: Clock, safety_poll: float = 5.0
    ) -> None:
        self._database = database
        self._namespace = namespace
        self._clock = clock
        self._safety_poll = safety_poll
        self._nudges = 0

    async def publish(self, envelopes: Sequence[Envelope], within: Any = None) -> list[Published]:
        if within is not None:
            return self.publish_within(envelopes, within)
        return await self._database.run(partial(self._publish, envelopes), writes=True)

    def publish_now(self, envelopes: Sequence[Envelope], timeout: float) -> list[Published]:
        return self._database.run_here(partial(self._publish, envelopes), timeout)

    def _publish(
        self, envelopes: Sequence[Envelope], connection: sqlite3.Connection
    ) -> list[Published]:
        return publish(connection, envelopes, self._clock.now())

    def publish_within(
        self, envelopes: Sequence[Envelope], connection: sqlite3.Connection
    ) -> list[Published]:
        """Publish as part of the caller's own transaction, in the caller's own thread."""
        if not isinstance(connection, sqlite3.Connection):
            raise ConfigurationError(
                f"connection={type(connection).__name__}: this application uses a SQLite file; give"
                " a sqlite3 connection to it, a SQLAlchemy connection or session on one, or"
                " Django's connection"
            )
        with self._database.explaining():
            self._database.home.check(connection)
            cursor = connection.cursor()
            cursor.row_factory = None  # the caller's rows may be of any shape
            with all_or_nothing(connection, cursor):
                return [insert(cursor, one, self._clock.now()) for one in envelopes]

    async def fetch(
        self, queues: Sequence[str], demand: Demand, owner: str, wait: float
    ) -> list[Delivery]:
        until = self._clock.monotonic() + wait
        nudges = self._nudges
        await self._database.open()
        with self._database.listening() as ear:
            while nudges == self._nudges:
                ear.clear()
                where = {**self._here(), "owner": owner}
                look = partial(claim, where=where, queues=queues, demand=demand)
                deliveries, due = await self._database.run(look, writes=True)
                left = until - self._clock.monotonic()
                if deliveries or left <= 0:
                    return deliveries
                until_due = max(due - self._clock.now(), 0.001) if due is not None else left
                await ear.wait(min(left, until_due, self._safety_poll))
        return []

    def nudge(self) -> None:
        self._nudges += 1
        self._database.bell.ring_all()

    async def sort(self, queues: Sequence[str], kinds: Mapping[str, str]) -> int:
        row = {
            "namespace": self._namespace,
            "queues": msgspec.json.encode([*queues]).decode(),
            "kinds": msgspec.json.encode(dict(kinds)).decode(),
        }

        def write(connection: sqlite3.Connection) -> int:
            if connection.execute(SQL["unsorted"], row).fetchone() is None:
                return 0
            with writing(connection) as cursor:
                return cursor.execute(SQL["sort"], row).rowcount

        return await self._database.run(write)

    async def extend(self, owner: str, held: Sequence[Lease], older_than: float) -> list[Lease]:
        asked = self._clock.now()

        def write(connection: sqlite3.Connection) -> list[Lease]:
            # Neither waiting for the file nor a clock that was set back makes new claims old.
            before = min(asked, self._clock.now()) - older_than
            return extend(connection, owner, held, before)

        return await self._database.run(write)

    async def settle(self, settlements: Sequence[Settlement]) -> list[Lease]:
        def write(connection: sqlite3.Connection) -> list[Lease]:
            with writing(connection) as cursor:
                return settle(cursor, settlements, self._clock.now())

        return await self._database.run(write, writes=True)

    async def recover(self) -> list[str]:
        def write(connection: sqlite3.Connection) -> list[str]:
            here = self._here()
            if connection.execute(SQL["orphans"], here).fetchone() is None:
                return []  # a worker that reports a lapse takes earlier deaths back itself
            with writing(connection) as cursor:
                orphans = cursor.execute(SQL["orphans"], here).fetchall()
                recover(cursor, orphans, here)
                return [orphan[0] for orphan in orphans]

        return await self._database.run(write)

    async def depths(self) -> list[Depth]:
        def read(connection: sqlite3.Connection) -> list[Depth]:
            now = self._clock.now()
            rows = connection.execute(SQL["depths"], {"namespace": self._namespace})
            return [Depth(queue=q, state=State(s), jobs=n, age=now - o) for q, s, n, o in rows]

        return await self._database.run(read)

    async def waiting(
        self, queues: Sequence[str], kinds: Sequence[str], without: Sequence[str] = ()
    ) -> bool:
        # A job of unknown kind starts only where both kinds have room.
        lanes = ["", *kinds] if {"io", "cpu"} <= set(kinds) else kinds

        def read(connection: sqlite3.Connection) -> bool:
            here = {**self._here(), "without": listed(without)}
            return any(
                is_ready(connection, here, queue, kind, "waiting_lane")
                for queue in open_queues(connection, here, queues)
                for kind in lanes
            )

        return await self._database.run(read)

    async def purge(self, queue: str) -> int:
        def write(connection: sqlite3.Connection) -> int:
            with writing(connection) as cursor:
                where = {"namespace": self._namespace, "queue": queue}
                ids = [row[0] for row in cursor.execute(SQL["idle_ids"], where)]
                for job in ids:
                    cancel_idle(cursor, self._namespace, job, "purged", self._clock.now())
                return len(ids)

        return await self._database.run(write)

    async def move(self, source: str, target: str) -> int:
        def write(connection: sqlite3.Connection) -> int:
            names = {"namespace": self._namespace, "source": source, "target": target}
            with writing(connection) as cursor:
                return cursor.execute(SQL["move"], names).rowcount

        return await self._database.run(write)

    async def check(self) -> None:
        await self._database.run(lambda connection: connection.execute("select 1 from job limit 1"))

    async def close(self) -> None:
        await self._database.close()

    def _here(self) -> dict[str, Any]:
        """What most queries are about: this namespace, now."""
        return {"namespace": self._namespace, "now": self._clock.now()}
