"""Claims, settlements and the rest as SQL on one schema. Each is one statement where it can be."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any, NamedTuple

from umbel.backends.broker import Capabilities, Demand, Depth, Published
from umbel.backends.postgres.arrays import numbers, texts
from umbel.backends.postgres.caller_connections import Caller, block_within
from umbel.backends.postgres.database import Database
from umbel.backends.postgres.errors import explaining
from umbel.backends.postgres.job_rows import delivery
from umbel.backends.postgres.publishing import cannot_fail, inserting, publishing, resolving
from umbel.backends.postgres.same_database import Origins
from umbel.backends.postgres.scan_cursor import NEVER, SOON, ScanCursor
from umbel.backends.postgres.schema import newest
from umbel.backends.postgres.settling import Batch, settling
from umbel.backends.postgres.statements import Row, Steps, after, atomically, one
from umbel.clock import Clock
from umbel.errors import LeaseLost, SchemaError, Unavailable
from umbel.messages import Delivery, Envelope, Lease, Settlement, State
from umbel.resilience import LAPSED_TOO_OFTEN, MAX_LAPSES


class _Found(NamedTuple):
    """What a claim gives."""

    rows: list[Row]
    knock: int | None
    """The number of the last knock at a gate."""
    held_back: bool
    """Whether jobs of unknown kind stood back."""
    look: float | None
    """In how many seconds somebody may pass a gate into the queue."""


class PostgresBroker:
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
        self._origins = Origins(database.home)
        self._namespace = namespace
        self._clock = clock
        self._safety_poll = safety_poll
        queries = database.home.queries("broker.sql")
        self._sql = database.home.sql | {name: _terse(sql) for name, sql in queries.items()}
        for name in ("claim", "claim_mixed", "promote"):
            self._sql[f"{name}_surely"] = self._sql[name].replace(b" skip locked", b"")
        self._outlooks: dict[tuple[str, ...], ScanCursor] = {}
        self._nudges = 0

    async def publish(self, envelopes: Sequence[Envelope], within: Any = None) -> list[Published]:
        if not envelopes:
            return []
        if within is not None:
            with explaining(self._database.home.address):
                caller = await self._origins.atake(within)
                return await caller.aperform(self._steps_within(envelopes, caller))
        if not cannot_fail(envelopes):
            return await self._database.perform(
                lambda: atomically(publishing(self._sql, envelopes))
            )
        left = await self._database.perform(lambda: inserting(self._sql, envelopes, alone=True))
        if not left:
            return [Published(envelope.id) for envelope in envelopes]
        return await self._database.perform(
            lambda: atomically(resolving(self._sql, envelopes, left))
        )

    def publish_now(self, envelopes: Sequence[Envelope], timeout: float) -> list[Published]:
        until = self._clock.monotonic() + timeout
        direct = self._database.direct
        if not cannot_fail(envelopes):
            return direct.perform(lambda: atomically(publishing(self._sql, envelopes)), timeout)
        left = direct.perform(lambda: inserting(self._sql, envelopes, alone=True), timeout)
        if not left:
            return [Published(envelope.id) for envelope in envelopes]
        steps = partial(resolving, self._sql, envelopes, left)
        return direct.perform(lambda: atomically(steps()), until - self._clock.monotonic())

    def publish_within(self, envelopes: Sequence[Envelope], connection: Any) -> list[Published]:
        """Publish as part of the caller's own transaction, in the caller's own thread."""
        with explaining(self._database.home.address):
            caller = self._origins.take(connection)
            return caller.perform(self._steps_within(envelopes, caller))

    async def fetch(
        self, queues: Sequence[str], demand: Demand, owner: str, wait: float
    ) -> list[Delivery]:
        until = self._clock.monotonic() + wait
        nudges, outlook = self._nudges, self._outlook(tuple(queues))
        sure = wait <= 0
        # No hint will come in time; and what was left alone before may be wanted now.
        if sure or not outlook.without <= {*demand.without}:
            outlook.doubt()
        outlook.without = frozenset(demand.without)
        while nudges == self._nudges:
            outlook.listen(self._clock.monotonic(), self._safety_poll)
            deliveries = await self._look(outlook, demand, owner, sure)
            now = self._clock.monotonic()
            if deliveries or now >= until:
                return deliveries
            hearing = outlook.listener.hearing
            poll = self._safety_poll if hearing else self._database.home.poll
            next_look = min(outlook.due, outlook.full_look, max(outlook.passing, now + SOON))
            await outlook.wait(min(until - now, max(next_look - now, 0.001), poll))
        return []

    def nudge(self) -> None:
        self._nudges += 1
        for outlook in self._outlooks.values():
            outlook.wake()

    async def sort(self, queues: Sequence[str], kinds: Mapping[str, str]) -> int:
        names = {"task": texts([*kinds]), "kind": texts([*kinds.values()])}
        rows = await self._rows("sort", queue=texts([*queues]), **names)
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
        if batch.simple:
            return await self._database.perform(lambda: settling(self._sql, batch))
        return await self._database.perform(lambda: atomically(settling(self._sql, batch)))

    async def recover(self) -> list[str]:
        bound = {"max_lapses": MAX_LAPSES, "lapsed_too_often": LAPSED_TOO_OFTEN}
        found = [job for job, _ in await self._rows("recover", **bound)]
        # Always: who recovered before may have died between the two statements.
        await self._rows("take_back_deaths")
        return found

    async def depths(self) -> list[Depth]:
        rows = await self._rows("depths")
        return [Depth(queue=q, state=State(s), jobs=n, age=o) for q, s, n, o in rows]

    async def waiting(
        self, queues: Sequence[str], kinds: Sequence[str], without: Sequence[str] = ()
    ) -> bool:
        lanes = ["", *kinds] if {"io", "cpu"} <= {*kinds} else [*kinds]
        lists = {"queue": texts([*queues]), "kind": texts(lanes), "without": texts([*without])}
        rows = await self._rows("waiting", **lists)
        return bool(rows[0][0])

    async def purge(self, queue: str) -> int:
        purged = 0
        # In portions: a queue of millions is no single statement.
        while ids := [row[0] for row in await self._rows("idle_ids", queue=queue)]:
            reasons = texts(["purged"] * len(ids))
            values = {"id": texts(ids), "reason": reasons, "final": State.CANCELLED.value}
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
                f"schema {self._database.home.schema} has version {rows[0][0]}, this Umbel needs"
                f" {newest()}; run: umbel db migrate"
            )

    async def close(self) -> None:
        for outlook in self._outlooks.values():
            outlook.close()
        self._outlooks.clear()
        await self._database.close()

    def _steps_within(
        self, envelopes: Sequence[Envelope], caller: Caller
    ) -> Steps[list[Published]]:
        steps = publishing(self._sql, envelopes)
        # A lone envelope that is refused has changed nothing: no savepoint is needed for it.
        if len(envelopes) == 1 and envelopes[0].on_conflict != "replace":
            return steps
        return atomically(steps, block_within(caller))

    def _outlook(self, queues: tuple[str, ...], purpose: str = "fetch") -> ScanCursor:
        listener = self._database.listener()
        outlook = self._outlooks.get((purpose, *queues))
        if outlook is None or outlook.listener is not listener:
            outlook = ScanCursor(self._namespace, queues, listener)
            self._outlooks[purpose, *queues] = outlook
        return outlook

    async def _look(
        self, outlook: ScanCursor, demand: Demand, owner: str, sure: bool
    ) -> list[Delivery]:
        """Claim from every lane that may have work, as far as there is room.

        ``sure``: waits for jobs that others have locked just now. Else a hint follows for those.
        """
        surely = "_surely" if sure else ""
        claimed: list[tuple[str, Row]] = []
        free, without = {"io": demand.io, "cpu": demand.cpu}, texts(demand.without)
        try:
            if outlook.due <= self._clock.monotonic():
                await self._promote(outlook, f"promote{surely}")
            for queue in outlook.queues:
                if outlook.enter(queue, free):
                    values = {"queue": queue, "owner": owner, **free, "without": without}
                    rows, held_back = await self._claim_past_gates(outlook, values, surely)
                    outlook.leave(queue, free, Counter(row[2] for row in rows), held_back)
                    claimed += [(queue, row) for row in rows]
        except BaseException as error:
            outlook.doubt()
            # What was claimed from the queues before is held: it must not be lost with the rest.
            if not (claimed and isinstance(error, Unavailable)):
                raise
        claimed.sort(key=lambda found: (-found[1][4], found[1][0]))
        return [delivery(row, self._namespace, queue, owner) for queue, row in claimed]

    async def _claim_past_gates(
        self, outlook: ScanCursor, values: dict[str, Any], surely: str
    ) -> tuple[list[Row], bool]:
        """Claim from a queue, after those who may have passed their gates into it."""
        queue, room = values["queue"], {f"{kind}_room": values[kind] for kind in ("io", "cpu")}
        granted = outlook.may_pass(queue, self._clock.monotonic())
        while True:
            passed, entered = await self._pass(values) if granted else ([], False)
            left = values | _left(values, passed)
            how = left | room | {"granted": granted, "passed": bool(passed)}
            found = await self._claim_from(outlook, how, surely, entered)
            if granted or found.look is None or found.look > 0:
                break
            granted = True
        look = found.look
        if outlook.without and look is not None and look <= 0:
            look = NEVER  # those may pass elsewhere; nothing changes here before a hint
        self._stand(outlook, [queue], look)
        if found.held_back:
            found = await self._claim(f"claim_mixed{surely}", left)
        return passed + found.rows, found.held_back

    async def _pass(self, values: Mapping[str, Any]) -> tuple[list[Row], bool]:
        """Let those pass for whom there is room: what is claimed with it, which the next claim
        makes last, and whether others are in the queue now."""
        found = await self._grant([values["queue"]], values)
        passed = [row for row in found if row[-1]]
        return passed, len(passed) < len(found)

    async def _grant(self, queues: Sequence[str], values: Mapping[str, Any]) -> list[Row]:
        """Let those pass for whom there is room; who did."""
        how = {"without": "{}", "owner": None, **values, "queue": texts([*queues])}
        return await self._rows("grant", **how)

    def _stand(self, outlook: ScanCursor, queues: Sequence[str], look: float | None) -> None:
        """Note in how many seconds somebody may pass a gate, now that those who may have."""
        now = self._clock.monotonic()
        for queue in queues:
            outlook.stand(queue, None if look is None else now + look)

    async def _claim_from(
        self, outlook: ScanCursor, values: dict[str, Any], surely: str, entered: bool
    ) -> _Found:
        """Claim from the start of a queue, or from where the last look ended.

        Who has ``entered`` through a gate stands at its old place: before where that was.
        """
        began, tail = self._clock.monotonic(), outlook.tail(values["queue"])
        marks = None if surely or entered else tail.begin(began)
        if marks is None:
            found = await self._claim(f"claim{surely}", values)
            now = self._clock.monotonic()
            tail.looked(now - began, now, found.rows, found.knock)
        else:
            for kind, mark in marks.items():
                values |= {f"{kind}_priority": mark.priority, f"{kind}_seq": mark.seq}
            found = await self._claim("claim_onwards", values | {"knock": tail.knock})
            tail.went_on(found.rows)
        return found

    async def _claim(self, claim: str, values: dict[str, Any]) -> _Found:
        values = {"namespace": self._namespace, **values}
        rows = await self._database.perform(lambda: self._claiming(claim, values))
        if not rows:
            raise LeaseLost(f"incarnation {values['owner']} is not enlisted")
        return _Found(rows if rows[0][0] is not None else [], *rows[0][-3:])

    def _claiming(self, claim: str, values: dict[str, Any]) -> Steps[list[Row]]:
        steps = one(self._sql[claim], values)
        if self._database.home.listens:
            return steps
        # Behind a pooler the connection has no settings of ours, and the planner would sort.
        return atomically(after(self._sql["settings"], {"local": True}, steps))

    async def _promote(self, outlook: ScanCursor, query: str) -> None:
        queues, seconds, _ = (await self._rows(query))[0]
        now = self._clock.monotonic()
        outlook.due = float("inf") if seconds is None else now + seconds
        for queue in set(queues or ()) & set(outlook.queues):
            outlook.expect(queue)

    async def _rows(self, query: str, **values: Any) -> list[Row]:
        return await self._database.rows(self._sql[query], {"namespace": self._namespace, **values})


def _terse(sql: bytes) -> bytes:
    """A query without comments and indentation: psycopg reads one of more than 4096 bytes anew
    each time, and that takes longer than a small claim."""
    lines = (line.strip() for line in sql.splitlines())
    return b"\n".join(line for line in lines if not line.startswith(b"--"))


def _left(free: Mapping[str, Any], taken: Sequence[Row]) -> dict[str, int]:
    """The room that is left after these."""
    kinds = Counter(row[2] for row in taken)
    return {kind: free[kind] - kinds[kind] for kind in ("io", "cpu")}
