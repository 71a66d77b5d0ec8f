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
from umbel.testing.acts import (
    FAILURE,
    PATIENCE,
    PLENTY,
    RESULT,
    SOON,
    depths,
    ids,
    kill,
    publish,
    publish_many,
    settle,
    take,
    worker,
)
from umbel.testing.backend import Backend, story
from umbel.testing.brokers.route_crowd import Crowd

PLAN = route_gate("plan-7")
BACK: tuple[Outcome, ...] = (Retry(FAILURE, 0.0), Interrupted("stopping"))
ENDS: tuple[Outcome, ...] = (Succeeded(RESULT), Failed(FAILURE), Snoozed(SOON * 1e6))


async def sit(b: Backend, name: str = "anna", **changes: Any) -> tuple[str, int]:
    """Enlist a worker; its incarnation and its index."""
    entry = replace(worker(name), **changes)
    return entry.incarnation, await b.registry.enlist(entry)


async def crew(b: Backend, many: int) -> list[tuple[str, int]]:
    return [await sit(b, f"worker-{n}") for n in range(many)]


async def fetch(
    b: Backend, who: tuple[str, int], demand: Demand = PLENTY, **how: Any
) -> list[Delivery]:
    """What a worker gets, from its own queue and the common one.

    One look may only send a job to its worker; the next one brings it.
    """
    queues = (inbox(who[1]), "default")
    found = await take(b, who[0], demand, queues=queues, **how)
    return found or await take(b, who[0], demand, queues=queues)


async def plan(b: Backend, key: str, many: int = 1, **changes: Any) -> list[Envelope]:
    return await publish_many(b, many, gates=(route_gate(key),), **changes)


async def clean_up(b: Backend, key: str, **changes: Any) -> Envelope:
    return await publish(b, gates=(route_gate(key),), headers={ONLY_IF_ROUTED: "yes"}, **changes)


async def live(b: Backend) -> dict[str, int]:
    """Live routes: keys and the indexes that have them."""
    return {route.key: route.index for route in await b.routes.routes(limit=1000)}


class Seats:
    """Every worker has an index of its own."""

    @story()
    async def test_workers_get_the_lowest_free_index(self, b: Backend) -> None:
        assert [index for _, index in await crew(b, 3)] == [0, 1, 2]
        assert [(s.index, s.worker, s.alive) for s in await b.routes.seats()] == [
            (n, f"worker-{n}", True) for n in range(3)
        ]

    @story()
    async def test_members_show_their_index(self, b: Backend) -> None:
        await crew(b, 2)
        assert {m.entry.name: m.entry.index for m in await b.registry.members()} == {
            "worker-0": 0,
            "worker-1": 1,
        }

    @story()
    async def test_the_index_of_a_dead_worker_is_free_again(self, b: Backend) -> None:
        (first, _), _ = await crew(b, 2)
        await kill(b, first)
        assert (await sit(b, "new"))[1] == 0

    @story()
    async def test_an_index_that_was_asked_for_is_given(self, b: Backend) -> None:
        assert (await sit(b, "three", index=3))[1] == 3
        assert (await sit(b, "any"))[1] == 0

    @story()
    async def test_no_two_names_share_an_index(self, b: Backend) -> None:
        await sit(b, "anna", index=3)
        with pytest.raises(IndexTaken, match="index=3: worker anna has it"):
            await sit(b, "bert", index=3)
        assert [s.worker for s in await b.routes.seats()] == ["anna"]

    @story()
    async def test_the_same_name_may_come_back_before_its_last_life_has_lapsed(
        self, b: Backend
    ) -> None:
        await sit(b, "anna", index=3)
        assert (await sit(b, "anna", index=3))[1] == 3

    @story()
    async def test_enlisting_again_gives_the_same_index(self, b: Backend) -> None:
        entry = worker("anna")
        assert [await b.registry.enlist(entry), await b.registry.enlist(entry)] == [0, 0]

    @story()
    async def test_a_seat_is_kept_for_a_name_that_left_in_good_order(self, b: Backend) -> None:
        (first, _), _ = await crew(b, 2)
        await b.registry.leave(first)
        assert (await sit(b, "other"))[1] == 2
        assert (await sit(b, "worker-0"))[1] == 0

    @story()
    async def test_many_that_come_at_once_have_different_indexes(self, b: Backend) -> None:
        async with b.another() as other:
            sides = (b, other)
            found = await asyncio.gather(
                *(sit(sides[n % 2], f"worker-{n}", incarnation=f"life-{n}") for n in range(6))
            )
        assert sorted(index for _, index in found) == [0, 1, 2, 3, 4, 5]


