"""Standby: a publish hands a job directly to a waiting worker, and no job is lost."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import AsyncExitStack, suppress
from typing import Any, cast

import psutil
import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    precondition,
    rule,
    run_state_machine_as_test,
)
from redis_adapters import Scenario, make_due, open_redis, run_on_redis

from umbel.backends import Demand
from umbel.backends.redis.job_store import RedisJobStore
from umbel.backends.redis.scripts import root_of
from umbel.control import Scope
from umbel.errors import LeaseLost
from umbel.messages import Delivery, Envelope, State, Succeeded
from umbel.testing import Adapters
from umbel.testing.actions import (
    LONG_WAIT,
    RESULT,
    claim,
    claim_one,
    envelope,
    ids,
    kill,
    register,
    settle,
)

LEASE = 10.0


def run(redis_namespace: str, scenario: Scenario) -> None:
    """Run a test without polling: a worker that is not notified waits until the timeout."""
    run_on_redis(redis_namespace, scenario, safety_poll=LONG_WAIT, timeout=30.0)


def publish_blocking(b: Adapters, **changes: Any) -> Envelope:
    """Publish without yielding to the event loop: a waiting fetch has received nothing yet."""
    made = envelope(b, **changes)
    cast(RedisJobStore, b.broker).publish_blocking([made], 10.0)
    return made


class Waiter:
    """A fetch that waits."""

    def __init__(self, b: Adapters, owner: str, redis_client: Any) -> None:
        self.owner = owner
        self._key = f"{root_of(b.namespace)}:standby"
        self._client = redis_client
        self.task = asyncio.create_task(claim(b, owner, wait=LONG_WAIT))

    async def give_up(self) -> None:
        """Cancel it before it has received anything."""
        self.task.cancel()
        await asyncio.wait([self.task])

    async def stands_by(self) -> Waiter:
        """Wait until it can be handed a job."""
        async with asyncio.timeout(20):
            while not (self._client.hget(self._key, self.owner) or b"x").endswith(b"\n"):
                assert not self.task.done()
                await asyncio.sleep(0.002)
        return self


def state(redis_client: Any, b: Adapters, job: Envelope) -> str:
    found = redis_client.hget(f"{root_of(b.namespace)}:job:{job.id}", "state")
    return cast(bytes, found).decode()


def test_a_published_job_is_handed_to_a_waiting_worker(
    redis_namespace: str, redis_client: Any
) -> None:
    async def scenario(b: Adapters) -> None:
        owner = await register(b, "anna")
        waiter = await Waiter(b, owner, redis_client).stands_by()
        sent = publish_blocking(
            b, priority=3, expires=b.clock.now() + 60, headers={"colour": "red"}
        )
        found = await b.records.find(sent.id)
        assert (found.state, found.worker) == (State.RUNNING, "anna")
        (got,) = await waiter.task
        assert (got.lease.job, got.lease.owner, got.lease.fence) == (sent.id, owner, 1)
        assert got.envelope == sent
        assert await settle(b, got, Succeeded(RESULT)) == []
        assert await claim(b, owner) == []

    run(redis_namespace, scenario)


def test_a_worker_is_handed_one_job_until_it_waits_again(
    redis_namespace: str, redis_client: Any
) -> None:
    async def scenario(b: Adapters) -> None:
        waiter = await Waiter(b, await register(b), redis_client).stands_by()
        first, second = publish_blocking(b), publish_blocking(b)
        assert (state(redis_client, b, first), state(redis_client, b, second)) == (
            "running",
            "queued",
        )
        assert ids(await waiter.task) == [first.id]
        again = Waiter(b, waiter.owner, redis_client)
        assert ids(await again.task) == [second.id]

    run(redis_namespace, scenario)


def test_each_job_is_handed_to_one_of_several_workers(
    redis_namespace: str, redis_client: Any
) -> None:
    async def scenario(b: Adapters) -> None:
        waiters = [await Waiter(b, await register(b), redis_client).stands_by() for _ in range(3)]
        jobs = [publish_blocking(b) for _ in range(3)]
        assert {state(redis_client, b, job) for job in jobs} == {"running"}
        hands = await asyncio.gather(*(waiter.task for waiter in waiters))
        assert sorted(ids([one for hand in hands for one in hand])) == sorted(ids(jobs))
        assert [len(hand) for hand in hands] == [1, 1, 1]

    run(redis_namespace, scenario)


@pytest.mark.parametrize(
    ("scope", "name"), [("all", ""), ("queue", "default"), ("task", "tests.add")]
)
def test_a_paused_job_is_not_handed_over(
    scope: Scope, name: str, redis_namespace: str, redis_client: Any
) -> None:
    async def scenario(b: Adapters) -> None:
        waiter = await Waiter(b, await register(b), redis_client).stands_by()
        async with b.another() as operator:
            await operator.pauses.pause(scope, name, "")
            sent = publish_blocking(b)
            assert state(redis_client, b, sent) == "queued"
            await operator.pauses.resume(scope, name)
        assert ids(await waiter.task) == [sent.id]

    run(redis_namespace, scenario)


def test_a_job_is_not_handed_over_before_the_jobs_in_the_queue(
    redis_namespace: str, redis_client: Any
) -> None:
    async def scenario(b: Adapters) -> None:
        waiter = await Waiter(b, await register(b), redis_client).stands_by()
        job_store = cast(RedisJobStore, b.broker)
        several = [envelope(b), envelope(b)]
        job_store.publish_blocking(several, 10.0)
        last = publish_blocking(b)
        assert state(redis_client, b, last) == "queued"
        assert ids(await waiter.task) == ids([*several, last])

    run(redis_namespace, scenario)


def test_a_worker_with_capacity_for_one_kind_is_notified_instead(
    redis_namespace: str, redis_client: Any
) -> None:
    async def scenario(b: Adapters) -> None:
        owner = await register(b)
        waiting = asyncio.create_task(claim(b, owner, Demand.of(io=1), wait=LONG_WAIT))
        key = f"{root_of(b.namespace)}:standby:default"
        async with asyncio.timeout(20):
            while not redis_client.exists(key):
                await asyncio.sleep(0.002)
        other = publish_blocking(b, kind="cpu")
        mine = publish_blocking(b)
        assert (state(redis_client, b, other), state(redis_client, b, mine)) == ("queued", "queued")
        assert ids(await waiting) == [mine.id]

    run(redis_namespace, scenario)


def test_no_wake_up_is_sent_if_no_worker_waits(redis_namespace: str, redis_client: Any) -> None:
    async def scenario(b: Adapters) -> None:
        with redis_client.pubsub() as ear:
            ear.subscribe(f"{root_of(redis_namespace)}:wake_ups")
            assert ear.get_message(timeout=5)["type"] == "subscribe"
            publish_blocking(b)
            await claim_one(b, await register(b))
            assert ear.get_message(timeout=0.2) is None
            waiter = await Waiter(b, await register(b), redis_client).stands_by()
            cast(RedisJobStore, b.broker).publish_blocking([envelope(b), envelope(b)], 10.0)
            assert len(await waiter.task) == 2
            assert (
                ear.get_message(timeout=5)["data"]
                == f"r:{root_of(redis_namespace)}:default".encode()
            )

    run(redis_namespace, scenario)


def test_a_dead_worker_is_handed_nothing(redis_namespace: str, redis_client: Any) -> None:
    async def scenario(b: Adapters) -> None:
        waiter = await Waiter(b, await register(b), redis_client).stands_by()
        async with b.another() as watcher:
            await kill(watcher, waiter.owner)
            sent = publish_blocking(b)
            assert state(redis_client, b, sent) == "queued"
            assert ids(await claim(watcher, await register(watcher))) == [sent.id]
        with pytest.raises(LeaseLost):
            await waiter.task

    run(redis_namespace, scenario)


def address_of_listener(redis_client: Any) -> str:
    """Return the address of this process's connection that listens for notifications."""
    own = {f"{one.laddr.ip}:{one.laddr.port}" for one in psutil.Process().net_connections()}
    clients = redis_client.client_list()
    (found,) = (
        one["addr"] for one in clients if one["addr"] in own and int(one["sub"]) + int(one["ssub"])
    )
    return str(found)


