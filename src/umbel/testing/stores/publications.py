"""Publications of joins: added as a whole, held until they are sealed; and blocked jobs."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable
from contextlib import suppress
from typing import Any

import pytest

from umbel.backends import JobFilter, JobStore, Published
from umbel.backends.joins import MAX_RELEASED, NEVER_SEALED
from umbel.errors import BadMessage, ConfigurationError, DuplicateJob, UnknownJob
from umbel.messages import (
    GROUP_HEADER,
    Edge,
    Failed,
    Join,
    Outcome,
    Publication,
    Rule,
    State,
    Succeeded,
    Wait,
    fresh_id,
)
from umbel.testing.actions import (
    FAILURE,
    FAR,
    RESULT,
    SOON,
    claim,
    claim_one,
    depths,
    envelope,
    ids,
    key_taken,
    publish,
    publish_and_claim,
    publish_and_settle,
    register,
    settle,
)
from umbel.testing.backend import Adapters, backend_test
from umbel.testing.brokers.transactions import ChangeOfMind
from umbel.testing.stores.graphs import (
    Graph,
    OneWorker,
    advance,
    names,
    parts,
    reason,
    results,
    state,
    states,
)

BLOCKED, QUEUED, CANCELLED = State.BLOCKED, State.QUEUED, State.CANCELLED
TIMES_WITHOUT_NUMBER = [
    (field, value)
    for field in ("delay", "expires_in", "expires", "not_before")
    for value in (math.nan, math.inf, -math.inf)
]


async def assert_unknown(b: Adapters, g: Graph) -> None:
    """Check that nothing of a publication was added."""
    for job in g.envelopes:
        with pytest.raises(UnknownJob):
            await b.records.find(job.id)
    for join in g.joins:
        assert await b.joins.results(join.id) == []
        late = envelope(b)
        with pytest.raises(ConfigurationError):
            await b.joins.add(Publication(envelopes=(late,), waits=(Wait(late.id, join.id),)))
    assert await b.broker.depths() == []


def connecting(opener: Callable[[], Any] | None) -> Callable[[], Any]:
    """Return what opens a caller's own transaction; skip the test if there is nothing."""
    if opener is None:
        pytest.skip("there is no connection beside the adapters' own")
    return opener


