"""What holds of the SQL itself: plans, constraints, the functions for psql, wake-ups."""

from __future__ import annotations

import asyncio
import json
import os
import re
import secrets
import time
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from typing import Any

import pytest

psycopg = pytest.importorskip("psycopg")

from psycopg._queries import MAX_CACHED_STATEMENT_LENGTH  # noqa: E402

from umbel.backends import WorkerEntry  # noqa: E402
from umbel.backends.broker import Demand  # noqa: E402
from umbel.backends.postgres import scan_cursor as outlook  # noqa: E402
from umbel.backends.postgres.address import Home  # noqa: E402
from umbel.backends.postgres.broker import PostgresBroker  # noqa: E402
from umbel.backends.postgres.database import Database  # noqa: E402
from umbel.backends.postgres.job_store import PostgresJobStore  # noqa: E402
from umbel.backends.postgres.records import PostgresRecords  # noqa: E402
from umbel.backends.postgres.registry import PostgresRegistry  # noqa: E402
from umbel.backends.postgres.schema import migrate  # noqa: E402
from umbel.backends.rows import stored_states  # noqa: E402
from umbel.clock import SystemClock  # noqa: E402
from umbel.errors import DuplicateJob, Unavailable  # noqa: E402
from umbel.messages import (  # noqa: E402
    JSON,
    LIVE,
    TERMINAL,
    Attempt,
    Body,
    Envelope,
    Interrupted,
    Settlement,
    State,
    Succeeded,
    fresh_id,
)

SERVER = os.environ.get("UMBEL_TEST_POSTGRES", "postgresql://postgres@127.0.0.1:5432/test")
OWNER = "incarnation-1"
NEVER = 3600.0
"""A safety poll so slow that only a push can explain a quick answer."""
QUICK = 30.0
"""Seconds after which something is taken to hang: far below those of a safety look."""


def plain() -> Any:
    return psycopg.connect(SERVER, autocommit=True, connect_timeout=2)


@pytest.fixture
def home() -> Iterator[Home]:
    """A schema of the test's own, gone afterwards."""
    try:
        plain().close()
    except psycopg.OperationalError:
        pytest.skip(f"no PostgreSQL at {SERVER}")
    home = Home(f"{SERVER}?schema=umbel_test_{secrets.token_hex(4)}")
    asyncio.run(migrate(home))
    yield home
    with plain() as connection:
        connection.execute(f"drop schema {home.schema} cascade")


@asynccontextmanager
async def broker_at(home: Home, safety_poll: float = NEVER) -> AsyncIterator[PostgresBroker]:
    """A broker with an enlisted worker."""
    database, clock = Database(home), SystemClock()
    broker = PostgresBroker(database, namespace="umbel", clock=clock, safety_poll=safety_poll)
    registry = PostgresRegistry(database, namespace="umbel", clock=clock)
    await registry.enlist(
        WorkerEntry(
            incarnation=OWNER, name="w", host="h", pid=1, queues=("q",), io=1, cpu=1, lease=10.0
        )
    )
    try:
        yield broker
    finally:
        await broker.close()


def envelope(**fields: Any) -> Envelope:
    body = Body(JSON, b'{"args": [], "kwargs": {}}')
    return Envelope(**{"id": fresh_id(), "subject": "t", "queue": "q", "body": body, **fields})


async def until(holds: Callable[[], Any]) -> None:
    async with asyncio.timeout(QUICK):
        while not holds():
            await asyncio.sleep(0.005)


async def waiting_fetch(broker: PostgresBroker) -> asyncio.Task[list[Any]]:
    """A fetch that found nothing, and now relies on being told."""
    await broker.fetch(["q"], Demand(10, 10), OWNER, 0)  # starts the listener
    await until(lambda: broker._database.listener().hearing)
    await broker.fetch(["q"], Demand(10, 10), OWNER, 0.01)  # what it rang for is looked at
    task = asyncio.create_task(broker.fetch(["q"], Demand(10, 10), OWNER, 30))
    await asyncio.sleep(0)
    return task


async def quickly(task: asyncio.Task[list[Any]]) -> list[Any]:
    async with asyncio.timeout(QUICK):
        return await task


