"""Gates on PostgreSQL, beyond the suite: many writers at once, plans and wake-ups."""

from __future__ import annotations

import asyncio
import json
import time
from collections import Counter
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from typing import Any

import pytest

pytest.importorskip("psycopg")

import psycopg
from local_servers import NEVER, POSTGRES_URL
from postgres_broker import (
    OWNER,
    QUICK,
    TestedBroker,
    broker_at,
    connect,
    envelope,
    nodes,
    quickly,
    waiting_fetch,
)

from umbel.backends.broker import Demand
from umbel.backends.postgres import scan_cursor
from umbel.backends.postgres.address import PostgresAddress
from umbel.backends.postgres.arrays import numbers, texts
from umbel.backends.postgres.broker import PostgresBroker, broker_queries
from umbel.backends.postgres.gates import PostgresGates
from umbel.backends.postgres.job_store import PostgresJobStore
from umbel.clock import SystemClock
from umbel.errors import LeaseLost
from umbel.messages import (
    KINDS,
    Attempt,
    Delivery,
    Interrupted,
    Outcome,
    Parked,
    Rule,
    Settlement,
    Succeeded,
)

THREE, PAIR = "limit:three", "pool:pair"
ROOM = Demand.of(io=5, cpu=5)


@asynccontextmanager
async def gated(
    address: PostgresAddress, capacity: int = 1
) -> AsyncIterator[tuple[TestedBroker, Any]]:
    """Yield a broker and its gates: a limit, and a pool of two members."""
    async with broker_at(address) as broker:
        gates = PostgresGates(broker.database, namespace="umbel", clock=SystemClock())
        await gates.declare(
            [Rule(name=THREE, capacity=capacity), Rule(name=PAIR, kind="pool")], lifted=[]
        )
        await gates.add_members("pair", {"one": {}, "two": {}})
        yield broker, gates


async def grant(broker: TestedBroker, owner: str | None, demand: Demand) -> list[Any]:
    """Let jobs of the queue ``q`` pass their gates, without the claim that follows in a fetch."""
    values = {
        "namespace": "umbel",
        "queue": texts(["q"]),
        "lane": texts([*KINDS]),
        "capacity": numbers([demand.capacity(kind) for kind in KINDS]),
        "without": "{}",
        "owner": owner,
    }
    query = broker_queries(broker.database.address)["grant"]
    return await broker.database.rows(query, values)


async def settle(
    broker: PostgresBroker, found: Sequence[Delivery], outcome: Outcome | None = None
) -> None:
    story = Attempt(1, "w", 0.0, 0.0, "succeeded")
    ends = [
        Settlement(lease=one.lease, outcome=outcome or Succeeded(), attempt=story) for one in found
    ]
    assert await broker.settle(ends) == []


def test_at_full_speed_no_gate_admits_too_many_and_no_slot_leaks(address: PostgresAddress) -> None:
    most = {THREE: 3, PAIR: 2}
    running: Counter[str] = Counter()
    in_hand: set[str] = set()
    seen: Counter[str] = Counter()
    published = 0

    async def work(stop: float) -> None:
        async with broker_at(address) as broker:
            rounds = 0
            while time.monotonic() < stop or seen.total() < published:
                found = await broker.fetch(["q", "r"], Demand.of(io=2, cpu=2), OWNER, 0.2)
                held = [slot for one in found for slot in one.slots]
                running.update(slot.gate for slot in held)
                assert all(running[gate] <= many for gate, many in most.items()), running
                members = {slot.member for slot in held if slot.member}
                assert not members & in_hand
                in_hand.update(members)
                await asyncio.sleep(0)
                in_hand.difference_update(members)
                running.subtract(slot.gate for slot in held)
                rounds += 1
                again = found[:1] if rounds % 7 == 0 else []
                done = found[len(again) :]
                seen.update(one.id for one in done)
                await settle(broker, again, Interrupted("stopping"))
                await settle(broker, done)

    async def send(stop: float) -> None:
        nonlocal published
        async with broker_at(address) as broker:
            lines = ((THREE,), (PAIR,), (THREE, PAIR), ())
            while time.monotonic() < stop:
                batch = [
                    envelope(gates=lines[n % 4], queue="qr"[n % 2], kind=("io", "cpu")[n % 3 % 2])
                    for n in range(12)
                ]
                published += len(batch)
                await broker.publish(batch)
                while published - seen.total() > 40:
                    await asyncio.sleep(0.002)

    async def scenario() -> None:
        async with gated(address, capacity=3) as (_, gates), asyncio.timeout(40):
            stop = time.monotonic() + 2.0
            await asyncio.gather(send(stop), *(work(stop) for _ in range(5)))
            assert [gate for gate in await gates.gates() if gate.held or gate.waiting] == []
            assert [member.job for member in await gates.members()] == [None, None]

    asyncio.run(scenario())
    assert published == len(seen) > 50
    assert max(seen.values()) == 1
    with connect() as connection:
        for table in ("job", "gate_event"):
            row = connection.execute(f"select count(*) from {address.schema}.{table}").fetchone()
            assert row == (0,), table