class Adding:
    """``add``: all or nothing, and once."""

    @backend_test()
    async def test_every_envelope_is_answered_with_its_id(self, b: Adapters) -> None:
        g = Graph(b)
        g.job(after=g.join(*g.jobs(2)))
        assert await g.add() == [Published(job.id) for job in g.envelopes]

    @backend_test()
    async def test_a_publication_that_is_added_again_changes_nothing(self, b: Adapters) -> None:
        g = Graph(b)
        waiter = g.job(after=(join := g.join(part := g.job())))
        await g.add()
        worker = await OneWorker.start(b)
        await worker.end(part)
        await worker.holds(waiter)
        async with b.another() as other:
            again = await other.joins.add(g.publication())
        assert again == [Published(job.id, existing=True) for job in g.envelopes]
        assert await parts(b, join) == [(0, part.id, State.SUCCEEDED)]
        assert await worker.end(waiter) == []
        assert await g.add() == again
        assert await advance(b) == 0
        assert await states(b, part, waiter) == [State.SUCCEEDED] * 2

    @backend_test()
    async def test_processes_that_add_the_same_publication_at_once_add_it_once(
        self, b: Adapters
    ) -> None:
        g = Graph(b)
        waiter = g.job(after=(join := g.join(*g.jobs(3))))
        async with b.another() as other:
            sides = (b, other, b, other)
            answers = await asyncio.gather(*(one.joins.add(g.publication()) for one in sides))
        assert [[one.id for one in answer] for answer in answers] == [ids(g.envelopes)] * 4
        assert len(await parts(b, join)) == 3
        worker = await OneWorker.start(b)
        for job in g.envelopes[:3]:
            await worker.end(job)
        assert await state(b, waiter) is QUEUED

    @backend_test()
    async def test_a_join_without_parts_is_complete_at_once(self, b: Adapters) -> None:
        g = Graph(b)
        every, success = g.job(after=g.join()), g.job(after=g.join(fire="success"))
        never = g.job(after=g.join(fire="failure"))
        await g.add()
        assert await states(b, every, success) == [QUEUED] * 2
        await advance(b)
        assert await state(b, never) is CANCELLED

    @backend_test()
    async def test_parts_that_have_ended_count_at_once(self, b: Adapters) -> None:
        done, failed = await publish_and_settle(b), await publish_and_settle(b, Failed(FAILURE))
        g = Graph(b)
        both = g.join(done, failed)
        queued = [g.job(after=both), g.job(after=g.join(failed, fire="failure"))]
        queued.append(g.job(after=g.join(done, fire="success")))
        cancelled = g.job(after=g.join(failed, fire="success"))
        waits = g.job(after=g.join(done, g.job(queue="other")))
        await g.add()
        assert await states(b, *queued) == [QUEUED] * 3
        await advance(b)
        assert await states(b, cancelled, waits) == [CANCELLED, BLOCKED]
        assert [
            (one.job, one.state, one.result, one.failure) for one in await results(b, both)
        ] == [
            (done, State.SUCCEEDED, RESULT, None),
            (failed, State.BURIED, None, FAILURE),
        ]

    @backend_test()
    async def test_jobs_published_before_may_be_parts(self, b: Adapters) -> None:
        owner = await register(b)
        running, queued = await publish_and_claim(b, owner), await publish(b, queue="other")
        g = Graph(b)
        waiter = g.job(after=g.join(running, queued), queue="after")
        await g.add()
        await settle(b, running, Succeeded(RESULT))
        assert await state(b, waiter) is BLOCKED
        await settle(b, await claim_one(b, owner, queues=("other",)), Succeeded(RESULT))
        assert await state(b, waiter) is QUEUED

    @backend_test()
    async def test_a_part_that_is_unknown_refuses_everything(self, b: Adapters) -> None:
        g = Graph(b)
        g.job(after=g.join(g.job(), fresh_id()))
        with pytest.raises(UnknownJob):
            await g.add()
        await assert_unknown(b, g)

    @backend_test()
    async def test_a_part_whose_record_was_pruned_is_unknown(self, b: Adapters) -> None:
        gone = await publish_and_settle(b)
        await b.records.prune(older_than=0, keep=0, limit=100)
        g = Graph(b)
        g.job(after=g.join(gone))
        with pytest.raises(UnknownJob):
            await g.add()
        await assert_unknown(b, g)

    @backend_test()
    async def test_a_part_of_an_unknown_join_refuses_everything(self, b: Adapters) -> None:
        g = Graph(b)
        g.job(after=g.join(part := g.job()))
        g.edges.append(Edge(part.id, "nothing", 0))
        with pytest.raises(ConfigurationError):
            await g.add()
        await assert_unknown(b, g)

    @backend_test()
    async def test_waiting_for_an_unknown_join_refuses_everything(self, b: Adapters) -> None:
        g = Graph(b)
        part = g.job()
        g.join(part)
        g.waits.append(Wait(g.job().id, "nothing"))
        with pytest.raises(ConfigurationError):
            await g.add()
        await assert_unknown(b, g)

    @backend_test()
    async def test_a_job_of_another_publication_cannot_be_made_to_wait(self, b: Adapters) -> None:
        done = await publish_and_settle(b)
        for job in (done, fresh_id()):
            g = Graph(b)
            g.waits.append(Wait(job, g.join(g.job()).id))
            with pytest.raises(ConfigurationError):
                await g.add()
            await assert_unknown(b, g)

    @backend_test()
    async def test_a_publication_that_contradicts_itself_is_refused(self, b: Adapters) -> None:
        twice, waits, places = Graph(b), Graph(b), Graph(b)
        twice.envelopes.append(twice.job())
        waiter = waits.job(after=waits.join())
        waits.waits.append(Wait(waiter.id, waits.join().id))
        places.edge(places.join(places.job()), places.job())
        for g, field in ((twice, "envelopes"), (waits, "waits"), (places, "edges")):
            with pytest.raises(ConfigurationError, match=field):
                await g.add()
            await assert_unknown(b, g)

    @backend_test()
    async def test_a_job_that_would_wait_for_itself_is_refused(self, b: Adapters) -> None:
        alone, round_trip = Graph(b), Graph(b)
        join = alone.join()
        alone.edge(join, alone.job(after=join))
        first, second = round_trip.join(), round_trip.join()
        round_trip.edge(second, round_trip.job(after=first))
        round_trip.edge(first, round_trip.job(after=second))
        for g in (alone, round_trip):
            with pytest.raises(ConfigurationError, match="waits for itself"):
                await g.add()
            await assert_unknown(b, g)

    @backend_test()
    async def test_a_job_of_another_namespace_is_refused(self, b: Adapters) -> None:
        g = Graph(b)
        g.job(after=g.join(g.job(namespace=f"{b.namespace}2")))
        with pytest.raises(ConfigurationError, match="namespace"):
            await g.add()
        await assert_unknown(b, g)

    @backend_test()
    async def test_a_time_that_is_no_number_is_refused_by_name(self, b: Adapters) -> None:
        for field in ("delay", "expires_in", "not_before", "expires"):
            for value in (float("nan"), float("inf")):
                g = Graph(b)
                g.job(after=g.join(g.job()), **{field: value})
                with pytest.raises(BadMessage, match=field):
                    await g.add()
                await assert_unknown(b, g)

    @backend_test()
    async def test_two_parts_cannot_have_one_position_of_a_held_join(self, b: Adapters) -> None:
        g = Graph(b)
        join = g.join(part := g.job(), held=True)
        await g.add()
        more = Graph(b, g.group)
        more.edge(join, second := more.job())
        with pytest.raises(ConfigurationError, match="position"):
            await more.add()
        with pytest.raises(UnknownJob):
            await b.records.find(second.id)
        assert await parts(b, join) == [(0, part.id, QUEUED)]

    @backend_test("unique")
    async def test_a_job_whose_unique_key_is_taken_is_cancelled_and_counted(
        self, b: Adapters
    ) -> None:
        holder = await publish(b, unique="only", queue="other")
        g = Graph(b)
        part, fine = g.job(unique="only"), g.job(unique="free")
        heir = g.job(after=(join := g.join(part, fire="failure")))
        doomed = g.job(after=g.join(part, fire="success"))
        assert [one.id for one in await g.add()] == ids(g.envelopes)
        record = await b.records.find(part.id)
        assert (record.state, record.reason) == (CANCELLED, key_taken("only", holder.id))
        assert await states(b, fine, heir) == [QUEUED] * 2
        await advance(b)
        assert await state(b, doomed) is CANCELLED
        assert [(one.state, one.reason) for one in await results(b, join)] == [
            (CANCELLED, key_taken("only", holder.id))
        ]
        assert await state(b, holder) is QUEUED

    @backend_test("unique")
    async def test_of_two_jobs_with_one_unique_key_one_has_it(self, b: Adapters) -> None:
        g = Graph(b)
        first, second = g.job(unique="only"), g.job(unique="only")
        waiters = [g.job(after=g.join(job)) for job in (first, second)]
        await g.add()
        found = await states(b, first, second)
        assert sorted(found) == sorted([QUEUED, CANCELLED])
        assert await states(b, *waiters) == [QUEUED if s is CANCELLED else BLOCKED for s in found]
        holder, other = (first, second) if found[0] is QUEUED else (second, first)
        assert await reason(b, other) == key_taken("only", holder.id)

    @backend_test("unique")
    async def test_a_job_that_would_wait_does_not_if_its_unique_key_is_taken(
        self, b: Adapters
    ) -> None:
        holder = await publish(b, unique="only", queue="other")
        g = Graph(b)
        waiter = g.job(after=g.join(part := g.job()), unique="only")
        await g.add()
        assert await reason(b, waiter) == key_taken("only", holder.id)
        await (await OneWorker.start(b)).end(part)
        await advance(b)
        assert await state(b, waiter) is CANCELLED

    @backend_test("transactional")
    async def test_a_publication_within_a_transaction_is_part_of_it(self, b: Adapters) -> None:
        kept, dropped = Graph(b), Graph(b)
        for g in (kept, dropped):
            g.job(after=g.join(g.job()))
        async with connecting(b.transaction)() as connection:
            await b.joins.add(kept.publication(), within=connection)
        with suppress(ChangeOfMind):
            async with connecting(b.transaction)() as connection:
                await b.joins.add(dropped.publication(), within=connection)
                raise ChangeOfMind
        assert await states(b, *kept.envelopes) == [QUEUED, BLOCKED]
        for job in dropped.envelopes:
            with pytest.raises(UnknownJob):
                await b.records.find(job.id)
        assert await b.joins.results(dropped.joins[0].id) == []

    @backend_test("transactional")
    async def test_sync_code_adds_a_publication_within_its_transaction(self, b: Adapters) -> None:
        kept, dropped = Graph(b), Graph(b)
        for g in (kept, dropped):
            g.job(after=g.join(g.job()))
        with connecting(b.sync_transaction)() as connection:
            answer = b.joins.add_within(kept.publication(), connection)
        with suppress(ChangeOfMind), connecting(b.sync_transaction)() as connection:
            b.joins.add_within(dropped.publication(), connection)
            raise ChangeOfMind
        assert ids(answer) == ids(kept.envelopes)
        assert await states(b, *kept.envelopes) == [QUEUED, BLOCKED]
        with pytest.raises(UnknownJob):
            await b.records.find(dropped.envelopes[0].id)
        worker = await OneWorker.start(b)
        await worker.end(kept.envelopes[0])
        assert await state(b, kept.envelopes[1]) is QUEUED

    @backend_test("transactional")
    async def test_a_refused_publication_leaves_nothing_in_a_transaction_that_commits(
        self, b: Adapters
    ) -> None:
        g = Graph(b)
        g.job(after=g.join(g.job(), fresh_id()))
        async with connecting(b.transaction)() as connection:
            with pytest.raises(UnknownJob):
                await b.joins.add(g.publication(), within=connection)
        await assert_unknown(b, g)

    @backend_test()
    async def test_of_two_processes_that_add_a_publication_one_is_told_that_it_exists(
        self, b: Adapters
    ) -> None:
        async with b.another() as other:
            for _ in range(10):
                g = Graph(b)
                g.job(after=g.join(*g.jobs(20)))
                answers = await asyncio.gather(
                    b.joins.add(g.publication()), other.joins.add(g.publication())
                )
                new = [Published(job.id) for job in g.envelopes]
                known = [Published(job.id, existing=True) for job in g.envelopes]
                assert new in answers
                assert known in answers

    @backend_test()
    async def test_a_live_job_that_is_published_again_as_a_part_is_counted(
        self, b: Adapters
    ) -> None:
        known = await publish(b)
        g = Graph(b)
        first = g.job()
        g.envelopes.append(known)
        waiter = g.job(after=(join := g.join(first, known)))
        assert [one.existing for one in await g.add()] == [False, True, False]
        worker = await OneWorker.start(b)
        await worker.holds(first, known)
        await worker.end(first)
        assert await state(b, waiter) is BLOCKED
        await worker.end(known, keep=False)
        assert await state(b, waiter) is QUEUED
        assert [one.state for one in await results(b, join)] == [State.SUCCEEDED] * 2

    @backend_test()
    async def test_a_job_that_waits_for_itself_is_refused_by_its_id(self, b: Adapters) -> None:
        direct, indirect = Graph(b), Graph(b)
        join = direct.join(direct.job())
        direct.edge(join, direct.job(after=join), first=1)
        one, two = indirect.join(), indirect.join()
        indirect.edge(two, indirect.job(after=one))
        indirect.edge(one, indirect.job(after=two))
        for g in (direct, indirect):
            with pytest.raises(ConfigurationError, match="itself") as refused:
                await g.add()
            assert any(wait.job in str(refused.value) for wait in g.waits)
            await assert_unknown(b, g)

    @backend_test()
    async def test_a_job_of_another_namespace_refuses_everything(self, b: Adapters) -> None:
        elsewhere = f"{b.namespace}2"
        g = Graph(b)
        stranger = g.job(namespace=elsewhere)
        g.job(after=g.join(g.job(), stranger))
        with pytest.raises(ConfigurationError, match="namespace"):
            await g.add()
        await assert_unknown(b, g)
        async with b.another(elsewhere) as other:
            with pytest.raises(UnknownJob):
                await other.records.find(stranger.id)

    @backend_test()
    async def test_a_complete_join_takes_no_part_although_it_is_named_again(
        self, b: Adapters
    ) -> None:
        worker = await OneWorker.start(b)
        cases: list[tuple[Outcome, State]] = [
            (Succeeded(RESULT), QUEUED),
            (Failed(FAILURE), CANCELLED),  # by ``advance``, which has not run
        ]
        for outcome, expected in cases:
            g = Graph(b)
            waiter = g.job(after=(join := g.join(part := g.job(), fire="success")))
            await g.add()
            await worker.end(part, outcome)
            late = Graph(b, g.group)
            late.joins.append(join)
            late.edge(join, more := late.job(), first=5)
            with pytest.raises(ConfigurationError, match=join.id):
                await late.add()
            with pytest.raises(UnknownJob):
                await b.records.find(more.id)
            await advance(b)
            assert [one[:2] for one in await parts(b, join)] == [(0, part.id)]
            assert await state(b, waiter) is expected
            await b.broker.purge("default")

    @backend_test()
    async def test_positions_and_names_that_no_store_can_keep_are_refused(
        self, b: Adapters
    ) -> None:
        g = Graph(b)
        join = g.join(part := g.job())
        for position in (-1, -(2**31), 2**31, 2**70, True, 1.5):
            with pytest.raises(ConfigurationError, match="position"):
                g.edges.append(Edge(part.id, join.id, position))  # type: ignore[arg-type]
        for name in ("a\0b", "\ud800", "a\udfff", "", "a" * 256):
            with pytest.raises(ConfigurationError, match="id="):
                g.joins.append(Join(name, g.group))
            with pytest.raises(ConfigurationError, match="group="):
                g.joins.append(Join(fresh_id(), name))
        g.edge(join, part, first=2**31 - 1)
        g.joins.append(odd := Join("ü✓ {'\"%\\}:*" + g.group, g.group))
        g.edge(odd, part)
        await g.add()
        assert [one[0] for one in await parts(b, join)] == [0, 2**31 - 1]
        assert await parts(b, odd) == [(0, part.id, QUEUED)]

    @backend_test()
    async def test_a_time_that_is_no_number_refuses_everything(self, b: Adapters) -> None:
        for field, value in TIMES_WITHOUT_NUMBER:
            g, time = Graph(b), dict[str, Any]({field: value})
            g.job(after=g.join(g.job(), g.job(**time)))
            for _ in range(2):  # the first one has left nothing that the second could find
                with pytest.raises(BadMessage) as refused:
                    await g.add()
                assert refused.value.field == field, value
            await assert_unknown(b, g)