def listening_pids(home: Home) -> list[int]:
    with plain() as connection:
        rows = connection.execute(
            "select pid from pg_stat_activity where query like %s and pid <> pg_backend_pid()",
            (f'%listen "{home.channel}"',),
        )
        return [row[0] for row in rows]


def nodes(plan: dict[str, Any]) -> Iterator[dict[str, Any]]:
    yield plan
    for child in plan.get("Plans", ()):
        yield from nodes(child)


def unlimited(plan: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """What is read in full by a node."""
    yield plan
    if plan["Node Type"] != "Limit":
        for child in plan.get("Plans", ()):
            yield from unlimited(child)


def fill(home: Home) -> None:
    """20,000 each of queued, scheduled and finished jobs."""
    columns = "id, namespace, queue, kind, task, state, priority, body, not_before"
    with plain() as connection:
        for state in ("queued", "scheduled"):
            connection.execute(
                f"insert into {home.schema}.job ({columns})"
                f" select gen_random_uuid(), 'umbel', 'q', 'io', 't', '{state}', n % 5, 'x',"
                " now() + interval '1 day' from generate_series(1, 20000) n"
            )
        connection.execute(
            f"insert into {home.schema}.record (id, namespace, queue, kind, task, type, state,"
            " priority, content_type, body, created, attempt, deaths, max_deaths, headers, fence,"
            " attempts, finished) select gen_random_uuid(), 'umbel', 'q', 'io', 't', 't',"
            " 'succeeded', 0, 'x', 'x', now(), 1, 0, 3, '{}', 1, '[]', now()"
            " from generate_series(1, 20000)"
        )
        connection.execute(f"analyze {home.schema}.job, {home.schema}.record")


@pytest.mark.parametrize(
    ("query", "looks"), [("claim", 3), ("claim_onwards", 7), ("claim_mixed", 6)]
)
def test_a_claim_reads_only_the_index_of_ready_jobs(home: Home, query: str, looks: int) -> None:
    fill(home)
    sql = home.queries("broker.sql")[query]
    values = {"namespace": "umbel", "queue": "q", "owner": OWNER, "io": 100, "cpu": 100}
    values |= {"granted": False, "passed": False, "io_room": 100, "cpu_room": 100, "without": "{}"}
    marks = {"io_priority": 2, "io_seq": 100, "cpu_priority": 0, "cpu_seq": 0, "knock": 0}
    with plain() as connection:
        connection.execute(home.sql["settings"], {"local": False})
        row = connection.execute(b"explain (format json) " + sql, values | marks).fetchone()
    found = list(nodes(row[0][0]["Plan"]))
    on_jobs = [n for n in found if n.get("Relation Name") == "job" and "Scan" in n["Node Type"]]
    assert sorted(n["Index Name"] for n in on_jobs) == ["job_pkey", *["job_ready"] * looks]
    for node in found:  # a sort is fine for what is limited already, never for a whole lane
        if "Sort" in node["Node Type"]:
            assert "job_ready" not in {n.get("Index Name") for n in unlimited(node)}


def test_the_driver_reads_a_frequent_query_once() -> None:
    """What is longer it reads anew each time, which takes as long as a small claim."""
    database = Database(Home(f"{SERVER}?schema={'s' * 40}"))
    broker = PostgresBroker(database, namespace="umbel", clock=SystemClock())
    rare = {"claim_onwards", "recover"}
    long = {name for name, sql in broker._sql.items() if len(sql) > MAX_CACHED_STATEMENT_LENGTH}
    assert long <= rare


@pytest.mark.parametrize("query", ["insert_jobs", "insert_alike", "insert_job", "insert_plain"])
def test_a_publish_does_not_read_the_history(home: Home, query: str) -> None:
    async def scenario() -> dict[str, Any]:
        async with broker_at(home) as broker:
            connection = await home.connect()
            from umbel.backends.postgres.job_rows import (
                alike_arrays,
                job_arrays,
                job_row,
                plain_row,
            )

            made = {
                "insert_jobs": lambda: job_arrays([envelope()]),
                "insert_alike": lambda: alike_arrays([envelope()]),
                "insert_job": lambda: job_row(envelope()),
                "insert_plain": lambda: plain_row(envelope()),
            }
            values = made[query]() | {"idle": "queued"}
            sql = broker._sql[query]
            cursor = await connection.execute(b"explain (analyze, format json) " + sql, values)
            row = await cursor.fetchone()
            await connection.close()
            assert row is not None
            plan: dict[str, Any] = row[0][0]["Plan"]
            return plan

    asyncio.run(scenario())  # a plan made while the tables were empty must not be kept
    fill(home)
    looks = [n for n in nodes(asyncio.run(scenario())) if n.get("Relation Name") == "record"]
    assert [n["Index Name"] for n in looks] == ["record_pkey"]
    assert looks[0]["Actual Rows"] == 0


def test_where_the_history_is_to_end_is_found_without_reading_a_record(home: Home) -> None:
    fill(home)
    found = _plan(home, "beyond", keep=15_000)
    looks = [(n["Node Type"], n["Index Name"]) for n in found if "Relation Name" in n]
    assert looks == [("Index Only Scan", "record_finished")]
    assert not [n for n in found if "Sort" in n["Node Type"]]


def test_pruning_reads_what_is_to_go_and_nothing_else(home: Home) -> None:
    fill(home)
    long_ago = {"age": 1e9, "finished": "2001-01-01", "id": fresh_id(), "limit": 1000}
    found = _plan(home, "prune", **long_ago)
    (look,) = [n for n in found if n.get("Index Name") == "record_finished"]
    assert (look["Actual Rows"], look.get("Rows Removed by Filter", 0)) == (0, 0)
    assert look["Shared Hit Blocks"] + look["Shared Read Blocks"] < 10


def _plan(home: Home, query: str, file: str = "store.sql", **values: Any) -> list[dict[str, Any]]:
    """What the server does."""
    sql = home.queries(file)[query]
    with plain() as connection:
        connection.execute(f"vacuum {home.schema}.record")
        connection.execute(home.sql["settings"], {"local": False})
        explain = b"explain (analyze, buffers, timing off, format json) " + sql
        row = connection.execute(explain, {"namespace": "umbel", **values}).fetchone()
    return list(nodes(row[0][0]["Plan"]))


@pytest.mark.parametrize(("table", "states"), [("job", LIVE), ("record", TERMINAL)])
def test_the_database_knows_the_states_of_the_state_table(
    home: Home, table: str, states: frozenset[State]
) -> None:
    with plain() as connection:
        row = connection.execute(
            "select pg_get_constraintdef(oid) from pg_constraint where contypid = %s::regtype",
            (f"{home.schema}.{table}_state",),
        ).fetchone()
    assert set(re.findall(r"'(\w+)'", row[0])) == {*stored_states(states)}


def test_bodies_of_all_sizes_keep_apart_in_a_batch(home: Home) -> None:
    bodies = [b"", b"\x00\xff\\'\"", b"", *(bytes([n % 256]) * (n * n) for n in range(60)), b""]

    async def scenario() -> None:
        async with broker_at(home) as broker:
            sent = [envelope(body=Body("application/octet-stream", body)) for body in bodies]
            await broker.publish(sent)
            held = await broker.fetch(["q"], Demand(100, 100), OWNER, 0)
            assert [one.envelope.body.data for one in held] == bodies

    asyncio.run(scenario())


def test_the_table_says_of_a_job_what_its_envelope_says_by_default(home: Home) -> None:
    """``insert_plain`` relies on it."""

    async def scenario() -> None:
        async with broker_at(home) as broker:
            then = {"created": 1_700_000_000.0}
            await broker.publish([envelope(**then)])
            await broker.publish([envelope(**then, headers={"tenant": "acme"})])
            with plain() as connection:
                connection.execute(f"update {home.schema}.job set headers = '{{}}'")
                columns = "to_jsonb(j) - 'id' - 'seq'"
                rows = connection.execute(f"select {columns} from {home.schema}.job j").fetchall()
            assert rows[0] == rows[1]

    asyncio.run(scenario())


def test_publishing_from_psql_wakes_a_waiting_fetch(home: Home) -> None:
    async def scenario() -> None:
        async with broker_at(home) as broker:
            fetch = await waiting_fetch(broker)
            with plain() as connection:
                row = connection.execute(
                    f"select {home.schema}.publish('tasks.add', '[1, 2]', queue => 'q')"
                ).fetchone()
            (delivery,) = await quickly(fetch)
            assert delivery.id == str(row[0])
            assert delivery.envelope.subject == "tasks.add"
            assert json.loads(delivery.envelope.body.data) == {"args": [1, 2], "kwargs": {}}

    asyncio.run(scenario())


def test_a_delay_given_in_psql_is_kept(home: Home) -> None:
    async def scenario() -> None:
        async with broker_at(home) as broker:
            fetch = await waiting_fetch(broker)
            started = time.monotonic()
            with plain() as connection:
                connection.execute(
                    f"select {home.schema}.publish('t', queue => 'q', delay => '200 ms')"
                )
            assert len(await quickly(fetch)) == 1
            assert time.monotonic() - started >= 0.19

    asyncio.run(scenario())


def test_a_cloud_event_is_published_with_all_its_attributes(home: Home) -> None:
    event = {
        "specversion": "1.0",
        "type": "umbel.command",
        "id": fresh_id(),
        "source": "/billing",
        "subject": "tasks.add",
        "data": {"args": [1], "kwargs": {"b": 2}},
        "queue": "q",
        "priority": 7,
        "expiry": "2999-01-01T00:00:00Z",
        "uniquekey": "one",
        "traceparent": "00-abc",
        "tenant": "acme",
    }

    async def scenario() -> None:
        async with broker_at(home) as broker:
            with plain() as connection:
                for _ in range(2):  # a repeat is a duplicate, and safe
                    publish_event(connection, home, event)
                with pytest.raises(psycopg.errors.UniqueViolation, match=f"job {event['id']}"):
                    publish_event(connection, home, {**event, "id": fresh_id()})
            (delivery,) = await broker.fetch(["q"], Demand(5, 5), OWNER, 0)
            found = delivery.envelope
            assert (found.id, found.priority, found.unique) == (event["id"], 7, "one")
            assert found.expires == 32472144000.0
            assert (found.traceparent, found.headers) == ("00-abc", {"tenant": "acme"})
            assert json.loads(found.body.data) == event["data"]

    asyncio.run(scenario())


def test_seconds_in_a_cloud_event_are_counted_by_the_server(home: Home) -> None:
    event = {
        "specversion": "1.0",
        "type": "umbel.command",
        "id": fresh_id(),
        "source": "/billing",
        "subject": "tasks.add",
        "data": {"args": [1]},
        "notbefore": "PT3600S",
        "expiry": "PT7200.5S",
    }
    with plain() as connection:
        publish_event(connection, home, event)
        found = connection.execute(
            f"select state, date_part('epoch', not_before - created),"
            f" date_part('epoch', expires - created) from {home.schema}.job where id = %s",
            [event["id"]],
        ).fetchone()
    assert found == ("scheduled", 3600.0, 7200.5)


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("notbefore", "Pardon"),
        ("type", "umbel.event"),
        ("subject", None),
        ("queue", ""),
        ("priority", "high"),
        ("priority", 99999),
        ("notbefore", "soon"),
        ("id", "one"),
        ("kind", "box"),
        ("data", None),
    ],
)
def test_a_wrong_attribute_of_a_cloud_event_is_named(home: Home, field: str, value: Any) -> None:
    event = {"type": "umbel.command", "subject": "t", "data": {}} | {field: value}
    if value is None:
        del event[field]
    with plain() as connection, pytest.raises(psycopg.DataError, match=f"^{field}: "):
        publish_event(connection, home, event)


