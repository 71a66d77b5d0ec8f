"""The broker on a PostgreSQL schema. Each call is one statement where possible."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any, NamedTuple

from umbel.backends.broker import Capabilities, Demand, Depth, Published, needed
from umbel.backends.postgres.address import PostgresAddress
from umbel.backends.postgres.arrays import numbers, texts
from umbel.backends.postgres.caller_connections import CallerConnection, block_within
from umbel.backends.postgres.database import Database
from umbel.backends.postgres.errors import translate_errors
from umbel.backends.postgres.job_rows import delivery
from umbel.backends.postgres.joins import PostgresJoins
from umbel.backends.postgres.publishing import (
    insert_steps,
    is_one_statement,
    publish_steps,
    resolve_steps,
)
from umbel.backends.postgres.same_database import DatabaseCheck
from umbel.backends.postgres.scan_cursor import GATE_RETRY_SECONDS, NEVER, Mark, ScanCursor
from umbel.backends.postgres.schema import newest
from umbel.backends.postgres.settling import Batch, settle_steps
from umbel.backends.postgres.statements import atomically, preceded_by, single_statement
from umbel.backends.sql.ending import EXPIRED
from umbel.backends.sql.statements import Row, Steps
from umbel.clock import Clock
from umbel.errors import LeaseLost, SchemaError, Unavailable
from umbel.messages import KINDS, Delivery, Envelope, Lease, Settlement, State
from umbel.resilience import LAPSED_TOO_OFTEN, MAX_LAPSES


class _ClaimResult(NamedTuple):
    """The result of a claim."""

    rows: list[Row]
    gate_event: int | None
    """The number of the last row in ``gate_event``."""
    held_back: bool
    """Whether there are jobs of unknown kind, so that nothing was claimed."""
    gate_check: float | None
    """Seconds until a job may pass a gate into the queue; None if no job waits at one."""


class PostgresBroker:
    """See ``umbel.backends.broker.Broker`` for what each method promises."""

    capabilities = Capabilities(
        transactional=True,
        blocking=True,
        blocking_records=True,
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
        self._database_check = DatabaseCheck(database.address)
        self._namespace = namespace
        self._clock = clock
        self._safety_poll = safety_poll
        self._sql = broker_queries(database.address)
        self._scan_cursors: dict[tuple[str, ...], ScanCursor] = {}
        self._stop_count = 0
        self._joins = PostgresJoins(database, namespace=namespace, clock=clock)

    async def publish(self, envelopes: Sequence[Envelope], within: Any = None) -> list[Published]:
        if not envelopes:
            return []
        if within is not None:
            with translate_errors(self._database.address.label):
                caller = await self._database_check.aaccept(within)
                return await caller.aperform(self._steps_within(envelopes, caller))
        if not is_one_statement(envelopes):
            return await self._database.transaction(lambda: publish_steps(self._sql, envelopes))
        left = await self._database.perform(lambda: insert_steps(self._sql, envelopes, alone=True))
        if not left:
            return [Published(envelope.id) for envelope in envelopes]
        return await self._database.transaction(lambda: resolve_steps(self._sql, envelopes, left))

    def publish_blocking(self, envelopes: Sequence[Envelope], timeout: float) -> list[Published]:
        until = self._clock.monotonic() + timeout
        blocking = self._database.blocking
        if not is_one_statement(envelopes):
            return blocking.perform(
                lambda: atomically(publish_steps(self._sql, envelopes)), timeout
            )
        left = blocking.perform(lambda: insert_steps(self._sql, envelopes, alone=True), timeout)
        if not left:
            return [Published(envelope.id) for envelope in envelopes]
        steps = partial(resolve_steps, self._sql, envelopes, left)
        return blocking.perform(lambda: atomically(steps()), until - self._clock.monotonic())

    def publish_within(self, envelopes: Sequence[Envelope], connection: Any) -> list[Published]:
        """Publish in the caller's transaction and thread."""
        with translate_errors(self._database.address.label):
            caller = self._database_check.accept(connection)
            return caller.perform(self._steps_within(envelopes, caller))

    async def fetch(
        self, queues: Sequence[str], demand: Demand, owner: str, wait: float
    ) -> list[Delivery]:
        until = self._clock.monotonic() + wait
        stop_count, scan = self._stop_count, self._scan_cursor(tuple(queues))
        waits_for_locks = wait <= 0
        # No wake-up will come in time, or tasks are wanted now that the last scan left out.
        if waits_for_locks or not scan.without <= {*demand.without}:
            scan.expect_all()
        scan.without = frozenset(demand.without)
        while stop_count == self._stop_count:
            scan.read_wake_ups(self._clock.monotonic(), self._safety_poll)
            deliveries = await self._claim_ready_lanes(
                scan, demand, owner, waits_for_locks, stop_count
            )
            now = self._clock.monotonic()
            if deliveries or now >= until:
                return deliveries
            is_listening = scan.listener.is_listening
            poll = self._safety_poll if is_listening else self._database.address.poll
            next_check = min(
                scan.due, scan.next_full_scan, max(scan.next_gate_check, now + GATE_RETRY_SECONDS)
            )
            await scan.wait(min(until - now, max(next_check - now, 0.001), poll))
        return []

    def stop_waiting(self) -> None:
        self._stop_count += 1
        for scan in self._scan_cursors.values():
            scan.wake()

    async def assign_kinds(self, queues: Sequence[str], kinds: Mapping[str, str]) -> int:
        names = {"task": texts([*kinds]), "kind": texts([*kinds.values()])}
        rows = await self._rows("assign_kinds", queue=texts([*queues]), **names)
        return int(rows[0][0])

    async def extend(self, owner: str, held: Sequence[Lease], older_than: float) -> list[Lease]:
        values = {
            "owner": owner,
            "id": texts([lease.job for lease in held]),
            "fence": numbers([lease.fence for lease in held]),
            "older_than": float(older_than),
        }
        rows = await self._database.rows(self._sql["extend"], values)
        return [held[place - 1] for place in rows[0][0] or ()]

    async def settle(self, settlements: Sequence[Settlement]) -> list[Lease]:
        batch = Batch(settlements)
        grow = self._joins.grow_steps
        if batch.needs_one_statement:
            return await self._database.perform(lambda: settle_steps(self._sql, batch, grow))
        return await self._database.transaction(lambda: settle_steps(self._sql, batch, grow))

    async def recover(self) -> list[str]:
        bound = {"max_lapses": MAX_LAPSES, "lapsed_too_often": LAPSED_TOO_OFTEN}
        found = [job for job, _ in await self._rows("recover", **bound)]
        # Always: another process may have died between the two statements.
        await self._rows("take_back_deaths")
        return found

    async def expire(self, limit: int) -> list[str]:
        ids = [row[0] for row in await self._rows("expired_ids", limit=limit)]
        if not ids:
            return []
        values = {"id": texts(ids), "reason": EXPIRED, "final": State.EXPIRED.value}
        return [job for job, _ in await self._rows("cancel_idle", **values)]

    async def depths(self) -> list[Depth]:
        rows = await self._rows("depths")
        return [Depth(queue=q, state=State(s), jobs=n, age=o) for q, s, n, o in rows]

    async def has_waiting_jobs(
        self, queues: Sequence[str], kinds: Sequence[str], without: Sequence[str] = ()
    ) -> bool:
        lanes = ["", *kinds] if {*needed("")} <= {*kinds} else [*kinds]
        lists = {"queue": texts([*queues]), "kind": texts(lanes), "without": texts([*without])}
        rows = await self._rows("waiting", **lists)
        return bool(rows[0][0])

    async def purge(self, queue: str) -> int:
        purged = 0
        # In batches: one statement for millions of jobs would take too long.
        while ids := [row[0] for row in await self._rows("idle_ids", queue=queue)]:
            values = {"id": texts(ids), "reason": "purged", "final": State.CANCELLED.value}
            purged += len(await self._rows("cancel_idle", **values))
        return purged

    async def move(self, source: str, target: str) -> int:
        moved = 0
        while source != target:
            rows = await self._rows("move", source=source, target=target)
            if rows[0][0] == 0:
                break
            moved += rows[0][0]
        return moved

    async def check(self) -> None:
        rows = await self._database.rows(self._sql["version"])
        if (rows[0][0] or 0) < newest():
            raise SchemaError(
                f"schema {self._database.address.schema} has version {rows[0][0]}, this Umbel needs"
                f" {newest()}; run: umbel db migrate"
            )

    async def close(self) -> None:
        for scan in self._scan_cursors.values():
            scan.close()
        self._scan_cursors.clear()
        await self._database.close()

    def _steps_within(
        self, envelopes: Sequence[Envelope], caller: CallerConnection
    ) -> Steps[list[Published]]:
        steps = publish_steps(self._sql, envelopes)
        # A single envelope that is refused has changed nothing, so it needs no savepoint.
        if len(envelopes) == 1 and envelopes[0].on_conflict != "replace":
            return steps
        return atomically(steps, block_within(caller))

    def _scan_cursor(self, queues: tuple[str, ...], purpose: str = "fetch") -> ScanCursor:
        listener = self._database.listener()
        scan = self._scan_cursors.get((purpose, *queues))
        if scan is None or scan.listener is not listener:
            scan = ScanCursor(self._namespace, queues, listener)
            self._scan_cursors[purpose, *queues] = scan
        return scan

    async def _claim_ready_lanes(
        self,
        scan: ScanCursor,
        demand: Demand,
        owner: str,
        waits_for_locks: bool,
        stop_count: int,
    ) -> list[Delivery]:
        """Claim from every lane that may have work, up to the demand.

        After ``stop_waiting`` no more statements begin: a worker that stops would claim the jobs
        that it has just given back.

        ``waits_for_locks``: wait for jobs that other transactions have locked. Otherwise they are
        skipped, and a wake-up follows for them.
        """
        suffix = "_wait_for_locks" if waits_for_locks else ""
        claimed: list[tuple[str, Row]] = []
        free = dict.fromkeys(needed(""), 0) | demand.free
        without = texts(demand.without)
        try:
            if scan.due <= self._clock.monotonic():
                await self._promote(scan, f"promote{suffix}")
            for queue in scan.queues:
                if stop_count != self._stop_count:
                    break
                if scan.start_scan(queue, free):
                    values = {"queue": queue, "owner": owner, "without": without}
                    rows, held_back = await self._claim_past_gates(scan, values, free, suffix)
                    scan.finish_scan(queue, free, Counter(row[2] for row in rows), held_back)
                    claimed += [(queue, row) for row in rows]
        except BaseException as error:
            scan.expect_all()
            # Jobs claimed from earlier queues are under lease here: deliver them all the same.
            if not (claimed and isinstance(error, Unavailable)):
                raise
        claimed.sort(key=lambda found: (-found[1][4], found[1][0]))
        return [delivery(row, self._namespace, queue, owner) for queue, row in claimed]

    async def _claim_past_gates(
        self, scan: ScanCursor, values: dict[str, Any], free: Mapping[str, int], suffix: str
    ) -> tuple[list[Row], bool]:
        """Claim from a queue, after letting jobs pass their gates into it."""
        queue, demand = values["queue"], Demand({**free})
        open_kinds = [kind for kind in KINDS if demand.capacity(kind) > 0]
        granted = scan.is_gate_check_due(queue, self._clock.monotonic())
        while True:
            passed, entered = (
                await self._grant_and_claim(values, demand) if granted else ([], False)
            )
            left = demand.after(row[2] for row in passed).free
            capacity = {"kind": texts([*left]), "room": numbers([*left.values()])}
            how = {**values, **capacity, "granted": granted, "passed": bool(passed)}
            how["open_kinds"] = texts(open_kinds)
            found = await self._claim_from(scan, how, [*left], suffix, entered)
            if granted or found.gate_check is None or found.gate_check > 0:
                break
            granted = True
        gate_check = found.gate_check
        if scan.without and gate_check is not None and gate_check <= 0:
            # Another worker may let them pass. Here, nothing changes before a wake-up.
            gate_check = NEVER
        self._set_gate_check(scan, [queue], gate_check)
        if found.held_back:
            mixed = {**values, **capacity, "unknown": texts([*needed("")])}
            found = await self._claim(f"claim_mixed{suffix}", mixed)
        return passed + found.rows, found.held_back

    async def _grant_and_claim(
        self, values: Mapping[str, Any], demand: Demand
    ) -> tuple[list[Row], bool]:
        """Let jobs pass their gates, up to the demand.

        Return those that are claimed with it, which the commit of the next claim makes durable, and
        whether others are in the queue now.
        """
        found = await self._grant([values["queue"]], demand, values)
        passed = [row for row in found if row[-1]]
        return passed, len(passed) < len(found)

    async def _grant(
        self, queues: Sequence[str], demand: Demand, values: Mapping[str, Any]
    ) -> list[Row]:
        """Let jobs pass their gates, up to the demand, and return them."""
        capacity = numbers([demand.capacity(kind) for kind in KINDS])
        lanes = {"lane": texts([*KINDS]), "capacity": capacity, "queue": texts([*queues])}
        how = {"without": "{}", "owner": None, **values, **lanes}
        return await self._rows("grant", **how)

    def _set_gate_check(
        self, scan: ScanCursor, queues: Sequence[str], gate_check: float | None
    ) -> None:
        """Record in how many seconds the next job may pass a gate."""
        now = self._clock.monotonic()
        for queue in queues:
            scan.set_gate_check(queue, None if gate_check is None else now + gate_check)

    async def _claim_from(
        self,
        scan: ScanCursor,
        values: dict[str, Any],
        kinds: Sequence[str],
        suffix: str,
        entered: bool,
    ) -> _ClaimResult:
        """Claim from the start of a queue, or from where the last scan ended.

        A job that has ``entered`` through a gate keeps its old place, which is before that point.
        """
        began, position = self._clock.monotonic(), scan.position(values["queue"])
        marks = None if suffix or entered else position.begin(began)
        if marks is None:
            found = await self._claim(f"claim{suffix}", values)
            now = self._clock.monotonic()
            position.record_full_scan(now - began, now, found.rows, found.gate_event)
        else:
            at = [marks.get(kind, Mark()) for kind in kinds]
            values["mark_priority"] = numbers([mark.priority for mark in at])
            values["mark_seq"] = numbers([mark.seq for mark in at])
            found = await self._claim(
                "claim_from_marks", values | {"gate_event": position.gate_event}
            )
            position.record_partial_scan(found.rows)
        return found

    async def _claim(self, claim: str, values: dict[str, Any]) -> _ClaimResult:
        values = {"namespace": self._namespace, **values}
        rows = await self._database.perform(lambda: self._claim_steps(claim, values))
        if not rows:
            raise LeaseLost(f"incarnation {values['owner']} is not registered")
        return _ClaimResult(rows if rows[0][0] is not None else [], *rows[0][-3:])

    def _claim_steps(self, claim: str, values: dict[str, Any]) -> Steps[list[Row]]:
        steps = single_statement(self._sql[claim], values)
        if self._database.address.listens:
            return steps
        # Behind a pooler, the connection does not have our settings, and the planner would sort.
        return atomically(preceded_by(self._sql["settings"], {"local": True}, steps))

    async def _promote(self, scan: ScanCursor, query: str) -> None:
        queues, seconds, _ = (await self._rows(query))[0]
        now = self._clock.monotonic()
        scan.due = float("inf") if seconds is None else now + seconds
        for queue in set(queues or ()) & set(scan.queues):
            scan.expect(queue)

    async def _rows(self, query: str, **values: Any) -> list[Row]:
        return await self._database.rows(self._sql[query], {"namespace": self._namespace, **values})


def broker_queries(address: PostgresAddress) -> dict[str, bytes]:
    """Return all queries of a broker, by name, for the tables of this address."""
    own = {name: _strip_comments(sql) for name, sql in address.queries("broker.sql").items()}
    for name in ("claim", "claim_mixed", "promote"):
        own[f"{name}_wait_for_locks"] = own[name].replace(b" skip locked", b"")
    return address.sql | own


def _strip_comments(sql: bytes) -> bytes:
    """Return a query without comments and indentation.

    psycopg parses a query of more than 4096 bytes each time, which takes longer than a small claim.
    """
    lines = (line.strip() for line in sql.splitlines())
    return b"\n".join(line for line in lines if not line.startswith(b"--"))
