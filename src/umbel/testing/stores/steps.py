"""Steps: recorded once, under the current lease, and kept as long as their job."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from functools import partial
from typing import Any

import pytest

from umbel.backends import Changes, Transactions
from umbel.errors import ConfigurationError, LeaseLost, UnknownJob
from umbel.messages import (
    JSON,
    Body,
    Cancelled,
    Delivery,
    Failed,
    Interrupted,
    KeptStep,
    Lease,
    Outcome,
    Retry,
    State,
    Step,
    Succeeded,
    fresh_id,
)
from umbel.testing.actions import (
    FAILURE,
    FAR,
    claim,
    claim_one,
    envelope,
    kill,
    publish,
    publish_and_claim,
    publish_many,
    register,
    settle,
)
from umbel.testing.backend import Adapters, backend_test

ALL = 1_000_000


def done(
    delivery: Delivery, number: int = 1, name: str = "fetch", data: bytes = b"[1]"
) -> KeptStep:
    """Return a step that a delivery's run has completed."""
    began = 1_700_000_000.25
    body = Body(JSON, data)
    step = Step(number=number, name=name, result=body, started=began, finished=began + 1.5)
    return KeptStep(delivery.lease, step)


class RecordingSteps:
    """A step is recorded once, and only by the worker that holds the job."""

    @backend_test("records")
    async def test_recorded_steps_are_read_in_order(self, b: Adapters) -> None:
        held = await publish_and_claim(b)
        kept = [done(held, 3, "c"), done(held, 1, "a"), done(held, 2, "b\n'\"\\ é 😀")]
        assert await b.steps.keep(kept) == []
        found = await b.steps.steps(held.id)
        assert found == sorted((one.step for one in kept), key=lambda step: step.number)
        assert found[0].seconds == 1.5

    @backend_test("records")
    async def test_results_of_any_bytes_come_back_as_they_were(self, b: Adapters) -> None:
        held = await publish_and_claim(b)
        for number, data in enumerate((b"", b"\x00\xff\x80", b"x" * 100_000), 1):
            body = Body("application/msgpack", data)
            step = Step(number=number, name="n", result=body, started=1.0, finished=2.0)
            assert await b.steps.keep([KeptStep(held.lease, step)]) == []
            assert (await b.steps.steps(held.id))[-1] == step

    @backend_test("records")
    async def test_another_process_reads_recorded_steps(self, b: Adapters) -> None:
        held = await publish_and_claim(b)
        await b.steps.keep([done(held)])
        async with b.another() as other:
            assert await other.steps.steps(held.id) == [done(held).step]

    @backend_test("records")
    async def test_the_first_in_a_place_stays(self, b: Adapters) -> None:
        held = await publish_and_claim(b)
        await b.steps.keep([done(held, data=b"1")])
        assert await b.steps.keep([done(held, data=b"2"), done(held, 2, data=b"3")]) == []
        assert [step.result.data for step in await b.steps.steps(held.id)] == [b"1", b"3"]

    @backend_test("records")
    async def test_a_job_without_steps_and_an_unknown_one_have_none(self, b: Adapters) -> None:
        held = await publish_and_claim(b)
        for job in (held.id, fresh_id(), "no such id"):
            assert await b.steps.steps(job) == []

    @backend_test("records")
    async def test_a_batch_of_several_jobs_is_kept_with_each_its_own(self, b: Adapters) -> None:
        await publish_many(b, 20)
        held = await claim(b, await register(b))
        batch = [done(one, number) for number in (1, 2) for one in held]
        assert await b.steps.keep(batch) == []
        for one in held:
            assert [step.number for step in await b.steps.steps(one.id)] == [1, 2]

    @backend_test("records")
    async def test_nothing_is_kept_under_a_lease_that_is_not_held(self, b: Adapters) -> None:
        held, sent = await publish_and_claim(b), await publish(b)
        lease = held.lease
        for false in (
            Lease(lease.job, lease.owner, lease.fence + 1),
            Lease(lease.job, lease.owner, lease.fence - 1),
            Lease(lease.job, "another-worker", lease.fence),
            Lease(sent.id, lease.owner, 0),
            Lease(fresh_id(), lease.owner, 1),
        ):
            kept = KeptStep(false, done(held).step)
            assert await b.steps.keep([kept]) == [kept], false
        assert await b.steps.steps(held.id) == []
        assert await b.steps.steps(sent.id) == []

    @backend_test("records")
    async def test_of_a_batch_only_those_whose_lease_is_lost_are_refused(self, b: Adapters) -> None:
        held = await publish_and_claim(b)
        false = KeptStep(Lease(held.id, "another-worker", held.lease.fence), done(held, 2).step)
        assert await b.steps.keep([done(held, 1), false, done(held, 3)]) == [false]
        assert [step.number for step in await b.steps.steps(held.id)] == [1, 3]

    @backend_test("records")
    async def test_a_worker_that_was_considered_dead_records_no_more_steps(
        self, b: Adapters
    ) -> None:
        dead = await register(b, "dead")
        first = await publish_and_claim(b, dead)
        await b.steps.keep([done(first, 1)])
        await kill(b, dead)
        await b.broker.recover()
        assert await b.steps.keep([done(first, 2)]) == [done(first, 2)]
        second = await claim_one(b, await register(b))
        assert await b.steps.keep([done(first, 2)]) == [done(first, 2)]
        assert await b.steps.keep([done(second, 2, data=b"2")]) == []
        assert [step.result.data for step in await b.steps.steps(first.id)] == [b"[1]", b"2"]

    @backend_test("records")
    async def test_a_job_that_gets_on_is_not_to_blame_for_the_deaths_of_its_workers(
        self, b: Adapters
    ) -> None:
        sent = await publish(b)
        for number in range(1, 6):
            dead = await register(b, "dead")
            held = await claim_one(b, dead)
            assert await b.steps.keep([done(held, number)]) == []
            await kill(b, dead)
            await b.broker.recover()
        assert (await b.records.find(sent.id)).state is State.QUEUED
        for _ in range(
            2
        ):  # now it counts as stuck: with the last one above, these are three deaths
            dead = await register(b, "dead")
            await claim_one(b, dead)
            await kill(b, dead)
            await b.broker.recover()
        found = await b.records.find(sent.id)
        assert (found.state, found.deaths) == (State.BURIED, 7)

    @backend_test("records")
    async def test_a_job_that_is_settled_keeps_nothing_more(self, b: Adapters) -> None:
        ends: list[Outcome] = [Succeeded(), Failed(FAILURE), Retry(FAILURE, FAR)]
        for outcome in [*ends, Interrupted("later")]:
            held = await publish_and_claim(b)
            await settle(b, held, outcome)
            assert await b.steps.keep([done(held)]) == [done(held)], outcome
            assert await b.steps.steps(held.id) == []
            await b.broker.purge("default")

    @backend_test("records")
    async def test_two_processes_that_keep_in_one_place_keep_one(self, b: Adapters) -> None:
        held = await publish_and_claim(b)
        mine, theirs = done(held, data=b"1"), done(held, data=b"2")
        async with b.another() as other:
            await asyncio.gather(b.steps.keep([mine]), other.steps.keep([theirs]))
            found = await b.steps.steps(held.id)
            assert found in ([mine.step], [theirs.step])
            assert await other.steps.steps(held.id) == found


