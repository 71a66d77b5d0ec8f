"""One run: processes, a publisher and an operator, with the faults of the seed."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from typing import Any

from umbel.backends import Broker
from umbel.errors import NotAllowed, Unavailable, UnknownJob
from umbel.messages import BodyCodec, Envelope, Rule, State
from umbel.operations import Operations
from umbel.testing.simulation.auditor import Auditor
from umbel.testing.simulation.database import MemoryDatabase, SimulatedDatabase
from umbel.testing.simulation.loop import Timeline
from umbel.testing.simulation.process import NAMESPACE, Process, SimulatedClock, open_backend
from umbel.testing.simulation.random_faults import SeededRandom
from umbel.testing.simulation.server import Server, attempt_outcomes
from umbel.testing.simulation.tasks import GATES, QUEUES, TASKS, Script, write_script
from umbel.testing.simulation.trace import Trace
from umbel.worker import incarnation as life

LEASE = 3.0
_FAULTY_SECONDS = 3.5 * LEASE
_MAX_SECONDS = 80 * LEASE
_DEADLINE = 2.0
_STATES = {state.value: number for number, state in enumerate(State)}


class World:
    """The run of one seed."""

    def __init__(
        self,
        seed: int,
        memory_database: MemoryDatabase,
        processes: int | None = None,
        *,
        gated: bool = False,
    ) -> None:
        self.rng = rng = SeededRandom(seed, LEASE)
        self._gated = gated
        self.memory_database = memory_database
        memory_database.wipe()
        self.codec = BodyCodec()
        self.timeline = Timeline(rng.random)
        self.trace = Trace(self.timeline)
        self.auditor = Auditor(self.timeline, self.trace, LEASE)
        self.server = Server(memory_database, self.timeline, rng, self.auditor, self.trace)
        self.server.on_change = self._record_state
        self.server.on_late_claim = self._maybe_pause
        self.scripts: list[Script] = []
        self.plays: Counter[int] = Counter()
        self.states: set[int] = set()
        self._jobs: list[str] = []
        self._process_by_incarnation: dict[str, Process] = {}
        self._lane = self.timeline.lane("world")
        self._count = processes or rng.choose((2, 2, 2, 3))
        self._processes: dict[str, Process] = {}
        self._plan: list[tuple[float, int, str]] = []
        self._cuts: list[SimulatedDatabase] = []
        self._busy = 0
        self._turn = asyncio.Lock()
        self._broker, self._operations = self._open_clients()

    # --- the run -------------------------------------------------------------------------------

    def run(self, steps: int) -> None:
        """Run with faults, then without, until all jobs are final or a promise is broken."""
        with _seeded_ids(self.rng, self.trace):
            try:
                self._begin()
                self._until(
                    lambda: self.timeline.now >= _FAULTY_SECONDS or self._all_final(), steps
                )
                self._stop_faults()
                self._until(self._all_final, steps)
                if not self.auditor.violations:
                    self._check_end()
            finally:
                self.timeline.close()

    def _until(self, done: Callable[[], bool], steps: int) -> None:
        auditor, timeline = self.auditor, self.timeline
        while not auditor.violations and not done() and timeline.steps < steps:
            if self._plan and self._plan[0][0] <= timeline.now:
                self._inject_fault()
            ahead = self._plan[0][0] if self._plan else timeline.now + LEASE
            timeline.step(max(ahead, timeline.now))
            if timeline.now > _MAX_SECONDS:
                return

    def _begin(self) -> None:
        rng = self.rng
        if self._gated:
            self._declare_gates()
        for number in range(self._count):
            self._start(f"w{number + 1}", number)
        for number in range(int(rng.between(3, 7.99))):
            self._publish_soon(number)
        for kind, rate in rng.moments.items():
            for _ in range(int(rate + rng.random.random())):
                when = rng.between(0.1, _FAULTY_SECONDS)
                self._plan.append((when, int(rng.between(0, 25)), kind))
        self._plan.sort()
        rng.is_calm = False

    def _stop_faults(self) -> None:
        """End all faults. From now on all jobs must become final."""
        self.trace.add("world", "ends all faults")
        self.rng.is_calm, self.rng.quick, self._plan = True, 0.9, []
        self.server.down_until = 0.0
        for database in self.server.databases:
            database.cut_until = 0.0
        for process in self._processes.values():
            process.clock.ahead = 0.0
            for lane in (process.main, process.heartbeat_lane):
                lane.held_until = min(lane.held_until, self.timeline.now)
        self._ask(self._resume_all)
        for number in range(self._count):
            if self._processes[f"w{number + 1}"].gone:
                self._start(f"w{number + 1}", number)

    def _all_final(self) -> bool:
        snapshot = self.server.snapshot
        return not snapshot.jobs and not self._busy

    def _check_end(self) -> None:
        snapshot = self.server.finish()
        left = self.memory_database.connection.execute(
            "select key, held from gate where held <> 0 union all"
            " select pool || ' ' || name, job from member where job is not null"
        ).fetchall()
        if left and not snapshot.jobs:
            self.auditor.report_violation(f"no job is live, and {left} is held")
        self.auditor.finish(snapshot, attempt_outcomes(self.memory_database.connection))
        for lane in self.timeline.lanes:
            for failure in lane.failures:
                self.auditor.report_violation(f"{lane.name}: {failure}")

    # --- processes -----------------------------------------------------------------------------

    def _start(self, name: str, number: int) -> None:
        self.trace.add(name, "starts")
        self._processes[name] = Process(self, name, number)

    def ended(self, process: Process) -> None:
        """Restart a process that has ended, after some time."""
        self.auditor.gone(process)
        soon = 0.2 if self.rng.is_calm else self.rng.between(0.05, 2 * LEASE)
        self._lane.call_later(soon, self._restart, process)

    def _restart(self, process: Process) -> None:
        if self._processes[process.name] is process:
            self._start(process.name, process.number)

    def record_incarnation(self, incarnation: str, process: Process) -> None:
        """Record which process has this incarnation."""
        self._process_by_incarnation[incarnation] = process

    # --- faults -------------------------------------------------------------------------------

    def _inject_fault(self) -> None:
        when, wait, kind = self._plan[0]
        if wait > 0:  # between two steps of a process, not when all processes sleep
            self._plan[0] = (when, wait - 1, kind)
            return
        del self._plan[0]
        process = self._choose_process()
        self.rng.count(kind)
        self.trace.add("world", kind, process.name)
        getattr(self, "_" + kind.replace(" ", "_"))(process)

    def _choose_process(self) -> Process:
        """Return the process for a fault, preferably one that is running a job."""
        busy = [one.actor for one in self.auditor.running if isinstance(one.actor, Process)]
        if busy and self.rng.chance(0.7):
            return self.rng.choose(busy)
        return self.rng.choose(list(self._processes.values()))

    def _crash(self, process: Process) -> None:
        process.crash("killed")

    def _stall(self, process: Process) -> None:
        seconds = self.rng.between(0.2, 2.5) * LEASE
        for lane in (process.main, process.heartbeat_lane):
            lane.hold(seconds)

    def _block(self, process: Process) -> None:
        process.main.hold(self.rng.between(0.2, 2.5) * LEASE)

    def _outage(self, process: Process) -> None:
        self.server.down_until = self.timeline.now + self.rng.between(0.1, 2) * LEASE

    def _cut(self, process: Process) -> None:
        until = self.timeline.now + self.rng.between(0.2, 2.5) * LEASE
        for database in process.databases:
            database.cut_until = until

    def _cut_heartbeat(self, process: Process) -> None:
        until = self.timeline.now + self.rng.between(0.2, 2.5) * LEASE
        for database in process.databases:
            if database.use == "heartbeat intake":
                database.cut_until = until

    def _jump(self, process: Process) -> None:
        process.clock.ahead += self.rng.choose((-20.0, -5.0, -1.0, 1.0, 5.0, 20.0))

    def _term(self, process: Process) -> None:
        process.stop()

    def _hurry(self, process: Process) -> None:
        process.stop()
        process.stop()

    # --- operators and publishers --------------------------------------------------------------

    def _open_clients(self) -> tuple[Broker, Operations]:
        clock = SimulatedClock(self.timeline)
        actors = (_Client("publisher"), _Client("operator"))
        first, second = (
            SimulatedDatabase(self.server, actor, self._lane, use="") for actor in actors
        )
        broker = open_backend(first, clock).broker
        roles = open_backend(second, clock)
        self._gates = roles.gates
        operations = Operations(roles, clock=clock, namespace=NAMESPACE)
        return broker, operations

    def _declare_gates(self) -> None:
        capacity, members = self.rng.choose((1, 2)), self.rng.choose((1, 1, 2))
        self.auditor.capacity |= {"pool:p": members, "limit:few": capacity}
        self.auditor.capacity |= {"limit:t/by#ann": 1, "rate:r": 1 << 30}
        rules = (
            Rule(name="limit:few", capacity=capacity),
            Rule(name="limit:t/by", capacity=1),
            Rule(name="pool:p", kind="pool"),
            Rule(name="rate:r", kind="rate", rates=((2, LEASE),)),
        )
        self._ask(lambda: self._gates.declare(rules))
        self._ask(lambda: self._gates.add_members("p", {f"m{n}": {} for n in range(members)}))

    def _publish_soon(self, number: int) -> None:
        rng = self.rng
        self.scripts.append(write_script(rng))
        job = fresh_id(rng)
        self._jobs.append(job)
        self.trace.names[job] = f"job-{number}"
        delay = rng.between(0, 2 * LEASE) if rng.chance(0.2) else None
        after = 0.0 if rng.chance(0.6) else rng.between(0, _FAULTY_SECONDS)
        queue, task = rng.choose(QUEUES), rng.choose(TASKS)
        wall = 1_800_000_000.0
        envelope = Envelope(
            id=job,
            subject=task,
            body=self.codec.encode({"args": [number], "kwargs": {}}, what="arguments"),
            namespace=NAMESPACE,
            queue=queue,
            kind="io",
            priority=rng.choose((0, 0, 0, 5)),
            created=wall + after,
            not_before=None if delay is None else wall + after + delay,
            max_deaths=1 if task == "once" else 3,
            gates=rng.choose(GATES) if self._gated else (),
        )
        self.auditor.seen[job] = envelope
        self._busy += 1
        self._lane.call_later(after, self._send, envelope)

    async def _publish(self, envelope: Envelope) -> None:
        try:
            async with asyncio.timeout(_DEADLINE):
                await _retry(lambda: self._broker.publish([envelope]))
        except TimeoutError:
            self.trace.add("publisher", "is not sure of", envelope.id)
        else:
            self.auditor.published(envelope.id, self.server.snapshot)
        finally:
            self._busy -= 1

    def _ask(self, what: Callable[[], Awaitable[object]]) -> None:
        """Let the operator run an operation after the previous ones."""
        self._busy += 1
        self._lane.create_task(self._run_operation(what))

    def _send(self, envelope: Envelope) -> None:
        self._lane.create_task(self._publish(envelope))

    async def _run_operation(self, what: Callable[[], Awaitable[object]]) -> None:
        try:
            async with self._turn:
                await _retry(what)
        finally:
            self._busy -= 1

    def _maybe_pause(self) -> None:
        """Maybe pause now, while a job is claimed and its worker has not received the answer."""
        if self.rng.moments["pause"] and self.rng.chance(0.3):
            self._pause(self.rng.choose(list(self._processes.values())))

    def _pause(self, process: Process) -> None:
        scope, name = self.rng.choose(
            (("all", ""), ("queue", "default"), ("queue", "mail"), ("task", "steady"))
            + ((("gate", "limit:few"), ("gate", "pool:p")) if self._gated else ())
        )
        self._ask(lambda: self._operations.pause(scope, name, "simulated"))  # type: ignore

    def _resume(self, process: Process) -> None:
        self._ask(self._resume_all)

    async def _resume_all(self) -> None:
        for pause in await self._operations.pauses():
            await self._operations.resume(pause.scope, pause.name)

    def _cancel(self, process: Process) -> None:
        job = self.rng.choose(self._jobs)
        self._ask(lambda: self._cancel_one(job))

    async def _cancel_one(self, job: str) -> None:
        try:
            found = await self._operations.cancel([job], "simulated")
        except UnknownJob:
            return
        self.trace.add("operator", "is told that", job, "is", found[job].value)
        if found[job] is State.CANCELLED:
            self.auditor.cancelled(job, self.server.snapshot)

    def _replay(self, process: Process) -> None:
        job = self.rng.choose(self._jobs)
        self._ask(lambda: self._replay_one(job))

    async def _replay_one(self, job: str) -> None:
        try:
            await self._operations.retry([job])
        except (UnknownJob, NotAllowed):
            return

    # --- states ----------------------------------------------------------------------

    def _record_state(self) -> None:
        """Record the state of all jobs and processes, without times and names."""
        snapshot = self.server.snapshot
        parts: list[Any] = []
        for job in self._jobs:
            row = snapshot.jobs.get(job) or snapshot.records.get(job)
            if row is None:
                parts.append(-1)
                continue
            owner = getattr(row, "owner", None)
            parts.append((_STATES[row.state], min(row.deaths, 4), self._owner(owner, snapshot)))
        parts.append(tuple(self._belief(p) for p in self._processes.values()))
        parts.append(len(snapshot.pauses))
        self.states.add(hash(tuple(parts)))

    def _owner(self, owner: str | None, snapshot: Any) -> int:
        if owner is None:
            return 0
        process = self._process_by_incarnation.get(owner)
        dead = process is None or process.gone
        return 1 + 2 * dead + (owner in snapshot.workers)

    def _belief(self, process: Process) -> Any:
        if process.gone or process.worker is None:
            return 0
        frozen = process.last_frozen >= self.timeline.now
        runs = tuple(
            (self._jobs.index(one.lease.job), one.is_stopping, one.lost_at is None)
            for one in self.auditor.running
            if one.actor is process
        )
        return (1 + frozen + 2 * process.worker.stopping(), runs)


class _Client:
    """A caller of the database that is never killed."""

    gone = False
    last_frozen = -1e9

    def __init__(self, name: str) -> None:
        self.name = name

    def crash(self, why: str) -> bool:
        return False


async def _retry(what: Callable[[], Awaitable[object]]) -> None:
    """Try until it succeeds. A call may happen twice if only its answer was lost."""
    while True:
        try:
            await what()
            return
        except Unavailable:
            await asyncio.sleep(0.3)


def fresh_id(rng: SeededRandom) -> str:
    """Return an id that the seed determines."""
    text = f"{rng.random.getrandbits(128):032x}"
    return f"{text[:8]}-{text[8:12]}-{text[12:16]}-{text[16:20]}-{text[20:]}"


@contextmanager
def _seeded_ids(rng: SeededRandom, trace: Trace) -> Iterator[None]:
    """Let the seed determine the ids of incarnations, and name them for the log."""
    lives: Counter[str] = Counter()

    def fresh() -> str:
        lane: Any = asyncio.get_running_loop()
        name = lane.owner.name
        lives[name] += 1
        made = fresh_id(rng)
        trace.names[made] = f"{name}/{lives[name]}"
        return made

    names: dict[str, Any] = vars(life)
    usual, names["fresh_id"] = names["fresh_id"], fresh
    try:
        yield
    finally:
        names["fresh_id"] = usual
