"""Gates on Redis: many jobs at once, many long waiting lists, and which keys remain."""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from contextlib import AsyncExitStack
from itertools import cycle
from typing import Any

import pytest

pytest.importorskip("redis")

from redis.crc import key_slot
from redis_adapters import run_on_redis

from umbel.backends import Demand
from umbel.backends.redis.scripts import root_of
from umbel.messages import Delivery, Outcome, Parked, Rule, Succeeded
from umbel.testing import Adapters
from umbel.testing.actions import (
    FAR,
    LONG_WAIT,
    RESULT,
    claim,
    claim_one,
    depths,
    envelope,
    ids,
    publish,
    publish_many,
    register,
    settle,
    settlement,
)

ALL = "limit:tests.add"
SECONDS = 2.0
"""Seconds for which all workers run at full speed."""


async def limit(b: Adapters, capacity: int, name: str = ALL) -> None:
    await b.gates.declare([Rule(name=name, capacity=capacity)])


async def pool(b: Adapters, *names: str) -> None:
    await b.gates.declare([Rule(name="pool:p", kind="pool")])
    await b.gates.add_members("p", {name: {} for name in names})


# --- many at once ----------------------------------------------------------------------------


class Inside:
    """The jobs that hold gates now, as the workers see it."""

    def __init__(self) -> None:
        self._using = Counter[tuple[str, str]]()
        self.most = Counter[tuple[str, str]]()
        self.passed = 0

    def enter(self, held: list[Delivery]) -> None:
        self.passed += len(held)
        for what in self._what(held):
            self._using[what] += 1
            self.most[what] = max(self.most[what], self._using[what])

    def leave(self, held: list[Delivery]) -> None:
        self._using.subtract(self._what(held))

    @staticmethod
    def _what(held: list[Delivery]) -> list[tuple[str, str]]:
        """Return the gates, and the members that were granted with them."""
        slots = [slot for one in held for slot in one.slots]
        return [(s.gate, "") for s in slots] + [(s.gate, s.member) for s in slots if s.member]


def _gated(one: Delivery, end: Outcome) -> Outcome:
    """Return the outcome. A parked job waits at its own gates again."""
    return Parked(one.envelope.gates) if isinstance(end, Parked) else end


def test_at_full_speed_no_gate_ever_admits_too_many_and_in_the_end_none_is_held(
    redis_namespace: str,
) -> None:
    inside, kinds = Inside(), (("limit:three",), ("pool:p",), ("limit:three", "pool:p"), ())
    sent: list[str] = []

    async def work(b: Adapters, until: float) -> None:
        owner, quiet = await register(b), 0
        while quiet < 3:
            over = time.monotonic() > until
            held = await claim(b, owner, Demand.of(io=4), wait=0.05 if over else 0.5)
            quiet = quiet + 1 if over and not held else 0
            inside.enter(held)
            await asyncio.sleep(0)
            inside.leave(held)
            ends = [Succeeded(RESULT)] if over else [Succeeded(RESULT), Parked(())]
            outcomes = zip(held, cycle(ends), strict=False)
            await b.broker.settle([settlement(one, _gated(one, end)) for one, end in outcomes])

    async def send(b: Adapters, until: float) -> None:
        while time.monotonic() < until:
            made = [envelope(b, gates=kinds[at % len(kinds)]) for at in range(20)]
            await b.broker.publish(made)
            sent.extend(one.id for one in made)
            await asyncio.sleep(0.01)

    async def scenario(b: Adapters) -> None:
        await limit(b, 3, "limit:three")
        await pool(b, "one", "two")
        until = time.monotonic() + SECONDS
        async with AsyncExitStack() as stack:
            sides = [await stack.enter_async_context(b.another()) for _ in range(6)]
            await asyncio.gather(send(b, until), *(work(side, until) for side in sides))
        assert 1 <= inside.most["limit:three", ""] <= 3
        assert 1 <= inside.most["pool:p", ""] <= 2
        assert {inside.most["pool:p", name] for name in ("one", "two")} == {1}
        assert inside.passed > len(sent) > 0
        assert await depths(b) == {}
        assert [(gate.held, gate.waiting) for gate in await b.gates.gates()] == [(0, 0), (0, 0)]
        assert [member.job for member in await b.gates.members("p")] == [None, None]

    run_on_redis(redis_namespace, scenario)


# --- what is lost, and what is left ------------------------------------------------------------


