"""What holds of the data in Redis: one slot, one call a step, and values that people edited."""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator
from contextlib import asynccontextmanager
from typing import Any

import pytest

redis = pytest.importorskip("redis")

from redis.crc import key_slot  # noqa: E402

from umbel.backends import (  # noqa: E402
    Demand,
    JobFilter,
    ProgressNote,
)
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
from umbel.errors import BadMessage, ConfigurationError  # noqa: E402
from umbel.messages import (  # noqa: E402
    MESSAGEPACK,
    Body,
    Failed,
    Retry,
    State,
    Succeeded,
    fresh_id,
)
from umbel.messages.columns import MALFORMED  # noqa: E402
from umbel.testing import Backend, wrong_clocks  # noqa: E402
from umbel.testing.acts import (  # noqa: E402
    FAILURE,
    FAR,
    RESULT,
    depths,
    enlist,
    envelope,
    ids,
    kill,
    publish,
    publish_many,
    running,
    settle,
    settlement,
    take,
    take_one,
)

_CLOCKS = wrong_clocks(__name__)
URL = os.environ.get("UMBEL_TEST_REDIS", "redis://127.0.0.1:6379/0")
Scenario = Callable[[Backend], Coroutine[Any, Any, None]]


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
    name = f"test-data-{fresh_id()}"
    yield name
    for key in client.scan_iter(match=f"{root_of(name)}*", count=1000):
        client.delete(key)


@asynccontextmanager
async def opened(namespace: str, safety_poll: float = 5.0) -> AsyncIterator[Backend]:
    database = Database(Home(URL))
    how = {"namespace": namespace, "clock": next(_CLOCKS)}
    try:
        yield Backend(
            broker=RedisJobStore(database, **how, safety_poll=safety_poll),
            records=RedisRecords(database, **how),
            registry=RedisRegistry(database, **how),
            control=RedisControl(database, **how),
            gates=RedisGates(database, **how),
            steps=RedisSteps(database, **how),
            deployments=RedisDeployments(database, **how),
            routes=RedisRoutes(database, **how),
            clock=SystemClock(),
            namespace=namespace,
            another=lambda other=None: opened(other or namespace, safety_poll),
        )
    finally:
        await database.close()


def fall_due(client: Any, namespace: str) -> None:
    """What waits for its time need not wait any longer: nobody can move the server's clock."""
    for key in client.scan_iter(match=f"{root_of(namespace)}:due:*", count=1000):
        for job in client.zrange(key, 0, -1):
            client.zadd(key, {job: 0})


def tell(namespace: str, scenario: Scenario, safety_poll: float = 5.0) -> None:
    async def told() -> None:
        async with asyncio.timeout(30), opened(namespace, safety_poll) as backend:
            await scenario(backend)

    asyncio.run(told())


# --- keys ------------------------------------------------------------------------------------


def test_every_key_of_a_namespace_is_in_one_slot_of_a_cluster(namespace: str, client: Any) -> None:
    async def scenario(b: Backend) -> None:
        held = await running(b, unique="only{key}", queue="default")
        await publish(
            b, queue="braces {in} a name", subject="{task}", not_before=b.clock.now() + FAR
        )
        await publish(b, queue="aside", subject="{task}")
        await b.control.pause("task", "{task}", "")
        await take(b, held.lease.owner, queues=["aside"])
        await settle(b, held, Failed(FAILURE))
        await running(b)

    tell(namespace, scenario)
    keys = list(client.scan_iter(match=f"{root_of(namespace)}*", count=1000))
    kinds = {key.decode().removeprefix(root_of(namespace)).split(":")[1] for key in keys}
    assert {"job", "live", "due", "aside", "held", "buried", "worker", "pauses"} <= kinds
    assert {key_slot(key) for key in keys} == {key_slot(root_of(namespace).encode())}


def test_nothing_is_left_behind_but_what_is_remembered(namespace: str, client: Any) -> None:
    ended: list[str] = []

    async def scenario(b: Backend) -> None:
        owner = await enlist(b)
        await publish_many(b, 3, unique="only", on_conflict="return")
        await publish_many(b, 3)
        await publish(b, not_before=b.clock.now() + FAR)
        fall_due(client, namespace)
        got = await take(b, owner)
        assert len(got) == 5
        await b.broker.settle([settlement(one, Succeeded(RESULT), keep=False) for one in got])
        await b.registry.leave(owner)
        dead = await enlist(b)
        ended.append(dead)
        await running(b, dead, max_deaths=1)
        await kill(b, dead)
        (lost,) = await b.broker.recover()
        await b.broker.recover()
        assert await b.records.remove([lost]) == 1
        await b.broker.depths()

    tell(namespace, scenario)
    keys = {key.decode() for key in client.scan_iter(match=f"{root_of(namespace)}*", count=1000)}
    # The death may be taken back for a day.
    death = f"{root_of(namespace)}:deaths:{ended[0]}"
    assert 0 < client.ttl(death) <= 86_400
    names = ("sequence", "seats", "seat:0")
    assert keys - {death} == {f"{root_of(namespace)}:{name}" for name in names}


