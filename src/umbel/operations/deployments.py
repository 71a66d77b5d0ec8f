"""Deployments: workers stop fetching, and the caller learns when they may be stopped.

A deployment becomes "go" only if workers can be stopped now and until it ends. First the pauses are
written to the store. Then each worker confirms the epoch from which on it fetches no paused jobs.
Only after all have confirmed are the running jobs read. The store sets "go" in one step, and only
if the deployment was never lost.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import suppress

import anyio
import msgspec

from umbel.backends import Records, RegisteredWorker, Registry, Run
from umbel.clock import Clock
from umbel.control import Deployment, DeploymentPlan, Deployments
from umbel.errors import (
    DeploymentLost,
    DeploymentUnderWay,
    ResultTimeout,
    Unavailable,
    UnknownJob,
)
from umbel.operations.deploy_analysis import advise, compare_code
from umbel.operations.views import Audit, DeployView, DeployWorkerView, RunView
from umbel.resilience import Backoff

DEPLOYMENT_LEASE_SECONDS = 15.0
"""How long after the waiting command was killed the workers fetch again."""
_MAX_CHECK_INTERVAL_SECONDS = 1.0
_CHECK_BACKOFF = Backoff(first=0.02, factor=1.5, cap=0.5)
_MAX_WORST_JOBS = 5
"""The number of longest runs that an audit lists for each task."""
_OUTAGE_GRACE_SECONDS = 5.0
"""How long after its limit ``wait`` still tries to reach the store."""


class DeploymentOperations:
    """The part of ``Operations`` for deployments. Belongs to one event loop."""

    def __init__(
        self, deployments: Deployments, records: Records, registry: Registry, *, clock: Clock
    ) -> None:
        self._deployments = deployments
        self._records = records
        self._registry = registry
        self._clock = clock

    async def begin(self, plan: DeploymentPlan, *, force: bool = False) -> Deployment:
        """Begin a deployment. From now on, workers fetch nothing that the plan pauses.

        Raises:
            DeploymentUnderWay: another deployment is in progress.
        """
        begun = await self._deployments.begin(plan, lease=DEPLOYMENT_LEASE_SECONDS, force=force)
        if begun.id != plan.id:
            raise DeploymentUnderWay(
                _describe(begun) + "; wait for its end, or take over with --force"
            )
        return begun

    async def wait(
        self,
        deployment: Deployment,
        *,
        interval: float,
        limit: float,
        show: Callable[[DeployView], None],
    ) -> DeployView:
        """Wait until workers can be stopped and set "go". After ``limit`` seconds, end it instead.

        The state of the returned view's deployment says which of the two happened. While the store
        is unavailable, it is tried again until the limit.

        Raises:
            DeploymentLost: it was ended by another command, or it lapsed.
            Unavailable: the store was unavailable at the limit.
        """
        until, watch = self._clock.monotonic() + limit, _HeartbeatWatch(self._clock)
        checks = 0
        while True:
            left = until - self._clock.monotonic()
            try:
                view = await self._check(deployment, watch)
                if view.deployment is not None and view.deployment.state == "go":
                    return view
                if left <= 0:
                    return await self._give_up(view, limit)
                show(view)
                checks = checks + 1 if view.unconfirmed else 0
                await self._wait_for_change(
                    view, checks, min(left, interval, _MAX_CHECK_INTERVAL_SECONDS)
                )
            except Unavailable:
                if left <= -_OUTAGE_GRACE_SECONDS:
                    raise
                watch = _HeartbeatWatch(self._clock)  # what it saw before the outage is out of date
                await anyio.sleep(_CHECK_BACKOFF.cap)

    async def end(self, who: str, *, force: bool = False) -> Deployment | None:
        """End the deployment that is "go" and return it; None if there is none.

        What operators have paused stays paused.

        Raises:
            DeploymentUnderWay: another user began it, or it still waits; ``force`` ends it anyway.
        """
        await self._deployments.end_lapsed()
        found = await self._deployments.last()
        if found is None or not found.is_under_way:
            return None
        if not force and found.state == "waiting":
            raise DeploymentUnderWay(
                _describe(found) + ", still waiting; end it there, or with --force"
            )
        if not force and found.who != who:
            raise DeploymentUnderWay(_describe(found) + f", and you are {who}; end it with --force")
        outcome = f"ended by {who}"
        return await self._deployments.end(found.id, state="ended", outcome=outcome)

    async def abort(self, deployment: str, why: str) -> Deployment | None:
        """Abort a deployment and return it; None if it has ended already."""
        return await self._deployments.end(deployment, state="aborted", outcome=why)

    async def status(self, code: Mapping[str, str] | None = None, python: str = "") -> DeployView:
        """Return the progress of the last deployment.

        With ``code``, the fingerprints of the application's tasks, compare them with the workers'.
        """
        await self._deployments.end_lapsed()
        found = await self._deployments.last()
        workers = await self._registry.workers()
        view = await self._view(found, workers, _HeartbeatWatch(self._clock))
        if code is None:
            return view
        changes = compare_code(code, python, [worker.entry for worker in workers])
        removed = dict.fromkeys(changes.removed, 0)
        for one in await self._records.count_waiting() if removed else ():
            if one.task in removed:
                removed[one.task] += one.jobs
        return msgspec.structs.replace(view, code=msgspec.structs.replace(changes, removed=removed))

    async def audit(
        self, *, longer: float, since: float, interruptible: Mapping[str, bool] | None = None
    ) -> Audit:
        """Return the tasks that cannot be interrupted and had runs longer than ``longer`` seconds.

        The runs of the last ``since`` seconds count. ``interruptible`` says for each task of the
        application whether it can be interrupted; for other tasks, the workers say so.
        """
        workers = await self._registry.workers()
        is_interruptible = {task: True for one in workers for task in one.entry.interruptible}
        is_interruptible |= interruptible or {}
        but = [task for task, answer in is_interruptible.items() if answer]
        found = await self._records.run_times(
            since=since, longer=longer, but=but, worst=_MAX_WORST_JOBS
        )
        tasks = tuple(advise(times, longer) for times in found)
        return Audit(longer_than=longer, since=since, tasks=tasks)

    async def _check(self, deployment: Deployment, watch: _HeartbeatWatch) -> DeployView:
        """Return the progress; set "go" if workers can be stopped now. Raises DeploymentLost."""
        held = await self._deployments.renew(deployment.id, lease=DEPLOYMENT_LEASE_SECONDS)
        if held is None or held.id != deployment.id or not held.is_under_way:
            raise DeploymentLost(_describe_loss(held, deployment))
        # In this order: a worker that confirmed before its runs are read has no unseen run.
        workers = await self._registry.workers()
        view = await self._view(held, workers, watch)
        if view.ready and await self._deployments.go(deployment.id):
            gone = await self._deployments.last()
            return msgspec.structs.replace(view, deployment=gone)
        return view

    async def _give_up(self, view: DeployView, limit: float) -> DeployView:
        assert view.deployment is not None
        why = f"not ready within {limit:g} s"
        ended = await self._deployments.end(view.deployment.id, state="aborted", outcome=why)
        return msgspec.structs.replace(view, deployment=ended or await self._deployments.last())

    async def _wait_for_change(self, view: DeployView, checks: int, longest: float) -> None:
        """Wait until something may have changed. Ends of runs are pushed, confirmations are not."""
        if view.unconfirmed or not view.blocking_runs:
            await anyio.sleep(min(_CHECK_BACKOFF.delay(checks), longest))
            return
        oldest = view.blocking_runs[0][1]
        with suppress(ResultTimeout, UnknownJob):
            await self._records.wait_finished(oldest.job, longest)

    async def _view(
        self,
        deployment: Deployment | None,
        workers: Sequence[RegisteredWorker],
        watch: _HeartbeatWatch,
    ) -> DeployView:
        concerned = [worker for worker in workers if _must_confirm(deployment, worker)]
        watch.observe(concerned)
        owners = [worker.entry.incarnation for worker in concerned]
        runs: dict[str, list[Run]] = {owner: [] for owner in owners}
        for run in await self._records.runs(owners):
            runs[run.owner].append(run)
        views = [
            _worker_view(deployment, worker, runs[worker.entry.incarnation], watch)
            for worker in concerned
        ]
        return DeployView(deployment=deployment, workers=tuple(views))


class _HeartbeatWatch:
    """Finds workers without heartbeats by this process's monotonic clock alone."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._seen: dict[str, tuple[int, float]] = {}

    def observe(self, workers: Sequence[RegisteredWorker]) -> None:
        now = self._clock.monotonic()
        for worker in workers:
            key = worker.entry.incarnation
            heartbeats, _ = self._seen.get(key, (-1, now))
            if heartbeats != worker.heartbeats:
                self._seen[key] = (worker.heartbeats, now)

    def has_lapsed(self, worker: RegisteredWorker) -> bool:
        _, since = self._seen[worker.entry.incarnation]
        return self._clock.monotonic() - since > worker.entry.lease


