"""Several writes share one transaction of SQLite. Each takes effect as a whole or not at all."""

from __future__ import annotations

import asyncio
import sqlite3
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from umbel.backends.sqlite.database import Database, SqliteFile
from umbel.backends.sqlite.transactions import write_transaction
from umbel.errors import Unavailable

Work = Callable[[sqlite3.Connection], Any]


class Bench:
    """A database whose thread waits, so that all work requested meanwhile runs in one batch."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.database = Database(SqliteFile(str(path)))
        self.commits = 0

    async def together(self, *works: Work, writes: bool = True) -> list[Any]:
        await self.database.run(self.prepare)
        go = threading.Event()
        held = asyncio.create_task(self.database.run(lambda _: go.wait(30)))
        await asyncio.sleep(0)
        asked = [
            asyncio.create_task(self.database.run(self._counting(work), writes=writes))
            for work in works
        ]
        await asyncio.sleep(0)
        go.set()
        await held
        return await asyncio.gather(*asked, return_exceptions=True)

    def prepare(self, connection: sqlite3.Connection) -> None:
        connection.execute("create table if not exists note (word text check (word <> 'bad'))")

    def _counting(self, work: Work) -> Work:
        def counted(connection: sqlite3.Connection) -> Any:
            self.commits += not connection.in_transaction
            return work(connection)

        return counted

    def words(self) -> list[str]:
        with sqlite3.connect(self.path) as other:
            return [word for (word,) in other.execute("select word from note order by rowid")]


def noting(*words: str) -> Work:
    def work(connection: sqlite3.Connection) -> int:
        with write_transaction(connection) as cursor:
            for word in words:
                cursor.execute("insert into note values (?)", (word,))
        return len(words)

    return work


def test_writes_that_wait_share_a_transaction_and_each_gets_its_answer(tmp_path: Path) -> None:
    async def tale() -> None:
        bench = Bench(tmp_path / "a.db")
        assert await bench.together(noting("a"), noting("b", "c"), noting()) == [1, 2, 0]
        assert bench.words() == ["a", "b", "c"]
        assert bench.commits == 0, "none of them opened a transaction of its own"
        await bench.database.close()

    asyncio.run(tale())


def test_one_that_fails_is_undone_alone(tmp_path: Path) -> None:
    async def tale() -> None:
        bench = Bench(tmp_path / "a.db")
        first, second, third = await bench.together(noting("a"), noting("half", "bad"), noting("c"))
        assert (first, third) == (1, 1)
        assert "bad" in str(second) or "CHECK" in str(second)
        assert bench.words() == ["a", "c"], "half of the failed one stayed, or others went with it"
        await bench.database.close()

    asyncio.run(tale())


def test_a_commit_that_fails_fails_them_all(tmp_path: Path) -> None:
    def full(connection: sqlite3.Connection) -> None:
        with write_transaction(connection) as cursor:
            pages = cursor.execute("pragma page_count").fetchone()[0]
            cursor.execute(f"pragma max_page_count = {pages}")
            cursor.execute("insert into note values (hex(zeroblob(100000)))")

    async def tale() -> None:
        bench = Bench(tmp_path / "a.db")
        answers = await bench.together(noting("a"), full, noting("c"))
        told = [answer for answer in answers if isinstance(answer, Unavailable)]
        done = [answer for answer in answers if answer == 1]
        assert told, "the disk was full and no caller got an error"
        assert len(bench.words()) == len(done), "what was promised and what is there differ"
        await bench.database.close()

    asyncio.run(tale())


@pytest.mark.parametrize("writes", [False, True])
def test_only_work_that_writes_is_put_together(tmp_path: Path, writes: bool) -> None:
    async def tale() -> None:
        bench = Bench(tmp_path / "a.db")
        await bench.together(noting("a"), noting("b"), writes=writes)
        assert bench.commits == (0 if writes else 2)
        assert bench.words() == ["a", "b"]
        await bench.database.close()

    asyncio.run(tale())


def test_work_cancelled_before_it_began_does_not_happen(tmp_path: Path) -> None:
    async def tale() -> None:
        bench = Bench(tmp_path / "a.db")
        await bench.database.run(bench.prepare)
        go = threading.Event()
        held = asyncio.create_task(bench.database.run(lambda _: go.wait(30)))
        await asyncio.sleep(0)
        given_up = asyncio.create_task(bench.database.run(noting("a"), writes=True))
        await asyncio.sleep(0)
        given_up.cancel()
        await asyncio.wait([given_up])
        go.set()
        await held
        await bench.database.run(noting("b"), writes=True)
        assert bench.words() == ["b"]
        await bench.database.close()

    asyncio.run(tale())
