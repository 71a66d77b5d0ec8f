"""The SQL of PostgreSQL: plans, constraints, functions for psql and wake-ups."""

from __future__ import annotations

import asyncio
import json
import re
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest

pytest.importorskip("psycopg")

import psycopg
from local_servers import NEVER, POSTGRES_URL
from postgres_broker import (
    OWNER,
    QUICK,
    broker_at,
    connect,
    envelope,
    nodes,
    quickly,
    until,
    waiting_fetch,
)

from umbel.backends.broker import Demand
from umbel.backends.postgres.address import PostgresAddress
from umbel.backends.postgres.broker import PostgresBroker, broker_queries
from umbel.backends.postgres.database import Database
from umbel.backends.postgres.job_store import PostgresJobStore
from umbel.backends.postgres.listener import Listener
from umbel.backends.postgres.records import PostgresRecords
from umbel.backends.rows import stored_states
from umbel.clock import SystemClock
from umbel.errors import DuplicateJob, Unavailable
from umbel.messages import (
    LIVE,
    TERMINAL,
    Attempt,
    Body,
    Interrupted,
    Settlement,
    State,
    Succeeded,
    fresh_id,
)

MAX_CACHED_BYTES = 4096
"""The longest query whose parsed form psycopg keeps."""


def listening_pids(address: PostgresAddress) -> list[int]:
    with connect() as connection:
        rows = connection.execute(
            "select pid from pg_stat_activity where application_name = 'umbel listening'"
            " and strpos(query, %s) > 0",
            (address.schema,),
        )
        return [row[0] for row in rows]


