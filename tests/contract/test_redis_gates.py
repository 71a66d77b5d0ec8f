"""Gates on Redis: many at once, long lines and many of them, and what is left behind."""

from __future__ import annotations

import asyncio
import os
import time
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import AsyncExitStack, asynccontextmanager
from itertools import cycle
from typing import Any

import pytest

redis = pytest.importorskip("redis")

from redis.crc import key_slot  # noqa: E402

from umbel.backends import Demand  # noqa: E402
from umbel.backends.redis.address import Home  # noqa: E402
from umbel.backends.redis.control import RedisControl  # noqa: E402
from umbel.backends.redis.database import Database  # noqa: E402
from umbel.backends.redis.deployments import RedisDeployments  # noqa: E402
from umbel.backends.redis.gates import RedisGates  # noqa: E402
from umbel.backends.redis.job_store import RedisJobStore  # noqa: E402
from umbel.backends.redis.records import RedisRecords  # noqa: E402
from umbel.backends.redis.registry import RedisRegistry  # noqa: E402
from umbel.backends.redis.routes import RedisRoutes  # noqa: E402
from umbel.backends.redis.scripts import root_of  # noqa: E402
from umbel.backends.redis.steps import RedisSteps  # noqa: E402
from umbel.clock import SystemClock  # noqa: E402
from umbel.messages import Delivery, Outcome, Parked, Rule, Succeeded, fresh_id  # noqa: E402
from umbel.testing import Backend, wrong_clocks  # noqa: E402
from umbel.testing.acts import (  # noqa: E402
    FAR,
    PATIENCE,
    RESULT,
    depths,
    enlist,
    envelope,
    ids,
    publish,
    publish_many,
    settle,
    settlement,
    take,
    take_one,
)

Scenario = Callable[[Backend], Awaitable[None]]

_CLOCKS = wrong_clocks(__name__)
URL = os.environ.get("UMBEL_TEST_REDIS", "redis://127.0.0.1:6379/0")
NEVER = 3600.0
"""A safety poll so slow that only a push can explain an answer."""
ALL = "limit:tests.add"
SECONDS = 2.0
"""How long everybody goes at full speed."""


@pytest.fixture
def client() -> Iterator[Any]:
    with redis.Redis.from_url(URL, socket_connect_timeout=2) as client:
        try:
            client.ping()
        except redis.RedisError:
            pytest.skip(f"not run: no Redis at {URL}")
        yield client


@pytest.fixture
def namespace(client: Any) -> Iterator[str]:
    """A namespace of the test's own, gone afterwards."""
    name = f"test-gates-{fresh_id()}"
    yield name
    for key in client.scan_iter(match=f"{root_of(name)}*", count=1000):
        client.delete(key)


@asynccontextmanager
async def opened(namespace: str) -> AsyncIterator[Backend]:
    database = Database(Home(URL))
    how = {"namespace": namespace, "clock": next(_CLOCKS)}
    try:
        yield Backend(
            broker=RedisJobStore(database, **how, safety_poll=NEVER),
            records=RedisRecords(database, **how),
            registry=RedisRegistry(database, **how),
            control=RedisControl(database, **how),
            gates=RedisGates(database, **how),
            steps=RedisSteps(database, **how),
            deployments=RedisDeployments(database, **how),
            routes=RedisRoutes(database, **how),
            clock=SystemClock(),
            namespace=namespace,
            another=lambda other=None: opened(other or namespace),
        )
    finally:
        await database.close()


def tell(namespace: str, scenario: Scenario) -> None:
    async def told() -> None:
        async with asyncio.timeout(60), opened(namespace) as backend:
            await scenario(backend)

    asyncio.run(told())


async def limit(b: Backend, capacity: int, name: str = ALL) -> None:
    await b.gates.declare([Rule(name=name, capacity=capacity)])


async def pool(b: Backend, *names: str) -> None:
    await b.gates.declare([Rule(name="pool:p", kind="pool")])
    await b.gates.enrol("p", {name: {} for name in names})


# --- many at once ----------------------------------------------------------------------------


class Inside:
    """Who is behind the gates at this moment, as the workers themselves see it."""

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
        """The gates, and the members that came with them."""
        slots = [slot for one in held for slot in one.slots]
        return [(s.gate, "") for s in slots] + [(s.gate, s.member) for s in slots if s.member]


def _gated(one: Delivery, end: Outcome) -> Outcome:
    """What is parked waits at the same gates again."""
    return Parked(one.envelope.gates) if isinstance(end, Parked) else end