class Routing:
    """The first job makes the route, the others follow it."""

    @story()
    async def test_all_jobs_of_a_key_go_to_one_worker(self, b: Backend) -> None:
        anna, bert = await crew(b, 2)
        sent = await plan(b, "plan-7", 3)
        assert await fetch(b, bert) == []  # which routes them to the lowest index
        assert ids(await fetch(b, anna)) == ids(sent)
        more = await plan(b, "plan-7", 2)
        assert await fetch(b, bert) == []
        assert ids(await fetch(b, anna)) == ids(more)

    @story()
    async def test_fewest_live_routes_then_the_lowest_index(self, b: Backend) -> None:
        first, *_ = await crew(b, 3)
        for key in ("a", "b", "c", "d"):
            await plan(b, key)
            await fetch(b, first)
        assert await live(b) == {"a": 0, "b": 1, "c": 2, "d": 0}
        (last,) = await b.routes.routes(key="d")
        assert sorted(last.among) == [(0, 1), (1, 1), (2, 1)]

    @story()
    async def test_only_workers_that_serve_the_queue_and_know_the_task(self, b: Backend) -> None:
        await sit(b, "mail", queues=("mail",))
        await sit(b, "other", tasks=("tests.other",))
        anna = await sit(b)
        (sent,) = await plan(b, "plan-7")
        assert ids(await fetch(b, anna)) == [sent.id]
        assert await live(b) == {"plan-7": 2}

    @story()
    async def test_a_worker_that_stops_gets_no_route(self, b: Backend) -> None:
        (leaving, _), anna = await crew(b, 2)
        await b.registry.beat(leaving, running=0, epoch=0, stopping=True)
        (sent,) = await plan(b, "plan-7")
        assert ids(await fetch(b, anna)) == [sent.id]

    @story()
    async def test_without_any_worker_for_it_a_job_waits_and_one_that_comes_gets_it(
        self, b: Backend
    ) -> None:
        other = await sit(b, "other", tasks=())
        (sent,) = await plan(b, "plan-7")
        assert await fetch(b, other) == []
        assert (await b.records.find(sent.id)).state is State.WAITING
        anna = await sit(b)
        assert ids(await fetch(b, anna)) == [sent.id]

    @story("notify")
    async def test_the_worker_that_has_the_key_is_woken(self, b: Backend) -> None:
        anna, bert = await crew(b, 2)
        await plan(b, "a")
        await fetch(b, anna)
        async with b.another() as other:
            waiting = asyncio.create_task(fetch(other, bert, wait=PATIENCE))
            await asyncio.sleep(SOON)
            (sent,) = await plan(b, "b")
            assert await fetch(b, anna) == []
            assert ids(await waiting) == [sent.id]

    @story()
    async def test_a_job_in_a_workers_own_queue_is_for_nobody_else(self, b: Backend) -> None:
        anna, bert = await crew(b, 2)
        sent = await publish(b, queue=inbox(anna[1]))
        assert await fetch(b, bert) == []
        assert ids(await fetch(b, anna)) == [sent.id]

    @story("priority")
    async def test_order_within_a_key_is_by_priority_then_age(self, b: Backend) -> None:
        anna = await sit(b)
        low = await plan(b, "plan-7", 2)
        high = await plan(b, "plan-7", priority=5)
        assert ids(await fetch(b, anna)) == ids([*high, *low])

    @story()
    async def test_other_gates_come_first(self, b: Backend) -> None:
        anna, bert = await crew(b, 2)
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

    @story()
    async def test_a_record_names_the_queue_it_was_sent_to(self, b: Backend) -> None:
        anna = await sit(b)
        (sent,) = await plan(b, "plan-7")
        (running,) = await fetch(b, anna)
        await settle(b, running, Succeeded(RESULT))
        assert (await b.records.find(sent.id)).queue == "default"

    @story()
    async def test_what_goes_back_comes_to_the_same_worker(self, b: Backend) -> None:
        anna, bert = await crew(b, 2)
        (sent,) = await plan(b, "plan-7")
        for outcome in BACK:
            await fetch(b, bert)
            (running,) = await fetch(b, anna)
            await settle(b, running, outcome)
            assert sum((await depths(b)).values()) == 1
        await fetch(b, bert)
        assert ids(await fetch(b, anna)) == [sent.id]

    @story()
    async def test_routes_stay_in_their_namespace(self, b: Backend) -> None:
        anna = await sit(b)
        await plan(b, "plan-7")
        await fetch(b, anna)
        async with b.another(f"{b.namespace}2") as elsewhere:
            assert (await elsewhere.routes.routes(), await elsewhere.routes.seats()) == ([], [])

    @story()
    async def test_many_who_fetch_at_once_make_one_route_a_key(self, b: Backend) -> None:
        who = await crew(b, 4)
        async with b.another() as other:
            for n in range(12):
                await plan(b, f"plan-{n % 6}")
            sides = (b, other)
            await asyncio.gather(*(fetch(sides[n % 2], one) for n, one in enumerate(who)))
            made = await b.routes.routes(live=False, limit=100)
        assert sorted(route.key for route in made) == [f"plan-{n}" for n in range(6)]
        _replayed(made)