def unlimited(plan: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """Yield the nodes of a plan, without those below a limit."""
    yield plan
    if plan["Node Type"] != "Limit":
        for child in plan.get("Plans", ()):
            yield from unlimited(child)


def fill(address: PostgresAddress) -> None:
    """Insert 20,000 queued, 20,000 scheduled and 20,000 finished jobs."""
    columns = "id, namespace, queue, kind, task, state, priority, body, not_before"
    with connect() as connection:
        for state in ("queued", "scheduled"):
            connection.execute(
                f"insert into {address.schema}.job ({columns})"
                f" select gen_random_uuid(), 'umbel', 'q', 'io', 't', '{state}', n % 5, 'x',"
                " now() + interval '1 day' from generate_series(1, 20000) n"
            )
        connection.execute(
            f"insert into {address.schema}.record (id, namespace, queue, kind, task, type, state,"
            " priority, content_type, body, created, attempt, deaths, max_deaths, headers, fence,"
            " attempts, finished) select gen_random_uuid(), 'umbel', 'q', 'io', 't', 't',"
            " 'succeeded', 0, 'x', 'x', now(), 1, 0, 3, '{}', 1, '[]', now()"
            " from generate_series(1, 20000)"
        )
        connection.execute(f"analyze {address.schema}.job, {address.schema}.record")


@pytest.mark.parametrize(
    ("query", "looks"), [("claim", 2), ("claim_from_marks", 4), ("claim_mixed", 4)]
)
def test_a_claim_reads_only_the_index_of_ready_jobs(
    address: PostgresAddress, query: str, looks: int
) -> None:
    fill(address)
    sql = address.queries("broker.sql")[query]
    values = {"namespace": "umbel", "queue": "q", "owner": OWNER, "without": "{}"}
    values |= {"kind": "{io,cpu}", "room": "{100,100}", "open_kinds": "{io,cpu}"}
    values |= {"granted": False, "passed": False, "unknown": "{io,cpu}"}
    marks = {"mark_priority": "{2,0}", "mark_seq": "{100,0}", "gate_event": 0}
    with connect() as connection:
        connection.execute(address.sql["settings"], {"local": False})
        row = connection.execute(b"explain (format json) " + sql, values | marks).fetchone()
    found = list(nodes(row[0][0]["Plan"]))
    on_jobs = [n for n in found if n.get("Relation Name") == "job" and "Scan" in n["Node Type"]]
    assert sorted(n["Index Name"] for n in on_jobs) == ["job_pkey", *["job_ready"] * looks]
    for node in found:  # a sort is fine for what is limited already, never for a whole lane
        if "Sort" in node["Node Type"]:
            assert "job_ready" not in {n.get("Index Name") for n in unlimited(node)}


def test_the_driver_reads_a_frequent_query_once() -> None:
    """psycopg parses a longer query each time, which takes as long as a small claim."""
    queries = broker_queries(PostgresAddress(f"{POSTGRES_URL}?schema={'s' * 40}"))
    rare = {"claim_from_marks", "recover"}
    long = {name for name, sql in queries.items() if len(sql) > MAX_CACHED_BYTES}
    assert long <= rare


@pytest.mark.parametrize("query", ["insert_jobs", "insert_uniform", "insert_job", "insert_plain"])
def test_a_publish_does_not_read_the_history(address: PostgresAddress, query: str) -> None:
    async def scenario() -> dict[str, Any]:
        async with broker_at(address):
            connection = await address.connect()
            from umbel.backends.postgres.job_rows import (
                job_arrays,
                job_row,
                plain_row,
                uniform_arrays,
            )

            made = {
                "insert_jobs": lambda: job_arrays([envelope()]),
                "insert_uniform": lambda: uniform_arrays([envelope()]),
                "insert_job": lambda: job_row(envelope()),
                "insert_plain": lambda: plain_row(envelope()),
            }
            values = made[query]() | {"idle": "queued", "part": False}
            sql = address.queries("broker.sql")[query]
            cursor = await connection.execute(b"explain (analyze, format json) " + sql, values)
            row = await cursor.fetchone()
            await connection.close()
            assert row is not None
            plan: dict[str, Any] = row[0][0]["Plan"]
            return plan

    asyncio.run(scenario())  # a plan made while the tables were empty must not be kept
    fill(address)
    looks = [n for n in nodes(asyncio.run(scenario())) if n.get("Relation Name") == "record"]
    assert [n["Index Name"] for n in looks] == ["record_pkey"]
    assert looks[0]["Actual Rows"] == 0


def test_where_the_history_is_to_end_is_found_without_reading_a_record(
    address: PostgresAddress,
) -> None:
    fill(address)
    found = _plan(address, "beyond", keep=15_000)
    looks = [(n["Node Type"], n["Index Name"]) for n in found if "Relation Name" in n]
    assert looks == [("Index Only Scan", "record_finished")]
    assert not [n for n in found if "Sort" in n["Node Type"]]


def test_pruning_reads_what_is_to_go_and_nothing_else(address: PostgresAddress) -> None:
    fill(address)
    long_ago = {"age": 1e9, "finished": "2001-01-01", "id": fresh_id(), "limit": 1000}
    found = _plan(address, "prune", **long_ago)
    (look,) = [n for n in found if n.get("Index Name") == "record_finished"]
    assert (look["Actual Rows"], look.get("Rows Removed by Filter", 0)) == (0, 0)
    assert look["Shared Hit Blocks"] + look["Shared Read Blocks"] < 10


@pytest.mark.parametrize("analyzed", [True, False])
def test_old_graphs_are_found_without_reading_other_records(
    address: PostgresAddress, analyzed: bool
) -> None:
    fill(address)
    schema = address.schema
    with connect() as connection:
        connection.execute(
            f"with root as (select id, row_number() over () as days from {schema}.record"
            "               limit 2000),"
            f" old as (update {schema}.record r set task = 'umbel.graph',"
            "   finished = now() - interval '1 day' * days from root where r.id = root.id)"
            f" insert into {schema}.job_join (namespace, id, group_id, fire)"
            " select 'umbel', id::text, id::text, 'all' from root"
        )
        if analyzed:
            connection.execute(f"analyze {schema}.record, {schema}.job_join")
    page = {"age": 1000.5 * 86_400, "finished": None, "id": None, "limit": 100}
    first = "00000000-0000-0000-0000-000000000000"
    found = _plan(address, "prunable_groups", after=first, **page)
    assert found[0]["Actual Rows"] == 100
    assert {n["Index Name"] for n in found if "Relation Name" in n} <= {
        *("record_graph", "record_pkey", "job_join_group")
    }
    (look,) = [n for n in found if n.get("Index Name") == "record_graph"]
    assert look["Actual Rows"] + look.get("Rows Removed by Filter", 0) <= 101
    assert not [n for n in found if "Sort" in n["Node Type"]]


LIST = {"task": None, "queue": None, "worker": None, "before": None, "id_part": None}
WHOLE_HISTORY = {
    "position": float("inf"),
    "id": "ffffffff-ffff-ffff-ffff-ffffffffffff",
    "first": float("-inf"),
    "first_id": "00000000-0000-0000-0000-000000000000",
}


def test_a_page_of_jobs_reads_a_portion_of_the_history_and_nothing_else(
    address: PostgresAddress,
) -> None:
    fill(address)
    found = _plan(address, "finished_edge", **WHOLE_HISTORY, skipped=999)
    (look,) = [n for n in found if "Relation Name" in n]
    assert (look["Node Type"], look["Index Name"]) == ("Index Only Scan", "record_finished")
    assert look["Actual Rows"] == 1000
    assert not [n for n in found if "Sort" in n["Node Type"]]
    with connect() as connection:
        query = f"select id::text from {address.schema}.record order by id desc offset 999 limit 1"
        edge = connection.execute(query).fetchone()[0]
        now = connection.execute(
            f"select date_part('epoch', max(finished)) from {address.schema}.record"
        ).fetchone()[0]
    portion = WHOLE_HISTORY | {"first": now, "first_id": edge}
    found = _plan(address, "list_finished", **LIST | {"task": "rare"}, **portion, limit=20)
    (look,) = [n for n in found if "Relation Name" in n]
    assert look["Index Name"] == "record_finished"
    assert look["Actual Rows"] + look["Rows Removed by Filter"] == 1000


@pytest.mark.parametrize("filters", [{}, {"task": "t"}])
def test_the_newest_jobs_are_listed_without_reading_the_history(
    address: PostgresAddress, filters: dict[str, str]
) -> None:
    fill(address)
    found = _plan(address, "list_finished", **LIST | filters, **WHOLE_HISTORY, limit=20)
    (look,) = [n for n in found if "Relation Name" in n]
    assert (look["Index Name"], look["Actual Rows"]) == ("record_finished", 20)
    assert not [n for n in found if "Sort" in n["Node Type"]]


def fill_groups(address: PostgresAddress, joins: int, parts: int) -> None:
    """Insert a group of joins with one part each, and a group of one join; every part failed."""
    schema = address.schema
    with connect() as connection:
        connection.execute(
            f"insert into {schema}.job_join (namespace, id, group_id, fire, failed)"
            " select 'umbel', 'j' || n, 'many', 'all', 1 from generate_series(1, %s) n"
            " union all select 'umbel', 'wide', 'wide', 'all', %s",
            (joins, parts),
        )
        connection.execute(
            f"insert into {schema}.job_edge (namespace, join_id, position, job, state)"
            " select 'umbel', 'j' || n, 0, gen_random_uuid(), 'buried'"
            " from generate_series(1, %s) n"
            " union all select 'umbel', 'wide', n, gen_random_uuid(), 'buried'"
            " from generate_series(1, %s) n",
            (joins, parts),
        )


MEMBERS = {"join": "", "after": -1, "limit": 1_000}


@pytest.mark.parametrize("analyzed", [True, False])
def test_a_page_of_members_reads_the_parts_of_that_page_by_indexes(
    address: PostgresAddress, analyzed: bool
) -> None:
    fill(address)
    fill_groups(address, 10_000, 20_000)
    if analyzed:
        with connect() as connection:
            connection.execute(f"analyze {address.schema}.job_join, {address.schema}.job_edge")
    for place in (
        {"group": "many"},
        {"group": "many", "join": "j5", "after": 0},
        {"group": "wide"},
        {"group": "wide", "join": "wide", "after": 15_000},
    ):
        for failed in (True, False):
            found = _plan(address, "members", "joins.sql", **MEMBERS | place | {"failed": failed})
            assert found[0]["Actual Rows"] == 1_000
            indexes = {n["Index Name"]: n for n in found if "Relation Name" in n}
            assert {*indexes} == {"job_join_group", "job_edge_pkey", "record_pkey", "job_pkey"}
            for index in ("job_join_group", "job_edge_pkey"):
                read = indexes[index]["Actual Rows"] * indexes[index]["Actual Loops"]
                assert read <= 1_100, f"{read} rows by {index} for a page of 1,000"


def _plan(
    address: PostgresAddress, query: str, file: str = "store.sql", **values: Any
) -> list[dict[str, Any]]:
    """Run a query, and return the nodes of its plan."""
    states = ", ".join(f"'{state}'" for state in sorted(TERMINAL))
    sql = address.queries(file)[query]
    sql = sql.replace(b"$states", states.encode()).replace(b"$indexed", b"true")
    with connect() as connection:
        connection.execute(f"vacuum {address.schema}.record")
        connection.execute(address.sql["settings"], {"local": False})
        explain = b"explain (analyze, buffers, timing off, format json) " + sql
        row = connection.execute(explain, {"namespace": "umbel", **values}).fetchone()
    return list(nodes(row[0][0]["Plan"]))


@pytest.mark.parametrize(("table", "states"), [("job", LIVE), ("record", TERMINAL)])
def test_the_database_knows_the_states_of_the_state_table(
    address: PostgresAddress, table: str, states: frozenset[State]
) -> None:
    with connect() as connection:
        row = connection.execute(
            "select pg_get_constraintdef(oid) from pg_constraint where contypid = %s::regtype",
            (f"{address.schema}.{table}_state",),
        ).fetchone()
    assert set(re.findall(r"'(\w+)'", row[0])) == {*stored_states(states)}


def test_bodies_of_all_sizes_keep_apart_in_a_batch(address: PostgresAddress) -> None:
    bodies = [b"", b"\x00\xff\\'\"", b"", *(bytes([n % 256]) * (n * n) for n in range(60)), b""]

    async def scenario() -> None:
        async with broker_at(address) as broker:
            sent = [envelope(body=Body("application/octet-stream", body)) for body in bodies]
            await broker.publish(sent)
            held = await broker.fetch(["q"], Demand.of(io=100, cpu=100), OWNER, 0)
            assert [one.envelope.body.data for one in held] == bodies

    asyncio.run(scenario())


def test_the_table_says_of_a_job_what_its_envelope_says_by_default(
    address: PostgresAddress,
) -> None:
    """``insert_plain`` relies on it."""

    async def scenario() -> None:
        async with broker_at(address) as broker:
            then = {"created": 1_700_000_000.0}
            await broker.publish([envelope(**then)])
            await broker.publish([envelope(**then, headers={"tenant": "acme"})])
            with connect() as connection:
                connection.execute(f"update {address.schema}.job set headers = '{{}}'")
                columns = "to_jsonb(j) - 'id' - 'seq'"
                rows = connection.execute(
                    f"select {columns} from {address.schema}.job j"
                ).fetchall()
            assert rows[0] == rows[1]

    asyncio.run(scenario())


def test_publishing_from_psql_wakes_a_waiting_fetch(address: PostgresAddress) -> None:
    async def scenario() -> None:
        async with broker_at(address) as broker:
            fetch = await waiting_fetch(broker)
            with connect() as connection:
                row = connection.execute(
                    f"select {address.schema}.publish('tasks.add', '[1, 2]', queue => 'q')"
                ).fetchone()
            (delivery,) = await quickly(fetch)
            assert delivery.id == str(row[0])
            assert delivery.envelope.subject == "tasks.add"
            assert json.loads(delivery.envelope.body.data) == {"args": [1, 2], "kwargs": {}}

    asyncio.run(scenario())


def test_a_delay_given_in_psql_is_respected(address: PostgresAddress) -> None:
    async def scenario() -> None:
        async with broker_at(address) as broker:
            fetch = await waiting_fetch(broker)
            started = time.monotonic()
            with connect() as connection:
                connection.execute(
                    f"select {address.schema}.publish('t', queue => 'q', delay => '200 ms')"
                )
            assert len(await quickly(fetch)) == 1
            assert time.monotonic() - started >= 0.19

    asyncio.run(scenario())


def test_a_cloud_event_is_published_with_all_its_attributes(address: PostgresAddress) -> None:
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
        async with broker_at(address) as broker:
            with connect() as connection:
                for _ in range(2):  # a repeat is a duplicate, and safe
                    publish_event(connection, address, event)
                with pytest.raises(psycopg.errors.UniqueViolation, match=f"job {event['id']}"):
                    publish_event(connection, address, {**event, "id": fresh_id()})
            (delivery,) = await broker.fetch(["q"], Demand.of(io=5, cpu=5), OWNER, 0)
            found = delivery.envelope
            assert (found.id, found.priority, found.unique) == (event["id"], 7, "one")
            assert found.expires == 32472144000.0
            assert (found.traceparent, found.headers) == ("00-abc", {"tenant": "acme"})
            assert json.loads(found.body.data) == event["data"]

    asyncio.run(scenario())


def test_seconds_in_a_cloud_event_are_counted_by_the_server(address: PostgresAddress) -> None:
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
    with connect() as connection:
        publish_event(connection, address, event)
        found = connection.execute(
            f"select state, date_part('epoch', not_before - created),"
            f" date_part('epoch', expires - created) from {address.schema}.job where id = %s",
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
def test_a_wrong_attribute_of_a_cloud_event_is_named(
    address: PostgresAddress, field: str, value: Any
) -> None:
    event = {"type": "umbel.command", "subject": "t", "data": {}} | {field: value}
    if value is None:
        del event[field]
    with connect() as connection, pytest.raises(psycopg.DataError, match=f"^{field}: "):
        publish_event(connection, address, event)


def test_sql_publishes_an_id_once_in_each_namespace(address: PostgresAddress) -> None:
    job = fresh_id()
    with connect() as connection:
        for namespace in ("one", "two", "one"):
            sql = f"select {address.schema}.publish('tests.add', id => %s, namespace => %s)"
            row: Any = connection.execute(sql, (job, namespace)).fetchone()
            assert str(row[0]) == job
        rows = connection.execute(
            f"select namespace from {address.schema}.job where id = %s order by 1", (job,)
        ).fetchall()
    assert [space for (space,) in rows] == ["one", "two"]


def publish_event(connection: Any, address: PostgresAddress, event: dict[str, Any]) -> None:
    connection.execute(f"select {address.schema}.publish_event(%s)", (json.dumps(event),))


def test_without_listen_a_waiting_fetch_looks_by_itself(address: PostgresAddress) -> None:
    async def scenario() -> None:
        polling = PostgresAddress(f"{POSTGRES_URL}?schema={address.schema}&listen=false&poll=0.02")
        async with broker_at(polling) as broker:
            fetch = asyncio.create_task(broker.fetch(["q"], Demand.of(io=1, cpu=1), OWNER, 30))
            async with broker_at(address) as other:
                await other.publish([envelope()])
            assert len(await quickly(fetch)) == 1
            assert not listening_pids(polling)

    asyncio.run(scenario())


def test_a_listener_whose_connection_was_killed_reconnects(address: PostgresAddress) -> None:
    async def scenario() -> None:
        async with broker_at(address) as broker, broker_at(address) as publisher:
            fetch = await waiting_fetch(broker)
            (killed,) = listening_pids(address)
            with connect() as connection:
                connection.execute("select pg_terminate_backend(%s)", (killed,))
            await until(lambda: set(listening_pids(address)) - {killed})
            await until(lambda: broker.database.listener().is_listening)
            await publisher.publish([envelope()])
            assert len(await quickly(fetch)) == 1

    asyncio.run(scenario())


def test_jobs_published_while_no_listener_was_connected_are_found_after_the_gap(
    address: PostgresAddress,
) -> None:
    async def scenario() -> None:
        async with broker_at(address) as broker:
            fetch = await waiting_fetch(broker)
            with connect() as connection:  # both before the listener can be back
                connection.execute("select pg_terminate_backend(%s)", listening_pids(address))
                connection.execute(f"select {address.schema}.publish('t', queue => 'q')")
            assert len(await quickly(fetch)) == 1

    asyncio.run(scenario())


def test_a_statement_that_waits_for_a_lock_delays_no_notification(address: PostgresAddress) -> None:
    lock = f"pg_advisory_xact_lock(hashtext('{address.schema}'))"
    patiently = f"do $$ begin set local lock_timeout = 0; perform {lock}; end $$"

    def waits() -> bool:
        sql = "select 1 from pg_locks where pid = %s and not granted"
        return bool(observer.execute(sql, listening).fetchone())

    def can_be_lent(listener: Listener) -> bool:
        connection = listener.lend()
        if connection is not None:
            listener.give_back(connection)
        return connection is not None

    async def scenario() -> None:
        async with broker_at(address) as broker:
            fetch = await waiting_fetch(broker)
            listening.extend(listening_pids(address))
            await until(lambda: can_be_lent(broker.database.listener()))
            statement = asyncio.create_task(broker.database.rows(patiently.encode(), timeout=60))
            await until(waits)
            async with broker_at(address) as publisher:
                await publisher.publish([envelope()])
            assert len(await quickly(fetch)) == 1
            assert not statement.done()
            holder.rollback()
            await statement

    listening: list[int] = []
    with connect() as observer, psycopg.connect(POSTGRES_URL) as holder:
        holder.execute(f"select {lock}".encode())
        asyncio.run(scenario())


def test_killed_connections_are_replaced_without_an_error(address: PostgresAddress) -> None:
    async def scenario() -> None:
        async with broker_at(address) as broker:
            await broker.publish([envelope()])
            with connect() as connection:
                connection.execute(
                    "select pg_terminate_backend(pid, 2000) from pg_stat_activity"
                    " where query ilike %s and pid <> pg_backend_pid()",
                    (f"%{address.schema}%",),
                )
            await broker.publish([envelope()])
            assert len(await broker.fetch(["q"], Demand.of(io=5, cpu=5), OWNER, 0)) == 2

    asyncio.run(scenario())


def test_a_server_that_accepts_and_never_answers_is_unavailable_in_time() -> None:
    async def scenario() -> None:
        server = await asyncio.start_server(lambda _, writer: None, "127.0.0.1", 0)
        port = server.sockets[0].getsockname()[1]
        address = PostgresAddress(f"postgresql://u@127.0.0.1:{port}/d?connect_timeout=30")
        broker = PostgresBroker(
            Database(address, timeout=0.2), namespace="umbel", clock=SystemClock()
        )
        with pytest.raises(Unavailable, match="did not answer"):
            await broker.publish([envelope()])
        await broker.close()
        server.close()

    asyncio.run(scenario())


def test_a_rolled_back_transaction_publishes_nothing(address: PostgresAddress) -> None:
    async def scenario() -> None:
        async with broker_at(address) as broker:
            with psycopg.connect(POSTGRES_URL, row_factory=psycopg.rows.dict_row) as connection:
                broker.publish_within([envelope()], connection)
                connection.rollback()
                kept = envelope(unique="k")
                broker.publish_within([kept], connection)
                with pytest.raises(DuplicateJob):
                    broker.publish_within([envelope(), envelope(unique="k")], connection)
                assert await broker.fetch(["q"], Demand.of(io=5, cpu=5), OWNER, 0) == []
                connection.commit()  # the refusal has not broken the transaction
            deliveries = await broker.fetch(["q"], Demand.of(io=5, cpu=5), OWNER, 0)
            assert [delivery.id for delivery in deliveries] == [kept.id]

    asyncio.run(scenario())


def test_a_rolled_back_async_transaction_publishes_nothing(address: PostgresAddress) -> None:
    async def scenario() -> None:
        async with broker_at(address) as broker:
            connection = await psycopg.AsyncConnection.connect(POSTGRES_URL)
            await broker.publish([envelope(), envelope()], within=connection)
            await connection.rollback()
            kept = envelope()
            await broker.publish([kept], within=connection)
            await connection.commit()
            await connection.close()
            deliveries = await broker.fetch(["q"], Demand.of(io=5, cpu=5), OWNER, 0)
            assert [delivery.id for delivery in deliveries] == [kept.id]

    asyncio.run(scenario())


def test_a_job_that_a_client_begins_to_wait_for_is_not_hidden_from_fetches(
    address: PostgresAddress,
) -> None:
    async def scenario() -> None:
        async with broker_at(address) as broker:
            (await waiting_fetch(broker)).cancel()
            job = envelope()
            mark = address.queries("store.sql")["await_live"]
            with psycopg.connect(POSTGRES_URL) as connection:
                await broker.publish([job], within=connection)
                connection.commit()
                connection.execute(mark, {"namespace": "umbel", "id": job.id})
                assert (
                    await broker.fetch(["q"], Demand.of(io=1, cpu=1), OWNER, 0.1) == []
                )  # it is locked
                fetch = asyncio.create_task(broker.fetch(["q"], Demand.of(io=1, cpu=1), OWNER, 30))
                await asyncio.sleep(0)
                connection.commit()
            assert [delivery.id for delivery in await quickly(fetch)] == [job.id]

    asyncio.run(scenario())


def test_jobs_that_change_while_a_look_waits_for_their_locks_are_claimed(
    address: PostgresAddress,
) -> None:
    async def scenario() -> None:
        async with broker_at(address) as broker:
            await broker.publish([envelope(kind=kind) for kind in ("", "io", "cpu") * 2])
            with psycopg.connect(POSTGRES_URL) as connection:
                connection.execute(f"update {address.schema}.job set awaited = true")
                fetch = asyncio.create_task(broker.fetch(["q"], Demand.of(io=9, cpu=9), OWNER, 0))
                await until(lambda: blocked(address))
                connection.commit()
            assert len(await quickly(fetch)) == 6

    asyncio.run(scenario())


@pytest.mark.parametrize(("before", "after"), [("sent", "queued"), ("queued", "sent")])
def test_what_is_sent_or_taken_back_just_now_is_sorted_all_the_same(
    address: PostgresAddress, before: str, after: str
) -> None:
    async def scenario() -> None:
        async with broker_at(address) as broker:
            await broker.publish([envelope(kind="")])
            change = f"update {address.schema}.job set state = %s"
            connect().execute(change, [before])
            with psycopg.connect(POSTGRES_URL) as other:
                other.execute(change, [after])
                sorting = asyncio.create_task(broker.assign_kinds(["q"], {"t": "io"}))
                await until(lambda: blocked(address))
            assert await sorting == 1
            row = connect().execute(f"select kind, state from {address.schema}.job").fetchone()
            assert row == ("io", "queued")

    asyncio.run(scenario())


def test_sorting_reads_none_of_the_sorted(address: PostgresAddress) -> None:
    fill(address)
    values = {"queue": ["q"], "task": ["t"], "kind": ["cpu"]}
    found = _plan(address, "assign_kinds", "broker.sql", **values)
    looks = [n for n in found if n.get("Relation Name") == "job" and "Scan" in n["Node Type"]]
    assert {n["Node Type"] for n in looks} <= {"Index Scan", "Index Only Scan"}
    assert sum(n["Actual Rows"] + n.get("Rows Removed by Filter", 0) for n in looks) == 0


@pytest.mark.parametrize("many", [1, 2])
def test_a_note_that_waits_until_its_job_has_ended_leaves_nothing(
    address: PostgresAddress, many: int
) -> None:
    columns = (
        "id, namespace, queue, kind, task, type, priority, content_type, body, created, attempt,"
        " deaths, max_deaths, headers, fence, attempts"
    )

    async def scenario() -> None:
        async with broker_at(address) as broker:
            books = PostgresJobStore(
                broker.database, namespace="umbel", clock=SystemClock(), safety_poll=NEVER
            )
            jobs = [envelope() for _ in range(many)]
            with psycopg.connect(POSTGRES_URL) as worker:
                worker.execute(
                    f"insert into {address.schema}.job"
                    " (id, namespace, queue, kind, task, state, body)"
                    " values (%s, 'umbel', 'q', '', 't', 'sent', '')",
                    [jobs[0].id],
                )
                noting = asyncio.create_task(books.record_sent(jobs))
                await until(lambda: blocked(address))
                worker.execute(
                    f"with gone as (delete from {address.schema}.job where id = %s returning *)"
                    f" insert into {address.schema}.record ({columns}, state, finished)"
                    f" select {columns}, 'succeeded', now() from gone",
                    [jobs[0].id],
                )
            await noting
            found = connect().execute(f"select id::text from {address.schema}.job").fetchall()
            assert [row[0] for row in found] == [job.id for job in jobs[1:]]

    asyncio.run(scenario())


def blocked(address: PostgresAddress) -> bool:
    with connect() as connection:
        row = connection.execute(
            "select 1 from pg_stat_activity where wait_event_type = 'Lock' and query like %s",
            (f"%{address.schema}%",),
        ).fetchone()
        return row is not None


def test_the_end_of_an_awaited_job_is_notified(address: PostgresAddress) -> None:
    async def scenario() -> None:
        async with broker_at(address) as broker:
            records = PostgresRecords(
                broker.database, namespace="umbel", clock=SystemClock(), safety_poll=NEVER
            )
            jobs = [envelope() for _ in range(250)]  # more than one hint can name
            await broker.publish(jobs)
            deliveries = await broker.fetch(["q"], Demand.of(io=500, cpu=500), OWNER, 0)
            await until(lambda: broker.database.listener().is_listening)
            waiters = [asyncio.create_task(records.wait_finished(job.id, NEVER)) for job in jobs]
            await until(lambda: awaited(address) == 250)
            attempt = Attempt(1, "w", 0.0, 0.0, "succeeded")
            settlements = [
                Settlement(lease=d.lease, outcome=Succeeded(), attempt=attempt) for d in deliveries
            ]
            assert await broker.settle(settlements) == []
            async with asyncio.timeout(QUICK):
                found = await asyncio.gather(*waiters)
            assert {record.state for record in found} == {State.SUCCEEDED}

    asyncio.run(scenario())


def awaited(address: PostgresAddress) -> int:
    with connect() as connection:
        row = connection.execute(
            f"select count(*) from {address.schema}.job where awaited"
        ).fetchone()
        return int(row[0])


def test_a_recovery_that_waits_leaves_what_a_living_worker_claimed_meanwhile(
    address: PostgresAddress,
) -> None:
    """Two processes recover at once, and a worker claims the job between the two."""

    async def scenario() -> None:
        async with broker_at(address) as broker:
            await broker.publish([envelope()])
            assert await broker.fetch(["q"], Demand.of(io=9, cpu=9), OWNER, 0)
            table = f"{address.schema}.job"
            with connect() as connection:
                connection.execute(f"delete from {address.schema}.worker")
                connection.execute("begin")
                connection.execute(f"update {table} set state = 'queued', owner = null")
                late = asyncio.create_task(broker.recover())
                while not late.done() and not waits_for_a_lock():
                    await asyncio.sleep(0.01)
                connection.execute(
                    f"insert into {address.schema}.worker (incarnation, namespace, entry, name)"
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
    """Return whether a recovery waits for the lock of a row."""
    with connect() as connection:
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
    """Keep a transaction open that has written something."""
    with psycopg.connect(POSTGRES_URL) as connection:
        connection.execute("create temporary table left_open ()")
        yield
        connection.rollback()


def _pages_read(address: PostgresAddress, query: str, **values: Any) -> int:
    sql = address.queries("broker.sql")[query]
    here = {"namespace": "umbel", "queue": "q", "owner": OWNER, "without": "{}"}
    here |= {"kind": "{io,cpu}", "room": "{10,0}", "open_kinds": "{io}"}
    here |= {"granted": False, "passed": False}
    with connect() as connection:
        connection.execute(address.sql["settings"], {"local": False})
        connection.execute("begin")
        explain = b"explain (analyze, buffers, timing off, format json) " + sql
        row = connection.execute(explain, here | values).fetchone()
        connection.execute("rollback")
    scans = [n for n in nodes(row[0][0]["Plan"]) if n.get("Index Name") == "job_ready"]
    return sum(n["Shared Hit Blocks"] + n["Shared Read Blocks"] for n in scans)


def test_going_on_from_the_last_look_reads_none_of_the_dead_entries(
    address: PostgresAddress,
) -> None:
    async def scenario() -> None:
        async with broker_at(address) as broker:
            await broker.publish([envelope(kind="io") for _ in range(JOBS + 10)])
            for _ in range(JOBS // 100):
                await broker.fetch(["q"], Demand.of(io=100), OWNER, 0)
            with connect() as connection:
                query = f"select max(seq) from {address.schema}.job where state = 'running'"
                last = connection.execute(query).fetchone()[0]
            marks = {"mark_priority": "{0,0}", "mark_seq": f"{{{last},0}}", "gate_event": 0}
            onwards = _pages_read(address, "claim_from_marks", **marks)
            from_the_start = _pages_read(address, "claim")
            assert onwards * 3 < from_the_start, (onwards, from_the_start)

    with left_open():
        asyncio.run(scenario())


@pytest.mark.usefixtures("slow_scans")
def test_every_job_is_claimed_once_and_in_order(address: PostgresAddress) -> None:
    async def scenario() -> None:
        async with broker_at(address) as broker:
            sent = [envelope(kind=("io", "cpu")[n % 2], priority=n % 3) for n in range(300)]
            await broker.publish(sent)
            got = []
            while len(got) < 300:
                found = await broker.fetch(["q"], Demand.of(io=7, cpu=7), OWNER, 5)
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


@pytest.mark.usefixtures("slow_scans")
def test_what_is_more_urgent_still_goes_first(address: PostgresAddress) -> None:
    async def scenario() -> None:
        async with broker_at(address) as broker:
            await broker.publish([envelope(kind="io") for _ in range(20)])
            await broker.fetch(["q"], Demand.of(io=5), OWNER, 5)
            urgent = envelope(kind="io", priority=9)
            await broker.publish([urgent])
            found = await broker.fetch(["q"], Demand.of(io=5), OWNER, 5)
            assert found[0].id == urgent.id

    asyncio.run(scenario())


@pytest.mark.usefixtures("slow_scans")
def test_what_came_back_to_its_place_is_found_by_the_next_look_from_the_start(
    address: PostgresAddress,
) -> None:
    async def scenario() -> None:
        async with broker_at(address) as broker:
            await broker.publish([envelope(kind="io") for _ in range(3)])
            first, *_ = await broker.fetch(["q"], Demand.of(io=5), OWNER, 5)
            await _give_back(broker, first)
            (again,) = await broker.fetch(["q"], Demand.of(io=5), OWNER, 30)
            assert again.id == first.id

    asyncio.run(scenario())


async def _give_back(broker: PostgresBroker, delivery: Any) -> None:
    story = Attempt(delivery.attempt, "w", 0.0, 0.0, "interrupted")
    end = Settlement(lease=delivery.lease, outcome=Interrupted("stopping"), attempt=story)
    assert await broker.settle([end]) == []
