"""Who waits stands by: whoever publishes puts the job into its hands, and nothing is lost then."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import AsyncExitStack, suppress
from typing import Any, cast

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
from test_redis_data import Scenario, fall_due, opened
from test_redis_data import client as client  # fixtures
from test_redis_data import namespace as namespace
from test_redis_data import tell as tell_patiently

from umbel.backends import Demand
from umbel.backends.control import Scope
from umbel.backends.redis.job_store import RedisJobStore
from umbel.backends.redis.scripts import root_of
from umbel.errors import LeaseLost
from umbel.messages import Delivery, Envelope, State, Succeeded
from umbel.testing import Backend
from umbel.testing.acts import (
    PATIENCE,
    RESULT,
    enlist,
    envelope,
    ids,
    kill,
    settle,
    take,
    take_one,
)

LEASE = 10.0


def tell(namespace: str, scenario: Scenario) -> None:
    """Nobody looks now and then: who is not called waits for ever."""
    tell_patiently(namespace, scenario, safety_poll=PATIENCE)


def publish_now(b: Backend, **changes: Any) -> Envelope:
    """Publish without giving anybody else a chance to run: who waits has heard nothing yet."""
    made = envelope(b, **changes)
    cast(RedisJobStore, b.broker).publish_now([made], 10.0)
    return made


class Waiter:
    """A fetch that waits, or a ledger's standing by."""

    def __init__(self, b: Backend, owner: str, client: Any, books: bool = False) -> None:
        self.owner = owner
        self._key = f"{root_of(b.namespace)}:standby"
        self._client = client
        self.other: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        ledger = cast(RedisJobStore, b.broker)
        waiting = (
            ledger.stand_by(["default"], owner, PATIENCE, self.other)
            if books
            else take(b, owner, wait=PATIENCE)
        )
        self.task = asyncio.create_task(waiting)

    async def give_up(self) -> None:
        """It is cancelled before it has heard anything."""
        self.task.cancel()
        await asyncio.wait([self.task])

    async def stands_by(self) -> Waiter:
        """It may be handed something from now on."""
        async with asyncio.timeout(20):
            while not (self._client.hget(self._key, self.owner) or b"x").endswith(b"\n"):
                assert not self.task.done()
                await asyncio.sleep(0.002)
        return self


def state(client: Any, b: Backend, job: Envelope) -> str:
    found = client.hget(f"{root_of(b.namespace)}:job:{job.id}", "state")
    return cast(bytes, found).decode()


@pytest.mark.parametrize("books", [False, True], ids=["fetching", "at the books"])
def test_a_published_job_is_in_the_hands_of_who_waits(
    books: bool, namespace: str, client: Any
) -> None:
    async def scenario(b: Backend) -> None:
        owner = await enlist(b, "anna")
        waiter = await Waiter(b, owner, client, books).stands_by()
        sent = publish_now(b, priority=3, expires=b.clock.now() + 60, headers={"colour": "red"})
        found = await b.records.find(sent.id)
        assert (found.state, found.worker) == (State.RUNNING, "anna")
        (got,) = await waiter.task
        assert (got.lease.job, got.lease.owner, got.lease.fence) == (sent.id, owner, 1)
        assert got.envelope == sent
        assert await settle(b, got, Succeeded(RESULT)) == []
        assert await take(b, owner) == []

    tell(namespace, scenario)


def test_who_stands_by_no_more_leaves_nothing_with_whom_it_waited_beside(
    namespace: str, client: Any
) -> None:
    async def scenario(b: Backend) -> None:
        waiter = await Waiter(b, await enlist(b), client, books=True).stands_by()
        assert waiter.other._callbacks
        publish_now(b)
        assert len(await waiter.task) == 1
        assert not waiter.other._callbacks

    tell(namespace, scenario)


def test_who_was_handed_a_job_is_handed_no_other_before_it_waits_again(
    namespace: str, client: Any
) -> None:
    async def scenario(b: Backend) -> None:
        waiter = await Waiter(b, await enlist(b), client).stands_by()
        first, second = publish_now(b), publish_now(b)
        assert (state(client, b, first), state(client, b, second)) == ("running", "queued")
        assert ids(await waiter.task) == [first.id]
        again = Waiter(b, waiter.owner, client)
        assert ids(await again.task) == [second.id]

    tell(namespace, scenario)