def test_a_worker_that_cannot_be_reached_is_handed_nothing(
    redis_namespace: str, redis_client: Any
) -> None:
    async def scenario(b: Adapters) -> None:
        waiter = await Waiter(b, await register(b), redis_client).stands_by()
        redis_client.client_kill_filter(addr=address_of_listener(redis_client))
        sent = publish_blocking(b)
        assert state(redis_client, b, sent) == "queued"
        assert ids(await waiter.task) == [sent.id], "it has reconnected, and fetched"

    run(redis_namespace, scenario)


def test_a_job_handed_to_a_cancelled_fetch_is_returned_by_the_next(
    redis_namespace: str, redis_client: Any
) -> None:
    async def scenario(b: Adapters) -> None:
        waiter = await Waiter(b, await register(b), redis_client).stands_by()
        sent = publish_blocking(b)
        await waiter.give_up()
        assert await claim(b, await register(b)) == [], "it is held"
        got = await claim_one(b, waiter.owner)
        assert (got.id, got.lease.fence) == (sent.id, 1)
        assert await claim(b, waiter.owner) == [], "and given once"

    run(redis_namespace, scenario)


def test_a_handed_job_that_was_not_received_and_is_paused_goes_back(
    redis_namespace: str, redis_client: Any
) -> None:
    async def scenario(b: Adapters) -> None:
        waiter = await Waiter(b, await register(b), redis_client).stands_by()
        sent = publish_blocking(b)
        await waiter.give_up()
        await b.pauses.pause("queue", "default", "")
        again = Waiter(b, waiter.owner, redis_client)
        await again.stands_by()
        assert state(redis_client, b, sent) == "queued"
        b.broker.stop_waiting()
        assert await again.task == []
        await b.pauses.resume("queue", "default")
        got = await claim_one(b, waiter.owner)
        assert (got.lease.fence, got.attempt) == (2, 1)

    run(redis_namespace, scenario)


