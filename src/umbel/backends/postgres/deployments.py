"""Deployments on PostgreSQL."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Literal, TypeVar

from umbel.backends.deployments import (
    LAPSED,
    Deployment,
    DeploymentPlan,
    Run,
    RunTimes,
    Waiting,
    read_deployment,
)
from umbel.backends.postgres.arrays import document, storable, texts
from umbel.backends.postgres.database import Database
from umbel.backends.postgres.statements import Row, Steps, atomically
from umbel.clock import Clock

T = TypeVar("T")

_HISTORY = 60.0
"""Seconds that a look through all records may take: a million of them are some seconds' work."""


class PostgresDeployments:
    """See ``stores.deployments.Deployments`` for what each method promises."""

    def __init__(self, database: Database, *, namespace: str, clock: Clock) -> None:
        self._database = database
        self._namespace = namespace
        self._clock = clock
        home = database.home
        self._sql = home.queries("store.sql")
        self._sql |= home.queries("deployments.sql")

    async def begin(self, plan: DeploymentPlan, *, lease: float, force: bool) -> Deployment:
        def steps() -> Steps[Deployment]:
            yield from self._lapsing()
            found = yield from self._last()
            if found is not None and found.is_under_way and (found.id == plan.id or not force):
                return found
            yield from self._beginning(plan, lease)
            begun = yield from self._last()
            assert begun is not None
            return begun

        return await self._whole(steps)

    async def renew(self, deployment: str, *, lease: float) -> Deployment | None:
        def steps() -> Steps[Deployment | None]:
            yield self._sql["renew"], self._row(id=deployment, lease=float(lease))
            return (yield from self._last())

        return await self._whole(steps)

    async def go(self, deployment: str) -> bool:
        def steps() -> Steps[bool]:
            yield self._sql["go"], self._row(id=deployment)
            found = yield from self._last()
            return found is not None and (found.id, found.state) == (deployment, "go")

        return await self._whole(steps)

    async def end(
        self, deployment: str, *, state: Literal["ended", "aborted"], outcome: str
    ) -> Deployment | None:
        return await self._whole(lambda: self._ending(deployment, state, outcome))

    async def lapse(self) -> Deployment | None:
        found = await self.last()  # most often there is nothing to write
        lapsed = found is not None and found.has_lapsed
        return await self._whole(self._lapsing) if lapsed else None

    async def last(self) -> Deployment | None:
        return await self._database.perform(self._last)

    async def runs(self, owners: Sequence[str]) -> list[Run]:
        rows = await self._rows("runs", owners=texts([*owners]))
        return [Run(job=j, task=t, queue=q, owner=o, age=max(0.0, a)) for j, t, q, o, a in rows]

    async def waiting(self) -> list[Waiting]:
        return [Waiting(*row) for row in await self._rows("waiting")]

    async def run_times(
        self, *, since: float, longer: float, but: Sequence[str], worst: int
    ) -> list[RunTimes]:
        left_out = texts([*but])
        values = {"since": float(since), "longer": float(longer), "but": left_out, "worst": worst}
        rows = await self._database.rows(self._sql["run_times"], self._row(**values), _HISTORY)
        return [
            RunTimes(task=t, runs=n, long=long, p50=p50, p95=p95, worst=most, jobs=tuple(jobs))
            for t, n, long, p50, p95, most, jobs in rows
        ]

    async def close(self) -> None:
        await self._database.close()

    def _beginning(self, plan: DeploymentPlan, lease: float) -> Steps[None]:
        pauses = plan.pauses()
        yield self._sql["let_go"], self._row()
        scopes, names = texts([scope for scope, _ in pauses]), texts([name for _, name in pauses])
        reason = storable(plan.reason)
        yield self._sql["hold"], self._row(scope=scopes, name=names, reason=reason)
        rows = yield self._sql["next_epoch"], self._row()
        values = {"id": plan.id, "plan": document(plan), "epoch": rows[0][0], "lease": float(lease)}
        yield self._sql["begin"], self._row(**values)

    def _ending(self, deployment: str, state: str, outcome: str) -> Steps[Deployment | None]:
        values = self._row(id=deployment, state=state, outcome=storable(outcome))
        rows = yield self._sql["end"], values
        if not rows:
            return None
        yield self._sql["let_go"], values
        yield self._sql["next_epoch"], values
        return (yield from self._last())

    def _lapsing(self) -> Steps[Deployment | None]:
        found = yield from self._last()
        if found is None or not found.has_lapsed:
            return None
        return (yield from self._ending(found.id, "aborted", LAPSED))

    def _last(self) -> Steps[Deployment | None]:
        rows = yield self._sql["deployment"], self._row()
        return read_deployment(rows[0]) if rows else None

    async def _whole(self, steps: Callable[[], Steps[T]]) -> T:
        """All of the steps, and nobody else's between them."""

        def locked() -> Steps[T]:
            yield self._sql["lock"], self._row()
            return (yield from steps())

        return await self._database.perform(lambda: atomically(locked()))

    def _row(self, **values: Any) -> dict[str, Any]:
        return {"namespace": self._namespace, **values}

    async def _rows(self, query: str, **values: Any) -> list[Row]:
        return await self._database.rows(self._sql[query], self._row(**values))