def test_publishing_in_an_open_transaction_blocks_no_job_at_the_gate(
    address: PostgresAddress,
) -> None:
    async def scenario() -> None:
        async with gated(address) as (broker, _), asyncio.timeout(QUICK):
            await broker.publish([envelope(gates=(THREE,)) for _ in range(3)])
            with psycopg.connect(POSTGRES_URL) as connection:
                late = envelope(gates=(THREE,))
                broker.publish_within([late], connection)
                for _ in range(3):
                    (found,) = await broker.fetch(["q"], ROOM, OWNER, 0)
                    await settle(broker, [found])
                assert await broker.fetch(["q"], ROOM, OWNER, 0) == []
                connection.commit()
            assert [one.id for one in await broker.fetch(["q"], ROOM, OWNER, 0)] == [late.id]

    asyncio.run(scenario())


def test_what_is_published_after_a_savepoint_was_given_up_is_found(
    address: PostgresAddress,
) -> None:
    async def scenario() -> None:
        async with gated(address) as (broker, _):
            await broker.fetch(["q"], ROOM, OWNER, 0)
            with psycopg.connect(POSTGRES_URL) as connection:
                connection.execute("savepoint mine")
                broker.publish_within([envelope(gates=(THREE,))], connection)
                connection.execute("rollback to savepoint mine")
                kept = envelope(gates=(THREE,))
                broker.publish_within([kept], connection)
            assert [one.id for one in await broker.fetch(["q"], ROOM, OWNER, 0)] == [kept.id]

    asyncio.run(scenario())


def test_a_slot_that_is_free_only_when_a_transaction_ends_wakes_a_fetch(
    address: PostgresAddress,
) -> None:
    async def scenario() -> None:
        async with gated(address) as (broker, _):
            await broker.publish([envelope(gates=(THREE,)) for _ in range(2)])
            (first,) = await broker.fetch(["q"], ROOM, OWNER, 0)
            fetch = await waiting_fetch(broker)
            with psycopg.connect(POSTGRES_URL) as connection:
                connection.execute(f"delete from {address.schema}.job where id = %s", (first.id,))
                assert await broker.fetch(["q"], ROOM, OWNER, 0) == []  # looks, and sees nothing
                connection.commit()
            assert len(await quickly(fetch)) == 1

    asyncio.run(scenario())


def test_a_waiting_job_whose_row_is_locked_blocks_no_other_and_is_not_skipped_for_good(
    address: PostgresAddress,
) -> None:
    async def scenario() -> None:
        async with gated(address, capacity=2) as (broker, _):
            locked, other = envelope(gates=(THREE,)), envelope(gates=(THREE,))
            await broker.publish([locked, other])
            with psycopg.connect(POSTGRES_URL) as connection:
                table = f"{address.schema}.job"
                connection.execute(f"select 1 from {table} where id = %s for update", (locked.id,))
                found = await broker.fetch(["q"], ROOM, OWNER, 0)
                assert [one.id for one in found] == [other.id]
                fetch = await waiting_fetch(broker)
                connection.commit()
            assert [one.id for one in await quickly(fetch)] == [locked.id]

    asyncio.run(scenario())


