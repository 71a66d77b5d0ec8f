"""The API of operators, over all roles of a backend."""

from __future__ import annotations

import math
import shlex
from collections.abc import AsyncIterator, Callable, Iterable, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from typing import Any

import anyio
import msgspec

from umbel.backends import (
    UNCHANGED,
    Changes,
    Gate,
    JobFilter,
    NamespaceEraser,
    PoolMember,
    RegisteredWorker,
    Roles,
    Route,
    WorkerIndex,
)
from umbel.charts import ChartData, ChartRange, Charts
from umbel.clock import Clock
from umbel.control import (
    Access,
    AuditLog,
    Deployments,
    LimitOverrides,
    Pause,
    Pauses,
    Resumed,
    SavedViews,
    Scope,
)
from umbel.errors import ConfigurationError, NotAllowed, Unavailable, UnknownJob, UnknownTask
from umbel.messages import (
    GRAPH_TASK,
    GROUP_HEADER,
    POOL_PREFIX,
    TERMINAL,
    BodyCodec,
    Record,
    State,
    Step,
    inbox,
    is_inbox,
    not_finite,
)
from umbel.messages.nodes import INTERNAL_TASKS
from umbel.operations.deploy_analysis import code_name
from umbel.operations.deployments import DeploymentOperations
from umbel.operations.erasing import (
    ErasedJobs,
    Progress,
    erase_jobs,
    erase_namespace,
)
from umbel.operations.graphs import GraphOperations
from umbel.operations.job_search import FoundJobs, JobSearch, search_jobs
from umbel.operations.pause_texts import (
    paused_subject,
    pauses_of_job,
    why_paused,
    without_missing_tasks,
)
from umbel.operations.read_cache import ReadCache
from umbel.operations.schedules import ScheduleOperations
from umbel.operations.task_views import describe_tasks, recent_runs
from umbel.operations.views import (
    Health,
    MissingTask,
    PoolView,
    QueueView,
    TaskView,
    WorkerState,
    WorkerView,
)
from umbel.tasks import Registry
from umbel.tasks.inbox import is_command

FAILED = TERMINAL - {State.SUCCEEDED}
_CONFIRM_CHECK_SECONDS = 0.05
_COUNT_SECONDS = 0.5
_CHART_SECONDS: dict[str, float] = {"15m": 2.0, "1h": 5.0, "24h": 30.0, "7d": 120.0}
"""How long numbers are reused, if they are: a fraction of the time of one point."""
FORGETTABLE = tuple(state for state in State if state in TERMINAL and state is not State.BURIED)
"""The states that ``forget`` deletes when none is named. A buried job waits for a decision."""

_RECENT_JOBS = JobFilter(limit=10_000)


