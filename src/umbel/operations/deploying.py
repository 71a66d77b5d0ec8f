"""Deployments: workers stop fetching, and somebody is told when they may be stopped.

"Go" is said when it is true and stays true. The pauses are in the store before anybody is asked; a
worker answers with the epoch after which it fetches nothing paused; and only after all have
answered is it asked what runs. The store makes it "go" in one step, if the deployment
was never lost.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import suppress

import anyio
import msgspec

from umbel.backends import Deployment, DeploymentPlan, Deployments, Member, Records, Registry, Run
from umbel.clock import Clock
from umbel.errors import (
    DeploymentLost,
    DeploymentUnderWay,
    ResultTimeout,
    Unavailable,
    UnknownJob,
)
from umbel.operations.deployment_views import Audit, DeployView, RunView, StandingView
from umbel.operations.examining import advised, compared
from umbel.resilience import Backoff

LEASE = 15.0
"""Seconds after which workers fetch again when the command that waits was killed."""
_PULSE = 1.0
_CONFIRMING = Backoff(first=0.02, factor=1.5, cap=0.5)
_WORST = 5
_PATIENCE = 5.0


class Deploys:
    """Part of Operations; belongs to its event loop."""

    def __init__(
        self, deployments: Deployments, records: Records, registry: Registry, *, clock: Clock
    ) -> None:
        self._deployments = deployments
        self._records = records
        self._registry = registry
        self._clock = clock

    async def begin(self, plan: DeploymentPlan, *, force: bool = False) -> Deployment:
        """Nothing of what the plan names is fetched from now on.

        Raises:
            DeploymentUnderWay: somebody else deploys.
        """
        begun = await self._deployments.begin(plan, lease=LEASE, force=force)
        if begun.id != plan.id:
            raise DeploymentUnderWay(told(begun) + "; wait for its end, or take over with --force")
        return begun

    async def wait(
        self,
        deployment: Deployment,
        *,
        interval: float,
        limit: float,
        show: Callable[[DeployView], None],
    ) -> DeployView:
        """Wait until nothing is in the way, and make it "go"; after ``limit`` seconds end it.

        What the view's deployment is in the end, says which. A store that cannot be reached is
        tried on until then.

        Raises:
            DeploymentLost: somebody ended it, or it lapsed. Unavailable: until the limit.
        """
        until, watch = self._clock.monotonic() + limit, _Watch(self._clock)
        looks = 0
        while True:
            left = until - self._clock.monotonic()
            try:
                view = await self._look_again(deployment, watch)
                if view.deployment is not None and view.deployment.state == "go":
                    return view
                if left <= 0:
                    return await self._given_up(view, limit)
                show(view)
                looks = looks + 1 if view.silent else 0
                await self._rest(view, looks, min(left, interval, _PULSE))
            except Unavailable:
                if left <= -_PATIENCE:
                    raise
                watch = _Watch(self._clock)  # who could not look has seen nothing
                await anyio.sleep(_CONFIRMING.cap)

    async def end(self, who: str, *, force: bool = False) -> Deployment | None:
        """End the one that is "go"; None when there is none. What operators paused stays so.

        Raises:
            DeploymentUnderWay: it is somebody else's, or still waits; ``force`` ends it anyway.
        """
        await self._deployments.lapse()
        found = await self._deployments.last()
        if found is None or not found.is_under_way:
            return None
        if not force and found.state == "waiting":
            raise DeploymentUnderWay(told(found) + ", still waiting; end it there, or with --force")
        if not force and found.who != who:
            raise DeploymentUnderWay(told(found) + f", and you are {who}; end it with --force")
        outcome = f"ended by {who}"
        return await self._deployments.end(found.id, state="ended", outcome=outcome)

    async def abort(self, deployment: str, why: str) -> Deployment | None:
        """End one that is not to go on; None when it is not under way any more."""
        return await self._deployments.end(deployment, state="aborted", outcome=why)

    async def status(self, code: Mapping[str, str] | None = None, python: str = "") -> DeployView:
        """How it stands, and with ``code``, by task, which workers run another one."""
        await self._deployments.lapse()
        found = await self._deployments.last()
        members = await self._registry.members()
        view = await self._view(found, members, _Watch(self._clock))
        if code is None:
            return view
        changes = compared(code, python, [member.entry for member in members])
        removed = dict.fromkeys(changes.removed, 0)
        for one in await self._deployments.waiting() if removed else ():
            if one.task in removed:
                removed[one.task] += one.jobs
        return msgspec.structs.replace(view, code=msgspec.structs.replace(changes, removed=removed))

    async def audit(
        self, *, longer: float, since: float, interruptible: Mapping[str, bool] | None = None
    ) -> Audit:
        """Tasks that are not interruptible and ran longer than that, of the last ``since`` seconds.

        ``interruptible`` is what the application says, by task; for others the workers' say.
        """
        said = dict.fromkeys(
            (n for m in await self._registry.members() for n in m.entry.interruptible), True
        )
        said |= interruptible or {}
        but = [task for task, may_be in said.items() if may_be]
        found = await self._deployments.run_times(since=since, longer=longer, but=but, worst=_WORST)
        tasks = tuple(advised(times, longer) for times in found)
        return Audit(longer_than=longer, since=since, tasks=tasks)

    async def _look_again(self, deployment: Deployment, watch: _Watch) -> DeployView:
        """How it stands now; "go" when nothing is in the way. Raises DeploymentLost."""
        held = await self._deployments.renew(deployment.id, lease=LEASE)
        if held is None or held.id != deployment.id or not held.is_under_way:
            raise DeploymentLost(_lost(held, deployment))
        # In this order: who has confirmed before it is asked what runs, hides nothing.
        members = await self._registry.members()
        view = await self._view(held, members, watch)
        if view.ready and await self._deployments.go(deployment.id):
            gone = await self._deployments.last()
            return msgspec.structs.replace(view, deployment=gone)
        return view

    async def _given_up(self, view: DeployView, limit: float) -> DeployView:
        assert view.deployment is not None
        why = f"not ready within {limit:g} s"
        ended = await self._deployments.end(view.deployment.id, state="aborted", outcome=why)
        return msgspec.structs.replace(view, deployment=ended or await self._deployments.last())

    async def _rest(self, view: DeployView, looks: int, longest: float) -> None:
        """Until something may have changed. What ends is told by push; who confirms is not."""
        if view.silent or not view.in_the_way:
            await anyio.sleep(min(_CONFIRMING.delay(looks), longest))
            return
        oldest = view.in_the_way[0][1]
        with suppress(ResultTimeout, UnknownJob):
            await self._records.finished(oldest.job, longest)

    async def _view(
        self, deployment: Deployment | None, members: Sequence[Member], watch: _Watch
    ) -> DeployView:
        concerned = [member for member in members if _concerns(deployment, member)]
        watch.see(concerned)
        owners = [member.entry.incarnation for member in concerned]
        runs: dict[str, list[Run]] = {owner: [] for owner in owners}
        for run in await self._deployments.runs(owners):
            runs[run.owner].append(run)
        workers = [
            _standing(deployment, member, runs[member.entry.incarnation], watch)
            for member in concerned
        ]
        return DeployView(deployment=deployment, workers=tuple(workers))


class _Watch:
    """Whose heart stands still, by our own monotonic clock: nobody's clocks are compared."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._seen: dict[str, tuple[int, float]] = {}

    def see(self, members: Sequence[Member]) -> None:
        now = self._clock.monotonic()
        for member in members:
            key = member.entry.incarnation
            beat, _ = self._seen.get(key, (-1, now))
            if beat != member.beat:
                self._seen[key] = (member.beat, now)

    def has_lapsed(self, member: Member) -> bool:
        _, since = self._seen[member.entry.incarnation]
        return self._clock.monotonic() - since > member.entry.lease