def test_at_full_speed_no_gate_ever_admits_too_many_and_in_the_end_none_is_held(
    namespace: str,
) -> None:
    inside, kinds = Inside(), (("limit:three",), ("pool:p",), ("limit:three", "pool:p"), ())
    sent: list[str] = []

    async def work(b: Backend, until: float) -> None:
        owner, quiet = await enlist(b), 0
        while quiet < 3:
            over = time.monotonic() > until
            held = await take(b, owner, Demand(io=4), wait=0.05 if over else 0.5)
            quiet = quiet + 1 if over and not held else 0
            inside.enter(held)
            await asyncio.sleep(0)
            inside.leave(held)
            ends = [Succeeded(RESULT)] if over else [Succeeded(RESULT), Parked(())]
            outcomes = zip(held, cycle(ends), strict=False)
            await b.broker.settle([settlement(one, _gated(one, end)) for one, end in outcomes])

    async def send(b: Backend, until: float) -> None:
        while time.monotonic() < until:
            made = [envelope(b, gates=kinds[at % len(kinds)]) for at in range(20)]
            await b.broker.publish(made)
            sent.extend(one.id for one in made)
            await asyncio.sleep(0.01)

    async def scenario(b: Backend) -> None:
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

    tell(namespace, scenario)


# --- what is lost, and what is left ------------------------------------------------------------


def test_the_slot_of_a_job_that_somebody_deleted_by_hand_is_free_again(
    namespace: str, client: Any
) -> None:
    async def scenario(b: Backend) -> None:
        await limit(b, 1)
        await pool(b, "one")
        sent, owner = await publish_many(b, 2, gates=(ALL, "pool:p")), await enlist(b)
        held = await take_one(b, owner)
        client.delete(f"{root_of(namespace)}:job:{held.id}")
        assert await take(b, owner) == []
        await b.broker.recover()
        assert ids(await take(b, owner)) == [sent[1].id]

    tell(namespace, scenario)


def test_nothing_is_left_of_gates_but_rules_and_members(namespace: str, client: Any) -> None:
    async def scenario(b: Backend) -> None:
        await limit(b, 1, "limit:t/user")
        await pool(b, "one")
        owner = await enlist(b)
        for user in ("ann", "bob{x}"):
            made = await publish_many(b, 3, gates=(f"limit:t/user#{user}", "pool:p"))
            await b.control.cancel([made[-1].id], "")
        while held := await take(b, owner):
            await b.broker.settle([settlement(one, Succeeded(RESULT), keep=False) for one in held])
        await publish(b, gates=("limit:t/user#eve",), queue="other")
        await b.broker.purge("other")
        await b.registry.leave(owner)
        await b.broker.depths()

    tell(namespace, scenario)
    keys = list(client.scan_iter(match=f"{root_of(namespace)}*", count=1000))
    kinds = {key.decode().removeprefix(root_of(namespace)).split(":")[1] for key in keys}
    known = {"rules", "pools", "members", "member", "free", "turn", "sequence", "job", "done"}
    known |= {"seats", "seat"}
    assert kinds <= known, kinds - known
    assert {key_slot(key) for key in keys} == {key_slot(root_of(namespace).encode())}


# --- many lines, and long ones -----------------------------------------------------------------


def test_a_raised_limit_wakes_the_lines_of_all_its_tokens(namespace: str) -> None:
    async def scenario(b: Backend) -> None:
        await limit(b, 0, "limit:by")
        made = [envelope(b, gates=(f"limit:by#{at:05}",)) for at in range(2500)]
        await b.broker.publish(made)
        owner = await enlist(b)
        assert await take(b, owner) == []
        assert not await b.broker.waiting(["default"], ["io"])
        await limit(b, 1, "limit:by")
        seen: list[str] = []
        while found := await take(b, owner, Demand(io=500)):
            seen += ids(found)
        assert sorted(seen) == sorted(ids(made))
        assert len(await b.gates.gates("limit:by", 5000)) == 2501
        assert len(await b.gates.gates(limit=10)) == 10

    tell(namespace, scenario)


def test_a_long_line_of_a_paused_task_keeps_nobody_and_comes_back_in_its_order(
    namespace: str,
) -> None:
    async def scenario(b: Backend) -> None:
        await limit(b, 5000)
        paused = await publish_many(b, 2500, subject="tests.paused", gates=(ALL,))
        other, owner = await publish(b, gates=(ALL,)), await enlist(b)
        await b.control.pause("task", "tests.paused", "")
        assert ids(await take(b, owner)) == [other.id]
        assert await depths(b) == {("default", "waiting"): 2500, ("default", "running"): 1}
        assert not await b.broker.waiting(["default"], ["io"])
        (gate,) = await b.gates.gates(ALL)
        assert (gate.held, gate.waiting) == (1, 2500)
        await b.control.cancel([paused[0].id], "x")
        assert await b.broker.move("default", "other") == 2499
        assert await b.broker.move("other", "default") == 2499
        assert await take(b, owner) == []
        (gate,) = await b.gates.gates(ALL)
        assert (gate.held, gate.waiting) == (1, 2499)
        await b.control.resume("task", "tests.paused")
        assert await b.broker.waiting(["default"], ["io"])
        got: list[str] = []
        while found := await take(b, owner, Demand(io=500)):
            got += ids(found)
        assert got == ids(paused[1:])

    tell(namespace, scenario)


