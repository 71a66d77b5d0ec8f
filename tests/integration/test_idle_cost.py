"""What an idle worker and a publisher cost a PostgreSQL server, and what a full server answers."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psycopg
import pytest

from integration.command_line import Running, Shell, wait_until
from scenarios.servers import PrivatePostgres
from umbel import Signal, Sleep, Umbel
from umbel.errors import PublishTimeout

WORKERS = 2
LEASE = 3.0
RUNS = 1_000
BEATS = 5
CONNECTIONS_PER_WORKER = 3
TRANSACTIONS_PER_BEAT = 12
"""Statements of one worker in a third of a lease, upkeep included."""


@pytest.fixture
def shell(server: PrivatePostgres, tmp_path: Path) -> Shell:
    shell = Shell(tmp_path)
    shell.env["UMBEL_URL"] = server.url
    return shell


@pytest.fixture
def observer(server: PrivatePostgres) -> Iterator[psycopg.Connection[tuple[int]]]:
    with psycopg.connect(server.url, autocommit=True) as connection:
        # It would add transactions of its own to those that are counted.
        connection.execute("alter system set autovacuum = off")
        connection.execute("select pg_reload_conf()")
        yield connection


def number(observer: psycopg.Connection[tuple[int]], query: str) -> int:
    row = observer.execute(query.encode()).fetchone()
    assert row is not None
    return int(row[0] or 0)


def connections(observer: psycopg.Connection[tuple[int]]) -> int:
    return number(
        observer, "select count(*) from pg_stat_activity where application_name like 'umbel%'"
    )


def beats(observer: psycopg.Connection[tuple[int]]) -> int:
    return number(observer, "select sum(beat) from umbel.worker")


def transactions(observer: psycopg.Connection[tuple[int]]) -> int:
    observer.execute("select pg_stat_clear_snapshot()")
    return number(
        observer, "select xact_commit from pg_stat_database where datname = current_database()"
    )


def test_idle_workers_keep_three_connections_and_make_few_transactions(
    shell: Shell, observer: psycopg.Connection[tuple[int]]
) -> None:
    options = ("--lease", str(LEASE))
    with shell.worker("--name", "a", *options), shell.worker("--name", "b", *options):
        wait_until(lambda: beats(observer) >= WORKERS * 3)
        wait_until(lambda: connections(observer) <= WORKERS * CONNECTIONS_PER_WORKER)
        first, before = beats(observer), transactions(observer)
        while beats(observer) < first + WORKERS * BEATS:
            time.sleep(LEASE / 3)  # each question is a transaction that is counted, too
        made = transactions(observer) - before
        assert made <= WORKERS * BEATS * TRANSACTIONS_PER_BEAT
        wait_until(lambda: connections(observer) <= WORKERS * CONNECTIONS_PER_WORKER)


def test_a_thousand_runs_that_wait_a_month_cost_no_statements(
    shell: Shell, server: PrivatePostgres, observer: psycopg.Connection[tuple[int]]
) -> None:
    """They are rows: an idle worker makes no more statements than without them."""
    app = Umbel(server.url, deadline=30)

    @app.task(name="note")
    def note(value: object) -> object:
        return value

    @app.workflow(name="month")
    def month() -> Any:
        return note.s(Signal("approved", timeout=30 * 86_400)).after(Sleep(20 * 86_400))

    (shell.folder / "tasks.py").write_text(
        "from umbel import Umbel\napp = Umbel()\n@app.task(name='note')\n"
        "def note(value): return value\n"
    )
    try:
        handles = [month.delay() for _ in range(RUNS)]
        with shell.worker("--name", "a", "--lease", str(LEASE)):
            wait_until(lambda: beats(observer) >= 3)
            first, before = beats(observer), transactions(observer)
            while beats(observer) < first + BEATS:
                time.sleep(LEASE / 3)
            assert transactions(observer) - before <= BEATS * TRANSACTIONS_PER_BEAT
            kept = handles[-1]
            assert {str(node.state) for node in kept.graph.nodes} == {"scheduled", "blocked"}
            asyncio.run(resolve_sleep(app, kept.id))
            kept.signal("approved", 7)
            assert kept.get(timeout=60) == 7
    finally:
        app.close()


async def resolve_sleep(app: Umbel, graph: str) -> None:
    operations = app.operations()
    try:
        assert await operations.graphs.resolve(graph, "sleep", None)
    finally:
        await operations.close()


def test_a_publisher_has_one_connection(
    server: PrivatePostgres, observer: psycopg.Connection[tuple[int]]
) -> None:
    app = Umbel(server.url)

    @app.task
    def add(a: int, b: int) -> int:
        return a + b

    try:
        for index in range(3):
            add.delay(index, 1)
        app.publish_many([add.s(1, 1), add.s(2, 2)])
        assert connections(observer) == 1
    finally:
        app.close()


def test_a_server_without_free_connections_is_reported_once_with_the_remedy(
    shell: Shell, server: PrivatePostgres, observer: psycopg.Connection[tuple[int]]
) -> None:
    observer.execute("create role narrow login superuser")
    observer.execute("alter role narrow nosuperuser connection limit 1")
    for kind in ("schema umbel", "all tables in schema umbel", "all sequences in schema umbel"):
        observer.execute(f"grant all on {kind} to narrow".encode())
    url = server.url.replace("postgres@", "narrow@")
    shell.env["UMBEL_URL"] = url
    with shell.worker("--lease", str(LEASE)) as worker:
        worker.wait_for("an idle worker needs 3 connections and a publisher 1")
        app = Umbel(url, deadline=10, backlog="none")

        @app.task
        def add(a: int, b: int) -> int:
            return a + b

        with pytest.raises(PublishTimeout, match="an idle worker needs 3 connections"):
            add.delay(1, 2)
        app.close()
        worker.wait_for("lost its leases")
        assert reports(worker) == 1


def reports(worker: Running) -> int:
    """Return how often the heartbeat has reported that the server cannot be reached."""
    found = (line for line in worker.lines if "cannot be reached" in line)
    return sum('"service":"heartbeat"' in line for line in found)
