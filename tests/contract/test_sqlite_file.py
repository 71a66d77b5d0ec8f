"""A file that several threads open, use and close at the same time."""

from __future__ import annotations

import asyncio
import os
import re
import sqlite3
import stat
import sys
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from sqlite_adapters import open_sqlite

from umbel.backends import JobFilter
from umbel.backends.queries import load
from umbel.backends.sqlite.backlog import SqliteBacklog
from umbel.backends.sqlite.database import Database, SqliteFile
from umbel.backends.sqlite.records import SQL
from umbel.clock import SystemClock
from umbel.messages import Succeeded
from umbel.testing.actions import publish_and_settle

CROWD = 4
FILES = 60


def open_store(path: Path) -> None:
    SqliteFile(str(path)).connect(10.0).close()


def open_backlog(path: Path) -> None:
    backlog = SqliteBacklog(str(path), "umbel", SystemClock(), limit=10, busy=10.0)
    assert backlog.oldest(1) == []
    backlog.close()


@pytest.mark.parametrize("opening", [open_store, open_backlog])
def test_all_who_open_a_new_file_at_once_have_it(
    tmp_path: Path, opening: Callable[[Path], Any]
) -> None:
    together = threading.Barrier(CROWD)

    def open_each(_: int) -> None:
        for number in range(FILES):
            together.wait(30)
            opening(tmp_path / f"{number}.db")

    with ThreadPoolExecutor(CROWD) as crowd:
        list(crowd.map(open_each, range(CROWD)))


def test_closing_waits_for_the_thread_that_is_at_work(tmp_path: Path) -> None:
    began = threading.Event()

    def work(connection: sqlite3.Connection) -> Any:
        began.set()
        time.sleep(0.2)  # long enough to be closed meanwhile
        return connection.execute("select 7").fetchone()

    async def scenario() -> None:
        database = Database(SqliteFile(str(tmp_path / "umbel.db")))
        await database.run(lambda connection: None)
        working = asyncio.create_task(asyncio.to_thread(database.run_blocking, work, 10.0))
        await asyncio.to_thread(began.wait, 10)
        await database.close()
        assert await working == (7,)

    asyncio.run(scenario())


# --- who can read it -------------------------------------------------------------------------


@pytest.fixture(params=[0o000, 0o022, 0o277], ids=oct)
def umask(request: pytest.FixtureRequest) -> Iterator[int]:
    before = os.umask(request.param)
    yield request.param
    os.umask(before)


def modes(folder: Path) -> dict[str, str]:
    return {one.name: oct(stat.S_IMODE(one.stat().st_mode)) for one in folder.iterdir()}


def test_a_new_database_and_its_log_are_the_owners_alone(tmp_path: Path, umask: int) -> None:
    with closing(SqliteFile(str(tmp_path / "a.db")).connect(1.0)) as connection:
        connection.execute("create table t (x)")
        assert modes(tmp_path) == {"a.db": "0o600", "a.db-wal": "0o600", "a.db-shm": "0o600"}


def test_a_new_backlog_and_its_lock_are_the_owners_alone(tmp_path: Path, umask: int) -> None:
    backlog = SqliteBacklog(str(tmp_path / "b.db"), "umbel", SystemClock(), limit=10)
    assert backlog.oldest(1) == []
    assert backlog.acquire_leadership()
    names = ("b.db", "b.db-wal", "b.db-shm", "b.db.umbel.lock")
    assert modes(tmp_path) == dict.fromkeys(names, "0o600")
    backlog.close()


@pytest.mark.parametrize("opening", [open_store, open_backlog])
def test_a_database_that_exists_keeps_its_mode(
    tmp_path: Path, opening: Callable[[Path], Any]
) -> None:
    path = tmp_path / "a.db"
    path.touch()
    path.chmod(0o640)
    opening(path)
    assert modes(tmp_path) == {"a.db": "0o640"}


def test_a_link_to_a_database_that_is_not_there_yet_is_followed(tmp_path: Path) -> None:
    (tmp_path / "link.db").symlink_to(tmp_path / "a.db")
    open_store(tmp_path / "link.db")
    assert modes(tmp_path)["a.db"] == "0o600"