class Holding:
    """A held join does not complete before it is sealed."""

    @backend_test()
    async def test_a_held_join_is_complete_when_it_is_sealed(self, b: Adapters) -> None:
        g = Graph(b)
        waiter = g.job(after=(join := g.join(part := g.job(), held=True)))
        await g.add()
        await (await OneWorker.start(b)).end(part)
        await advance(b)
        assert await state(b, waiter) is BLOCKED
        assert await b.joins.seal([join.id]) == 1
        assert await state(b, waiter) is QUEUED

    @backend_test()
    async def test_a_sealed_join_waits_for_its_parts(self, b: Adapters) -> None:
        g = Graph(b)
        waiter = g.job(after=(join := g.join(part := g.job(), held=True)))
        await g.add()
        assert await b.joins.seal([join.id]) == 1
        assert await state(b, waiter) is BLOCKED
        await (await OneWorker.start(b)).end(part)
        assert await state(b, waiter) is QUEUED

    @backend_test()
    async def test_sealing_counts_only_joins_that_were_held(self, b: Adapters) -> None:
        g = Graph(b)
        held = [g.join(held=True), g.join(held=True)]
        joins = [*(join.id for join in held), g.join(g.job()).id, "nothing"]
        g.job(after=held[0])
        await g.add()
        assert await b.joins.seal(joins) == 2
        assert await b.joins.seal(joins) == 0
        assert await b.joins.seal([]) == 0

    @backend_test()
    async def test_a_sealed_join_without_parts_is_complete(self, b: Adapters) -> None:
        g = Graph(b)
        join = g.join(held=True)
        waiter = g.job(after=join)
        await g.add()
        assert await state(b, waiter) is BLOCKED
        await b.joins.seal([join.id])
        assert await state(b, waiter) is QUEUED

    @backend_test()
    async def test_a_sealed_join_whose_parts_failed_cancels(self, b: Adapters) -> None:
        g = Graph(b)
        waiter = g.job(after=(join := g.join(part := g.job(), fire="success", held=True)))
        await g.add()
        await b.control.cancel([part.id], "")
        await b.joins.seal([join.id])
        await advance(b)
        assert await state(b, waiter) is CANCELLED

    @backend_test()
    async def test_parts_are_added_to_a_held_join_in_several_publications(
        self, b: Adapters
    ) -> None:
        g = Graph(b)
        join = g.join(*g.jobs(2), held=True)
        await g.add()
        worker = await OneWorker.start(b)
        for job in g.envelopes:
            await worker.end(job)
        chunks = [g]
        for n in range(1, 4):
            more = Graph(b, g.group)
            more.edge(join, *more.jobs(2), first=2 * n)
            for _ in range(2):  # repeating it adds nothing
                await more.add()
            chunks.append(more)
        last = Graph(b, g.group)
        waiter = last.job(after=join)
        await last.add()
        assert [one[:2] for one in await parts(b, join)] == [
            *enumerate(job.id for chunk in chunks for job in chunk.envelopes)
        ]
        assert await b.joins.seal([join.id]) == 1
        assert await state(b, waiter) is BLOCKED
        for chunk in chunks[1:]:
            for job in chunk.envelopes:
                assert await state(b, waiter) is BLOCKED
                await worker.end(job)
        assert await state(b, waiter) is QUEUED

    @backend_test()
    async def test_joins_without_jobs_may_be_added_again(self, b: Adapters) -> None:
        join = Join(fresh_id(), fresh_id(), held=True)
        for _ in range(2):
            assert await b.joins.add(Publication(joins=(join,))) == []
        g = Graph(b, join.group)
        waiter = g.job(after=join)
        await g.add()
        assert await b.joins.seal([join.id]) == 1
        await b.joins.add(Publication(joins=(join,)))
        assert await state(b, waiter) is QUEUED

    @backend_test()
    async def test_a_join_that_is_never_sealed_is_abandoned(self, b: Adapters) -> None:
        g = Graph(b)
        join = g.join(part := g.job(), held=True)
        waiter = g.job(after=join)
        heir = g.job(after=g.join(waiter, fire="failure"))
        await g.add()
        assert await b.joins.sweep(FAR) == []
        assert await state(b, waiter) is BLOCKED
        assert await swept(b) == [join.id]
        await advance(b)
        assert await states(b, part, waiter, heir) == [QUEUED, CANCELLED, QUEUED]
        assert await reason(b, waiter) == NEVER_SEALED
        assert await b.joins.sweep(0.0) == []
        assert await b.joins.seal([join.id]) == 0
        assert await (await OneWorker.start(b)).end(part) == []
        await advance(b)
        assert await state(b, waiter) is CANCELLED

    @backend_test()
    async def test_joins_that_were_sealed_are_not_abandoned(self, b: Adapters) -> None:
        g = Graph(b)
        sealed, plain, held = g.join(g.job(), held=True), g.join(g.job()), g.join(held=True)
        waiters = [g.job(after=join) for join in (sealed, plain)]
        g.job(after=held)
        await g.add()
        await b.joins.seal([sealed.id])
        assert await swept(b) == [held.id]
        await advance(b)
        assert await states(b, *waiters) == [BLOCKED] * 2

    @backend_test()
    async def test_a_sweep_abandons_no_more_than_its_limit(self, b: Adapters) -> None:
        g = Graph(b)
        joins = [g.join(held=True) for _ in range(5)]
        waiters = [g.job(after=join) for join in joins]
        await g.add()
        found = await swept(b, limit=2)
        assert len(found) <= 2
        while more := await swept(b, limit=2, once=len(found) >= 5):
            assert len(more) <= 2
            found += more
        assert sorted(found) == sorted(join.id for join in joins)
        await advance(b)
        assert {await reason(b, waiter) for waiter in waiters} == {NEVER_SEALED}

    @backend_test()
    async def test_a_job_that_waited_for_an_abandoned_join_may_run_again(self, b: Adapters) -> None:
        worker = await OneWorker.start(b)
        for again in (b.records.replay, b.joins.reopen):
            g = Graph(b)
            join = g.join(part := g.job(queue="other"), held=True)
            waiter = g.job(after=join)
            await g.add()
            assert await swept(b) == [join.id]
            await advance(b)
            assert await state(b, waiter) is CANCELLED
            assert await again([waiter.id]) == [waiter.id]
            await advance(b)
            assert await states(b, part, waiter) == [QUEUED] * 2, "nothing would ever release it"
            assert await worker.end(waiter) == []
            await b.broker.purge("other")

    @backend_test()
    async def test_a_part_of_an_abandoned_join_is_reopened_alone(self, b: Adapters) -> None:
        g = Graph(b)
        join = g.join(part := g.job(), held=True)
        waiter = g.job(after=join)
        await g.add()
        worker = await OneWorker.start(b)
        await worker.end(part, Failed(FAILURE))
        assert await swept(b) == [join.id]
        await advance(b)
        assert await b.joins.reopen([part.id]) == [part.id]
        assert await states(b, part, waiter) == [QUEUED, CANCELLED]
        await worker.end(part)
        await advance(b)
        assert await state(b, waiter) is CANCELLED
        assert await reason(b, waiter) == NEVER_SEALED

    @backend_test()
    async def test_an_abandoned_join_that_blocks_more_jobs_than_a_step_cancels_never_fires(
        self, b: Adapters
    ) -> None:
        g = Graph(b)
        join = g.join(part := g.job(queue="other"), held=True)
        waiters = g.jobs(MAX_RELEASED + 50, after=join)
        await g.add()
        assert await swept(b) == [join.id]
        assert await b.joins.seal([join.id]) == 0
        await b.control.cancel([part.id], "")
        await advance(b)
        assert await b.broker.depths() == []
        assert await claim(b, await register(b)) == []
        assert {await reason(b, waiter) for waiter in waiters[::100]} == {NEVER_SEALED}