class StepLifetime:
    """Steps exist as long as their job."""

    @backend_test("records")
    async def test_steps_stay_whatever_puts_the_job_back(self, b: Adapters) -> None:
        held = await publish_and_claim(b)
        ends: list[Outcome] = [Retry(FAILURE, 0), Interrupted("later")]
        for number, outcome in enumerate(ends, 1):
            await b.steps.keep([done(held, number)])
            await settle(b, held, outcome)
            assert len(await b.steps.steps(held.id)) == number
            held = await claim_one(b, held.lease.owner)

    @backend_test("records")
    async def test_steps_stay_with_the_record(self, b: Adapters) -> None:
        for outcome in (Succeeded(), Failed(FAILURE), Cancelled("no")):
            held = await publish_and_claim(b)
            await b.steps.keep([done(held)])
            await settle(b, held, outcome)
            assert await b.steps.steps(held.id) == [done(held).step], outcome

    @backend_test("records", "forgets")
    async def test_a_success_that_is_not_kept_leaves_no_steps(self, b: Adapters) -> None:
        held, other = await publish_and_claim(b), await publish_and_claim(b)
        await b.steps.keep([done(held), done(other)])
        await settle(b, held, Succeeded(), keep=False)
        assert await b.steps.steps(held.id) == []
        assert await b.steps.steps(other.id) == [done(other).step]
        await _is_forgotten_for_good(b, held)

    @backend_test("records")
    async def test_pruning_a_job_removes_its_steps(self, b: Adapters) -> None:
        held = await publish_and_claim(b)
        await b.steps.keep([done(held)])
        await settle(b, held, Succeeded())
        assert await b.records.prune(older_than=0, keep=ALL, limit=ALL) == 1
        await _is_forgotten_for_good(b, held)

    @backend_test("records")
    async def test_pruning_by_number_removes_steps(self, b: Adapters) -> None:
        both = [await publish_and_claim(b) for _ in range(2)]
        for held in both:
            await b.steps.keep([done(held)])
            await settle(b, held, Succeeded())
        assert await b.records.prune(older_than=FAR, keep=1, limit=ALL) == 1
        assert [len(await b.steps.steps(held.id)) for held in both] == [0, 1]

    @backend_test("records")
    async def test_removing_a_job_removes_its_steps(self, b: Adapters) -> None:
        held, other = await publish_and_claim(b), await publish_and_claim(b)
        await b.steps.keep([done(held), done(other)])
        await settle(b, held, Failed(FAILURE))
        assert await b.records.remove([held.id, other.id]) == 1
        assert await b.steps.steps(other.id) == [done(other).step]
        await _is_forgotten_for_good(b, held)

    @backend_test("records")
    async def test_a_replayed_job_has_its_steps(self, b: Adapters) -> None:
        held = await publish_and_claim(b)
        await b.steps.keep([done(held)])
        await settle(b, held, Failed(FAILURE))
        await b.records.replay([held.id])
        again = await claim_one(b, held.lease.owner)
        assert again.lease.fence > 1, "a fence of one says that nothing was kept before"
        assert await b.steps.steps(held.id) == [done(held).step]
        assert await b.steps.keep([done(again, 2)]) == []
        assert len(await b.steps.steps(held.id)) == 2

    @backend_test("records")
    async def test_a_job_replayed_from_scratch_has_none(self, b: Adapters) -> None:
        both = [await publish_and_claim(b) for _ in range(2)]
        for held in both:
            await b.steps.keep([done(held), done(held, 2)])
            await settle(b, held, Failed(FAILURE))
        assert await b.records.replay([both[0].id], Changes(from_scratch=True)) == [both[0].id]
        assert await b.steps.steps(both[0].id) == []
        assert len(await b.steps.steps(both[1].id)) == 2

    @backend_test("records")
    async def test_a_job_that_cannot_be_replayed_keeps_its_steps(self, b: Adapters) -> None:
        ended, held = await publish_and_claim(b), await publish_and_claim(b)
        await b.steps.keep([done(held), done(ended)])
        await settle(b, ended, Succeeded())
        assert await b.records.replay([held.id, ended.id], Changes(from_scratch=True)) == []
        for one in (held, ended):
            assert await b.steps.steps(one.id) == [done(one).step]

    @backend_test("records", "forgets")
    async def test_a_replayed_job_that_vanishes_takes_its_old_steps_along(
        self, b: Adapters
    ) -> None:
        held = await publish_and_claim(b)
        await b.steps.keep([done(held)])
        await settle(b, held, Failed(FAILURE))
        await b.records.replay([held.id])
        again = await claim_one(b, held.lease.owner)
        await settle(b, again, Succeeded(), keep=False)
        await _is_forgotten_for_good(b, held)

    @backend_test("records")
    async def test_cancelled_and_purged_jobs_keep_steps_with_their_record(
        self, b: Adapters
    ) -> None:
        for purged in (False, True):
            held = await publish_and_claim(b)
            await b.steps.keep([done(held)])
            await settle(b, held, Interrupted("later"))
            if purged:
                await b.broker.purge("default")
            else:
                await b.control.cancel([held.id], "no")
            assert await b.steps.steps(held.id) == [done(held).step]
            await b.records.remove([held.id])
            await _is_forgotten_for_good(b, held)

    @backend_test("records")
    async def test_steps_stay_in_their_namespace(self, b: Adapters) -> None:
        held = await publish_and_claim(b)
        await b.steps.keep([done(held)])
        async with b.another(f"{b.namespace}2") as elsewhere:
            assert await elsewhere.steps.steps(held.id) == []


