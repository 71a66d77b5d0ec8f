"""Routes on Redis: many at once, long lines, and what is left behind."""

from __future__ import annotations

import asyncio
from collections import Counter
from typing import Any

import pytest

pytest.importorskip("redis")

from redis.crc import key_slot
from test_redis_gates import client, namespace, tell  # noqa: F401

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
from umbel.testing import Backend
from umbel.testing.acts import (
    FAILURE,
    RESULT,
    depths,
    ids,
    kill,
    publish_many,
    settle,
    settlement,
    take,
    worker,
)
from umbel.testing.brokers.routes import _replayed, crew, fetch, live, plan, sit

LONG = 2500
"""More than any script touches in one step."""


async def names_of(client: Any, namespace: str) -> set[str]:  # noqa: F811
    keys = client.scan_iter(match=f"{root_of(namespace)}*", count=1000)
    return {key.decode().removeprefix(root_of(namespace) + ":").partition(":")[0] for key in keys}


async def drained(b: Backend, who: tuple[str, int]) -> list[Delivery]:
    """All that a worker gets, look by look."""
    found: list[Delivery] = []
    while some := await fetch(b, who, Demand(1000, 0)):
        found += some
    return found


# --- long lines --------------------------------------------------------------------------------


def test_a_long_line_goes_to_its_worker_and_back_in_order(namespace: str) -> None:  # noqa: F811
    async def scenario(b: Backend) -> None:
        anna, bert = await crew(b, 2)
        sent = await plan(b, "plan-7", LONG)
        assert await take(b, bert[0]) == []
        assert await depths(b) == {(inbox(0), "queued"): LONG}
        (running,) = await fetch(b, anna, Demand(1, 0))
        closing = await b.routes.release("plan-7")
        assert closing is not None
        assert (closing.closing, closing.held) == (True, 1)
        assert (await depths(b))["default", "waiting"] == LONG - 1
        assert await b.routes.retire(0) == 1
        await settle(b, running, Succeeded(RESULT))
        assert ids(await drained(b, bert)) == ids(sent[1:])

    tell(namespace, scenario)


def test_a_lost_worker_gives_back_all_that_waited_for_it(namespace: str) -> None:  # noqa: F811
    async def scenario(b: Backend) -> None:
        anna, bert = await crew(b, 2)
        for key in range(30):
            await plan(b, f"plan-{key}", 100)
        await take(b, bert[0], Demand(1, 0))
        assert Counter((await live(b)).values()) == {0: 15, 1: 15}
        await kill(b, anna[0])
        assert len(await b.routes.sweep()) == 15
        assert len(await drained(b, bert)) == 3000
        assert set((await live(b)).values()) == {1}

    tell(namespace, scenario)


def test_moving_a_workers_queue_passes_over_what_came_by_a_route(namespace: str) -> None:  # noqa: F811
    async def scenario(b: Backend) -> None:
        anna = await sit(b)
        await plan(b, "plan-7", LONG)
        await take(b, anna[0])
        own = await publish_many(b, LONG, queue=inbox(0))
        assert await b.broker.move(inbox(0), "other") == LONG
        assert await depths(b) == {(inbox(0), "queued"): LONG, ("other", "queued"): LONG}
        assert ids(await take(b, anna[0], Demand(LONG, 0), queues=("other",))) == ids(own)

    tell(namespace, scenario)


def test_many_keys_are_shared_out_evenly_in_one_step(namespace: str) -> None:  # noqa: F811
    async def scenario(b: Backend) -> None:
        first, *_ = await crew(b, 8)
        for n in range(200):
            await plan(b, f"plan-{n}")
        await take(b, first[0], Demand(1, 0))
        assert Counter((await live(b)).values()) == dict.fromkeys(range(8), 25)
        _replayed(await b.routes.routes(limit=1000))

    tell(namespace, scenario)


def test_a_worker_may_know_many_tasks(namespace: str) -> None:  # noqa: F811
    async def scenario(b: Backend) -> None:
        anna = await sit(b, tasks=tuple(f"tests.t{n}" for n in range(9000)))
        (sent,) = await plan(b, "plan-7", subject="tests.t8999")
        assert ids(await fetch(b, anna)) == [sent.id]

    tell(namespace, scenario)


# --- what is left behind -----------------------------------------------------------------------


def test_history_does_not_grow_without_end(
    namespace: str,  # noqa: F811
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(module, "HISTORY", 3)

    async def scenario(b: Backend) -> None:
        anna = await sit(b)
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

    tell(namespace, scenario)


def test_nothing_is_left_of_routes_but_their_history(namespace: str, client: Any) -> None:  # noqa: F811
    async def scenario(b: Backend) -> None:
        anna, bert = await crew(b, 2)
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
            await b.registry.leave(who[0])
        await b.broker.recover()
        await b.broker.depths()
        known = {"sequence", "seats", "seat", "route", "routes", "past"}
        assert await names_of(client, namespace) == known
        keys = list(client.scan_iter(match=f"{root_of(namespace)}*", count=1000))
        assert {key_slot(key) for key in keys} == {key_slot(root_of(namespace).encode())}

    tell(namespace, scenario)


def test_jobs_deleted_by_hand_hold_no_route(namespace: str, client: Any) -> None:  # noqa: F811
    async def scenario(b: Backend) -> None:
        anna = await sit(b)
        sent = await plan(b, "plan-7", 3)
        await fetch(b, anna, Demand(1, 0))
        for one in sent:
            client.delete(f"{root_of(namespace)}:job:{one.id}")
        await b.routes.sweep()
        assert [route.held for route in await b.routes.routes()] == [0]
        released = await b.routes.release("plan-7")
        assert released is not None
        assert released.released is not None

    tell(namespace, scenario)


def test_values_of_any_kind_are_put_up_with(namespace: str, client: Any) -> None:  # noqa: F811
    async def scenario(b: Backend) -> None:
        anna, _ = await crew(b, 2)
        root = root_of(namespace)
        for key in ("a", "b", "c"):
            await plan(b, key)
            await fetch(b, anna, Demand(0, 1))
        client.hset(f"{root}:route:1", mapping={"among": "x", "made": "y", "closing": "z"})
        client.delete(f"{root}:route:2")
        client.hset(f"{root}:route:3", mapping={"index": "x"})
        client.hset(f"{root}:seat:1", mapping={"kept": "x", "retiring": "y"})
        await b.routes.routes(live=False)
        await b.routes.seats()
        await b.routes.sweep(idle=0)
        for key in ("a", "b", "c"):
            await plan(b, key)
            await b.routes.release(key)
        await fetch(b, anna)

    tell(namespace, scenario)


def test_an_index_is_told_with_who_has_it(namespace: str) -> None:  # noqa: F811
    async def scenario(b: Backend) -> None:
        await sit(b, "größer", index=7)
        with pytest.raises(IndexTaken, match="größer") as caught:
            await sit(b, "bert", index=7)
        assert (caught.value.index, caught.value.worker) == (7, "größer")

    tell(namespace, scenario)


# --- many at once ------------------------------------------------------------------------------


def test_many_that_look_for_a_seat_at_once_get_one_each(namespace: str) -> None:  # noqa: F811
    async def scenario(b: Backend) -> None:
        entries = [worker(f"worker-{n}") for n in range(50)]
        found = await asyncio.gather(*(b.registry.enlist(one) for one in entries))
        assert sorted(found) == list(range(50))

    tell(namespace, scenario)
