"""Deployments."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Literal, TypeVar

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
from umbel.backends.sql.role import SqlRole
from umbel.backends.sql.statements import Steps

T = TypeVar("T")

_HISTORY_TIMEOUT_SECONDS = 60.0
"""Limit for a query that reads all records: for a million of them it takes some seconds."""


class SqlDeployments(SqlRole):
    """See ``umbel.backends.deployments.Deployments`` for what each method promises."""

    files = ("store.sql", "deployments.sql")

    async def begin(self, plan: DeploymentPlan, *, lease: float, force: bool) -> Deployment:
        def steps() -> Steps[Deployment]:
            yield from self._end_lapsed_steps()
            found = yield from self._last_steps()
            if found is not None and found.is_under_way and (found.id == plan.id or not force):
                return found
            yield from self._begin_steps(plan, lease)
            begun = yield from self._last_steps()
            assert begun is not None
            return begun

        return await self._change(steps)

    async def renew(self, deployment: str, *, lease: float) -> Deployment | None:
        def steps() -> Steps[Deployment | None]:
            yield self._sql["renew"], self._values(id=deployment, lease=float(lease))
            return (yield from self._last_steps())

        return await self._change(steps)

    async def go(self, deployment: str) -> bool:
        def steps() -> Steps[bool]:
            yield self._sql["go"], self._values(id=deployment)
            found = yield from self._last_steps()
            return found is not None and (found.id, found.state) == (deployment, "go")

        return await self._change(steps)

    async def end(
        self, deployment: str, *, state: Literal["ended", "aborted"], outcome: str
    ) -> Deployment | None:
        return await self._change(lambda: self._end_steps(deployment, state, outcome))

    async def end_lapsed(self) -> Deployment | None:
        found = await self.last()  # most often there is nothing to write
        lapsed = found is not None and found.has_lapsed
        return await self._change(self._end_lapsed_steps) if lapsed else None

    async def last(self) -> Deployment | None:
        return await self._database.perform(self._last_steps)

    async def runs(self, owners: Sequence[str]) -> list[Run]:
        rows = await self._rows("runs", owners=self._database.texts([*owners]))
        return [Run(job=j, task=t, queue=q, owner=o, age=max(0.0, a)) for j, t, q, o, a in rows]

    async def count_waiting(self) -> list[Waiting]:
        return [Waiting(*row) for row in await self._rows("waiting")]

    async def run_times(
        self, *, since: float, longer: float, but: Sequence[str], worst: int
    ) -> list[RunTimes]:
        without = self._database.texts([*but])
        limits = {"since": float(since), "longer": float(longer), "but": without, "worst": worst}
        rows = await self._database.rows(
            self._sql["run_times"], self._values(**limits), _HISTORY_TIMEOUT_SECONDS
        )
        return [
            RunTimes(
                task=task,
                runs=runs,
                long=long,
                p50=p50,
                p95=p95,
                worst=longest,
                jobs=tuple(job for _, job in sorted(msgspec.json.decode(jobs), reverse=True)),
            )
            for task, runs, long, p50, p95, longest, jobs in rows
        ]

    def _begin_steps(self, plan: DeploymentPlan, lease: float) -> Steps[None]:
        pauses, texts = plan.pauses(), self._database.texts
        yield self._sql["remove_pauses"], self._values()
        scopes, names = texts([scope for scope, _ in pauses]), texts([name for _, name in pauses])
        reason = self._database.text(plan.reason)
        yield self._sql["add_pauses"], self._values(scope=scopes, name=names, reason=reason)
        rows = yield self._sql["next_epoch"], self._values()
        begun = {"id": plan.id, "plan": self._database.json(plan), "epoch": rows[0][0]}
        yield self._sql["begin"], self._values(**begun, lease=float(lease))

    def _end_steps(self, deployment: str, state: str, outcome: str) -> Steps[Deployment | None]:
        values = self._values(id=deployment, state=state, outcome=self._database.text(outcome))
        if not (yield self._sql["end"], values):
            return None
        yield self._sql["remove_pauses"], values
        yield self._sql["next_epoch"], values
        return (yield from self._last_steps())

    def _end_lapsed_steps(self) -> Steps[Deployment | None]:
        found = yield from self._last_steps()
        if found is None or not found.has_lapsed:
            return None
        return (yield from self._end_steps(found.id, "aborted", LAPSED))

    def _last_steps(self) -> Steps[Deployment | None]:
        rows = yield self._sql["deployment"], self._values()
        return read_deployment(rows[0]) if rows else None

    async def _change(self, steps: Callable[[], Steps[T]]) -> T:
        """Run the steps in a transaction, one such transaction at a time."""

        def locked() -> Steps[T]:
            if "lock" in self._sql:  # SQLite has one write transaction at a time anyway
                yield self._sql["lock"], self._values()
            return (yield from steps())

        return await self._database.transaction(locked)
