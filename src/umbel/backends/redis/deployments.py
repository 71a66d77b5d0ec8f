"""Deployments on Redis."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from math import ceil
from typing import Any, Literal

import msgspec

from umbel.backends.deployments import (
    Deployment,
    DeploymentPlan,
    Run,
    RunTimes,
    Waiting,
    read_deployment,
)
from umbel.backends.redis.database import Database
from umbel.backends.redis.scripts import pack, pack_bytes, root_of, scripts
from umbel.backends.redis.values import integer, optional_float, text
from umbel.clock import Clock

LUA = scripts("deployments.lua", "deployment_state.lua")

_STEP_FACTOR = 1.02
"""Each step of the histogram of run times is longer by this factor than the step before."""
_MAX_PORTIONS = 100
"""Maximum number of portions, of 1,000 live jobs each, that are counted by task."""
_json = msgspec.json.Encoder().encode


class RedisDeployments:
    """See ``umbel.backends.deployments.Deployments`` for what each method guarantees."""

    def __init__(self, database: Database, *, namespace: str, clock: Clock) -> None:
        self._database = database
        self._root = root_of(namespace)

    async def begin(self, plan: DeploymentPlan, *, lease: float, force: bool) -> Deployment:
        paused = [f"{scope}:{name}" for scope, name in plan.pauses()]
        arguments = (plan.id, pack_bytes(_json(plan)), float(lease), force, plan.reason, *paused)
        row = await self._run("begin", *arguments)
        found = _deployment(row)
        assert found is not None
        return found

    async def renew(self, deployment: str, *, lease: float) -> Deployment | None:
        return _deployment(await self._run("renew", deployment, float(lease)))

    async def go(self, deployment: str) -> bool:
        return bool(await self._run("go", deployment))

    async def end(
        self, deployment: str, *, state: Literal["ended", "aborted"], outcome: str
    ) -> Deployment | None:
        return _deployment(await self._run("end", deployment, state, outcome))

    async def end_lapsed(self) -> Deployment | None:
        return _deployment(await self._run("end_lapsed"))

    async def last(self) -> Deployment | None:
        return _deployment(await self._run("last"))

    async def runs(self, owners: Sequence[str]) -> list[Run]:
        found: list[Run] = []
        for owner in owners:  # one at a time: each may hold thousands
            rows = await self._run("runs", owner)
            quads = zip(rows[::4], rows[1::4], rows[2::4], rows[3::4], strict=True)
            found += [
                Run(
                    job=text(job),
                    task=text(task),
                    queue=text(queue),
                    owner=owner,
                    age=max(0.0, optional_float(age) or 0.0),
                )
                for job, task, queue, age in quads
            ]
        return sorted(found, key=lambda run: (-run.age, run.job))

    async def count_waiting(self) -> list[Waiting]:
        counts: Counter[tuple[str, str]] = Counter()
        cursor = 0
        for _ in range(_MAX_PORTIONS):
            following, *rows = await self._run("count_waiting", cursor)
            counts.update({(text(queue), text(task)): n for queue, task, n in rows})
            if not following:
                break
            cursor = following
        return [Waiting(queue, task, jobs) for (queue, task), jobs in counts.items()]

    async def run_times(
        self, *, since: float, longer: float, but: Sequence[str], worst: int
    ) -> list[RunTimes]:
        tallies: dict[str, _Tally] = {}
        seconds, millionths = await self._database.execute("TIME")
        begin = int(seconds) + int(millionths) / 1e6 - since
        for index in ("done", "buried"):
            cursor: int | None = 0
            while cursor is not None:  # in portions: the history may be long
                values = (index, cursor, begin, float(longer), [*but], worst)
                following, *rows = await self._run("run_times", *values)
                for task, tally in zip(rows[::2], rows[1::2], strict=True):
                    tallies.setdefault(text(task), _Tally()).add(*tally)
                cursor = following or None
        found = [tally.summarize(task, worst) for task, tally in tallies.items() if tally.long]
        return sorted(found, key=lambda times: (-times.worst, times.task))

    async def close(self) -> None:
        await self._database.close()

    async def _run(self, name: str, *values: Any) -> Any:
        return await self._database.run(LUA[name], self._root, pack(*values))


class _Tally:
    """The run times of one task, collected from portions."""

    def __init__(self) -> None:
        self._runs = 0
        self.long = 0
        self._steps: Counter[int] = Counter()
        self._worst: list[tuple[float, str]] = []

    def add(self, runs: int, long: int, steps: list[int], worst: list[bytes]) -> None:
        self._runs += runs
        self.long += long
        self._steps.update(dict(zip(steps[::2], steps[1::2], strict=True)))
        pairs = zip(worst[::2], worst[1::2], strict=True)
        self._worst += [(optional_float(took) or 0.0, text(job)) for took, job in pairs]

    def summarize(self, task: str, worst: int) -> RunTimes:
        longest = sorted(self._worst, reverse=True)
        return RunTimes(
            task=task,
            runs=self._runs,
            long=self.long,
            p50=self._percentile(50, longest[0][0]),
            p95=self._percentile(95, longest[0][0]),
            worst=longest[0][0],
            jobs=tuple(job for _, job in longest[:worst]),
        )

    def _percentile(self, percent: int, maximum: float) -> float:
        """Return the percentile of the run times, rounded up to a step."""
        left = ceil(self._runs * percent / 100)
        for step in sorted(self._steps):
            left -= self._steps[step]
            if left <= 0:
                return min(_STEP_FACTOR**step, maximum)
        return maximum


def _deployment(row: Sequence[Any]) -> Deployment | None:
    """Return a deployment; None if there is none, or if it cannot be read after an edit by hand."""
    if not row:
        return None
    plan, state, epoch, since, until, went, ended, outcome, now = row
    try:
        return read_deployment(
            (
                plan,
                text(state),
                integer(epoch),
                optional_float(since) or 0.0,
                optional_float(until),
                optional_float(went),
                optional_float(ended),
                text(outcome),
                optional_float(now) or 0.0,
            )
        )
    except (ValueError, RecursionError):
        return None