def test_a_job_handed_over_while_a_fetch_is_stopped_is_returned(
    redis_namespace: str, redis_client: Any
) -> None:
    async def scenario(b: Adapters) -> None:
        waiter = await Waiter(b, await register(b), redis_client).stands_by()
        sent = publish_blocking(b)
        b.broker.stop_waiting()
        assert ids(await waiter.task) == [sent.id]

    run(redis_namespace, scenario)


def test_a_stopped_fetch_ends_its_standby(redis_namespace: str, redis_client: Any) -> None:
    async def scenario(b: Adapters) -> None:
        waiter = await Waiter(b, await register(b), redis_client).stands_by()
        b.broker.stop_waiting()
        assert await waiter.task == []
        assert state(redis_client, b, publish_blocking(b)) == "queued"

    run(redis_namespace, scenario)


def test_a_handed_job_that_was_never_received_goes_back_after_a_lease(
    redis_namespace: str, redis_client: Any
) -> None:
    async def scenario(b: Adapters) -> None:
        waiter = await Waiter(b, await register(b), redis_client).stands_by()
        async with b.another() as publisher:
            sent = publish_blocking(publisher)
        await waiter.give_up()
        assert await b.broker.extend(waiter.owner, [], LEASE) == []
        assert state(redis_client, b, sent) == "running"
        redis_client.hincrbyfloat(
            f"{root_of(redis_namespace)}:job:{sent.id}", "claimed", -LEASE - 1
        )
        assert await b.broker.extend(waiter.owner, [], LEASE) == []
        assert state(redis_client, b, sent) == "queued"
        got = await claim_one(b, await register(b))
        assert (got.lease.fence, got.attempt, got.deaths) == (2, 1, 0)
        assert await claim(b, waiter.owner) == [], "it was given to another worker"

    run(redis_namespace, scenario)