def test_who_is_not_wanted_here_keeps_the_line_open_for_who_comes_behind(namespace: str) -> None:
    async def scenario(b: Backend) -> None:
        await limit(b, 2)
        unwanted = await publish(b, subject="tests.unwanted", gates=(ALL,))
        owner, demand = await enlist(b), Demand(io=9, without=("tests.unwanted",))
        assert await take(b, owner, demand) == []
        async with b.another() as other:
            waiting = asyncio.create_task(take(other, owner, demand, wait=PATIENCE))
            await asyncio.sleep(0.05)
            wanted = await publish(b, gates=(ALL,))
            assert ids(await waiting) == [wanted.id]
        assert ids(await take(b, owner)) == [unwanted.id]

    tell(namespace, scenario)


def test_many_lines_that_nobody_here_wants_do_not_keep_a_fetch_busy(namespace: str) -> None:
    async def scenario(b: Backend) -> None:
        await limit(b, 1, "limit:by")
        made = [
            envelope(b, subject="tests.unwanted", gates=(f"limit:by#{at}",)) for at in range(1500)
        ]
        await b.broker.publish(made)
        owner, demand = await enlist(b), Demand(io=2000, without=("tests.unwanted",))
        assert await take(b, owner, demand) == []
        wanted = await publish(b)
        assert ids(await take(b, owner, demand)) == [wanted.id]
        found: list[str] = []
        while got := await take(b, owner, Demand(io=2000)):
            found += ids(got)
        assert sorted(found) == sorted(ids(made))

    tell(namespace, scenario)


def test_what_is_paused_in_the_queue_takes_no_room_from_who_waits(namespace: str) -> None:
    async def scenario(b: Backend) -> None:
        await limit(b, 1)
        await publish(b, subject="tests.paused")
        sent, owner = await publish(b, gates=(ALL,)), await enlist(b)
        await b.control.pause("task", "tests.paused", "")
        assert ids(await take(b, owner, Demand(io=1))) == [sent.id]

    tell(namespace, scenario)


def test_a_waiting_job_is_sorted_and_found(namespace: str) -> None:
    async def scenario(b: Backend) -> None:
        await limit(b, 1)
        sent, owner = await publish(b, kind="", gates=(ALL,)), await enlist(b)
        assert await take(b, owner, Demand(io=1)) == []
        assert await b.broker.sort(["default"], {sent.subject: "io"}) == 1
        (held,) = await take(b, owner, Demand(io=1))
        assert (held.id, held.envelope.kind) == (sent.id, "io")
        assert (held.envelope.gates, len(held.slots)) == ((ALL,), 1)

    tell(namespace, scenario)


def test_a_ledger_grants_what_it_gives_out_to_be_sent(namespace: str) -> None:
    async def scenario(b: Backend) -> None:
        await limit(b, 1)
        made = [envelope(b, gates=(ALL,)) for _ in range(2)]
        await b.broker.note(made)
        assert await depths(b) == {("default", "waiting"): 2}
        assert ids(await b.broker.unsent(["default"], 10, 0)) == [made[0].id]
        await b.broker.sent([made[0].id])
        assert await b.broker.unsent(["default"], 10, 0) == []
        found = await b.broker.take({made[0].id: "default"}, await enlist(b))
        (held,) = found.deliveries
        assert [slot.gate for slot in held.slots] == [ALL]
        async with b.another() as other:
            waiting = asyncio.create_task(other.broker.unsent(["default"], 10, PATIENCE))
            await asyncio.sleep(0.05)
            await settle(b, held, Succeeded(RESULT))
            assert ids(await waiting) == [made[1].id]

    tell(namespace, scenario)


def test_a_rule_that_cannot_be_read_lets_nobody_pass_and_stops_nobody_else(
    namespace: str, client: Any
) -> None:
    async def scenario(b: Backend) -> None:
        rules = f"{root_of(namespace)}:rules"
        for at, text in enumerate(("{", "7", "null", '{"kind":"rate","rates":[[0,"x"]]}', "[]")):
            client.hset(rules, f"limit:{at}", text)
            await publish(b, gates=(f"limit:{at}",))
        free = await publish(b)
        assert ids(await take(b, await enlist(b))) == [free.id]
        assert len(await b.gates.gates()) == 5

    tell(namespace, scenario)


def test_a_pace_that_is_long_past_is_not_kept(namespace: str, client: Any) -> None:
    async def scenario(b: Backend) -> None:
        await b.gates.declare([Rule(name="rate:t", kind="rate", rates=((10, 1.0),))])
        await publish(b, gates=("rate:t#ann",))
        assert len(await take(b, await enlist(b))) == 1
        assert 0 < client.ttl(f"{root_of(namespace)}:pace:rate:t#ann") < FAR + 3700

    tell(namespace, scenario)
