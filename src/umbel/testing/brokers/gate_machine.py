"""A Hypothesis state machine for gates.

Whatever happens, no gate admits more than its capacity, no slot stays free while a job waits for
it, and in the end no slot is held.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Coroutine
from contextlib import AsyncExitStack
from typing import Any, TypeVar

from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    rule,
)

from umbel.backends import Demand
from umbel.control import Scope
from umbel.messages import (
    Delivery,
    Failed,
    Interrupted,
    Outcome,
    Parked,
    Retry,
    Rule,
    Snoozed,
    Succeeded,
)
from umbel.testing.actions import (
    FAILURE,
    FAR,
    FULL_DEMAND,
    RESULT,
    envelope,
    kill,
    register,
    settlement,
)
from umbel.testing.backend import DEADLINE, Adapters, OpenAdapters
from umbel.testing.clock import FakeClock
from umbel.testing.state_machines import run_machine

T = TypeVar("T")
Call = tuple[tuple[str, ...], bool, bool]
"""Its gates, whether it is for the second queue, and whether it is for the other task."""

QUEUES = ("one", "two")
LIMITS = ("limit:wide", "limit:by", "limit:narrow")
TOKENS = ("limit:by#ann", "limit:by#bob")
POOLS = ("p", "q")
MEMBERS = ("m1", "m2")

gate_lists = st.sampled_from(
    (
        (),
        ("limit:wide",),
        (TOKENS[0],),
        (TOKENS[1], "limit:wide"),
        (TOKENS[0], "limit:narrow", "limit:wide"),
        ("pool:p",),
        ("pool:p", "pool:q"),
        ("limit:narrow", "pool:q"),
    )
)
calls = st.tuples(gate_lists, st.booleans(), st.booleans())
which = st.integers(0, 30)
sides = st.integers(0, 1)
ends: st.SearchStrategy[Outcome] = st.sampled_from(
    (
        Succeeded(RESULT),
        Succeeded(RESULT),
        Failed(FAILURE),
        Retry(FAILURE, 0.0),
        Snoozed(FAR),
        Interrupted("stopping"),
        Parked(("limit:wide", "pool:p")),
    )
)
pauses: st.SearchStrategy[tuple[Scope, str]] = st.sampled_from(
    (("queue", "one"), ("task", "tests.other"), ("gate", "limit:wide"), ("gate", TOKENS[0]))
)


class GateMachine(RuleBasedStateMachine):
    """Adapters of two processes on the same data, with several workers and all kinds of gates."""

    def __init__(self, backends: OpenAdapters) -> None:
        super().__init__()
        self._runner = asyncio.Runner()
        self._open = AsyncExitStack()
        self.sides = self._run(self._enter(backends))
        if isinstance(self.sides[0].clock, FakeClock):
            self.sides[0].clock.stop()
        self.capacity: dict[str, int] = {}
        """The highest capacity while slots were held: lowering it takes no slot away."""
        self.held: dict[str, Delivery] = {}
        self.fences: dict[tuple[str, str], int] = {}
        self.owners: list[str] = []
        self.published: list[str] = []
        self.paused: tuple[Scope, str] | None = None

    async def _enter(self, backends: OpenAdapters) -> list[Adapters]:
        first = await self._open.enter_async_context(backends())
        return [first, await self._open.enter_async_context(first.another())]

    def teardown(self) -> None:
        """End all jobs; then no slot may be held."""
        try:
            if self.owners:
                self._run(self._wind_up())
        finally:
            self._run(self._open.aclose())
            self._runner.close()

    def _run(self, work: Coroutine[Any, Any, T]) -> T:
        async def bounded() -> T:
            async with asyncio.timeout(DEADLINE):
                return await work

        return self._runner.run(bounded())

    # --- rules ---------------------------------------------------------------------------------

    @initialize(
        numbers=st.tuples(*[st.integers(0, 3)] * 3),
        members=st.integers(0, 2),
        batch=st.lists(calls, min_size=3, max_size=9),
    )
    def the_code_declares(
        self,
        numbers: tuple[int, ...],
        members: int,
        batch: list[Call],
    ) -> None:
        for name, capacity in zip(LIMITS, numbers, strict=True):
            self.declare(name, capacity, 0)
        gates = self.sides[0].gates
        self._run(gates.declare([Rule(name=f"pool:{pool}", kind="pool") for pool in POOLS]))
        for pool in POOLS:
            self._run(gates.add_members(pool, {name: {} for name in MEMBERS[:members]}))
        self.a_worker_comes(0)
        self.publish(batch, 0)
        self.fetch_all(0, 1)

    @rule(name=st.sampled_from(LIMITS), capacity=st.integers(0, 3), side=sides)
    def declare(self, name: str, capacity: int, side: int) -> None:
        self._run(self.sides[side].gates.declare([Rule(name=name, capacity=capacity)]))
        self.capacity[name] = max(capacity, self.capacity.get(name, 0))

    @rule(side=sides)
    def a_worker_comes(self, side: int) -> None:
        self.owners.append(self._run(register(self.sides[side])))

    @rule(batch=st.lists(calls, max_size=6), side=sides)
    def publish(self, batch: list[Call], side: int) -> None:
        backend = self.sides[side]
        made = [
            envelope(
                backend,
                gates=gates,
                queue=QUEUES[second],
                subject="tests.other" if other else "tests.add",
            )
            for gates, second, other in batch
        ]
        self._run(backend.broker.publish(made))
        self.published += [one.id for one in made]

    @rule(pick=which, io=st.integers(1, 3), side=sides)
    def fetch_a_few(self, pick: int, io: int, side: int) -> None:
        if not self.owners:
            return
        self._fetch(self._owner(pick), Demand.of(io=io), side)

    @rule(pick=which, side=sides)
    def fetch_all(self, pick: int, side: int) -> None:
        if not self.owners:
            return
        self._fetch(self._owner(pick), FULL_DEMAND, side)
        self._run(self._check_no_free_slots())

    @rule(picks=st.lists(st.tuples(which, ends), min_size=1, max_size=3), side=sides)
    def settle(self, picks: list[tuple[int, Outcome]], side: int) -> None:
        if not self.held:
            return
        chosen = {self._held(pick).id: outcome for pick, outcome in picks}
        self._settle(chosen, side)
        self.fetch_all(0, 1 - side)

    @rule(pick=which, side=sides)
    def a_worker_dies(self, pick: int, side: int) -> None:
        if not self.held:
            return
        owner = self._held(pick).lease.owner
        if any(one.deaths for one in self.held.values() if one.lease.owner == owner):
            return  # workers that died before come back at a random time
        self._run(kill(self.sides[side], owner))
        self._run(self.sides[side].broker.recover())
        self.owners.remove(owner)
        self.held = {job: one for job, one in self.held.items() if one.lease.owner != owner}
        self.a_worker_comes(side)

    @rule(pick=which, side=sides)
    def a_worker_never_received_it(self, pick: int, side: int) -> None:
        if not self.held:
            return
        lost = self._held(pick)
        kept = [
            one.lease
            for one in self.held.values()
            if one.lease.owner == lost.lease.owner and one.id != lost.id
        ]
        self._run(self.sides[side].broker.extend(lost.lease.owner, kept, -FAR))
        del self.held[lost.id]

    @rule(pick=which, side=sides)
    def cancel(self, pick: int, side: int) -> None:
        if not self.published:
            return
        job = self.published[-1 - pick % len(self.published)]
        self._run(self.sides[side].control.cancel([job], "not wanted"))

    @rule(queue=st.sampled_from(QUEUES), moves=st.booleans(), side=sides)
    def clear_a_queue(self, queue: str, moves: bool, side: int) -> None:
        broker = self.sides[side].broker
        if moves and broker.capabilities.move:
            self._run(broker.move(queue, QUEUES[QUEUES[0] == queue]))
        elif not moves:
            self._run(broker.purge(queue))

    @rule(
        pool=st.sampled_from(POOLS),
        member=st.sampled_from(MEMBERS),
        what=st.sampled_from(("enrol", "dismiss", "drained", "ready", "suspect")),
        side=sides,
    )
    def change_a_pool(self, pool: str, member: str, what: str, side: int) -> None:
        gates = self.sides[side].gates
        if what == "enrol":
            self._run(gates.add_members(pool, {member: {}}))
        elif what == "dismiss":
            self._run(gates.remove_members(pool, [member]))
        elif what == "suspect":
            self._run(gates.quarantine(pool, member, FAR))
        else:
            self._run(
                gates.set_condition(pool, [member], "ready" if what == "ready" else "drained")
            )

    @rule(what=pauses, side=sides)
    def pause_or_resume(self, what: tuple[Scope, str], side: int) -> None:
        pauses = self.sides[side].pauses
        if self.paused is not None:
            self._run(pauses.resume(*self.paused))
            self.paused = None
        else:
            self._run(pauses.pause(*what, ""))
            self.paused = what

    # --- invariants --------------------------------------------------------------------

    def _fetch(self, owner: str, demand: Demand, side: int) -> None:
        found = self._run(self.sides[side].broker.fetch(QUEUES, demand, owner, 0))
        for one in found:
            assert one.id not in self.held, "a job in two hands"
            self.held[one.id] = one
            for slot in one.slots:
                if slot.member:
                    known = self.fences.get((slot.gate, slot.member), 0)
                    assert slot.fence > known, "a member's fence did not grow"
                    self.fences[slot.gate, slot.member] = slot.fence
        used = Counter(slot.gate for one in self.held.values() for slot in one.slots)
        for one in found:
            for slot in one.slots:
                name = slot.gate.partition("#")[0]
                if name in self.capacity:
                    assert used[slot.gate] <= self.capacity[name], f"too many passed {slot.gate}"
        members = [(s.gate, s.member) for one in self.held.values() for s in one.slots if s.member]
        assert len({*members}) == len(members), "a member in two hands"

    async def _check_no_free_slots(self) -> None:
        """To be called after a fetch with enough capacity for all jobs."""
        if self.paused is not None:
            return
        gates = {gate.key: gate for gate in await self.sides[0].gates.gates()}
        for name in self.capacity:
            own = [gate for key, gate in gates.items() if key.partition("#")[0] == name]
            if not any(gate.held for gate in own):
                self.capacity[name] = max((gate.capacity or 0 for gate in own), default=0)
        for gate in gates.values():
            if gate.kind == "pool":
                members = await self.sides[0].gates.members(gate.key.removeprefix("pool:"))
                free = sum(m.condition == "ready" and m.job is None for m in members)
            else:
                free = max((gate.capacity or 0) - gate.held, 0)
            assert not (gate.waiting and free), (
                f"a job waits at {gate}, although {free} slots are free"
            )

    async def _wind_up(self) -> None:
        first, other = self.sides
        if self.paused is not None:
            await first.pauses.resume(*self.paused)
        for queue in QUEUES:
            await other.broker.purge(queue)
        ends = [settlement(one, Succeeded(RESULT)) for one in self.held.values()]
        refused = await first.broker.settle(ends)
        assert refused == [], "a lease that is held was refused"
        owner = await register(first)
        assert await other.broker.fetch(QUEUES, FULL_DEMAND, owner, 0) == []
        assert [gate for gate in await first.gates.gates() if gate.held or gate.waiting] == []
        assert [member for member in await other.gates.members() if member.job] == []

    def _settle(self, chosen: dict[str, Outcome], side: int) -> None:
        made = [settlement(self.held.pop(job), outcome) for job, outcome in chosen.items()]
        assert self._run(self.sides[side].broker.settle(made)) == []

    def _owner(self, pick: int) -> str:
        return self.owners[-1 - pick % len(self.owners)]

    def _held(self, pick: int) -> Delivery:
        return [*self.held.values()][pick % len(self.held)]


class GateMachineSuite:
    """The machine over an adapter. Inherit it beside a ``backend`` fixture."""

    gate_examples = 40
    gate_steps = 40

    def test_no_gate_admits_too_many_and_no_job_waits_for_a_free_slot(
        self, backend: OpenAdapters
    ) -> None:
        run_machine(GateMachine, backend, examples=self.gate_examples, steps=self.gate_steps)
