"""The data in Redis: one slot, one call for each step, and values that people edited."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

pytest.importorskip("redis")

from redis.crc import key_slot
from redis_adapters import make_due, run_on_redis

from umbel.backends import (
    Demand,
    JobFilter,
    ProgressNote,
)
from umbel.backends.redis.scripts import root_of
from umbel.errors import BadMessage, ConfigurationError
from umbel.messages import (
    MESSAGEPACK,
    Body,
    Failed,
    Retry,
    State,
    Succeeded,
)
from umbel.messages.columns import MALFORMED
from umbel.testing import Adapters
from umbel.testing.actions import (
    FAILURE,
    FAR,
    RESULT,
    claim,
    claim_one,
    depths,
    envelope,
    ids,
    kill,
    publish,
    publish_and_claim,
    publish_many,
    register,
    settle,
    settlement,
)

# --- keys ------------------------------------------------------------------------------------


def test_every_key_of_a_namespace_is_in_one_slot_of_a_cluster(
    redis_namespace: str, redis_client: Any
) -> None:
    async def scenario(b: Adapters) -> None:
        held = await publish_and_claim(b, unique="only{key}", queue="default")
        await publish(
            b, queue="braces {in} a name", subject="{task}", not_before=b.clock.now() + FAR
        )
        await publish(b, queue="aside", subject="{task}")
        await b.pauses.pause("task", "{task}", "")
        await claim(b, held.lease.owner, queues=["aside"])
        await settle(b, held, Failed(FAILURE))
        await publish_and_claim(b)

    run_on_redis(redis_namespace, scenario, safety_poll=5.0, timeout=30.0)
    keys = list(redis_client.scan_iter(match=f"{root_of(redis_namespace)}*", count=1000))
    kinds = {key.decode().removeprefix(root_of(redis_namespace)).split(":")[1] for key in keys}
    assert {"job", "live", "due", "aside", "leases", "buried", "worker", "entries"} <= kinds
    assert {key_slot(key) for key in keys} == {key_slot(root_of(redis_namespace).encode())}


def test_nothing_is_left_behind_but_what_is_remembered(
    redis_namespace: str, redis_client: Any
) -> None:
    ended: list[str] = []

    async def scenario(b: Adapters) -> None:
        owner = await register(b)
        await publish_many(b, 3, unique="only", on_conflict="return")
        await publish_many(b, 3)
        await publish(b, not_before=b.clock.now() + FAR)
        make_due(redis_client, redis_namespace)
        got = await claim(b, owner)
        assert len(got) == 5
        await b.broker.settle([settlement(one, Succeeded(RESULT), keep=False) for one in got])
        await b.registry.unregister(owner)
        dead = await register(b)
        ended.append(dead)
        await publish_and_claim(b, dead, max_deaths=1)
        await kill(b, dead)
        (lost,) = await b.broker.recover()
        await b.broker.recover()
        assert await b.records.remove([lost]) == 1
        await b.broker.depths()

    run_on_redis(redis_namespace, scenario, safety_poll=5.0, timeout=30.0)
    keys = {
        key.decode()
        for key in redis_client.scan_iter(match=f"{root_of(redis_namespace)}*", count=1000)
    }
    # The death may be taken back for a day.
    death = f"{root_of(redis_namespace)}:deaths:{ended[0]}"
    assert 0 < redis_client.ttl(death) <= 86_400
    names = ("sequence", "indexes", "index:0")
    assert keys - {death} == {f"{root_of(redis_namespace)}:{name}" for name in names}


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
def test_a_job_that_is_published_alone_is_stored_like_one_of_many(
    redis_namespace: str, redis_client: Any, part: dict[str, Any]
) -> None:
    def kept(job: str) -> dict[bytes, Any]:
        fields = redis_client.hgetall(f"{root_of(redis_namespace)}:job:{job}")
        assert fields.pop(b"sequence")
        return {name: _as_number(value) for name, value in fields.items()}

    async def scenario(b: Adapters) -> None:
        created = b.clock.now()
        alone, now, one, other = (envelope(b, created=created, **part) for _ in range(4))
        assert [found.id for found in await b.broker.publish([alone])] == [alone.id]
        assert [found.id for found in b.broker.publish_blocking([now], 5.0)] == [now.id]
        await b.broker.publish([one, other])
        assert kept(alone.id) == kept(now.id) == kept(one.id)
        (again,) = b.broker.publish_blocking([alone], 5.0)
        assert (again.id, again.existing) == (alone.id, True)
        assert sum((await depths(b)).values()) == 4
        worker = await register(b)
        assert ids(await claim(b, worker)) == [alone.id, now.id, one.id, other.id]

    run_on_redis(redis_namespace, scenario, safety_poll=5.0, timeout=30.0)


def _as_number(value: bytes) -> float | bytes:
    try:
        return float(value)
    except ValueError:
        return value


def test_the_leases_of_many_jobs_are_a_table_with_nothing_else_in_it(
    redis_namespace: str, redis_client: Any
) -> None:
    async def scenario(b: Adapters) -> None:
        sent, owner = await publish_many(b, 30), await register(b)
        held = f"{root_of(redis_namespace)}:leases:{owner}"
        assert ids(await claim(b, owner)) == [one.id for one in sent]
        assert {name.decode() for name in redis_client.hkeys(held)} == {one.id for one in sent}
        assert redis_client.object("encoding", held) == b"hashtable"

    run_on_redis(redis_namespace, scenario, safety_poll=5.0, timeout=30.0)


def test_jobs_beyond_a_portion_are_listed_moved_purged_and_sorted(
    redis_namespace: str, redis_client: Any
) -> None:
    async def scenario(b: Adapters) -> None:
        for _ in range(3):
            await publish_many(b, 800, kind="")
        one = await publish(b, kind="", subject="tests.other")
        for _ in range(2):
            await publish_many(b, 800)
        found = await b.records.search(JobFilter(task="tests.other"))
        assert [each.id for each in found] == [one.id]
        assert len(await b.records.search(JobFilter(limit=5000))) == 4001
        assert await b.broker.assign_kinds(["none", "default"], {"tests.add": "cpu"}) == 2400
        assert await b.broker.assign_kinds(["default"], {"tests.other": "cpu"}) == 1
        assert (await depths(b)) == {("default", "queued"): 4001}
        assert await b.broker.move("default", "other") == 4001
        assert await b.broker.purge("other") == 4001
        assert await depths(b) == {}

    run_on_redis(redis_namespace, scenario, safety_poll=5.0, timeout=30.0)


def test_the_oldest_of_many_is_found_behind_more_urgent_ones(redis_namespace: str) -> None:
    async def scenario(b: Adapters) -> None:
        await publish(b, priority=-5, created=1_700_000_000.0)
        await publish_many(b, 1500, priority=5)
        (depth,) = await b.broker.depths()
        assert depth.jobs == 1501
        assert abs(b.clock.now() - depth.age - 1_700_000_000.0) < 5

    run_on_redis(redis_namespace, scenario, safety_poll=5.0, timeout=30.0)


# --- pausing ---------------------------------------------------------------------------------


def test_jobs_of_a_paused_task_are_put_aside_once_and_come_back_in_their_order(
    redis_namespace: str, redis_client: Any
) -> None:
    lane = f"{root_of(redis_namespace)}:lane:io:default"

    async def scenario(b: Adapters) -> None:
        paused = await publish_many(b, 2500, subject="tests.paused")
        other, owner = await publish(b), await register(b)
        await b.pauses.pause("task", "tests.paused", "")
        assert ids(await claim(b, owner)) == [other.id]
        assert redis_client.zcard(lane) == 0, "the next fetch would pass them again"
        assert await depths(b) == {("default", "queued"): 2500, ("default", "running"): 1}
        assert not await b.broker.has_waiting_jobs(["default"], ["io"])
        assert await b.control.cancel([paused[0].id], "x") == {paused[0].id: State.CANCELLED}
        await b.pauses.resume("task", "tests.paused")
        assert await b.broker.has_waiting_jobs(["default"], ["io"])
        got: list[str] = []
        while found := await claim(b, owner, Demand.of(io=500)):
            got += ids(found)
        assert got == ids(paused[1:])

    run_on_redis(redis_namespace, scenario, safety_poll=5.0, timeout=30.0)


def test_what_was_put_aside_is_moved_and_purged_like_the_rest(redis_namespace: str) -> None:
    async def scenario(b: Adapters) -> None:
        await publish_many(b, 3, subject="tests.paused")
        await b.pauses.pause("task", "tests.paused", "")
        owner = await register(b)
        assert await claim(b, owner) == []
        assert await b.broker.move("default", "other") == 3
        assert await claim(b, owner, queues=["other"]) == []
        assert await depths(b) == {("other", "queued"): 3}
        assert await b.broker.purge("other") == 3

    run_on_redis(redis_namespace, scenario, safety_poll=5.0, timeout=30.0)


# --- stories and hints -----------------------------------------------------------------------


def test_a_record_stores_its_last_hundred_attempts(redis_namespace: str) -> None:
    async def scenario(b: Adapters) -> None:
        owner = await register(b)
        held = await publish_and_claim(b, owner)
        for _ in range(104):
            await settle(b, held, Retry(FAILURE, 0.0))
            held = await claim_one(b, owner)
        await settle(b, held, Succeeded(RESULT))
        story = (await b.records.find(held.id)).attempts
        assert [one.number for one in story] == [*range(6, 106)]

    run_on_redis(redis_namespace, scenario, safety_poll=5.0, timeout=30.0)


def test_the_end_of_a_job_is_notified_only_if_a_client_waits_for_it(
    redis_namespace: str, redis_client: Any
) -> None:
    heard: list[str] = []

    async def scenario(b: Adapters) -> None:
        await publish_many(b, 2)
        awaited, other = await claim(b, await register(b))
        waiting = asyncio.create_task(b.records.wait_finished(awaited.id, 20))
        while not redis_client.hget(f"{root_of(redis_namespace)}:job:{awaited.id}", "awaited"):
            await asyncio.sleep(0.01)
        with redis_client.pubsub() as ear:
            ear.subscribe(f"{root_of(redis_namespace)}:wake_ups")
            assert ear.get_message(timeout=5)["type"] == "subscribe"
            await b.broker.settle([settlement(one, Succeeded(RESULT)) for one in (awaited, other)])
            await waiting
            while message := ear.get_message(timeout=0.2):
                heard.append(message["data"].decode())
        assert heard == [f"d:{root_of(redis_namespace)}:{awaited.id}"]

    run_on_redis(redis_namespace, scenario, safety_poll=5.0, timeout=30.0)


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
    redis_namespace: str, redis_client: Any, field: str
) -> None:
    async def scenario(b: Adapters) -> None:
        owner = await register(b)
        odd = await publish_many(b, len(ODD), max_deaths=9)
        sound = await publish(b)
        for one, value in zip(odd, ODD, strict=True):
            redis_client.hset(f"{root_of(redis_namespace)}:job:{one.id}", field, value)
        for one in odd:
            await b.records.find(one.id)
        assert len(await b.records.search(JobFilter())) == len(ODD) + 1
        got = await claim(b, owner)
        assert ids(got) == ids([*odd, sound])
        notes = [ProgressNote(one.id, one.lease.fence, 1, None) for one in got]
        await b.records.record_progress(notes)
        assert await b.broker.extend(owner, [one.lease for one in got], 0.0) == []
        assert await b.broker.settle([settlement(o, Retry(FAILURE, 0.0, "s")) for o in got]) == []
        held = await claim(b, owner)
        assert len(held) == len(ODD) + 1
        await kill(b, owner)
        assert len(await b.broker.recover()) == len(held)
        await b.broker.depths()
        heir = await register(b, "heir")
        make_due(redis_client, redis_namespace)
        last = await claim(b, heir)
        assert sound.id in ids(last)
        assert await b.broker.settle([settlement(one, Failed(FAILURE)) for one in last]) == []
        for one in odd:
            assert (await b.records.find(one.id)).state is State.BURIED
        assert len(await b.records.replay(ids(odd))) == len(odd)

    run_on_redis(redis_namespace, scenario, safety_poll=5.0, timeout=30.0)


def test_a_message_that_lacks_a_part_is_reported_to_the_worker_that_runs_it(
    redis_namespace: str, redis_client: Any
) -> None:
    async def scenario(b: Adapters) -> None:
        made = await publish_many(b, 3)
        keys = [f"{root_of(redis_namespace)}:job:{one.id}" for one in made]
        redis_client.hset(keys[0], "type", "box")
        redis_client.hdel(keys[1], "task")
        redis_client.hdel(keys[2], "body")
        got = await claim(b, await register(b))
        told = [one.envelope.headers[MALFORMED] for one in got]
        assert [text.partition(":")[0] for text in told] == ["type", "task", "body"]

    run_on_redis(redis_namespace, scenario, safety_poll=5.0, timeout=30.0)


def test_a_job_whose_key_is_gone_or_of_another_type_keeps_no_other_waiting(
    redis_namespace: str, redis_client: Any
) -> None:
    async def scenario(b: Adapters) -> None:
        owner = await register(b)
        later = {"not_before": b.clock.now() + FAR}
        made = [*await publish_many(b, 4), *await publish_many(b, 2, **later)]
        held = await claim(b, owner, Demand.of(io=1))
        for one, value in zip(made, (None, "text", None, "text", None, "text"), strict=True):
            key = f"{root_of(redis_namespace)}:job:{one.id}"
            redis_client.delete(key)
            if value is not None:
                redis_client.set(key, value)
        sound = await publish(b)
        make_due(redis_client, redis_namespace)
        assert await b.broker.settle([settlement(held[0], Succeeded(RESULT))]) == [held[0].lease]
        assert ids(await claim(b, owner, Demand.of(io=1))) == [sound.id]
        assert await claim(b, owner) == []
        assert await b.broker.recover() == []
        await b.records.search(JobFilter())
        await b.broker.depths()
        await b.broker.purge("default")
        assert await b.control.cancel(ids(made), "x") == {}

    run_on_redis(redis_namespace, scenario, safety_poll=5.0, timeout=30.0)


def test_a_key_whose_holder_was_deleted_manually_is_free(
    redis_namespace: str, redis_client: Any
) -> None:
    async def scenario(b: Adapters) -> None:
        gone = await publish(b, unique="only")
        redis_client.delete(f"{root_of(redis_namespace)}:job:{gone.id}")
        fresh = await publish(b, unique="only")
        assert ids(await claim(b, await register(b))) == [fresh.id]

    run_on_redis(redis_namespace, scenario, safety_poll=5.0, timeout=30.0)


def test_a_worker_or_a_pause_with_any_value_is_skipped_or_reported(
    redis_namespace: str, redis_client: Any
) -> None:
    async def scenario(b: Adapters) -> None:
        await register(b, "anna")
        bad = await register(b, "bad")
        redis_client.hset(
            f"{root_of(redis_namespace)}:worker:{bad}", mapping={"entry": "{", "heartbeats": "x"}
        )
        assert [one.entry.name for one in await b.registry.workers()] == ["anna"]
        assert await b.registry.heartbeat(bad, running=0, epoch=0, stopping=False)
        for key, value in {"pauses/queue//mail": "{", "pauses/what": "x"}.items():
            redis_client.zadd(f"{root_of(redis_namespace)}:entries", {key: 0})
            redis_client.hset(f"{root_of(redis_namespace)}:entry_values", key, value)
            redis_client.hset(f"{root_of(redis_namespace)}:entry_revisions", key, "x")
        redis_client.hset(f"{root_of(redis_namespace)}:section_revisions", "pauses/", "x")
        (pause,) = (await b.pauses.state()).pauses
        assert (pause.scope, pause.name) == ("queue", "mail")

    run_on_redis(redis_namespace, scenario, safety_poll=5.0, timeout=30.0)


# --- what Redis cannot do --------------------------------------------------------------------


def test_a_callers_transaction_is_refused_with_what_to_do_instead(redis_namespace: str) -> None:
    async def scenario(b: Adapters) -> None:
        with pytest.raises(ConfigurationError, match="after the commit"):
            await b.broker.publish([envelope(b)], within=object())
        with pytest.raises(ConfigurationError, match="after the commit"):
            b.broker.publish_within([envelope(b)], object())

    run_on_redis(redis_namespace, scenario, safety_poll=5.0, timeout=30.0)


@pytest.mark.parametrize(
    "part",
    [{"kind": "box"}, {"queue": ""}, {"queue": "x" * 256}, {"subject": ""}, {"subject": "\ud800"}],
)
def test_what_no_job_can_have_is_refused_before_it_is_sent(
    redis_namespace: str, part: dict[str, str]
) -> None:
    async def scenario(b: Adapters) -> None:
        with pytest.raises(BadMessage):
            await b.broker.publish([envelope(b), envelope(b, **part)])
        with pytest.raises(BadMessage):
            await b.broker.publish([envelope(b, **part)])
        with pytest.raises(BadMessage):
            b.broker.publish_blocking([envelope(b, **part)], 5.0)
        assert await depths(b) == {}

    run_on_redis(redis_namespace, scenario, safety_poll=5.0, timeout=30.0)
