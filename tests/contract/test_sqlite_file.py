"""A file that several threads open, use and close in the same moment."""

from __future__ import annotations

import asyncio
import sqlite3
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from umbel.clock import SystemClock
from umbel.drivers.sqlite import Database, Home
from umbel.publisher.backlogs.sqlite import SqliteBacklog

CROWD = 4
FILES = 60


def open_store(path: Path) -> None:
    Home(str(path)).connect(10.0).close()


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
        database = Database(Home(str(tmp_path / "umbel.db")))
        await database.run(lambda connection: None)
        working = asyncio.create_task(asyncio.to_thread(database.run_here, work, 10.0))
        await asyncio.to_thread(began.wait, 10)
        await database.close()
        assert await working == (7,)

    asyncio.run(scenario())
