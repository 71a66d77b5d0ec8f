"""Moves between the two tables of jobs that more than one room makes."""

from __future__ import annotations

import sqlite3

from umbel.messages import State

_CANCEL = """
insert into record (id, namespace, queue, kind, task, type, state, priority, content_type, body,
                    created, not_before, expires, attempt, deaths, max_deaths, unique_key,
                    traceparent, headers, worker, fence, claimed, attempts, finished, reason)
select id, namespace, coalesce(json_extract(slots, '$[#-1].home'), queue), kind, task, type,
       :final, priority, content_type, body, created,
       not_before, expires, attempt, deaths, max_deaths, unique_key, traceparent, headers, null,
       fence, claimed, attempts, :now, :reason
from job where namespace = :namespace and id = :id and state <> 'running'
"""
_FREE = """
update job set slots = null
where namespace = :namespace and id = :id and state <> 'running' and slots is not null
"""
_DELETE = "delete from job where namespace = :namespace and id = :id and state <> 'running'"


def cancel_idle(
    cursor: sqlite3.Cursor,
    namespace: str,
    job: str,
    reason: str,
    now: float,
    final: State = State.CANCELLED,
) -> bool:
    """A job that does not run becomes a record. False when it runs or is not live."""
    row = {"namespace": namespace, "id": job, "reason": reason, "now": now, "final": final.value}
    cancelled = cursor.execute(_CANCEL, row).rowcount == 1
    if cancelled:
        cursor.execute(_FREE, row)
        cursor.execute(_DELETE, row)
    return cancelled