def _replayed(made: Sequence[Any]) -> None:
    """Each choice was the fewest, then the lowest, as the history of all routes has it."""
    for route in made:
        before = [r for r in made if r.number < route.number]
        alive = [r.index for r in before if r.released is None or r.released > route.made]
        counts = {index: alive.count(index) for index, _ in route.among}
        assert dict(route.among) == counts
        assert route.index == min(counts, key=lambda index: (counts[index], index))


class Releasing:
    """A route ends when somebody says so, or when its worker is lost."""

    @story()
    async def test_after_a_release_the_next_job_makes_a_new_route(self, b: Backend) -> None:
        anna, bert = await crew(b, 2)
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

    @story()
    async def test_releasing_what_is_not_routed_is_told(self, b: Backend) -> None:
        assert await b.routes.release("nobody") is None
        assert await b.routes.find("nobody") is None

    @story()
    async def test_while_something_runs_a_released_key_goes_nowhere_else(self, b: Backend) -> None:
        anna, bert = await crew(b, 2)
        first, second, third = await plan(b, "plan-7", 3)
        running = (await fetch(b, anna, Demand(1, 0)))[0]
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

    async def _held(self, b: Backend) -> list[Any]:
        from umbel.backends import JobFilter

        return [r for r in await b.records.search(JobFilter()) if r.state is State.RUNNING]

    @story()
    async def test_a_lost_workers_routes_are_released_and_its_jobs_go_elsewhere_in_order(
        self, b: Backend
    ) -> None:
        anna, bert = await crew(b, 2)
        sent = await plan(b, "plan-7", 4)
        (running,) = await fetch(b, anna, Demand(1, 0))
        await kill(b, anna[0])
        (lost,) = await b.routes.sweep()
        assert (lost.key, lost.index, lost.released is not None) == ("plan-7", 0, True)
        assert ids(await fetch(b, bert)) == ids(sent[1:])
        assert await b.broker.recover() == [running.id]
        assert ids(await fetch(b, bert)) == [running.id]
        assert await live(b) == {"plan-7": 1}

    @story()
    async def test_a_lost_workers_routes_are_released_by_whoever_fetches(self, b: Backend) -> None:
        anna, bert = await crew(b, 2)
        await plan(b, "plan-7")
        (running,) = await fetch(b, anna)
        await settle(b, running, Succeeded(RESULT))
        await kill(b, anna[0])
        (sent,) = await plan(b, "plan-7")
        assert ids(await fetch(b, bert)) == [sent.id]

    @story()
    async def test_nobody_inherits_the_routes_of_another_name(self, b: Backend) -> None:
        anna, bert = await crew(b, 2)
        sent = await plan(b, "plan-7", 2)
        await fetch(b, anna, Demand(1, 0))
        (before,) = await b.routes.routes()
        await kill(b, anna[0])
        new = await sit(b, "new")
        assert new[1] == anna[1]
        assert ids(await fetch(b, new)) == [sent[1].id]
        (after,) = await b.routes.routes()
        assert (after.index, after.number > before.number) == (0, True)
        assert await fetch(b, bert) == []

    @story()
    async def test_whoever_comes_back_in_time_has_its_routes(self, b: Backend) -> None:
        anna, bert = await crew(b, 2)
        (sent,) = await plan(b, "plan-7")
        await fetch(b, bert)
        await b.registry.leave(anna[0])
        assert await b.routes.sweep() == []
        assert await fetch(b, bert) == []
        again = await sit(b, "worker-0")
        assert again[1] == 0
        assert ids(await fetch(b, again)) == [sent.id]

    @story()
    async def test_a_seat_is_not_kept_for_longer_than_a_lease(self, b: Backend) -> None:
        anna, bert = await crew(b, 2)
        (sent,) = await plan(b, "plan-7")
        await fetch(b, bert)
        await b.registry.leave(anna[0])
        b.advance(11)
        assert [route.key for route in await b.routes.sweep()] == ["plan-7"]
        assert ids(await fetch(b, bert)) == [sent.id]

    @story()
    async def test_a_life_that_begins_anew_keeps_its_routes(self, b: Backend) -> None:
        first = worker("anna")
        anna = (first.incarnation, await b.registry.enlist(replace(first, index=0)))
        await sit(b, "bert")
        (sent,) = await plan(b, "plan-7")
        await fetch(b, anna, Demand(0, 1))
        again = await sit(b, "anna", index=0)
        await kill(b, anna[0])
        assert await b.routes.sweep() == []
        assert ids(await fetch(b, again)) == [sent.id]

    @story()
    async def test_idle_routes_are_released_after_a_while(self, b: Backend) -> None:
        anna = await sit(b)
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

    @story()
    async def test_a_route_moves_when_its_work_is_done(self, b: Backend) -> None:
        anna, bert, cleo = await crew(b, 3)
        first, second = await plan(b, "plan-7", 2)
        (running,) = await fetch(b, anna, Demand(1, 0))
        await b.routes.move("plan-7", 2)
        assert await fetch(b, cleo) == []
        await settle(b, running, Succeeded(RESULT))
        await fetch(b, bert)
        assert await live(b) == {"plan-7": 2}
        assert ids(await fetch(b, cleo)) == [second.id]
        assert running.id == first.id

    @story()
    async def test_a_retiring_worker_keeps_what_runs_and_gets_nothing_new(self, b: Backend) -> None:
        anna, bert = await crew(b, 2)
        first, second = await plan(b, "plan-7", 2)
        (running,) = await fetch(b, anna, Demand(1, 0))
        assert await b.routes.retire(0) == 1
        (other,) = await plan(b, "other")
        assert ids(await fetch(b, bert)) == [other.id]
        assert await fetch(b, anna) == []
        await settle(b, running, Succeeded(RESULT))
        assert ids(await fetch(b, bert)) == [second.id]
        assert (running.id, await live(b)) == (first.id, {"other": 1, "plan-7": 1})
        (seat, _) = await b.routes.seats()
        assert (seat.index, seat.retiring, seat.routes) == (0, True, 0)

    @story()
    async def test_a_worker_may_be_called_back_from_retirement(self, b: Backend) -> None:
        anna = await sit(b)
        await b.routes.retire(0)
        (sent,) = await plan(b, "plan-7")
        assert await fetch(b, anna) == []
        await b.routes.retire(0, False)
        assert ids(await fetch(b, anna)) == [sent.id]

    @story()
    async def test_every_end_frees_the_route(self, b: Backend) -> None:
        anna = await sit(b)
        for outcome in ENDS:
            await plan(b, "plan-7")
            (running,) = await fetch(b, anna)
            assert [r.held for r in await b.routes.routes()] == [1]
            await settle(b, running, outcome)
            assert [r.held for r in await b.routes.routes()] == [0]
            await b.routes.release("plan-7")
            assert await live(b) == {}

    @story()
    async def test_a_cancelled_job_frees_the_route(self, b: Backend) -> None:
        anna, bert = await crew(b, 2)
        (sent,) = await plan(b, "plan-7")
        await fetch(b, bert)
        assert await b.control.cancel([sent.id], "no") == {sent.id: State.CANCELLED}
        assert [r.held for r in await b.routes.routes()] == [0]
        assert await fetch(b, anna) == []


