"""One read and command API over the store and the broker."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import anyio
import msgspec

from umbel.backends import (
    UNCHANGED,
    Broker,
    Changes,
    Control,
    Deployments,
    Gate,
    Gates,
    JobFilter,
    Member,
    Pause,
    PoolMember,
    Records,
    Registry,
    Route,
    Routes,
    Scope,
    Seat,
    Steps,
)
from umbel.clock import Clock
from umbel.errors import ConfigurationError, NotAllowed, Unavailable, UnknownJob
from umbel.messages import POOL, TERMINAL, Record, State, Step, inbox, is_inbox, not_finite
from umbel.operations.deploying import Deploys
from umbel.operations.views import (
    Health,
    MissingTask,
    PoolView,
    QueueView,
    WorkerState,
    WorkerView,
)

_CONFIRM_STEP = 0.05
_FORGOTTEN = tuple(state for state in State if state in TERMINAL and state is not State.BURIED)
"""The states that ``forget`` deletes when none is named. A buried job waits for a decision."""


class Operations:
    """Belongs to one event loop; close it when done."""

    def __init__(
        self,
        broker: Broker,
        records: Records,
        registry: Registry,
        control: Control,
        gates: Gates,
        steps: Steps,
        deployments: Deployments,
        routes: Routes,
        *,
        clock: Clock,
        namespace: str,
    ) -> None:
        self._broker = broker
        self._records = records
        self._registry = registry
        self._control = control
        self._gates = gates
        self._steps = steps
        self._deployments = deployments
        self._routes = routes
        self._clock = clock
        self.namespace = namespace
        self.deploy = Deploys(deployments, records, registry, clock=clock)
        """Deployments: begin, wait for "go", end, see how it stands, audit."""

    # --- jobs --------------------------------------------------------------------------------

    async def jobs(self, wanted: JobFilter) -> list[Record]:
        """The newest jobs that match."""
        return await self._records.search(wanted)

    async def job(self, job: str) -> Record:
        """One job's whole story. Raises UnknownJob."""
        return await self._records.find(job)

    async def steps(self, job: str) -> list[Step]:
        """What a job has done so far and would not do again, by number."""
        return await self._steps.steps(job)

    async def cancel(self, jobs: Sequence[str], reason: str) -> dict[str, State]:
        """Cancel jobs; each one's state after the call. Raises UnknownJob when none is known."""
        found = await self._control.cancel(jobs, reason)
        missing = [job for job in jobs if job not in found]
        if missing:
            raise UnknownJob(f"no job {', '.join(missing)}")
        return found

    async def retry(self, jobs: Sequence[str], changes: Changes = UNCHANGED) -> list[str]:
        """Queue finished jobs anew, as they were or changed.

        Raises:
            UnknownJob: one is unknown. NotAllowed: one still lives or has succeeded.
        """
        replayed = await self._records.replay(jobs, changes)
        for job in jobs:
            if job not in replayed:
                state = (await self._records.find(job)).state
                raise NotAllowed(
                    f"job {job} is {state}: only buried, cancelled and expired jobs are replayed"
                )
        return replayed

    async def forget(self, wanted: JobFilter) -> int:
        """Delete all finished jobs that match, with their results; how many there were.

        Without states: succeeded, cancelled and expired jobs. Buried jobs are deleted only if the
        filter names that state. ``limit`` is how many are deleted at a time.

        Raises:
            ConfigurationError: the filter names a state that is not final.
        """
        if live := [state.value for state in wanted.states if state not in TERMINAL]:
            raise ConfigurationError(
                f"states={', '.join(live)}: only finished jobs are deleted; give some of"
                f" {', '.join(state.value for state in State if state in TERMINAL)}"
            )
        chosen = msgspec.structs.replace(wanted, states=wanted.states or _FORGOTTEN)
        gone = 0
        while found := await self._records.search(chosen):
            removed = await self._records.remove([record.id for record in found])
            gone += removed
            if not removed:
                break
        return gone

    # --- queues ------------------------------------------------------------------------------

    async def queues(self) -> list[QueueView]:
        """Every queue that holds jobs, has a worker or is paused."""
        depths = await self._broker.depths()
        members = await self._registry.members()
        pauses = (await self._control.state()).pauses
        paused = {pause.name for pause in pauses if pause.scope == "queue"}
        all_paused = any(pause.scope == "all" for pause in pauses)
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
                running=counts.get(name, {}).get(State.RUNNING, 0),
                oldest=oldest.get(name),
                paused=all_paused or name in paused,
                workers=served.count(name),
            )
            for name in sorted({*counts, *served, *paused})
            if name in counts or name in paused or not is_inbox(name)
        ]

    async def purge(self, queue: str) -> int:
        """Cancel everything in a queue that does not run."""
        _check("queue", queue)
        return await self._broker.purge(queue)

    async def move(self, source: str, target: str) -> int:
        """Put everything that waits in one queue into another."""
        _check("source", source)
        _check("target", target)
        return await self._broker.move(source, target)

    async def missing_tasks(self) -> list[MissingTask]:
        """Tasks with jobs that wait although no worker that serves their queue has the task.

        Queues that no worker serves are not among them.
        """
        tasks = _tasks_by_queue(await self._registry.members())
        return sorted(
            MissingTask(queue=one.queue, task=one.task, jobs=one.jobs)
            for one in await self._deployments.waiting()
            if one.queue in tasks and one.task not in tasks[one.queue]
        )

    async def hindrances(self, record: Record) -> list[str]:
        """Why a job that waits does not start, if there is a reason that an operator can remove."""
        if record.state not in (State.QUEUED, State.WAITING, State.SCHEDULED):
            return []
        members = await self._registry.members()
        if not members:
            return ["No workers are running."]
        if not any(record.task in member.entry.tasks for member in members):
            return [f"No running worker has the task {record.task}."]
        if record.task not in _tasks_by_queue(members).get(record.queue, set()):
            return [f"No running worker of the queue {record.queue} has the task {record.task}."]
        return []

    # --- gates -------------------------------------------------------------------------------

    async def gates(self, rule: str | None = None, limit: int = 1000) -> list[Gate]:
        """The gates of a rule, or all that somebody holds or waits for, and all without tokens."""
        _check("rule", rule)
        return await self._gates.gates(rule or "", limit)

    async def impose(self, rule: str, capacity: int | None) -> bool:
        """Say how many may pass a limit, above what the code says; None gives that its say again.

        False when there is no such limit.
        """
        _check("rule", rule)
        return await self._gates.impose(rule, capacity)

    async def pools(self) -> list[PoolView]:
        """Every pool that was declared or has members."""
        pauses = (await self._control.state()).pauses
        paused = {pause.name for pause in pauses if pause.scope == "gate"}
        all_paused = any(pause.scope == "all" for pause in pauses)
        members = await self._gates.members()
        named = {f"{POOL}{member.pool}" for member in members}
        listed = [gate for gate in await self._gates.gates() if gate.kind == "pool"]
        # With very many gates in use, those of pools are not among the first.
        for key in named - {gate.key for gate in listed}:
            listed += await self._gates.gates(key)
        gates = {gate.key.removeprefix(POOL): gate for gate in listed}
        return [
            PoolView(
                name=name,
                waiting=gates[name].waiting if name in gates else 0,
                paused=all_paused or f"{POOL}{name}" in paused,
                members=tuple(member for member in members if member.pool == name),
            )
            for name in sorted({*gates, *(member.pool for member in members)})
        ]

    async def members(self, pool: str | None = None) -> list[PoolMember]:
        """The members of a pool, or of all, by name."""
        _check("pool", pool)
        return await self._gates.members(pool or "")

    async def enrol(self, pool: str, members: Mapping[str, Mapping[str, Any]]) -> None:
        """Add members with their data, also such as were removed. A known one gets its new data.

        Raises:
            ConfigurationError: data of a member holds NaN or infinity.
        """
        _check_members(pool, members)
        for name, data in members.items():
            if (found := not_finite(dict(data))) is not None:
                raise ConfigurationError(f"members: {found.within(name)}; give None or a string")
        await self._gates.enrol(pool, members)

    async def dismiss(self, pool: str, names: Sequence[str]) -> list[str]:
        """Remove members; what is held is kept to the end. Gives those that were there."""
        _check_members(pool, names)
        return await self._gates.dismiss(pool, names)

    async def drain(self, pool: str, names: Sequence[str]) -> list[str]:
        """Hand members out no more; what is held is kept to the end. Gives those there were."""
        _check_members(pool, names)
        return await self._gates.turn(pool, names, "drained")

    async def ready(self, pool: str, names: Sequence[str]) -> list[str]:
        """Hand drained and quarantined members out again. Gives those that were there."""
        _check_members(pool, names)
        return await self._gates.turn(pool, names, "ready")

    # --- routes ------------------------------------------------------------------------------

    async def routes(
        self,
        *,
        key: str | None = None,
        index: int | None = None,
        live: bool = True,
        limit: int = 100,
    ) -> list[Route]:
        """Which worker has which key, the newest first; with ``live=False`` the history too."""
        _check("key", key)
        return await self._routes.routes(key=key, index=index, live=live, limit=limit)

    async def release(self, key: str, why: str) -> Route | None:
        """End a key's route, at once or when what runs by it is done. None: it has none."""
        _check("key", key)
        return await self._routes.release(key, why)

    async def move_route(self, key: str, index: int, why: str) -> Route | None:
        """The same, and the next one goes to that index. None: it has none."""
        _check("key", key)
        return await self._routes.move(key, index, why)

    async def retire(self, index: int, retiring: bool = True) -> int:
        """Give an index no more routes, and move those it has; how many were live."""
        return await self._routes.retire(index, retiring)

    async def seats(self) -> list[Seat]:
        """Every index that somebody has, in order."""
        return await self._routes.seats()

    # --- workers and control -----------------------------------------------------------------

    async def workers(self) -> list[WorkerView]:
        """Every worker the store believes alive."""
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
                io=member.entry.io,
                cpu=member.entry.cpu,
                uptime=max(0.0, member.age),
                silent=max(0.0, member.silent),
                state=_worker_state(member, paused),
                epoch=member.epoch,
            )
            for member in await self._registry.members()
        ]

    async def pauses(self) -> tuple[Pause, ...]:
        """What is paused."""
        return (await self._control.state()).pauses

    async def pause(self, scope: Scope, name: str, reason: str) -> int:
        """Pause; returns the epoch that workers confirm."""
        _check_target(scope, name)
        return await self._control.pause(scope, name, reason)

    async def resume(self, scope: Scope, name: str) -> int:
        """Resume; returns the epoch that workers confirm."""
        _check_target(scope, name)
        return await self._control.resume(scope, name)

    async def confirmed(self, epoch: int, within: float) -> tuple[int, int]:
        """How many of how many living workers have confirmed an epoch, waiting a little for it."""
        until = self._clock.monotonic() + within
        while True:
            members = [w for w in await self.workers() if w.state != "silent"]
            done = sum(member.epoch >= epoch for member in members)
            if done == len(members) or self._clock.monotonic() >= until:
                return done, len(members)
            await anyio.sleep(_CONFIRM_STEP)

    async def health(self) -> Health:
        """Whether the broker answers, workers live and nothing is stuck."""
        try:
            await self._broker.check()
            workers = await self.workers()
            queues = await self.queues()
            missing = await self.missing_tasks()
        except Unavailable as error:
            return Health(ok=False, checks={"broker": str(error)})
        alive = [worker for worker in workers if worker.state != "silent"]
        held_up = [q for q in queues if (q.queued or q.waiting) and not q.paused]
        unserved = [q.name for q in held_up if not q.workers]
        checks = {
            "broker": "ok",
            "workers": f"ok: {len(alive)} alive" if alive else "none alive",
            "queues": f"no worker serves {', '.join(unserved)}" if unserved else "ok",
            "tasks": "; ".join(map(str, missing)) or "ok",
        }
        return Health(ok=bool(alive) and not unserved and not missing, checks=checks)

    async def close(self) -> None:
        """Free connections."""
        books = (self._records, self._registry, self._control, self._gates)
        for part in (self._broker, *books, self._steps, self._deployments, self._routes):
            await part.close()


def _check(field: str, name: str | None) -> None:
    """Raises ConfigurationError: the name is empty. ``None`` is no name, which is another thing."""
    if name is not None and not name.strip():
        raise ConfigurationError(f"{field}={name!r} is empty: give a name")


def _check_members(pool: str, names: Iterable[str]) -> None:
    _check("pool", pool)
    for name in names:
        _check("names", name)


def _check_target(scope: Scope, name: str) -> None:
    if scope != "all":
        _check("name", name)


def _tasks_by_queue(members: Sequence[Member]) -> dict[str, set[str]]:
    """The tasks that the workers of each queue have."""
    tasks: dict[str, set[str]] = {}
    for member in members:
        for queue in _served(member):
            tasks.setdefault(queue, set()).update(member.entry.tasks)
    return tasks


def _served(member: Member) -> list[str]:
    """The queues of a worker, its own among them."""
    entry = member.entry
    return [*entry.queues, *([] if entry.index is None else [inbox(entry.index)])]


def _worker_state(member: Member, paused: set[str]) -> WorkerState:
    if member.silent > member.entry.lease:
        return "silent"
    if member.stopping:
        return "stopping"
    return "paused" if member.entry.name in paused else "working"