def test_sql_publishes_an_id_once_in_each_namespace(home: Home) -> None:
    job = fresh_id()
    with plain() as connection:
        for namespace in ("one", "two", "one"):
            sql = f"select {home.schema}.publish('tests.add', id => %s, namespace => %s)"
            row: Any = connection.execute(sql, (job, namespace)).fetchone()
            assert str(row[0]) == job
        rows = connection.execute(
            f"select namespace from {home.schema}.job where id = %s order by 1", (job,)
        ).fetchall()
    assert [space for (space,) in rows] == ["one", "two"]


def publish_event(connection: Any, home: Home, event: dict[str, Any]) -> None:
    connection.execute(f"select {home.schema}.publish_event(%s)", (json.dumps(event),))


def test_without_listen_a_waiting_fetch_looks_by_itself(home: Home) -> None:
    async def scenario() -> None:
        polling = Home(f"{SERVER}?schema={home.schema}&listen=false&poll=0.02")
        async with broker_at(polling) as broker:
            fetch = asyncio.create_task(broker.fetch(["q"], Demand(1, 1), OWNER, 30))
            async with broker_at(home) as other:
                await other.publish([envelope()])
            assert len(await quickly(fetch)) == 1
            assert not listening_pids(polling)

    asyncio.run(scenario())