class OnlyIfRouted:
    """Some work makes sense only where the key has a worker."""

    @story()
    async def test_without_a_route_it_passes_to_end(self, b: Backend) -> None:
        anna = await sit(b)
        sent = await clean_up(b, "plan-7")
        (found,) = await fetch(b, anna)
        assert found.id == sent.id
        assert found.slots[-1].rejected
        assert await live(b) == {}

    @story()
    async def test_with_a_route_it_goes_there(self, b: Backend) -> None:
        anna, bert = await crew(b, 2)
        await plan(b, "plan-7")
        sent = await clean_up(b, "plan-7")
        await fetch(b, bert)
        found = await fetch(b, anna)
        assert found[-1].id == sent.id
        assert not found[-1].slots[-1].rejected

    @story()
    async def test_whoever_came_before_makes_the_route_first(self, b: Backend) -> None:
        anna = await sit(b)
        (first,) = await plan(b, "plan-7", kind="cpu")
        sent = await clean_up(b, "plan-7", kind="io")
        found = {one.id: one for one in await fetch(b, anna)}
        if sent.id not in found:
            found |= {one.id: one for one in await fetch(b, anna)}
        assert first.id in found
        assert not found[sent.id].slots[-1].rejected

    @story("priority")
    async def test_whoever_came_before_makes_the_route_even_for_more_urgent_ones(
        self, b: Backend
    ) -> None:
        anna = await sit(b)
        before = await clean_up(b, "plan-7", priority=1)
        (first,) = await plan(b, "plan-7")
        after = await clean_up(b, "plan-7", priority=5)
        found = {one.id: one for one in [*await fetch(b, anna), *await fetch(b, anna)]}
        rejected = {job: one.slots[-1].rejected for job, one in found.items()}
        assert rejected == {before.id: True, first.id: False, after.id: False}

    @story()
    async def test_it_does_not_wait_for_one_that_was_cancelled(self, b: Backend) -> None:
        anna = await sit(b)
        (first,) = await plan(b, "plan-7", queue="other")
        sent = await clean_up(b, "plan-7")
        assert await fetch(b, anna) == []
        await b.control.cancel([first.id], "no")
        b.advance(2)
        (found,) = await fetch(b, anna)
        assert (found.id, found.slots[-1].rejected) == (sent.id, True)


class RoutesOfNamespaces:
    """The same job id in two namespaces goes by two routes."""

    @story()
    async def test_a_job_that_goes_to_its_worker_leaves_the_other_of_that_id_in_line(
        self, b: Backend
    ) -> None:
        async with b.another(f"{b.namespace}2") as other:
            anna, (first,) = await sit(b), await plan(b, "plan-7")
            last = await clean_up(b, "plan-8")
            for one in (first, last):
                await publish(other, id=one.id, gates=one.gates)
            assert sorted(ids([*await fetch(b, anna), *await fetch(b, anna)])) == sorted(
                [first.id, last.id]
            )
            assert await depths(other) == {("default", "waiting"): 2}
            bert = await sit(other)
            found = [*await fetch(other, bert), *await fetch(other, bert)]
            assert sorted(ids(found)) == sorted([first.id, last.id])
            assert len(await other.routes.routes(live=True)) == 2


class RouteSuite(Seats, Routing, Releasing, OnlyIfRouted, RoutesOfNamespaces, Crowd):
    """Routes over a broker and its store. Inherit it beside a ``backend`` fixture."""