class Operations:
    """Reads and changes for operators. Belongs to one event loop; close it when done."""

    def __init__(
        self,
        roles: Roles,
        *,
        clock: Clock,
        namespace: str,
        codec: BodyCodec | None = None,
        registry: Registry | None = None,
        open_eraser: Callable[[], NamespaceEraser] | None = None,
    ) -> None:
        self._roles = roles
        self._codec = codec or BodyCodec()
        self._registry = registry or Registry()
        self._open_eraser = open_eraser
        self._pauses = Pauses(roles.coordination)
        self._limits = LimitOverrides(roles.coordination, roles.gates)
        self._charts = Charts(roles.coordination)
        self._cache = ReadCache(clock)
        self._clock = clock
        self.namespace = namespace
        self.graphs = GraphOperations(roles, self._codec)
        """Graphs: jobs that wait for jobs."""
        self.access = Access(roles.coordination)
        """Users, login sessions and API tokens of the dashboard."""
        self.audit = AuditLog(roles.coordination)
        """What users of the dashboard did."""
        self.saved_views = SavedViews(roles.coordination)
        """Filters of jobs that users of the dashboard have saved."""
        self.deploy = DeploymentOperations(
            Deployments(roles.coordination), roles.records, roles.registry, clock=clock
        )
        """Deployments: begin, wait for "go", end, status, audit."""
        self.schedules = ScheduleOperations(roles, namespace=namespace)
        """Schedules: all, show, next_times, history, add, edit, pause, resume, trigger, remove."""

    # --- numbers -----------------------------------------------------------------------------

    async def charts(self, range: ChartRange) -> ChartData:
        """Return numbers over time: how many jobs ended, how long they ran, how many waited."""
        seconds = _CHART_SECONDS.get(range, 0.0)
        return await self._cache.get(("charts", range), seconds, lambda: self._charts.read(range))

    def reuse_reads(self) -> None:
        """From now on, return numbers of jobs and charts that may be some seconds old.

        For views that look again and again: counting 100,000 jobs takes a store 60 ms.
        """
        self._cache.enable()

    def reread(self) -> None:
        """Forget the numbers that would be reused, because something was changed."""
        self._cache.clear()

    # --- jobs --------------------------------------------------------------------------------

    async def jobs(self, wanted: JobFilter) -> list[Record]:
        """Return the newest jobs that match."""
        return await self._roles.records.search(wanted)

    async def search(self, search: JobSearch) -> FoundJobs:
        """Return the next jobs that match, also by error and arguments, and where to continue.

        It reads a bounded number of jobs. ``FoundJobs.is_cut`` says whether it stopped there.
        """
        return await search_jobs(
            self._roles.records, search, self._codec, self._registry, self._clock
        )

    async def job(self, job: str) -> Record:
        """Return a job's record with its history. Raises UnknownJob."""
        return await self._roles.records.find(job)

    async def steps(self, job: str) -> list[Step]:
        """Return the durable steps that a job has completed, by number."""
        return await self._roles.steps.steps(job)

    async def cancel(self, jobs: Sequence[str], reason: str) -> dict[str, State]:
        """Cancel jobs and return their states afterwards. Raises UnknownJob if one is unknown.

        Of a graph, all nodes are cancelled.
        """
        found = await self._roles.control.cancel(jobs, reason)
        missing = [job for job in jobs if job not in found]
        if missing:
            raise UnknownJob(f"no job {', '.join(missing)}")
        await self._cancel_nodes(jobs, reason)
        return found

    async def _cancel_nodes(self, jobs: Iterable[str], reason: str) -> None:
        """Cancel the nodes of those of these jobs that are graphs."""
        tasks = await self._roles.records.tasks([*jobs])
        for job in [job for job, task in tasks.items() if task == GRAPH_TASK]:
            with suppress(UnknownJob):
                await self.graphs.cancel(job, reason)

    async def retry(self, jobs: Sequence[str], changes: Changes = UNCHANGED) -> list[str]:
        """Queue finished jobs again, unchanged or with changes. Return their ids.

        The graph of a node continues.

        Raises:
            UnknownJob: one is unknown.
            NotAllowed: one has not ended, or has succeeded, or there are changes for a graph.
        """
        replayed = await self._replay(jobs, changes)
        for job in jobs:
            if job not in replayed:
                state = (await self._roles.records.find(job)).state
                raise NotAllowed(
                    f"job {job} is {state}: only buried, cancelled and expired jobs are replayed"
                    + (f"; of these jobs, {len(replayed):,} were queued again" * bool(replayed))
                )
        return replayed

    async def retry_possible(self, jobs: Sequence[str], changes: Changes = UNCHANGED) -> list[str]:
        """Queue those of these jobs again that still can be. Return their ids.

        Others have been retried meanwhile, were deleted, or belong to a graph that cannot continue.
        """
        return await self._replay(jobs, changes, NotAllowed, UnknownJob)

    async def _replay(
        self, jobs: Sequence[str], changes: Changes, *ignored: type[Exception]
    ) -> list[str]:
        """Queue jobs again; of nodes, also what waits for them in their graphs.

        If one of the ``ignored`` errors is raised for a graph, its jobs are left out.
        """
        nodes: dict[str, list[str]] = {}
        graphs: list[str] = []
        for job in jobs:
            with suppress(UnknownJob):
                record = await self._roles.records.find(job)
                if record.task == GRAPH_TASK and record.state in FAILED:
                    if changes != UNCHANGED and not ignored:
                        raise NotAllowed(
                            f"job {job} is a graph: it runs no task, so it has nothing to change."
                            f" To run its failed nodes again: umbel graphs retry {job}, with --node"
                            " and --arguments to change one"
                        )
                    graphs.append(job)
                elif GROUP_HEADER in record.headers and record.state in FAILED:
                    nodes.setdefault(record.headers[GROUP_HEADER], []).append(job)
        chosen = {*graphs, *(job for some in nodes.values() for job in some)}
        others = [job for job in jobs if job not in chosen]
        replayed = await self._roles.records.replay(others, changes) if others else []
        for graph, some in nodes.items():
            with suppress(*ignored):
                replayed += await self.graphs.retry_jobs(graph, some, changes)
        for job in graphs if changes == UNCHANGED else ():
            with suppress(*ignored):
                await self.graphs.retry(job)
                replayed.append(job)
        return replayed

    async def cancel_possible(self, jobs: Sequence[str], reason: str) -> int:
        """Cancel those of these jobs that are live, or ask workers to stop them. Return how many.

        Others have ended meanwhile, or were deleted. Of a graph, all nodes are cancelled.
        """
        states = await self._roles.control.cancel(jobs, reason)
        await self._cancel_nodes(states, reason)
        return sum(state in (State.CANCELLED, State.RUNNING) for state in states.values())

    async def forget_possible(self, jobs: Sequence[str]) -> int:
        """Delete those of these jobs that have finished, with their results. Return how many."""
        return await self._roles.records.remove(jobs)

    async def forget(self, wanted: JobFilter) -> int:
        """Delete all finished jobs that match, with their results. Return their number.

        If the filter names no states, succeeded, cancelled and expired jobs are deleted. Buried
        jobs are deleted only if it names that state. ``limit`` has no effect.

        Raises:
            ConfigurationError: the filter names a state that is not final.
        """
        if live := [state.value for state in wanted.states if state not in TERMINAL]:
            raise ConfigurationError(
                f"states={', '.join(live)}: only finished jobs are deleted; give some of"
                f" {', '.join(state.value for state in State if state in TERMINAL)}"
            )
        chosen = msgspec.structs.replace(wanted, states=wanted.states or FORGETTABLE)
        return (await self.erase_jobs(JobSearch(wanted=chosen))).deleted

    async def erase_jobs(self, search: JobSearch, progress: Progress | None = None) -> ErasedJobs:
        """Delete all jobs that match, in every state. Those that wait are cancelled first.

        Workers are asked to stop those that run; delete these when they have ended. The whole
        history is read, in portions. ``progress`` is called with the number deleted so far.
        """
        return await erase_jobs(self._roles, self.search, search, progress or _ignore)

    # --- the namespace -----------------------------------------------------------------------

    async def stored(self) -> dict[str, int]:
        """Return how many rows or keys of each kind the namespace has in the store."""
        async with self._eraser() as eraser:
            return await eraser.count()

    async def erase(
        self,
        *,
        queues: Sequence[str] = (),
        force: bool = False,
        progress: Progress | None = None,
    ) -> int:
        """Delete everything that belongs to the namespace. Return how many rows or keys.

        A separate broker loses the queues of declared tasks, of workers and of jobs, and those in
        ``queues``.

        Raises:
            NotAllowed: workers are running, and ``force`` is false.
        """
        if not force:
            await self.refuse_while_running()
        known = {*queues, *await self._known_queues()}
        async with self._eraser() as eraser:
            return await erase_namespace(eraser, sorted(known), progress or _ignore)

    async def refuse_while_running(self) -> None:
        """Raise NotAllowed if workers of the namespace are running."""
        names = [one.name for one in await self.workers() if one.state != "silent"]
        if names:
            some = ", ".join(names[:5]) + (" …" if len(names) > 5 else "")
            raise NotAllowed(
                f"workers of the namespace {self.namespace} are running: {some}. Stop them first;"
                " --force deletes it anyway"
            )

    async def _known_queues(self) -> set[str]:
        members = await self._roles.registry.workers()
        recent = await self._roles.records.search(_RECENT_JOBS)
        return {
            *self._registry.queues(),
            *(depth.queue for depth in await self._roles.broker.depths()),
            *(queue for member in members for queue in _served(member)),
            *(inbox(one.index) for one in await self.worker_indexes()),
            *(job.queue for job in recent),
        }

    @asynccontextmanager
    async def _eraser(self) -> AsyncIterator[NamespaceEraser]:
        if self._open_eraser is None:
            raise ConfigurationError("these operations have no backend that deletes a namespace")
        eraser = self._open_eraser()
        try:
            yield eraser
        finally:
            await eraser.close()

    # --- tasks -------------------------------------------------------------------------------

    async def tasks(self, task: str | None = None, *, window: int = 10_000) -> list[TaskView]:
        """Return the tasks that are declared here or that running workers have, or one of them.

        Run times are those of the newest ``window`` finished jobs, of all tasks or of this one.

        Raises:
            UnknownTask: no task has this name.
        """
        registered = await self._roles.registry.workers()
        workers = [one for one in registered if _worker_state(one, set()) != "silent"]
        found = await self.search(recent_runs(task, window))
        views = describe_tasks(self._registry, workers, found.jobs)
        if task is not None:
            views = [view for view in views if view.name == task]
            if not views:
                raise UnknownTask(
                    f"no task {task!r} is declared here, and no running worker has it"
                )
        return views

    # --- queues ------------------------------------------------------------------------------

    async def queues(self) -> list[QueueView]:
        """Return every queue that holds jobs, has a worker or is paused."""
        depths = await self._cache.get("depths", _COUNT_SECONDS, self._roles.broker.depths)
        members = await self._roles.registry.workers()
        pauses = (await self._pauses.state()).pauses
        paused = {pause.name for pause in pauses if pause.scope == "queue"}
        served = [queue for member in members for queue in _served(member)]
        counts: dict[str, dict[State, int]] = {}
        oldest: dict[str, float] = {}
        for depth in depths:
            counts.setdefault(depth.queue, {})[depth.state] = depth.jobs
            if depth.state is State.QUEUED:
                oldest[depth.queue] = max(0.0, depth.age)
        return [
            QueueView(
                name=name,
                queued=counts.get(name, {}).get(State.QUEUED, 0),
                waiting=counts.get(name, {}).get(State.WAITING, 0),
                scheduled=counts.get(name, {}).get(State.SCHEDULED, 0),
                blocked=counts.get(name, {}).get(State.BLOCKED, 0),
                running=counts.get(name, {}).get(State.RUNNING, 0),
                oldest=oldest.get(name),
                paused=bool(_pauses_of_queue(name, pauses)),
                pauses=_pauses_of_queue(name, pauses),
                workers=served.count(name),
            )
            for name in sorted({*counts, *served, *paused})
            if name in counts or name in paused or not is_inbox(name)
        ]

    async def purge(self, queue: str) -> int:
        """Cancel all jobs of a queue that are not running. Return their number."""
        _check("queue", queue)
        return await self._roles.broker.purge(queue)

    async def move(self, source: str, target: str) -> int:
        """Move the waiting jobs of one queue to another. Return their number."""
        _check("source", source)
        _check("target", target)
        return await self._roles.broker.move(source, target)

    async def missing_tasks(self) -> list[MissingTask]:
        """Return the tasks with waiting jobs that no worker of their queue has.

        Queues without any worker are left out.
        """
        tasks = _tasks_by_queue(await self._roles.registry.workers())
        count = self._roles.records.count_waiting
        return sorted(
            MissingTask(queue=one.queue, task=one.task, jobs=one.jobs)
            for one in await self._cache.get("waiting", _COUNT_SECONDS, count)
            if one.queue in tasks and one.task not in tasks[one.queue] | INTERNAL_TASKS
        )

    async def hindrances(self, record: Record, address: str = "MODULE:APP") -> list[str]:
        """Return reasons why a waiting job does not start, if an operator can remove them.

        ``address`` is that of the application, for the command that starts a worker.
        """
        if record.state not in (State.QUEUED, State.WAITING, State.SCHEDULED):
            return []
        found = pauses_of_job(record, (await self._pauses.state()).pauses)
        return [*map(why_paused, found), *await self._missing_workers(record, address)]

    async def _missing_workers(self, record: Record, address: str) -> list[str]:
        workers = await self._roles.registry.workers()
        members = [one for one in workers if _worker_state(one, set()) != "silent"]
        is_served = any(record.queue in _served(member) for member in members)
        if not is_served and is_inbox(record.queue):
            return [f"No running worker has the inbox {record.queue}."]
        if not is_served:
            return [
                f"No running worker serves the queue {record.queue}. Start one:"
                f" umbel -A {address} worker --queues {shlex.quote(record.queue)}"
            ]
        if record.task in INTERNAL_TASKS:
            serving = [member for member in members if record.queue in _served(member)]
            if any(member.entry.capacity.get("io", 0) for member in serving):
                return []
            return [
                f"Nodes of graphs in the queue {record.queue} need a worker with capacity for"
                " coroutines: start one with --io 10, for example."
            ]
        if is_command(record.task):
            return []
        if not any(record.task in member.entry.tasks for member in members):
            return [f"No running worker has the task {record.task}."]
        if record.task not in _tasks_by_queue(members).get(record.queue, set()):
            return [f"No running worker of the queue {record.queue} has the task {record.task}."]
        return []

    # --- gates -------------------------------------------------------------------------------

    async def gates(self, rule: str | None = None, limit: int = 1000) -> list[Gate]:
        """Return the gates of a rule. Without a rule: all gates in use, and all without tokens."""
        _check("rule", rule)
        return await self._limits.gates(rule or "", limit)

    async def override_capacity(self, rule: str, capacity: int | None) -> bool:
        """Override the declared capacity of a limit; None restores the declared one.

        Return False if there is no such limit.
        """
        _check("rule", rule)
        return await self._limits.override(rule, capacity)

    async def override_rates(self, rule: str, rates: Sequence[tuple[int, float]] | None) -> bool:
        """Override the declared rates of a rule; None restores the declared ones.

        A rate is a number of jobs and a time in seconds. Return False if there is no such rate.

        Raises:
            ConfigurationError: a number is not above 0.
        """
        _check("rule", rule)
        if rates is not None and (not rates or not all(_is_rate(*rate) for rate in rates)):
            raise ConfigurationError(
                f"rates={rates!r}: give pairs of a number of jobs and seconds, both above 0"
            )
        return await self._limits.override_rates(rule, None if rates is None else tuple(rates))

    async def pools(self) -> list[PoolView]:
        """Return every pool that was declared or has members."""
        pauses = (await self._pauses.state()).pauses
        paused = {pause.name for pause in pauses if pause.scope == "gate"}
        all_paused = any(pause.scope == "all" for pause in pauses)
        members = await self._roles.gates.members()
        named = {f"{POOL_PREFIX}{member.pool}" for member in members}
        listed = [gate for gate in await self._roles.gates.gates() if gate.kind == "pool"]
        # ``gates`` returns a limited number; with many gates in use, pools may be missing.
        for key in named - {gate.key for gate in listed}:
            listed += await self._roles.gates.gates(key)
        gates = {gate.key.removeprefix(POOL_PREFIX): gate for gate in listed}
        return [
            PoolView(
                name=name,
                waiting=gates[name].waiting if name in gates else 0,
                paused=all_paused or f"{POOL_PREFIX}{name}" in paused,
                members=tuple(member for member in members if member.pool == name),
            )
            for name in sorted({*gates, *(member.pool for member in members)})
        ]

    async def members(self, pool: str | None = None) -> list[PoolMember]:
        """Return the members of a pool, or of all pools, by name."""
        _check("pool", pool)
        return await self._roles.gates.members(pool or "")

    async def add_members(self, pool: str, members: Mapping[str, Mapping[str, Any]]) -> None:
        """Add members with their data, or replace the data of existing ones.

        Raises:
            ConfigurationError: data of a member contains NaN or infinity.
        """
        _check_members(pool, members)
        for name, data in members.items():
            if (found := not_finite(dict(data))) is not None:
                raise ConfigurationError(f"members: {found.within(name)}; give None or a string")
        await self._roles.gates.add_members(pool, members)

    async def remove_members(self, pool: str, names: Sequence[str]) -> list[str]:
        """Remove members; jobs keep those that they hold. Return the members that existed."""
        _check_members(pool, names)
        return await self._roles.gates.remove_members(pool, names)

    async def drain(self, pool: str, names: Sequence[str]) -> list[str]:
        """Give members to no new jobs; jobs keep what they hold. Return those that existed."""
        _check_members(pool, names)
        return await self._roles.gates.set_condition(pool, names, "drained")

    async def ready(self, pool: str, names: Sequence[str]) -> list[str]:
        """Use drained and quarantined members again. Return the members that existed."""
        _check_members(pool, names)
        return await self._roles.gates.set_condition(pool, names, "ready")

    # --- routes ------------------------------------------------------------------------------

    async def routes(
        self,
        *,
        key: str | None = None,
        index: int | None = None,
        live: bool = True,
        limit: int = 100,
    ) -> list[Route]:
        """Return the routes, newest first; with ``live=False`` also those that have ended."""
        _check("key", key)
        return await self._roles.routes.routes(key=key, index=index, live=live, limit=limit)

    async def release(self, key: str, why: str) -> Route | None:
        """End the route of a key, immediately or when its running jobs are done.

        Return it; None if the key has none.
        """
        _check("key", key)
        return await self._roles.routes.release(key, why)

    async def move_route(self, key: str, index: int, why: str) -> Route | None:
        """End the route of a key; its next route goes to the worker with that index.

        Return it; None if the key has none.
        """
        _check("key", key)
        return await self._roles.routes.move(key, index, why)

    async def retire(self, index: int, retiring: bool = True) -> int:
        """Give a worker index no more routes and move its own. Return how many were live."""
        return await self._roles.routes.retire(index, retiring)

    async def worker_indexes(self) -> list[WorkerIndex]:
        """Return every worker index that is in use, in order."""
        return await self._roles.routes.worker_indexes()

    # --- workers and control -----------------------------------------------------------------

    async def workers(self) -> list[WorkerView]:
        """Return every registered worker."""
        paused = {pause.name for pause in await self.pauses() if pause.scope == "worker"}
        return [
            WorkerView(
                name=member.entry.name,
                index=member.entry.index,
                incarnation=member.entry.incarnation,
                host=member.entry.host,
                pid=member.entry.pid,
                queues=member.entry.queues,
                running=member.running,
                io=member.entry.capacity.get("io", 0),
                cpu=member.entry.capacity.get("cpu", 0),
                uptime=max(0.0, member.age),
                silent=max(0.0, member.silent),
                state=_worker_state(member, paused),
                epoch=member.epoch,
                code=code_name(member.entry),
                zone_data=member.entry.zone_data,
            )
            for member in await self._roles.registry.workers()
        ]

    async def pauses(self) -> tuple[Pause, ...]:
        """Return the pauses."""
        return (await self._pauses.state()).pauses

    async def pause(self, scope: Scope, name: str, reason: str) -> int:
        """Pause a scope and return the epoch that workers confirm."""
        _check_target(scope, name)
        return await self._pauses.pause(scope, name, reason)

    async def resume(self, scope: Scope, name: str) -> Resumed:
        """End an operator's pause. Return the epoch that workers confirm, and whether it existed.

        The pauses of deployments stay.
        """
        _check_target(scope, name)
        return await self._pauses.resume(scope, name)

    async def confirmed(self, epoch: int, within: float) -> tuple[int, int]:
        """Return how many of how many workers have confirmed an epoch, after up to ``within`` s."""
        until = self._clock.monotonic() + within
        while True:
            members = [w for w in await self.workers() if w.state != "silent"]
            done = sum(member.epoch >= epoch for member in members)
            if done == len(members) or self._clock.monotonic() >= until:
                return done, len(members)
            await anyio.sleep(_CONFIRM_CHECK_SECONDS)

    async def health(self) -> Health:
        """Return whether the broker answers, workers are running, and all queues have workers.

        Pauses are named. They are wanted, so they are no fault.
        """
        try:
            await self._roles.broker.check()
            workers = await self.workers()
            queues = await self.queues()
            missing = await self.missing_tasks()
            pauses = without_missing_tasks(await self.pauses())
        except Unavailable as error:
            return Health(ok=False, checks={"broker": str(error)})
        alive = [worker for worker in workers if worker.state != "silent"]
        stuck = [q for q in queues if (q.queued or q.waiting) and not q.paused]
        unserved = [q.name for q in stuck if not q.workers]
        checks = {
            "broker": "ok",
            "workers": f"ok: {len(alive)} running" if alive else "no workers are running",
            "queues": f"no worker serves {', '.join(unserved)}" if unserved else "ok",
            "tasks": "; ".join(map(str, missing)) or "ok",
            "pauses": f"paused: {', '.join(map(paused_subject, pauses))}" if pauses else "none",
        }
        if text := _different_zone_data(alive):
            checks["zones"] = text
        ok = bool(alive) and not unserved and not missing
        return Health(ok=ok, checks=checks, pauses=tuple(pauses))

    async def close(self) -> None:
        """Close the connections."""
        await self._roles.close()


