"""Settling: every outcome, recorded once."""

from __future__ import annotations

import asyncio

import pytest

from umbel.errors import UnknownJob
from umbel.messages import (
    JSON,
    Body,
    Cancelled,
    Expired,
    Failed,
    Failure,
    Interrupted,
    Outcome,
    Rejected,
    Retry,
    Snoozed,
    State,
    Succeeded,
)
from umbel.testing.actions import (
    FAILURE,
    FAR,
    OUTCOMES,
    RESULT,
    claim,
    claim_one,
    depths,
    publish_and_claim,
    publish_and_settle,
    publish_many,
    register,
    settle,
    settlement,
)
from umbel.testing.backend import Adapters, backend_test

_ODD_NAMES = (
    "mail",
    "jobs.send.<locals>.inner:12",
    'say "hi"',
    "back\\slash",
    "it's",
    "a.b[0]",
    "$",
    "grüß 🌱",
    "two\nlines",
)


class Finishing:
    """Outcomes after which the job does not run again."""

    @backend_test("records")
    async def test_a_success_is_recorded_with_its_result(self, b: Adapters) -> None:
        found = await b.records.find(await publish_and_settle(b, Succeeded(RESULT)))
        assert (found.state, found.result) == (State.SUCCEEDED, RESULT)
        assert found.finished is not None
        assert [one.ended for one in found.attempts] == ["succeeded"]

    @backend_test("records")
    async def test_a_success_without_a_result_is_recorded(self, b: Adapters) -> None:
        found = await b.records.find(await publish_and_settle(b, Succeeded()))
        assert (found.state, found.result) == (State.SUCCEEDED, None)

    @backend_test("records")
    async def test_an_empty_result_is_a_result(self, b: Adapters) -> None:
        found = await b.records.find(await publish_and_settle(b, Succeeded(Body(JSON, b""))))
        assert found.result == Body(JSON, b"")

    @backend_test("records", "forgets")
    async def test_a_success_that_is_not_kept_leaves_no_record(self, b: Adapters) -> None:
        held = await publish_and_claim(b)
        assert await settle(b, held, Succeeded(RESULT), keep=False) == []
        with pytest.raises(UnknownJob):
            await b.records.find(held.id)
        assert await depths(b) == {}

    @backend_test("records")
    async def test_a_failure_is_kept_even_where_successes_are_not(self, b: Adapters) -> None:
        held = await publish_and_claim(b)
        await settle(b, held, Failed(FAILURE), keep=False)
        assert (await b.records.find(held.id)).state is State.BURIED

    @backend_test("records")
    async def test_a_failed_job_is_buried_with_its_failure_and_payload(self, b: Adapters) -> None:
        held = await publish_and_claim(b)
        await settle(b, held, Failed(FAILURE))
        found = await b.records.find(held.id)
        assert (found.state, found.failure) == (State.BURIED, FAILURE)
        assert found.reason == FAILURE.message
        assert found.body == held.envelope.body
        assert found.attempts[0].failure == FAILURE

    @backend_test("records")
    async def test_a_rejected_job_is_buried_with_the_reason(self, b: Adapters) -> None:
        found = await b.records.find(await publish_and_settle(b, Rejected("args: missing b")))
        assert (found.state, found.reason) == (State.BURIED, "args: missing b")

    @backend_test("records")
    async def test_a_cancelled_job_is_recorded_with_the_reason(self, b: Adapters) -> None:
        found = await b.records.find(await publish_and_settle(b, Cancelled("not wanted")))
        assert (found.state, found.reason) == (State.CANCELLED, "not wanted")

    @backend_test("records")
    async def test_an_expired_job_is_recorded(self, b: Adapters) -> None:
        found = await b.records.find(await publish_and_settle(b, Expired()))
        assert found.state is State.EXPIRED

    @backend_test()
    async def test_a_finished_job_is_not_fetched_and_not_counted(self, b: Adapters) -> None:
        for outcome in _final():
            await publish_and_settle(b, outcome)
        assert await depths(b) == {}
        assert await claim(b, await register(b)) == []

    @backend_test("records")
    async def test_a_finished_job_keeps_everything_that_was_published(self, b: Adapters) -> None:
        held = await publish_and_claim(
            b, traceparent="00-a-b-01", headers={"note": "x"}, unique="only"
        )
        await settle(b, held, Failed(FAILURE))
        found, sent = await b.records.find(held.id), held.envelope
        assert (found.task, found.queue, found.kind) == (sent.subject, sent.queue, sent.kind)
        assert (found.traceparent, found.headers) == (sent.traceparent, sent.headers)
        assert (found.unique, found.namespace) == ("only", b.namespace)

    @backend_test("records")
    async def test_a_failure_of_any_text_is_recorded(self, b: Adapters) -> None:
        for text in ("embedded \x00 null", "grüß 🌱", "a\\u0000b", "'; drop table job; --", ""):
            failure = Failure("builtins:ValueError", text, text, '["x"]')
            held = await publish_and_claim(b)
            assert await settle(b, held, Failed(failure)) == []
            assert (await b.records.find(held.id)).state is State.BURIED