@pytest.mark.parametrize(
    "part",
    [
        {},
        {"priority": 7, "kind": "cpu"},
        {"priority": -(2**40), "kind": ""},
        {"max_deaths": 5, "headers": {"timeout": "3.5", "é": "ü"}},
        {"expires": 2e9 + 0.1, "traceparent": "00-1-2-01", "subject": "größer"},
        {"body": Body(MESSAGEPACK, bytes(range(256)))},
    ],
)
def test_a_job_that_is_published_alone_is_kept_like_one_of_many(
    namespace: str, client: Any, part: dict[str, Any]
) -> None:
    def kept(job: str) -> dict[bytes, Any]:
        fields = client.hgetall(f"{root_of(namespace)}:job:{job}")
        assert fields.pop(b"place")
        return {name: _as_number(value) for name, value in fields.items()}

    async def scenario(b: Backend) -> None:
        created = b.clock.now()
        alone, now, one, other = (envelope(b, created=created, **part) for _ in range(4))
        assert [found.id for found in await b.broker.publish([alone])] == [alone.id]
        assert [found.id for found in b.broker.publish_now([now], 5.0)] == [now.id]
        await b.broker.publish([one, other])
        assert kept(alone.id) == kept(now.id) == kept(one.id)
        (again,) = b.broker.publish_now([alone], 5.0)
        assert (again.id, again.existing) == (alone.id, True)
        assert sum((await depths(b)).values()) == 4
        worker = await enlist(b)
        assert ids(await take(b, worker)) == [alone.id, now.id, one.id, other.id]

    tell(namespace, scenario)


def _as_number(value: bytes) -> float | bytes:
    try:
        return float(value)
    except ValueError:
        return value


def test_the_leases_of_many_jobs_are_a_table_with_nothing_else_in_it(
    namespace: str, client: Any
) -> None:
    async def scenario(b: Backend) -> None:
        sent, owner = await publish_many(b, 30), await enlist(b)
        held = f"{root_of(namespace)}:held:{owner}"
        assert ids(await take(b, owner)) == [one.id for one in sent]
        assert {name.decode() for name in client.hkeys(held)} == {one.id for one in sent}
        assert client.object("encoding", held) == b"hashtable"

    tell(namespace, scenario)


def test_jobs_beyond_a_portion_are_listed_moved_purged_and_sorted(
    namespace: str, client: Any
) -> None:
    async def scenario(b: Backend) -> None:
        for _ in range(3):
            await publish_many(b, 800, kind="")
        one = await publish(b, kind="", subject="tests.other")
        for _ in range(2):
            await publish_many(b, 800)
        found = await b.records.search(JobFilter(task="tests.other"))
        assert [each.id for each in found] == [one.id]
        assert len(await b.records.search(JobFilter(limit=5000))) == 4001
        assert await b.broker.sort(["none", "default"], {"tests.add": "cpu"}) == 2400
        assert await b.broker.sort(["default"], {"tests.other": "cpu"}) == 1
        assert (await depths(b)) == {("default", "queued"): 4001}
        assert await b.broker.move("default", "other") == 4001
        assert await b.broker.purge("other") == 4001
        assert await depths(b) == {}

    tell(namespace, scenario)


def test_the_oldest_of_many_is_found_behind_more_urgent_ones(namespace: str) -> None:
    async def scenario(b: Backend) -> None:
        await publish(b, priority=-5, created=1_700_000_000.0)
        await publish_many(b, 1500, priority=5)
        (depth,) = await b.broker.depths()
        assert depth.jobs == 1501
        assert abs(b.clock.now() - depth.age - 1_700_000_000.0) < 5

    tell(namespace, scenario)


# --- pausing ---------------------------------------------------------------------------------