def test_another_process_does_not_get_a_handed_job(redis_namespace: str, redis_client: Any) -> None:
    """A router may replace another one, which may have passed the job to the worker."""

    async def scenario(b: Adapters) -> None:
        waiter = await Waiter(b, await register(b), redis_client).stands_by()
        sent = publish_blocking(b)
        (got,) = await waiter.task
        async with b.another() as other:
            assert await claim(other, waiter.owner) == []
        assert got.id == sent.id

    run(redis_namespace, scenario)


def test_a_waiting_relay_is_notified_beside_a_worker_on_standby(
    redis_namespace: str, redis_client: Any
) -> None:
    async def scenario(b: Adapters) -> None:
        job_store = cast(RedisJobStore, b.broker)
        waiter = await Waiter(b, await register(b), redis_client).stands_by()
        relay = asyncio.create_task(job_store.find_unsent(["default"], 10, LONG_WAIT))
        key = f"{root_of(b.namespace)}:standby:default"
        async with asyncio.timeout(20):
            while redis_client.zcard(key) < 2:
                await asyncio.sleep(0.002)
        handed = publish_blocking(b)  # the relay came last, but has no ticket
        assert ids(await waiter.task) == [handed.id]
        async with asyncio.timeout(20):
            while redis_client.zcard(key) < 1:
                await asyncio.sleep(0.002)
        queued = publish_blocking(b)
        assert ids(await relay) == [queued.id]

    run(redis_namespace, scenario)


def test_a_job_that_a_transport_carries_is_not_handed_over(
    redis_namespace: str, redis_client: Any
) -> None:
    async def scenario(b: Adapters) -> None:
        waiter = await Waiter(b, await register(b), redis_client).stands_by()
        sent = envelope(b)
        await cast(RedisJobStore, b.broker).record_sent([sent])
        assert state(redis_client, b, sent) == "sent"
        b.broker.stop_waiting()
        assert await waiter.task == []

    run(redis_namespace, scenario)


# --- any order of events ----------------------------------------------------------------------

some = st.integers(0, 5)


