"""Adding jobs to the hot table, each once."""

from __future__ import annotations

import sqlite3

from umbel.brokers.port import Published
from umbel.brokers.sqlite.rows import SQL, job_row
from umbel.drivers.sqlite import cancel_idle
from umbel.errors import DuplicateJob
from umbel.messages import Envelope, State


def insert(cursor: sqlite3.Cursor, envelope: Envelope, now: float) -> Published:
    """Add a job, or say which one was there before. Raises DuplicateJob when that is asked for."""
    row = job_row(envelope, now)
    if cursor.execute(SQL["insert_job"], row).rowcount == 1:
        return Published(envelope.id)
    if cursor.execute(SQL["known_id"], row).fetchone():
        return Published(envelope.id, existing=True)
    holder, state = cursor.execute(SQL["unique_holder"], row).fetchone()
    if envelope.on_conflict == "return":
        return Published(holder, existing=True)
    if envelope.on_conflict == "raise" or state == State.RUNNING:
        raise DuplicateJob(envelope.unique or "", holder)
    cancel_idle(cursor, envelope.namespace, holder, f"replaced by {envelope.id}", now)
    cursor.execute(SQL["insert_job"], row)
    return Published(envelope.id)