def test_jobs_of_a_paused_task_are_put_aside_once_and_come_back_in_their_order(
    namespace: str, client: Any
) -> None:
    lane = f"{root_of(namespace)}:lane:io:default"

    async def scenario(b: Backend) -> None:
        paused = await publish_many(b, 2500, subject="tests.paused")
        other, owner = await publish(b), await enlist(b)
        await b.control.pause("task", "tests.paused", "")
        assert ids(await take(b, owner)) == [other.id]
        assert client.zcard(lane) == 0, "the next fetch would pass them again"
        assert await depths(b) == {("default", "queued"): 2500, ("default", "running"): 1}
        assert not await b.broker.waiting(["default"], ["io"])
        assert await b.control.cancel([paused[0].id], "x") == {paused[0].id: State.CANCELLED}
        await b.control.resume("task", "tests.paused")
        assert await b.broker.waiting(["default"], ["io"])
        got: list[str] = []
        while found := await take(b, owner, Demand(io=500)):
            got += ids(found)
        assert got == ids(paused[1:])

    tell(namespace, scenario)


def test_what_was_put_aside_is_moved_and_purged_like_the_rest(namespace: str) -> None:
    async def scenario(b: Backend) -> None:
        await publish_many(b, 3, subject="tests.paused")
        await b.control.pause("task", "tests.paused", "")
        owner = await enlist(b)
        assert await take(b, owner) == []
        assert await b.broker.move("default", "other") == 3
        assert await take(b, owner, queues=["other"]) == []
        assert await depths(b) == {("other", "queued"): 3}
        assert await b.broker.purge("other") == 3

    tell(namespace, scenario)


# --- stories and hints -----------------------------------------------------------------------


def test_a_story_keeps_its_last_hundred_attempts(namespace: str) -> None:
    async def scenario(b: Backend) -> None:
        owner = await enlist(b)
        held = await running(b, owner)
        for _ in range(104):
            await settle(b, held, Retry(FAILURE, 0.0))
            held = await take_one(b, owner)
        await settle(b, held, Succeeded(RESULT))
        story = (await b.records.find(held.id)).attempts
        assert [one.number for one in story] == [*range(6, 106)]

    tell(namespace, scenario)


def test_an_end_is_told_only_where_somebody_waits_for_it(namespace: str, client: Any) -> None:
    heard: list[str] = []

    async def scenario(b: Backend) -> None:
        await publish_many(b, 2)
        awaited, other = await take(b, await enlist(b))
        waiting = asyncio.create_task(b.records.finished(awaited.id, 20))
        while not client.hget(f"{root_of(namespace)}:job:{awaited.id}", "awaited"):
            await asyncio.sleep(0.01)
        with client.pubsub() as ear:
            ear.subscribe(f"{root_of(namespace)}:hints")
            assert ear.get_message(timeout=5)["type"] == "subscribe"
            await b.broker.settle([settlement(one, Succeeded(RESULT)) for one in (awaited, other)])
            await waiting
            while message := ear.get_message(timeout=0.2):
                heard.append(message["data"].decode())
        assert heard == [f"d:{root_of(namespace)}:{awaited.id}"]

    tell(namespace, scenario)


# --- values that people edited ---------------------------------------------------------------

ODD = (
    "",
    "x",
    "-1",
    "nan",
    "inf",
    "-inf",
    "1e400",
    "99999999999999999999",
    b"\xff\xfe",
    "[]",
    "{}",
)
FIELDS = (
    *("kind", "priority", "type", "content_type", "created", "not_before", "expires", "attempt"),
    *("max_deaths", "unique", "traceparent", "headers", "deaths", "blame", "sections", "attempts"),
    *("fence", "worker", "claimed", "cancel", "done", "of", "awaited", "failure", "reason"),
)


@pytest.mark.parametrize("field", FIELDS)
def test_a_field_of_any_value_harms_no_other_job_and_no_loop(
    namespace: str, client: Any, field: str
) -> None:
    async def scenario(b: Backend) -> None:
        owner = await enlist(b)
        odd = await publish_many(b, len(ODD), max_deaths=9)
        sound = await publish(b)
        for one, value in zip(odd, ODD, strict=True):
            client.hset(f"{root_of(namespace)}:job:{one.id}", field, value)
        for one in odd:
            await b.records.find(one.id)
        assert len(await b.records.search(JobFilter())) == len(ODD) + 1
        got = await take(b, owner)
        assert ids(got) == ids([*odd, sound])
        notes = [ProgressNote(one.id, one.lease.fence, 1, None) for one in got]
        await b.records.progress(notes)
        assert await b.broker.extend(owner, [one.lease for one in got], 0.0) == []
        assert await b.broker.settle([settlement(o, Retry(FAILURE, 0.0, "s")) for o in got]) == []
        held = await take(b, owner)
        assert len(held) == len(ODD) + 1
        await kill(b, owner)
        assert len(await b.broker.recover()) == len(held)
        await b.broker.depths()
        heir = await enlist(b, "heir")
        fall_due(client, namespace)
        last = await take(b, heir)
        assert sound.id in ids(last)
        assert await b.broker.settle([settlement(one, Failed(FAILURE)) for one in last]) == []
        for one in odd:
            assert (await b.records.find(one.id)).state is State.BURIED
        assert len(await b.records.replay(ids(odd))) == len(odd)

    tell(namespace, scenario)