def test_one_job_is_handed_to_one_and_the_others_go_on_waiting(namespace: str, client: Any) -> None:
    async def scenario(b: Backend) -> None:
        waiters = [await Waiter(b, await enlist(b), client).stands_by() for _ in range(3)]
        jobs = [publish_now(b) for _ in range(3)]
        assert {state(client, b, job) for job in jobs} == {"running"}
        hands = await asyncio.gather(*(waiter.task for waiter in waiters))
        assert sorted(ids([one for hand in hands for one in hand])) == sorted(ids(jobs))
        assert [len(hand) for hand in hands] == [1, 1, 1]

    tell(namespace, scenario)


@pytest.mark.parametrize(
    ("scope", "name"), [("all", ""), ("queue", "default"), ("task", "tests.add")]
)
def test_what_is_paused_is_not_handed_over(
    scope: Scope, name: str, namespace: str, client: Any
) -> None:
    async def scenario(b: Backend) -> None:
        waiter = await Waiter(b, await enlist(b), client).stands_by()
        async with b.another() as operator:
            await operator.control.pause(scope, name, "")
            sent = publish_now(b)
            assert state(client, b, sent) == "queued"
            await operator.control.resume(scope, name)
        assert ids(await waiter.task) == [sent.id]

    tell(namespace, scenario)


def test_nobody_overtakes_what_waits_in_the_queue(namespace: str, client: Any) -> None:
    async def scenario(b: Backend) -> None:
        waiter = await Waiter(b, await enlist(b), client).stands_by()
        ledger = cast(RedisJobStore, b.broker)
        several = [envelope(b), envelope(b)]
        ledger.publish_now(several, 10.0)
        last = publish_now(b)
        assert state(client, b, last) == "queued"
        assert ids(await waiter.task) == ids([*several, last])

    tell(namespace, scenario)


def test_who_has_room_for_one_kind_is_called_instead(namespace: str, client: Any) -> None:
    async def scenario(b: Backend) -> None:
        owner = await enlist(b)
        waiting = asyncio.create_task(take(b, owner, Demand(io=1), wait=PATIENCE))
        key = f"{root_of(b.namespace)}:standby:default"
        async with asyncio.timeout(20):
            while not client.exists(key):
                await asyncio.sleep(0.002)
        other = publish_now(b, kind="cpu")
        mine = publish_now(b)
        assert (state(client, b, other), state(client, b, mine)) == ("queued", "queued")
        assert ids(await waiting) == [mine.id]

    tell(namespace, scenario)


def test_nobody_is_called_where_nobody_waits(namespace: str, client: Any) -> None:
    async def scenario(b: Backend) -> None:
        with client.pubsub() as ear:
            ear.subscribe(f"{root_of(namespace)}:hints")
            assert ear.get_message(timeout=5)["type"] == "subscribe"
            publish_now(b)
            await take_one(b, await enlist(b))
            assert ear.get_message(timeout=0.2) is None
            waiter = await Waiter(b, await enlist(b), client).stands_by()
            cast(RedisJobStore, b.broker).publish_now([envelope(b), envelope(b)], 10.0)
            assert len(await waiter.task) == 2
            assert ear.get_message(timeout=5)["data"] == f"r:{root_of(namespace)}:default".encode()

    tell(namespace, scenario)


def test_a_dead_worker_is_handed_nothing(namespace: str, client: Any) -> None:
    async def scenario(b: Backend) -> None:
        waiter = await Waiter(b, await enlist(b), client).stands_by()
        async with b.another() as watcher:
            await kill(watcher, waiter.owner)
            sent = publish_now(b)
            assert state(client, b, sent) == "queued"
            assert ids(await take(watcher, await enlist(watcher))) == [sent.id]
        with pytest.raises(LeaseLost):
            await waiter.task

    tell(namespace, scenario)


def test_who_cannot_be_told_is_handed_nothing(namespace: str, client: Any) -> None:
    async def scenario(b: Backend) -> None:
        waiter = await Waiter(b, await enlist(b), client).stands_by()
        listener = cast(RedisJobStore, b.broker)._listener
        assert listener._connection is not None
        host, port = listener._connection._writer.get_extra_info("sockname")[:2]
        client.client_kill_filter(addr=f"{host}:{port}")  # its own, and nobody else's
        sent = publish_now(b)
        assert state(client, b, sent) == "queued"
        assert ids(await waiter.task) == [sent.id], "it has listened again, and looked"

    tell(namespace, scenario)


def test_what_was_handed_to_a_fetch_that_was_given_up_comes_with_the_next(
    namespace: str, client: Any
) -> None:
    async def scenario(b: Backend) -> None:
        waiter = await Waiter(b, await enlist(b), client).stands_by()
        sent = publish_now(b)
        await waiter.give_up()
        assert await take(b, await enlist(b)) == [], "it is held"
        got = await take_one(b, waiter.owner)
        assert (got.id, got.lease.fence) == (sent.id, 1)
        assert await take(b, waiter.owner) == [], "and given once"

    tell(namespace, scenario)