def test_a_fetch_of_queues_without_waiting_jobs_does_not_wake_for_every_freed_slot(
    address: PostgresAddress, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def scenario() -> None:
        async with gated(address) as (broker, _), broker_at(address) as other:
            jobs = [envelope(gates=(THREE,), queue="r") for _ in range(2)]
            await other.publish(jobs)
            fetch = await waiting_fetch(broker)
            await asyncio.sleep(0.05)
            looks: list[str] = []
            perform = broker.database.perform

            def noted(steps: Callable[[], Any]) -> Any:
                looks.append("claim")
                return perform(steps)

            monkeypatch.setattr(broker.database, "perform", noted)
            for _ in jobs:
                await settle(other, await other.fetch(["r"], ROOM, OWNER, 0))
            await asyncio.sleep(0.1)
            assert looks == []
            await other.publish([envelope(gates=(THREE,))])
            assert len(await quickly(fetch)) == 1

    asyncio.run(scenario())


def test_what_a_worker_cannot_run_now_it_finds_when_it_can(address: PostgresAddress) -> None:
    async def scenario() -> None:
        async with gated(address) as (broker, _):
            (await waiting_fetch(broker)).cancel()
            jobs = [envelope(gates=(THREE,)), envelope(gates=(THREE,), subject="u"), envelope()]
            await broker.publish(jobs)
            spared = Demand({"io": 5, "cpu": 5}, ("t",))
            found = await broker.fetch(["q"], spared, OWNER, 0.1)
            assert [one.id for one in found] == [jobs[1].id]
            await settle(broker, found, Parked(()))
            (again,) = await broker.fetch(["q"], spared, OWNER, 30)
            assert (again.id, again.slots) == (jobs[1].id, ())
            assert await broker.has_waiting_jobs(["q"], ["io", "cpu"])
            seen = [one.id for one in await broker.fetch(["q"], ROOM, OWNER, 30)]
            assert seen == [jobs[0].id, jobs[2].id]

    asyncio.run(scenario())


def test_what_another_broker_carries_has_passed_its_gates(address: PostgresAddress) -> None:
    async def scenario() -> None:
        async with gated(address) as (broker, gates):
            books = PostgresJobStore(
                broker.database, namespace="umbel", clock=SystemClock(), safety_poll=NEVER
            )
            first, second = envelope(gates=(THREE,)), envelope(gates=(THREE,))
            await books.record_sent([first, second])
            assert [one.id for one in await books.find_unsent(["q"], 10, 0)] == [first.id]
            await books.mark_sent([first.id])
            taken = await books.claim({first.id: "q", second.id: "q"}, OWNER)
            assert [(one.id, len(one.slots)) for one in taken.deliveries] == [(first.id, 1)]
            fetch = asyncio.create_task(books.find_unsent(["q"], 10, 30))
            await asyncio.sleep(0.2)
            await settle(books, taken.deliveries)
            async with asyncio.timeout(QUICK):
                assert [one.id for one in await fetch] == [second.id]
            await books.purge("q")
            assert [gate.held for gate in await gates.gates(THREE)] == [0]

    asyncio.run(scenario())


@pytest.mark.usefixtures("slow_scans")
def test_every_job_passes_although_full_scans_of_the_waiting_list_are_rare(
    address: PostgresAddress,
) -> None:
    async def scenario() -> None:
        async with gated(address) as (broker, _):
            jobs = [envelope(gates=(THREE,) * (n % 2), kind="io") for n in range(8)]
            seen: list[str] = []
            for batch in (jobs[:4], jobs[4:]):
                await broker.publish(batch)
                while not {*seen} >= {job.id for job in batch}:
                    found = await broker.fetch(["q"], ROOM, OWNER, QUICK)
                    assert found
                    seen += [one.id for one in found]
                    await settle(broker, found)
            assert sorted(seen) == sorted(job.id for job in jobs)

    asyncio.run(scenario())


def test_a_new_waiting_job_is_noticed_between_rare_full_scans(
    address: PostgresAddress, monkeypatch: pytest.MonkeyPatch
) -> None:
    looked = scan_cursor.ScanPosition.record_full_scan
    monkeypatch.setattr(
        scan_cursor.ScanPosition,
        "record_full_scan",
        lambda tail, _, *rest: looked(tail, 3600.0, *rest),
    )

    async def scenario() -> None:
        async with gated(address) as (broker, _):
            await broker.publish([envelope(kind="io")])
            assert len(await broker.fetch(["q"], ROOM, OWNER, QUICK)) == 1
            jobs = [envelope(gates=(THREE,), kind="io") for _ in range(2)]
            await broker.publish(jobs)
            for job in jobs:
                (found,) = await broker.fetch(["q"], ROOM, OWNER, QUICK)
                assert found.id == job.id
                await settle(broker, [found])

    asyncio.run(scenario())


def test_what_passed_for_a_fetch_that_never_ended_goes_back(address: PostgresAddress) -> None:
    async def scenario() -> None:
        async with gated(address) as (broker, gates):
            jobs = [envelope(gates=(PAIR, THREE), kind="io") for _ in range(2)]
            await broker.publish(jobs)
            (row,) = await grant(broker, OWNER, ROOM)  # and then its process is stopped
            assert (row[1], row[-1]) == (jobs[0].id, True)
            assert await broker.fetch(["q"], ROOM, OWNER, 0) == []
            assert await broker.extend(OWNER, [], -60.0) == []
            assert [one.id for one in await broker.fetch(["q"], ROOM, OWNER, 0)] == [jobs[0].id]
            with connect() as connection:
                connection.execute(f"delete from {address.schema}.worker")
            assert await broker.recover() == [jobs[0].id]
            assert [gate.held for gate in await gates.gates()] == [0, 1]  # the second has a member

    asyncio.run(scenario())


def test_no_job_passes_a_gate_for_a_worker_that_is_not_registered(address: PostgresAddress) -> None:
    async def scenario() -> None:
        async with gated(address, capacity=9) as (broker, gates):
            await broker.publish([envelope(gates=(THREE,), kind="io") for _ in range(3)])
            assert len(await broker.fetch(["q"], Demand.of(io=1), OWNER, 0)) == 1
            with pytest.raises(LeaseLost):
                await broker.fetch(["q"], Demand.of(io=1), "nobody", 0)
            (gate,) = await gates.gates(THREE)
            assert (gate.held, gate.waiting) == (1, 2)

    asyncio.run(scenario())


def test_what_has_passed_is_on_the_disk_when_a_fetch_returns(
    address: PostgresAddress, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The grant itself does not wait for the disk, so that it does not block others."""
    with connect() as connection:
        if connection.execute("show synchronous_commit").fetchone() == ("off",):
            pytest.skip("this server does not wait for the disk")

    async def scenario() -> None:
        async with gated(address, capacity=100) as (broker, _):
            rows, written = broker.database.rows, list[Any]()

            async def noted(query: bytes, *given: Any) -> Any:
                found = await rows(query, *given)
                if query == broker_queries(address)["grant"]:
                    written.append(lsn("pg_current_wal_insert_lsn"))
                return found

            monkeypatch.setattr(broker.database, "rows", noted)
            for _ in range(5):
                await broker.publish([envelope(gates=(THREE,), kind="io") for _ in range(5)])
                assert len(await broker.fetch(["q"], Demand.of(io=5, cpu=5), OWNER, QUICK)) == 5
                assert lsn("pg_current_wal_flush_lsn") >= written[-1]

    def lsn(which: str) -> int:
        row = connection.execute(f"select {which}() - '0/0'::pg_lsn").fetchone()
        return int(row[0])

    with connect() as connection:
        asyncio.run(scenario())


def test_a_statement_that_removes_many_jobs_frees_all_their_slots(address: PostgresAddress) -> None:
    async def scenario() -> None:
        async with gated(address, capacity=9) as (broker, gates):
            lines = ((THREE, PAIR), (PAIR,), (THREE,), (THREE,), ())
            await broker.publish([envelope(gates=line) for line in lines])
            assert len(await broker.fetch(["q"], ROOM, OWNER, 0)) == 5
            assert [gate.held for gate in await gates.gates()] == [3, 2]
            with connect() as connection:
                connection.execute(f"delete from {address.schema}.job")
                gate_events = connection.execute(
                    f"select key, freed, member from {address.schema}.gate_event"
                    " order by key, member"
                ).fetchall()
            assert gate_events == [(THREE, 3, None), (PAIR, 1, "one"), (PAIR, 1, "two")]
            assert [gate.held for gate in await gates.gates()] == [0, 0]
            assert [member.job for member in await gates.members()] == [None, None]

    asyncio.run(scenario())


@pytest.mark.parametrize("gates", [(), (THREE,)])
def test_one_of_unknown_kind_is_not_overtaken_at_a_gate(
    address: PostgresAddress, gates: tuple[str, ...]
) -> None:
    async def scenario() -> None:
        async with gated(address, capacity=9) as (broker, _):
            known = [envelope(gates=(THREE,), kind="io") for _ in range(3)]
            first = envelope(priority=1, gates=gates)
            await broker.publish([*known, first])
            found = await broker.fetch(["q"], Demand.of(io=1, cpu=1), OWNER, 0)
            assert [one.id for one in found] == [first.id]
            found = await broker.fetch(["q"], Demand.of(io=2, cpu=2), OWNER, 0)
            assert [one.id for one in found] == [known[0].id, known[1].id]

    asyncio.run(scenario())


def test_who_has_passed_and_is_in_its_queue_is_not_overtaken_at_the_gate(
    address: PostgresAddress,
) -> None:
    async def scenario() -> None:
        async with gated(address, capacity=9) as (broker, _):
            jobs = [envelope(gates=(THREE,), kind="io") for _ in range(3)]
            await broker.publish(jobs)
            await grant(broker, None, Demand.of(io=1))  # as for another broker that carries it
            found = await broker.fetch(["q"], Demand.of(io=1), OWNER, 0)
            assert [one.id for one in found] == [jobs[0].id]

    asyncio.run(scenario())


@pytest.mark.parametrize("claimer", [None, OWNER])
def test_a_claim_from_a_waiting_list_reads_only_its_front(
    address: PostgresAddress, claimer: str | None
) -> None:
    """The plan inside the function, with long waiting lists and a long queue."""
    columns = "id, namespace, queue, kind, task, state, priority, body, gates, gate"
    with connect() as connection:
        connection.execute(
            f"insert into {address.schema}.worker (incarnation, namespace, entry, name)"
            " values (%s, 'umbel', '{}', 'w')",
            (OWNER,),
        )
        connection.execute(
            f"insert into {address.schema}.rule (namespace, name, declared)"
            """ values ('umbel', 'limit:l', '{"name": "limit:l", "capacity": 9}')"""
        )
        for state, gates, line in (
            ("waiting", "'[\"limit:l\"]'", "'limit:l'"),
            *[("queued", "null", "null")],
        ):
            connection.execute(
                f"insert into {address.schema}.job ({columns})"
                f" select gen_random_uuid(), 'umbel', 'q', 'io', 't', '{state}', n % 5, 'x',"
                f" {gates}, {line} from generate_series(1, 20000) n"
            )
        connection.execute(f"analyze {address.schema}.job")
        plans: list[dict[str, Any]] = []
        connection.add_notice_handler(lambda notice: _note(plans, notice.message_primary))
        connection.execute("load 'auto_explain'")
        for setting in (
            "auto_explain.log_min_duration = 0",
            "auto_explain.log_nested_statements = on",
            "auto_explain.log_analyze = on",
            "auto_explain.log_format = json",
            "client_min_messages = log",
        ):
            connection.execute(f"set {setting}")
        row = connection.execute(
            "select count(*), count(owner)"
            f" from {address.schema}.grant_slots("
            "'umbel', '{q}', array['', 'io', 'cpu'], array[20, 20, 20], '{}', %s)",
            (claimer,),
        ).fetchone()
        assert row == (9, 9 if claimer else 0)
    scans = [
        node
        for plan in plans
        for node in nodes(plan["Plan"])
        if "Scan" in node["Node Type"] and "Relation Name" in node
    ]
    assert "job_gate" in {node.get("Index Name") for node in scans}
    assert not [node for node in scans if "Seq" in node["Node Type"]]
    on_jobs = [node for node in scans if node["Relation Name"] == "job"]
    assert max(node["Actual Rows"] * node["Actual Loops"] for node in on_jobs) < 100


def _note(plans: list[dict[str, Any]], message: str | None) -> None:
    if message and "plan:" in message:
        plans.append(json.loads(message.partition("plan:")[2]))