def test_the_slot_of_a_job_that_was_deleted_manually_is_free_again(
    redis_namespace: str, redis_client: Any
) -> None:
    async def scenario(b: Adapters) -> None:
        await limit(b, 1)
        await pool(b, "one")
        sent, owner = await publish_many(b, 2, gates=(ALL, "pool:p")), await register(b)
        held = await claim_one(b, owner)
        redis_client.delete(f"{root_of(redis_namespace)}:job:{held.id}")
        assert await claim(b, owner) == []
        await b.broker.recover()
        assert ids(await claim(b, owner)) == [sent[1].id]

    run_on_redis(redis_namespace, scenario)


def test_nothing_is_left_of_gates_but_rules_and_members(
    redis_namespace: str, redis_client: Any
) -> None:
    async def scenario(b: Adapters) -> None:
        await limit(b, 1, "limit:t/user")
        await pool(b, "one")
        owner = await register(b)
        for user in ("ann", "bob{x}"):
            made = await publish_many(b, 3, gates=(f"limit:t/user#{user}", "pool:p"))
            await b.control.cancel([made[-1].id], "")
        while held := await claim(b, owner):
            await b.broker.settle([settlement(one, Succeeded(RESULT), keep=False) for one in held])
        await publish(b, gates=("limit:t/user#eve",), queue="other")
        await b.broker.purge("other")
        await b.registry.unregister(owner)
        await b.broker.depths()

    run_on_redis(redis_namespace, scenario)
    keys = list(redis_client.scan_iter(match=f"{root_of(redis_namespace)}*", count=1000))
    kinds = {key.decode().removeprefix(root_of(redis_namespace)).split(":")[1] for key in keys}
    known = {"rules", "pools", "members", "member", "free", "turn", "sequence", "job", "done"}
    known |= {"indexes", "index"}
    assert kinds <= known, kinds - known
    assert {key_slot(key) for key in keys} == {key_slot(root_of(redis_namespace).encode())}


# --- many lines, and long ones -----------------------------------------------------------------


def test_a_raised_limit_wakes_the_waiting_jobs_of_all_its_tokens(redis_namespace: str) -> None:
    async def scenario(b: Adapters) -> None:
        await limit(b, 0, "limit:by")
        made = [envelope(b, gates=(f"limit:by#{at:05}",)) for at in range(2500)]
        await b.broker.publish(made)
        owner = await register(b)
        assert await claim(b, owner) == []
        assert not await b.broker.has_waiting_jobs(["default"], ["io"])
        await limit(b, 1, "limit:by")
        seen: list[str] = []
        while found := await claim(b, owner, Demand.of(io=500)):
            seen += ids(found)
        assert sorted(seen) == sorted(ids(made))
        assert len(await b.gates.gates("limit:by", 5000)) == 2501
        assert len(await b.gates.gates(limit=10)) == 10

    run_on_redis(redis_namespace, scenario)


def test_many_waiting_jobs_of_a_paused_task_block_no_other_and_return_in_order(
    redis_namespace: str,
) -> None:
    async def scenario(b: Adapters) -> None:
        await limit(b, 5000)
        paused = await publish_many(b, 2500, subject="tests.paused", gates=(ALL,))
        other, owner = await publish(b, gates=(ALL,)), await register(b)
        await b.pauses.pause("task", "tests.paused", "")
        assert ids(await claim(b, owner)) == [other.id]
        assert await depths(b) == {("default", "waiting"): 2500, ("default", "running"): 1}
        assert not await b.broker.has_waiting_jobs(["default"], ["io"])
        (gate,) = await b.gates.gates(ALL)
        assert (gate.held, gate.waiting) == (1, 2500)
        await b.control.cancel([paused[0].id], "x")
        assert await b.broker.move("default", "other") == 2499
        assert await b.broker.move("other", "default") == 2499
        assert await claim(b, owner) == []
        (gate,) = await b.gates.gates(ALL)
        assert (gate.held, gate.waiting) == (1, 2499)
        await b.pauses.resume("task", "tests.paused")
        assert await b.broker.has_waiting_jobs(["default"], ["io"])
        got: list[str] = []
        while found := await claim(b, owner, Demand.of(io=500)):
            got += ids(found)
        assert got == ids(paused[1:])

    run_on_redis(redis_namespace, scenario)


def test_a_waiting_job_of_a_task_that_the_worker_lacks_does_not_block_those_behind_it(
    redis_namespace: str,
) -> None:
    async def scenario(b: Adapters) -> None:
        await limit(b, 2)
        unwanted = await publish(b, subject="tests.unwanted", gates=(ALL,))
        owner, demand = await register(b), Demand({"io": 9}, ("tests.unwanted",))
        assert await claim(b, owner, demand) == []
        async with b.another() as other:
            waiting = asyncio.create_task(claim(other, owner, demand, wait=LONG_WAIT))
            await asyncio.sleep(0.05)
            wanted = await publish(b, gates=(ALL,))
            assert ids(await waiting) == [wanted.id]
        assert ids(await claim(b, owner)) == [unwanted.id]

    run_on_redis(redis_namespace, scenario)