def test_a_listener_whose_connection_was_killed_hears_again(home: Home) -> None:
    async def scenario() -> None:
        async with broker_at(home) as broker, broker_at(home) as publisher:
            fetch = await waiting_fetch(broker)
            (killed,) = listening_pids(home)
            with plain() as connection:
                connection.execute("select pg_terminate_backend(%s)", (killed,))
            await until(lambda: set(listening_pids(home)) - {killed})
            await until(lambda: broker._database.listener().hearing)
            await publisher.publish([envelope()])
            assert len(await quickly(fetch)) == 1

    asyncio.run(scenario())


def test_what_was_published_while_nobody_listened_is_found_after_the_gap(home: Home) -> None:
    async def scenario() -> None:
        async with broker_at(home) as broker:
            fetch = await waiting_fetch(broker)
            with plain() as connection:  # both before the listener can be back
                connection.execute("select pg_terminate_backend(%s)", listening_pids(home))
                connection.execute(f"select {home.schema}.publish('t', queue => 'q')")
            assert len(await quickly(fetch)) == 1

    asyncio.run(scenario())


def test_killed_connections_are_replaced_without_an_error(home: Home) -> None:
    async def scenario() -> None:
        async with broker_at(home) as broker:
            await broker.publish([envelope()])
            with plain() as connection:
                connection.execute(
                    "select pg_terminate_backend(pid, 2000) from pg_stat_activity"
                    " where query ilike %s and pid <> pg_backend_pid()",
                    (f"%{home.schema}%",),
                )
            await broker.publish([envelope()])
            assert len(await broker.fetch(["q"], Demand(5, 5), OWNER, 0)) == 2

    asyncio.run(scenario())