@pytest.mark.parametrize("books", [False, True], ids=["fetching", "at the books"])
def test_what_was_handed_over_unheard_is_not_given_when_it_is_paused_by_then(
    books: bool, namespace: str, client: Any
) -> None:
    async def scenario(b: Backend) -> None:
        waiter = await Waiter(b, await enlist(b), client).stands_by()
        sent = publish_now(b)
        await waiter.give_up()
        await b.control.pause("queue", "default", "")
        again = Waiter(b, waiter.owner, client, books)
        await again.stands_by()
        assert state(client, b, sent) == "queued"
        again.other.set_result(None)
        b.broker.nudge()
        assert await again.task == []
        await b.control.resume("queue", "default")
        got = await take_one(b, waiter.owner)
        assert (got.lease.fence, got.attempt) == (2, 1)

    tell(namespace, scenario)


@pytest.mark.parametrize("books", [False, True], ids=["fetching", "at the books"])
def test_what_is_handed_over_in_the_moment_of_a_nudge_is_not_left_behind(
    books: bool, namespace: str, client: Any
) -> None:
    async def scenario(b: Backend) -> None:
        waiter = await Waiter(b, await enlist(b), client, books).stands_by()
        sent = publish_now(b)
        if books:
            waiter.other.set_result(None)
        else:
            b.broker.nudge()
        assert ids(await waiter.task) == [sent.id]

    tell(namespace, scenario)


@pytest.mark.parametrize("books", [False, True], ids=["fetching", "at the books"])
def test_who_was_nudged_stands_by_no_more(books: bool, namespace: str, client: Any) -> None:
    async def scenario(b: Backend) -> None:
        waiter = await Waiter(b, await enlist(b), client, books).stands_by()
        if books:
            waiter.other.set_result(None)
        else:
            b.broker.nudge()
        assert await waiter.task == []
        assert state(client, b, publish_now(b)) == "queued"

    tell(namespace, scenario)


def test_what_was_never_heard_of_goes_back_after_a_lease(namespace: str, client: Any) -> None:
    async def scenario(b: Backend) -> None:
        waiter = await Waiter(b, await enlist(b), client).stands_by()
        async with b.another() as publisher:
            sent = publish_now(publisher)
        await waiter.give_up()
        assert await b.broker.extend(waiter.owner, [], LEASE) == []
        assert state(client, b, sent) == "running"
        client.hincrbyfloat(f"{root_of(namespace)}:job:{sent.id}", "claimed", -LEASE - 1)
        assert await b.broker.extend(waiter.owner, [], LEASE) == []
        assert state(client, b, sent) == "queued"
        got = await take_one(b, await enlist(b))
        assert (got.lease.fence, got.attempt, got.deaths) == (2, 1, 0)
        assert await take(b, waiter.owner) == [], "it was given to somebody else"

    tell(namespace, scenario)


def test_another_process_is_not_given_what_this_one_was_handed(namespace: str, client: Any) -> None:
    """A router may take another's place: the worker may have had the job from that one."""

    async def scenario(b: Backend) -> None:
        waiter = await Waiter(b, await enlist(b), client).stands_by()
        sent = publish_now(b)
        (got,) = await waiter.task
        async with b.another() as other:
            assert await take(other, waiter.owner) == []
        assert got.id == sent.id

    tell(namespace, scenario)


def test_a_job_that_the_books_gave_away_is_not_given_for_its_message(
    namespace: str, client: Any
) -> None:
    async def scenario(b: Backend) -> None:
        ledger = cast(RedisJobStore, b.broker)
        waiter = await Waiter(b, await enlist(b), client, books=True).stands_by()
        made = envelope(b)
        ledger.note_now([made], 10.0)
        assert state(client, b, made) == "running"
        assert ids(await waiter.task) == [made.id]
        taken = await ledger.take({made.id: "default"}, await enlist(b), [made])
        assert (taken.deliveries, taken.unknown) == ([], [])
        ledger.unsend_now([made.id], 10.0)
        assert await ledger.unsent(["default"], 10, 0.0) == []

    tell(namespace, scenario)


