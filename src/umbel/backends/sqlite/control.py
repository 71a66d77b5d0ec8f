"""Pauses and cancellations on SQLite."""

from __future__ import annotations

import sqlite3
from collections.abc import Sequence

import msgspec

from umbel.backends.control import NO_WORKER, ControlState, Pause, Scope
from umbel.backends.queries import load
from umbel.backends.sqlite.cancelling import cancel_idle
from umbel.backends.sqlite.database import Database
from umbel.backends.sqlite.savepoints import writing
from umbel.clock import Clock
from umbel.messages import State

SQL = load("umbel.backends.sqlite", "store.sql")


class SqliteControl:
    """See ``stores.control.Control`` for what each method promises."""

    def __init__(self, database: Database, *, namespace: str, clock: Clock) -> None:
        self._database = database
        self._namespace = namespace
        self._clock = clock

    async def state(self) -> ControlState:
        def read(connection: sqlite3.Connection) -> ControlState:
            where = {"namespace": self._namespace}
            # First: whoever hears of an epoch has to hear of all pauses up to it.
            epoch = self._epoch(connection)
            rows = connection.execute(SQL["pauses"], where).fetchall()
            now = self._clock.now()
            pauses = tuple(
                Pause(scope=s, name=n, since=at, reason=r, holder=h, age=now - at)
                for s, n, at, r, h in rows
            )
            return ControlState(epoch, pauses)

        return await self._database.run(read)

    async def pause(self, scope: Scope, name: str, reason: str) -> int:
        return await self._change("pause", scope=scope, name=name, reason=reason)

    async def resume(self, scope: Scope, name: str) -> int:
        return await self._change("resume", scope=scope, name=name)

    async def change_missing(self, missing: Sequence[str], found: Sequence[str]) -> None:
        lists = {"missing": _json(missing), "found": _json(found), "reason": NO_WORKER}
        await self._change("end_missing", "begin_missing", **lists)

    async def cancel(self, jobs: Sequence[str], reason: str) -> dict[str, State]:
        def write(connection: sqlite3.Connection) -> dict[str, State]:
            with writing(connection) as cursor:
                found = {job: self._cancel(cursor, job, reason) for job in jobs}
                if State.RUNNING in found.values():
                    cursor.execute(SQL["next_epoch"], {"namespace": self._namespace})
            return {job: state for job, state in found.items() if state is not None}

        return await self._database.run(write)

    async def bury(self, jobs: Sequence[str], reason: str) -> list[str]:
        def write(connection: sqlite3.Connection) -> list[str]:
            now = self._clock.now()
            with writing(connection) as cursor:
                return [
                    job
                    for job in jobs
                    if cancel_idle(cursor, self._namespace, job, reason, now, State.BURIED)
                ]

        return await self._database.run(write)

    async def cancellations(self, jobs: Sequence[str]) -> dict[str, str]:
        row = {"namespace": self._namespace, "ids": msgspec.json.encode(list(jobs)).decode()}

        def read(connection: sqlite3.Connection) -> dict[str, str]:
            return dict(connection.execute(SQL["cancellations"], row).fetchall())

        return await self._database.run(read)

    async def changed(self, since: int, wait: float) -> bool:
        until = self._clock.monotonic() + wait
        await self._database.open()
        with self._database.listening() as ear:
            while True:
                ear.clear()
                if await self._database.run(self._epoch) != since:
                    return True
                left = until - self._clock.monotonic()
                if left <= 0:
                    return False
                await ear.wait(left)

    async def close(self) -> None:
        await self._database.close()

    async def _change(self, *queries: str, **values: str) -> int:
        row = {"namespace": self._namespace, "now": self._clock.now(), **values}

        def write(connection: sqlite3.Connection) -> int:
            with writing(connection) as cursor:
                for query in queries:
                    cursor.execute(SQL[query], row)
                return int(cursor.execute(SQL["next_epoch"], row).fetchone()[0])

        return await self._database.run(write)

    def _cancel(self, cursor: sqlite3.Cursor, job: str, reason: str) -> State | None:
        row = {"namespace": self._namespace, "id": job, "reason": reason}
        if cancel_idle(cursor, self._namespace, job, reason, self._clock.now()):
            return State.CANCELLED
        if cursor.execute(SQL["ask_to_stop"], row).rowcount == 1:
            return State.RUNNING
        final = cursor.execute(SQL["final_state"], row).fetchone()
        return State(final[0]) if final else None

    def _epoch(self, connection: sqlite3.Connection) -> int:
        row = connection.execute(SQL["epoch"], {"namespace": self._namespace}).fetchone()
        return row[0] if row else 0


def _json(values: Sequence[str]) -> str:
    return msgspec.json.encode([*values]).decode()