def test_a_server_that_accepts_and_never_answers_is_unavailable_in_time() -> None:
    async def scenario() -> None:
        server = await asyncio.start_server(lambda _, writer: None, "127.0.0.1", 0)
        port = server.sockets[0].getsockname()[1]
        home = Home(f"postgresql://u@127.0.0.1:{port}/d?connect_timeout=30")
        broker = PostgresBroker(Database(home, timeout=0.2), namespace="umbel", clock=SystemClock())
        with pytest.raises(Unavailable, match="did not answer"):
            await broker.publish([envelope()])
        await broker.close()
        server.close()

    asyncio.run(scenario())


def test_a_rolled_back_transaction_publishes_nothing(home: Home) -> None:
    async def scenario() -> None:
        async with broker_at(home) as broker:
            with psycopg.connect(SERVER, row_factory=psycopg.rows.dict_row) as connection:
                broker.publish_within([envelope()], connection)
                connection.rollback()
                kept = envelope(unique="k")
                broker.publish_within([kept], connection)
                with pytest.raises(DuplicateJob):
                    broker.publish_within([envelope(), envelope(unique="k")], connection)
                assert await broker.fetch(["q"], Demand(5, 5), OWNER, 0) == []
                connection.commit()  # the refusal has not broken the transaction
            deliveries = await broker.fetch(["q"], Demand(5, 5), OWNER, 0)
            assert [delivery.id for delivery in deliveries] == [kept.id]

    asyncio.run(scenario())


