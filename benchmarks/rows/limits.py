"""The raw limit: what a driver alone does with the same kind of SQL, a hundred jobs a batch."""

from __future__ import annotations

import json
import sqlite3
import time
from collections.abc import Callable
from typing import Any, Protocol

import psycopg

from benchmarks.figures import Measures
from benchmarks.peers.port import job
from benchmarks.places import Place
from benchmarks.systems import Database

BATCH = 100


class Driver(Protocol):
    """A connection that commits each batch."""

    def insert(self, bodies: list[bytes]) -> None: ...

    def claim(self) -> list[Any]:
        """The ids of up to a hundred jobs that are now ours."""

    def finish(self, ids: list[Any]) -> None:
        """Move these jobs into the history."""

    def close(self) -> None: ...


class Psycopg:
    """One connection to PostgreSQL, one statement a transaction."""

    def __init__(self, url: str) -> None:
        self._connection = psycopg.connect(url, autocommit=True)
        self._connection.execute("drop table if exists job, history")
        self._connection.execute(
            "create table job (id bigint generated always as identity primary key,"
            " state text not null default 'queued', owner text, body bytea not null)"
        )
        self._connection.execute("create index on job (id) where state = 'queued'")
        self._connection.execute("create table history (id bigint primary key, body bytea)")

    def insert(self, bodies: list[bytes]) -> None:
        self._connection.execute(
            "insert into job (body) select * from unnest(%s::bytea[])", [bodies]
        )

    def claim(self) -> list[Any]:
        rows = self._connection.execute(
            "update job set state = 'running', owner = 'me' where id in ("
            "select id from job where state = 'queued' order by id limit %s"
            " for update skip locked) returning id, body",
            [BATCH],
        )
        return [row[0] for row in rows]

    def finish(self, ids: list[Any]) -> None:
        self._connection.execute(
            "with done as (delete from job where id = any(%s) returning id, body)"
            " insert into history select * from done",
            [ids],
        )

    def close(self) -> None:
        self._connection.close()


class Sqlite:
    """One connection to a file, as durable as Umbel's."""

    def __init__(self, url: str) -> None:
        path = url.removeprefix("sqlite:///")
        self._connection = sqlite3.connect(path, isolation_level=None)
        self._connection.execute("pragma journal_mode = wal")
        self._connection.execute("pragma synchronous = full")
        self._connection.execute(
            "create table job (id integer primary key, state text not null default 'queued',"
            " owner text, body blob not null)"
        )
        self._connection.execute("create index ready on job (id) where state = 'queued'")
        self._connection.execute("create table history (id integer primary key, body blob)")

    def insert(self, bodies: list[bytes]) -> None:
        with self._transaction():
            self._connection.executemany(
                "insert into job (body) values (?)", [(body,) for body in bodies]
            )

    def claim(self) -> list[Any]:
        rows = self._connection.execute(
            "update job set state = 'running', owner = 'me' where id in ("
            "select id from job where state = 'queued' order by id limit ?) returning id, body",
            [BATCH],
        )
        return [row[0] for row in rows.fetchall()]

    def finish(self, ids: list[Any]) -> None:
        each = [(number,) for number in ids]
        with self._transaction():
            copy = "insert into history select id, body from job where id = ?"
            self._connection.executemany(copy, each)
            self._connection.executemany("delete from job where id = ?", each)

    def close(self) -> None:
        self._connection.close()

    def _transaction(self) -> sqlite3.Connection:
        self._connection.execute("begin immediate")
        return self._connection


DRIVERS: dict[str, Callable[[str], Driver]] = {
    "psycopg · PostgreSQL": Psycopg,
    "sqlite3 · SQLite": Sqlite,
}
DRIVEN: dict[str, Database] = {
    "psycopg · PostgreSQL": "postgresql",
    "sqlite3 · SQLite": "sqlite",
}
"""What each driver works on."""


def limits(place: Place, connect: Callable[[str], Driver], jobs: int) -> dict[str, Measures]:
    """Rates of inserting, of claiming, and of claiming and moving into the history."""
    place.fresh(lambda: None)
    driver = connect(place.url)
    try:
        body = json.dumps(job(0)).encode()
        batches = jobs // BATCH
        insert = _rate(batches, lambda: driver.insert([body] * BATCH))
        claim = _rate(batches // 2, driver.claim)
        both = _rate(batches // 2, lambda: driver.finish(driver.claim()))
    finally:
        driver.close()
    return {
        "raw limit: insert": {"rate": insert},
        "raw limit: claim": {"rate": claim},
        "raw limit: claim, then into history": {"rate": both},
    }


def _rate(batches: int, batch: Callable[[], object]) -> float:
    began = time.perf_counter()
    for _ in range(batches):
        batch()
    return batches * BATCH / (time.perf_counter() - began)