def test_a_message_that_lacks_a_part_says_so_to_whoever_runs_it(
    namespace: str, client: Any
) -> None:
    async def scenario(b: Backend) -> None:
        made = await publish_many(b, 3)
        keys = [f"{root_of(namespace)}:job:{one.id}" for one in made]
        client.hset(keys[0], "type", "box")
        client.hdel(keys[1], "task")
        client.hdel(keys[2], "body")
        got = await take(b, await enlist(b))
        told = [one.envelope.headers[MALFORMED] for one in got]
        assert [text.partition(":")[0] for text in told] == ["type", "task", "body"]

    tell(namespace, scenario)


def test_a_job_whose_key_is_gone_or_of_another_type_keeps_no_other_waiting(
    namespace: str, client: Any
) -> None:
    async def scenario(b: Backend) -> None:
        owner = await enlist(b)
        later = {"not_before": b.clock.now() + FAR}
        made = [*await publish_many(b, 4), *await publish_many(b, 2, **later)]
        held = await take(b, owner, Demand(io=1))
        for one, value in zip(made, (None, "text", None, "text", None, "text"), strict=True):
            key = f"{root_of(namespace)}:job:{one.id}"
            client.delete(key)
            if value is not None:
                client.set(key, value)
        sound = await publish(b)
        fall_due(client, namespace)
        assert await b.broker.settle([settlement(held[0], Succeeded(RESULT))]) == [held[0].lease]
        assert ids(await take(b, owner, Demand(io=1))) == [sound.id]
        assert await take(b, owner) == []
        assert await b.broker.recover() == []
        await b.records.search(JobFilter())
        await b.broker.depths()
        await b.broker.purge("default")
        assert await b.control.cancel(ids(made), "x") == {}

    tell(namespace, scenario)


def test_a_key_whose_holder_was_deleted_by_hand_is_free(namespace: str, client: Any) -> None:
    async def scenario(b: Backend) -> None:
        gone = await publish(b, unique="only")
        client.delete(f"{root_of(namespace)}:job:{gone.id}")
        fresh = await publish(b, unique="only")
        assert ids(await take(b, await enlist(b))) == [fresh.id]

    tell(namespace, scenario)


def test_a_worker_or_a_pause_of_any_value_is_left_out_or_told(namespace: str, client: Any) -> None:
    async def scenario(b: Backend) -> None:
        await enlist(b, "anna")
        bad = await enlist(b, "bad")
        client.hset(f"{root_of(namespace)}:worker:{bad}", mapping={"entry": "{", "beat": "x"})
        assert [one.entry.name for one in await b.registry.members()] == ["anna"]
        assert await b.registry.beat(bad, running=0, epoch=0, stopping=False)
        client.hset(f"{root_of(namespace)}:pauses", mapping={"queue:mail": "{", "what": "x"})
        (pause,) = (await b.control.state()).pauses
        assert (pause.scope, pause.name) == ("queue", "mail")

    tell(namespace, scenario)


# --- what Redis cannot do --------------------------------------------------------------------


def test_a_callers_transaction_is_refused_with_what_to_do_instead(namespace: str) -> None:
    async def scenario(b: Backend) -> None:
        with pytest.raises(ConfigurationError, match="after the commit"):
            await b.broker.publish([envelope(b)], within=object())
        with pytest.raises(ConfigurationError, match="after the commit"):
            b.broker.publish_within([envelope(b)], object())

    tell(namespace, scenario)


@pytest.mark.parametrize(
    "part",
    [{"kind": "box"}, {"queue": ""}, {"queue": "x" * 256}, {"subject": ""}, {"subject": "\ud800"}],
)
def test_what_no_job_can_have_is_refused_before_it_is_sent(
    namespace: str, part: dict[str, str]
) -> None:
    async def scenario(b: Backend) -> None:
        with pytest.raises(BadMessage):
            await b.broker.publish([envelope(b), envelope(b, **part)])
        with pytest.raises(BadMessage):
            await b.broker.publish([envelope(b, **part)])
        with pytest.raises(BadMessage):
            b.broker.publish_now([envelope(b, **part)], 5.0)
        assert await depths(b) == {}

    tell(namespace, scenario)
