"""One read and command API over the store and the broker."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

import anyio
import msgspec

from umbel.brokers import Broker
from umbel.clock import Clock
from umbel.errors import NotAllowed, Unavailable, UnknownJob
from umbel.messages import Record, State
from umbel.stores import UNCHANGED, Changes, Control, JobFilter, Pause, Records, Registry

_CONFIRM_STEP = 0.05


class QueueView(msgspec.Struct, frozen=True, kw_only=True):
    """A queue at a glance."""

    name: str
    queued: int = 0
    scheduled: int = 0
    running: int = 0
    oldest: float | None = None
    """Seconds the oldest waiting job has been there."""
    paused: bool = False
    workers: int = 0


class WorkerView(msgspec.Struct, frozen=True, kw_only=True):
    """A worker at a glance."""

    name: str
    incarnation: str
    host: str
    pid: int
    queues: tuple[str, ...]
    running: int
    io: int
    cpu: int
    uptime: float
    silent: float
    """Seconds since its last heartbeat."""
    state: Literal["working", "stopping", "silent"]
    epoch: int


class Health(msgspec.Struct, frozen=True, kw_only=True):
    """Whether work can flow."""

    ok: bool
    checks: dict[str, str]


class Operations:
    """Belongs to one event loop; close it when done."""

    def __init__(
        self,
        broker: Broker,
        records: Records,
        registry: Registry,
        control: Control,
        *,
        clock: Clock,
        namespace: str,
    ) -> None:
        self._broker = broker
        self._records = records
        self._registry = registry
        self._control = control
        self._clock = clock
        self.namespace = namespace

    # --- jobs --------------------------------------------------------------------------------

    async def jobs(self, wanted: JobFilter) -> list[Record]:
        """The newest jobs that match."""
        return await self._records.search(wanted)

    async def job(self, job: str) -> Record:
        """One job's whole story. Raises UnknownJob."""
        return await self._records.find(job)

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

    async def remove(self, jobs: Sequence[str]) -> int:
        """Forget finished jobs."""
        return await self._records.remove(jobs)

    # --- queues ------------------------------------------------------------------------------

    async def queues(self) -> list[QueueView]:
        """Every queue that holds jobs, has a worker or is paused."""
        depths = await self._broker.depths()
        members = await self._registry.members()
        pauses = (await self._control.state()).pauses
        paused = {pause.name for pause in pauses if pause.scope == "queue"}
        all_paused = any(pause.scope == "all" for pause in pauses)
        served = [queue for member in members for queue in member.entry.queues]
        counts: dict[str, dict[State, int]] = {}
        oldest: dict[str, float] = {}
        for depth in depths:
            counts.setdefault(depth.queue, {})[depth.state] = depth.jobs
            if depth.state is State.QUEUED:
                oldest[depth.queue] = max(0.0, self._clock.now() - depth.oldest)
        return [
            QueueView(
                name=name,
                queued=counts.get(name, {}).get(State.QUEUED, 0),
                scheduled=counts.get(name, {}).get(State.SCHEDULED, 0),
                running=counts.get(name, {}).get(State.RUNNING, 0),
                oldest=oldest.get(name),
                paused=all_paused or name in paused,
                workers=served.count(name),
            )
            for name in sorted({*counts, *served, *paused})
        ]

    async def purge(self, queue: str) -> int:
        """Cancel everything in a queue that does not run."""
        return await self._broker.purge(queue)

    async def move(self, source: str, target: str) -> int:
        """Put everything that waits in one queue into another."""
        return await self._broker.move(source, target)

    # --- workers and control -----------------------------------------------------------------

    async def workers(self) -> list[WorkerView]:
        """Every worker the store believes alive."""
        return [
            WorkerView(
                name=member.entry.name,
                incarnation=member.entry.incarnation,
                host=member.entry.host,
                pid=member.entry.pid,
                queues=member.entry.queues,
                running=member.running,
                io=member.entry.io,
                cpu=member.entry.cpu,
                uptime=max(0.0, member.age),
                silent=max(0.0, member.silent),
                state=_worker_state(member.stopping, member.silent, member.entry.lease),
                epoch=member.epoch,
            )
            for member in await self._registry.members()
        ]

    async def pauses(self) -> tuple[Pause, ...]:
        """What is paused."""
        return (await self._control.state()).pauses

    async def pause(self, scope: Literal["all", "queue", "task"], name: str, reason: str) -> int:
        """Pause; returns the epoch that workers confirm."""
        return await self._control.pause(scope, name, reason)

    async def resume(self, scope: Literal["all", "queue", "task"], name: str) -> int:
        """Resume; returns the epoch that workers confirm."""
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
        except Unavailable as error:
            return Health(ok=False, checks={"broker": str(error)})
        alive = [worker for worker in workers if worker.state != "silent"]
        unserved = [q.name for q in queues if q.queued and not q.workers and not q.paused]
        checks = {
            "broker": "ok",
            "workers": f"ok: {len(alive)} alive" if alive else "none alive",
            "queues": f"no worker serves {', '.join(unserved)}" if unserved else "ok",
        }
        return Health(ok=bool(alive) and not unserved, checks=checks)

    async def close(self) -> None:
        """Free connections."""
        for part in (self._broker, self._records, self._registry, self._control):
            await part.close()


def _worker_state(
    stopping: bool, silent: float, lease: float
) -> Literal["working", "stopping", "silent"]:
    if silent > lease:
        return "silent"
    return "stopping" if stopping else "working"
