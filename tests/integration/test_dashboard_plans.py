"""The plan of every query of every page: none reads the whole history, few read all live jobs."""

from __future__ import annotations

import asyncio
import json
import os
import sqlite3
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest

from benchmarks.dashboard import (
    fill_charts,
    page_paths,
    postgres_store,
    sqlite_store,
    start_once,
)
from integration.conftest import POSTGRES, Place
from umbel import Umbel
from umbel.backends.postgres.database import Database as PostgresDatabase
from umbel.backends.sqlite.database import Database as SqliteDatabase
from umbel.dashboard import DashboardOptions, dashboard

FINISHED, QUEUED = 20_000, 2_000
SEARCHES = (
    *(f"/jobs?state={state}" for state in ("queued", "running", "buried", "succeeded")),
    "/jobs?task=bench.task7&queue=default&worker=web-1",
    "/jobs?state=succeeded&task=bench.none&from=2020-01-01&to=2030-01-01",
    "/jobs?text=user-00099999",
    "/jobs?error=declined&state=buried",
    *(f"/?range={span}" for span in ("1h", "24h", "7d")),
)
_TRANSACTION = ("begin", "commit", "rollback")
COUNTS = ("group by 1, 2", "group by queue, task")
"""What marks the queries that count all live jobs: one read for all pages, and not often."""
NEWEST = "order by seq desc"
"""What marks the list of live jobs, which PostgreSQL has no index for."""


class Queries:
    """The statements that were run, with their values."""

    def __init__(self) -> None:
        self.seen: dict[str, tuple[Any, Any]] = {}

    def note(self, query: Any, values: Any) -> None:
        text = query.decode() if isinstance(query, bytes) else str(query)
        if text in _TRANSACTION:
            return  # the key of forms is written once
        self.seen.setdefault(" ".join(text.split()), (query, values))


@contextmanager
def recorded(monkeypatch: pytest.MonkeyPatch) -> Iterator[Queries]:
    """Note every statement of both databases, and run it as usual."""
    found = Queries()

    def note_steps(steps: Callable[[], Any]) -> Callable[[], Any]:
        def noted() -> Any:
            inner, answer = steps(), None
            while True:
                try:
                    query, values = inner.send(answer)
                except StopIteration as end:
                    return end.value
                found.note(query, values)
                answer = yield query, values

        return noted

    for kind in (PostgresDatabase, SqliteDatabase):
        rows, perform = kind.rows, kind.perform

        async def note_rows(
            self: Any, query: Any, values: Any, *more: Any, rows: Any = rows, **named: Any
        ) -> Any:
            found.note(query, values)
            return await rows(self, query, values, *more, **named)

        async def note_perform(self: Any, steps: Any, perform: Any = perform) -> Any:
            return await perform(self, note_steps(steps))

        monkeypatch.setattr(kind, "rows", note_rows)
        monkeypatch.setattr(kind, "perform", note_perform)
    yield found


async def open_every_page(app: Umbel) -> None:
    """Ask a dashboard for each page, without pages that it has already counted jobs for."""
    for path in (*(await page_paths(app)).values(), *SEARCHES):
        server = dashboard(app, DashboardOptions())
        transport = httpx.ASGITransport(server, client=("127.0.0.1", 1))
        async with (
            server.router.lifespan_context(server),
            httpx.AsyncClient(transport=transport, base_url="http://127.0.0.1") as http,
        ):
            answer = await http.get(path, headers={"accept": "text/html"})
            assert answer.status_code == 200, (path, answer.text)


def run_every_page(app: Umbel, monkeypatch: pytest.MonkeyPatch) -> Queries:
    asyncio.run(start_once(app))
    asyncio.run(fill_charts(app))
    with recorded(monkeypatch) as found:
        asyncio.run(open_every_page(app))
    assert len(found.seen) >= 15
    return found


def test_no_query_of_a_page_reads_the_whole_history_of_a_sqlite_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with sqlite_store(tmp_path, FINISHED, QUEUED) as app:
        found = run_every_page(app, monkeypatch)
        with closing(sqlite3.connect(tmp_path / "bench.db")) as connection:
            for text, (query, values) in found.seen.items():
                plan = [row[3] for row in connection.execute(f"explain query plan {query}", values)]
                for step in plan:
                    assert not step.startswith(("SCAN record", "SCAN entry")), (text, plan)
                    if step.startswith("SCAN job"):
                        assert any(mark in text for mark in COUNTS), (text, plan)


def test_no_query_of_a_page_reads_the_whole_history_of_a_postgres_schema(
    postgres: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    import psycopg

    with postgres_store(FINISHED, QUEUED) as app:
        found = run_every_page(app, monkeypatch)
        schema = f"umbel_bench_dashboard_{os.getpid()}"
        with psycopg.connect(POSTGRES, autocommit=True) as connection:
            connection.execute(f"vacuum analyze {schema}.entry")
            for text, (query, values) in found.seen.items():
                row = connection.execute(b"explain (format json) " + query, values).fetchone()
                assert row is not None
                for node in _nodes(row[0][0]["Plan"]):
                    if node["Node Type"] != "Seq Scan":
                        continue
                    table = node["Relation Name"]
                    assert table not in ("record", "entry"), (text, json.dumps(row[0]))
                    if table == "job":
                        assert any(mark in text for mark in (*COUNTS, NEWEST)), text


def _nodes(plan: dict[str, Any]) -> Iterator[dict[str, Any]]:
    yield plan
    for inner in plan.get("Plans", ()):
        yield from _nodes(inner)
