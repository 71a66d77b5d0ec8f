"""Adding jobs to the hot table, each once."""

from __future__ import annotations

import sqlite3
from collections.abc import Sequence

from umbel.backends.broker import Published
from umbel.backends.sqlite.cancelling import cancel_idle
from umbel.backends.sqlite.job_rows import SQL, job_row
from umbel.backends.sqlite.savepoints import writing
from umbel.errors import DuplicateJob
from umbel.messages import Envelope, State


def publish(
    connection: sqlite3.Connection, envelopes: Sequence[Envelope], now: float
) -> list[Published]:
    """Add all of them, or none, in a transaction of their own. Raises DuplicateJob."""
    if are_added(connection.cursor(), envelopes, now):
        return [Published(envelope.id) for envelope in envelopes]
    if len(envelopes) == 1 and envelopes[0].on_conflict != "replace":
        return [insert(connection.cursor(), envelopes[0], now)]
    with writing(connection) as cursor:
        return [insert(cursor, envelope, now) for envelope in envelopes]


def are_added(
    cursor: sqlite3.Cursor, envelopes: Sequence[Envelope], now: float, idle: str = "queued"
) -> bool:
    """Whether every one of them could be added; otherwise none was.

    One statement adds them. It is a transaction by itself, for a third less than one with begin and
    commit; and a signal handler that suspends this thread may publish, because no lock is held.
    """
    if len(envelopes) == 1:
        return _is_added(cursor, envelopes[0], now, idle)
    if _repeat_themselves(envelopes):
        return False
    cursor.execute(SQL["new_jobs"])
    cursor.execute(SQL["forget_new_jobs"])
    cursor.executemany(SQL["add_new_job"], [job_row(one, now, idle) for one in envelopes])
    return cursor.execute(SQL["insert_new_jobs"]).rowcount == len(envelopes)


def insert(cursor: sqlite3.Cursor, envelope: Envelope, now: float) -> Published:
    """Add a job, or say which one was there before. Raises DuplicateJob when that is asked for."""
    here = {"id": envelope.id, "namespace": envelope.namespace, "unique_key": envelope.unique}
    found = None
    while found is None:  # outside a transaction, a job that holds the key may end meanwhile
        if _is_added(cursor, envelope, now):
            return Published(envelope.id)
        if cursor.execute(SQL["known_id"], here).fetchone():
            return Published(envelope.id, existing=True)
        found = cursor.execute(SQL["unique_holder"], here).fetchone()
    holder, state = found
    if envelope.on_conflict == "return":
        return Published(holder, existing=True)
    if envelope.on_conflict == "raise" or state == State.RUNNING:
        raise DuplicateJob(envelope.unique or "", holder)
    cancel_idle(cursor, envelope.namespace, holder, f"replaced by {envelope.id}", now)
    cursor.execute(SQL["insert_job"], job_row(envelope, now))
    return Published(envelope.id)


def _is_added(cursor: sqlite3.Cursor, envelope: Envelope, now: float, idle: str = "queued") -> bool:
    return cursor.execute(SQL["insert_job"], job_row(envelope, now, idle)).rowcount == 1


def _repeat_themselves(envelopes: Sequence[Envelope]) -> bool:
    ids = {one.id for one in envelopes}
    keys = [(one.namespace, one.unique) for one in envelopes if one.unique is not None]
    return len(ids) < len(envelopes) or len({*keys}) < len(keys)