def told(deployment: Deployment) -> str:
    """Whose deployment it is."""
    why = f" ({deployment.reason})" if deployment.reason else ""
    who = f"{deployment.who} (process {deployment.pid} on {deployment.host})"
    return f"{who} has been deploying{why} for {deployment.stood:.0f} s"


def _lost(found: Deployment | None, ours: Deployment) -> str:
    if found is not None and found.id != ours.id and found.is_under_way:
        return f"{found.who} on {found.host} took over; your deployment is over"
    why = found.outcome if found is not None and found.id == ours.id else "it is not there any more"
    return f"the deployment was ended meanwhile ({why}); workers fetch again"


def _concerns(deployment: Deployment | None, member: Member) -> bool:
    """Whether a worker has to confirm: it is named, or serves one of the queues."""
    if deployment is None or not (deployment.workers or deployment.queues):
        return True
    entry = member.entry
    return entry.name in deployment.workers or not {*entry.queues}.isdisjoint(deployment.queues)


def _standing(
    deployment: Deployment | None, member: Member, runs: Collection[Run], watch: _Watch
) -> StandingView:
    entry = member.entry
    under_way = deployment is not None and deployment.is_under_way
    return StandingView(
        name=entry.name,
        host=entry.host,
        pid=entry.pid,
        incarnation=entry.incarnation,
        confirmed=under_way and deployment is not None and member.epoch >= deployment.epoch,
        silent=max(0.0, member.silent),
        lapsed=watch.has_lapsed(member),
        runs=tuple(
            RunView(
                job=run.job,
                task=run.task,
                queue=run.queue,
                seconds=run.age,
                interruptible=run.task in entry.interruptible,
            )
            for run in runs
            if _stands_still(deployment, entry.name, run.queue)
        ),
    )


def _stands_still(deployment: Deployment | None, worker: str, queue: str) -> bool:
    """Whether what a worker runs of a queue is waited for."""
    if deployment is None or not (deployment.workers or deployment.queues):
        return True
    return worker in deployment.workers or queue in deployment.queues