def test_a_relay_that_waits_is_called_also_beside_who_stands_by(
    namespace: str, client: Any
) -> None:
    async def scenario(b: Backend) -> None:
        ledger = cast(RedisJobStore, b.broker)
        waiter = await Waiter(b, await enlist(b), client, books=True).stands_by()
        relay = asyncio.create_task(ledger.unsent(["default"], 10, PATIENCE))
        key = f"{root_of(b.namespace)}:standby:default"
        async with asyncio.timeout(20):
            while client.zcard(key) < 2:
                await asyncio.sleep(0.002)
        noted = envelope(b)
        ledger.note_now([noted], 10.0)  # the relay came last, and cannot be handed anything
        assert ids(await waiter.task) == [noted.id]
        async with asyncio.timeout(20):
            while client.zcard(key) < 1:
                await asyncio.sleep(0.002)
        queued = publish_now(b)
        assert ids(await relay) == [queued.id]

    tell(namespace, scenario)


# --- any order of things ----------------------------------------------------------------------

some = st.integers(0, 5)


class StandbyMachine(RuleBasedStateMachine):
    """Workers that wait, give up, are nudged and die, while others publish.

    Whatever happens: no lease is given twice, and in the end everybody's jobs have been given.
    """

    def __init__(self, client: Any, name: Callable[[], str]) -> None:
        super().__init__()
        self._client = client
        self._runner = asyncio.Runner()
        self._open = AsyncExitStack()
        self.b: Backend = self._run(self._enter(name()))
        self.owners: list[str] = []
        self.waiters: list[Waiter] = []
        self.published: list[str] = []
        self.given: Counter[tuple[str, int]] = Counter()
        self.held: dict[str, list[Delivery]] = {}

    async def _enter(self, name: str) -> Backend:
        return await self._open.enter_async_context(opened(name, PATIENCE))

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
        self.enlist()
        self.wait(0, False, True)

    @precondition(lambda self: len(self.owners) < 4)
    @rule()
    def enlist(self) -> None:
        self.owners.append(self._run(enlist(self.b)))

    @precondition(lambda self: self.owners)
    @rule(pick=some, books=st.booleans(), until=st.booleans())
    def wait(self, pick: int, books: bool, until: bool) -> None:
        """Somebody begins to wait; perhaps it has come to stand by, perhaps not."""
        owner = self.owners[pick % len(self.owners)]
        if any(waiter.owner == owner for waiter in self.waiters):
            return

        async def begin() -> None:
            waiter = Waiter(self.b, owner, self._client, books)
            self.waiters.append(waiter)
            if until and self._queue_is_empty():
                with suppress(AssertionError):  # it found something at once
                    await waiter.stands_by()

        self._run(begin())
        self._collect()

    def _queue_is_empty(self) -> bool:
        return not self._client.exists(f"{root_of(self.b.namespace)}:lane:io:default")

    @rule(many=st.integers(1, 3), at_once=st.booleans(), noted=st.booleans())
    def publish(self, many: int, at_once: bool, noted: bool) -> None:
        """One by one, or as one batch; what is noted only goes to who stands by."""

        async def send() -> None:
            ledger = cast(RedisJobStore, self.b.broker)
            made = [envelope(self.b) for _ in range(many)]
            if noted:
                ledger.note_now(made[:1], 10.0)
                ledger.unsend_now([made[0].id], 10.0)  # nobody carries it here
                self.published.append(made[0].id)
                return
            for lot in [made] if at_once else [[one] for one in made]:
                ledger.publish_now(lot, 10.0)
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
    def nudge(self) -> None:
        async def nudge() -> None:
            self.b.broker.nudge()
            for waiter in self.waiters:
                if not waiter.other.done():
                    waiter.other.set_result(None)
            if self.waiters:
                await asyncio.wait([waiter.task for waiter in self.waiters])

        self._run(nudge())
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
            self.nudge()
            self.settle_all()
            for owner in self.owners:  # what was never heard of goes back
                self._run(self.b.broker.extend(owner, [], -1e9))
            self._run(self.b.broker.recover())
            # Those suspected of having killed somebody would come late.
            fall_due(self._client, self.b.namespace)
            last = self._run(enlist(self.b))
            while found := self._run(take(self.b, last)):
                self._got(last, found)
            assert {job for job, _ in self.given} == {*self.published}
        finally:
            self._run(self._open.aclose())
            self._runner.close()
            for key in self._client.scan_iter(match=f"{root_of(self.b.namespace)}*", count=1000):
                self._client.delete(key)


def test_whatever_happens_nothing_is_given_twice_or_lost(client: Any, namespace: str) -> None:
    number = iter(range(10_000))
    run_state_machine_as_test(
        lambda: StandbyMachine(client, lambda: f"{namespace}-{next(number)}"),
        settings=settings(
            max_examples=60,
            stateful_step_count=25,
            deadline=None,
            suppress_health_check=list(HealthCheck),
        ),
    )