def test_a_rolled_back_async_transaction_publishes_nothing(home: Home) -> None:
    async def scenario() -> None:
        async with broker_at(home) as broker:
            connection = await psycopg.AsyncConnection.connect(SERVER)
            await broker.publish([envelope(), envelope()], within=connection)
            await connection.rollback()
            kept = envelope()
            await broker.publish([kept], within=connection)
            await connection.commit()
            await connection.close()
            deliveries = await broker.fetch(["q"], Demand(5, 5), OWNER, 0)
            assert [delivery.id for delivery in deliveries] == [kept.id]

    asyncio.run(scenario())


def test_a_job_somebody_begins_to_wait_for_is_not_hidden_from_fetches(home: Home) -> None:
    async def scenario() -> None:
        async with broker_at(home) as broker:
            (await waiting_fetch(broker)).cancel()
            job = envelope()
            mark = home.queries("store.sql")["await_live"]
            with psycopg.connect(SERVER) as connection:
                await broker.publish([job], within=connection)
                connection.commit()
                connection.execute(mark, {"namespace": "umbel", "id": job.id})
                assert await broker.fetch(["q"], Demand(1, 1), OWNER, 0.1) == []  # it is locked
                fetch = asyncio.create_task(broker.fetch(["q"], Demand(1, 1), OWNER, 30))
                await asyncio.sleep(0)
                connection.commit()
            assert [delivery.id for delivery in await quickly(fetch)] == [job.id]

    asyncio.run(scenario())


def test_jobs_that_change_while_a_look_waits_for_their_locks_are_claimed(home: Home) -> None:
    async def scenario() -> None:
        async with broker_at(home) as broker:
            await broker.publish([envelope(kind=kind) for kind in ("", "io", "cpu") * 2])
            with psycopg.connect(SERVER) as connection:
                connection.execute(f"update {home.schema}.job set awaited = true")
                fetch = asyncio.create_task(broker.fetch(["q"], Demand(9, 9), OWNER, 0))
                await until(lambda: blocked(home))
                connection.commit()
            assert len(await quickly(fetch)) == 6

    asyncio.run(scenario())


@pytest.mark.parametrize(("before", "after"), [("sent", "queued"), ("queued", "sent")])
def test_what_is_sent_or_taken_back_just_now_is_sorted_all_the_same(
    home: Home, before: str, after: str
) -> None:
    async def scenario() -> None:
        async with broker_at(home) as broker:
            await broker.publish([envelope(kind="")])
            change = f"update {home.schema}.job set state = %s"
            plain().execute(change, [before])
            with psycopg.connect(SERVER) as other:
                other.execute(change, [after])
                sorting = asyncio.create_task(broker.sort(["q"], {"t": "io"}))
                await until(lambda: blocked(home))
            assert await sorting == 1
            row = plain().execute(f"select kind, state from {home.schema}.job").fetchone()
            assert row == ("io", "queued")

    asyncio.run(scenario())


def test_sorting_reads_none_of_the_sorted(home: Home) -> None:
    fill(home)
    values = {"queue": ["q"], "task": ["t"], "kind": ["cpu"]}
    found = _plan(home, "sort", "broker.sql", **values)
    looks = [n for n in found if n.get("Relation Name") == "job" and "Scan" in n["Node Type"]]
    assert {n["Node Type"] for n in looks} <= {"Index Scan", "Index Only Scan"}
    assert sum(n["Actual Rows"] + n.get("Rows Removed by Filter", 0) for n in looks) == 0


@pytest.mark.parametrize("many", [1, 2])
def test_a_note_that_waits_until_its_job_has_ended_leaves_nothing(home: Home, many: int) -> None:
    columns = (
        "id, namespace, queue, kind, task, type, priority, content_type, body, created, attempt,"
        " deaths, max_deaths, headers, fence, attempts"
    )

    async def scenario() -> None:
        async with broker_at(home) as broker:
            books = PostgresJobStore(
                broker._database, namespace="umbel", clock=SystemClock(), safety_poll=NEVER
            )
            jobs = [envelope() for _ in range(many)]
            with psycopg.connect(SERVER) as worker:
                worker.execute(
                    f"insert into {home.schema}.job (id, namespace, queue, kind, task, state, body)"
                    " values (%s, 'umbel', 'q', '', 't', 'sent', '')",
                    [jobs[0].id],
                )
                noting = asyncio.create_task(books.note(jobs))
                await until(lambda: blocked(home))
                worker.execute(
                    f"with gone as (delete from {home.schema}.job where id = %s returning *)"
                    f" insert into {home.schema}.record ({columns}, state, finished)"
                    f" select {columns}, 'succeeded', now() from gone",
                    [jobs[0].id],
                )
            await noting
            found = plain().execute(f"select id::text from {home.schema}.job").fetchall()
            assert [row[0] for row in found] == [job.id for job in jobs[1:]]

    asyncio.run(scenario())


