"""Routes on Redis: many at once, long waiting lists, and which keys remain."""

from __future__ import annotations

import asyncio
from collections import Counter
from typing import Any

import pytest

pytest.importorskip("redis")

from redis.crc import key_slot
from redis_adapters import run_on_redis

from umbel.backends import Demand
from umbel.backends.redis import routes as module
from umbel.backends.redis.scripts import root_of
from umbel.errors import IndexTaken
from umbel.messages import (
    Delivery,
    Retry,
    Succeeded,
    inbox,
)
from umbel.testing import Adapters
from umbel.testing.actions import (
    FAILURE,
    RESULT,
    claim,
    depths,
    ids,
    kill,
    publish_many,
    settle,
    settlement,
    worker,
)
from umbel.testing.brokers.routes import (
    _replayed,
    fetch,
    live,
    plan,
    register_worker,
    register_workers,
)

LONG = 2500
"""More jobs than any script changes in one step."""


async def names_of(redis_client: Any, redis_namespace: str) -> set[str]:
    keys = redis_client.scan_iter(match=f"{root_of(redis_namespace)}*", count=1000)
    return {
        key.decode().removeprefix(root_of(redis_namespace) + ":").partition(":")[0] for key in keys
    }


async def drained(b: Adapters, who: tuple[str, int]) -> list[Delivery]:
    """Return all jobs that a worker gets, in several fetches."""
    found: list[Delivery] = []
    while some := await fetch(b, who, Demand.of(io=1000)):
        found += some
    return found


# --- long lines --------------------------------------------------------------------------------


def test_many_waiting_jobs_go_to_their_worker_and_back_in_order(redis_namespace: str) -> None:
    async def scenario(b: Adapters) -> None:
        anna, bert = await register_workers(b, 2)
        sent = await plan(b, "plan-7", LONG)
        assert await claim(b, bert[0]) == []
        assert await depths(b) == {(inbox(0), "queued"): LONG}
        (running,) = await fetch(b, anna, Demand.of(io=1))
        closing = await b.routes.release("plan-7")
        assert closing is not None
        assert (closing.closing, closing.held) == (True, 1)
        assert (await depths(b))["default", "waiting"] == LONG - 1
        assert await b.routes.retire(0) == 1
        await settle(b, running, Succeeded(RESULT))
        assert ids(await drained(b, bert)) == ids(sent[1:])

    run_on_redis(redis_namespace, scenario)


def test_a_lost_worker_gives_back_all_that_waited_for_it(redis_namespace: str) -> None:
    async def scenario(b: Adapters) -> None:
        anna, bert = await register_workers(b, 2)
        for key in range(30):
            await plan(b, f"plan-{key}", 100)
        await claim(b, bert[0], Demand.of(io=1))
        assert Counter((await live(b)).values()) == {0: 15, 1: 15}
        await kill(b, anna[0])
        assert len(await b.routes.sweep()) == 15
        assert len(await drained(b, bert)) == 3000
        assert set((await live(b)).values()) == {1}

    run_on_redis(redis_namespace, scenario)


def test_moving_a_workers_queue_passes_over_what_came_by_a_route(redis_namespace: str) -> None:
    async def scenario(b: Adapters) -> None:
        anna = await register_worker(b)
        await plan(b, "plan-7", LONG)
        await claim(b, anna[0])
        own = await publish_many(b, LONG, queue=inbox(0))
        assert await b.broker.move(inbox(0), "other") == LONG
        assert await depths(b) == {(inbox(0), "queued"): LONG, ("other", "queued"): LONG}
        assert ids(await claim(b, anna[0], Demand.of(io=LONG), queues=("other",))) == ids(own)

    run_on_redis(redis_namespace, scenario)


def test_many_keys_are_shared_out_evenly_in_one_step(redis_namespace: str) -> None:
    async def scenario(b: Adapters) -> None:
        first, *_ = await register_workers(b, 8)
        for n in range(200):
            await plan(b, f"plan-{n}")
        await claim(b, first[0], Demand.of(io=1))
        assert Counter((await live(b)).values()) == dict.fromkeys(range(8), 25)
        _replayed(await b.routes.routes(limit=1000))

    run_on_redis(redis_namespace, scenario)


def test_a_worker_may_know_many_tasks(redis_namespace: str) -> None:
    async def scenario(b: Adapters) -> None:
        anna = await register_worker(b, tasks=tuple(f"tests.t{n}" for n in range(9000)))
        (sent,) = await plan(b, "plan-7", subject="tests.t8999")
        assert ids(await fetch(b, anna)) == [sent.id]

    run_on_redis(redis_namespace, scenario)


