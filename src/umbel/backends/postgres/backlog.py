"""A backlog in a table of a PostgreSQL database, for a broker on another server."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Any

from umbel.backends.backlog import BacklogStatus, read_stored
from umbel.backends.postgres.address import PostgresAddress
from umbel.backends.postgres.arrays import blobs, texts
from umbel.backends.postgres.blocking_connection import BlockingConnection
from umbel.backends.postgres.statements import single_statement
from umbel.backends.sql.statements import Row, Steps
from umbel.clock import Clock
from umbel.errors import BacklogFull
from umbel.messages import Envelope, subtract_wait
from umbel.messages.wire import write

_SCHEMA = "create schema if not exists $schema"
_TABLE = """
create table if not exists $schema.backlog (
  id uuid not null, seq bigint generated always as identity, namespace text not null,
  put timestamptz not null default statement_timestamp(), event bytea not null,
  primary key (id, namespace))"""
_COUNT = """
select count(*), date_part('epoch', min(put)) from $schema.backlog
where namespace = %(namespace)s"""
_PUT = """
insert into $schema.backlog (id, namespace, event)
select id, %(namespace)s, event from unnest(%(id)s::uuid[], %(event)s::bytea[]) as s (id, event)
on conflict do nothing"""
_OLDEST = """
select id::text, event, date_part('epoch', statement_timestamp() - put) from $schema.backlog
where namespace = %(namespace)s and id <> all(%(without)s::uuid[]) order by seq limit %(limit)s"""
_HAS = """
select 1 from $schema.backlog where id::text = %(id)s and namespace = %(namespace)s"""
_REMOVE = """
delete from $schema.backlog where id = any(%(id)s::uuid[]) and namespace = %(namespace)s"""
_LEAD = "select pg_try_advisory_lock(hashtext('umbel backlog ' || '$schema' || %(namespace)s))"


class PostgresBacklog:
    """See ``Backlog``. Of several processes, the one that has the advisory lock publishes."""

    durable = True

    def __init__(
        self, url: str, namespace: str, clock: Clock, *, limit: int, busy: float = 1.0
    ) -> None:
        self._url = url
        self._address = PostgresAddress(url)
        self._blocking = BlockingConnection(self._address.connect_blocking, self._address.label)
        self._namespace = namespace
        self._clock = clock
        self._limit = limit
        self._busy = busy
        self._made = False

    def put(self, envelopes: Sequence[Envelope]) -> None:
        values = {
            "id": texts([e.id for e in envelopes]),
            "event": blobs([write(e) for e in envelopes]),
        }

        def steps() -> Steps[list[Row]]:
            count = (yield from self._steps(_COUNT, {}))[0][0]
            if count + len(envelopes) > self._limit:
                raise BacklogFull(
                    f"the broker is out of reach and the backlog in {self._address.label} holds"
                    f" {count:,} of {self._limit:,} messages; raise backlog_limit"
                )
            return (yield from self._steps(_PUT, values))

        self._blocking.perform(steps, self._busy)

    def oldest(self, limit: int, without: Collection[str] = ()) -> list[Envelope]:
        rows = self._rows(_OLDEST, limit=limit, without=texts([*without]))
        return [subtract_wait(read_stored(job, event), age) for job, event, age in rows]

    def remove(self, jobs: Sequence[str]) -> None:
        self._rows(_REMOVE, id=texts([*jobs]))

    def status(self) -> BacklogStatus:
        messages, oldest = self._rows(_COUNT)[0]
        return BacklogStatus(
            kind=self._address.label, messages=messages, oldest=oldest, limit=self._limit
        )

    def has(self, job: str) -> bool:
        return bool(self._rows(_HAS, id=job))

    def count_volatile(self) -> int:
        return 0

    def acquire_leadership(self) -> bool:
        # The session holds the lock: locking again is fine, and it ends with the connection.
        return bool(self._rows(_LEAD)[0][0])

    def open_unlocked(self) -> PostgresBacklog:
        return PostgresBacklog(
            self._url, self._namespace, self._clock, limit=self._limit, busy=self._busy
        )

    def close(self) -> None:
        self._blocking.close()

    def _rows(self, query: str, **values: Any) -> list[Row]:
        return self._blocking.perform(lambda: self._steps(query, values), self._busy)

    def _steps(self, query: str, values: Mapping[str, Any]) -> Steps[list[Row]]:
        if not self._made:
            for statement in (_SCHEMA, _TABLE):
                yield self._address.fill(statement), None
            self._made = True
        return (
            yield from single_statement(
                self._address.fill(query), {"namespace": self._namespace, **values}
            )
        )