def blocked(home: Home) -> bool:
    with plain() as connection:
        row = connection.execute(
            "select 1 from pg_stat_activity where wait_event_type = 'Lock' and query like %s",
            (f"%{home.schema}%",),
        ).fetchone()
        return row is not None


def test_the_end_of_an_awaited_job_is_told(home: Home) -> None:
    async def scenario() -> None:
        async with broker_at(home) as broker:
            records = PostgresRecords(
                broker._database, namespace="umbel", clock=SystemClock(), safety_poll=NEVER
            )
            jobs = [envelope() for _ in range(250)]  # more than one hint can name
            await broker.publish(jobs)
            deliveries = await broker.fetch(["q"], Demand(500, 500), OWNER, 0)
            await until(lambda: broker._database.listener().hearing)
            waiters = [asyncio.create_task(records.finished(job.id, NEVER)) for job in jobs]
            await until(lambda: awaited(home) == 250)
            attempt = Attempt(1, "w", 0.0, 0.0, "succeeded")
            settlements = [
                Settlement(lease=d.lease, outcome=Succeeded(), attempt=attempt) for d in deliveries
            ]
            assert await broker.settle(settlements) == []
            async with asyncio.timeout(QUICK):
                found = await asyncio.gather(*waiters)
            assert {record.state for record in found} == {State.SUCCEEDED}

    asyncio.run(scenario())


def awaited(home: Home) -> int:
    with plain() as connection:
        row = connection.execute(f"select count(*) from {home.schema}.job where awaited").fetchone()
        return int(row[0])


def test_a_recovery_that_waits_leaves_what_a_living_worker_claimed_meanwhile(home: Home) -> None:
    """Two recover at once; a worker claims the job between the one and the other."""

    async def scenario() -> None:
        async with broker_at(home) as broker:
            await broker.publish([envelope()])
            assert await broker.fetch(["q"], Demand(9, 9), OWNER, 0)
            table = f"{home.schema}.job"
            with plain() as connection:
                connection.execute(f"delete from {home.schema}.worker")
                connection.execute("begin")
                connection.execute(f"update {table} set state = 'queued', owner = null")
                late = asyncio.create_task(broker.recover())
                while not late.done() and not waits_for_a_lock():
                    await asyncio.sleep(0.01)
                connection.execute(
                    f"insert into {home.schema}.worker (incarnation, namespace, entry, name)"
                    " values ('alive', 'umbel', '{}', 'alive')"
                )
                connection.execute(
                    f"update {table} set state = 'running', owner = 'alive', fence = fence + 1"
                )
                connection.execute("commit")
                assert await late == []
                found = connection.execute(f"select state, deaths from {table}").fetchone()
                assert found == ("running", 0)

    asyncio.run(scenario())


def waits_for_a_lock() -> bool:
    """Whether a recovery stands in line for a row."""
    with plain() as connection:
        waiting = connection.execute(
            "select 1 from pg_stat_activity where wait_event_type = 'Lock'"
            " and query like '%orphan%'"
        ).fetchone()
    return waiting is not None


# --- a transaction that somebody leaves open -------------------------------------------------
# In any database of the server it keeps dead entries in the index of ready jobs. A claim must not
# step over all of them, every time.

JOBS = 3_000


@contextmanager
def left_open() -> Iterator[None]:
    """A transaction that has written something and does not end."""
    with psycopg.connect(SERVER) as connection:
        connection.execute("create temporary table left_open ()")
        yield
        connection.rollback()


