"""Adding jobs to the hot table, each once."""

from __future__ import annotations

import sqlite3
from collections.abc import Sequence

from umbel.brokers.port import Published
from umbel.brokers.sqlite.rows import SQL, job_row
from umbel.drivers.sqlite import cancel_idle, writing
from umbel.errors import DuplicateJob
from umbel.messages import Envelope, State


def publish(
    connection: sqlite3.Connection, envelopes: Sequence[Envelope], now: float
) -> list[Published]:
    """Add all of them, or none, in a transaction of their own. Raises DuplicateJob."""
    # A lone statement is a transaction by itself, for a third less than one with begin and commit.
    if len(envelopes) == 1 and _is_added(connection.cursor(), envelopes[0], now):
        return [Published(envelopes[0].id)]
    with writing(connection) as cursor:
        if len(envelopes) > 1 and _are_added(cursor, envelopes, now):
            return [Published(envelope.id) for envelope in envelopes]
        return [insert(cursor, envelope, now) for envelope in envelopes]


def insert(cursor: sqlite3.Cursor, envelope: Envelope, now: float) -> Published:
    """Add a job, or say which one was there before. Raises DuplicateJob when that is asked for."""
    if _is_added(cursor, envelope, now):
        return Published(envelope.id)
    here = {"id": envelope.id, "namespace": envelope.namespace, "unique_key": envelope.unique}
    if cursor.execute(SQL["known_id"], here).fetchone():
        return Published(envelope.id, existing=True)
    holder, state = cursor.execute(SQL["unique_holder"], here).fetchone()
    if envelope.on_conflict == "return":
        return Published(holder, existing=True)
    if envelope.on_conflict == "raise" or state == State.RUNNING:
        raise DuplicateJob(envelope.unique or "", holder)
    cancel_idle(cursor, envelope.namespace, holder, f"replaced by {envelope.id}", now)
    cursor.execute(SQL["insert_job"], job_row(envelope, now))
    return Published(envelope.id)


def _is_added(cursor: sqlite3.Cursor, envelope: Envelope, now: float) -> bool:
    return cursor.execute(SQL["insert_job"], job_row(envelope, now)).rowcount == 1


def _are_added(cursor: sqlite3.Cursor, envelopes: Sequence[Envelope], now: float) -> bool:
    """Whether every one of them could be added; otherwise none was."""
    cursor.execute("savepoint umbel_jobs")
    rows = [job_row(envelope, now) for envelope in envelopes]
    added = cursor.executemany(SQL["insert_job"], rows).rowcount == len(rows)
    if not added:
        cursor.execute("rollback to umbel_jobs")
    cursor.execute("release umbel_jobs")
    return added
