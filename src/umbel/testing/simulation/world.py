"""A run: processes, a publisher and an operator, with whatever the seed has in store for them."""

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
from umbel.testing.simulation.database import Ground, SimulatedDatabase
from umbel.testing.simulation.fate import Fate
from umbel.testing.simulation.loop import Timeline
from umbel.testing.simulation.process import NAMESPACE, Process, SimulatedClock, open_backend
from umbel.testing.simulation.server import Server, stories
from umbel.testing.simulation.tasks import GATES, QUEUES, TASKS, Script, write_script
from umbel.testing.simulation.trace import Trace
from umbel.worker import incarnation as life

LEASE = 3.0
_TROUBLED = 3.5 * LEASE
_PATIENCE = 80 * LEASE
_DEADLINE = 2.0
_STATES = {state.value: number for number, state in enumerate(State)}


class World:
    """One seed's run."""

    def __init__(
        self, seed: int, ground: Ground, processes: int | None = None, *, gated: bool = False
    ) -> None:
        self.fate = fate = Fate(seed, LEASE)
        self._gated = gated
        self.ground = ground
        ground.wipe()
        self.codec = BodyCodec()
        self.timeline = Timeline(fate.random)
        self.trace = Trace(self.timeline)
        self.auditor = Auditor(self.timeline, self.trace, LEASE)
        self.server = Server(ground, self.timeline, fate, self.auditor, self.trace)
        self.server.on_change = self._note_state
        self.server.on_late_claim = self._maybe_pause
        self.scripts: list[Script] = []
        self.plays: Counter[int] = Counter()
        self.states: set[int] = set()
        self._jobs: list[str] = []
        self._lives: dict[str, Process] = {}
        self._lane = self.timeline.lane("world")
        self._count = processes or fate.choose((2, 2, 2, 3))
        self._processes: dict[str, Process] = {}
        self._plan: list[tuple[float, int, str]] = []
        self._cuts: list[SimulatedDatabase] = []
        self._busy = 0
        self._turn = asyncio.Lock()
        self._broker, self._operations = self._open_clients()

    # --- the run -------------------------------------------------------------------------------

    def run(self, steps: int) -> None:
        """Trouble first, then quiet, until everything is final or a promise is broken."""
        with _seeded_ids(self.fate, self.trace):
            try:
                self._begin()
                self._until(lambda: self.timeline.now >= _TROUBLED or self._all_final(), steps)
                self._calm_down()
                self._until(self._all_final, steps)
                if not self.auditor.violations:
                    self._look_back()
            finally:
                self.timeline.close()

    def _until(self, done: Callable[[], bool], steps: int) -> None:
        auditor, timeline = self.auditor, self.timeline
        while not auditor.violations and not done() and timeline.steps < steps:
            if self._plan and self._plan[0][0] <= timeline.now:
                self._have_trouble()
            ahead = self._plan[0][0] if self._plan else timeline.now + LEASE
            timeline.step(max(ahead, timeline.now))
            if timeline.now > _PATIENCE:
                return

    def _begin(self) -> None:
        fate = self.fate
        if self._gated:
            self._declare_gates()
        for number in range(self._count):
            self._start(f"w{number + 1}", number)
        for number in range(int(fate.between(3, 7.99))):
            self._publish_soon(number)
        for kind, rate in fate.moments.items():
            for _ in range(int(rate + fate.random.random())):
                when = fate.between(0.1, _TROUBLED)
                self._plan.append((when, int(fate.between(0, 25)), kind))
        self._plan.sort()
        fate.kind = False

    def _calm_down(self) -> None:
        """No more faults: what was promised for the end must now come true."""
        self.trace.add("world", "calms down")
        self.fate.kind, self.fate.quick, self._plan = True, 0.9, []
        self.server.down_until = 0.0
        for database in self.server.databases:
            database.cut_until = 0.0
        for process in self._processes.values():
            process.clock.ahead = 0.0
            for lane in (process.main, process.heart):
                lane.held_until = min(lane.held_until, self.timeline.now)
        self._ask(self._resume_all)
        for number in range(self._count):
            if self._processes[f"w{number + 1}"].gone:
                self._start(f"w{number + 1}", number)

    def _all_final(self) -> bool:
        picture = self.server.picture
        return not picture.jobs and not self._busy

    def _look_back(self) -> None:
        picture = self.server.finish()
        left = self.ground.connection.execute(
            "select key, held from gate where held <> 0 union all"
            " select pool || ' ' || name, job from member where job is not null"
        ).fetchall()
        if left and not picture.jobs:
            self.auditor.wrong(f"nothing lives, and {left} is held")
        self.auditor.finish(picture, stories(self.ground.connection))
        for lane in self.timeline.lanes:
            for failure in lane.failures:
                self.auditor.wrong(f"{lane.name}: {failure}")

    # --- processes -----------------------------------------------------------------------------

    def _start(self, name: str, number: int) -> None:
        self.trace.add(name, "starts")
        self._processes[name] = Process(self, name, number)

    def ended(self, process: Process) -> None:
        """Somebody restarts it, soon or late."""
        self.auditor.gone(process)
        soon = 0.2 if self.fate.kind else self.fate.between(0.05, 2 * LEASE)
        self._lane.call_later(soon, self._restart, process)

    def _restart(self, process: Process) -> None:
        if self._processes[process.name] is process:
            self._start(process.name, process.number)

    def note_life(self, incarnation: str, process: Process) -> None:
        """Remember whose life it is."""
        self._lives[incarnation] = process

    # --- trouble -------------------------------------------------------------------------------

    def _have_trouble(self) -> None:
        when, wait, kind = self._plan[0]
        if wait > 0:  # not at a moment when all sleep, but between two steps of somebody
            self._plan[0] = (when, wait - 1, kind)
            return
        del self._plan[0]
        process = self._victim()
        self.fate.count(kind)
        self.trace.add("world", kind, process.name)
        getattr(self, "_" + kind.replace(" ", "_"))(process)

    def _victim(self) -> Process:
        """Rather somebody who is running something."""
        busy = [one.actor for one in self.auditor.running if isinstance(one.actor, Process)]
        if busy and self.fate.chance(0.7):
            return self.fate.choose(busy)
        return self.fate.choose(list(self._processes.values()))

    def _crash(self, process: Process) -> None:
        process.crash("killed")

    def _stall(self, process: Process) -> None:
        seconds = self.fate.between(0.2, 2.5) * LEASE
        for lane in (process.main, process.heart):
            lane.hold(seconds)

    def _block(self, process: Process) -> None:
        process.main.hold(self.fate.between(0.2, 2.5) * LEASE)

    def _outage(self, process: Process) -> None:
        self.server.down_until = self.timeline.now + self.fate.between(0.1, 2) * LEASE

    def _cut(self, process: Process) -> None:
        until = self.timeline.now + self.fate.between(0.2, 2.5) * LEASE
        for database in process.databases:
            database.cut_until = until

    def _cut_heart(self, process: Process) -> None:
        until = self.timeline.now + self.fate.between(0.2, 2.5) * LEASE
        for database in process.databases:
            if database.use == "heart intake":
                database.cut_until = until

    def _jump(self, process: Process) -> None:
        process.clock.ahead += self.fate.choose((-20.0, -5.0, -1.0, 1.0, 5.0, 20.0))

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
        parts = open_backend(second, clock)
        self._gates = parts.gates
        operations = Operations(
            parts.broker,
            parts.records,
            parts.registry,
            parts.control,
            parts.gates,
            parts.steps,
            parts.deployments,
            parts.routes,
            clock=clock,
            namespace=NAMESPACE,
        )
        return broker, operations

    def _declare_gates(self) -> None:
        capacity, members = self.fate.choose((1, 2)), self.fate.choose((1, 1, 2))
        self.auditor.capacity |= {"pool:p": members, "limit:few": capacity}
        self.auditor.capacity |= {"limit:t/by#ann": 1, "rate:r": 1 << 30}
        rules = (
            Rule(name="limit:few", capacity=capacity),
            Rule(name="limit:t/by", capacity=1),
            Rule(name="pool:p", kind="pool"),
            Rule(name="rate:r", kind="rate", rates=((2, LEASE),)),
        )
        self._ask(lambda: self._gates.declare(rules))
        self._ask(lambda: self._gates.enrol("p", {f"m{n}": {} for n in range(members)}))

    def _publish_soon(self, number: int) -> None:
        fate = self.fate
        self.scripts.append(write_script(fate))
        job = fresh_id(fate)
        self._jobs.append(job)
        self.trace.names[job] = f"job-{number}"
        delay = fate.between(0, 2 * LEASE) if fate.chance(0.2) else None
        after = 0.0 if fate.chance(0.6) else fate.between(0, _TROUBLED)
        queue, task = fate.choose(QUEUES), fate.choose(TASKS)
        wall = 1_800_000_000.0
        envelope = Envelope(
            id=job,
            subject=task,
            body=self.codec.encode({"args": [number], "kwargs": {}}, what="arguments"),
            namespace=NAMESPACE,
            queue=queue,
            kind="io",
            priority=fate.choose((0, 0, 0, 5)),
            created=wall + after,
            not_before=None if delay is None else wall + after + delay,
            max_deaths=1 if task == "once" else 3,
            gates=fate.choose(GATES) if self._gated else (),
        )
        self.auditor.seen[job] = envelope
        self._busy += 1
        self._lane.call_later(after, self._send, envelope)

    async def _publish(self, envelope: Envelope) -> None:
        try:
            async with asyncio.timeout(_DEADLINE):
                await _insist(lambda: self._broker.publish([envelope]))
        except TimeoutError:
            self.trace.add("publisher", "is not sure of", envelope.id)
        else:
            self.auditor.published(envelope.id, self.server.picture)
        finally:
            self._busy -= 1

    def _ask(self, what: Callable[[], Awaitable[object]]) -> None:
        """Have the operator do it, after what was asked for before."""
        self._busy += 1
        self._lane.create_task(self._asked(what))

    def _send(self, envelope: Envelope) -> None:
        self._lane.create_task(self._publish(envelope))

    async def _asked(self, what: Callable[[], Awaitable[object]]) -> None:
        try:
            async with self._turn:
                await _insist(what)
        finally:
            self._busy -= 1

    def _maybe_pause(self) -> None:
        """The worst moment for a pause: something is claimed and its worker does not know it."""
        if self.fate.moments["pause"] and self.fate.chance(0.3):
            self._pause(self.fate.choose(list(self._processes.values())))

    def _pause(self, process: Process) -> None:
        scope, name = self.fate.choose(
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
        job = self.fate.choose(self._jobs)
        self._ask(lambda: self._cancel_one(job))

    async def _cancel_one(self, job: str) -> None:
        try:
            found = await self._operations.cancel([job], "simulated")
        except UnknownJob:
            return
        self.trace.add("operator", "hears that", job, "is", found[job].value)
        if found[job] is State.CANCELLED:
            self.auditor.cancelled(job, self.server.picture)

    def _replay(self, process: Process) -> None:
        job = self.fate.choose(self._jobs)
        self._ask(lambda: self._replay_one(job))

    async def _replay_one(self, job: str) -> None:
        try:
            await self._operations.retry([job])
        except (UnknownJob, NotAllowed):
            return

    # --- what was reached ----------------------------------------------------------------------

    def _note_state(self) -> None:
        """Remember the state of it all, without times and names."""
        picture = self.server.picture
        told: list[Any] = []
        for job in self._jobs:
            row = picture.jobs.get(job) or picture.records.get(job)
            if row is None:
                told.append(-1)
                continue
            owner = getattr(row, "owner", None)
            told.append((_STATES[row.state], min(row.deaths, 4), self._owner(owner, picture)))
        told.append(tuple(self._belief(p) for p in self._processes.values()))
        told.append(len(picture.pauses))
        self.states.add(hash(tuple(told)))

    def _owner(self, owner: str | None, picture: Any) -> int:
        if owner is None:
            return 0
        process = self._lives.get(owner)
        dead = process is None or process.gone
        return 1 + 2 * dead + (owner in picture.workers)

    def _belief(self, process: Process) -> Any:
        if process.gone or process.worker is None:
            return 0
        frozen = process.frozen_lately >= self.timeline.now
        runs = tuple(
            (self._jobs.index(one.lease.job), one.told, one.lost_at is None)
            for one in self.auditor.running
            if one.actor is process
        )
        return (1 + frozen + 2 * process.worker.stopping(), runs)


class _Client:
    """Somebody who calls the database and is not killed."""

    gone = False
    frozen_lately = -1e9

    def __init__(self, name: str) -> None:
        self.name = name

    def crash(self, why: str) -> bool:
        return False


async def _insist(what: Callable[[], Awaitable[object]]) -> None:
    """Until it works. What happened although it seemed not to is done twice: that is allowed."""
    while True:
        try:
            await what()
            return
        except Unavailable:
            await asyncio.sleep(0.3)


def fresh_id(fate: Fate) -> str:
    """An id that the seed gives."""
    text = f"{fate.random.getrandbits(128):032x}"
    return f"{text[:8]}-{text[8:12]}-{text[12:16]}-{text[16:20]}-{text[20:]}"


@contextmanager
def _seeded_ids(fate: Fate, trace: Trace) -> Iterator[None]:
    """Lives get their ids from the seed, too, and names for the log."""
    lives: Counter[str] = Counter()

    def fresh() -> str:
        lane: Any = asyncio.get_running_loop()
        name = lane.owner.name
        lives[name] += 1
        made = fresh_id(fate)
        trace.names[made] = f"{name}/{lives[name]}"
        return made

    names: dict[str, Any] = vars(life)
    usual, names["fresh_id"] = names["fresh_id"], fresh
    try:
        yield
    finally:
        names["fresh_id"] = usual