@pytest.fixture
def slow(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every look from the start counts as slow, and is made four times a second."""
    monkeypatch.setattr(outlook, "SLOW", -1.0)
    monkeypatch.setattr(outlook.Tail, "looked", _looked(outlook.Tail.looked))


def _looked(really: Any) -> Any:
    return lambda tail, took, *rest: really(tail, 0.25 / outlook.RARELY, *rest)


def _pages_read(home: Home, query: str, **values: int) -> int:
    sql = home.queries("broker.sql")[query]
    here = {"namespace": "umbel", "queue": "q", "owner": OWNER, "io": 10, "cpu": 0}
    here |= {"granted": False, "passed": False, "io_room": 10, "cpu_room": 0, "without": "{}"}
    with plain() as connection:
        connection.execute(home.sql["settings"], {"local": False})
        connection.execute("begin")
        explain = b"explain (analyze, buffers, timing off, format json) " + sql
        row = connection.execute(explain, here | values).fetchone()
        connection.execute("rollback")
    scans = [n for n in nodes(row[0][0]["Plan"]) if n.get("Index Name") == "job_ready"]
    return sum(n["Shared Hit Blocks"] + n["Shared Read Blocks"] for n in scans)


def test_going_on_from_the_last_look_reads_none_of_the_dead_entries(home: Home) -> None:
    async def scenario() -> None:
        async with broker_at(home) as broker:
            await broker.publish([envelope(kind="io") for _ in range(JOBS + 10)])
            for _ in range(JOBS // 100):
                await broker.fetch(["q"], Demand(100, 0), OWNER, 0)
            with plain() as connection:
                query = f"select max(seq) from {home.schema}.job where state = 'running'"
                last = connection.execute(query).fetchone()[0]
            marks = {"io_priority": 0, "io_seq": last, "cpu_priority": 0, "cpu_seq": 0, "knock": 0}
            onwards = _pages_read(home, "claim_onwards", **marks)
            from_the_start = _pages_read(home, "claim")
            assert onwards * 3 < from_the_start, (onwards, from_the_start)

    with left_open():
        asyncio.run(scenario())


@pytest.mark.usefixtures("slow")
def test_every_job_is_claimed_once_and_in_order(home: Home) -> None:
    async def scenario() -> None:
        async with broker_at(home) as broker:
            sent = [envelope(kind=("io", "cpu")[n % 2], priority=n % 3) for n in range(300)]
            await broker.publish(sent)
            got = []
            while len(got) < 300:
                found = await broker.fetch(["q"], Demand(7, 7), OWNER, 5)
                assert found
                got += [
                    (d.envelope.kind, -d.envelope.priority, sent.index(e))
                    for d in found
                    for e in sent
                    if e.id == d.id
                ]
            for kind in ("io", "cpu"):
                mine = [rest for kind_, *rest in got if kind_ == kind]
                assert mine == sorted(mine)
            assert len({place for _, _, place in got}) == 300

    asyncio.run(scenario())


@pytest.mark.usefixtures("slow")
def test_what_is_more_urgent_still_goes_first(home: Home) -> None:
    async def scenario() -> None:
        async with broker_at(home) as broker:
            await broker.publish([envelope(kind="io") for _ in range(20)])
            await broker.fetch(["q"], Demand(5, 0), OWNER, 5)
            urgent = envelope(kind="io", priority=9)
            await broker.publish([urgent])
            found = await broker.fetch(["q"], Demand(5, 0), OWNER, 5)
            assert found[0].id == urgent.id

    asyncio.run(scenario())


@pytest.mark.usefixtures("slow")
def test_what_came_back_to_its_place_is_found_by_the_next_look_from_the_start(home: Home) -> None:
    async def scenario() -> None:
        async with broker_at(home) as broker:
            await broker.publish([envelope(kind="io") for _ in range(3)])
            first, *_ = await broker.fetch(["q"], Demand(5, 0), OWNER, 5)
            await _give_back(broker, first)
            (again,) = await broker.fetch(["q"], Demand(5, 0), OWNER, 30)
            assert again.id == first.id

    asyncio.run(scenario())


async def _give_back(broker: PostgresBroker, delivery: Any) -> None:
    story = Attempt(delivery.attempt, "w", 0.0, 0.0, "interrupted")
    end = Settlement(lease=delivery.lease, outcome=Interrupted("stopping"), attempt=story)
    assert await broker.settle([end]) == []