async def _is_forgotten_for_good(b: Adapters, held: Delivery) -> None:
    """A new job with the same id does not see the steps of the old one."""
    assert await b.steps.steps(held.id) == []
    await publish(b, id=held.id)
    assert await b.steps.steps(held.id) == []
    await b.control.cancel([held.id], "only a look")


class StepTransactions:
    """A step and its effects are in one transaction of the store's own database.

    In these tests the effect is a job that is published in the same transaction.
    """

    @backend_test("records", "transactional")
    async def test_effect_and_step_are_there_together(self, b: Adapters) -> None:
        transactions, held, effect = _transactions(b), await publish_and_claim(b), envelope(b)

        def work(connection: Any) -> KeptStep:
            b.broker.publish_within([effect], connection)
            return done(held)

        assert await asyncio.to_thread(transactions.run, work) == done(held)
        assert await b.steps.steps(held.id) == [done(held).step]
        assert (await b.records.find(effect.id)).id == effect.id

    @backend_test("records", "transactional")
    async def test_work_that_raises_leaves_neither(self, b: Adapters) -> None:
        transactions, held, effect = _transactions(b), await publish_and_claim(b), envelope(b)

        def work(connection: Any) -> KeptStep:
            b.broker.publish_within([effect], connection)
            raise ZeroDivisionError

        with pytest.raises(ZeroDivisionError):
            await asyncio.to_thread(transactions.run, work)
        await _there_is_neither(b, held, effect.id)

    @backend_test("records", "transactional")
    async def test_a_lost_lease_leaves_neither(self, b: Adapters) -> None:
        transactions, held, effect = _transactions(b), await publish_and_claim(b), envelope(b)
        await settle(b, held, Interrupted("taken"))

        def work(connection: Any) -> KeptStep:
            b.broker.publish_within([effect], connection)
            return done(held)

        with pytest.raises(LeaseLost):
            await asyncio.to_thread(transactions.run, work)
        await _there_is_neither(b, held, effect.id)

    @backend_test("records", "transactional")
    async def test_the_borrower_cannot_end_the_transaction(self, b: Adapters) -> None:
        transactions, held, effect = _transactions(b), await publish_and_claim(b), envelope(b)
        for end in ("commit", "rollback"):

            def work(connection: Any, end: str = end) -> KeptStep:
                b.broker.publish_within([effect], connection)
                getattr(connection, end)()
                return done(held)

            with pytest.raises(Exception, match=r"(?i)transaction"):
                await asyncio.to_thread(transactions.run, work)
            await _there_is_neither(b, held, effect.id)

    @backend_test("records", "transactional")
    async def test_a_connection_is_in_order_after_work_that_failed(self, b: Adapters) -> None:
        transactions, held = _transactions(b), await publish_and_claim(b)

        def fails(connection: Any) -> KeptStep:
            connection.execute("select 1 from nothing_of_that_name")
            return done(held)

        for number in (1, 2, 3):
            with pytest.raises(Exception, match="nothing_of_that_name"):
                await asyncio.to_thread(transactions.run, fails)
            await asyncio.to_thread(transactions.run, partial(_gives, done(held, number)))
        assert len(await b.steps.steps(held.id)) == 3

    @backend_test("records", "transactional")
    async def test_coroutines_have_the_same(self, b: Adapters) -> None:
        transactions, held, effect = _transactions(b), await publish_and_claim(b), envelope(b)
        _skip_in_memory(b)

        async def work(connection: Any) -> KeptStep:
            await b.broker.publish([effect], connection)
            return done(held)

        assert await transactions.arun(work) == done(held)
        assert await b.steps.steps(held.id) == [done(held).step]
        assert (await b.records.find(effect.id)).id == effect.id

    @backend_test("records", "transactional")
    async def test_a_coroutine_that_is_cancelled_leaves_neither(self, b: Adapters) -> None:
        transactions, held, effect = _transactions(b), await publish_and_claim(b), envelope(b)
        _skip_in_memory(b)
        there = asyncio.Event()

        async def work(connection: Any) -> KeptStep:
            await b.broker.publish([effect], connection)
            there.set()
            await asyncio.Event().wait()
            return done(held)

        task = asyncio.create_task(transactions.arun(work))
        await there.wait()
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        await _there_is_neither(b, held, effect.id)
        await transactions.arun(_returning(done(held)))
        assert await b.steps.steps(held.id) == [done(held).step]

    @backend_test("records", "transactional")
    async def test_a_coroutine_without_the_lease_leaves_neither(self, b: Adapters) -> None:
        transactions, held, effect = _transactions(b), await publish_and_claim(b), envelope(b)
        _skip_in_memory(b)
        await settle(b, held, Interrupted("taken"))

        async def work(connection: Any) -> KeptStep:
            await b.broker.publish([effect], connection)
            return done(held)

        with pytest.raises(LeaseLost):
            await transactions.arun(work)
        await _there_is_neither(b, held, effect.id)

    @backend_test("records", "transactional")
    async def test_a_step_shares_the_fate_of_the_callers_transaction(self, b: Adapters) -> None:
        transactions, held = _transactions(b), await publish_and_claim(b)
        if b.sync_transaction is None or b.transaction is None:
            pytest.skip("there is no connection beside the adapters' own")
        with suppress(ZeroDivisionError), b.sync_transaction() as connection:
            transactions.keep_within(done(held), transactions.join(connection))
            raise ZeroDivisionError
        assert await b.steps.steps(held.id) == []
        with b.sync_transaction() as connection:
            transactions.keep_within(done(held), transactions.join(connection))
        async with b.transaction() as connection:
            joined = await transactions.ajoin(connection)
            await transactions.akeep_within(done(held, 2), joined)
        assert len(await b.steps.steps(held.id)) == 2

    @backend_test("records", "transactional")
    async def test_a_lost_lease_is_refused_in_the_callers_transaction(self, b: Adapters) -> None:
        transactions, held = _transactions(b), await publish_and_claim(b)
        if b.sync_transaction is None or b.transaction is None:
            pytest.skip("there is no connection beside the adapters' own")
        await settle(b, held, Interrupted("taken"))
        with b.sync_transaction() as connection, pytest.raises(LeaseLost):
            transactions.keep_within(done(held), transactions.join(connection))
        async with b.transaction() as connection:
            joined = await transactions.ajoin(connection)
            with pytest.raises(LeaseLost):
                await transactions.akeep_within(done(held), joined)
        assert await b.steps.steps(held.id) == []

    @backend_test("records", "transactional")
    async def test_a_connection_to_another_database_is_refused(self, b: Adapters) -> None:
        transactions = _transactions(b)
        with pytest.raises(ConfigurationError, match="connection=str"):
            transactions.join("a connection")
        with pytest.raises(ConfigurationError, match="connection=str"):
            await transactions.ajoin("a connection")


def _transactions(b: Adapters) -> Transactions:
    if b.step_transactions is None:
        pytest.skip("the store has no transactions")
    return b.step_transactions


def _skip_in_memory(b: Adapters) -> None:
    if b.transaction is None:
        pytest.skip("its one connection is lent to plain functions only")


def _gives(kept: KeptStep, _: object) -> KeptStep:
    return kept


def _returning(kept: KeptStep) -> Any:
    async def work(_: object) -> KeptStep:
        return kept

    return work


async def _there_is_neither(b: Adapters, held: Delivery, effect: str) -> None:
    assert await b.steps.steps(held.id) == []
    with pytest.raises(UnknownJob):
        await b.records.find(effect)