async def swept(b: Adapters, limit: int = 100, once: bool = False) -> list[str]:
    """Abandon joins that were held for a moment, once the store's clock says so."""
    while True:
        if b.time_travels:
            b.advance(1.0)
        found = await b.joins.sweep(0.05, limit)
        if found or once:
            return found
        await asyncio.sleep(0.02)


async def expired(b: Adapters) -> list[str]:
    """Wait until jobs have expired, by the store's clock; return their ids."""
    while True:
        if b.time_travels:
            b.advance(1.0)
        found = await b.broker.expire(100)
        if found:
            return found
        await asyncio.sleep(0.02)


class BlockedJobs:
    """A job that waits for a join is live: it can be seen, ended and moved."""

    @backend_test()
    async def test_a_blocked_job_is_seen_but_not_fetched(self, b: Adapters) -> None:
        g = Graph(b)
        waiter = g.job(after=g.join(part := g.job(queue="other")), priority=3)
        await g.add()
        assert await claim(b, await register(b)) == []
        assert not await b.broker.has_waiting_jobs(["default"], ["io", "cpu"])
        record = await b.records.find(waiter.id)
        assert (record.state, record.priority, record.queue) == (BLOCKED, 3, "default")
        assert (record.headers[GROUP_HEADER], record.finished) == (g.group, None)
        found = await b.records.search(JobFilter(states=(BLOCKED,)))
        assert [one.id for one in found] == [waiter.id]
        every = await b.records.search(JobFilter())
        assert {one.id for one in every} == {waiter.id, part.id}
        assert await depths(b) == {("default", "blocked"): 1, ("other", "queued"): 1}
        counted = {(one.queue, one.jobs) for one in await b.records.count_waiting()}
        assert counted == {("default", 1), ("other", 1)}

    @backend_test()
    async def test_a_blocked_job_is_cancelled_and_never_runs(self, b: Adapters) -> None:
        g = Graph(b)
        waiter = g.job(after=g.join(part := g.job()))
        heir = g.job(after=g.join(waiter))
        await g.add()
        assert await b.control.cancel([waiter.id], "not wanted") == {waiter.id: CANCELLED}
        assert await reason(b, waiter) == "not wanted"
        assert await state(b, heir) is QUEUED
        await (await OneWorker.start(b)).end(part)
        await advance(b)
        assert await state(b, waiter) is CANCELLED

    @backend_test()
    async def test_blocked_jobs_are_buried_and_purged(self, b: Adapters) -> None:
        g = Graph(b)
        join = g.join(g.job(queue="other"))
        buried, purged = g.job(after=join), g.job(after=join)
        await g.add()
        assert await b.control.bury([buried.id], "no use") == [buried.id]
        assert await b.broker.purge("default") == 1
        assert await states(b, buried, purged) == [State.BURIED, CANCELLED]
        assert await depths(b) == {("other", "queued"): 1}

    @backend_test("move")
    async def test_blocked_jobs_are_moved_and_still_wait(self, b: Adapters) -> None:
        g = Graph(b)
        waiter = g.job(after=g.join(part := g.job(queue="other")))
        await g.add()
        assert await b.broker.move("default", "third") == 1
        assert await depths(b) == {("third", "blocked"): 1, ("other", "queued"): 1}
        owner = await register(b)
        await settle(b, await claim_one(b, owner, queues=("other",)), Succeeded(RESULT))
        assert part.id != waiter.id
        assert (await claim_one(b, owner, queues=("third",))).id == waiter.id

    @backend_test("unique")
    async def test_a_blocked_job_holds_its_unique_key_until_it_ends(self, b: Adapters) -> None:
        g = Graph(b)
        waiter = g.job(after=g.join(g.job(queue="other")), unique="only")
        await g.add()
        with pytest.raises(DuplicateJob):
            await publish(b, unique="only")
        new = await publish(b, unique="only", on_conflict="replace")
        assert await state(b, waiter) is CANCELLED
        assert new.id in await reason(b, waiter)

    @backend_test("delay")
    async def test_seconds_of_a_blocked_job_count_from_its_release(self, b: Adapters) -> None:
        g = Graph(b)
        waiter = g.job(after=g.join(part := g.job()), delay=FAR, expires_in=2 * FAR)
        await g.add()
        found = await b.records.find(waiter.id)
        assert (found.state, found.not_before, found.expires) == (BLOCKED, None, None)
        if b.time_travels:
            b.advance(3 * FAR)
        worker = await OneWorker.start(b)
        (held,) = await worker.holds(part)
        await worker.end(part)
        last = (await publish_and_claim(b)).claimed
        found = await b.records.find(waiter.id)
        assert found.state is State.SCHEDULED
        assert found.not_before is not None
        assert found.expires is not None
        assert held.claimed + FAR - 0.001 <= found.not_before <= last + FAR + 0.001
        assert held.claimed + 2 * FAR - 0.001 <= found.expires <= last + 2 * FAR + 0.001

    @backend_test("delay")
    async def test_a_released_job_with_a_delay_runs_when_it_is_over(self, b: Adapters) -> None:
        g = Graph(b)
        waiter = g.job(after=g.join(part := g.job()), delay=SOON)
        await g.add()
        worker = await OneWorker.start(b)
        await worker.end(part)
        assert await worker.end(waiter) == []

    @backend_test()
    async def test_a_blocked_job_does_not_expire_by_seconds_before_its_release(
        self, b: Adapters
    ) -> None:
        g = Graph(b)
        waiter = g.job(after=g.join(part := g.job()), expires_in=SOON)
        await g.add()
        if b.time_travels:
            b.advance(FAR)
        else:
            await asyncio.sleep(2 * SOON)
        assert await b.broker.expire(100) == []
        assert await b.joins.resolve(part.id, Succeeded(RESULT))
        assert await expired(b) == [waiter.id]
        assert await state(b, waiter) is State.EXPIRED

    @backend_test()
    async def test_a_blocked_job_expires_at_its_time(self, b: Adapters) -> None:
        g = Graph(b)
        waiter = g.job(after=g.join(part := g.job()), expires=b.clock.now() - 60)
        heir = g.job(after=g.join(waiter))
        await g.add()
        assert await b.broker.expire(100) == [waiter.id]
        assert await states(b, part, waiter, heir) == [QUEUED, State.EXPIRED, QUEUED]

    @backend_test("delay")
    async def test_a_blocked_job_whose_time_has_not_come_is_scheduled(self, b: Adapters) -> None:
        g = Graph(b)
        waiter = g.job(after=g.join(part := g.job()), not_before=b.clock.now() + FAR)
        await g.add()
        assert await state(b, waiter) is BLOCKED
        await b.control.cancel([part.id], "")
        assert await state(b, waiter) is State.SCHEDULED

    @backend_test()
    async def test_a_released_job_passes_its_gates(self, b: Adapters) -> None:
        await b.gates.declare([Rule(name="limit:narrow", capacity=1)])
        g = Graph(b)
        join = g.join(part := g.job())
        waiters = g.jobs(2, after=join, gates=("limit:narrow",))
        await g.add()
        assert await states(b, *waiters) == [BLOCKED] * 2
        assert not any(gate.waiting for gate in await b.gates.gates())
        worker = await OneWorker.start(b)
        await worker.end(part)
        assert BLOCKED not in await states(b, *waiters)
        (first,) = await worker.fetch(10.0)
        assert await worker.end(next(one for one in waiters if one.id == first)) == []
        (second,) = await worker.fetch(10.0)
        assert sorted([first, second]) == names(waiters)

    @backend_test()
    async def test_a_pause_holds_for_released_jobs(self, b: Adapters) -> None:
        g = Graph(b)
        waiter = g.job(after=g.join(part := g.job()), subject="tests.paused")
        await g.add()
        await b.pauses.pause("task", "tests.paused", "")
        worker = await OneWorker.start(b)
        await worker.end(part)
        assert await worker.fetch() == []
        await b.pauses.resume("task", "tests.paused")
        assert await worker.fetch(10.0) == [waiter.id]

    @backend_test()
    async def test_a_blocked_job_is_not_sent_by_a_transport(self, b: Adapters) -> None:
        store: JobStore = b.broker  # type: ignore[assignment]
        if not hasattr(store, "find_unsent"):
            pytest.skip("the broker is no job store")
        g = Graph(b)
        waiter = g.job(after=g.join(part := g.job()))
        await g.add()
        assert ids(await store.find_unsent(["default"], 10, 0.0)) == [part.id]
        owner = await register(b)
        claimed = await store.claim({part.id: "default", waiter.id: "default"}, owner)
        assert (ids(claimed.deliveries), claimed.unknown) == ([part.id], [])
        await settle(b, claimed.deliveries[0], Succeeded(RESULT))
        assert ids(await store.find_unsent(["default"], 10, 0.0)) == [waiter.id]