@pytest.mark.parametrize("opening", [open_store, open_backlog])
def test_a_database_has_its_mode_before_sqlite_opens_it(
    tmp_path: Path, umask: int, opening: Callable[[Path], Any]
) -> None:
    seen: list[dict[str, str]] = []

    def look(event: str, arguments: tuple[Any, ...]) -> None:
        if event == "sqlite3.connect" and str(arguments[0]) == str(tmp_path / "a.db"):
            seen.append(modes(tmp_path))

    sys.addaudithook(look)
    opening(tmp_path / "a.db")
    assert seen == [{"a.db": "0o600"}]


class SetClock:
    """A clock that a test may set."""

    ahead = 0.0

    def now(self) -> float:
        return time.time() + self.ahead

    def monotonic(self) -> float:
        return time.monotonic()


def test_what_finishes_while_the_clock_is_behind_is_not_pruned_when_it_is_right_again(
    tmp_path: Path,
) -> None:
    clock = SetClock()

    async def run() -> None:
        file = SqliteFile(str(tmp_path / "jobs.db"))
        async with open_sqlite(lambda: file, clock, "clocks") as b:  # type: ignore[arg-type]
            before = await publish_and_settle(b)
            assert await b.records.prune(older_than=86_400, keep=1000, limit=1000) == 0
            clock.ahead = -30 * 86_400.0
            behind = [
                await publish_and_settle(b),
                await publish_and_settle(b, Succeeded(keep_for=86_400)),
            ]
            clock.ahead = 0.0
            assert await b.records.prune(older_than=86_400, keep=1000, limit=1000) == 0
            assert {one.id for one in await b.records.search(JobFilter())} == {before, *behind}

    asyncio.run(run())


@pytest.mark.parametrize("query", ["finished_edge", "list_finished"])
@pytest.mark.parametrize("index", ["record_finished", "record_buried"])
def test_a_page_of_jobs_is_read_by_an_index(tmp_path: Path, query: str, index: str) -> None:
    state = "state = 'buried'" if index == "record_buried" else "state <> 'expired'"
    sql = SQL[query].replace("$indexed", state).replace("state in ($states)", state)
    names = ("namespace", "now", "task", "queue", "worker", "before", "id_part", "limit", "skipped")
    values = dict.fromkeys((*names, "position", "id", "first", "first_id"), 1)
    with closing(SqliteFile(str(tmp_path / "umbel.db")).connect(10.0)) as connection:
        plan = [row[3] for row in connection.execute(f"explain query plan {sql}", values)]
    assert re.match(
        rf"SEARCH record USING (COVERING )?INDEX {index} "
        r"\(namespace=\? AND finished>\? AND finished<\?\)",
        plan[0],
    ), plan
    # Jobs that finished at the same moment are sorted by id, the others not at all.
    assert re.match("USE TEMP B-TREE FOR (LAST TERM|RIGHT PART) OF ORDER BY", plan[1]), plan


def test_a_page_of_members_is_read_by_indexes_without_a_sort(tmp_path: Path) -> None:
    sql = load("umbel.backends.sqlite", "joins.sql")["members"]
    values = dict.fromkeys(("namespace", "group", "join", "after", "failed", "limit"), 1)
    with closing(SqliteFile(str(tmp_path / "umbel.db")).connect(10.0)) as connection:
        plan = [row[3] for row in connection.execute(f"explain query plan {sql}", values)]
    indexes = [re.search(r"INDEX (\w+)|(PRIMARY KEY)", step) for step in plan]
    assert [found and (found[1] or found[2]) for found in indexes] == [
        *("job_join_group", "PRIMARY KEY"),
        *("sqlite_autoindex_record_1", "sqlite_autoindex_job_1"),
    ], plan
    assert plan[1].endswith("(namespace=? AND join_id=? AND position>?)")


def test_old_graphs_are_found_without_reading_other_records(tmp_path: Path) -> None:
    names = ("namespace", "after", "before", "finished", "state", "row", "limit")
    values = dict.fromkeys(names, 1)
    with closing(SqliteFile(str(tmp_path / "umbel.db")).connect(10.0)) as connection:
        sql = SQL["prunable_groups"]
        plan = [row[3] for row in connection.execute(f"explain query plan {sql}", values)]
    assert re.match(
        r"SEARCH record USING INDEX record_graph "
        r"\(namespace=\? AND \(finished,id\)>\(\?,\?\) AND finished<\?\)",
        plan[0],
    ), plan
    assert not [step for step in plan if "TEMP B-TREE" in step or "SCAN" in step], plan