def _ignore(deleted: int) -> None:
    """Report no progress."""


def _check(field: str, name: str | None) -> None:
    """Raise ConfigurationError if the name is empty. ``None`` means that no name was given."""
    if name is not None and not name.strip():
        raise ConfigurationError(f"{field}={name!r} is empty: give a name")


def _different_zone_data(workers: Iterable[WorkerView]) -> str:
    """Return a warning if workers have different time zone data; "" otherwise."""
    hosts: dict[str, set[str]] = {}
    for worker in workers:
        if worker.zone_data:
            hosts.setdefault(worker.zone_data, set()).add(worker.host)
    if len(hosts) < 2:
        return ""
    found = "; ".join(f"{one} on {', '.join(sorted(hosts[one]))}" for one in sorted(hosts))
    return (
        f"different time zone data: {found}. Schedules may fire at different times: update tzdata"
    )


def _is_rate(jobs: int, seconds: float) -> bool:
    return jobs >= 1 and 0 < seconds < math.inf


def _check_members(pool: str, names: Iterable[str]) -> None:
    _check("pool", pool)
    for name in names:
        _check("names", name)


def _check_target(scope: Scope, name: str) -> None:
    if scope != "all":
        _check("name", name)


def _tasks_by_queue(members: Sequence[RegisteredWorker]) -> dict[str, set[str]]:
    """Return the tasks that the workers of each queue have."""
    tasks: dict[str, set[str]] = {}
    for member in members:
        for queue in _served(member):
            tasks.setdefault(queue, set()).update(member.entry.tasks)
    return tasks


def _pauses_of_queue(queue: str, pauses: Iterable[Pause]) -> tuple[Pause, ...]:
    """Return the pauses that stop every job of a queue."""
    return tuple(p for p in pauses if p.scope == "all" or (p.scope, p.name) == ("queue", queue))


def _served(member: RegisteredWorker) -> list[str]:
    """Return the queues of a worker, including its own inbox."""
    entry = member.entry
    return [*entry.queues, *([] if entry.index is None else [inbox(entry.index)])]


def _worker_state(member: RegisteredWorker, paused: set[str]) -> WorkerState:
    if member.silent > member.entry.lease:
        return "silent"
    if member.stopping:
        return "stopping"
    return "paused" if member.entry.name in paused else "working"
