"""Deployments on SQLite."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Sequence
from typing import Any, Literal, TypeVar

import msgspec

from umbel.backends.deployments import (
    LAPSED,
    Deployment,
    DeploymentPlan,
    Run,
    RunTimes,
    Waiting,
    read_deployment,
)
from umbel.backends.queries import load
from umbel.backends.sqlite.database import Database
from umbel.backends.sqlite.savepoints import writing
from umbel.clock import Clock

SQL = load("umbel.backends.sqlite", "deployments.sql")

T = TypeVar("T")

_json = msgspec.json.Encoder().encode


class SqliteDeployments:
    """See ``stores.deployments.Deployments`` for what each method promises."""

    def __init__(self, database: Database, *, namespace: str, clock: Clock) -> None:
        self._database = database
        self._namespace = namespace
        self._clock = clock

    async def begin(self, plan: DeploymentPlan, *, lease: float, force: bool) -> Deployment:
        def write(cursor: sqlite3.Cursor) -> Deployment:
            self._lapse(cursor)
            found = self._last(cursor)
            if found is not None and found.is_under_way and (found.id == plan.id or not force):
                return found
            self._begin(cursor, plan, lease)
            begun = self._last(cursor)
            assert begun is not None
            return begun

        return await self._write(write)

    async def renew(self, deployment: str, *, lease: float) -> Deployment | None:
        def write(cursor: sqlite3.Cursor) -> Deployment | None:
            cursor.execute(SQL["renew"], self._row(id=deployment, lease=lease))
            return self._last(cursor)

        return await self._write(write)

    async def go(self, deployment: str) -> bool:
        def write(cursor: sqlite3.Cursor) -> bool:
            cursor.execute(SQL["go"], self._row(id=deployment))
            found = self._last(cursor)
            return found is not None and (found.id, found.state) == (deployment, "go")

        return await self._write(write)

    async def end(
        self, deployment: str, *, state: Literal["ended", "aborted"], outcome: str
    ) -> Deployment | None:
        return await self._write(lambda cursor: self._end(cursor, deployment, state, outcome))

    async def lapse(self) -> Deployment | None:
        found = await self.last()  # most often there is nothing to write
        return await self._write(self._lapse) if found is not None and found.has_lapsed else None

    async def last(self) -> Deployment | None:
        return await self._database.run(self._last)

    async def runs(self, owners: Sequence[str]) -> list[Run]:
        rows = await self._rows("runs", owners=_json([*owners]).decode())
        return [Run(job=j, task=t, queue=q, owner=o, age=max(0.0, a)) for j, t, q, o, a in rows]

    async def waiting(self) -> list[Waiting]:
        return [Waiting(*row) for row in await self._rows("waiting")]

    async def run_times(
        self, *, since: float, longer: float, but: Sequence[str], worst: int
    ) -> list[RunTimes]:
        left_out = _json([*but]).decode()
        rows = await self._rows("run_times", since=since, longer=longer, but=left_out, worst=worst)
        return [
            RunTimes(
                task=task,
                runs=runs,
                long=long,
                p50=p50,
                p95=p95,
                worst=most,
                jobs=tuple(job for _, job in sorted(msgspec.json.decode(jobs), reverse=True)),
            )
            for task, runs, long, p50, p95, most, jobs in rows
        ]

    async def close(self) -> None:
        await self._database.close()

    def _begin(self, cursor: sqlite3.Cursor, plan: DeploymentPlan, lease: float) -> None:
        cursor.execute(SQL["let_go"], self._row())
        for scope, name in plan.pauses():
            cursor.execute(SQL["hold"], self._row(scope=scope, name=name, reason=plan.reason))
        epoch = cursor.execute(SQL["next_epoch"], self._row()).fetchone()[0]
        values = self._row(id=plan.id, plan=_json(plan).decode(), epoch=epoch, lease=lease)
        cursor.execute(SQL["begin"], values)

    def _end(
        self, cursor: sqlite3.Cursor, deployment: str, state: str, outcome: str
    ) -> Deployment | None:
        values = self._row(id=deployment, state=state, outcome=outcome)
        if not cursor.execute(SQL["end"], values).rowcount:
            return None
        cursor.execute(SQL["let_go"], values)
        cursor.execute(SQL["next_epoch"], values)
        return self._last(cursor)

    def _lapse(self, cursor: sqlite3.Cursor) -> Deployment | None:
        found = self._last(cursor)
        if found is None or not found.has_lapsed:
            return None
        return self._end(cursor, found.id, "aborted", LAPSED)

    def _last(self, connection: sqlite3.Connection | sqlite3.Cursor) -> Deployment | None:
        row = connection.execute(SQL["deployment"], self._row()).fetchone()
        return read_deployment(row) if row else None

    def _row(self, **values: Any) -> dict[str, Any]:
        return {"namespace": self._namespace, "now": self._clock.now(), **values}

    async def _rows(self, query: str, **values: Any) -> list[Any]:
        row = self._row(**values)
        return await self._database.run(lambda c: c.execute(SQL[query], row).fetchall())

    async def _write(self, work: Callable[[sqlite3.Cursor], T]) -> T:
        def write(connection: sqlite3.Connection) -> T:
            with writing(connection) as cursor:
                return work(cursor)

        return await self._database.run(write)