class Requeueing:
    """Outcomes after which the job runs again."""

    @backend_test()
    async def test_a_retry_costs_an_attempt(self, b: Adapters) -> None:
        assert (await _again(b, Retry(FAILURE, 0.0))) == (2, {})

    @backend_test()
    async def test_a_retry_of_a_section_costs_that_section_and_no_attempt(
        self, b: Adapters
    ) -> None:
        assert (await _again(b, Retry(FAILURE, 0.0, "mail"))) == (1, {"mail": 1})

    @backend_test()
    async def test_an_interruption_costs_nothing(self, b: Adapters) -> None:
        assert (await _again(b, Interrupted("stopping"))) == (1, {})

    @backend_test()
    async def test_a_snooze_costs_nothing(self, b: Adapters) -> None:
        assert (await _again(b, Snoozed(0.0))) == (1, {})

    @backend_test()
    async def test_sections_are_counted_apart_whatever_their_names(self, b: Adapters) -> None:
        owner = await register(b)
        held = await publish_and_claim(b, owner)
        for name in (*_ODD_NAMES, *_ODD_NAMES[:3]):
            assert await settle(b, held, Retry(FAILURE, 0.0, name)) == [], name
            held = await claim_one(b, owner)
        assert held.sections == {n: 2 if n in _ODD_NAMES[:3] else 1 for n in _ODD_NAMES}
        assert held.attempt == 1

    @backend_test("records")
    async def test_a_requeued_job_has_no_owner(self, b: Adapters) -> None:
        held = await publish_and_claim(b)
        await settle(b, held, Interrupted())
        found = await b.records.find(held.id)
        assert (found.state, found.worker) == (State.QUEUED, None)

    @backend_test("records")
    async def test_a_job_has_the_history_of_every_attempt_in_order(self, b: Adapters) -> None:
        owner = await register(b)
        held = await publish_and_claim(b, owner)
        tale: tuple[Outcome, ...] = (Retry(FAILURE, 0.0), Interrupted("stop"), Snoozed(0.0))
        for outcome in tale:
            await settle(b, held, outcome)
            held = await claim_one(b, owner)
        await settle(b, held, Succeeded(RESULT))
        story_told = (await b.records.find(held.id)).attempts
        assert [one.ended for one in story_told] == ["retry", "interrupted", "snoozed", "succeeded"]
        assert [one.number for one in story_told] == [1, 2, 2, 2]
        assert story_told[0].failure == FAILURE


