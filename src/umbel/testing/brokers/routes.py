"""Routes: jobs of one key go to one worker, and never to two at a time."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

import pytest
from msgspec.structs import replace

from umbel.backends import Demand
from umbel.errors import IndexTaken
from umbel.messages import (
    ONLY_IF_ROUTED,
    Delivery,
    Envelope,
    Failed,
    Interrupted,
    Outcome,
    Retry,
    Rule,
    Snoozed,
    State,
    Succeeded,
    inbox,
    route_gate,
)
from umbel.testing.actions import (
    FAILURE,
    FULL_DEMAND,
    LONG_WAIT,
    RESULT,
    SOON,
    claim,
    depths,
    ids,
    kill,
    publish,
    publish_many,
    settle,
    worker,
)
from umbel.testing.backend import Adapters, backend_test
from umbel.testing.brokers.route_concurrency import ConcurrentRouting

PLAN = route_gate("plan-7")
BACK: tuple[Outcome, ...] = (Retry(FAILURE, 0.0), Interrupted("stopping"))
ENDS: tuple[Outcome, ...] = (Succeeded(RESULT), Failed(FAILURE), Snoozed(SOON * 1e6))


async def register_worker(b: Adapters, name: str = "anna", **changes: Any) -> tuple[str, int]:
    """Register a worker. Return its incarnation and its index."""
    entry = replace(worker(name), **changes)
    return entry.incarnation, await b.registry.register(entry)


async def register_workers(b: Adapters, many: int) -> list[tuple[str, int]]:
    return [await register_worker(b, f"worker-{n}") for n in range(many)]


async def fetch(
    b: Adapters, who: tuple[str, int], demand: Demand = FULL_DEMAND, **how: Any
) -> list[Delivery]:
    """Fetch for a worker from its own queue and the common one.

    The first fetch may only route a job to its worker; then a second one gets it.
    """
    queues = (inbox(who[1]), "default")
    found = await claim(b, who[0], demand, queues=queues, **how)
    return found or await claim(b, who[0], demand, queues=queues)


async def plan(b: Adapters, key: str, many: int = 1, **changes: Any) -> list[Envelope]:
    return await publish_many(b, many, gates=(route_gate(key),), **changes)


async def clean_up(b: Adapters, key: str, **changes: Any) -> Envelope:
    return await publish(b, gates=(route_gate(key),), headers={ONLY_IF_ROUTED: "yes"}, **changes)


async def live(b: Adapters) -> dict[str, int]:
    """Return the live routes: keys with their worker indexes."""
    return {route.key: route.index for route in await b.routes.routes(limit=1000)}


class WorkerIndexes:
    """Every worker has its own index."""

    @backend_test()
    async def test_workers_get_the_lowest_free_index(self, b: Adapters) -> None:
        assert [index for _, index in await register_workers(b, 3)] == [0, 1, 2]
        assert [(s.index, s.worker, s.alive) for s in await b.routes.worker_indexes()] == [
            (n, f"worker-{n}", True) for n in range(3)
        ]

    @backend_test()
    async def test_members_show_their_index(self, b: Adapters) -> None:
        await register_workers(b, 2)
        assert {m.entry.name: m.entry.index for m in await b.registry.workers()} == {
            "worker-0": 0,
            "worker-1": 1,
        }

    @backend_test()
    async def test_the_index_of_a_dead_worker_is_free_again(self, b: Adapters) -> None:
        (first, _), _ = await register_workers(b, 2)
        await kill(b, first)
        assert (await register_worker(b, "new"))[1] == 0

    @backend_test()
    async def test_an_index_that_was_asked_for_is_given(self, b: Adapters) -> None:
        assert (await register_worker(b, "three", index=3))[1] == 3
        assert (await register_worker(b, "any"))[1] == 0

    @backend_test()
    async def test_no_two_names_share_an_index(self, b: Adapters) -> None:
        await register_worker(b, "anna", index=3)
        with pytest.raises(IndexTaken, match="index=3: worker anna has it"):
            await register_worker(b, "bert", index=3)
        assert [s.worker for s in await b.routes.worker_indexes()] == ["anna"]

    @backend_test()
    async def test_the_same_name_may_register_before_its_last_incarnation_has_lapsed(
        self, b: Adapters
    ) -> None:
        await register_worker(b, "anna", index=3)
        assert (await register_worker(b, "anna", index=3))[1] == 3

    @backend_test()
    async def test_registering_again_gives_the_same_index(self, b: Adapters) -> None:
        entry = worker("anna")
        assert [await b.registry.register(entry), await b.registry.register(entry)] == [0, 0]

    @backend_test()
    async def test_an_index_is_kept_for_a_worker_that_unregistered(self, b: Adapters) -> None:
        (first, _), _ = await register_workers(b, 2)
        await b.registry.unregister(first)
        assert (await register_worker(b, "other"))[1] == 2
        assert (await register_worker(b, "worker-0"))[1] == 0

    @backend_test()
    async def test_many_that_come_at_once_have_different_indexes(self, b: Adapters) -> None:
        async with b.another() as other:
            sides = (b, other)
            found = await asyncio.gather(
                *(
                    register_worker(sides[n % 2], f"worker-{n}", incarnation=f"life-{n}")
                    for n in range(6)
                )
            )
        assert sorted(index for _, index in found) == [0, 1, 2, 3, 4, 5]


class Routing:
    """The first job of a key creates the route; the others follow it."""

    @backend_test()
    async def test_all_jobs_of_a_key_go_to_one_worker(self, b: Adapters) -> None:
        anna, bert = await register_workers(b, 2)
        sent = await plan(b, "plan-7", 3)
        assert await fetch(b, bert) == []  # which routes them to the lowest index
        assert ids(await fetch(b, anna)) == ids(sent)
        more = await plan(b, "plan-7", 2)
        assert await fetch(b, bert) == []
        assert ids(await fetch(b, anna)) == ids(more)

    @backend_test()
    async def test_fewest_live_routes_then_the_lowest_index(self, b: Adapters) -> None:
        first, *_ = await register_workers(b, 3)
        for key in ("a", "b", "c", "d"):
            await plan(b, key)
            await fetch(b, first)
        assert await live(b) == {"a": 0, "b": 1, "c": 2, "d": 0}
        (last,) = await b.routes.routes(key="d")
        assert sorted(last.among) == [(0, 1), (1, 1), (2, 1)]

    @backend_test()
    async def test_only_workers_that_serve_the_queue_and_know_the_task(self, b: Adapters) -> None:
        await register_worker(b, "mail", queues=("mail",))
        await register_worker(b, "other", tasks=("tests.other",))
        anna = await register_worker(b)
        (sent,) = await plan(b, "plan-7")
        assert ids(await fetch(b, anna)) == [sent.id]
        assert await live(b) == {"plan-7": 2}

    @backend_test()
    async def test_a_worker_that_stops_gets_no_route(self, b: Adapters) -> None:
        (leaving, _), anna = await register_workers(b, 2)
        await b.registry.heartbeat(leaving, running=0, epoch=0, stopping=True)
        (sent,) = await plan(b, "plan-7")
        assert ids(await fetch(b, anna)) == [sent.id]

    @backend_test()
    async def test_without_any_worker_for_it_a_job_waits_and_one_that_comes_gets_it(
        self, b: Adapters
    ) -> None:
        other = await register_worker(b, "other", tasks=())
        (sent,) = await plan(b, "plan-7")
        assert await fetch(b, other) == []
        assert (await b.records.find(sent.id)).state is State.WAITING
        anna = await register_worker(b)
        assert ids(await fetch(b, anna)) == [sent.id]

    @backend_test("notify")
    async def test_the_worker_that_has_the_key_is_woken(self, b: Adapters) -> None:
        anna, bert = await register_workers(b, 2)
        await plan(b, "a")
        await fetch(b, anna)
        async with b.another() as other:
            waiting = asyncio.create_task(fetch(other, bert, wait=LONG_WAIT))
            await asyncio.sleep(SOON)
            (sent,) = await plan(b, "b")
            assert await fetch(b, anna) == []
            assert ids(await waiting) == [sent.id]

    @backend_test()
    async def test_a_job_in_a_workers_own_queue_is_not_fetched_by_others(self, b: Adapters) -> None:
        anna, bert = await register_workers(b, 2)
        sent = await publish(b, queue=inbox(anna[1]))
        assert await fetch(b, bert) == []
        assert ids(await fetch(b, anna)) == [sent.id]

    @backend_test("priority")
    async def test_order_within_a_key_is_by_priority_then_age(self, b: Adapters) -> None:
        anna = await register_worker(b)
        low = await plan(b, "plan-7", 2)
        high = await plan(b, "plan-7", priority=5)
        assert ids(await fetch(b, anna)) == ids([*high, *low])

    @backend_test()
    async def test_other_gates_come_first(self, b: Adapters) -> None:
        anna, bert = await register_workers(b, 2)
        await b.gates.declare([Rule(name="limit:tests.add", capacity=1)])
        gates = ("limit:tests.add", PLAN)
        first, second = await publish(b, gates=gates), await publish(b, gates=gates)
        await fetch(b, bert)
        (running,) = await fetch(b, anna)
        assert running.id == first.id
        assert await fetch(b, bert) == []
        await settle(b, running, Succeeded(RESULT))
        await fetch(b, bert)
        assert ids(await fetch(b, anna)) == [second.id]

    @backend_test()
    async def test_a_record_names_the_queue_it_was_sent_to(self, b: Adapters) -> None:
        anna = await register_worker(b)
        (sent,) = await plan(b, "plan-7")
        (running,) = await fetch(b, anna)
        await settle(b, running, Succeeded(RESULT))
        assert (await b.records.find(sent.id)).queue == "default"

    @backend_test()
    async def test_a_requeued_job_goes_to_the_same_worker(self, b: Adapters) -> None:
        anna, bert = await register_workers(b, 2)
        (sent,) = await plan(b, "plan-7")
        for outcome in BACK:
            await fetch(b, bert)
            (running,) = await fetch(b, anna)
            await settle(b, running, outcome)
            assert sum((await depths(b)).values()) == 1
        await fetch(b, bert)
        assert ids(await fetch(b, anna)) == [sent.id]

    @backend_test()
    async def test_routes_stay_in_their_namespace(self, b: Adapters) -> None:
        anna = await register_worker(b)
        await plan(b, "plan-7")
        await fetch(b, anna)
        async with b.another(f"{b.namespace}2") as elsewhere:
            assert (await elsewhere.routes.routes(), await elsewhere.routes.worker_indexes()) == (
                [],
                [],
            )

    @backend_test()
    async def test_many_concurrent_fetches_make_one_route_per_key(self, b: Adapters) -> None:
        who = await register_workers(b, 4)
        async with b.another() as other:
            for n in range(12):
                await plan(b, f"plan-{n % 6}")
            sides = (b, other)
            await asyncio.gather(*(fetch(sides[n % 2], one) for n, one in enumerate(who)))
            made = await b.routes.routes(live=False, limit=100)
        assert sorted(route.key for route in made) == [f"plan-{n}" for n in range(6)]
        _replayed(made)


def _replayed(made: Sequence[Any]) -> None:
    """Check that each route went to the worker with the fewest routes, then the lowest index."""
    for route in made:
        before = [r for r in made if r.number < route.number]
        alive = [r.index for r in before if r.released is None or r.released > route.made]
        counts = {index: alive.count(index) for index, _ in route.among}
        assert dict(route.among) == counts
        assert route.index == min(counts, key=lambda index: (counts[index], index))


class Releasing:
    """A route ends when it is released, or when its worker is lost."""

    @backend_test()
    async def test_after_a_release_the_next_job_makes_a_new_route(self, b: Adapters) -> None:
        anna, bert = await register_workers(b, 2)
        await plan(b, "plan-7")
        (running,) = await fetch(b, anna)
        await settle(b, running, Succeeded(RESULT))
        released = await b.routes.release("plan-7", "done with it")
        assert released is not None
        assert (released.why, released.closing) == ("done with it", False)
        assert released.released is not None
        await plan(b, "other")
        await plan(b, "plan-7")
        await fetch(b, anna)
        assert await live(b) == {"other": 0, "plan-7": 1}
        assert len(await fetch(b, bert)) == 1
        history = await b.routes.routes(key="plan-7", live=False)
        assert [(r.index, r.released is None) for r in history] == [(1, True), (0, False)]

    @backend_test()
    async def test_releasing_a_key_without_a_route_returns_none(self, b: Adapters) -> None:
        assert await b.routes.release("unknown") is None
        assert await b.routes.find("unknown") is None

    @backend_test()
    async def test_while_something_runs_a_released_key_goes_nowhere_else(self, b: Adapters) -> None:
        anna, bert = await register_workers(b, 2)
        first, second, third = await plan(b, "plan-7", 3)
        running = (await fetch(b, anna, Demand.of(io=1)))[0]
        assert running.id == first.id
        closing = await b.routes.release("plan-7")
        assert closing is not None
        assert (closing.closing, closing.released) == (True, None)
        await plan(b, "other")  # which makes bert the better choice
        for who in (anna, bert):
            assert all(one.id not in (second.id, third.id) for one in await fetch(b, who))
        await settle(b, running, Succeeded(RESULT))
        await fetch(b, anna)
        await fetch(b, bert)
        (route,) = await b.routes.routes(key="plan-7")
        assert not route.closing
        got = ids(await fetch(b, (anna, bert)[route.index])) if not route.held else []
        assert {second.id, third.id} <= {*got, *ids(await self._held(b))}

    async def _held(self, b: Adapters) -> list[Any]:
        from umbel.backends import JobFilter

        return [r for r in await b.records.search(JobFilter()) if r.state is State.RUNNING]

    @backend_test()
    async def test_a_lost_workers_routes_are_released_and_its_jobs_go_elsewhere_in_order(
        self, b: Adapters
    ) -> None:
        anna, bert = await register_workers(b, 2)
        sent = await plan(b, "plan-7", 4)
        (running,) = await fetch(b, anna, Demand.of(io=1))
        await kill(b, anna[0])
        (lost,) = await b.routes.sweep()
        assert (lost.key, lost.index, lost.released is not None) == ("plan-7", 0, True)
        assert ids(await fetch(b, bert)) == ids(sent[1:])
        assert await b.broker.recover() == [running.id]
        assert ids(await fetch(b, bert)) == [running.id]
        assert await live(b) == {"plan-7": 1}

    @backend_test()
    async def test_a_lost_workers_routes_are_released_by_the_next_fetch(self, b: Adapters) -> None:
        anna, bert = await register_workers(b, 2)
        await plan(b, "plan-7")
        (running,) = await fetch(b, anna)
        await settle(b, running, Succeeded(RESULT))
        await kill(b, anna[0])
        (sent,) = await plan(b, "plan-7")
        assert ids(await fetch(b, bert)) == [sent.id]

    @backend_test()
    async def test_no_worker_inherits_the_routes_of_another_name(self, b: Adapters) -> None:
        anna, bert = await register_workers(b, 2)
        sent = await plan(b, "plan-7", 2)
        await fetch(b, anna, Demand.of(io=1))
        (before,) = await b.routes.routes()
        await kill(b, anna[0])
        new = await register_worker(b, "new")
        assert new[1] == anna[1]
        assert ids(await fetch(b, new)) == [sent[1].id]
        (after,) = await b.routes.routes()
        assert (after.index, after.number > before.number) == (0, True)
        assert await fetch(b, bert) == []

    @backend_test()
    async def test_a_worker_that_comes_back_in_time_has_its_routes(self, b: Adapters) -> None:
        anna, bert = await register_workers(b, 2)
        (sent,) = await plan(b, "plan-7")
        await fetch(b, bert)
        await b.registry.unregister(anna[0])
        assert await b.routes.sweep() == []
        assert await fetch(b, bert) == []
        again = await register_worker(b, "worker-0")
        assert again[1] == 0
        assert ids(await fetch(b, again)) == [sent.id]

    @backend_test()
    async def test_an_index_is_not_kept_for_longer_than_a_lease(self, b: Adapters) -> None:
        anna, bert = await register_workers(b, 2)
        (sent,) = await plan(b, "plan-7")
        await fetch(b, bert)
        await b.registry.unregister(anna[0])
        b.advance(11)
        assert [route.key for route in await b.routes.sweep()] == ["plan-7"]
        assert ids(await fetch(b, bert)) == [sent.id]

    @backend_test()
    async def test_a_worker_that_registers_again_keeps_its_routes(self, b: Adapters) -> None:
        first = worker("anna")
        anna = (first.incarnation, await b.registry.register(replace(first, index=0)))
        await register_worker(b, "bert")
        (sent,) = await plan(b, "plan-7")
        await fetch(b, anna, Demand.of(cpu=1))
        again = await register_worker(b, "anna", index=0)
        await kill(b, anna[0])
        assert await b.routes.sweep() == []
        assert ids(await fetch(b, again)) == [sent.id]

    @backend_test()
    async def test_idle_routes_are_released_after_a_while(self, b: Adapters) -> None:
        anna = await register_worker(b)
        await plan(b, "busy")
        await plan(b, "idle")
        done, still = await fetch(b, anna)
        if done.slots[-1].gate != route_gate("idle"):
            done, still = still, done
        await settle(b, done, Succeeded(RESULT))
        assert await b.routes.sweep(idle=60) == []
        b.advance(61)
        assert [(r.key, r.why) for r in await b.routes.sweep(idle=60)] == [("idle", "idle")]
        assert still.slots[-1].gate == route_gate("busy")
        assert await live(b) == {"busy": 0}

    @backend_test()
    async def test_a_route_moves_when_its_work_is_done(self, b: Adapters) -> None:
        anna, bert, cleo = await register_workers(b, 3)
        first, second = await plan(b, "plan-7", 2)
        (running,) = await fetch(b, anna, Demand.of(io=1))
        await b.routes.move("plan-7", 2)
        assert await fetch(b, cleo) == []
        await settle(b, running, Succeeded(RESULT))
        await fetch(b, bert)
        assert await live(b) == {"plan-7": 2}
        assert ids(await fetch(b, cleo)) == [second.id]
        assert running.id == first.id

    @backend_test()
    async def test_a_retiring_worker_keeps_its_runs_and_gets_no_new_ones(self, b: Adapters) -> None:
        anna, bert = await register_workers(b, 2)
        first, second = await plan(b, "plan-7", 2)
        (running,) = await fetch(b, anna, Demand.of(io=1))
        assert await b.routes.retire(0) == 1
        (other,) = await plan(b, "other")
        assert ids(await fetch(b, bert)) == [other.id]
        assert await fetch(b, anna) == []
        await settle(b, running, Succeeded(RESULT))
        assert ids(await fetch(b, bert)) == [second.id]
        assert (running.id, await live(b)) == (first.id, {"other": 1, "plan-7": 1})
        (seat, _) = await b.routes.worker_indexes()
        assert (seat.index, seat.retiring, seat.routes) == (0, True, 0)

    @backend_test()
    async def test_a_worker_may_be_called_back_from_retirement(self, b: Adapters) -> None:
        anna = await register_worker(b)
        await b.routes.retire(0)
        (sent,) = await plan(b, "plan-7")
        assert await fetch(b, anna) == []
        await b.routes.retire(0, False)
        assert ids(await fetch(b, anna)) == [sent.id]

    @backend_test()
    async def test_every_end_frees_the_route(self, b: Adapters) -> None:
        anna = await register_worker(b)
        for outcome in ENDS:
            await plan(b, "plan-7")
            (running,) = await fetch(b, anna)
            assert [r.held for r in await b.routes.routes()] == [1]
            await settle(b, running, outcome)
            assert [r.held for r in await b.routes.routes()] == [0]
            await b.routes.release("plan-7")
            assert await live(b) == {}

    @backend_test()
    async def test_a_cancelled_job_frees_the_route(self, b: Adapters) -> None:
        anna, bert = await register_workers(b, 2)
        (sent,) = await plan(b, "plan-7")
        await fetch(b, bert)
        assert await b.control.cancel([sent.id], "no") == {sent.id: State.CANCELLED}
        assert [r.held for r in await b.routes.routes()] == [0]
        assert await fetch(b, anna) == []


class OnlyIfRouted:
    """Jobs that run only if their key has a route."""

    @backend_test()
    async def test_without_a_route_it_passes_to_end(self, b: Adapters) -> None:
        anna = await register_worker(b)
        sent = await clean_up(b, "plan-7")
        (found,) = await fetch(b, anna)
        assert found.id == sent.id
        assert found.slots[-1].rejected
        assert await live(b) == {}

    @backend_test()
    async def test_with_a_route_it_goes_there(self, b: Adapters) -> None:
        anna, bert = await register_workers(b, 2)
        await plan(b, "plan-7")
        sent = await clean_up(b, "plan-7")
        await fetch(b, bert)
        found = await fetch(b, anna)
        assert found[-1].id == sent.id
        assert not found[-1].slots[-1].rejected

    @backend_test()
    async def test_the_oldest_job_makes_the_route_first(self, b: Adapters) -> None:
        anna = await register_worker(b)
        (first,) = await plan(b, "plan-7", kind="cpu")
        sent = await clean_up(b, "plan-7", kind="io")
        found = {one.id: one for one in await fetch(b, anna)}
        if sent.id not in found:
            found |= {one.id: one for one in await fetch(b, anna)}
        assert first.id in found
        assert not found[sent.id].slots[-1].rejected

    @backend_test("priority")
    async def test_the_oldest_job_makes_the_route_even_before_more_urgent_ones(
        self, b: Adapters
    ) -> None:
        anna = await register_worker(b)
        before = await clean_up(b, "plan-7", priority=1)
        (first,) = await plan(b, "plan-7")
        after = await clean_up(b, "plan-7", priority=5)
        found = {one.id: one for one in [*await fetch(b, anna), *await fetch(b, anna)]}
        rejected = {job: one.slots[-1].rejected for job, one in found.items()}
        assert rejected == {before.id: True, first.id: False, after.id: False}

    @backend_test()
    async def test_it_does_not_wait_for_one_that_was_cancelled(self, b: Adapters) -> None:
        anna = await register_worker(b)
        (first,) = await plan(b, "plan-7", queue="other")
        sent = await clean_up(b, "plan-7")
        assert await fetch(b, anna) == []
        await b.control.cancel([first.id], "no")
        b.advance(2)
        (found,) = await fetch(b, anna)
        assert (found.id, found.slots[-1].rejected) == (sent.id, True)


class RouteNamespaces:
    """Jobs with the same id in two namespaces have separate routes."""

    @backend_test()
    async def test_a_routed_job_leaves_the_job_of_the_same_id_elsewhere_waiting(
        self, b: Adapters
    ) -> None:
        async with b.another(f"{b.namespace}2") as other:
            anna, (first,) = await register_worker(b), await plan(b, "plan-7")
            last = await clean_up(b, "plan-8")
            for one in (first, last):
                await publish(other, id=one.id, gates=one.gates)
            assert sorted(ids([*await fetch(b, anna), *await fetch(b, anna)])) == sorted(
                [first.id, last.id]
            )
            assert await depths(other) == {("default", "waiting"): 2}
            bert = await register_worker(other)
            found = [*await fetch(other, bert), *await fetch(other, bert)]
            assert sorted(ids(found)) == sorted([first.id, last.id])
            assert len(await other.routes.routes(live=True)) == 2


class RouteSuite(
    WorkerIndexes, Routing, Releasing, OnlyIfRouted, RouteNamespaces, ConcurrentRouting
):
    """Routes over a broker and its store. Inherit it beside a ``backend`` fixture."""