def test_many_waiting_lists_of_a_task_that_the_worker_lacks_do_not_slow_a_fetch(
    redis_namespace: str,
) -> None:
    async def scenario(b: Adapters) -> None:
        await limit(b, 1, "limit:by")
        made = [
            envelope(b, subject="tests.unwanted", gates=(f"limit:by#{at}",)) for at in range(1500)
        ]
        await b.broker.publish(made)
        owner, demand = await register(b), Demand({"io": 2000}, ("tests.unwanted",))
        assert await claim(b, owner, demand) == []
        wanted = await publish(b)
        assert ids(await claim(b, owner, demand)) == [wanted.id]
        found: list[str] = []
        while got := await claim(b, owner, Demand.of(io=2000)):
            found += ids(got)
        assert sorted(found) == sorted(ids(made))

    run_on_redis(redis_namespace, scenario)


def test_what_is_paused_in_the_queue_takes_no_room_from_who_waits(redis_namespace: str) -> None:
    async def scenario(b: Adapters) -> None:
        await limit(b, 1)
        await publish(b, subject="tests.paused")
        sent, owner = await publish(b, gates=(ALL,)), await register(b)
        await b.pauses.pause("task", "tests.paused", "")
        assert ids(await claim(b, owner, Demand.of(io=1))) == [sent.id]

    run_on_redis(redis_namespace, scenario)


def test_a_waiting_job_is_sorted_and_found(redis_namespace: str) -> None:
    async def scenario(b: Adapters) -> None:
        await limit(b, 1)
        sent, owner = await publish(b, kind="", gates=(ALL,)), await register(b)
        assert await claim(b, owner, Demand.of(io=1)) == []
        assert await b.broker.assign_kinds(["default"], {sent.subject: "io"}) == 1
        (held,) = await claim(b, owner, Demand.of(io=1))
        assert (held.id, held.envelope.kind) == (sent.id, "io")
        assert (held.envelope.gates, len(held.slots)) == ((ALL,), 1)

    run_on_redis(redis_namespace, scenario)


def test_a_ledger_grants_what_it_gives_out_to_be_sent(redis_namespace: str) -> None:
    async def scenario(b: Adapters) -> None:
        await limit(b, 1)
        made = [envelope(b, gates=(ALL,)) for _ in range(2)]
        await b.broker.record_sent(made)
        assert await depths(b) == {("default", "waiting"): 2}
        assert ids(await b.broker.find_unsent(["default"], 10, 0)) == [made[0].id]
        await b.broker.mark_sent([made[0].id])
        assert await b.broker.find_unsent(["default"], 10, 0) == []
        found = await b.broker.claim({made[0].id: "default"}, await register(b))
        (held,) = found.deliveries
        assert [slot.gate for slot in held.slots] == [ALL]
        async with b.another() as other:
            waiting = asyncio.create_task(other.broker.find_unsent(["default"], 10, LONG_WAIT))
            await asyncio.sleep(0.05)
            await settle(b, held, Succeeded(RESULT))
            assert ids(await waiting) == [made[1].id]

    run_on_redis(redis_namespace, scenario)


def test_a_gate_that_cannot_be_read_admits_no_job_and_blocks_no_other_gate(
    redis_namespace: str, redis_client: Any
) -> None:
    async def scenario(b: Adapters) -> None:
        rules = f"{root_of(redis_namespace)}:rules"
        for at, text in enumerate(("{", "7", "null", '{"kind":"rate","rates":[[0,"x"]]}', "[]")):
            redis_client.hset(rules, f"limit:{at}", text)
            await publish(b, gates=(f"limit:{at}",))
        free = await publish(b)
        assert ids(await claim(b, await register(b))) == [free.id]
        assert len(await b.gates.gates()) == 5

    run_on_redis(redis_namespace, scenario)


def test_the_stored_state_of_a_rate_expires(redis_namespace: str, redis_client: Any) -> None:
    async def scenario(b: Adapters) -> None:
        await b.gates.declare([Rule(name="rate:t", kind="rate", rates=((10, 1.0),))])
        await publish(b, gates=("rate:t#ann",))
        assert len(await claim(b, await register(b))) == 1
        assert 0 < redis_client.ttl(f"{root_of(redis_namespace)}:pace:rate:t#ann") < FAR + 3700

    run_on_redis(redis_namespace, scenario)
