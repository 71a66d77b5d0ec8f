"""Unique keys: one live job each."""

from __future__ import annotations

import asyncio

import pytest

from umbel.backends import Published
from umbel.errors import DuplicateJob
from umbel.messages import Retry, State, Succeeded
from umbel.testing.actions import (
    FAILURE,
    FAR,
    RESULT,
    claim,
    claim_one,
    envelope,
    publish,
    publish_and_claim,
    register,
    settle,
)
from umbel.testing.backend import Adapters, backend_test


class UniqueKeys:
    """What happens if a second job with the same key is published."""

    @backend_test("unique")
    async def test_a_second_job_with_a_live_key_is_refused_by_name(self, b: Adapters) -> None:
        holder = await publish(b, unique="only")
        with pytest.raises(DuplicateJob) as caught:
            await publish(b, unique="only")
        assert (caught.value.key, caught.value.existing) == ("only", holder.id)

    @backend_test("unique")
    async def test_a_refused_key_refuses_the_whole_batch(self, b: Adapters) -> None:
        await publish(b, unique="only")
        with pytest.raises(DuplicateJob):
            await b.broker.publish([envelope(b), envelope(b, unique="only"), envelope(b)])
        assert len(await claim(b, await register(b))) == 1

    @backend_test("unique")
    async def test_two_jobs_with_one_key_in_one_batch_are_refused(self, b: Adapters) -> None:
        with pytest.raises(DuplicateJob):
            await b.broker.publish([envelope(b, unique="only"), envelope(b, unique="only")])
        assert await claim(b, await register(b)) == []

    @backend_test("unique")
    async def test_on_conflict_return_gives_the_job_that_is_there(self, b: Adapters) -> None:
        holder = await publish(b, unique="only")
        answer = await b.broker.publish([envelope(b, unique="only", on_conflict="return")])
        assert answer == [Published(holder.id, existing=True)]

    @backend_test("unique")
    async def test_on_conflict_return_goes_for_running_jobs_too(self, b: Adapters) -> None:
        held = await publish_and_claim(b, unique="only")
        answer = await b.broker.publish([envelope(b, unique="only", on_conflict="return")])
        assert answer == [Published(held.id, existing=True)]

    @backend_test("unique", "records")
    async def test_on_conflict_replace_cancels_the_job_that_waits(self, b: Adapters) -> None:
        old = await publish(b, unique="only")
        new = await publish(b, unique="only", on_conflict="replace")
        assert (await b.records.find(old.id)).state is State.CANCELLED
        assert new.id in (await b.records.find(old.id)).reason
        assert (await claim_one(b, await register(b))).id == new.id

    @backend_test("unique", "records", "delay")
    async def test_on_conflict_replace_cancels_a_scheduled_job(self, b: Adapters) -> None:
        old = await publish(b, unique="only", not_before=b.clock.now() + FAR)
        await publish(b, unique="only", on_conflict="replace")
        assert (await b.records.find(old.id)).state is State.CANCELLED

    @backend_test("unique")
    async def test_a_running_job_is_not_replaced(self, b: Adapters) -> None:
        held = await publish_and_claim(b, unique="only")
        with pytest.raises(DuplicateJob) as caught:
            await publish(b, unique="only", on_conflict="replace")
        assert caught.value.existing == held.id
        assert await settle(b, held, Succeeded(RESULT)) == []

    @backend_test("unique")
    async def test_repeating_a_unique_publish_under_its_own_id_is_no_conflict(
        self, b: Adapters
    ) -> None:
        sent = await publish(b, unique="only")
        assert await b.broker.publish([sent]) == [Published(sent.id, existing=True)]

    @backend_test("unique")
    async def test_a_key_is_free_again_when_its_job_has_finished(self, b: Adapters) -> None:
        held = await publish_and_claim(b, unique="only")
        await settle(b, held, Succeeded(RESULT))
        fresh = await publish(b, unique="only")
        assert (await claim_one(b, await register(b))).id == fresh.id

    @backend_test("unique")
    async def test_a_key_is_free_again_when_its_job_was_cancelled(self, b: Adapters) -> None:
        old = await publish(b, unique="only")
        await b.control.cancel([old.id], "not wanted")
        assert (await publish(b, unique="only")).id != old.id

    @backend_test("unique", "delay")
    async def test_a_job_keeps_its_key_while_it_waits_for_a_retry(self, b: Adapters) -> None:
        held = await publish_and_claim(b, unique="only")
        await settle(b, held, Retry(FAILURE, FAR))
        with pytest.raises(DuplicateJob):
            await publish(b, unique="only")

    @backend_test("unique")
    async def test_different_keys_do_not_meet(self, b: Adapters) -> None:
        await publish(b, unique="one")
        await publish(b, unique="two")
        assert len(await claim(b, await register(b))) == 2

    @backend_test("unique")
    async def test_a_key_holds_in_its_namespace_only(self, b: Adapters) -> None:
        await publish(b, unique="only")
        async with b.another(f"{b.namespace}2") as elsewhere:
            sent = await publish(elsewhere, unique="only")
            assert (await claim_one(elsewhere, await register(elsewhere))).id == sent.id

    @backend_test("unique")
    async def test_of_many_publishers_at_once_one_gets_the_key(self, b: Adapters) -> None:
        async with b.another() as other:
            tries = [
                side.broker.publish([envelope(b, unique="only")])
                for _ in range(10)
                for side in (b, other)
            ]
            answers = await asyncio.gather(*tries, return_exceptions=True)
        refused = [answer for answer in answers if isinstance(answer, DuplicateJob)]
        assert len(refused) == 19, answers
        assert len(await claim(b, await register(b))) == 1