# --- what is left behind -----------------------------------------------------------------------


def test_history_does_not_grow_without_end(
    redis_namespace: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(module, "MAX_RELEASED_ROUTES", 3)

    async def scenario(b: Adapters) -> None:
        anna = await register_worker(b)
        await plan(b, "stays")
        await fetch(b, anna)
        for n in range(6):
            await plan(b, f"plan-{n}")
            for one in await fetch(b, anna):
                await settle(b, one, Succeeded(RESULT))
            await b.routes.move(f"plan-{n}", 7)
        assert await b.routes.sweep() == []
        known = [route.key for route in await b.routes.routes(live=False)]
        assert known == ["plan-5", "plan-4", "plan-3", "stays"]
        assert await b.routes.routes(key="plan-0", live=False) == []

    run_on_redis(redis_namespace, scenario)


def test_nothing_is_left_of_routes_but_their_history(
    redis_namespace: str, redis_client: Any
) -> None:
    async def scenario(b: Adapters) -> None:
        anna, bert = await register_workers(b, 2)
        for key in ("a", "b{x}", "ü"):
            await plan(b, key, 3)
        for who in (anna, bert):
            for one in await fetch(b, who):
                await settle(b, one, Retry(FAILURE, 0.0))
        for who in (anna, bert):
            got = await fetch(b, who)
            await b.broker.settle([settlement(one, Succeeded(RESULT), keep=False) for one in got])
        for key in ("a", "b{x}", "ü"):
            assert (await b.routes.release(key)) is not None
        for who in (anna, bert):
            await b.registry.unregister(who[0])
        await b.broker.recover()
        await b.broker.depths()
        known = {
            "sequence",
            "indexes",
            "index",
            "route_sequence",
            "route",
            "routes",
            "released_routes",
        }
        assert await names_of(redis_client, redis_namespace) == known
        keys = list(redis_client.scan_iter(match=f"{root_of(redis_namespace)}*", count=1000))
        assert {key_slot(key) for key in keys} == {key_slot(root_of(redis_namespace).encode())}

    run_on_redis(redis_namespace, scenario)


def test_jobs_deleted_by_hand_hold_no_route(redis_namespace: str, redis_client: Any) -> None:
    async def scenario(b: Adapters) -> None:
        anna = await register_worker(b)
        sent = await plan(b, "plan-7", 3)
        await fetch(b, anna, Demand.of(io=1))
        for one in sent:
            redis_client.delete(f"{root_of(redis_namespace)}:job:{one.id}")
        await b.routes.sweep()
        assert [route.held for route in await b.routes.routes()] == [0]
        released = await b.routes.release("plan-7")
        assert released is not None
        assert released.released is not None

    run_on_redis(redis_namespace, scenario)


def test_values_of_any_kind_are_put_up_with(redis_namespace: str, redis_client: Any) -> None:
    async def scenario(b: Adapters) -> None:
        anna, _ = await register_workers(b, 2)
        root = root_of(redis_namespace)
        for key in ("a", "b", "c"):
            await plan(b, key)
            await fetch(b, anna, Demand.of(cpu=1))
        redis_client.hset(f"{root}:route:1", mapping={"among": "x", "made": "y", "closing": "z"})
        redis_client.delete(f"{root}:route:2")
        redis_client.hset(f"{root}:route:3", mapping={"index": "x"})
        redis_client.hset(f"{root}:index:1", mapping={"kept_until": "x", "retiring": "y"})
        await b.routes.routes(live=False)
        await b.routes.worker_indexes()
        await b.routes.sweep(idle=0)
        for key in ("a", "b", "c"):
            await plan(b, key)
            await b.routes.release(key)
        await fetch(b, anna)

    run_on_redis(redis_namespace, scenario)


def test_a_worker_index_is_reported_with_its_holder(redis_namespace: str) -> None:
    async def scenario(b: Adapters) -> None:
        await register_worker(b, "größer", index=7)
        with pytest.raises(IndexTaken, match="größer") as caught:
            await register_worker(b, "bert", index=7)
        assert (caught.value.index, caught.value.worker) == (7, "größer")

    run_on_redis(redis_namespace, scenario)


# --- many at once ------------------------------------------------------------------------------


def test_many_workers_that_register_at_once_get_one_index_each(redis_namespace: str) -> None:
    async def scenario(b: Adapters) -> None:
        entries = [worker(f"worker-{n}") for n in range(50)]
        found = await asyncio.gather(*(b.registry.register(one) for one in entries))
        assert sorted(found) == list(range(50))

    run_on_redis(redis_namespace, scenario)