class SettlingOnce:
    """An outcome is recorded once, however often it is settled."""

    @backend_test()
    async def test_settling_twice_is_refused_the_second_time(self, b: Adapters) -> None:
        for outcome in OUTCOMES:
            held = await publish_and_claim(b)
            assert await settle(b, held, outcome) == [], outcome
            assert await settle(b, held, outcome) == [held.lease], outcome
            await b.control.cancel([held.id], "make room")

    @backend_test("records")
    async def test_the_second_outcome_does_not_change_the_first(self, b: Adapters) -> None:
        held = await publish_and_claim(b)
        await settle(b, held, Succeeded(RESULT))
        await settle(b, held, Failed(FAILURE))
        assert (await b.records.find(held.id)).state is State.SUCCEEDED

    @backend_test()
    async def test_the_same_lease_twice_in_a_batch_counts_once(self, b: Adapters) -> None:
        held = await publish_and_claim(b)
        both = [settlement(held, Succeeded(RESULT)), settlement(held, Failed(FAILURE))]
        assert await b.broker.settle(both) == [held.lease]

    @backend_test()
    async def test_of_two_leases_of_a_job_in_a_batch_the_older_is_refused(
        self, b: Adapters
    ) -> None:
        owner = await register(b)
        for outcome in (Succeeded(RESULT), Failed(FAILURE), Retry(delay=FAR, failure=FAILURE)):
            for later in (owner, await register(b)):
                old = await publish_and_claim(b, owner)
                await settle(b, old, Interrupted("stopping"))
                new = await claim_one(b, later)
                both = [settlement(one, outcome) for one in (old, new)]
                assert await b.broker.settle(both) == [old.lease], outcome

    @backend_test("records")
    async def test_a_refused_settlement_does_not_hold_up_the_others(self, b: Adapters) -> None:
        owner = await register(b)
        await publish_many(b, 3)
        first, second, third = await claim(b, owner)
        await settle(b, second, Succeeded(RESULT))
        batch = [settlement(one, Failed(FAILURE)) for one in (first, second, third)]
        assert await b.broker.settle(batch) == [second.lease]
        states = [(await b.records.find(one.id)).state for one in (first, second, third)]
        assert states == [State.BURIED, State.SUCCEEDED, State.BURIED]

    @backend_test("records")
    async def test_a_batch_may_hold_every_outcome(self, b: Adapters) -> None:
        await publish_many(b, len(OUTCOMES))
        held = await claim(b, await register(b))
        batch = [settlement(one, outcome) for one, outcome in zip(held, OUTCOMES, strict=True)]
        assert await b.broker.settle(batch) == []
        states = [(await b.records.find(one.id)).state.value for one in held]
        assert states == [
            *("succeeded", "buried", "queued", "scheduled", "scheduled", "queued"),
            *("queued", "cancelled", "buried", "expired"),
        ]

    @backend_test()
    async def test_an_empty_batch_settles_nothing(self, b: Adapters) -> None:
        assert await b.broker.settle([]) == []

    @backend_test()
    async def test_of_two_that_settle_the_same_lease_at_once_one_is_refused(
        self, b: Adapters
    ) -> None:
        async with b.another() as other:
            for _ in range(10):
                held = await publish_and_claim(b)
                refused = await asyncio.gather(
                    settle(b, held, Succeeded(RESULT)), settle(other, held, Failed(FAILURE))
                )
                assert sorted(map(len, refused)) == [0, 1]

    @backend_test()
    async def test_another_process_may_settle_under_the_lease(self, b: Adapters) -> None:
        held = await publish_and_claim(b)
        async with b.another() as other:
            assert await settle(other, held, Succeeded(RESULT)) == []
        assert await settle(b, held, Succeeded(RESULT)) == [held.lease]

    @backend_test()
    async def test_a_large_batch_is_settled_whole(self, b: Adapters) -> None:
        await publish_many(b, 500)
        owner = await register(b)
        held = []
        while got := await claim(b, owner):
            held += got
        batch = [settlement(one, Retry(FAILURE, FAR)) for one in held]
        assert await b.broker.settle(batch) == []
        assert await depths(b) == {("default", "scheduled"): 500}


def _final() -> tuple[Outcome, ...]:
    return (Succeeded(RESULT), Failed(FAILURE), Cancelled("no"), Rejected("no"), Expired())


async def _again(b: Adapters, outcome: Outcome) -> tuple[int, dict[str, int]]:
    """Settle, fetch again, and return the attempt and sections of the new delivery."""
    held = await publish_and_claim(b)
    assert await settle(b, held, outcome) == []
    again = await claim_one(b, held.lease.owner)
    assert again.deaths == 0
    return again.attempt, again.sections
