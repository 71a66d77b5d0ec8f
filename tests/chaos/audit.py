"""The audit of an SQL database: triggers record every claim, release and record when it commits.

No process can omit an entry, and changes that are rolled back leave none. The entries of one job
are in the order of the changes because they are written under the row's lock.
"""

from __future__ import annotations

import sqlite3
from contextlib import closing
from typing import Any

import msgspec
import psycopg


class Entry(msgspec.Struct, frozen=True):
    """One change of the database."""

    seq: int
    at: float
    what: str
    job: str
    owner: str
    fence: int
    state: str
    note: str


_RULES = (
    # table, event, condition, what, job, owner, fence, state, note
    ("job", "insert", "true", "published", "new.id", "''", "new.fence", "new.state",
     "new.task || '|' || new.queue || '|' || coalesce(new.unique_key, '')"),
    ("job", "update", "old.state <> 'running' and new.state = 'running'", "claimed",
     "new.id", "new.owner", "new.fence", "new.state", "''"),
    ("job", "update", "old.state = 'running' and new.state <> 'running'", "released",
     "old.id", "old.owner", "old.fence", "new.state", "''"),
    ("job", "update", "old.state = 'running' and new.state = 'running'"
     " and (old.fence <> new.fence or old.owner <> new.owner)", "stolen",
     "new.id", "new.owner", "new.fence", "new.state", "old.owner"),
    ("job", "delete", "true", "left", "old.id", "coalesce(old.owner, '')", "old.fence",
     "old.state", "''"),
    ("record", "insert", "true", "recorded", "new.id", "coalesce(new.worker, '')", "new.fence",
     "new.state", "new.reason"),
    ("worker", "insert", "true", "enlisted", "''", "new.incarnation", "0", "''", "new.name"),
    ("worker", "delete", "true", "ended", "''", "old.incarnation", "0", "''", "old.name"),
    ("worker", "update", "old.epoch <> new.epoch", "confirmed", "''", "new.incarnation",
     "new.epoch", "''", "new.name"),
    # Pauses of operators: pauses/<scope>//<name>. Those of deployments may lapse unseen.
    ("entry", "insert", "new.key like 'pauses/%//%'", "paused", "''", "''", "0", "''",
     "replace(substr(new.key, 8), '//', '|')"),
    ("entry", "delete", "old.key like 'pauses/%//%'", "resumed", "''", "''", "0", "''",
     "replace(substr(old.key, 8), '//', '|')"),
    ("section", "insert", "new.name = 'pauses/'", "epoch", "''", "''", "new.revision", "''", "''"),
    ("section", "update", "new.name = 'pauses/'", "epoch", "''", "''", "new.revision", "''", "''"),
)  # fmt: skip

_COLUMNS = "seq, at, what, job, owner, fence, state, note"

_SEEN = """
where seq not in (
  select unnest(array[came.seq, went.seq])
  from chaos.audit came join chaos.audit went using (job, tx)
  where came.what = 'published' and went.what = 'left' and came.seq < went.seq
    and went.state <> 'running'
)
"""
"""Excludes jobs that were created and deleted in one transaction: no other session saw them."""


def _sqlite_script() -> str:
    script = [
        "create table audit (seq integer primary key autoincrement, at real, what text, job text,"
        " owner text, fence integer, state text, note text);",
        "create table business (id text primary key);",
    ]
    for number, (table, event, when, what, *values) in enumerate(_RULES):
        now = "(julianday('now') - 2440587.5) * 86400.0"
        script.append(
            f"create trigger audit_{number} after {event} on {table} when {when} begin"
            f" insert into audit (at, what, job, owner, fence, state, note)"
            f" values ({now}, '{what}', {', '.join(values)}); end;"
        )
    return "\n".join(script)


def _postgres_script() -> str:
    script = [
        "create schema chaos;",
        "create table chaos.audit (seq bigserial primary key, at float8, what text, job text,"
        " owner text, fence bigint, state text, note text, tx bigint default txid_current());",
        "create table chaos.business (id uuid primary key);",
    ]
    for number, (table, event, when, what, *values) in enumerate(_RULES):
        now = "date_part('epoch', clock_timestamp())"
        script.append(
            f"create function chaos.audit_{number}() returns trigger language plpgsql as $$ begin"
            f" insert into chaos.audit (at, what, job, owner, fence, state, note)"
            f" values ({now}, '{what}', {', '.join(values)}); return null; end $$;"
            f"create trigger audit_{number} after {event} on umbel.{table} for each row"
            f" when ({when}) execute function chaos.audit_{number}();"
        )
    return "\n".join(script)


class Audit:
    """The audit of one database: installed once, read at the end."""

    def __init__(self, url: str) -> None:
        self._url = url
        self._path = url.removeprefix("sqlite:///") if url.startswith("sqlite") else ""
        self._here = "" if self._path else "chaos."
        self._seen = "" if self._path else _SEEN

    def install(self) -> None:
        """Create the triggers. The schema must exist."""
        if self._path:
            with closing(sqlite3.connect(self._path)) as connection:
                connection.executescript(_sqlite_script())
        else:
            with psycopg.connect(self._url) as connection:
                connection.execute(_postgres_script().encode())

    def so_far(self) -> list[Entry]:
        """Return the entries written so far."""
        return self.entries()

    def entries(self) -> list[Entry]:
        rows = self._rows(f"select {_COLUMNS} from {self._here}audit {self._seen} order by seq")
        return [Entry(*row) for row in rows]

    def business(self) -> set[str]:
        """Return the ids whose transaction was committed."""
        return {str(row[0]) for row in self._rows(f"select id from {self._here}business")}

    def fences(self) -> dict[str, int]:
        """Return each record's fence."""
        table = "record" if self._path else "umbel.record"
        return {str(job): fence for job, fence in self._rows(f"select id, fence from {table}")}

    def bring_forward(self) -> None:
        """Make the next scheduled job due, if no job is queued or running."""
        table, now = ("job", "0.0") if self._path else ("umbel.job", "statement_timestamp()")
        change = (
            f"update {table} set not_before = {now}"
            f" where id = (select id from {table} where state = 'scheduled'"
            f" order by not_before limit 1)"
            f" and not exists (select 1 from {table} where state <> 'scheduled')"
        )
        if self._path:
            with closing(sqlite3.connect(self._path, timeout=30)) as connection, connection:
                connection.execute(change)
        else:
            with psycopg.connect(self._url) as server:
                server.execute(change.encode())
                server.execute("select pg_notify('umbel_umbel', 's:scenario')")

    def _rows(self, query: str) -> list[tuple[Any, ...]]:
        if self._path:
            with closing(sqlite3.connect(self._path, timeout=30)) as connection:
                return connection.execute(query).fetchall()
        with psycopg.connect(self._url) as connection:
            return connection.execute(query.encode()).fetchall()
