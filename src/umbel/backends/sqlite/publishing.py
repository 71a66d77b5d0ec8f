"""Adding jobs to the table of live jobs, each once."""

from __future__ import annotations

import sqlite3
from collections.abc import Sequence
from typing import Any, cast

from msgspec.structs import replace

from umbel.backends.broker import Published, unique_key_taken
from umbel.backends.sql.statements import Steps
from umbel.backends.sqlite.cancelling import cancel_idle, cancel_steps
from umbel.backends.sqlite.database import SqliteFile
from umbel.backends.sqlite.job_rows import SQL, job_row
from umbel.backends.sqlite.transactions import write_transaction
from umbel.errors import ConfigurationError, DuplicateJob
from umbel.messages import Envelope, State


def publish(
    connection: sqlite3.Connection, envelopes: Sequence[Envelope], now: float
) -> list[Published]:
    """Add all jobs or none, in one transaction. Raise DuplicateJob."""
    if try_insert_all(connection.cursor(), envelopes, now):
        return [Published(envelope.id) for envelope in envelopes]
    if len(envelopes) == 1 and envelopes[0].on_conflict != "replace":
        return [insert(connection.cursor(), envelopes[0], now)]
    with write_transaction(connection) as cursor:
        return [insert(cursor, envelope, now) for envelope in envelopes]


def try_insert_all(
    cursor: sqlite3.Cursor, envelopes: Sequence[Envelope], now: float, idle: str = "queued"
) -> bool:
    """Add all jobs with one statement. Return False, with nothing added, if one is known.

    The statement is its own transaction, which costs a third less than begin and commit. And no
    lock is held between two calls, so a signal handler that interrupts this thread may publish.
    """
    if len(envelopes) == 1:
        return _try_insert(cursor, envelopes[0], now, idle)
    if _has_duplicates(envelopes):
        return False
    cursor.execute(SQL["new_jobs"])
    cursor.execute(SQL["forget_new_jobs"])
    cursor.executemany(SQL["add_new_job"], [job_row(one, now, idle) for one in envelopes])
    return cursor.execute(SQL["insert_new_jobs"]).rowcount == len(envelopes)


def insert(cursor: sqlite3.Cursor, envelope: Envelope, now: float) -> Published:
    """Add a job, or return the one that was there before. Raise DuplicateJob as requested."""
    values = {"id": envelope.id, "namespace": envelope.namespace, "unique_key": envelope.unique}
    found = None
    while found is None:  # outside a transaction, the job that holds the key may end in between
        if _try_insert(cursor, envelope, now):
            return Published(envelope.id)
        if cursor.execute(SQL["known_id"], values).fetchone():
            return Published(envelope.id, existing=True)
        found = cursor.execute(SQL["unique_holder"], values).fetchone()
    holder, state = found
    if envelope.on_conflict == "return":
        return Published(holder, existing=True)
    if envelope.on_conflict == "raise" or state == State.RUNNING:
        raise DuplicateJob(envelope.unique or "", holder)
    cancel_idle(cursor, envelope.namespace, [holder], f"replaced by {envelope.id}", now)
    cursor.execute(SQL["insert_job"], job_row(envelope, now))
    return Published(envelope.id)


def publish_or_record_steps(
    envelopes: Sequence[Envelope], now: float, idle: str = "queued"
) -> Steps[list[Published]]:
    """Publish all envelopes in the open transaction, without raising for a unique key.

    An envelope whose unique key is taken becomes a cancelled record that names the holder.
    """
    published = []
    for envelope in envelopes:
        published.append((yield from _publish_or_record(envelope, now, idle)))
    return published


def _publish_or_record(envelope: Envelope, now: float, idle: str) -> Steps[Published]:
    values = {"id": envelope.id, "namespace": envelope.namespace, "unique_key": envelope.unique}
    if (yield from _insert_steps(envelope, now, idle)):
        return Published(envelope.id)
    if (yield SQL["known_id"], values):
        return Published(envelope.id, existing=True)
    ((holder, state),) = yield SQL["unique_holder"], values
    if envelope.on_conflict == "replace" and state != State.RUNNING:
        yield from cancel_steps(envelope.namespace, [holder], f"replaced by {envelope.id}", now)
        yield from _insert_steps(envelope, now, idle)
    else:
        yield from _insert_steps(replace(envelope, unique=None), now, "blocked")
        reason = unique_key_taken(envelope.unique, holder)
        yield from cancel_steps(envelope.namespace, [envelope.id], reason, now)
    return Published(envelope.id)


def _insert_steps(envelope: Envelope, now: float, idle: str) -> Steps[bool]:
    yield SQL["insert_job"], cast(Any, job_row(envelope, now, idle))  # its parameters have no names
    ((added,),) = yield "select changes()", None
    return bool(added)


def caller_cursor(file: SqliteFile, connection: Any) -> sqlite3.Cursor:
    """Return a cursor of a caller's connection. Raise ConfigurationError if it leads elsewhere."""
    if not isinstance(connection, sqlite3.Connection):
        raise ConfigurationError(
            f"connection={type(connection).__name__}: this application uses a SQLite file; give"
            " a sqlite3 connection to it, a SQLAlchemy connection or session on one, or"
            " Django's connection"
        )
    file.check(connection)
    cursor = connection.cursor()
    cursor.row_factory = None  # the caller's connection may have another row factory
    return cursor


def _try_insert(
    cursor: sqlite3.Cursor, envelope: Envelope, now: float, idle: str = "queued"
) -> bool:
    return cursor.execute(SQL["insert_job"], job_row(envelope, now, idle)).rowcount == 1


def _has_duplicates(envelopes: Sequence[Envelope]) -> bool:
    ids = {one.id for one in envelopes}
    keys = [(one.namespace, one.unique) for one in envelopes if one.unique is not None]
    return len(ids) < len(envelopes) or len({*keys}) < len(keys)