def _describe(deployment: Deployment) -> str:
    """Return who began a deployment, where and when."""
    why = f" ({deployment.reason})" if deployment.reason else ""
    who = f"{deployment.who} (process {deployment.pid} on {deployment.host})"
    return f"{who} has been deploying{why} for {deployment.stood:.0f} s"


def _describe_loss(found: Deployment | None, ours: Deployment) -> str:
    if found is not None and found.id != ours.id and found.is_under_way:
        return f"{found.who} on {found.host} took over; your deployment has ended"
    why = found.outcome if found is not None and found.id == ours.id else "it no longer exists"
    return f"the deployment was ended meanwhile ({why}); workers fetch again"


def _must_confirm(deployment: Deployment | None, worker: RegisteredWorker) -> bool:
    """Return whether a worker must confirm: the plan names it or one of its queues."""
    if deployment is None or not (deployment.workers or deployment.queues):
        return True
    entry = worker.entry
    return entry.name in deployment.workers or not {*entry.queues}.isdisjoint(deployment.queues)


def _worker_view(
    deployment: Deployment | None,
    worker: RegisteredWorker,
    runs: Collection[Run],
    watch: _HeartbeatWatch,
) -> DeployWorkerView:
    entry = worker.entry
    under_way = deployment is not None and deployment.is_under_way
    return DeployWorkerView(
        name=entry.name,
        host=entry.host,
        pid=entry.pid,
        incarnation=entry.incarnation,
        confirmed=under_way and deployment is not None and worker.epoch >= deployment.epoch,
        silent=max(0.0, worker.silent),
        lapsed=watch.has_lapsed(worker),
        runs=tuple(
            RunView(
                job=run.job,
                task=run.task,
                queue=run.queue,
                seconds=run.age,
                interruptible=run.task in entry.interruptible,
            )
            for run in runs
            if _is_waited_for(deployment, entry.name, run.queue)
        ),
    )


def _is_waited_for(deployment: Deployment | None, worker: str, queue: str) -> bool:
    """Return whether a deployment waits for what a worker runs of a queue."""
    if deployment is None or not (deployment.workers or deployment.queues):
        return True
    return worker in deployment.workers or queue in deployment.queues
