"""A state machine: schedulers that come, go and freeze, operators and clocks, against a pure model.

The model lists the nominal times that must be published. It knows nothing of leaders: whatever
happens to schedulers, each time is published exactly once, or missed by more than a minute.
"""

from __future__ import annotations

import asyncio
import os

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from integration.schedule_world import NOON, World, settle
from umbel.operations.schedules import ScheduleOperations
from umbel.schedules import Plan, Scheduler, make_timing
from umbel.schedules.catalog import read_catalog
from umbel.schedules.due import GRACE_SECONDS

EVERY = (7, 20, 60)


class Model:
    """One schedule with an interval: which times are due, and which of them may be missing."""

    def __init__(self, every: int, since: int) -> None:
        self.every = every
        self.since = since
        """Times after this are due."""
        self.must: set[int] = set()
        self.may: set[int] = set()
        """Times that a scheduler may publish or not, because it saw a change late or not at all."""
        self.paused = False

    def due(self, until: int) -> list[int]:
        first = self.since // self.every * self.every + self.every
        return [*range(first, until + 1, self.every)] if not self.paused else []

    def decide(self, now: int) -> None:
        """A scheduler has published everything that is due now."""
        for one in self.due(now):
            (self.must if one >= now - GRACE_SECONDS else self.may).add(one)
        if not self.paused:
            self.since = max(self.since, now)

    def change(self, now: int) -> None:
        """An operator has changed it: what was due before may have been published or not."""
        self.may |= {*self.due(now)}
        self.since = max(self.since, now)


class Schedulers(RuleBasedStateMachine):
    """Three schedulers, of which any may be frozen, on one store."""

    def __init__(self) -> None:
        super().__init__()
        self.runner = asyncio.Runner()
        self.world = World()
        self.world.roles = self.world.app.backend.open()
        self.operator = ScheduleOperations(self.world.roles, namespace="umbel")
        self.candidates = [f"first {n}" for n in range(3)]
        self.schedulers: list[Scheduler] = [*map(self.world.scheduler, self.candidates)]
        self.kills = 0
        self.frozen: set[int] = set()
        self.models: dict[str, Model] = {}
        self.names = 0

    @property
    def now(self) -> int:
        return int(self.world.clock.now())

    def _round(self) -> None:
        """Let all schedulers that run do what is due, until one of them leads."""
        running = [one for n, one in enumerate(self.schedulers) if n not in self.frozen]
        for _ in range(2):
            for one in running:
                self.runner.run(settle(one))
        entries = self.runner.run(self.world.roles.coordination.read("elections/")).entries
        running_names = [one for n, one in enumerate(self.candidates) if n not in self.frozen]
        if entries and entries[0].value.decode() in running_names:
            for model in self.models.values():
                model.decide(self.now)

    @rule(every=st.sampled_from(EVERY), catch_up=st.sampled_from(["none", "last", "all"]))
    def add(self, every: int, catch_up: str) -> None:
        name, self.names = f"schedule {self.names}", self.names + 1
        template = self.world.app.build(self.world.report.s())
        plan = Plan(timing=make_timing(every=every), overlap="allow", catch_up=catch_up)  # type: ignore[arg-type]
        self.runner.run(self.operator.add(name, plan, template, "ann"))
        self.models[name] = Model(every, self.now)

    @rule(seconds=st.integers(1, 30))
    def pass_time(self, seconds: int) -> None:
        self.world.clock.pass_time(seconds)
        self._round()

    @rule(seconds=st.integers(61, 4_000))
    def pass_time_without_schedulers(self, seconds: int) -> None:
        self.world.clock.pass_time(seconds)
        self._round()

    @rule(which=st.integers(0, 2))
    def freeze(self, which: int) -> None:
        self.frozen.add(which)

    @rule(which=st.integers(0, 2))
    def resume_process(self, which: int) -> None:
        """It continues where it was frozen: what it knows may be old."""
        self.frozen.discard(which)

    @rule(which=st.integers(0, 2))
    def kill(self, which: int) -> None:
        """Another process takes the place of one that was killed."""
        self.kills += 1
        self.candidates[which] = f"successor {self.kills}"
        self.schedulers[which] = self.world.scheduler(self.candidates[which])

    @precondition(lambda self: self.models)
    @rule(data=st.data(), every=st.sampled_from(EVERY))
    def edit(self, data: st.DataObject, every: int) -> None:
        name = data.draw(st.sampled_from(sorted(self.models)))
        changes = {"timing": make_timing(every=every)}
        self.runner.run(self.operator.edit(name, changes, reset=False, who="ann"))
        self.models[name].change(self.now)
        self.models[name].every = every

    @precondition(lambda self: self.models)
    @rule(data=st.data(), paused=st.booleans())
    def pause_or_resume(self, data: st.DataObject, paused: bool) -> None:
        name = data.draw(st.sampled_from(sorted(self.models)))
        model = self.models[name]
        if paused == model.paused:
            return
        if paused:
            self.runner.run(self.operator.pause(name, "", "ann"))
            model.change(self.now)
        else:
            self.runner.run(self.operator.resume(name))
            model.since = max(model.since, self.now)
        model.paused = paused

    @invariant()
    def each_time_is_published_once(self) -> None:
        found: dict[str, list[int]] = {}
        for job in self.runner.run(self.world.jobs()):
            nominal = int(job.headers["nominaltime"])
            found.setdefault(job.headers["schedule"], []).append(nominal)
        for name, model in self.models.items():
            published = found.get(name, [])
            assert len({*published}) == len(published), f"{name}: a time twice"
            missing = sorted(model.must - {*published})
            assert not missing, f"{name}: {[one - int(NOON) for one in missing]} missing"
            extra = sorted({*published} - model.must - model.may)
            assert not extra, f"{name}: {[one - int(NOON) for one in extra]} not due"

    def teardown(self) -> None:
        self.runner.run(read_catalog(self.world.roles.coordination))
        self.runner.run(self.world.roles.close())
        self.runner.close()
        self.world.app.close()


TestSchedulers = Schedulers.TestCase
TestSchedulers.settings = settings(
    max_examples=int(os.environ.get("UMBEL_MACHINE_EXAMPLES", "25")),
    stateful_step_count=25,
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow],
)
