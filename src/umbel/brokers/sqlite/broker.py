"""Claims, settlements and the rest as SQL on one file. Every write is one transaction."""

from __future__ import annotations

import sqlite3
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

import msgspec
from msgspec.structs import replace

from umbel.brokers.port import Capabilities, Demand, Depth, Published
from umbel.brokers.sqlite.rows import attempt_json, delivery, job_row, lost_attempt
from umbel.clock import Clock
from umbel.drivers.queries import load
from umbel.drivers.sqlite import Database, all_or_nothing, cancel_idle, writing
from umbel.errors import ConfigurationError, DuplicateJob, LeaseLost
from umbel.messages import (
    Again,
    Delivery,
    Envelope,
    Finish,
    Lease,
    Settlement,
    State,
    disposition,
)

SQL = load("umbel.brokers.sqlite", "queries.sql")
KINDS = ("", "io", "cpu")


class SqliteBroker:
    """See ``brokers.port.Broker`` for what each method promises."""

    capabilities = Capabilities(
        transactional=True,
        records=True,
        delay=True,
        priority=True,
        unique=True,
        notify=True,
        move=True,
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
        return await self._database.run(partial(self._publish, envelopes=envelopes))

    def publish_within(
        self, envelopes: Sequence[Envelope], connection: sqlite3.Connection
    ) -> list[Published]:
        """Publish as part of the caller's own transaction, in the caller's own thread."""
        if not isinstance(connection, sqlite3.Connection):
            raise ConfigurationError(
                f"connection={type(connection).__name__}: this broker is a SQLite file; give a"
                " sqlite3 connection to it, or a SQLAlchemy connection or session on one"
            )
        with self._database.explaining():
            cursor = connection.cursor()
            cursor.row_factory = None  # the caller's rows may be of any shape
            with all_or_nothing(connection, cursor):
                return [self._insert(cursor, envelope) for envelope in envelopes]

    async def fetch(
        self, queues: Sequence[str], demand: Demand, owner: str, wait: float
    ) -> list[Delivery]:
        until = self._clock.monotonic() + wait
        nudges = self._nudges
        claim = partial(self._claim, queues=queues, demand=demand, owner=owner)
        await self._database.open()
        with self._database.listening() as ear:
            while nudges == self._nudges:
                ear.clear()
                deliveries, due = await self._database.run(claim)
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
        work = partial(self._extend, owner=owner, held=held, older_than=older_than)
        return await self._database.run(work)

    async def settle(self, settlements: Sequence[Settlement]) -> list[Lease]:
        return await self._database.run(partial(self._settle, settlements=settlements))

    async def recover(self) -> list[str]:
        return await self._database.run(self._recover)

    async def depths(self) -> list[Depth]:
        def read(connection: sqlite3.Connection) -> list[Depth]:
            rows = connection.execute(SQL["depths"], {"namespace": self._namespace})
            return [Depth(queue=q, state=State(s), jobs=n, oldest=o) for q, s, n, o in rows]

        return await self._database.run(read)

    async def waiting(self, queues: Sequence[str], kinds: Sequence[str]) -> bool:
        # A job of unknown kind starts only where both kinds have room.
        lanes = ["", *kinds] if {"io", "cpu"} <= set(kinds) else kinds

        def read(connection: sqlite3.Connection) -> bool:
            cursor = connection.cursor()
            paused = self._paused(cursor)
            return "all" not in paused and any(
                self._ready(cursor, queue, kind, "waiting_lane")
                for queue in queues
                if queue not in paused["queue"]
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

    def _publish(
        self, connection: sqlite3.Connection, envelopes: Sequence[Envelope]
    ) -> list[Published]:
        with writing(connection) as cursor:
            return [self._insert(cursor, envelope) for envelope in envelopes]

    def _insert(self, cursor: sqlite3.Cursor, envelope: Envelope) -> Published:
        row = job_row(envelope, self._clock.now())
        if cursor.execute(SQL["insert_job"], row).rowcount == 1:
            return Published(envelope.id)
        if cursor.execute(SQL["known_id"], row).fetchone():
            return Published(envelope.id, existing=True)
        holder, state = cursor.execute(SQL["unique_holder"], row).fetchone()
        if envelope.on_conflict == "return":
            return Published(holder, existing=True)
        if envelope.on_conflict == "raise" or state == State.RUNNING:
            raise DuplicateJob(envelope.unique or "", holder)
        reason = f"replaced by {envelope.id}"
        cancel_idle(cursor, envelope.namespace, holder, reason, self._clock.now())
        cursor.execute(SQL["insert_job"], row)
        return Published(envelope.id)

    def _claim(
        self, connection: sqlite3.Connection, queues: Sequence[str], demand: Demand, owner: str
    ) -> tuple[list[Delivery], float | None]:
        """Deliveries, or when to look again. Takes the write lock only when there is work."""
        now = self._clock.now()
        cursor = connection.cursor()
        due = cursor.execute(SQL["next_due"], {"namespace": self._namespace}).fetchone()[0]
        is_due = due is not None and due <= now
        if not is_due and not any(self._ready(cursor, q, kind) for q in queues for kind in KINDS):
            return [], due
        with writing(connection) as cursor:
            where = {"namespace": self._namespace, "owner": owner, "now": now}
            worker = cursor.execute(SQL["enlisted"], where).fetchone()
            if worker is None:
                raise LeaseLost(f"incarnation {owner} is not enlisted")
            if is_due:
                cursor.execute(SQL["promote"], where)
            paused = self._paused(cursor)
            if "all" in paused:
                return [], None
            rows: list[Any] = []
            free = {"io": demand.io, "cpu": demand.cpu}
            for queue in queues:
                if queue not in paused["queue"]:
                    rows += self._claim_queue(
                        cursor, {**where, "worker": worker[0], "queue": queue}, free
                    )
        return [
            delivery(row, self._namespace, owner, now) for row in rows
        ], due if not is_due else now

    def _claim_queue(
        self, cursor: sqlite3.Cursor, where: dict[str, Any], free: dict[str, int]
    ) -> list[Any]:
        claimed: list[Any] = []
        for kind in KINDS:
            limit = free[kind] if kind else self._unknown_first(cursor, where, free)
            if limit > 0:
                values = {**where, "kind": kind, "limit": limit}
                rows = cursor.execute(SQL["claim"], values).fetchall()
                for taken in (kind,) if kind else tuple(free):
                    free[taken] -= len(rows)
                # RETURNING promises no order.
                claimed += sorted(rows, key=lambda row: (-row[5], row[0]))
        return claimed

    def _unknown_first(
        self, cursor: sqlite3.Cursor, where: dict[str, Any], free: dict[str, int]
    ) -> int:
        """How many jobs of unknown kind are to be taken.

        A sender that does not know the task may mean either kind: both must have room, and it must
        be the job's turn in both.
        """
        front = []
        for kind, limit in (("", min(free.values())), *free.items()):
            row = {**where, "kind": kind, "limit": limit}
            front += cursor.execute(SQL["lane_front"], row).fetchall() if limit > 0 else []
            if not front:
                return 0
        left, taken = dict(free), 0
        for kind, _, _ in sorted(front, key=lambda row: (-row[1], row[2])):
            for needed in (kind,) if kind else tuple(free):
                left[needed] -= 1
            taken += kind == "" and min(left.values()) >= 0
        return taken

    def _ready(
        self, cursor: sqlite3.Cursor, queue: str, kind: str, query: str = "ready_lane"
    ) -> bool:
        where = {"namespace": self._namespace, "queue": queue, "kind": kind}
        row = {**where, "now": self._clock.now()}
        return cursor.execute(SQL[query], row).fetchone() is not None

    def _paused(self, cursor: sqlite3.Cursor) -> dict[str, set[str]]:
        paused: dict[str, set[str]] = {"queue": set()}
        for scope, name in cursor.execute(SQL["pauses"], {"namespace": self._namespace}):
            paused.setdefault(scope, set()).add(name)
        return paused

    def _extend(
        self, connection: sqlite3.Connection, owner: str, held: Sequence[Lease], older_than: float
    ) -> list[Lease]:
        rows = connection.execute(SQL["held"], {"owner": owner}).fetchall()
        known = {(job, fence) for job, fence, _ in rows}
        mine = {(lease.job, lease.fence) for lease in held}
        before = self._clock.now() - older_than
        unknown = [
            (job, fence) for job, fence, at in rows if (job, fence) not in mine and at < before
        ]
        if unknown:
            with writing(connection) as cursor:
                for job, fence in unknown:
                    cursor.execute(SQL["give_back"], {"id": job, "owner": owner, "fence": fence})
        return [lease for lease in held if (lease.job, lease.fence) not in known]

    def _settle(
        self, connection: sqlite3.Connection, settlements: Sequence[Settlement]
    ) -> list[Lease]:
        with writing(connection) as cursor:
            return [s.lease for s in settlements if not self._settle_one(cursor, s)]

    def _settle_one(self, cursor: sqlite3.Cursor, settlement: Settlement) -> bool:
        lease = settlement.lease
        row: dict[str, Any] = {
            "id": lease.job,
            "owner": lease.owner,
            "fence": lease.fence,
            "now": self._clock.now(),
            "attempt_story": attempt_json(settlement.attempt),
        }
        end = disposition(settlement.outcome)
        if isinstance(end, Again):
            sections = self._sections(cursor, row, end.section)
            row |= {"delay": end.delay, "cost": int(end.costs_attempt), "sections": sections}
            accepted = cursor.execute(SQL["again"], row).rowcount == 1
        elif end.state is State.SUCCEEDED and not settlement.keep:
            accepted = cursor.execute(SQL["delete_leased"], row).rowcount == 1
        else:
            accepted = self._finish(cursor, row, end)
        if accepted:
            for envelope in settlement.follow_ups:
                # A key that is taken means that the work is under way; the outcome stands.
                self._insert(cursor, replace(envelope, on_conflict="return"))
        return accepted

    def _sections(
        self, cursor: sqlite3.Cursor, row: dict[str, Any], section: str | None
    ) -> str | None:
        """The job's section counters with one more for this section; None leaves them alone."""
        found = cursor.execute(SQL["sections"], row).fetchone() if section is not None else None
        if found is None or section is None:
            return None
        counts: dict[str, int] = msgspec.json.decode(found[0])
        return msgspec.json.encode({**counts, section: counts.get(section, 0) + 1}).decode()

    def _finish(self, cursor: sqlite3.Cursor, row: dict[str, Any], finish: Finish) -> bool:
        row |= {
            "state": finish.state.value,
            "finished": row["now"],
            "result_type": finish.result.content_type if finish.result else None,
            "result": finish.result.data if finish.result else None,
            "failure": msgspec.json.encode(finish.failure).decode() if finish.failure else None,
            "reason": finish.reason,
        }
        if cursor.execute(SQL["finish"], row).rowcount != 1:
            return False
        cursor.execute(SQL["delete_leased"], row)
        return True

    def _recover(self, connection: sqlite3.Connection) -> list[str]:
        where = {"namespace": self._namespace}
        if connection.execute(SQL["orphans"], where).fetchone() is None:
            return []
        with writing(connection) as cursor:
            orphans = cursor.execute(SQL["orphans"], where).fetchall()
            for orphan in orphans:
                self._recover_one(cursor, *orphan)
            return [orphan[0] for orphan in orphans]

    def _recover_one(
        self,
        cursor: sqlite3.Cursor,
        job: str,
        owner: str,
        fence: int,
        worker: str,
        claimed: float,
        attempt: int,
        deaths: int,
        max_deaths: int,
    ) -> None:
        now = self._clock.now()
        story = lost_attempt(attempt, worker, claimed, now)
        row = {"id": job, "owner": owner, "fence": fence, "now": now, "attempt_story": story}
        if deaths + 1 < max_deaths:
            cursor.execute(SQL["count_death"], row)
            return
        reason = f"poison: {deaths + 1} workers died while running it, the last was {worker}"
        cursor.execute(SQL["add_death"], row)
        self._finish(cursor, row, Finish(State.BURIED, reason=reason))