class StandbyMachine(RuleBasedStateMachine):
    """Workers that wait, give up, are stopped and die, while others publish.

    No lease is given twice, and in the end every job has been given.
    """

    def __init__(self, redis_client: Any, name: Callable[[], str]) -> None:
        super().__init__()
        self._client = redis_client
        self._runner = asyncio.Runner()
        self._open = AsyncExitStack()
        self.b: Adapters = self._run(self._enter(name()))
        self.owners: list[str] = []
        self.waiters: list[Waiter] = []
        self.published: list[str] = []
        self.given: Counter[tuple[str, int]] = Counter()
        self.held: dict[str, list[Delivery]] = {}

    async def _enter(self, name: str) -> Adapters:
        return await self._open.enter_async_context(open_redis(name, safety_poll=LONG_WAIT))

    def _run(self, work: Any) -> Any:
        async def bounded() -> Any:
            async with asyncio.timeout(60):
                return await work

        return self._runner.run(bounded())

    def _got(self, owner: str, found: Sequence[Delivery]) -> None:
        for one in found:
            self.given[one.lease.job, one.lease.fence] += 1
            assert self.given[one.lease.job, one.lease.fence] == 1, "the same lease twice"
            if owner in self.owners:  # else it is recovered
                self.held.setdefault(owner, []).append(one)

    def _collect(self) -> None:
        for waiter in [one for one in self.waiters if one.task.done()]:
            self.waiters.remove(waiter)
            if not waiter.task.cancelled():
                with suppress(LeaseLost):
                    self._got(waiter.owner, waiter.task.result())

    @initialize()
    def begin(self) -> None:
        self.register()
        self.wait(0, True)

    @precondition(lambda self: len(self.owners) < 4)
    @rule()
    def register(self) -> None:
        self.owners.append(self._run(register(self.b)))

    @precondition(lambda self: self.owners)
    @rule(pick=some, until=st.booleans())
    def wait(self, pick: int, until: bool) -> None:
        """Let a worker begin to wait; with ``until``, wait until it is on standby."""
        owner = self.owners[pick % len(self.owners)]
        if any(waiter.owner == owner for waiter in self.waiters):
            return

        async def begin() -> None:
            waiter = Waiter(self.b, owner, self._client)
            self.waiters.append(waiter)
            if until and self._queue_is_empty():
                with suppress(AssertionError):  # it found a job at once
                    await waiter.stands_by()

        self._run(begin())
        self._collect()

    def _queue_is_empty(self) -> bool:
        return not self._client.exists(f"{root_of(self.b.namespace)}:lane:io:default")

    @rule(many=st.integers(1, 3), at_once=st.booleans(), is_sent=st.booleans())
    def publish(self, many: int, at_once: bool, is_sent: bool) -> None:
        """Publish jobs one by one or in one batch, or as if a transport had lost the message."""

        async def send() -> None:
            job_store = cast(RedisJobStore, self.b.broker)
            made = [envelope(self.b) for _ in range(many)]
            if is_sent:
                await job_store.record_sent(made[:1])
                await job_store.mark_lanes_unsent([("default", "io")])  # there is no transport here
                self.published.append(made[0].id)
                return
            for lot in [made] if at_once else [[one] for one in made]:
                job_store.publish_blocking(lot, 10.0)
            self.published += ids(made)

        self._run(send())

    @rule()
    def others_run(self) -> None:
        self._run(asyncio.sleep(0.005))
        self._collect()

    @precondition(lambda self: self.waiters)
    @rule(pick=some)
    def give_up(self, pick: int) -> None:
        waiter = self.waiters[pick % len(self.waiters)]

        self._run(waiter.give_up())
        self._collect()

    @rule()
    def stop_waiting(self) -> None:
        async def stop_waiting() -> None:
            self.b.broker.stop_waiting()
            if self.waiters:
                await asyncio.wait([waiter.task for waiter in self.waiters])

        self._run(stop_waiting())
        self._collect()

    @precondition(lambda self: len(self.owners) > 1)
    @rule(pick=some)
    def die(self, pick: int) -> None:
        owner = self.owners.pop(pick % len(self.owners))
        self._run(kill(self.b, owner))
        self.held.pop(owner, None)
        self._run(self.b.broker.recover())

    @rule()
    def settle_all(self) -> None:
        for owner, held in self.held.items():
            for one in held:
                assert self._run(settle(self.b, one, Succeeded(RESULT))) == [], owner
        self.held.clear()

    def teardown(self) -> None:
        try:
            self.stop_waiting()
            self.settle_all()
            for owner in self.owners:  # jobs that were never received go back
                self._run(self.b.broker.extend(owner, [], -1e9))
            self._run(self.b.broker.recover())
            # Jobs that are blamed for a death would be delayed.
            make_due(self._client, self.b.namespace)
            last = self._run(register(self.b))
            while found := self._run(claim(self.b, last)):
                self._got(last, found)
            assert {job for job, _ in self.given} == {*self.published}
        finally:
            self._run(self._open.aclose())
            self._runner.close()
            for key in self._client.scan_iter(match=f"{root_of(self.b.namespace)}*", count=1000):
                self._client.delete(key)


def test_no_job_is_given_twice_or_lost(redis_client: Any, redis_namespace: str) -> None:
    number = iter(range(10_000))
    run_state_machine_as_test(
        lambda: StandbyMachine(redis_client, lambda: f"{redis_namespace}-{next(number)}"),
        settings=settings(
            max_examples=60,
            stateful_step_count=25,
            deadline=None,
            suppress_health_check=list(HealthCheck),
        ),
    )
