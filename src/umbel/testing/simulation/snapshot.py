"""Snapshots of the database, as plain values that can be compared."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterable
from typing import Any, NamedTuple

_JOBS = """select id, state, owner, fence, attempt, deaths, blame, max_deaths, task, queue,
 cancel_reason is not null, slots, lapses from job order by seq"""
_RECORDS = """select id, state, fence, attempt, deaths, task, queue, reason like 'poison: %'
 from record order by id"""
_WORKERS = "select incarnation, beat, epoch from worker order by incarnation"
_PAUSES = "select scope, name from pause order by scope, name"
_EPOCH = "select revision from section where name = 'pauses/'"
TABLES = ("job", "record", "worker", "pause", "section")


class JobRow(NamedTuple):
    """A live job."""

    state: str
    owner: str | None
    fence: int
    attempt: int
    deaths: int
    blame: int
    max_deaths: int
    task: str
    queue: str
    cancelled: int
    slots: str | None
    lapses: int


class RecordRow(NamedTuple):
    """A finished job."""

    state: str
    fence: int
    attempt: int
    deaths: int
    task: str
    queue: str
    poison: int


class Snapshot:
    """Jobs, records, workers and pauses: five small tables."""

    __slots__ = ("epoch", "jobs", "pauses", "records", "workers")

    def __init__(self) -> None:
        self.jobs: dict[str, JobRow] = {}
        self.records: dict[str, RecordRow] = {}
        self.workers: dict[str, tuple[int, int]] = {}
        self.pauses: list[tuple[str, str]] = []
        self.epoch = 0

    def after(self, connection: sqlite3.Connection, tables: Iterable[str] = TABLES) -> Snapshot:
        """Return the current snapshot, if only these tables can have changed."""
        new = Snapshot()
        new.jobs, new.records, new.workers = self.jobs, self.records, self.workers
        new.pauses, new.epoch = self.pauses, self.epoch
        for table in tables:
            _READERS[table](new, connection.execute)
        return new


def _read_jobs(snapshot: Snapshot, execute: Any) -> None:
    snapshot.jobs = {row[0]: JobRow._make(row[1:]) for row in execute(_JOBS)}


def _read_records(snapshot: Snapshot, execute: Any) -> None:
    snapshot.records = {row[0]: RecordRow._make(row[1:]) for row in execute(_RECORDS)}


def _read_workers(snapshot: Snapshot, execute: Any) -> None:
    snapshot.workers = {row[0]: (row[1], row[2]) for row in execute(_WORKERS)}


def _read_pauses(snapshot: Snapshot, execute: Any) -> None:
    snapshot.pauses = execute(_PAUSES).fetchall()


def _read_epoch(snapshot: Snapshot, execute: Any) -> None:
    found = execute(_EPOCH).fetchone()
    snapshot.epoch = found[0] if found else 0


_READERS = {
    "job": _read_jobs,
    "record": _read_records,
    "worker": _read_workers,
    "pause": _read_pauses,
    "section": _read_epoch,
}
